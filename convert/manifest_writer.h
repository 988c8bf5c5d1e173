#pragma once

#include <string>
#include <utility>
#include <vector>

#include "convert/journal.h"
#include "convert/output_directory.h"
#include "convert/plan.h"

namespace ingot::convert {

/// JSON files around the weights that are the same for every rank: names and texts, in the order in
/// which they are published.
std::vector<std::pair<std::string, std::string>> derived_files(const Plan& plan);

/// Stages everything beside the weights: copies side files byte for byte, writes config.json, the
/// index, the per-tensor records and the manifest, all durable; for every rank, with its links to
/// shared files, where ranks have directories. `hashes` by item; `sha256` adds a plain SHA-256 per
/// weights file (a second pass over the output).
void stage_side_files(const Plan& plan, const formats::Checkpoint& source, const OutputPaths& paths,
                      const formats::Json& identity, const std::vector<ItemRecord>& hashes,
                      bool sha256, std::size_t threads);

/// The quantization_config of a source, or the one that its manifest remembers; null without one.
formats::Json remembered_quantization(const formats::Checkpoint& source);

}  // namespace ingot::convert
