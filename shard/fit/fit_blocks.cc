#include "shard/fit/fit_blocks.h"

#include "shard/fit/fit_modes.h"

namespace ingot::shard {

Fits fit_blocks(std::span<const TensorToFit> tensors, const formats::ModelConfig& config,
                const Slicing& slicing) {
  Fits fits;
  fits.tensors.resize(tensors.size());
  FitRefusals refusals(config, slicing);
  switch (slicing.fit) {
    case TpFit::kRefuse:
      for (const TensorToFit& tensor : tensors) {
        if (!need_of(tensor).fits()) refusals.add(tensor);
      }
      break;
    case TpFit::kRetile:
      fit_by_retiling(tensors, fits, refusals);
      break;
    case TpFit::kPad:
      fit_by_padding(tensors, config, fits, refusals);
      break;
    case TpFit::kBf16:
      fit_by_casting(tensors, fits, refusals);
      break;
  }
  refusals.throw_if_any();
  return fits;
}

}  // namespace ingot::shard
