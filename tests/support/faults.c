/* Preloaded into ingot by the fault tests: makes system calls fail, or worse, so that a bad disk, a file system without
 * this or that, and a stop at any point of a job can be met on purpose.
 *
 * INGOT_FAULTS="CALL:WHAT:FROM[:TO];..." counts the calls of a kind from 1 over all threads, and those FROM to TO (without
 * TO: all from there on) suffer WHAT:
 *   an error, by name (ENOSPC, ...); with EINTR every second call goes through, or none would ever;
 *   FLIP: a bit of what is written is another (pwrite);
 *   LOSE: nothing is written, and success is reported (pwrite);
 *   STOP: the process stops (SIGSTOP) before the call is made; KILL: it dies (SIGKILL).
 * INGOT_CLOCK=SECONDS: the clock of this host is as much ahead of all others, and of the file system's.
 * CALL: open, pread, pwrite, fsync, fsyncdir (of a directory), fdatasync, syncfs, fallocate, ftruncate, link, rename, remove
 * (of a file or a folder), flock. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/types.h>
#include <time.h>

enum { kOpen, kPread, kPwrite, kFsync, kFsyncdir, kFdatasync, kSyncfs, kFallocate, kFtruncate, kLink, kRename, kRemove, kFlock, kCalls };
static const char* const call_names[kCalls] = {"open",   "pread",     "pwrite",    "fsync", "fsyncdir", "fdatasync",
                                               "syncfs", "fallocate", "ftruncate", "link",  "rename",   "remove", "flock"};
static atomic_long counts[kCalls];

enum { kNothing = 0, kFlip = -1, kLose = -2, kStop = -3, kKill = -4 };
static const struct {
  const char* name;
  int what;
} faults[] = {{"ENOSPC", ENOSPC}, {"EIO", EIO},       {"EINVAL", EINVAL}, {"EOPNOTSUPP", EOPNOTSUPP}, {"ENOSYS", ENOSYS}, {"EPERM", EPERM},
              {"EINTR", EINTR},   {"ENOLCK", ENOLCK}, {"FLIP", kFlip},    {"LOSE", kLose},            {"STOP", kStop},          {"KILL", kKill}};

/* What this call suffers. */
static int fault_of(int call) {
  const char* spec = getenv("INGOT_FAULTS");
  if (spec == NULL) return kNothing;
  const long n = atomic_fetch_add(&counts[call], 1) + 1;
  char text[512];
  strncpy(text, spec, sizeof text - 1);
  text[sizeof text - 1] = '\0';
  char *entries = NULL, *fields = NULL;
  for (char* entry = strtok_r(text, ";", &entries); entry != NULL; entry = strtok_r(NULL, ";", &entries)) {
    const char* name = strtok_r(entry, ":", &fields);
    const char* what = strtok_r(NULL, ":", &fields);
    const char* from = strtok_r(NULL, ":", &fields);
    const char* to = strtok_r(NULL, ":", &fields);
    if (name == NULL || what == NULL || from == NULL) abort();
    if (strcmp(name, call_names[call]) != 0 || n < atol(from) || (to != NULL && n > atol(to))) continue;
    for (size_t i = 0; i < sizeof faults / sizeof *faults; ++i) {
      if (strcmp(what, faults[i].name) != 0) continue;
      if (faults[i].what == EINTR && n % 2 == 0) return kNothing;
      if (faults[i].what == kStop) raise(SIGSTOP);
      if (faults[i].what == kKill) raise(SIGKILL);
      return faults[i].what == kStop ? kNothing : faults[i].what;
    }
    abort();
  }
  return kNothing;
}

static int fails(int call) {
  const int fault = fault_of(call);
  if (fault <= 0) return 0;
  errno = fault;
  return 1;
}

#define REAL(type, name, ...) ((type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, name))

static ssize_t write_at(const char* name, int fd, const void* data, size_t size, off_t offset) {
  const int fault = fault_of(kPwrite);
  if (fault > 0) {
    errno = fault;
    return -1;
  }
  if (fault == kLose) return (ssize_t)size;
  if (fault != kFlip) return REAL(ssize_t, name, int, const void*, size_t, off_t)(fd, data, size, offset);
  void* copy = NULL;
  if (size == 0 || posix_memalign(&copy, 4096, size) != 0) abort();
  memcpy(copy, data, size);
  ((unsigned char*)copy)[size / 2] ^= 1;
  const ssize_t n = REAL(ssize_t, name, int, const void*, size_t, off_t)(fd, copy, size, offset);
  free(copy);
  return n;
}

ssize_t pwrite(int fd, const void* data, size_t size, off_t offset) { return write_at("pwrite", fd, data, size, offset); }
ssize_t pwrite64(int fd, const void* data, size_t size, off_t offset) { return write_at("pwrite64", fd, data, size, offset); }
ssize_t pread(int fd, void* data, size_t size, off_t offset) {
  return fails(kPread) ? -1 : REAL(ssize_t, "pread", int, void*, size_t, off_t)(fd, data, size, offset);
}
ssize_t pread64(int fd, void* data, size_t size, off_t offset) {
  return fails(kPread) ? -1 : REAL(ssize_t, "pread64", int, void*, size_t, off_t)(fd, data, size, offset);
}

static int open_at(const char* name, const char* path, int flags, mode_t mode) {
  return fails(kOpen) ? -1 : REAL(int, name, const char*, int, ...)(path, flags, mode);
}
static mode_t mode_of(int flags, va_list arguments) { return (flags & O_CREAT) != 0 ? va_arg(arguments, mode_t) : 0; }

int open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_of(flags, arguments);
  va_end(arguments);
  return open_at("open", path, flags, mode);
}
int open64(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_of(flags, arguments);
  va_end(arguments);
  return open_at("open64", path, flags, mode);
}

int fsync(int fd) {
  struct stat info;
  const int is_directory = fstat(fd, &info) == 0 && S_ISDIR(info.st_mode);
  return fails(is_directory ? kFsyncdir : kFsync) ? -1 : REAL(int, "fsync", int)(fd);
}
int fdatasync(int fd) { return fails(kFdatasync) ? -1 : REAL(int, "fdatasync", int)(fd); }
int syncfs(int fd) { return fails(kSyncfs) ? -1 : REAL(int, "syncfs", int)(fd); }
int fallocate(int fd, int mode, off_t offset, off_t size) {
  return fails(kFallocate) ? -1 : REAL(int, "fallocate", int, int, off_t, off_t)(fd, mode, offset, size);
}
int fallocate64(int fd, int mode, off_t offset, off_t size) {
  return fails(kFallocate) ? -1 : REAL(int, "fallocate64", int, int, off_t, off_t)(fd, mode, offset, size);
}
int ftruncate(int fd, off_t size) { return fails(kFtruncate) ? -1 : REAL(int, "ftruncate", int, off_t)(fd, size); }
int ftruncate64(int fd, off_t size) { return fails(kFtruncate) ? -1 : REAL(int, "ftruncate64", int, off_t)(fd, size); }
int link(const char* from, const char* to) { return fails(kLink) ? -1 : REAL(int, "link", const char*, const char*)(from, to); }
int rename(const char* from, const char* to) { return fails(kRename) ? -1 : REAL(int, "rename", const char*, const char*)(from, to); }
int renameat(int from_folder, const char* from, int to_folder, const char* to) {
  return fails(kRename) ? -1 : REAL(int, "renameat", int, const char*, int, const char*)(from_folder, from, to_folder, to);
}
int remove(const char* path) { return fails(kRemove) ? -1 : REAL(int, "remove", const char*)(path); }
int unlink(const char* path) { return fails(kRemove) ? -1 : REAL(int, "unlink", const char*)(path); }
int rmdir(const char* path) { return fails(kRemove) ? -1 : REAL(int, "rmdir", const char*)(path); }
int unlinkat(int folder, const char* path, int flags) {
  return fails(kRemove) ? -1 : REAL(int, "unlinkat", int, const char*, int)(folder, path, flags);
}
int flock(int fd, int operation) { return fails(kFlock) ? -1 : REAL(int, "flock", int, int)(fd, operation); }

static time_t clock_lead(void) {
  const char* lead = getenv("INGOT_CLOCK");
  return lead != NULL ? atol(lead) : 0;
}
int clock_gettime(clockid_t clock, struct timespec* now) {
  const int result = REAL(int, "clock_gettime", clockid_t, struct timespec*)(clock, now);
  if (result == 0 && clock == CLOCK_REALTIME) now->tv_sec += clock_lead();
  return result;
}
int gettimeofday(struct timeval* restrict now, void* restrict zone) {
  const int result = REAL(int, "gettimeofday", struct timeval*, void*)(now, zone);
  if (result == 0) now->tv_sec += clock_lead();
  return result;
}
time_t time(time_t* now) {
  const time_t result = REAL(time_t, "time", time_t*)(NULL) + clock_lead();
  if (now != NULL) *now = result;
  return result;
}
