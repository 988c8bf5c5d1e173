#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "formats/family/family.h"

namespace ingot::formats {

/// The widths of a synthetic checkpoint.
enum class SynthSize : std::uint8_t {
  kTiny,     ///< two megabytes, ragged widths: for tests
  kLayer,    ///< the family's real widths with few layers and experts: the load for benchmarks
  kHeaders,  ///< the released model whole, as sparse files (headers are real, data are holes)
};

/// The checkpoint to write. Unset numbers come from the size.
struct SynthOptions {
  const Family* family = nullptr;
  SynthSize size = SynthSize::kLayer;
  std::optional<std::uint64_t> layers, dense_layers, mtp_layers, experts, hidden, moe_intermediate,
      intermediate, vocab, heads;
  bool fp8 = true;     ///< fp8-block as the family's release; else every weight BF16
  bool ue8m0 = false;  ///< power-of-two scales (and scale_fmt in the config)
  std::uint64_t seed = 0;
  /// config.json of a model to be made as it is, of any family: no size but kHeaders and none of
  /// the numbers above, every weight as its row has it while plain. Empty: the family's own.
  std::string config;
  bool stacked = false;      ///< routed experts as stacks, in families that have them in both forms
  std::uint64_t shards = 1;  ///< tensors are dealt to files in order, balanced by bytes
  // Planted edge cases.
  bool zero_block = false;        ///< one all-zero 128x128 block
  bool subnormal_scales = false;  ///< one tensor whose scales are subnormal F32
  bool split_scale = false;       ///< one scale in another file than its weight (needs 2 shards)
  std::size_t threads = 1;
};

/// Counts of the written checkpoint.
struct SynthReport {
  std::uint64_t n_files = 0, n_tensors = 0, n_bytes = 0;  ///< totals of weights files; holes count
};

/// Writes a valid checkpoint (weights, index when there are several files, config.json,
/// generation_config.json and a small side file), byte for byte the same for the same options on
/// any machine. Values are plausible weights: E4M3 codes from a table of a normal distribution
/// without NaN codes, scales around 2^-12. Refuses a directory that is not empty.
SynthReport write_synthetic_checkpoint(const std::filesystem::path& directory,
                                       const SynthOptions& options);

/// The config.json of that checkpoint, quantization aside. Tensors that a config does not promise
/// (towers for images and sound, optional ones) are not made. Throws kInvalidArgument for numbers
/// that no model of the family can have.
std::string synth_config_text(const SynthOptions& options);

}  // namespace ingot::formats
