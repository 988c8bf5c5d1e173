/* Preloaded into ingot by the fault tests: makes system calls fail, or worse, so that a bad disk, a file system without
 * this or that, a machine without memory, and a stop at any point of a job can be met on purpose.
 *
 * INGOT_FAULTS="CALL:WHAT:FROM[:TO];..." counts the calls of a kind from 1 over all threads since main() began, and those
 * FROM to TO (without TO: all from there on) suffer WHAT:
 *   an error, by name (ENOSPC, ...); with EINTR every second call goes through, or none would ever;
 *   SHORT: half of the bytes are read or written (pread, pwrite);
 *   FLIP: a bit of what is written is another (pwrite);
 *   LOSE: nothing is written, and success is reported (pwrite);
 *   STOP: the process stops (SIGSTOP) before the call is made; KILL: it dies (SIGKILL).
 * INGOT_CALLS=FILE: the counts are in this file, whatever the end of the process is, and a program that takes the place of
 * this one goes on with them: a row for each kind, 16 bytes of name and 8 of number.
 * INGOT_DISK=1: a file system in memory says that it is one on a disk, and is used as one.
 * A program that ends itself (abort) or is ended by the C library, or reads where nothing is, says on stderr where: a line `abort: FILE+OFFSET NAME` for each function.
 * INGOT_SILLY=1: as on NFS and FUSE, a file that is removed while this program has it open gets the name .silly-INODE in
 * its folder until it is closed.
 * INGOT_CLOCK=SECONDS: the clock of this host is as much ahead of all others, and of the file system's.
 * CALL: open, opendir (of a folder that is listed or synced), pread, pwrite, fsync, fsyncdir (of a directory), fdatasync, syncfs, fallocate, ftruncate,
 * link, rename, remove (of a file or a folder), mkdir, close, mmap, flock; malloc (each call that asks for memory). */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/types.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

enum {
  kOpen, kPread, kPwrite, kFsync, kFsyncdir, kFdatasync, kSyncfs, kFallocate, kFtruncate, kLink, kRename, kRemove, kMkdir,
  kClose, kMmap, kFlock, kMalloc, kOpendir, kCalls
};
static const char* const call_names[kCalls] = {"open",   "pread",     "pwrite",    "fsync", "fsyncdir", "fdatasync",
                                               "syncfs", "fallocate", "ftruncate", "link",  "rename",   "remove",
                                               "mkdir",  "close",     "mmap",      "flock", "malloc",
                                               "opendir"};

enum { kNothing = 0, kFlip = -1, kLose = -2, kStop = -3, kKill = -4, kShort = -5 };
static const struct {
  const char* name;
  int what;
} faults[] = {{"ENOSPC", ENOSPC}, {"EIO", EIO},       {"EINVAL", EINVAL}, {"EOPNOTSUPP", EOPNOTSUPP}, {"ENOSYS", ENOSYS},
              {"EPERM", EPERM},   {"EINTR", EINTR},   {"ENOLCK", ENOLCK}, {"ENOMEM", ENOMEM},         {"EMFILE", EMFILE},
              {"FLIP", kFlip},    {"LOSE", kLose},    {"STOP", kStop},    {"KILL", kKill},            {"SHORT", kShort}};

static struct Count {
  char name[16];
  atomic_long n;
} own_counts[kCalls], *counts = own_counts;

static struct Fault {
  int call, what;
  long from, to; /* to < 0: no end */
} given[16];
static int n_given = 0;
static int is_counting = 0;

/* Says where the program is, and ends it. */
__attribute__((noreturn)) static void end_here(int number) {
  void* frames[64];
  is_counting = 0;
  const int n = backtrace(frames, sizeof frames / sizeof *frames);
  for (int i = 0; i < n; ++i) {
    Dl_info place;
    if (dladdr(frames[i], &place) != 0)
      dprintf(2, "abort: %s+%#lx %s\n", place.dli_fname, (unsigned long)((char*)frames[i] - (char*)place.dli_fbase),
              place.dli_sname != NULL ? place.dli_sname : "");
  }
  sigset_t none;
  sigemptyset(&none);
  signal(number, SIG_DFL);
  sigprocmask(SIG_SETMASK, &none, NULL);
  raise(number);
  _exit(128 + number);
}
void abort(void) { end_here(SIGABRT); }

static int index_of_call(const char* name) {
  for (int i = 0; i < kCalls; ++i) {
    if (strcmp(name, call_names[i]) == 0) return i;
  }
  abort();
}

static int what_of(const char* name) {
  for (size_t i = 0; i < sizeof faults / sizeof *faults; ++i) {
    if (strcmp(name, faults[i].name) == 0) return faults[i].what;
  }
  abort();
}

__attribute__((constructor)) static void read_environment(void) {
  void* frame[1];
  backtrace(frame, 1); /* The first call loads a library, for which the heap has to be whole. */
  signal(SIGSEGV, end_here);
  signal(SIGABRT, end_here); /* The C library's own ends do not call abort() below. */
  const char* file = getenv("INGOT_CALLS");
  if (file != NULL) {
    const long fd = syscall(SYS_openat, AT_FDCWD, file, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || syscall(SYS_ftruncate, fd, sizeof own_counts) != 0) abort();
    counts = (struct Count*)syscall(SYS_mmap, NULL, sizeof own_counts, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0L);
    if ((void*)counts == MAP_FAILED) abort();
    syscall(SYS_close, fd);
    for (int i = 0; i < kCalls; ++i) strcpy(counts[i].name, call_names[i]);
  }
  const char* spec = getenv("INGOT_FAULTS");
  if (spec == NULL) return;
  char text[512];
  if (strlen(spec) >= sizeof text) abort();
  strcpy(text, spec);
  char *entries = NULL, *fields = NULL;
  for (char* entry = strtok_r(text, ";", &entries); entry != NULL; entry = strtok_r(NULL, ";", &entries)) {
    const char* name = strtok_r(entry, ":", &fields);
    const char* what = strtok_r(NULL, ":", &fields);
    const char* from = strtok_r(NULL, ":", &fields);
    const char* to = strtok_r(NULL, ":", &fields);
    if (name == NULL || what == NULL || from == NULL || n_given == sizeof given / sizeof *given) abort();
    given[n_given++] = (struct Fault){index_of_call(name), what_of(what), atol(from), to != NULL ? atol(to) : -1};
  }
}

/* What this call suffers. */
static int fault_of(int call) {
  if (!is_counting) return kNothing;
  const long n = atomic_fetch_add(&counts[call].n, 1) + 1;
  for (int i = 0; i < n_given; ++i) {
    const struct Fault* fault = &given[i];
    if (fault->call != call || n < fault->from || (fault->to >= 0 && n > fault->to)) continue;
    if (fault->what == EINTR && (n - fault->from) % 2 != 0) return kNothing;
    if (fault->what == kStop) raise(SIGSTOP);
    if (fault->what == kKill) raise(SIGKILL);
    return fault->what == kStop ? kNothing : fault->what;
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

/* Whole pages, as direct writes and reads are made of. */
static size_t half_of(size_t size) { return size >= 8192 ? size / 2 & ~(size_t)4095 : (size + 1) / 2; }

static ssize_t write_at(const char* name, int fd, const void* data, size_t size, off_t offset) {
  const int fault = fault_of(kPwrite);
  if (fault > 0) {
    errno = fault;
    return -1;
  }
  if (fault == kLose) return (ssize_t)size;
  if (fault == kShort) size = half_of(size);
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
static ssize_t read_at(const char* name, int fd, void* data, size_t size, off_t offset) {
  const int fault = fault_of(kPread);
  if (fault > 0) {
    errno = fault;
    return -1;
  }
  if (fault == kShort) size = half_of(size);
  return REAL(ssize_t, name, int, void*, size_t, off_t)(fd, data, size, offset);
}
ssize_t pread(int fd, void* data, size_t size, off_t offset) { return read_at("pread", fd, data, size, offset); }
ssize_t pread64(int fd, void* data, size_t size, off_t offset) { return read_at("pread64", fd, data, size, offset); }

static mode_t mode_of(int flags, va_list arguments) {
  return (flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE ? va_arg(arguments, mode_t) : 0;
}
static int call_of_open(int flags) { return (flags & O_DIRECTORY) != 0 && (flags & O_PATH) == 0 ? kOpendir : kOpen; }
#define OPENS(name)                                                                            \
  int name(const char* path, int flags, ...) {                                                 \
    va_list arguments;                                                                         \
    va_start(arguments, flags);                                                                \
    const mode_t mode = mode_of(flags, arguments);                                             \
    va_end(arguments);                                                                         \
    return fails(call_of_open(flags)) ? -1 : REAL(int, #name, const char*, int, ...)(path, flags, mode); \
  }
#define OPENS_IN(name)                                                                         \
  int name(int folder, const char* path, int flags, ...) {                                     \
    va_list arguments;                                                                         \
    va_start(arguments, flags);                                                                \
    const mode_t mode = mode_of(flags, arguments);                                             \
    va_end(arguments);                                                                         \
    return fails(call_of_open(flags)) ? -1 : REAL(int, #name, int, const char*, int, ...)(folder, path, flags, mode); \
  }
OPENS(open)
OPENS(open64)
OPENS_IN(openat)
OPENS_IN(openat64)
FILE* fopen(const char* path, const char* mode) {
  return fails(kOpen) ? NULL : REAL(FILE*, "fopen", const char*, const char*)(path, mode);
}
FILE* fopen64(const char* path, const char* mode) {
  return fails(kOpen) ? NULL : REAL(FILE*, "fopen64", const char*, const char*)(path, mode);
}
DIR* opendir(const char* path) { return fails(kOpendir) ? NULL : REAL(DIR*, "opendir", const char*)(path); }

/* Files that were removed while they were open. */
static struct Silly {
  dev_t device;
  ino_t inode;
  char path[1024];
} silly[64];
static int n_silly = 0;

static int is_open(const struct stat* file) {
  enum { kMostFds = 256 };
  struct stat other;
  for (int fd = 3; fd < kMostFds; ++fd) {
    if (fstat(fd, &other) == 0 && other.st_dev == file->st_dev && other.st_ino == file->st_ino) return 1;
  }
  return 0;
}

/* True if the file, which is open, got another name in place of being removed. */
static int is_renamed(int folder, const char* path) {
  struct stat file;
  if (getenv("INGOT_SILLY") == NULL || fstatat(folder, path, &file, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(file.st_mode) ||
      !is_open(&file))
    return 0;
  if (n_silly == sizeof silly / sizeof *silly) abort();
  char link[64], holder[512] = "";
  const char* name = strrchr(path, '/');
  if (name != NULL) {
    snprintf(holder, sizeof holder, "%.*s", (int)(name - path), path);
  } else {
    snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
    if (folder == AT_FDCWD || readlink(link, holder, sizeof holder - 1) < 0) abort();
  }
  struct Silly* row = &silly[n_silly++];
  row->device = file.st_dev;
  row->inode = file.st_ino;
  snprintf(row->path, sizeof row->path, "%s/.silly-%lu", holder, (unsigned long)file.st_ino);
  if (REAL(int, "renameat", int, const char*, int, const char*)(folder, path, AT_FDCWD, row->path) != 0) abort();
  return 1;
}

int close(int fd) {
  struct stat file;
  const int is_file = n_silly > 0 && fstat(fd, &file) == 0;
  const int result = REAL(int, "close", int)(fd);
  for (int i = 0; is_file && i < n_silly; ++i) {
    if (silly[i].device == file.st_dev && silly[i].inode == file.st_ino && !is_open(&file))
      REAL(int, "unlink", const char*)(silly[i].path);
  }
  return fails(kClose) ? -1 : result;
}

#define MAPS(name)                                                                                   \
  void* name(void* address, size_t size, int protection, int flags, int fd, off_t offset) {          \
    return fails(kMmap) ? MAP_FAILED                                                                 \
                        : REAL(void*, #name, void*, size_t, int, int, int, off_t)(                   \
                              address, size, protection, flags, fd, offset);                         \
  }
MAPS(mmap)
MAPS(mmap64)

/* Without dlsym, which asks for memory itself. The library calls operators new by these. */
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);
void* malloc(size_t size) { return fails(kMalloc) ? NULL : __libc_malloc(size); }
void* calloc(size_t n, size_t size) { return fails(kMalloc) ? NULL : __libc_calloc(n, size); }
void* realloc(void* old, size_t size) { return fails(kMalloc) ? NULL : __libc_realloc(old, size); }
void* aligned_alloc(size_t alignment, size_t size) { return fails(kMalloc) ? NULL : __libc_memalign(alignment, size); }
void* memalign(size_t alignment, size_t size) { return aligned_alloc(alignment, size); }
int posix_memalign(void** result, size_t alignment, size_t size) {
  void* found = aligned_alloc(alignment, size);
  if (found != NULL) *result = found;
  return found != NULL ? 0 : ENOMEM;
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
int renameat2(int from_folder, const char* from, int to_folder, const char* to, unsigned flags) {
  if (fails(kRename)) return -1;
  return REAL(int, "renameat2", int, const char*, int, const char*, unsigned)(from_folder, from, to_folder, to, flags);
}
int remove(const char* path) {
  if (fails(kRemove)) return -1;
  return is_renamed(AT_FDCWD, path) ? 0 : REAL(int, "remove", const char*)(path);
}
int unlink(const char* path) {
  if (fails(kRemove)) return -1;
  return is_renamed(AT_FDCWD, path) ? 0 : REAL(int, "unlink", const char*)(path);
}
int rmdir(const char* path) { return fails(kRemove) ? -1 : REAL(int, "rmdir", const char*)(path); }
int unlinkat(int folder, const char* path, int flags) {
  if (fails(kRemove)) return -1;
  if (flags == 0 && is_renamed(folder, path)) return 0;
  return REAL(int, "unlinkat", int, const char*, int)(folder, path, flags);
}
int mkdir(const char* path, mode_t mode) { return fails(kMkdir) ? -1 : REAL(int, "mkdir", const char*, mode_t)(path, mode); }
int mkdirat(int folder, const char* path, mode_t mode) {
  return fails(kMkdir) ? -1 : REAL(int, "mkdirat", int, const char*, mode_t)(folder, path, mode);
}
int flock(int fd, int operation) { return fails(kFlock) ? -1 : REAL(int, "flock", int, int)(fd, operation); }

int statfs(const char* path, struct statfs* info) {
  enum { kTmpfs = 0x01021994, kExt4 = 0xef53 };
  const int result = REAL(int, "statfs", const char*, struct statfs*)(path, info);
  if (result == 0 && info->f_type == kTmpfs && getenv("INGOT_DISK") != NULL) info->f_type = kExt4;
  return result;
}

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

static int (*program)(int, char**, char**);
static int counted_program(int argc, char** argv, char** environment) {
  is_counting = 1;
  const int status = program(argc, argv, environment);
  is_counting = 0;
  return status;
}
int __libc_start_main(int (*main)(int, char**, char**), int argc, char** argv, void (*init)(void), void (*fini)(void),
                      void (*end)(void), void* stack) {
  program = main;
  return REAL(int, "__libc_start_main", int (*)(int, char**, char**), int, char**, void (*)(void), void (*)(void),
              void (*)(void), void*)(counted_program, argc, argv, init, fini, end, stack);
}
