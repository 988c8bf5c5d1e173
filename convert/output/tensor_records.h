#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "convert/output/tensor_result.h"
#include "convert/plan/plan.h"
#include "formats/records/manifest.h"

namespace ingot::convert {

/// What became of a logical tensor, without its stored tensors: names, action, schemes, error.
formats::TensorRecord record_of(const Plan& plan, const PlannedTensor& planned,
                                const TensorResult& done);

/// The stored tensors that a record's tensor was read from.
std::vector<formats::TensorHash> source_hashes(const Plan& plan, const PlannedTensor& planned,
                                               const TensorResult& done);

/// The stored tensor that a slice of a part is, in the file at `path` of its record.
formats::TensorHash output_hash(const Plan& plan, const PlannedTensor& planned, std::size_t part,
                                const PlannedSlice& slice, const TensorResult& done,
                                std::string file);

/// The record of a tensor that is planned: as many zero hashes as it will have.
TensorResult unhashed(const Plan& plan, const PlannedTensor& planned);

}  // namespace ingot::convert
