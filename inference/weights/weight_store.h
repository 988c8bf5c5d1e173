#pragma once

#include <atomic>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/checkpoint/checkpoint.h"
#include "formats/dialect/dialect.h"
#include "formats/family/roles.h"
#include "inference/base/profile.h"
#include "inference/weights/linear.h"
#include "inference/weights/part_reader.h"

namespace ingot::inference {

/// The purpose of a weight: a role, or the finer one where rows share a role.
struct WeightRole {
  WeightRole(formats::Role of) : role(of) {}
  WeightRole(formats::FineRole of) : role(formats::role_of(of)), fine(of) {}
  formats::Role role;
  std::optional<formats::FineRole> fine;
  auto operator<=>(const WeightRole&) const = default;
};

/// Place of a weight in a model: `layer`, `expert` and, among blocks whose rows have the same
/// roles, `block` (TensorRule::block), where the weight belongs to one; `part` is a number below a
/// key of config.json.
struct WeightPlace {
  WeightRole role;
  std::optional<std::uint32_t> layer = {}, expert = {};
  std::uint8_t block = 0;
  std::optional<std::uint32_t> part = {};
  auto operator<=>(const WeightPlace&) const = default;
};

/// Rows of one of the weights that a tensor has one behind the other, and those that are read.
struct SectionRows {
  std::size_t count = 0;
  Range mine;
};

/// Finds and reads the weights of a source by their canonical names
/// (`model.layers.3.self_attn.q_a_proj.weight`), whatever its dialect, scheme and layout. Reads
/// only the rows and columns that are asked for. Where the source is a rank's directory, a weight
/// of which a part is asked for may be just that part: opening the source has checked that it is
/// the rank's own. Safe from many threads.
class WeightStore {
 public:
  /// `source` must outlive this, and so must `observer`, which is shown the input of every linear.
  WeightStore(const formats::Checkpoint& source, Profile profile, std::size_t threads,
              InputObserver* observer = nullptr);

  [[nodiscard]] const formats::Checkpoint& source() const { return source_; }
  [[nodiscard]] Profile profile() const { return profile_; }
  [[nodiscard]] bool has(std::string_view name) const { return by_name_.contains(name); }
  /// Returns the name of the tensor at a place; the first of the source where there are several.
  /// Where there is none, the name that the family has for it, so that an error of reading it says
  /// what is missing; throws kMissingTensor naming the role where it has none. A source without a
  /// grammar has the usual names of experts.
  [[nodiscard]] std::string name_of(const WeightPlace& place) const;
  [[nodiscard]] bool has(const WeightPlace& place) const;
  /// True if the tensor is there, or the family says that it must be: where tensors tell the kind
  /// of a module, a lost tensor must not make it another kind.
  [[nodiscard]] bool expects(const WeightPlace& place) const;
  /// True if a weight holds the rows of gate and up in turn: gate's first, up's first, gate's
  /// second and so on. Throws kMissingTensor.
  [[nodiscard]] bool has_rows_in_turn(std::string_view name) const;
  /// The shape of a weight as the source holds it; throws kMissingTensor.
  [[nodiscard]] const formats::Shape& shape_of(std::string_view name) const {
    return find(name).shape;
  }

  /// Reads a norm, bias or other small tensor, decoded to FP32 and flattened; `shape` is the
  /// required one. kMissingTensor and kShapeMismatch name the tensor; kNonFinite for NaN or
  /// infinities.
  [[nodiscard]] std::vector<float> vector(std::string_view name, const formats::Shape& shape) const;
  /// Reads the values `mine` of a vector of `n`; in a rank's directory also of a vector that holds
  /// only these.
  [[nodiscard]] std::vector<float> vector_part(std::string_view name, std::size_t n,
                                               Range mine) const;
  /// Reads whole numbers, stored as I64 or I32, flattened. Throws as vector() does, and kCorrupt
  /// for a number below 0.
  [[nodiscard]] std::vector<std::uint64_t> whole_numbers(std::string_view name,
                                                         const formats::Shape& shape) const;
  /// Reads whole numbers below `limit`, as whole_numbers() does; throws kCorrupt for a number that
  /// is not below it.
  [[nodiscard]] std::vector<std::uint32_t> indices(std::string_view name,
                                                   const formats::Shape& shape,
                                                   std::size_t limit) const;
  /// Reads a part of a weight of `rows_of_whole` x `cols_of_whole`. Columns of a part begin at a
  /// multiple of 16, and of the group that shares a scale where that is shorter than 128 and than a
  /// row (kUnsupported otherwise). Groups of quantized activations count from the part's first
  /// column.
  [[nodiscard]] Linear linear(std::string_view name, std::size_t rows_of_whole,
                              std::size_t cols_of_whole, Range rows, Range cols) const;
  /// Reads the whole weight.
  [[nodiscard]] Linear linear(std::string_view name, std::size_t rows, std::size_t cols) const {
    return linear(name, rows, cols, {0, rows}, {0, cols});
  }
  /// Reads each of the weights of `cols` columns that a tensor has one behind the other. In a
  /// rank's directory the tensor may hold only those rows of each.
  [[nodiscard]] std::vector<Linear> linears(std::string_view name,
                                            std::span<const SectionRows> sections,
                                            std::size_t cols) const;
  /// Reads any part of a weight, also of one matrix of a stack (`mlp.experts.gate_up_proj`), on at
  /// most `threads` threads instead of the store's. Throws, naming the tensor, kMissingTensor;
  /// kShapeMismatch; kUnsupported for numbers without arithmetic; kBadScale; in profile kNative for
  /// inputs that the activations need and lack.
  [[nodiscard]] Linear read(const LinearPart& part, std::size_t threads) const;
  /// Reads several parts, which share one run of memory for as long as one of them lives.
  [[nodiscard]] std::vector<Linear> read(std::span<const LinearPart> parts,
                                         std::size_t threads) const;
  /// Returns the bytes that a part would hold. Throws kMissingTensor and kShapeMismatch, as read()
  /// does.
  [[nodiscard]] std::uint64_t bytes_of(const LinearPart& part) const;

  /// Bytes read from the source so far.
  [[nodiscard]] std::uint64_t bytes_read() const { return bytes_read_; }

 private:
  [[nodiscard]] const formats::LogicalTensor& find(std::string_view name) const;
  [[nodiscard]] const formats::LogicalTensor& find(std::string_view name,
                                                   const formats::Shape& shape) const;
  [[nodiscard]] PartLayout layout_of(const LinearPart& part) const;
  void choose_arithmetic(const formats::LogicalTensor& tensor, const LinearPart& part,
                         Linear::State& linear) const;

  /// The source with single experts, where the order of its stacks lets no matrix be read at once.
  std::optional<formats::Checkpoint> view_;
  const formats::Checkpoint& source_;
  Profile profile_;
  std::size_t threads_;
  InputObserver* observer_;
  formats::SourceActivations activations_;
  /// Tensors by the family's name for each, without the prefix of a nested text model.
  std::map<std::string, const formats::LogicalTensor*, std::less<>> by_name_;
  std::map<WeightPlace, std::string> by_place_;
  mutable std::atomic<std::uint64_t> bytes_read_ = 0;
};

/// The source with single experts where it has stacks of which no matrix can be read at once, as
/// those with inputs before outputs; nullopt where it is readable as it is. `source` must outlive
/// it. Throws kUnsupported for such stacks of a rank.
std::optional<formats::Checkpoint> with_readable_experts(const formats::Checkpoint& source);

}  // namespace ingot::inference
