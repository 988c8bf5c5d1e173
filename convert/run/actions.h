#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "convert/output/tensor_records.h"
#include "convert/recipe/statistics.h"
#include "convert/run/band_encoder.h"
#include "convert/run/band_loop.h"
#include "convert/run/part_writer.h"
#include "formats/storage/block_scales.h"
#include "formats/storage/encoding.h"

namespace ingot::convert {

/// A tensor whose action runs on a thread.
struct TensorTask : PlannedValues {
  TensorTask(RunContext& run, BandLoop& bands, TileBuffers& buffers, std::uint32_t of,
             bool under_own_global = false)
      : PlannedValues{.plan = run.plan,
                      .planned = run.plan.tensors[of],
                      .source = bands,
                      .lossless_only = run.lossless_only,
                      .keeps_global = under_own_global},
        context(run),
        loop(bands),
        tiles(buffers),
        index(of) {}

  RunContext& context;
  BandLoop& loop;
  TileBuffers& tiles;
  std::uint32_t index;  ///< into Plan::tensors

  [[nodiscard]] PartWriter part(std::size_t p) const { return {context, index, p}; }
  /// Hashes of the stored parts; `known` are of those that were read already.
  [[nodiscard]] std::vector<Hash128> source_hashes(
      const std::map<formats::Part, Hash128>& known) const;
};

// The functions that convert a tensor, by action. All throw kBadScale or kNonFinite for values that
// no allowance covers, and ValueLost for those that change although the job is to be lossless.

/// kCopy and kRewrap: codes byte for byte, and scales where the dialects agree on their dtype;
/// else widened exactly. A global scale becomes its reciprocal where one dialect multiplies and the
/// other divides. Scales are judged even where they are only copied: a checkpoint with a zero or
/// infinite scale is broken whatever is done with it.
TensorResult keep_codes(const TensorTask& task);

/// kCopy of an NVFP4 tensor with PlannedTensor::joint_global: codes byte for byte; a block scale
/// becomes the E4M3 number nearest to scale x (own / joint global), with one FP32 rounding of the
/// quotient and one of the product, and never 0 where it was not. The error is that of the decoded
/// values.
TensorResult rescale_blocks(const TensorTask& task);

/// kCast with a fused kernel.
TensorResult transcode(const TensorTask& task);

/// kQuantize, and every other kCast. `amax` is that of the fused set; nullopt without one. The
/// error is taken from the codes as they are written.
TensorResult encode(const TensorTask& task, std::optional<float> amax);

/// The fact about each tensor of a fused set that is needed before the first is encoded: its
/// largest magnitude, or the largest MXFP4 scale where codes are repacked.
float amax_of(const TensorTask& task);

/// True if a scale over all of a tensor that changes, which its source has, holds values of this
/// magnitude: the nearest code, or scale of a block, is not beyond the largest.
bool holds_amax(const TensorTask& task, float amax);

/// The stored scale of activations, as the target has it.
float kept_input_scale(const TensorTask& task);

/// The global scales that the source's own maker recorded, by tensor, if the plan turns some
/// around.
using OriginalGlobals = std::map<std::string, formats::GlobalScale>;
OriginalGlobals original_globals(const Plan& plan);

/// The global scale of a tensor that keeps its codes: the stored one, or its reciprocal. Throws
/// kBadScale where that is no number.
float target_global(const PlannedValues& of, const OriginalGlobals& originals,
                    const formats::GlobalScale& stored);

/// Bytes of Part::kDimensions, I32 or I64: the shape of the weight in every slice.
std::vector<std::byte> dimensions_part(const Plan& plan, const PlannedTensor& planned,
                                       formats::DType dtype);

/// Parts that follow from codes, weight scales and the input's scale. Source: docs/formats.md,
/// "W8A8 static".
struct ModelslimInputs {
  InputScale input;
  std::span<const float> row_scales;       ///< scales of the weight's rows, [N]
  std::span<const std::int64_t> row_sums;  ///< sums of the codes of each row, [N]
};

/// Bytes of one of Part::kInputScale, kInputOffset (F32 [1]), kDeqScale (F32 [N], input scale x row
/// scale in one FP32 multiplication) and kQuantBias (I32 [N], round(-offset x sum) of a layer
/// without bias; kUnsupported where it does not fit).
std::vector<std::byte> modelslim_part(formats::Part part, const ModelslimInputs& inputs);

/// Converts the tensors of a fused set, or one tensor. One for each thread, whose buffers it has.
class SetConverter {
 public:
  /// By tensor of the plan: whether an earlier run has written it, and the results, to be filled.
  struct Results {
    const std::vector<char>& done;
    std::vector<TensorResult>& of;
  };
  /// `most_kept`: bytes of the source that it may keep. All references must outlive it.
  SetConverter(RunContext& context, std::uint64_t most_kept, Results results)
      : context_(context), results_(results), loop_(context, most_kept) {}

  /// Indices into Plan::tensors, of one fused set unless it is only one. Errors name file and
  /// tensor.
  void operator()(std::span<const std::uint32_t> tensors);

 private:
  template <typename Act>
  std::invoke_result_t<const Act&, const TensorTask&> at_tensor(std::uint32_t index, const Act& act,
                                                                bool under_own_global = false);
  /// Facts that the tensors of a fused set share.
  struct Shared {
    float amax = 0;
    bool keeps_globals = false;  ///< the global scales, and codes that do not change
  };
  [[nodiscard]] std::optional<Shared> journalled(std::uint32_t set) const;
  Shared shared_of(std::uint32_t set);

  RunContext& context_;
  Results results_;
  BandLoop loop_;
  TileBuffers tiles_;
};

}  // namespace ingot::convert
