#include "formats/checkpoint/single_experts.h"

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "formats/json/json.h"

namespace ingot::formats {
namespace {

constexpr std::string_view kExpertMark = "{expert}";

bool is_stack(const LogicalTensor& tensor) {
  const Role role = tensor.rule != nullptr ? tensor.rule->role : Role::kOther;
  return role == Role::kExpertsGateUp || role == Role::kExpertsDown;
}

const TensorRule* find_row(const Family& family, Role role) {
  const auto row = std::ranges::find(family.rules, role, &TensorRule::role);
  return row == family.rules.end() ? nullptr : &*row;
}

/// The rows of the experts in this stack, in the order of its rows; empty where it is not
/// output-major.
std::vector<const TensorRule*> rows_within(const Family& family, const TensorRule& stack) {
  const bool is_down = stack.role == Role::kExpertsDown;
  std::vector<const TensorRule*> rows = {
      find_row(family, is_down ? Role::kExpertDown : Role::kExpertGate)};
  if (!is_down) rows.push_back(find_row(family, Role::kExpertUp));
  const bool is_output_major = std::ranges::all_of(rows, [&](const TensorRule* row) {
    return row != nullptr && row->shape[1] != nullptr && stack.shape[2] != nullptr &&
           *row->shape[1] == *stack.shape[2];
  });
  return is_output_major ? rows : std::vector<const TensorRule*>();
}

/// Where a tensor's bytes are in the source.
struct View {
  std::uint32_t stored = 0;
  std::uint64_t offset = 0;
};

/// Ranges of another checkpoint's tensors.
class ViewedBytes final : public StoredBytes {
 public:
  ViewedBytes(Checkpoint source, std::vector<View> views)
      : source_(std::move(source)), views_(std::move(views)) {}

  [[nodiscard]] std::span<const SourceFile> files() const override { return source_.files(); }
  void read(std::uint32_t index, const StoredTensor& /*tensor*/, std::uint64_t offset,
            std::span<std::byte> out) const override {
    const View& view = views_.at(index);
    source_.read(view.stored, view.offset + offset, out);
  }
  [[nodiscard]] std::vector<std::byte> header_bytes(std::uint32_t file) const override {
    return source_.header_bytes(file);
  }
  [[nodiscard]] bool has_data(std::uint32_t file) const override { return source_.has_data(file); }
  void read_file(std::uint32_t file, std::uint64_t offset,
                 std::span<std::byte> out) const override {
    source_.read_file(file, offset, out);
  }
  void close_file(std::uint32_t file) const override { source_.close_file(file); }
  [[nodiscard]] bool is_whole() const override { return source_.is_whole(); }
  [[nodiscard]] std::string home_file(std::uint32_t index) const override {
    return source_.home_file(views_.at(index).stored);
  }

 private:
  Checkpoint source_;
  std::vector<View> views_;
};

class Separation {
 public:
  explicit Separation(const Checkpoint& source) : source_(source) {
    std::vector<const LogicalTensor*> stack_of(source.stored().size(), nullptr);
    for (const LogicalTensor& tensor : source.tensors()) {
      if (is_stack(tensor)) stack_of[tensor.encoding.stored.weight()] = &tensor;
    }
    for (std::uint32_t i = 0; i < stack_of.size(); ++i)
      stack_of[i] != nullptr ? separate(i, *stack_of[i]) : add(i, source.stored()[i], 0);
  }

  std::vector<StoredTensor> stored;
  std::vector<View> views;

 private:
  void add(std::uint32_t index, StoredTensor tensor, std::uint64_t offset) {
    stored.push_back(std::move(tensor));
    views.push_back({.stored = index, .offset = offset});
  }

  // Headers have been checked, so a stack's bytes divide by its experts.
  void separate(std::uint32_t index, const LogicalTensor& stack) {
    const std::vector<const TensorRule*> rows = rows_within(source_.family(), *stack.rule);
    const StoredTensor& whole = source_.stored()[index];
    const std::uint64_t n_parts = stack.shape.size() == 3 ? stack.shape[0] * rows.size() : 0;
    if (rows.empty() || scheme_facts(stack.encoding.scheme).quantized || n_parts == 0 ||
        stack.shape[1] % rows.size() != 0) {
      throw Error(ErrorCode::kUnsupported,
                  fmt::format("is a stack of shape {} that is not seen expert by expert: only "
                              "plain, output-major stacks are (leave --experts at keep)",
                              shape_text(stack.shape)))
          .in_tensor(stack.name);
    }
    const std::string base = stack.name.substr(0, stack.name.rfind('.') + 1);
    const std::uint64_t n_bytes = whole.n_bytes / n_parts;
    for (std::uint64_t part = 0; part < n_parts; ++part) {
      const std::string_view pattern = rows[part % rows.size()]->pattern;
      StoredTensor tensor = whole;
      tensor.name = fmt::format("{}{}{}", base, part / rows.size(),
                                pattern.substr(pattern.find(kExpertMark) + kExpertMark.size()));
      tensor.shape = {stack.shape[1] / rows.size(), stack.shape[2]};
      tensor.offset = whole.offset + part * n_bytes;
      tensor.n_bytes = n_bytes;
      add(index, std::move(tensor), part * n_bytes);
    }
  }

  const Checkpoint& source_;
};

}  // namespace

bool holds_stacks(const TensorSource& source) {
  return std::ranges::any_of(source.tensors(), is_stack);
}

bool holds_single_experts(const TensorSource& source) {
  return std::ranges::any_of(source.tensors(), [](const LogicalTensor& tensor) {
    return tensor.rule != nullptr && is_routed_expert(tensor.rule->role) && !is_stack(tensor);
  });
}

bool can_separate(const TensorSource& source) {
  return std::ranges::all_of(source.tensors(), [&](const LogicalTensor& tensor) {
    return !is_stack(tensor) || (!scheme_facts(tensor.encoding.scheme).quantized &&
                                 !rows_within(source.family(), *tensor.rule).empty());
  });
}

Checkpoint with_single_experts(Checkpoint source, const OpenOptions& options) {
  if (source.slicing() != nullptr) {
    throw Error(ErrorCode::kUnsupported,
                "holds one rank's slices, whose stacks stay stacks (merge the ranks first)")
        .in_file(source.directory().string());
  }
  Separation separation(source);
  AssembledModel model{.directory = source.directory(),
                       .file_names = std::nullopt,
                       .config = source.config(),
                       .config_text = source.config_text(),
                       .description = source.description(),
                       .dialect = &source.dialect(),
                       .side_files = source.side_files(),
                       .stored = std::move(separation.stored),
                       .remarks = source.remarks(),
                       .bytes = nullptr,
                       .index_frame = source.index_frame(),
                       .slices = nullptr};
  OpenOptions open = options;
  open.family = source.family().spec;
  model.bytes = std::make_unique<ViewedBytes>(std::move(source), std::move(separation.views));
  return Checkpoint::assemble(std::move(model), open);
}

}  // namespace ingot::formats
