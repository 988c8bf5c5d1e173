#include "convert/job/claim.h"

#include <chrono>
#include <optional>
#include <thread>

#include <fcntl.h>
#include <fmt/format.h>

#include "formats/base/error.h"
#include "formats/json/json.h"

namespace ingot::convert {

using formats::Json;

namespace fs = std::filesystem;

namespace {

constexpr std::uint64_t kMaxClaimBytes = std::uint64_t{1} << 16;
// Folders that another run removes while we make them; a claim that it has not written yet.
constexpr int kAttempts = 100;
constexpr std::chrono::milliseconds kPause{10};

std::string text_of(const RunName& run) {
  const Json json = {{"host", run.host},
                     {"boot", run.boot},
                     {"pid", run.pid},
                     {"started", run.started},
                     {"command", run.command}};
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

// nullopt for one that is not written yet, or was cut by a crash.
std::optional<RunName> read_claim(const fs::path& path) {
  try {
    const Json json = formats::parse_json(read_text_file(path, kMaxClaimBytes), path.string());
    return RunName{.host = json.at("host").get<std::string>(),
                   .boot = json.at("boot").get<std::string>(),
                   .pid = json.at("pid").get<std::uint64_t>(),
                   .started = json.at("started").get<std::string>(),
                   .command = json.at("command").get<std::string>()};
  } catch (const Error&) {
    return std::nullopt;
  } catch (const Json::exception&) {
    return std::nullopt;
  }
}

std::optional<RunName> read_claim_soon(const fs::path& path) {
  std::optional<RunName> run = read_claim(path);
  for (int i = 0; !run && i < kAttempts && fs::exists(path); ++i) {
    std::this_thread::sleep_for(kPause);
    run = read_claim(path);
  }
  return run;
}

std::string name_of(const std::optional<RunName>& run) {
  if (!run) return "it has not written its name";
  return fmt::format("process {} on {}, started {}: {}", run->pid, run->host, run->started,
                     run->command);
}

[[noreturn]] void refuse(const fs::path& output, const std::optional<RunName>& other) {
  throw Error(ErrorCode::kExists,
              fmt::format("another run is writing here ({}); wait for it, stop it, or choose "
                          "another output",
                          name_of(other)))
      .in_file(output.string());
}

[[noreturn]] void refuse_unprovable(const fs::path& output, const fs::path& claim,
                                    std::string_view why) {
  throw Error(
      ErrorCode::kExists,
      fmt::format("another run may be writing here ({}); {}. If it has ended, remove {} and "
                  "run again",
                  name_of(read_claim(claim)), why, claim.string()))
      .in_file(output.string());
}

void make_folders(const fs::path& path) {
  std::error_code failure;
  fs::create_directories(path, failure);
  if (failure) throw system_error(failure.value(), "create the folder", path.string());
}

// True when it was not there.
bool make_folder(const fs::path& path) {
  std::error_code failure;
  const bool is_new = fs::create_directory(path, failure);
  if (failure) throw system_error(failure.value(), "create the folder", path.string());
  return is_new;
}

// The lock under which runs make the output's folder and claim it, one after the other: the run
// that makes the folder has its claim, and removes it when it is refused. Where a file system has
// no locks, something else holds this one, or a run ends just then, an empty folder may stay.
Fd lock_parent(const fs::path& parent) {
  Fd folder;
  try {
    folder = Fd::open_directory(parent);
    for (int i = 0; i < kAttempts && folder.try_lock() == LockState::kHeldElsewhere; ++i)
      std::this_thread::sleep_for(kPause);
  } catch (const Error&) {
    // A folder that may not be read can still be written to.
  }
  return folder;
}

bool is_file(const Fd& file, const fs::path& path) {
  const auto found = stamp_of(path);
  return found && found->is_same_file(file.stamp());
}

}  // namespace

Claim Claim::take(const OutputPaths& paths, const RunName& run) {
  Claim claim(paths);
  for (int i = 0; i < kAttempts; ++i) {
    if (claim.try_take(run)) return claim;
  }
  throw Error(ErrorCode::kExists, "other runs start and end here all the time (run again)")
      .in_file(paths.output.string());
}

// False when the run that had the claim removed it, or its folder, meanwhile.
bool Claim::try_take(const RunName& run) {
  Fd file;
  bool is_new = false;
  LockState state{};
  try {
    const fs::path parent = fs::absolute(paths_.output / ".").parent_path().parent_path();
    if (!fs::exists(parent)) make_folders(parent);
    const Fd lock = lock_parent(parent);
    if (make_folder(paths_.output)) made_output_ = true;
    make_folder(paths_.partial);
    file = Fd::create_new(paths_.claim, O_RDWR);
    is_new = file.valid();
    if (!is_new) file = Fd::open_for_writing(paths_.claim, O_RDWR);
    state = file.try_lock();
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kNotFound) return false;
    throw;
  }
  if (state == LockState::kHeldElsewhere) {
    const std::optional<RunName> other = read_claim_soon(paths_.claim);
    if (!is_file(file, paths_.claim)) return false;
    refuse(paths_.output, other);
  }
  if (!is_file(file, paths_.claim)) return false;
  if (!is_new && state == LockState::kUnsupported) {
    refuse_unprovable(paths_.output, paths_.claim,
                      "this file system has no locks (flock), so nobody can see whether it still "
                      "runs");
  }
  if (const auto other = is_new ? std::nullopt : read_claim(paths_.claim);
      other && other->boot != run.boot && other->host != run.host) {
    refuse_unprovable(paths_.output, paths_.claim,
                      "its host is another, whose locks may not show here");
  }
  file.truncate(0);
  const std::string text = text_of(run);
  file.write_exact(std::as_bytes(std::span(text)), 0);
  is_locked_ = state == LockState::kLocked;
  file_ = std::move(file);
  return true;
}

Claim::~Claim() {
  if (paths_.output.empty()) return;  // moved from
  std::error_code ignored;
  try {
    // Before the lock ends: who waits for it finds that the file has gone, and makes another.
    if (file_.valid() && is_file(file_, paths_.claim)) fs::remove(paths_.claim, ignored);
  } catch (const Error&) {
    // It stays, as after a kill.
  }
  // Both remain when they hold anything.
  fs::remove(paths_.partial, ignored);
  if (made_output_) fs::remove(paths_.output, ignored);
}

void Claim::require_held() const {
  if (is_file(file_, paths_.claim)) return;
  throw Error(
      ErrorCode::kMismatch,
      fmt::format("the claim of this run, {}, was removed or replaced while it was at work: "
                  "nothing is published",
                  paths_.claim.string()))
      .in_file(paths_.output.string());
}

}  // namespace ingot::convert
