#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/container/tensor.h"
#include "formats/records/calibration.h"
#include "verify/calibrate/input_statistics.h"
#include "verify/calibrate/moment_sums.h"
#include "verify/calibrate/planned_file.h"
#include "verify/calibrate/spilled_rows.h"

namespace ingot::verify {

/// Modules that are given the same input, whose moments are stored once.
struct MomentInput {
  std::string owner;  ///< module whose name the moments have
  std::vector<const CalibratedModule*> modules;
  std::size_t width = 0;
  /// The input of all experts of a layer: that of its mixture, not that of the first module.
  bool is_mixture = false;

  [[nodiscard]] const CalibratedModule& first() const { return *modules.front(); }
  [[nodiscard]] bool is_down() const {
    return first().role == formats::Role::kExpertDown && first().expert.has_value();
  }
};

/// Inputs whose moments are kept in blocks: gate and up of one MLP or expert have one, weights that
/// loaders fuse, and the projections of a layer of linear attention. Those of a width that is no
/// multiple of 16 have none.
std::vector<MomentInput> block_inputs(std::span<const CalibratedModule> modules);
/// Inputs whose moments are kept whole: as above, but gate and up of all experts of a layer have
/// one. `has_mixture`: false where experts are given weighed inputs, which are not the mixture's.
std::vector<MomentInput> whole_inputs(std::span<const CalibratedModule> modules, bool has_mixture);
/// For the record: the modules of every input that has several.
formats::SharedInputs shared_inputs(std::span<const MomentInput> inputs);

/// The moments of the inputs of a layer, or another part of the model, while it runs.
class LayerMoments {
 public:
  /// Looks at the inputs of a part of the model from now on. `spill` keeps inputs
  /// of experts' down projections, for sums of their own; null where there are none. `prior`: the
  /// tokens n0 that the layer's moments count for in the blocks of an expert, S = (n S_expert +
  /// n0 c S_layer) / (n + n0), where n tokens chose the expert and c makes the traces equal.
  LayerMoments(std::span<const MomentInput> blocks, std::span<const MomentInput> wholes,
               const ModelPart& part, KeyedRows* spill, std::uint64_t prior, std::size_t threads);

  void see(std::string_view weight, std::size_t matrix, formats::MatrixView<const float> x);
  void see_mixture(formats::MatrixView<const float> x);
  void write_blocks(PlannedFile& file) const;
  /// Whole moments that there are: none of experts without tokens.
  [[nodiscard]] std::vector<formats::TensorSpec> whole_tensors() const;
  void write_wholes(PlannedFile& file) const;

  /// Bytes that the moments of a part take, and what adding to them takes.
  static std::uint64_t memory(std::span<const MomentInput> blocks,
                              std::span<const MomentInput> wholes, const ModelPart& part);

 private:
  struct Sums {
    const MomentInput* input;
    MomentSums sums;
  };
  using Key = std::pair<std::string_view, std::size_t>;  // weight and matrix
  [[nodiscard]] const MomentSums& seen(const std::vector<Sums>& all, const Sums& own) const;
  void write_whole(const MomentInput& input, const MomentSums& sums, PlannedFile& file) const;
  [[nodiscard]] bool is_seen(std::size_t down) const;

  std::uint64_t prior_;
  std::size_t threads_;
  KeyedRows* spill_;
  std::vector<Sums> blocks_, wholes_;
  std::vector<const MomentInput*> downs_;  // by key of the spill
  std::vector<std::uint64_t> down_tokens_;
  std::map<Key, std::vector<MomentSums*>> watched_;
  std::map<Key, std::size_t> watched_downs_;
  MomentSums* mixture_ = nullptr;
};

}  // namespace ingot::verify
