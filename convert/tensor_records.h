#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "convert/journal.h"
#include "convert/plan.h"
#include "formats/records/manifest.h"

namespace ingot::convert {

/// What became of a logical tensor, without its stored tensors: names, action, schemes, error.
formats::TensorRecord record_of(const Plan& plan, const formats::Checkpoint& source,
                                const PlannedTensor& planned, const ItemRecord& done);

/// The stored tensors that a record's tensor was read from.
std::vector<formats::TensorHash> source_hashes(const formats::Checkpoint& source,
                                               const PlannedTensor& planned,
                                               const ItemRecord& done);

/// The stored tensor that a slice of a part is, in the file at `path` of its record.
formats::TensorHash output_hash(const Plan& plan, const formats::Checkpoint& source,
                                const PlannedTensor& planned, std::size_t part,
                                const PlannedSlice& slice, const ItemRecord& done,
                                std::string file);

/// The weights file in which layout `hf` has a part, when the files of the source are kept: that of
/// the part in the source, or of its weight. Empty where nobody knows.
std::string home_file(const formats::Checkpoint& source, const PlannedTensor& planned,
                      formats::Part part);

/// The record of a tensor that is planned: as many zero hashes as it will have.
ItemRecord unhashed(const Plan& plan, const formats::Checkpoint& source,
                    const PlannedTensor& planned);

}  // namespace ingot::convert
