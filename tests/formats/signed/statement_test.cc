#include "formats/signed/statement.h"

#include <functional>
#include <utility>

#include <fcntl.h>

#include "formats/base/error.h"
#include "formats/base/fd.h"
#include "formats/files/named_file.h"
#include "formats/json/json.h"
#include "formats/signed/bundle.h"
#include "tests/support/bytes.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test.h"

namespace ingot::formats {
namespace {

using testing::expect_error;
using testing::InTempDir;

const std::filesystem::path kSigned = std::filesystem::path(INGOT_SOURCE_DIR) / "tests/golden/oms";

Statement statement_of(const std::string& bundle) {
  return parse_statement(read_bundle(kSigned / bundle).payload, bundle);
}

std::vector<FileDigest> digests(const std::filesystem::path& folder) {
  return digest_files(folder, {.ignored = repository_paths(), .threads = 2});
}

std::vector<std::string> texts(std::span<const FileDifference> differences) {
  std::vector<std::string> list;
  for (const FileDifference& at : differences)
    list.push_back(at.name + ": " + std::string(difference_name(at.kind)));
  return list;
}

TEST(ModelSigning, StatementEqualsThatOfModelSigning) {
  const Statement ours =
      model_signing_statement("model", digests(kSigned / "model"), repository_paths());
  const Json theirs = parse_json(read_text_file(kSigned / "statement.p256.json", 1 << 20), "it");
  Json made = parse_json(statement_text(ours), "it");
  // Their set of ignored paths has no order.
  EXPECT_EQ(made["predicate"]["serialization"]["ignore_paths"].size(), 4U);
  made["predicate"]["serialization"]["ignore_paths"] =
      theirs["predicate"]["serialization"]["ignore_paths"];
  EXPECT_EQ(nlohmann::json(made), nlohmann::json(theirs));
}

TEST(ModelSigning, FilesOfOtherProgramsAreThoseOfTheFolder) {
  for (const char* name :
       {"p256.sig", "p384.sig", "p521.sig", "certificate.sig", "altered/resigned-other-order.sig",
        "altered/resigned-extra-field.sig"}) {
    const StatedFiles stated = stated_files(statement_of(name), name);
    EXPECT_EQ(texts(differences_of(stated.files, digests(kSigned / "model"))),
              std::vector<std::string>{})
        << name;
  }
}

TEST(ModelSigning, OtherRootDigestsAndSerializationsAreRefused) {
  expect_error(ErrorCode::kMismatch, "its root digest",
               [] { (void)stated_files(statement_of("altered/resigned-wrong-root.sig"), "it"); });
  for (const char* name : {"p256-shards.sig", "p256-blake2.sig", "p256-blake3.sig"}) {
    expect_error(ErrorCode::kUnsupported, "only files with sha256",
                 [&] { (void)stated_files(statement_of(name), name); });
  }
}

class InCopy : public InTempDir {
 protected:
  InCopy() {
    std::filesystem::copy(kSigned / "model", model_, std::filesystem::copy_options::recursive);
  }
  [[nodiscard]] std::vector<std::string> found() const {
    return texts(
        differences_of(stated_files(statement_of("p256.sig"), "it").files, digests(model_)));
  }
  const std::filesystem::path model_ = dir_ / "other-name";
};

TEST_F(InCopy, ChangedMissingAndFurtherFilesAreNamed) {
  EXPECT_EQ(found(), std::vector<std::string>{});
  write_text_file(model_ / "sub/a.txt", "another");
  std::filesystem::rename(model_ / "a.txt", model_ / "b.txt");
  EXPECT_EQ(found(), (std::vector<std::string>{"a.txt: missing", "b.txt: not listed",
                                               "sub/a.txt: changed"}));
}

TEST_F(InCopy, RepositoriesAreLeftOutAndLinksRefused) {
  std::filesystem::create_directory(model_ / ".git");
  write_text_file(model_ / ".git/config", "x");
  write_text_file(model_ / ".gitattributes", "x");
  EXPECT_EQ(found(), std::vector<std::string>{});
  std::filesystem::create_symlink("config.json", model_ / "link");
  expect_error(ErrorCode::kUnsupported, "link...is a symbolic link", [&] { (void)found(); });
}

TEST_F(InCopy, HardLinksAreReadOnceAndFollowedLinksToo) {
  std::filesystem::create_hard_link(model_ / "config.json", model_ / "again.json");
  std::filesystem::create_symlink("config.json", model_ / "link.json");
  std::uint64_t most = 0, total = 0;
  const auto files = digest_files(
      model_, {.follows_links = true, .progress = [&](std::uint64_t done, std::uint64_t all) {
                 most = std::max(most, done);
                 total = all;
               }});
  std::map<std::string, std::string> by_name;
  std::uint64_t n_bytes = 0;
  for (const FileDigest& file : files) {
    by_name[file.name] = file.sha256;
    n_bytes += file.n_bytes;
  }
  EXPECT_EQ(by_name["again.json"], by_name["config.json"]);
  EXPECT_EQ(by_name["link.json"], by_name["config.json"]);
  EXPECT_EQ(most, total);
  EXPECT_EQ(total + 2 * std::filesystem::file_size(model_ / "config.json"), n_bytes);
}

TEST(Statement, MalformedStatementsAreRefused) {
  const std::string digest(64, 'a');
  const auto statement = [](const std::string& subjects) {
    return R"({"_type": "https://in-toto.io/Statement/v1", "predicateType": "p", "subject": )" +
           subjects + "}";
  };
  const std::string good = R"({"name": "a", "digest": {"sha256": ")" + digest + R"("}})";
  EXPECT_EQ(parse_statement(statement("[" + good + "]"), "it").subjects.front().sha256, digest);
  for (const std::string& subjects :
       {std::string("3"), "[" + good + "," + good + "]",
        std::string(R"([{"name": "a", "digest": {"sha1": "aa"}}])"),
        std::string(R"([{"name": "a", "digest": {"sha256": "aa"}}])"),
        R"([{"name": "a", "digest": {"sha256": ")" + std::string(64, 'A') + R"("}}])"}) {
    expect_error(ErrorCode::kCorrupt, "it",
                 [&] { (void)parse_statement(statement(subjects), "it"); });
  }
  expect_error(ErrorCode::kCorrupt, "Statement v1", [] {
    (void)parse_statement(R"({"_type": "x", "predicateType": "p", "subject": []})", "it");
  });
}

class FileDigests : public InTempDir {};

TEST_F(FileDigests, FilesThatChangeWhileTheyAreReadAreRefused) {
  const auto path = dir_ / "weights";
  const auto read = [&](const std::function<void()>& change) {
    write_text_file(path, std::string(3 << 20, 'a'), Durable::kLater);
    bool is_first = true;
    return sha256_of_file(path, [&](std::uint64_t) {
      if (std::exchange(is_first, false)) change();
    });
  };
  EXPECT_EQ(read([] {}).size(), 64U);
  for (const std::function<void()>& change : std::vector<std::function<void()>>{
           [&] {
             Fd::open_for_writing(path, O_WRONLY | O_APPEND)
                 .write_exact(std::vector(1, std::byte{1}), 3 << 20);
           },
           [&] { replace_file(path, "another"); }, [&] { std::filesystem::remove(path); }}) {
    expect_error(ErrorCode::kMismatch, "has changed while it was read",
                 [&] { (void)read(change); });
  }
}

}  // namespace
}  // namespace ingot::formats
