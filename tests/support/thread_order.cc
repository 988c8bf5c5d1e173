// Threads in a drawn order.
//
// The problem: a fault that shows only when one thread overtakes another at one place is met once
// in thousands of runs, and never again when somebody looks for it.
//
// The choice: functions of the C library by which threads wait for each other and change files are
// defined here, in the executable of the tests, where the standard library finds them first. A
// thread that calls one hands over its turn: a generator with a seed draws who has it next among
// those that do not wait. No other thread runs meanwhile, so the same seed gives the same order.
// Locks, waits and the clock are those of the harness. When all threads wait, one that waits for a
// time goes on; when there is none, the program ends and says who waits: that is a deadlock.
//
// A power cut is drawn as well: the process ends at a point, and each range that was written and
// not synced is filled with zeros or not.
//
// Rejected: a hook in formats/base/parallel.h. It would have to reach each mutex and each wait of
// the product, or a thread that waits would keep its turn for ever.
//
// The cost: a change of threads at each such call. Atomics are no points: the sanitizer of threads
// (preset tsan) judges them. oneTBB is not held to the order, so that the executable has a
// parallel.cc of its own, built with INGOT_THREADS_STD.

#include "tests/support/thread_order.h"

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <exception>

#include <dlfcn.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/futex.h>
#include <pthread.h>
#include <semaphore.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

namespace ingot::testing {

struct ThreadOrder::Thread {
  std::uint64_t id = 0;
  std::uint64_t weight = 1;  // how often it is drawn
  pthread_t handle{};
  sem_t turn{};
  bool has_ended = false;
  const void* waits_for = nullptr;  // a mutex, a condition, a thread, an address; null: for nothing
  bool has_deadline = false;
  std::uint64_t deadline_ns = 0;
  bool is_late = false;  // its deadline ended the last wait

  [[nodiscard]] bool can_go_on() const { return !has_ended && waits_for == nullptr; }
};

namespace {

constexpr std::uint64_t kSecond = 1'000'000'000;
constexpr std::uint64_t kMostSeconds = 10'000'000'000;

ThreadOrder* active = nullptr;

std::uint64_t ns_of(const timespec& time) {
  const auto seconds = static_cast<std::uint64_t>(std::max<time_t>(time.tv_sec, 0));
  return std::min(seconds, kMostSeconds) * kSecond + static_cast<std::uint64_t>(time.tv_nsec);
}

}  // namespace

// The function of the C library in whose place one of this file is.
#define INGOT_NEXT(name)                                                                         \
  [] {                                                                                           \
    static const auto function = reinterpret_cast<decltype(&::name)>(::dlsym(RTLD_NEXT, #name)); \
    return function;                                                                             \
  }()

// What the functions at the end of this file do for a thread of the order.
struct Points {
  using Thread = ThreadOrder::Thread;
  static inline thread_local Thread* current = nullptr;

  static void point() { active->point(); }
  static std::uint64_t now() { return active->now_ns_; }

  // True if this write or sync fails, with EIO.
  static bool fails(const char* call, int fd) {
    point();
    if (++active->n_changes_ != active->options_.fail_at) return false;
    char name[PATH_MAX] = {};
    const std::string link = "/proc/self/fd/" + std::to_string(fd);
    (void)!::readlink(link.c_str(), name, sizeof name - 1);
    active->failed_ = std::string(call) + " of " + name;
    errno = EIO;
    return true;
  }

  struct Start {
    Thread* thread;
    void* (*routine)(void*);
    void* argument;
  };

  static void* run(void* start) {
    const Start begun = *static_cast<Start*>(start);
    delete static_cast<Start*>(start);
    current = begun.thread;
    while (::sem_wait(&current->turn) != 0) continue;
    void* const result = begun.routine(begun.argument);
    current->has_ended = true;
    active->wake_all(current);
    Thread* const ended = std::exchange(current, nullptr);
    (void)ended;
    active->go_on();
    return result;
  }

  static int create(pthread_t* handle, const pthread_attr_t* attributes, void* (*routine)(void*),
                    void* argument) {
    Thread& thread = active->add_thread();
    auto* const start = new Start{&thread, routine, argument};
    const int failure = INGOT_NEXT(pthread_create)(&thread.handle, attributes, run, start);
    if (failure != 0) {
      delete start;
      thread.has_ended = true;
      return failure;
    }
    *handle = thread.handle;
    point();
    return 0;
  }

  static void join(pthread_t handle) {
    point();
    // The last one of this handle: the system gives it again.
    const auto& threads = active->threads_;
    const auto found = std::find_if(threads.rbegin(), threads.rend(),
                                    [&](const auto& thread) { return thread->handle == handle; });
    if (found == threads.rend()) return;
    const Thread& thread = **found;
    while (!thread.has_ended) active->wait(&thread, nullptr);
  }

  static int lock(pthread_mutex_t* mutex) {
    while (true) {
      const int result = INGOT_NEXT(pthread_mutex_trylock)(mutex);
      if (result != EBUSY) return result;
      active->wait(mutex, nullptr);
    }
  }

  static int unlock(pthread_mutex_t* mutex) {
    const int result = INGOT_NEXT(pthread_mutex_unlock)(mutex);
    active->wake_all(mutex);
    return result;
  }

  static int wait(pthread_cond_t* condition, pthread_mutex_t* mutex,
                  const std::uint64_t* deadline_ns) {
    unlock(mutex);
    active->wait(condition, deadline_ns);
    const bool is_late = current->is_late;
    const int result = lock(mutex);
    return result == 0 && is_late ? ETIMEDOUT : result;
  }

  static void sleep_until(std::uint64_t deadline_ns) { active->wait(current, &deadline_ns); }

  // True if the call is one that the order makes in its own way.
  static bool futex(int* address, int operation, int value) {
    const int what = operation & FUTEX_CMD_MASK;
    if (what == FUTEX_WAIT || what == FUTEX_WAIT_BITSET) {
      point();
      if (__atomic_load_n(address, __ATOMIC_SEQ_CST) == value) active->wait(address, nullptr);
      return true;
    }
    if (what == FUTEX_WAKE) active->wake_all(address);
    return false;
  }

  static void signal(pthread_cond_t* condition, bool all) {
    all ? active->wake_all(condition) : active->wake_one(condition);
    point();
  }

  static void wrote(int fd, std::uint64_t offset, std::uint64_t n_bytes) {
    struct stat info {};
    if (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) return;
    ThreadOrder::Unsynced& file = active->unsynced_[{info.st_dev, info.st_ino}];
    if (file.fd < 0) file.fd = ::fcntl(fd, F_DUPFD_CLOEXEC, 0);
    file.ranges.emplace_back(offset, n_bytes);
  }

  static void synced(int fd) {
    struct stat info {};
    if (::fstat(fd, &info) != 0) return;
    const ThreadOrder::Inode inode{info.st_dev, info.st_ino};
    active->forget_synced(&inode);
  }
  static void synced_all() { active->forget_synced(nullptr); }

  static bool direct_io() { return active->options_.direct_io; }
};

ThreadOrder::ThreadOrder(const Options& options) : options_(options), random_(options.seed) {
  // Some orders change the thread at almost each point, others seldom.
  constexpr std::uint64_t kSwitches[] = {1, 4, 16, 64};
  switch_once_in_ = kSwitches[draw(std::size(kSwitches))];
  active = this;
  Points::current = &add_thread();
}

ThreadOrder::~ThreadOrder() {
  const bool all_ended = std::all_of(threads_.begin() + 1, threads_.end(),
                                     [](const auto& thread) { return thread->has_ended; });
  if (!all_ended) {
    std::fprintf(stderr, "threads outlive their order (seed %llu)\n",
                 static_cast<unsigned long long>(options_.seed));
    std::abort();
  }
  Points::current = nullptr;
  active = nullptr;
  for (const auto& thread : threads_) ::sem_destroy(&thread->turn);
  forget_synced(nullptr);
}

ThreadOrder::Thread& ThreadOrder::add_thread() {
  // A thread of a small weight is overtaken all the time.
  constexpr std::uint64_t kWeights[] = {1, 8, 64};
  Thread& thread = *threads_.emplace_back(std::make_unique<Thread>());
  thread.id = threads_.size();
  thread.weight = kWeights[draw(std::size(kWeights))];
  ::sem_init(&thread.turn, 0, 0);
  return thread;
}

// The thread that calls may lose its turn.
void ThreadOrder::point() {
  ++n_points_;
  if (n_points_ == options_.cut_at) cut();
  // Mostly less than a millisecond; now and then longer than what is done in intervals.
  now_ns_ += draw(32) == 0 ? draw(kSecond / 2) : draw(kSecond / 10'000);
  for (const auto& thread : threads_) {
    if (thread->waits_for == nullptr || !thread->has_deadline) continue;
    if (thread->deadline_ns > now_ns_) continue;
    thread->waits_for = nullptr;
    thread->is_late = true;
  }
  if (draw(switch_once_in_) == 0) go_on();
}

void ThreadOrder::wait(const void* what, const std::uint64_t* deadline_ns) {
  Thread& self = *Points::current;
  self.waits_for = what;
  self.is_late = false;
  self.has_deadline = deadline_ns != nullptr;
  if (deadline_ns != nullptr) self.deadline_ns = *deadline_ns;
  go_on();
}

void ThreadOrder::wake_all(const void* what) {
  for (const auto& thread : threads_) {
    if (thread->waits_for == what) thread->waits_for = nullptr;
  }
}

void ThreadOrder::wake_one(const void* what) {
  std::vector<Thread*> waiting;
  for (const auto& thread : threads_) {
    if (thread->waits_for == what) waiting.push_back(thread.get());
  }
  if (!waiting.empty()) waiting[draw(waiting.size())]->waits_for = nullptr;
}

// Gives the turn to a thread that can go on, which may be the one that calls.
void ThreadOrder::go_on() {
  std::uint64_t sum = 0;
  Thread* soonest = nullptr;
  for (const auto& thread : threads_) {
    if (thread->can_go_on()) sum += thread->weight;
    const bool may_be_late = !thread->has_ended && thread->waits_for && thread->has_deadline;
    if (may_be_late && (!soonest || thread->deadline_ns < soonest->deadline_ns))
      soonest = thread.get();
  }
  Thread* chosen = nullptr;
  if (sum > 0) {
    std::uint64_t left = draw(sum);
    for (const auto& thread : threads_) {
      if (!thread->can_go_on()) continue;
      chosen = thread.get();
      if (left < thread->weight) break;
      left -= thread->weight;
    }
  } else if (soonest != nullptr) {
    now_ns_ = std::max(now_ns_, soonest->deadline_ns);
    soonest->waits_for = nullptr;
    soonest->is_late = true;
    chosen = soonest;
  } else {
    std::fprintf(stderr, "no thread can go on (seed %llu, point %llu):",
                 static_cast<unsigned long long>(options_.seed),
                 static_cast<unsigned long long>(n_points_));
    for (const auto& thread : threads_) {
      if (!thread->has_ended)
        std::fprintf(stderr, " %llu", static_cast<unsigned long long>(thread->id));
    }
    std::fprintf(stderr, " wait\n");
    std::abort();
  }
  trace_ = (trace_ ^ chosen->id) * 0x100000001B3U + n_points_;
  Thread* const self = Points::current;
  if (chosen == self) return;
  ::sem_post(&chosen->turn);
  if (self == nullptr) return;
  while (::sem_wait(&self->turn) != 0) continue;
}

bool ThreadOrder::is_synced(const std::filesystem::path& file, std::uint64_t offset,
                            std::uint64_t n_bytes) const {
  struct stat info {};
  if (::stat(file.c_str(), &info) != 0) return false;
  const auto found = unsynced_.find({info.st_dev, info.st_ino});
  if (found == unsynced_.end()) return true;
  return std::none_of(
      found->second.ranges.begin(), found->second.ranges.end(), [&](const auto& range) {
        return range.first < offset + n_bytes && offset < range.first + range.second;
      });
}

void ThreadOrder::forget_synced(const Inode* file) {
  std::erase_if(unsynced_, [&](const auto& entry) {
    if (file != nullptr && entry.first != *file) return false;
    ::close(entry.second.fd);
    return true;
  });
}

void ThreadOrder::cut() {
  for (const auto& [inode, file] : unsynced_) {
    for (const auto& [offset, n_bytes] : file.ranges) {
      if (draw(2) == 0) continue;
      const std::vector<char> zeros(n_bytes);
      if (INGOT_NEXT(pwrite)(file.fd, zeros.data(), n_bytes, static_cast<off_t>(offset)) < 0)
        std::abort();
    }
  }
  ::_exit(kCut);
}

bool is_cut(const ThreadOrder::Options& options, const std::function<void()>& action) {
  const pid_t process = ::fork();
  if (process == 0) {
    try {
      const ThreadOrder order(options);
      action();
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
    std::fflush(stdout);
    ::_exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  while (::waitpid(process, &status, 0) < 0) continue;
  if (WIFEXITED(status) && WEXITSTATUS(status) == ThreadOrder::kCut) return true;
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0)
      << "ends with status " << status << " (seed " << options.seed << ", power cut at "
      << options.cut_at << ")";
  return false;
}

}  // namespace ingot::testing

// In place of the C library's, in the executable of these tests. Threads of no order call those.

using ingot::testing::ns_of;
using ingot::testing::Points;

extern "C" {

int pthread_create(pthread_t* handle, const pthread_attr_t* attributes, void* (*routine)(void*),
                   void* argument) noexcept {
  return Points::current ? Points::create(handle, attributes, routine, argument)
                         : INGOT_NEXT(pthread_create)(handle, attributes, routine, argument);
}

int pthread_join(pthread_t handle, void** result) {
  if (Points::current) Points::join(handle);
  return INGOT_NEXT(pthread_join)(handle, result);
}

int pthread_mutex_lock(pthread_mutex_t* mutex) noexcept {
  if (!Points::current) return INGOT_NEXT(pthread_mutex_lock)(mutex);
  Points::point();
  return Points::lock(mutex);
}

int pthread_mutex_trylock(pthread_mutex_t* mutex) noexcept {
  if (Points::current) Points::point();
  return INGOT_NEXT(pthread_mutex_trylock)(mutex);
}

int pthread_mutex_unlock(pthread_mutex_t* mutex) noexcept {
  if (!Points::current) return INGOT_NEXT(pthread_mutex_unlock)(mutex);
  const int result = Points::unlock(mutex);
  Points::point();
  return result;
}

int pthread_cond_wait(pthread_cond_t* condition, pthread_mutex_t* mutex) {
  return Points::current ? Points::wait(condition, mutex, nullptr)
                         : INGOT_NEXT(pthread_cond_wait)(condition, mutex);
}

int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                           const timespec* deadline) {
  if (!Points::current)
    return INGOT_NEXT(pthread_cond_clockwait)(condition, mutex, clock, deadline);
  if (clock != CLOCK_MONOTONIC) return EINVAL;
  const std::uint64_t deadline_ns = ns_of(*deadline);
  return Points::wait(condition, mutex, &deadline_ns);
}

int pthread_cond_timedwait(pthread_cond_t* condition, pthread_mutex_t* mutex,
                           const timespec* deadline) {
  if (!Points::current) return INGOT_NEXT(pthread_cond_timedwait)(condition, mutex, deadline);
  timespec now{};
  INGOT_NEXT(clock_gettime)(CLOCK_REALTIME, &now);
  const std::uint64_t left = ns_of(*deadline) - std::min(ns_of(now), ns_of(*deadline));
  const std::uint64_t deadline_ns = Points::now() + left;
  return Points::wait(condition, mutex, &deadline_ns);
}

int pthread_cond_signal(pthread_cond_t* condition) noexcept {
  if (!Points::current) return INGOT_NEXT(pthread_cond_signal)(condition);
  Points::signal(condition, false);
  return 0;
}

int pthread_cond_broadcast(pthread_cond_t* condition) noexcept {
  if (!Points::current) return INGOT_NEXT(pthread_cond_broadcast)(condition);
  Points::signal(condition, true);
  return 0;
}

int nanosleep(const timespec* duration, timespec* rest) {
  if (!Points::current) return INGOT_NEXT(nanosleep)(duration, rest);
  Points::sleep_until(Points::now() + ns_of(*duration));
  return 0;
}

int clock_gettime(clockid_t clock, timespec* now) noexcept {
  if (!Points::current || clock != CLOCK_MONOTONIC) return INGOT_NEXT(clock_gettime)(clock, now);
  now->tv_sec = static_cast<time_t>(Points::now() / ingot::testing::kSecond);
  now->tv_nsec = static_cast<long>(Points::now() % ingot::testing::kSecond);
  return 0;
}

// The standard library waits for futures, and for static variables that another thread makes, by
// this call.
long syscall(long number, ...) noexcept {
  long arguments[6];
  va_list list;
  va_start(list, number);
  for (long& argument : arguments) argument = va_arg(list, long);
  va_end(list);
  if (Points::current && number == SYS_futex &&
      Points::futex(reinterpret_cast<int*>(arguments[0]), static_cast<int>(arguments[1]),
                    static_cast<int>(arguments[2])))
    return 0;
  return INGOT_NEXT(syscall)(number, arguments[0], arguments[1], arguments[2], arguments[3],
                             arguments[4], arguments[5]);
}

ssize_t pread(int fd, void* data, std::size_t size, off_t offset) {
  if (Points::current) Points::point();
  return INGOT_NEXT(pread)(fd, data, size, offset);
}

ssize_t pwrite(int fd, const void* data, std::size_t size, off_t offset) {
  if (Points::current && Points::fails("pwrite", fd)) return -1;
  const ssize_t n = INGOT_NEXT(pwrite)(fd, data, size, offset);
  if (Points::current && n > 0)
    Points::wrote(fd, static_cast<std::uint64_t>(offset), static_cast<std::uint64_t>(n));
  return n;
}

// No test waits for the disk (tests/support/no_sync.cc).
static int sync_file(const char* call, int fd, bool all) {
  if (Points::current && Points::fails(call, fd)) return -1;
  if (::fcntl(fd, F_GETFD) < 0) return -1;
  if (Points::current) all ? Points::synced_all() : Points::synced(fd);
  if (Points::current) Points::point();
  return 0;
}

int fsync(int fd) {
  return sync_file("fsync", fd, false);
}

int fdatasync(int fd) {
  return sync_file("fdatasync", fd, false);
}

int syncfs(int fd) noexcept {
  return sync_file("syncfs", fd, true);
}

int renameat(int from_folder, const char* from, int to_folder, const char* to) noexcept {
  if (Points::current) Points::point();
  return INGOT_NEXT(renameat)(from_folder, from, to_folder, to);
}

int unlink(const char* path) noexcept {
  if (Points::current) Points::point();
  return INGOT_NEXT(unlink)(path);
}

// A file system in memory takes no direct writes, and the product does not try it there.
int openat(int folder, const char* path, int flags, ...) {
  va_list list;
  va_start(list, flags);
  const bool has_mode = (flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE;
  const mode_t mode = has_mode ? va_arg(list, mode_t) : 0;
  va_end(list);
  if (Points::current) Points::point();
  if (Points::current && Points::direct_io()) flags &= ~O_DIRECT;
  return INGOT_NEXT(openat)(folder, path, flags, mode);
}

int statfs(const char* path, struct statfs* info) noexcept {
  constexpr auto kExt4 = 0xEF53;
  const int result = INGOT_NEXT(statfs)(path, info);
  if (Points::current && Points::direct_io()) info->f_type = kExt4;
  return result;
}

}  // extern "C"
