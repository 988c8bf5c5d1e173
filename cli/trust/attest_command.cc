#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include <dlfcn.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <termios.h>
#include <unistd.h>

#include "cli/commands/commands.h"
#include "cli/terminal/answer.h"
#include "cli/terminal/progress.h"
#include "cli/terminal/session.h"
#include "cli/terminal/terminal.h"
#include "cli/trust/derivation.h"
#include "formats/base/error.h"
#include "formats/base/fd.h"
#include "formats/base/printable.h"
#include "formats/base/stop_scope.h"
#include "formats/files/folder.h"
#include "formats/files/named_file.h"
#include "formats/json/json.h"
#include "formats/signed/bundle.h"
#include "formats/signed/keys.h"
#include "formats/signed/statement.h"
#include "library/options/flag_table.h"
#include "report/figures.h"

namespace ingot::cli {

namespace {

namespace fs = std::filesystem;
using formats::Bundle;
using formats::FileDifference;
using formats::FileDigest;
using formats::Json;
using formats::Statement;

constexpr std::string_view kInToto = "in-toto", kModelSigning = "model-signing";
constexpr std::size_t kMostPassphrase = 1024;
constexpr int kPromptMilliseconds = 200;
constexpr double kMostDescriptor = 2147483647;
constexpr std::size_t kMostDifferences = 20;

struct AttestFlags {
  std::string directory, source_uri, form, builder_id = "urn:ingot:somebody", progress = "auto";
  GivenSource given;
  fs::path key, bundle;
  std::optional<std::uint32_t> passphrase_fd;
  bool verify = false;
  std::size_t threads = 0;
};

// Switches a terminal's echo off; no other descriptor has one.
class SilentTerminal {
 public:
  explicit SilentTerminal(int fd) : fd_(fd), is_terminal_(::tcgetattr(fd, &before_) == 0) {
    if (!is_terminal_) return;
    termios silent = before_;
    silent.c_lflag &= ~static_cast<tcflag_t>(ECHO);
    ::tcsetattr(fd_, TCSAFLUSH, &silent);
  }
  ~SilentTerminal() {
    if (is_terminal_) ::tcsetattr(fd_, TCSAFLUSH, &before_);
  }
  SilentTerminal(const SilentTerminal&) = delete;
  SilentTerminal& operator=(const SilentTerminal&) = delete;

 private:
  int fd_;
  termios before_{};
  bool is_terminal_;
};

// The first line of a descriptor. Stops at a signal: a read would go on waiting for a line.
std::string passphrase_from(int fd, std::string_view where) {
  const SilentTerminal silent(fd);
  std::string text;
  char c = 0;
  while (text.size() < kMostPassphrase) {
    pollfd asked{.fd = fd, .events = POLLIN, .revents = 0};
    const int n_ready = ::poll(&asked, 1, kPromptMilliseconds);
    StopScope::check();
    if (n_ready == 0 || (n_ready < 0 && errno == EINTR)) continue;
    const ssize_t n = uninterrupted([&] { return ::read(fd, &c, 1); });
    if (n < 0) throw system_error(errno, "read the passphrase", where);
    if (n == 0 || c == '\n') break;
    text += c;
  }
  return text;
}

std::string asked_passphrase(const AttestFlags& flags) {
  if (flags.passphrase_fd) {
    return passphrase_from(static_cast<int>(*flags.passphrase_fd),
                           fmt::format("descriptor {}", *flags.passphrase_fd));
  }
  // Not from standard input, which may be something else's.
  const int terminal = session().is_of_program ? ::open("/dev/tty", O_RDWR | O_CLOEXEC) : -1;
  if (terminal < 0) {
    throw Error(ErrorCode::kInvalidArgument,
                "is encrypted, and there is no terminal to ask for its passphrase (--passphrase-fd "
                "reads it from a descriptor)");
  }
  errors() << fmt::format("passphrase of {}: ", printable(flags.key.string())) << std::flush;
  std::string text = passphrase_from(terminal, "/dev/tty");
  errors() << '\n';
  ::close(terminal);
  return text;
}

// The file that has this code: the program, or the library that another program loaded.
fs::path own_file() {
  Dl_info found{};
  if (session().is_of_program || ::dladdr(&kInToto, &found) == 0)
    return fs::read_symlink("/proc/self/exe");
  return found.dli_fname;
}

fs::path bundle_path(const AttestFlags& flags, std::string_view form) {
  if (!flags.bundle.empty()) return flags.bundle;
  return fs::path(flags.directory) /
         (form == kModelSigning ? formats::kModelSignatureName : formats::kAttestationName);
}

// The name of a file below a folder, where it is there.
std::optional<std::string> name_within(const fs::path& file, const fs::path& folder) {
  std::error_code failure;
  const fs::path name =
      fs::weakly_canonical(file, failure).lexically_relative(fs::weakly_canonical(folder, failure));
  if (failure || name.empty() || *name.begin() == "..") return std::nullopt;
  return name.generic_string();
}

std::uint64_t n_bytes_of(const std::vector<FileDigest>& files) {
  std::uint64_t n = 0;
  for (const FileDigest& file : files) n += file.n_bytes;
  return n;
}

Json attestation_json(const fs::path& bundle, const Statement& statement,
                      const std::vector<FileDigest>& files, const formats::PublicKey& key) {
  return {{"bundle", bundle.string()},
          {"predicate", statement.predicate_type},
          {"files", files.size()},
          {"key", {{"algorithm", key.algorithm()}, {"hint", key.hint()}}}};
}

// Removes what replace_file() leaves of a bundle where it is killed: a statement would be about it.
void remove_leftovers_of(const fs::path& bundle) {
  const std::string begin = fmt::format(".{}-", bundle.filename().string());
  constexpr std::size_t kRandomDigits = 16;
  const fs::path folder = bundle.has_parent_path() ? bundle.parent_path() : fs::path(".");
  std::error_code failure;
  for (const std::string& name : names_in(folder, failure)) {
    if (name.starts_with(begin) && name.size() == begin.size() + kRandomDigits &&
        name.find_first_not_of("0123456789abcdef", begin.size()) == std::string::npos &&
        fs::symlink_status(folder / name, failure).type() == fs::file_type::regular)
      fs::remove(folder / name, failure);
  }
}

// The statement of OpenSSF Model Signing about all files that are here now.
Statement model_signature(const AttestFlags& flags, const fs::path& bundle, Progress& progress) {
  std::set<std::string, std::less<>> left_out = formats::repository_paths();
  const std::set<std::string, std::less<>> ignored = left_out;
  if (auto name = name_within(bundle, flags.directory)) left_out.insert(*std::move(name));
  progress.begin("digests");
  const auto files = formats::digest_files(
      flags.directory,
      {.ignored = std::move(left_out),
       .threads = flags.given.threads,
       .progress = [&](std::uint64_t done, std::uint64_t total) { progress.update(done, total); }});
  const fs::path whole = fs::weakly_canonical(flags.directory);
  return formats::model_signing_statement(whole.filename().string(), files, ignored);
}

int run_signing(const AttestFlags& flags) {
  const std::string form = flags.form.empty() ? std::string(kInToto) : flags.form;
  const fs::path bundle = bundle_path(flags, form);
  require_finished(flags.directory);
  const formats::SigningKey key =
      formats::SigningKey::read(flags.key, [&] { return asked_passphrase(flags); });
  remove_leftovers_of(bundle);
  Progress progress(flags.progress, "headers");
  Statement statement;
  if (form == kModelSigning) {
    if (!key.public_key().is_ecdsa()) {
      throw Error(ErrorCode::kUnsupported,
                  "is a key of {}, which model_signing does not verify (an ECDSA key over P-256: "
                  "openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256)",
                  key.public_key().algorithm())
          .in_file(flags.key.string());
    }
    statement = model_signature(flags, bundle, progress);
  } else {
    if (flags.given.directory.empty()) {
      throw Error(ErrorCode::kInvalidArgument,
                  "a statement about a conversion has the digests of its source: give --source DIR "
                  "(--form model-signing is about the files only)");
    }
    statement =
        provenance_of(flags.directory, flags.given,
                      {.source_uri = flags.source_uri,
                       .builder_id = flags.builder_id,
                       .tool = own_file(),
                       .phase = [&](std::string_view phase) { progress.begin(phase); },
                       .progress = [&](std::uint64_t done,
                                       std::uint64_t total) { progress.update(done, total); }});
  }
  progress.finish();
  const std::vector<FileDigest> files = formats::stated_files(statement, bundle.string()).files;
  const Bundle made = formats::sign_statement(formats::statement_text(statement), key);
  replace_file(bundle, formats::bundle_text(made));
  answer().add({{"attestation", attestation_json(bundle, statement, files, key.public_key())}});
  if (!answer().is_json) {
    out() << fmt::format("{}: {} files, signed with {} (hint {})\n", printable(bundle.string()),
                         count_text(files.size()), key.public_key().algorithm(),
                         key.public_key().hint());
  }
  return kExitDone;
}

std::string differences_text(const std::vector<FileDifference>& differences,
                             std::string_view folder) {
  std::string text;
  for (std::size_t i = 0; i < std::min(differences.size(), kMostDifferences); ++i) {
    text += fmt::format("{}: {}\n", printable((fs::path(folder) / differences[i].name).string()),
                        formats::difference_name(differences[i].kind));
  }
  if (differences.size() > kMostDifferences)
    text += fmt::format("and {} more\n", count_text(differences.size() - kMostDifferences));
  return text;
}

Json differences_json(const std::vector<FileDifference>& differences) {
  return formats::json_list(differences, [](const FileDifference& difference) {
    return Json{{"file", difference.name},
                {"difference", std::string(formats::difference_name(difference.kind))}};
  });
}

// Verifies one bundle; returns whether signature and files are as they were.
bool verify_bundle(const AttestFlags& flags, const fs::path& path, const formats::PublicKey& key,
                   Progress& progress, Json& verified) {
  const Bundle bundle = formats::read_bundle(path);
  const std::string where = path.string();
  Json row = {{"bundle", where}, {"signed", false}, {"differences", Json::array()}};
  const auto refuse = [&](const Error& error) {
    row["refused"] = error.message();
    verified = row;
    if (!answer().is_json) out() << fmt::format("{}: {}\n", printable(where), error.message());
    return false;
  };
  Statement statement;
  formats::StatedFiles stated;
  // A bundle that is not the key's is a result, and no trouble.
  try {
    formats::require_signed(bundle, key, where);
    row["signed"] = true;
    statement = formats::parse_statement(bundle.payload, where);
    stated = formats::stated_files(statement, where);
    if (statement.predicate_type != formats::kModelSigningPredicate)
      (void)stated_derivation(statement, where);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kMismatch) throw;
    return refuse(error);
  }
  row["predicate"] = statement.predicate_type;
  const bool is_of_model = statement.predicate_type == formats::kModelSigningPredicate;
  std::set<std::string, std::less<>> left_out = is_of_model ? stated.ignored : unstated_paths();
  if (auto name = name_within(path, flags.directory)) left_out.insert(*std::move(name));
  progress.begin("digests");
  const auto update = [&](std::uint64_t done, std::uint64_t total) {
    progress.update(done, total);
  };
  const std::vector<FileDigest> found = formats::digest_files(
      flags.directory,
      {.ignored = std::move(left_out), .threads = flags.given.threads, .progress = update});
  std::vector<FileDifference> differences = formats::differences_of(stated.files, found);
  row["files"] = stated.files.size();
  row["differences"] = differences_json(differences);
  bool is_same = differences.empty();
  std::string text = differences_text(differences, flags.directory);
  if (!flags.given.directory.empty() && !is_of_model) {
    progress.begin("source");
    const std::vector<FileDigest> source =
        source_digests(flags.given.directory, flags.given.threads, update);
    differences = formats::differences_of(stated_source(statement, where), source);
    row["source_differences"] = differences_json(differences);
    text += differences_text(differences, flags.given.directory);
    is_same = is_same && differences.empty();
  }
  verified = row;
  if (!answer().is_json) {
    out() << text
          << fmt::format("{}: signed by {}; {} files, {}: {}\n", printable(where), key.algorithm(),
                         count_text(stated.files.size()), bytes_text(n_bytes_of(found)),
                         is_same ? "as they were signed" : "NOT as they were signed");
  }
  return is_same;
}

int run_verification(const AttestFlags& flags) {
  const formats::PublicKey key = formats::PublicKey::read(flags.key);
  // A folder may have both, by different keys: the one that says more is meant.
  fs::path path = bundle_path(flags, flags.form);
  if (flags.form.empty() && flags.bundle.empty() && !fs::exists(path)) {
    path = bundle_path(flags, kModelSigning);
    if (!fs::exists(path)) {
      throw Error(ErrorCode::kNotFound, "has neither {} nor {} (--bundle names one elsewhere)",
                  formats::kAttestationName, formats::kModelSignatureName)
          .in_file(flags.directory);
    }
  }
  Progress progress(flags.progress, "digests");
  Json verified;
  const bool passed = verify_bundle(flags, path, key, progress, verified);
  progress.finish();
  answer().add({{"passed", passed}, {"verified", std::move(verified)}});
  return passed ? kExitDone : kExitBelowThreshold;
}

int run_attest(AttestFlags& flags) {
  const StopScope stop = stop_at_signals("files were read");
  flags.given.threads = threads_of(flags.threads);
  return flags.verify ? run_verification(flags) : run_signing(flags);
}

}  // namespace

std::function<int()> declare_attest(FlagTable& table) {
  auto flags = std::make_shared<AttestFlags>();
  const auto of_signing =
      belongs_to("signing (without --verify)", [flags = flags.get()] { return !flags->verify; });
  table.add(
      FlagGroup::kCommon,
      {required("output", &flags->directory, "directory that the statement is about",
                ValueKind::kFolder),
       {"--key",
        &flags->key,
        "private key in PEM that signs, Ed25519 or ECDSA, which only its owner may read; with "
        "--verify the public key",
        {.is_required = true, .kind = ValueKind::kFile}},
       {"--verify", &flags->verify,
        "check signature and files: exit code 1 where one is not as it was signed"},
       {"--form",
        &flags->form,
        "in-toto (default): source, recipe and files, in ingot.intoto.json; model-signing: all "
        "files, for OpenSSF Model Signing, in model.sig",
        {.choices = {std::string(kInToto), std::string(kModelSigning)}}},
       {"--bundle",
        &flags->bundle,
        "file of the signed statement (default: in the output)",
        {.kind = ValueKind::kFile, .is_written = true}}});
  table.add(
      FlagGroup::kSource,
      {{"--source",
        &flags->given.directory,
        "the checkpoint that the output was made from; with --verify its files are compared too",
        {.kind = ValueKind::kCheckpoint}},
       {"--with",
        &flags->given.inputs,
        "OPTION=PATH: the file of an option that the conversion had, such as importance=DIR",
        {.value_name = "OPTION=PATH", .idle = of_signing}},
       {"--source-uri",
        &flags->source_uri,
        "address of the source in the statement, such as hf://ORG/NAME@COMMIT (default: that of "
        "the "
        "hub's cache)",
        {.idle = of_signing}},
       {"--builder-id",
        &flags->builder_id,
        "URI of who made the output, for the statement",
        {.idle = of_signing}}});
  table.add(FlagGroup::kJob, {{"--passphrase-fd",
                               &flags->passphrase_fd,
                               "descriptor that gives the passphrase of the key (default: the "
                               "terminal is asked)",
                               {.range = NumberRange{0, kMostDescriptor}, .idle = of_signing}},
                              threads_flag(&flags->threads)});
  table.add(FlagGroup::kReport, {progress_flag(&flags->progress), json_flag(&answer().is_json)});
  table.footer =
      "Examples:\n"
      "  openssl genpkey -algorithm ed25519 -out key.pem && chmod 600 key.pem\n"
      "  openssl pkey -in key.pem -pubout -out key.pub.pem\n"
      "  ingot attest OUT --key key.pem --source DeepSeek-V3.2\n"
      "  ingot attest --verify OUT --key key.pub.pem\n"
      "  ingot attest OUT --key p256.pem --form model-signing\n"
      "Exit codes: with --verify 1 where signature or files are not as they were signed.";
  return [flags] { return run_attest(*flags); };
}

}  // namespace ingot::cli
