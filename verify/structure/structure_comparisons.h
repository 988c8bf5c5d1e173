#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "check/rules/loader_rules.h"
#include "formats/base/error.h"
#include "formats/checkpoint/checkpoint.h"
#include "formats/family/family.h"
#include "formats/json/json_fwd.h"
#include "formats/records/manifest.h"
#include "inference/model/step/step.h"
#include "verify/structure/compared_checkpoint.h"

namespace ingot::verify {

/// The meaning of two config.json to the runtime: the numbers of the forward pass that it reads
/// from each, whatever the keys are called. Every key that it reads has its effect there, and
/// nowhere else. The choices of a conversion are left out: the quantization and the number of MTP
/// layers.
class ForwardPass {
 public:
  /// `family` must outlive this; null: it is unknown.
  ForwardPass(const formats::Family* family, const formats::Json& source,
              const formats::Json& output);

  /// True if the runtime has a forward pass for the source; without one, all else is false.
  [[nodiscard]] bool is_known() const { return source_.has_value(); }
  [[nodiscard]] bool is_same() const { return is_known() && source_ == output_; }
  /// The reason why the output has no forward pass, where the source has one; else empty.
  [[nodiscard]] const std::string& refusal() const { return refusal_; }
  /// True if the forward pass of that side would be another one, or none, without the value at
  /// `path` (`rope_parameters.factor`) of its config.
  [[nodiscard]] bool depends_on(bool of_output, std::string_view path) const;

 private:
  [[nodiscard]] std::optional<inference::ModelSpec> spec_of(const formats::Json& config,
                                                            std::string* refusal = nullptr) const;

  const formats::Family* family_;
  formats::JsonValue source_config_, output_config_;
  std::string refusal_;
  std::optional<inference::ModelSpec> source_, output_;
};

/// Finds logical tensors of the source that the output lacks ("structure.missing"), has twice
/// ("structure.twice") or in another shape ("structure.shape"), and those of the output that the
/// source does not have ("structure.extra"). Returns how many were looked for.
///
/// MTP layers ("structure.mtp"): missing altogether they are one error where the output's config
/// promises them. A config that promises none is a warning: dropping them is legitimate, and there
/// is no finding where the output's manifest records the request (`--mtp drop`).
std::uint64_t compare_tensors(const formats::Checkpoint& source, const formats::Checkpoint& output,
                              const std::optional<formats::Manifest>& manifest,
                              check::Findings& found);

/// A config.json of the output, which must describe the same model.
struct OutputConfig {
  const formats::Json& config;
  std::string file;  ///< file name for findings, e.g. `rank-00001-of-00004/config.json`
  /// Sides that cuts pad (vocabulary, widths of MLPs) may be wider than in the source.
  bool may_be_padded = false;
  /// False for DeepSeek's own config, of which every key counts.
  bool is_hub = true;
  /// The source says that its head is the embedding, and stores one: the output may say that the
  /// stored one counts.
  bool may_untie_head = false;
  /// The config says that this run made the scales of the cache.
  bool makes_caches = false;
  /// The family whose forward pass the two must mean alike; null: it is not compared.
  const formats::Family* family = nullptr;
};

/// Finds ("structure.config") every meaning (formats/config/config_meaning.h) that is not the
/// source's, by the keys that say it. Left out are the values that conversion derives:
/// quantization_config, which loader rules compare with the tensors, the number of MTP layers
/// (compare_tensors), and entries of lists for layers that were dropped. An unknown key that only
/// one side has is a warning. Absent and null are the same.
///
/// A key that only one side has is judged by the forward pass where that depends on it: it is an
/// error where the two mean another one, and no finding where the other side says the same in
/// another key. A forward pass that is not the source's is an error in any case.
void compare_model_parameters(const formats::Json& source, const OutputConfig& output,
                              check::Findings& found);

/// Finds ("structure.config") statements of an output's config.json about number formats that
/// neither the source makes nor the output's tensors show: a dtype, a quantized cache of keys and
/// values, a `scale_fmt` that was lost.
void compare_number_formats(const formats::Checkpoint& source, const formats::Checkpoint& output,
                            const OutputConfig& config, check::Findings& found);

/// Finds ("structure.activations") weights that keep their scheme, but whose activations engines
/// would quantize otherwise than in the source, though no option asks for it: an error; a warning
/// between two dialects, and for outputs of `ingot repair`.
void compare_activations(const formats::Checkpoint& source, const formats::Checkpoint& output,
                         const Wanted& wanted, check::Findings& found);

/// Finds ("structure.input-scale") static scales of activations in the output that are not those
/// which statistics of activations (docs/formats.md) give: of the range that weights have together
/// which loaders fuse, symmetric, or Ascend's asymmetric one. A module that they do not have is a
/// warning. Returns how many were compared. Throws kCorrupt, kIo for the files, kMismatch where
/// they are those of another model than `source`.
std::uint64_t compare_input_scales(const formats::Checkpoint& source,
                                   const formats::Checkpoint& output,
                                   const std::filesystem::path& statistics, check::Findings& found);

/// Reads every tensor of which slices hold bytes more than once, and finds those whose replicas
/// differ ("structure.replica"). `output` was opened with shard::SourceOptions::compare_replicas; a
/// checkpoint that is not joined from slices is not read. kInterrupted when stopped.
void compare_replicas(const formats::Checkpoint& output, std::size_t threads,
                      check::Findings& found);

}  // namespace ingot::verify
