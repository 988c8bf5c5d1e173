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
// without a change. Runs are numbered, those of the whole and those of each part: who takes over a
// dead claim makes the claim of the next number, which only one process can (O_EXCL). A run that
// was only asleep finds that there is a later one, or that its own claim has gone, and stops before
// it notes or publishes anything (require_held). What it wrote until then are the same bytes, since
// bytes depend only on the source and the options.
//
// Rejected: a lock without a lease (many network file systems have none, or none between hosts); a
// process id (says nothing on another host, and is given again); times by the clock of a host (they
// differ by minutes); a server (one more thing to run, and to fail).
//
// The cost: a touch every few seconds, and up to the length of a lease before a run that was killed
// on another host, or on a file system without locks, is replaced.

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

#include "convert/job/run_files.h"
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
// A run writes its name into its claim within that time.
constexpr std::chrono::milliseconds kUnnamed{1000};

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

std::string name_of(const std::optional<RunName>& run) {
  if (!run) return "it has not written its name";
  return fmt::format("process {} on {}, started {}: {}", run->pid, run->host, run->started,
                     run->command);
}

// `claim`: that of a run that is, or may be, at work.
[[noreturn]] void refuse(const OutputPaths& paths, const RunFile& claim) {
  const std::string name = name_of(read_claim(claim.path));
  const std::string fact =
      claim.part ? fmt::format("part {} is at work ({}); wait for it, or stop it",
                               text_of(*claim.part), name)
                 : fmt::format(
                       "another run is writing here ({}); wait for it, stop it, or choose "
                       "another output",
                       name);
  throw Error(ErrorCode::kExists, "{}", fact).in_file(paths.output.string());
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

// Returns the state of the run that has a claim, where it shows at once, and sets `renewed` to the
// time of the claim's last touch, by the file system's clock.
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
  // A claim without a name was cut by a crash, or is written just now.
  return age > (other ? renewal.dead : std::min(renewal.dead, kUnnamed)) ? Life::kDead
                                                                         : Life::kUnknown;
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

// One above every run that the whole, or this part, has had.
std::uint32_t next_run(const OutputPaths& paths, const std::optional<JobPart>& part) {
  std::uint32_t last = 0;
  for (const std::string_view suffix : {kClaimSuffix, kJournalSuffix}) {
    for (const RunFile& file : run_files(paths, suffix)) {
      if (file.part == part) last = std::max(last, file.run);
    }
  }
  return last + 1;
}

// Throws when a run is at work that may not be next to this one: parts of one division may, and all
// others exclude one another. Removes claims of dead runs: a run that was asleep then finds its own
// claim gone.
void require_alone(const OutputPaths& paths, const RunName& run, const std::optional<JobPart>& part,
                   const Renewal& renewal) {
  for (const RunFile& claim : run_files(paths, kClaimSuffix)) {
    if (claim.part == part || (claim.part && part && claim.part->n == part->n)) continue;
    if (is_alive(claim.path, run, renewal)) refuse(paths, claim);
    std::error_code ignored;
    fs::remove(claim.path, ignored);
  }
}

}  // namespace

Claim::Claim(Claim&& other) noexcept
    : paths_(std::move(other.paths_)),
      part_(other.part_),
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
  return take_as(paths, run, std::nullopt, true, renewal);
}

Claim Claim::take_part(const OutputPaths& paths, const RunName& run, const JobPart& part,
                       bool resume, const Renewal& renewal) {
  return take_as(paths, run, part, resume, renewal);
}

Claim Claim::take_as(const OutputPaths& paths, const RunName& run,
                     const std::optional<JobPart>& part, bool resume, const Renewal& renewal) {
  Claim claim(paths, part);
  for (int i = 0; i < kAttempts; ++i) {
    if (!claim.try_take(run, resume, renewal)) continue;
    // Ours is there before we look for others: of two that begin at once, one sees the other.
    require_alone(paths, run, part, renewal);
    return claim;
  }
  throw Error(ErrorCode::kExists, "other runs keep starting here (run again later)")
      .in_file(paths.output.string());
}

// False when another run has begun or ended meanwhile.
bool Claim::try_take(const RunName& run, bool resume, const Renewal& renewal) {
  require_own_folders(paths_);
  // The number before the look: of two that find the same dead claim, one can make the next.
  const std::uint32_t number = next_run(paths_, part_);
  std::optional<RunFile> last;
  for (RunFile& claim : run_files(paths_, kClaimSuffix)) {
    if (claim.part == part_) last = std::move(claim);
  }
  if (last && last->run >= number) return false;
  if (last) {
    // Without --resume a part that may still be at work is not taken.
    std::int64_t renewed = 0;
    const bool may_live = resume ? is_alive(last->path, run, renewal)
                                 : fs::exists(last->path) &&
                                       life_of(last->path, run, renewal, renewed) != Life::kDead;
    if (may_live) refuse(paths_, *last);
    if (!resume && fs::exists(last->path)) {
      throw Error(ErrorCode::kExists,
                  "part {} was left by a run that has ended ({}); --resume takes it over",
                  text_of(*part_), name_of(read_claim(last->path)))
          .in_file(paths_.output.string());
    }
  }
  Fd file;
  try {
    const fs::path parent = fs::absolute(paths_.output / ".").parent_path().parent_path();
    if (!fs::exists(parent)) make_folders(parent);
    const Fd lock = lock_parent(parent);
    if (make_folder(paths_.output)) made_output_ = true;
    const Folder output = Folder::open(paths_.output);
    if (part_) (void)output.make(paths_.parts.lexically_relative(paths_.output));
    const Folder claims = output.make(paths_.claims.lexically_relative(paths_.output));
    path_ = run_file(paths_, part_, number, kClaimSuffix);
    file = claims.create(path_.filename(), O_RDWR);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kNotFound) return false;
    throw;
  }
  if (!file.valid()) return false;
  if (part_) {
    journal_ = run_file(paths_, part_, number, kJournalSuffix);
    // Another run began, ended and gave its claim back after we had looked for the number.
    if (fs::exists(journal_)) {
      std::error_code ignored;
      fs::remove(path_, ignored);
      return false;
    }
  }
  next_ = run_file(paths_, part_, number + 1, kClaimSuffix);
  // On the same kernel the lock proves at once that this run is alive. Others hold it for a moment
  // to look at it.
  LockState state = file.try_lock();
  for (int i = 0; i < kAttempts && state == LockState::kHeldElsewhere; ++i) {
    std::this_thread::sleep_for(kPause);
    state = file.try_lock();
  }
  hold(std::move(file), state, run, renewal);
  if (last) {
    std::error_code ignored;
    fs::remove(last->path, ignored);
  }
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
  // A network or FUSE file system keeps it, by another name, in its folder until it is closed.
  file_ = {};
  for (const fs::path& folder : {paths_.claims, paths_.parts, paths_.partial}) remove(folder);
  if (made_output_) remove(output);
  if (fault) throw *fault;
}

void Claim::require_held() const {
  if (is_file(file_, path_) && !fs::exists(next_)) return;
  throw Error(ErrorCode::kMismatch,
              "the claim of this run, {}, was removed or replaced while it was at work: nothing is "
              "published",
              path_.string())
      .in_file(paths_.output.string());
}

}  // namespace ingot::convert
