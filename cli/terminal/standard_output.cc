#include "cli/terminal/standard_output.h"

#include <cerrno>
#include <cstring>

#include <unistd.h>

#include "formats/base/fd.h"

namespace ingot::cli {

StandardOutput::StandardOutput(int descriptor)
    : descriptor_(descriptor), is_terminal_(::isatty(descriptor) == 1) {
  setp(buffer_.data(), buffer_.data() + buffer_.size());
}

bool StandardOutput::write(const char* text, std::size_t n) {
  while (n > 0 && failure_ == 0) {
    const ssize_t written = uninterrupted([&] { return ::write(descriptor_, text, n); });
    if (written < 0) {
      failure_ = errno;
    } else {
      text += written;
      n -= static_cast<std::size_t>(written);
    }
  }
  return failure_ == 0;
}

int StandardOutput::sync() {
  const bool is_written = write(pbase(), static_cast<std::size_t>(pptr() - pbase()));
  setp(buffer_.data(), buffer_.data() + buffer_.size());
  return is_written ? 0 : -1;
}

StandardOutput::int_type StandardOutput::overflow(int_type next) {
  if (sync() != 0) return traits_type::eof();
  if (traits_type::eq_int_type(next, traits_type::eof())) return traits_type::not_eof(next);
  const char one = traits_type::to_char_type(next);
  return xsputn(&one, 1) == 1 ? next : traits_type::eof();
}

std::streamsize StandardOutput::xsputn(const char* text, std::streamsize n) {
  if (epptr() - pptr() < n && sync() != 0) return 0;
  if (epptr() - pptr() < n) return write(text, static_cast<std::size_t>(n)) ? n : 0;
  std::memcpy(pptr(), text, static_cast<std::size_t>(n));
  pbump(static_cast<int>(n));
  return !is_terminal_ || sync() == 0 ? n : 0;
}

}  // namespace ingot::cli
