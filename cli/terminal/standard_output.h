#pragma once

#include <array>
#include <streambuf>

namespace ingot::cli {

/// Connects a stream to a descriptor, and remembers why it failed: a stream by itself keeps only
/// the fact, when errno is long that of another call. Text for a terminal is shown at once.
class StandardOutput : public std::streambuf {
 public:
  explicit StandardOutput(int descriptor);

  /// errno of the first write that failed; 0 when none did.
  [[nodiscard]] int failure() const { return failure_; }

 protected:
  int_type overflow(int_type next) override;
  std::streamsize xsputn(const char* text, std::streamsize n) override;
  int sync() override;

 private:
  /// False when it cannot be written, or something before could not.
  bool write(const char* text, std::size_t n);

  int descriptor_;
  bool is_terminal_;
  int failure_ = 0;
  std::array<char, 1 << 16> buffer_{};
};

}  // namespace ingot::cli
