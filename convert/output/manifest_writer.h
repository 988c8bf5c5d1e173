#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "convert/output/staged_files.h"
#include "convert/output/tensor_records.h"
#include "convert/plan/plan.h"
#include "engines/verdicts.h"

namespace ingot::convert {

/// The side files of the source that are copied byte for byte: all that are not derived.
std::vector<formats::SideFile> copied_files(const Plan& plan);
/// JSON files around the weights, and the model card, that are the same for every rank: names and
/// texts, in the order in which they are published. `engines` and `gate` are for the card
/// (model_card_text).
std::vector<std::pair<std::string, std::string>> derived_files(
    const Plan& plan, std::span<const engines::EngineVerdict> engines = {},
    const formats::JsonValue& gate = {});

/// Keys of a job's identity, other than its recipe, that a manifest has in its `recipe`, where
/// there are such; in their order.
inline constexpr std::array<const char*, 7> kOwnKeys = {
    "slicing", "align", "files", "order", "links", "family_file", "family_proof"};

/// The facts about the job for the files next to the weights, and how these are written.
struct StagingOptions {
  formats::JsonValue identity;
  std::vector<engines::EngineVerdict> engines = {};  ///< verdicts of Loadable::engines
  formats::JsonValue gate = {};                      ///< settings of the verification to pass
  std::string unverified;  ///< the verification that was asked for and left out (--no-verify)
  bool sha256 = false;     ///< a plain SHA-256 per weights file, in a second pass over the output
  std::size_t threads = 1;
};

/// Stages all files other than weights: copies side files byte for byte, writes config.json, the
/// index, the per-tensor records and the manifest, all durable; for every rank, with its links to
/// shared files, where ranks have directories. `hashes` by item. Returns the tensor hash of the top
/// manifest.
Hash128 stage_side_files(const Plan& plan, StagedFiles& staged,
                         const std::vector<TensorResult>& hashes, const StagingOptions& options);

}  // namespace ingot::convert
