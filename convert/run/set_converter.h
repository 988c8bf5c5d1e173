#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "convert/output/tensor_records.h"
#include "convert/run/actions.h"
#include "convert/run/band_loop.h"
#include "convert/run/part_writer.h"

namespace ingot::convert {

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
  std::invoke_result_t<const Act&, const TensorTask&> at_tensor(std::uint32_t index,
                                                                const Act& act);
  [[nodiscard]] std::optional<float> journalled_amax(std::uint32_t set) const;
  float joint_amax(std::uint32_t set);

  RunContext& context_;
  Results results_;
  BandLoop loop_;
  TileBuffers tiles_;
};

}  // namespace ingot::convert
