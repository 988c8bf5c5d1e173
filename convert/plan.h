#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "convert/recipe.h"
#include "formats/base/hash.h"
#include "formats/checkpoint.h"

namespace ingot::convert {

/// What happens to a logical tensor.
enum class Action : std::uint8_t {
  kCopy,  ///< every stored part byte for byte
  kCast,  ///< decoded and encoded in another scheme
  kDrop,  ///< not in the output
};
std::string_view action_name(Action action);

/// One stored tensor of the output.
struct PlannedPart {
  std::uint32_t file = 0;    ///< index into Plan::files
  std::uint64_t offset = 0;  ///< absolute, in that file
  std::uint64_t n_bytes = 0;
  formats::DType dtype{};
};

/// One logical tensor: what happens to it and where its parts stand. Its position in Plan::tensors
/// is the id of the item in the journal.
struct PlannedTensor {
  std::uint32_t tensor = 0;  ///< index into TensorSource::tensors()
  Action action{};
  formats::SchemeId to{};
  std::uint8_t n_parts = 0;
  std::array<PlannedPart, formats::kMaxParts> parts{};
};

/// A weights file of the output. Its header is derived, not stored: Plan::header().
struct PlannedFile {
  std::string name;
  std::uint64_t header_bytes = 0;  ///< 8 + N
  std::uint64_t n_bytes = 0;
  /// Parts in data order, as (index into Plan::tensors, part).
  std::vector<std::pair<std::uint32_t, std::uint8_t>> parts;
};

/// How logical tensors are dealt to files.
struct ShardPolicy {
  /// Nothing: file names and distribution of the source. A number: a new file is opened when a
  /// tensor would take the current one beyond so many bytes of data.
  std::optional<std::uint64_t> max_shard_bytes;
};

struct PlanOptions {
  ShardPolicy shards;
};

/// The whole output, decided from headers alone: a pure function of source headers, recipe and
/// options. Names, order, offsets and sizes stand before any byte is written.
struct Plan {
  std::vector<PlannedTensor> tensors;  ///< in the order of execution; dropped ones last
  std::vector<PlannedFile> files;
  std::string config_text;  ///< config.json of the output; empty when the source has none
  std::string index_text;   ///< empty when the output is one model.safetensors
  std::vector<std::string> warnings;
  std::uint64_t n_copied = 0, n_cast = 0, n_dropped = 0;
  std::uint64_t bytes_in = 0;     ///< stored bytes that will be read
  std::uint64_t bytes_out = 0;    ///< of all weights files, headers included: exact
  std::uint64_t table_bytes = 0;  ///< estimate of what source tables and plan take in memory

  /// Name of a part's stored tensor in the output.
  [[nodiscard]] std::string part_name(const formats::TensorSource& source,
                                      const PlannedTensor& tensor, std::size_t part) const;
  [[nodiscard]] formats::Shape part_shape(const formats::TensorSource& source,
                                          const PlannedTensor& tensor, std::size_t part) const;
  /// Bytes [0, header_bytes) of a file.
  [[nodiscard]] std::string header(const formats::TensorSource& source, std::size_t file) const;
};

/// Makes the plan. Throws, collected: rules that match nothing (kInvalidArgument), pairs of schemes
/// that cannot be computed (kUnsupported, with the tensors).
Plan make_plan(const formats::Checkpoint& source, const Recipe& recipe, const PlanOptions& options);

/// Hash over everything that decides the output's bytes: file names, headers, config and index.
Hash128 plan_hash(const Plan& plan, const formats::TensorSource& source);

}  // namespace ingot::convert
