#include "formats/signed/statement.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "formats/base/hash.h"
#include "formats/json/json.h"
#include "formats/json/json_fields.h"

namespace ingot::formats {

namespace {

constexpr std::string_view kStatementV1 = "https://in-toto.io/Statement/v1";
constexpr std::size_t kSha256Digits = 64;
constexpr std::string_view kHexDigits = "0123456789abcdef";

std::string sha256_at(const JsonFields& fields, const char* key) {
  std::string digits = fields.text(key);
  if (digits.size() != kSha256Digits || digits.find_first_not_of(kHexDigits) != digits.npos)
    fields.refuse(key, "is no SHA-256 in 64 lower-case hexadecimal digits");
  return digits;
}

// SHA-256 over the raw digests in their order.
std::string root_digest(std::span<const FileDigest> files) {
  Sha256 sha;
  for (const FileDigest& file : files) {
    std::array<std::byte, kSha256Digits / 2> raw{};
    for (std::size_t i = 0; i < raw.size(); ++i) {
      raw[i] = static_cast<std::byte>(kHexDigits.find(file.sha256[2 * i]) << 4 |
                                      kHexDigits.find(file.sha256[2 * i + 1]));
    }
    sha.update(raw);
  }
  return sha.finish_hex();
}

void require_distinct(std::span<const FileDigest> files, std::string_view where) {
  std::set<std::string_view> names;
  for (const FileDigest& file : files) {
    if (!names.insert(file.name).second)
      throw Error(ErrorCode::kCorrupt, "lists '{}' twice", file.name).in_file(where);
  }
}

}  // namespace

Json resource(const FileDigest& file) {
  return {{"name", file.name}, {"digest", {{"sha256", file.sha256}}}};
}

std::string statement_text(const Statement& statement) {
  return json_text({{"_type", std::string(kStatementV1)},
                    {"subject", json_list(statement.subjects, resource)},
                    {"predicateType", statement.predicate_type},
                    {"predicate", *statement.predicate}});
}

Statement parse_statement(std::string_view text, std::string_view where) {
  const Json json = parse_json(text, where);
  const JsonFields fields(json, where);
  if (fields.text("_type") != kStatementV1) fields.refuse("_type", "is not in-toto's Statement v1");
  Statement statement{.predicate_type = fields.text("predicateType"),
                      .subjects = {},
                      .predicate = json_member(json, "predicate")};
  for (const Json& entry : fields.array("subject")) {
    const JsonFields subject(entry, where, "subject");
    statement.subjects.push_back({.name = subject.text("name"),
                                  .sha256 = sha256_at(subject.child("digest"), "sha256"),
                                  .n_bytes = 0});
  }
  require_distinct(statement.subjects, where);
  return statement;
}

std::set<std::string, std::less<>> repository_paths() {
  return {".git", ".gitattributes", ".github", ".gitignore"};
}

Statement model_signing_statement(std::string_view folder_name, std::span<const FileDigest> files,
                                  const std::set<std::string, std::less<>>& ignored) {
  const Json resources = json_list(files, [](const FileDigest& file) {
    return Json{{"name", file.name}, {"algorithm", "sha256"}, {"digest", file.sha256}};
  });
  return {
      .predicate_type = std::string(kModelSigningPredicate),
      .subjects = {{.name = std::string(folder_name), .sha256 = root_digest(files), .n_bytes = 0}},
      .predicate = Json{{"resources", resources},
                        {"serialization",
                         {{"method", "files"},
                          {"hash_type", "sha256"},
                          {"allow_symlinks", false},
                          {"ignore_paths", ignored}}}}};
}

StatedFiles stated_files(const Statement& statement, std::string_view where) {
  if (statement.predicate_type != kModelSigningPredicate)
    return {.files = statement.subjects, .ignored = {}};
  const JsonFields predicate(statement.predicate, where, "predicate");
  const JsonFields how = predicate.child("serialization");
  const std::string method = how.text("method"), hash_type = how.text("hash_type");
  if (method != "files" || hash_type != "sha256") {
    throw Error(ErrorCode::kUnsupported,
                "is made by method {} with {}, and only files with sha256 are verified", method,
                hash_type)
        .in_file(where);
  }
  StatedFiles stated;
  for (const std::string& path :
       strings_at(json_member(statement.predicate, "serialization"), "ignore_paths"))
    stated.ignored.insert(path);
  for (const Json& entry : predicate.array("resources")) {
    const JsonFields fields(entry, where, "predicate.resources");
    if (fields.text("algorithm") != "sha256") fields.refuse("algorithm", "is not sha256");
    stated.files.push_back(
        {.name = fields.text("name"), .sha256 = sha256_at(fields, "digest"), .n_bytes = 0});
  }
  require_distinct(stated.files, where);
  if (statement.subjects.size() != 1 ||
      statement.subjects.front().sha256 != root_digest(stated.files)) {
    throw Error(ErrorCode::kMismatch, "its root digest is not that of the files that it lists")
        .in_file(where);
  }
  return stated;
}

std::string_view difference_name(FileDifference::Kind kind) {
  using enum FileDifference::Kind;
  return kind == kChanged ? "changed" : kind == kMissing ? "missing" : "not listed";
}

std::vector<FileDifference> differences_of(std::span<const FileDigest> stated,
                                           std::span<const FileDigest> found) {
  using enum FileDifference::Kind;
  std::map<std::string_view, std::string_view> left;
  for (const FileDigest& file : found) left.emplace(file.name, file.sha256);
  std::vector<FileDifference> differences;
  for (const FileDigest& file : stated) {
    const auto at = left.find(file.name);
    if (at == left.end() || at->second != file.sha256)
      differences.push_back({.name = file.name, .kind = at == left.end() ? kMissing : kChanged});
    if (at != left.end()) left.erase(at);
  }
  for (const auto& [name, digest] : left)
    differences.push_back({.name = std::string(name), .kind = kUnlisted});
  std::ranges::sort(differences, {}, &FileDifference::name);
  return differences;
}

}  // namespace ingot::formats
