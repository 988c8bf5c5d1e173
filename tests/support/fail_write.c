/* Preloaded into ingot by the fault tests: makes the N-th positional write fail with ENOSPC, so that a full disk can
 * be met at every point of a job. INGOT_FAIL_WRITE=N counts pwrite calls from 1 over all threads. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/types.h>

static atomic_long calls;

static int fails_now(void) {
  const char* limit = getenv("INGOT_FAIL_WRITE");
  return limit != NULL && atomic_fetch_add(&calls, 1) + 1 >= atol(limit);
}

ssize_t pwrite(int fd, const void* data, size_t size, off_t offset) {
  if (fails_now()) {
    errno = ENOSPC;
    return -1;
  }
  ssize_t (*real)(int, const void*, size_t, off_t) = (ssize_t(*)(int, const void*, size_t, off_t))dlsym(RTLD_NEXT, "pwrite");
  return real(fd, data, size, offset);
}

ssize_t pwrite64(int fd, const void* data, size_t size, off_t offset) { return pwrite(fd, data, size, offset); }
