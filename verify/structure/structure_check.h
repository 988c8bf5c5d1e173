#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "check/opened.h"
#include "check/rules/loader_rules.h"
#include "check/stored_hashes.h"
#include "verify/structure/compared_checkpoint.h"

namespace ingot::verify {

struct StructureOptions {
  bool hashes = true;  ///< every tensor is hashed where there is a manifest next to the weights
  /// File config.json of the output, as shard::SourceOptions::config.
  std::filesystem::path config = {};
  std::string family = {};
  /// File of activation statistics that static scales are compared with; may be empty.
  std::filesystem::path activation_scales = {};
  check::HashLedger* ledger = nullptr;  ///< ledger of hashes, as check::CheckOptions::ledger
  std::size_t threads = 1;
};

/// Faults of the output, and the amount of what was compared.
struct StructureReport {
  /// Errors first, then in stable order. `rule` is the id of a loader rule or of a structure test
  /// ("structure.missing", "structure.config", ...).
  std::vector<check::Finding> findings;
  std::uint64_t tensors = 0;       ///< logical tensors of the source that were looked for
  std::uint64_t hashed = 0;        ///< tensors compared with the manifest's hashes
  std::uint64_t input_scales = 0;  ///< scales compared with activation statistics
  bool has_manifest = false;
  /// Under a family of a user's file: what the values of the source's stacks say of their order.
  std::vector<std::string> stacks = {};
  [[nodiscard]] std::uint64_t errors() const;
  [[nodiscard]] std::uint64_t warnings() const;
};

/// Level `structure`: the output holds every logical tensor of the source once, in its shape, with
/// scales that are each used once; model parameters of config.json are the source's; config, index,
/// ignore lists and description files describe the tensors rightly; MTP layers are there as
/// promised; side files are the same bytes; replicas of slices are equal; the manifest's sizes and
/// hashes hold; loaders accept it. Reads no weights but for hashes and replicas. An output of which
/// opening fails gives findings as well, as far as its faults can be told apart. Throws kIo and
/// kPermission for a folder or file that cannot be read, which no finding can judge.
StructureReport check_structure(const ComparedCheckpoint& source, const check::Opened& output,
                                const StructureOptions& options);
/// Opens the output, and checks its structure as the function above does.
StructureReport check_structure(const ComparedCheckpoint& source,
                                const std::filesystem::path& output,
                                const StructureOptions& options);

}  // namespace ingot::verify
