// Who may write into an output.
//
// The problem: several runs, maybe on several hosts, may be started on one output, and each of them
// may be killed at any time. Two that write together must be impossible; one that is killed must
// not keep others out for long. The only thing that all hosts share is the file system of the
// output, whose clock is not theirs, and which may have no locks.
//
// The choice: a claim is a file with the name of its run. A lock (flock) on it decides between runs
// of one kernel: the system gives it back with the process. Elsewhere a lease decides: the run
// touches its claim every few seconds, and a claim is dead when it is older than a file that is
// made next to it now (both times are the file system's), or when it was watched for as long
// without a change. Who takes over a dead claim of another host makes another file, by a new name
// or by removing the old one first; a run that was only asleep finds that its file is not the one
// at the path, and stops before it notes or publishes anything (require_held). What it wrote until
// then are the same bytes, since bytes depend only on the source and the options.
//
// Rejected: a lock without a lease (many network file systems have none, or none between hosts); a
// process id (says nothing on another host, and is given again); times by the clock of a host (they
// differ by minutes); a server (one more thing to run, and to fail).
//
// The cost: a touch every few seconds, and up to the length of a lease before a run that was killed
// on another host is replaced. Where the file system has no locks, the claim of a killed run of the
// whole output is removed by hand.

#include "convert/job/claim.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include "convert/job/part_files.h"
#include "formats/base/error.h"
#include "formats/files/folder.h"
#include "formats/json/json.h"

namespace ingot::convert {

using formats::Json;

namespace fs = std::filesystem;

namespace {

constexpr std::uint64_t kMaxClaimBytes = std::uint64_t{1} << 16;
// Folders that another run removes while we make them; a claim that it has not written yet.
constexpr int kAttempts = 100;
constexpr std::chrono::milliseconds kPause{10};

std::string text_of(const RunName& run, bool is_locked) {
  const Json json = {{"host", run.host},       {"boot", run.boot},    {"pid", run.pid},
                     {"started", run.started}, {"locked", is_locked}, {"command", run.command}};
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

// nullopt for one that is not written yet, or was cut by a crash. Throws kIo where it cannot be
// read, since its run may be alive.
std::optional<RunName> read_claim(const fs::path& path) {
  try {
    const Json json = formats::parse_json(read_text_file(path, kMaxClaimBytes), path.string());
    return RunName{.host = json.at("host").get<std::string>(),
                   .boot = json.at("boot").get<std::string>(),
                   .pid = json.at("pid").get<std::uint64_t>(),
                   .started = json.at("started").get<std::string>(),
                   .command = json.at("command").get<std::string>()};
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kIo) throw;
    return std::nullopt;
  } catch (const Json::exception&) {
    return std::nullopt;
  }
}

// True if the claim at `path` says that its run holds a lock on it; false for a claim that is not
// written yet.
bool says_locked(const fs::path& path) {
  try {
    return formats::parse_json(read_text_file(path, kMaxClaimBytes), path.string())
        .value("locked", false);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kIo) throw;
    return false;
  } catch (const Json::exception&) {
    return false;
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
              "another run is writing here ({}); wait for it, stop it, or choose another output",
              name_of(other))
      .in_file(output.string());
}

[[noreturn]] void refuse_unprovable(const fs::path& output, const fs::path& claim,
                                    std::string_view why) {
  throw Error(ErrorCode::kExists,
              "another run may be writing here ({}); {}. If it has ended, remove {} and run again",
              name_of(read_claim(claim)), why, claim.string())
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
  } catch (const Error& error) {
    // A folder that may not be read can still be written to.
    if (error.code() != ErrorCode::kPermission) throw;
  }
  return folder;
}

bool is_file(const Fd& file, const fs::path& path) {
  const auto found = stamp_of(path);
  return found && found->is_same_file(file.stamp());
}

// The present time by the file system: the time of a file that is made there.
std::int64_t file_system_now(const fs::path& folder) {
  static std::atomic<std::uint64_t> n = 0;
  const fs::path probe =
      folder / fmt::format("clock-{}-{}", static_cast<std::uint64_t>(::getpid()), n.fetch_add(1));
  // A killed process of this number may have left one.
  const Fd file = Folder::open(folder).replace(probe.filename(), O_WRONLY);
  const std::int64_t now = file.stamp().modified_ns;
  std::error_code ignored;
  fs::remove(probe, ignored);
  return now;
}

// Locks a claim for a moment to learn its state. Network file systems lock only files that are open
// for writing; the state of one that we may not open so is unknown.
LockState lock_state(const fs::path& claim) {
  try {
    return Fd::open_for_writing(claim, O_RDWR).try_lock();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kPermission) throw;
    return LockState::kUnsupported;
  }
}

enum class Life : std::uint8_t { kDead, kAlive, kUnknown };

// The state of the run that has a part's claim, as far as it shows at once. `renewed`: when it last
// showed that it is alive, by the file system.
Life life_of(const fs::path& claim, const RunName& run, const Renewal& renewal,
             std::int64_t& renewed) {
  // Opened again: a network file system asks its server then.
  const Fd file = Fd::open_for_reading(claim);
  renewed = file.stamp().modified_ns;
  const std::optional<RunName> other = read_claim(claim);
  if (other && other->boot == run.boot) {
    // The run that began it has locked it, unless there are no locks.
    const LockState state = lock_state(claim);
    if (state == LockState::kHeldElsewhere) return Life::kAlive;
    if (state == LockState::kLocked && says_locked(claim)) return Life::kDead;
  }
  const std::chrono::nanoseconds age(file_system_now(claim.parent_path()) - renewed);
  return age > renewal.dead ? Life::kDead : Life::kUnknown;
}

// Waits until it is known. A claim that is not renewed while we look on for as long is dead too,
// whatever its time.
bool is_alive(const fs::path& claim, const RunName& run, const Renewal& renewal) {
  const auto begun = std::chrono::steady_clock::now();
  std::optional<std::int64_t> first;
  try {
    while (true) {
      std::int64_t renewed = 0;
      const Life life = life_of(claim, run, renewal, renewed);
      if (life != Life::kUnknown) return life == Life::kAlive;
      if (!first) first = renewed;
      if (*first != renewed) return true;
      if (std::chrono::steady_clock::now() - begun > renewal.dead) return false;
      renewal.waiting();
      std::this_thread::sleep_for(kPause);
    }
  } catch (const Error& error) {
    // Given back while we looked.
    if (error.code() == ErrorCode::kNotFound) return false;
    throw;
  }
}

[[noreturn]] void refuse_part(const OutputPaths& paths, const PartFile& claim) {
  throw Error(ErrorCode::kExists, "part {} is at work ({}); wait for it, or stop it",
              text_of(claim.part), name_of(read_claim(claim.path)))
      .in_file(paths.output.string());
}

// Returns the claim of the last run of a part that has one; nullopt: the part has no claim.
std::optional<PartFile> last_claim(const OutputPaths& paths, const JobPart& part) {
  std::optional<PartFile> last;
  for (PartFile& claim : part_files(paths, kClaimSuffix)) {
    if (claim.part == part) last = std::move(claim);
  }
  return last;
}

// One above every run that this part has had.
std::uint32_t next_run(const OutputPaths& paths, const JobPart& part) {
  std::uint32_t last = 0;
  for (const std::string_view suffix : {kClaimSuffix, kJournalSuffix}) {
    for (const PartFile& file : part_files(paths, suffix)) {
      if (file.part == part) last = std::max(last, file.run);
    }
  }
  return last + 1;
}

// Throws when a part that `is_against` this run is at work; claims of dead ones are removed, so
// that a run that was asleep finds that it has lost its own.
void require_no_part(const OutputPaths& paths, const RunName& run, const Renewal& renewal,
                     const std::function<bool(const JobPart&)>& is_against) {
  for (const PartFile& claim : part_files(paths, kClaimSuffix)) {
    if (!is_against(claim.part)) continue;
    if (is_alive(claim.path, run, renewal)) refuse_part(paths, claim);
    std::error_code ignored;
    fs::remove(claim.path, ignored);
  }
}

// Throws when the run of another host that has the claim of the whole is at work.
void require_dead_elsewhere(const OutputPaths& paths, const RunName& run, const Renewal& renewal) {
  if (is_alive(paths.claim, run, renewal)) refuse(paths.output, read_claim(paths.claim));
}

// Throws when a run of the whole output is at work, or may be.
void require_no_whole(const OutputPaths& paths, const RunName& run, const Renewal& renewal) {
  const std::optional<RunName> other = read_claim_soon(paths.claim);
  try {
    const LockState state = lock_state(paths.claim);
    if (state == LockState::kHeldElsewhere) refuse(paths.output, other);
    if (state == LockState::kLocked && other && other->boot == run.boot) return;
    if (state == LockState::kLocked && other) {
      require_dead_elsewhere(paths, run, renewal);
      // A join that was only asleep finds that it has lost its claim.
      std::error_code ignored;
      fs::remove(paths.claim, ignored);
      return;
    }
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kNotFound) return;
    throw;
  }
  refuse_unprovable(paths.output, paths.claim,
                    "its host is another, or this file system has no locks (flock)");
}

}  // namespace

Claim::Claim(Claim&& other) noexcept
    : paths_(std::move(other.paths_)),
      path_(std::move(other.path_)),
      journal_(std::move(other.journal_)),
      next_(std::move(other.next_)),
      made_output_(std::exchange(other.made_output_, false)),
      is_locked_(other.is_locked_),
      file_(std::move(other.file_)),
      renewing_(std::move(other.renewing_)) {
  other.paths_.output.clear();
}

Claim Claim::take(const OutputPaths& paths, const RunName& run, const Renewal& renewal) {
  Claim claim(paths);
  for (int i = 0; i < kAttempts; ++i) {
    if (!claim.try_take(run, renewal)) continue;
    require_no_part(paths, run, renewal, [](const JobPart&) { return true; });
    return claim;
  }
  throw Error(ErrorCode::kExists, "other runs start and end here all the time (run again)")
      .in_file(paths.output.string());
}

Claim Claim::take_part(const OutputPaths& paths, const RunName& run, const JobPart& part,
                       bool resume, const Renewal& renewal) {
  Claim claim(paths);
  for (int i = 0; i < kAttempts; ++i) {
    if (!claim.try_take_part(run, part, resume, renewal)) continue;
    // Ours is there before we look for others: of two that begin at once, one sees the other.
    require_no_whole(paths, run, renewal);
    require_no_part(paths, run, renewal, [&](const JobPart& other) { return other.n != part.n; });
    return claim;
  }
  throw Error(ErrorCode::kExists, "other runs of this part start and end all the time (run again)")
      .in_file(paths.output.string());
}

// False when another run has begun or ended meanwhile.
bool Claim::try_take_part(const RunName& run, const JobPart& part, bool resume,
                          const Renewal& renewal) {
  // The number before the look: of two that find the same dead claim, one can make the next.
  const std::uint32_t number = next_run(paths_, part);
  const std::optional<PartFile> last = last_claim(paths_, part);
  if (last && last->run >= number) return false;
  if (last) {
    // Without --resume a part that may still be at work is not taken.
    std::int64_t renewed = 0;
    const bool may_live = resume ? is_alive(last->path, run, renewal)
                                 : fs::exists(last->path) &&
                                       life_of(last->path, run, renewal, renewed) != Life::kDead;
    if (may_live) refuse_part(paths_, *last);
    if (!resume && fs::exists(last->path)) {
      throw Error(ErrorCode::kExists,
                  "part {} was left by a run that has ended ({}); --resume takes it over",
                  text_of(part), name_of(read_claim(last->path)))
          .in_file(paths_.output.string());
    }
  }
  Fd file;
  try {
    const fs::path parent = fs::absolute(paths_.output / ".").parent_path().parent_path();
    if (!fs::exists(parent)) make_folders(parent);
    const Fd lock = lock_parent(parent);
    if (make_folder(paths_.output)) made_output_ = true;
    const Folder parts =
        Folder::open(paths_.output).make(paths_.parts.lexically_relative(paths_.output));
    path_ = part_file(paths_, part, number, kClaimSuffix);
    file = parts.create(path_.filename(), O_RDWR);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kNotFound) return false;
    throw;
  }
  if (!file.valid()) return false;
  // Another run began, ended and gave its claim back after we had looked for the number.
  if (fs::exists(part_file(paths_, part, number, kJournalSuffix))) {
    std::error_code ignored;
    fs::remove(path_, ignored);
    return false;
  }
  journal_ = part_file(paths_, part, number, kJournalSuffix);
  next_ = part_file(paths_, part, number + 1, kClaimSuffix);
  // On the same kernel the lock proves at once that this run is alive.
  const LockState state = file.try_lock();
  hold(std::move(file), state, run, renewal);
  if (last) {
    std::error_code ignored;
    fs::remove(last->path, ignored);
  }
  return true;
}

// False when the run that had the claim removed it, or its folder, meanwhile.
bool Claim::try_take(const RunName& run, const Renewal& renewal) {
  Fd file;
  bool is_new = false;
  LockState state{};
  try {
    const fs::path parent = fs::absolute(paths_.output / ".").parent_path().parent_path();
    if (!fs::exists(parent)) make_folders(parent);
    const Fd lock = lock_parent(parent);
    if (make_folder(paths_.output)) made_output_ = true;
    require_own_folders(paths_);
    const Folder partial = Folder::open(paths_.output).make(paths_.partial.filename());
    file = partial.create(paths_.claim.filename(), O_RDWR);
    is_new = file.valid();
    if (!is_new) file = partial.open(paths_.claim.filename(), O_RDWR);
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
                      "this file system has no locks (flock), so it cannot be known whether it "
                      "still runs");
  }
  if (const auto other = is_new ? std::nullopt : read_claim(paths_.claim);
      other && other->boot != run.boot && other->host != run.host) {
    require_dead_elsewhere(paths_, run, renewal);
    // Another file, not other words in this one: a run that was asleep finds that it has lost it.
    // Our lock keeps the runs of this kernel, and of hosts that see it, from doing the same.
    std::error_code ignored;
    if (is_file(file, paths_.claim)) fs::remove(paths_.claim, ignored);
    return false;
  }
  file.truncate(0);
  hold(std::move(file), state, run, renewal);
  return true;
}

void Claim::hold(Fd file, LockState state, const RunName& run, const Renewal& renewal) {
  is_locked_ = state == LockState::kLocked;
  const std::string text = text_of(run, is_locked_);
  file.write_exact(std::as_bytes(std::span(text)), 0);
  file_ = std::move(file);
  // Made here: without memory for it the thread would end the program.
  struct Waiting {
    std::mutex mutex;
    std::condition_variable_any ended;
  };
  renewing_ = std::jthread([fd = file_.get(), every = renewal.every,
                            waiting = std::make_shared<Waiting>()](const std::stop_token& stop) {
    std::unique_lock lock(waiting->mutex);
    // One that cannot be renewed is taken over, or not: require_held() finds out.
    while (!waiting->ended.wait_for(lock, stop, every, [] { return false; }) &&
           !stop.stop_requested())
      ::futimens(fd, nullptr);
  });
}

Claim::~Claim() {
  if (paths_.output.empty()) return;  // moved from, or given back
  try {
    give_back();
  } catch (const std::exception&) {
    // The claim stays, as after a kill.
  }
}

void Claim::give_back() {
  renewing_ = {};
  const fs::path output = std::exchange(paths_.output, {});
  // All of them, and then the first failure. Folders remain when they hold anything.
  std::optional<Error> fault;
  const auto remove = [&](const fs::path& path) {
    std::error_code failure;
    fs::remove(path, failure);
    if (failure && failure != std::errc::directory_not_empty && failure != std::errc::file_exists &&
        !fault)
      fault = system_error(failure.value(), "remove", path.string());
  };
  // Before the lock ends: who waits for it finds that the file has gone, and makes another.
  if (file_.valid() && is_file(file_, path_)) remove(path_);
  remove(paths_.parts);
  remove(paths_.partial);
  if (made_output_) remove(output);
  if (fault) throw *fault;
}

void Claim::require_held() const {
  if (is_file(file_, path_) && (next_.empty() || !fs::exists(next_))) return;
  throw Error(ErrorCode::kMismatch,
              "the claim of this run, {}, was removed or replaced while it was at work: nothing is "
              "published",
              path_.string())
      .in_file(paths_.output.string());
}

}  // namespace ingot::convert
