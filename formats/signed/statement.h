#pragma once

#include <functional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/json/json_fwd.h"
#include "formats/signed/file_digests.h"

// Statements of in-toto, v1: a predicate about subjects, which are known by digests; and statements
// by OpenSSF Model Signing, v1.0, about all files of a folder.

namespace ingot::formats {

inline constexpr std::string_view kModelSigningPredicate = "https://model_signing/signature/v1.0";
inline constexpr std::string_view kProvenancePredicate = "https://slsa.dev/provenance/v1";

struct Statement {
  std::string predicate_type;
  std::vector<FileDigest> subjects;  ///< sizes are not told: 0
  JsonValue predicate;
};

std::string statement_text(const Statement& statement);
/// Throws kCorrupt for a text that is no statement of v1, or that has two subjects of one name, or
/// one without a SHA-256.
Statement parse_statement(std::string_view text, std::string_view where);

/// A file or another thing by its digest: a ResourceDescriptor.
Json resource(const FileDigest& file);

/// Paths that repositories keep in a model's folder, which no signature is about.
std::set<std::string, std::less<>> repository_paths();

/// The statement of OpenSSF Model Signing about files in the order of digest_files(). Method
/// `files`, SHA-256; `ignored` are the paths that were left out.
Statement model_signing_statement(std::string_view folder_name, std::span<const FileDigest> files,
                                  const std::set<std::string, std::less<>>& ignored);

/// The files that a statement lists.
struct StatedFiles {
  std::vector<FileDigest> files;
  std::set<std::string, std::less<>> ignored;  ///< paths that it says nothing of
};
/// The subjects of a statement, or the resources of one of Model Signing. Throws kMismatch for a
/// root digest that is not that of the resources, kUnsupported for a serialization by other hashes
/// or by slices of files, kCorrupt for a malformed predicate.
StatedFiles stated_files(const Statement& statement, std::string_view where);

/// A file that differs from its statement.
struct FileDifference {
  enum class Kind : std::uint8_t { kChanged, kMissing, kUnlisted };
  std::string name;
  Kind kind{};
};
std::string_view difference_name(FileDifference::Kind kind);
/// Differences between the files of a folder and those of a statement, by name.
std::vector<FileDifference> differences_of(std::span<const FileDigest> stated,
                                           std::span<const FileDigest> found);

}  // namespace ingot::formats
