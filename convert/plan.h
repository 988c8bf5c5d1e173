#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "convert/activation_scales.h"
#include "convert/recipe.h"
#include "formats/base/hash.h"
#include "formats/checkpoint.h"

namespace ingot::convert {

/// What happens to a logical tensor.
enum class Action : std::uint8_t {
  kCopy,      ///< every stored part byte for byte, under its name
  kRewrap,    ///< codes kept, parts under the names and conventions of the target dialect
  kCast,      ///< decoded and written in a plain scheme
  kQuantize,  ///< decoded and encoded in a quantized scheme
  kDrop,      ///< not in the output
};
std::string_view action_name(Action action);

/// One stored tensor of the output.
struct PlannedPart {
  formats::Part part{};
  formats::DType dtype{};
  std::uint32_t file = 0;    ///< index into Plan::files
  std::uint64_t offset = 0;  ///< absolute, in that file
  std::uint64_t n_bytes = 0;
};

/// One logical tensor: what happens to it and where its parts stand. Its position in Plan::tensors
/// is its id in the journal.
struct PlannedTensor {
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};

  std::uint32_t tensor = 0;  ///< index into TensorSource::tensors()
  Action action{};
  formats::SchemeId to{};
  /// No rule asked for it: the source's scheme has no place in the target dialect.
  bool is_demoted = false;
  std::uint8_t n_parts = 0;
  std::uint32_t group = kNone;   ///< index into Plan::groups
  std::uint32_t scales = kNone;  ///< --scales-from: index into that checkpoint's tensors()
  const formats::SchemeSpelling* spelling = nullptr;  ///< of kRewrap and kQuantize
  std::array<std::uint64_t, 2> block = {0, 0};        ///< rows and columns that share a scale
  InputScale input;                                   ///< of static activations
  std::array<PlannedPart, formats::kMaxParts> parts{};

  /// The part of this kind, or null.
  [[nodiscard]] const PlannedPart* find(formats::Part part) const {
    for (std::size_t p = 0; p < n_parts; ++p) {
      if (parts[p].part == part) return &parts[p];
    }
    return nullptr;
  }
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
  const formats::Dialect* dialect = nullptr;  ///< of the output
  quantize::EncodeOptions encode;
  Via via = Via::kF32;
  bool power_of_two_scales = false;  ///< claimed for every kFp8Block tensor of the output

  std::vector<PlannedTensor> tensors;  ///< in the order of execution; dropped ones last
  /// Tensors that are quantized as one item, because a number over all of them must be known first:
  /// fused weights that share a global scale, or one weight with a scale of its own. Consecutive
  /// indices into `tensors`.
  std::vector<std::vector<std::uint32_t>> groups;
  std::vector<PlannedFile> files;
  std::string config_text;       ///< config.json of the output; empty when the source has none
  std::string index_text;        ///< empty when the output is one model.safetensors
  std::string description_text;  ///< of Dialect::description_file; empty without
  std::vector<std::string> warnings;
  std::uint64_t n_copied = 0, n_rewrapped = 0, n_cast = 0, n_quantized = 0, n_dropped = 0;
  std::uint64_t n_demoted = 0;    ///< of the cast ones
  std::uint64_t bytes_in = 0;     ///< stored bytes that will be read, each counted once
  std::uint64_t bytes_out = 0;    ///< of all weights files, headers included: exact
  std::uint64_t table_bytes = 0;  ///< estimate of what source tables and plan take in memory
  std::uint64_t band_bytes = 0;   ///< the largest buffers that a tensor needs for a band

  /// Name of a part's stored tensor in the output.
  [[nodiscard]] std::string part_name(const formats::TensorSource& source,
                                      const PlannedTensor& tensor, std::size_t part) const;
  [[nodiscard]] formats::Shape part_shape(const formats::TensorSource& source,
                                          const PlannedTensor& tensor, std::size_t part) const;
  /// Bytes [0, header_bytes) of a file.
  [[nodiscard]] std::string header(const formats::TensorSource& source, std::size_t file) const;
  /// Stored bytes of the codes of a group's members in the source.
  [[nodiscard]] std::uint64_t group_bytes(const formats::TensorSource& source,
                                          std::size_t group) const;
};

/// Whether a tensor is decoded to FP32 tiles, band by band; other casts have a fused kernel.
bool goes_through_bands(const formats::LogicalTensor& tensor, const PlannedTensor& planned);

/// Makes the plan for an output in `dialect`. Throws, collected: rules that match nothing
/// (kInvalidArgument), what cannot be computed or held (kUnsupported, with the tensors).
Plan make_plan(const formats::Checkpoint& source, const Recipe& recipe,
               const formats::Dialect& dialect, const PlanOptions& options);

/// Hash over everything that decides the output's bytes: file names, headers, config, description
/// and index.
Hash128 plan_hash(const Plan& plan, const formats::TensorSource& source);

}  // namespace ingot::convert
