#pragma once

#include <iosfwd>
#include <mutex>
#include <streambuf>
#include <string>
#include <string_view>

namespace ingot::cli {

/// The ends of bold text on their way through a GuardedBuffer. No UTF-8 has these bytes, so
/// printable() leaves none of them in a stranger's text.
inline constexpr std::string_view kBoldOn = "\xfe", kBoldOff = "\xff";

/// Passes text on as printable_page() has it, so that names and messages of a checkpoint, and a
/// model's text, cannot steer a terminal. A character may come in several writes. Writes are safe
/// from many threads. A line that begins with the word of an error, a warning or a verdict has this
/// word in its colour, where colours are shown; the word comes in one write.
class GuardedBuffer final : public std::streambuf {
 public:
  /// `to` must outlive this. `is_styled`: colours are shown, and kBoldOn and kBoldOff become those
  /// of a terminal.
  GuardedBuffer(std::streambuf& to, bool is_styled) : to_(to), is_styled_(is_styled) {}

  /// Bytes as they are, after all that was written before.
  bool write_raw(std::string_view bytes);

 protected:
  int_type overflow(int_type c) override;
  std::streamsize xsputn(const char* bytes, std::streamsize n) override;
  int sync() override;

 private:
  bool put(std::string_view text);
  bool put_lines(std::string_view text);
  bool put_open();

  std::streambuf& to_;
  bool is_styled_, is_at_line_start_ = true;
  std::mutex mutex_;
  std::string open_;  // of a character that the next write may complete
};

/// Guards std::cout and std::cerr as long as it lives: the one place that decides which bytes reach
/// a terminal. One at a time.
class OutputGuard {
 public:
  OutputGuard();

 private:
  class Stream {
   public:
    Stream(std::ostream& guarded, int descriptor);
    ~Stream();
    Stream(const Stream&) = delete;
    Stream& operator=(const Stream&) = delete;

   private:
    std::ostream& stream_;
    std::streambuf& raw_;
    GuardedBuffer buffer_;
  };
  Stream out_, err_;
};

/// Writes a model's text to stdout: byte for byte into a file or pipe, guarded on a terminal.
void write_model_text(std::string_view text);

/// Writes to stderr past the guard: a progress bar is drawn with control sequences of our own.
void write_controls(std::string_view text);

}  // namespace ingot::cli
