#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "convert/output/tensor_records.h"
#include "convert/plan/plan.h"
#include "convert/run/moments_factors.h"
#include "formats/container/tensor.h"

namespace ingot::convert {

/// A stored tensor of the output.
struct EncodedTensor {
  std::string name;
  formats::DType dtype{};
  formats::Shape shape;
  std::vector<std::byte> bytes;
};

/// Converts tensors of a plan into memory. Several threads may encode different tensors.
class EncodedSets {
 public:
  /// The plan must outlive it. Throws kUnsupported for a plan that cuts tensors.
  explicit EncodedSets(const Plan& plan);

  /// Returns the parts of tensors of the plan, ascending, in the order of tensors and parts.
  /// REQUIRES: tensors that share a scale are all there.
  std::vector<EncodedTensor> encode(std::span<const std::uint32_t> tensors);

 private:
  const Plan& plan_;
  const std::vector<char> done_;  // by tensor of the plan: none is done
  MomentsFactors factors_;
  std::vector<TensorResult> results_;  // by tensor of the plan, of the tensors at hand
};

}  // namespace ingot::convert
