#include <fcntl.h>
#include <unistd.h>

// In place of the C library's, in executables of tests: whether bytes have reached the disk shows
// after a power cut only, and the waits for it were most of the time that the tests took. A bad
// descriptor is an error as before.

extern "C" {

int fsync(int fd) {
  return ::fcntl(fd, F_GETFD) < 0 ? -1 : 0;
}

int fdatasync(int fd) {
  return ::fcntl(fd, F_GETFD) < 0 ? -1 : 0;
}

int syncfs(int fd) noexcept {
  return ::fcntl(fd, F_GETFD) < 0 ? -1 : 0;
}

}  // extern "C"
