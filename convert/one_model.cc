#include "convert/one_model.h"

#include <algorithm>
#include <array>
#include <map>
#include <string_view>

#include <fmt/format.h>

#include "formats/base/fd.h"
#include "formats/base/parallel.h"
#include "formats/base/stop_scope.h"
#include "formats/checkpoint/checkpoint_listing.h"
#include "formats/config/config_meaning.h"
#include "formats/config/side_files.h"
#include "formats/family/roles.h"
#include "formats/json/json.h"
#include "formats/storage/block_scales.h"
#include "formats/text/list_text.h"

namespace ingot::convert {

using formats::Checkpoint;
using formats::Giver;
using formats::LogicalTensor;
using formats::ModelConfig;
using formats::Role;

namespace {

constexpr std::size_t kNamedAtMost = 3;
constexpr std::size_t kComparedBytes = std::size_t{4} << 20;
constexpr std::uint64_t kMaxTextFileBytes = std::uint64_t{256} << 20;

/// A number that all builds of a model have alike.
struct SharedNumber {
  std::string_view name;
  std::uint64_t ModelConfig::*number;
};
constexpr std::array kSharedNumbers = {
    SharedNumber{"num_hidden_layers", &ModelConfig::num_hidden_layers},
    SharedNumber{"hidden_size", &ModelConfig::hidden_size},
    SharedNumber{"intermediate_size", &ModelConfig::intermediate_size},
    SharedNumber{"moe_intermediate_size", &ModelConfig::moe_intermediate_size},
    SharedNumber{"vocab_size", &ModelConfig::vocab_size},
    SharedNumber{"num_attention_heads", &ModelConfig::num_attention_heads},
    SharedNumber{"num_key_value_heads", &ModelConfig::num_key_value_heads},
    SharedNumber{"n_routed_experts", &ModelConfig::n_routed_experts},
    SharedNumber{"n_shared_experts", &ModelConfig::n_shared_experts},
    SharedNumber{"num_experts_per_tok", &ModelConfig::num_experts_per_tok},
    SharedNumber{"q_lora_rank", &ModelConfig::q_lora_rank},
    SharedNumber{"kv_lora_rank", &ModelConfig::kv_lora_rank},
    SharedNumber{"qk_nope_head_dim", &ModelConfig::qk_nope_head_dim},
    SharedNumber{"qk_rope_head_dim", &ModelConfig::qk_rope_head_dim},
    SharedNumber{"v_head_dim", &ModelConfig::v_head_dim},
};

/// Tensors by which a model is known, since few trainings change them.
constexpr formats::RoleSet kCompared = {
    Role::kEmbedding,         Role::kHead,         Role::kFinalNorm, Role::kInputNorm,
    Role::kPostAttentionNorm, Role::kQNorm,        Role::kKNorm,     Role::kQaNorm,
    Role::kKvaNorm,           Role::kIndexerKNorm, Role::kRouter,    Role::kRouterBias};

std::map<std::string_view, const LogicalTensor*> by_name(const Checkpoint& model) {
  std::map<std::string_view, const LogicalTensor*> tensors;
  for (const LogicalTensor& tensor : model.tensors()) tensors.emplace(tensor.name, &tensor);
  return tensors;
}

/// A plain tensor of one side, read in pieces.
class PlainValues {
 public:
  PlainValues(const Checkpoint& model, const LogicalTensor& tensor)
      : model_(model),
        index_(tensor.encoding.stored.weight()),
        stored_(model.stored()[index_]),
        width_(formats::dtype_bits(stored_.dtype) / 8) {}

  [[nodiscard]] formats::DType dtype() const { return stored_.dtype; }
  [[nodiscard]] std::uint64_t count() const { return stored_.n_bytes / width_; }
  void read(std::uint64_t first, std::size_t n) {
    bytes_.resize(n * width_);
    model_.read(index_, first * width_, bytes_);
  }
  [[nodiscard]] const std::vector<std::byte>& bytes() const { return bytes_; }
  [[nodiscard]] std::vector<float> numbers() const {
    std::vector<float> numbers(bytes_.size() / width_);
    formats::widen_scales(stored_.dtype, bytes_, std::nullopt, numbers);
    return numbers;
  }

 private:
  const Checkpoint& model_;
  std::uint32_t index_;
  const formats::StoredTensor& stored_;
  std::size_t width_;
  std::vector<std::byte> bytes_;
};

bool is_compared(const LogicalTensor& tensor) {
  using formats::SchemeId;
  const SchemeId scheme = tensor.encoding.scheme;
  return kCompared.has(role_of(tensor)) &&
         (scheme == SchemeId::kBf16 || scheme == SchemeId::kF16 || scheme == SchemeId::kF32);
}

bool are_equal(const Checkpoint& a, const LogicalTensor& of_a, const Checkpoint& b,
               const LogicalTensor& of_b) {
  if (of_a.shape != of_b.shape) return false;
  PlainValues left(a, of_a), right(b, of_b);
  const bool is_same_dtype = left.dtype() == right.dtype();
  for (std::uint64_t first = 0; first < left.count();) {
    StopScope::check();
    const std::size_t n =
        std::min<std::uint64_t>(left.count() - first, kComparedBytes / sizeof(float));
    left.read(first, n);
    right.read(first, n);
    const bool are =
        is_same_dtype ? left.bytes() == right.bytes() : left.numbers() == right.numbers();
    if (!are) return false;
    first += n;
  }
  return true;
}

bool is_same_file(const Checkpoint& base, const Checkpoint& other, const std::string& path) {
  const std::string own = read_text_file(base.directory() / path, kMaxTextFileBytes),
                    theirs = read_text_file(other.directory() / path, kMaxTextFileBytes);
  if (own == theirs) return true;
  if (!path.ends_with(".json")) return false;
  try {
    return nlohmann::json(formats::parse_json(own, path)) ==
           nlohmann::json(formats::parse_json(theirs, path));
  } catch (const Error&) {
    return false;  // texts that are no JSON, and differ
  }
}

}  // namespace

void require_one_model(const Giver& base, const Giver& other, ErrorList& faults) {
  const Checkpoint &own = *base.model, &theirs = *other.model;
  const auto refuse = [&](ErrorCode code, std::string fact) {
    faults.add(Error(code, std::move(fact)).in_directory(theirs.directory().string()));
  };
  if (own.family().name != theirs.family().name) {
    return refuse(ErrorCode::kMismatch,
                  fmt::format("is of family {}, the base of {}: two builds of one model are of one "
                              "family",
                              theirs.family().name, own.family().name));
  }
  for (const SharedNumber& row : kSharedNumbers) {
    const std::uint64_t wanted = own.config().*row.number, has = theirs.config().*row.number;
    if (wanted != has)
      refuse(ErrorCode::kMismatch,
             fmt::format("config.json has {} {}, the base's has {}: it is no build of the same "
                         "model",
                         row.name, has, wanted));
  }
  const auto tensors = by_name(own);
  std::vector<std::string> differing;
  for (const LogicalTensor& tensor : theirs.tensors()) {
    const auto found = tensors.find(tensor.name);
    if (found == tensors.end() || found->second->shape == tensor.shape || tensor.rule == nullptr ||
        formats::is_cache_scale(tensor.rule))
      continue;
    differing.push_back(fmt::format("{} {} (the base's {})", tensor.name,
                                    formats::shape_text(tensor.shape),
                                    formats::shape_text(found->second->shape)));
  }
  if (!differing.empty())
    refuse(ErrorCode::kShapeMismatch,
           fmt::format("has {} tensor(s) of other shapes than the base: {}", differing.size(),
                       list_text(differing, kNamedAtMost)));
}

std::vector<std::string> differences_of(const Giver& base, const Giver& other,
                                        std::size_t threads) {
  std::vector<std::string> found;
  const formats::ConfigMeaning own(base.model->config().raw), theirs(other.model->config().raw);
  std::vector<std::string> values;
  for (const auto& [meaning, value] : own.known()) {
    const auto at = theirs.known().find(meaning);
    if (at != theirs.known().end() && *at->second.value != *value.value)
      values.push_back(fmt::format("{} {} (the base's {})", meaning,
                                   formats::config_text(at->second.value),
                                   formats::config_text(value.value)));
  }
  if (!values.empty())
    found.push_back(fmt::format("source '{}': config.json says {}; the base's is written",
                                other.name, list_text(values, kNamedAtMost)));
  std::vector<std::pair<const LogicalTensor*, const LogicalTensor*>> pairs;
  const auto tensors = by_name(*other.model);
  for (const LogicalTensor& tensor : base.model->tensors()) {
    const auto at = tensors.find(tensor.name);
    if (is_compared(tensor) && at != tensors.end() && is_compared(*at->second))
      pairs.emplace_back(&tensor, at->second);
  }
  std::vector<char> differs(pairs.size());
  parallel_for(pairs.size(), threads, [&](std::size_t i) {
    differs[i] = are_equal(*base.model, *pairs[i].first, *other.model, *pairs[i].second) ? 0 : 1;
  });
  std::map<std::string_view, std::vector<std::string>> by_role;
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    if (differs[i] != 0)
      by_role[formats::role_name(role_of(*pairs[i].first))].push_back(pairs[i].first->name);
  }
  for (const auto& [role, names] : by_role)
    found.push_back(
        fmt::format("source '{}': {} {} tensor(s) have other values than the base's, as "
                    "after a training: {}",
                    other.name, names.size(), role, list_text(names, kNamedAtMost)));
  return found;
}

std::vector<std::string> differing_side_files(const Checkpoint& base, const Checkpoint& other) {
  const auto has = [](const Checkpoint& model, std::string_view name) {
    return std::ranges::find(model.side_files(), name, &formats::SideFile::path) !=
           model.side_files().end();
  };
  std::vector<std::string> names;
  for (const formats::ReadFile& file : formats::kReadFiles) {
    if (file.is_of_text && has(base, file.name) && has(other, file.name) &&
        !is_same_file(base, other, std::string(file.name)))
      names.emplace_back(file.name);
  }
  return names;
}

}  // namespace ingot::convert
