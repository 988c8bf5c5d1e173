#pragma once

#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>

#include "formats/base/error.h"
#include "formats/records/manifest.h"
#include "formats/records/slicing_record.h"
#include "formats/storage/tensor_source.h"

namespace ingot::formats {

/// Slicing of a rank's stored tensors: `slicing` of the manifest, `slice` of the records.
struct RankSlices {
  SlicingRecord slicing;  ///< record of the slicing, with `rank`
  std::unordered_map<std::string, SliceRecord> by_name;
  bool has_records = false;  ///< false when they could not be read, which has been reported

  /// Null for a tensor that is whole.
  [[nodiscard]] const SliceRecord* find(const std::string& stored) const;
};

/// The slices that records of a rank name. Throws kDuplicate for a name that several records have.
RankSlices rank_slices(SlicingRecord slicing, std::span<const TensorRecord> records);

/// Null unless the manifest is a rank's. Reads the records; reports the errors of
/// read_tensor_records and rank_slices.
std::shared_ptr<const RankSlices> read_rank_slices(const std::filesystem::path& directory,
                                                   const Manifest& manifest, ErrorList& faults);

/// Logical tensors of a rank, to be compared with their records.
struct SliceMatch {
  const RankSlices& slices;
  const Family& family;
  const ModelConfig& config;  ///< config.json of the rank
  std::span<const StoredTensor> stored;
  std::span<const SourceFile> files;
};

/// Reports contradictions between config, manifest, records and tensors:
/// - kMismatch: stages or the family's layers that the config does not have, a tensor of a layer,
///   an expert or an end of the model that the rank does not hold, a slice that is another rank's;
/// - kShapeMismatch: a whole that config.json (or, before retiling and padding, whole_config) does
///   not promise, a tensor that is not of the shape that its slice has.
/// Tensors must have their rows, layers and experts (match_family).
void match_slices(const SliceMatch& with, std::span<const LogicalTensor> tensors,
                  ErrorList& faults);

}  // namespace ingot::formats
