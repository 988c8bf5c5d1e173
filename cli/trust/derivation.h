#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "formats/json/json_fwd.h"
#include "formats/records/manifest.h"
#include "formats/signed/statement.h"
#include "library/conversion.h"

// How an output was made, as far as its manifest or a statement records it; the plan that follows
// from it, and statements about it.

namespace ingot::cli {

/// The meaning of our statements of provenance; docs/trust.md has it.
inline constexpr std::string_view kConversionType = "urn:ingot:conversion:v1";

/// Throws kUnsupported for an output whose conversion has not ended.
void require_finished(const std::filesystem::path& output);

/// The options of a conversion that decide bytes.
struct Derivation {
  std::string tool_version;  ///< version that converted
  /// Options of `ingot convert`, by name without dashes. Those that name a file have null, except
  /// the map of experts, which is whole. In addition `kept-experts`, the lists of `ingot prune`, of
  /// this job and of those behind its source; `repair`; and `compose`, the words of its recipe.
  formats::JsonValue settings;
  /// The recipe as the manifest has it; null in a statement, which is signed.
  formats::JsonValue recipe;
  formats::JsonValue source;  ///< fingerprint of the source in the manifest, or null

  /// The options that name a file, and the sources of a composition but the base.
  [[nodiscard]] std::vector<std::string> inputs() const;
};
/// Reads the manifest of an output. Throws kNotFound without one, kUnsupported for the folder of
/// one rank.
Derivation recorded_derivation(const std::filesystem::path& output);
/// Throws kUnsupported for a statement of another kind, kCorrupt for a malformed one.
Derivation stated_derivation(const formats::Statement& statement, std::string_view where);

/// The source of a derivation, as given now.
struct GivenSource {
  std::string directory;
  std::vector<std::string> inputs;  ///< NAME=PATH: the file of an option of the conversion
  std::size_t threads = 1;

  /// The paths by name. Throws kInvalidArgument for a text that is none, or a name given twice.
  [[nodiscard]] std::map<std::string, std::string> by_name() const;
};

/// Makes the plan of a derivation again. Throws kInvalidArgument, naming them, for files that have
/// to be given and for others; kMismatch where the options mean another recipe now than was
/// recorded by this version; and as a conversion.
library::Conversion plan_again(const Derivation& derivation, const std::filesystem::path& output,
                               const GivenSource& given);

/// True if the source of a plan is the one that the manifest tells of, or if it tells of none.
bool is_recorded_source(const Derivation& derivation, const library::Conversion& conversion,
                        std::size_t threads);

/// Facts of a statement in addition to the manifest's.
struct StatementFacts {
  std::string source_uri;      ///< address of the source; empty: that of the hub's cache, or none
  std::string builder_id;      ///< URI of the builder, which ran the conversion
  std::filesystem::path tool;  ///< the program that states it; its digest belongs to its version
  std::function<void(std::string_view)> phase;
  std::function<void(std::uint64_t, std::uint64_t)> progress;
};
/// The statement about an output and its source: SLSA provenance, v1. Reads every byte of both.
/// Throws kMismatch for a source that is not the one of the manifest.
formats::Statement provenance_of(const std::filesystem::path& output, const GivenSource& given,
                                 const StatementFacts& facts);

/// Files of an output that no statement is about: those of repositories, and bundles.
std::set<std::string, std::less<>> unstated_paths();

/// Throws kMismatch for a given input that is not the one of a statement, by SHA-256.
void require_stated_inputs(const formats::Statement& statement, std::string_view where,
                           const GivenSource& given);

/// The digests of a source's files: all that belong to it as a checkpoint.
std::vector<formats::FileDigest> source_digests(
    const std::filesystem::path& source, std::size_t threads,
    const std::function<void(std::uint64_t, std::uint64_t)>& progress);
/// The digests of the source in a statement.
std::vector<formats::FileDigest> stated_source(const formats::Statement& statement,
                                               std::string_view where);

}  // namespace ingot::cli
