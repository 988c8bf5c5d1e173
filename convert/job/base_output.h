#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "convert/output/staged_files.h"
#include "convert/output/tensor_records.h"
#include "convert/plan/plan.h"
#include "formats/json/json_fwd.h"

namespace ingot::convert {

/// An output of an earlier version of the source, of which unchanged tensors are taken over.
struct BasePlace {
  std::filesystem::path output;  ///< empty: none
  /// The source of that output; its tensors have to be those that the output's records name, and
  /// make up for records that are not there. Empty: the records are believed.
  std::filesystem::path source;
};

/// Tensors and files that a run has taken over from its base.
struct TakenOver {
  std::vector<std::uint32_t> tensors;  ///< tensors of the plan, ascending
  std::uint64_t n_bytes = 0;           ///< bytes of their parts
  /// Weights files that are here whole, by their number in the plan: hard links, or copies.
  std::vector<char> whole_files;
  std::uint64_t n_whole = 0;
  std::vector<std::string> remarks;  ///< reasons why nothing, or less, was taken over
};

/// The state of an execution that a base adds to.
struct TakeOver {
  const Plan& plan;
  const formats::Json& identity;  ///< identity of the job
  StagedFiles& staged;
  std::vector<char>& done;             ///< gets 1 for each tensor that is taken over
  std::vector<TensorResult>& results;  ///< gets their results
  bool links = true;                   ///< whole files are hard links where they can be
  bool lossless_only = false;          ///< true: tensors whose values are all kept, and no others
  std::size_t threads = 1;
};

/// Throws kInvalidArgument for a base without manifest, for one rank of an output, and for one
/// without records whose source is not given.
void require_base(const BasePlace& place);

/// Reads all tensors of the source that the base has too, and copies the output of those with the
/// same source bytes into the staged files, slice by slice where it is cut for ranks: of a fused
/// set all or none. The base counts where the same version of ingot made it by the same recipe and
/// statistics, for the same family, dialect, layout and ranks; else a remark says so, and nothing
/// is taken. Its bytes are hashed again, and those that are not what its records say are left to
/// the encoder. The output is that of a run without a base, to the byte. A base without records is
/// known by its source, which must have the tensors and the config of this one, and by hashes of
/// its files; then the records of what is taken have no errors.
/// Throws as require_base(), and kMismatch where `place.source` is not the source of the base.
TakenOver take_over(const BasePlace& place, const TakeOver& run);

}  // namespace ingot::convert
