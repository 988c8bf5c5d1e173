#pragma once

#include <string>
#include <vector>

#include "convert/output/tensor_records.h"
#include "convert/plan/plan.h"
#include "formats/records/manifest.h"

namespace ingot::convert {

/// The weights files that a rank loads: bare name and number among all members.
struct RankFile {
  std::string name;
  std::uint32_t file = 0;    ///< index into Plan::files
  std::uint32_t member = 0;  ///< index into the members of `file`
};
std::vector<RankFile> files_of_rank(const Plan& plan, std::uint32_t rank);

/// model.safetensors.index.json of a rank.
std::string rank_index_text(const Plan& plan, std::uint32_t rank);

/// How the model was cut, as every manifest of the output says it; `job` identifies the conversion.
formats::SlicingRecord slicing_record(const Plan& plan, Hash128 job);

/// Returns the slicing record of one rank: `slicing` with the rank's place and contents.
formats::SlicingRecord rank_slicing_record(const Plan& plan, const formats::SlicingRecord& slicing,
                                           std::uint32_t rank);

/// Per-tensor records of a rank's tensors, in plan order. `done` by item.
std::vector<formats::TensorRecord> rank_records(const Plan& plan, std::uint32_t rank,
                                                const std::vector<TensorResult>& done);

}  // namespace ingot::convert
