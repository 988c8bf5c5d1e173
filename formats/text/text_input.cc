#include "formats/text/text_input.h"

#include <array>
#include <cerrno>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "formats/base/error.h"
#include "formats/base/fd.h"

namespace ingot {
namespace {

// Closes files that it opened; the standard input stays open.
class Input {
 public:
  explicit Input(const std::filesystem::path& path) : path_(path.string()) {
    // Standard input is not opened by its name: that fails where it is a socket, as under sshd.
    if (path == kStandardInput) return;
    do {
      fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    } while (fd_ < 0 && errno == EINTR);
    if (fd_ < 0) throw system_error(errno, "open for reading", path_);
  }
  ~Input() {
    if (fd_ != STDIN_FILENO) ::close(fd_);
  }
  Input(const Input&) = delete;
  Input& operator=(const Input&) = delete;

  [[nodiscard]] std::string read(std::uint64_t max_bytes) const {
    std::string text;
    std::array<char, 65536> piece;
    for (;;) {
      const ssize_t n = ::read(fd_, piece.data(), piece.size());
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) throw system_error(errno, "read", path_);
      if (n == 0) return text;
      text.append(piece.data(), static_cast<std::size_t>(n));
      if (text.size() > max_bytes) {
        throw Error(ErrorCode::kLimit, "has more than the {} bytes that are read", max_bytes)
            .in_file(path_);
      }
    }
  }

 private:
  int fd_ = STDIN_FILENO;
  std::string path_;
};

}  // namespace

std::string read_text_input(const std::filesystem::path& path, std::uint64_t max_bytes) {
  std::error_code failure;
  const bool is_fifo =
      std::filesystem::status(path, failure).type() == std::filesystem::file_type::fifo;
  if (is_fifo || is_nameless_input(path)) return Input(path).read(max_bytes);
  return read_text_file(path, max_bytes);
}

bool is_nameless_input(const std::filesystem::path& path) {
  const std::string name = path.string();
  return name == kStandardInput || name.starts_with("/dev/fd/") ||
         name.starts_with("/proc/self/fd/");
}

}  // namespace ingot
