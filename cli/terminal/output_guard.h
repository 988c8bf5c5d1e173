#pragma once

#include <cstddef>
#include <functional>
#include <ios>
#include <mutex>
#include <streambuf>
#include <string>
#include <string_view>
#include <utility>

namespace ingot::cli {

/// The ends of bold text on their way through a GuardedBuffer. No UTF-8 has these bytes, so
/// printable() leaves none of them in a stranger's text.
inline constexpr std::string_view kBoldOn = "\xfe", kBoldOff = "\xff";

/// Passes text on as printable_page() has it, so that names and messages of a checkpoint, and a
/// model's text, cannot steer a terminal. A character may come in several writes. Writes are safe
/// from many threads. A line that begins with the word of an error, a warning or a verdict has this
/// word in its colour, where colours are shown. With a width, lines are those of wrapped_text(): a
/// line is shown when it ends, or by a flush, which nothing wraps any more.
class GuardedBuffer final : public std::streambuf {
 public:
  /// `to` must outlive this. `is_styled`: colours are shown, and kBoldOn and kBoldOff become those
  /// of a terminal. `width`: tells the columns of the terminal; null, or where it tells 0: any.
  GuardedBuffer(std::streambuf& to, bool is_styled, std::function<std::size_t()> width = nullptr)
      : to_(to), is_styled_(is_styled), width_(std::move(width)) {}

  /// Bytes as they are, after all that was written before.
  bool write_raw(std::string_view bytes);
  /// Guarded text whose lines are as wide as they are.
  bool write_data(std::string_view text);

 protected:
  int_type overflow(int_type c) override;
  std::streamsize xsputn(const char* bytes, std::streamsize n) override;
  int sync() override;

 private:
  bool put(std::string_view text);
  bool put_lines(std::string_view text);
  bool put_styled(std::string_view text);
  bool put_line();
  bool put_open();
  bool take(std::string_view text, std::size_t width);
  bool take_shown(std::string_view text, std::size_t width);

  std::streambuf& to_;
  bool is_styled_, is_at_line_start_ = true;
  const std::function<std::size_t()> width_;
  std::mutex mutex_;
  std::string open_;             // of a character that the next write may complete
  std::string line_;             // of a line that is not shown yet
  bool is_within_line_ = false;  // a flush has shown its beginning
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
    std::ios::fmtflags flags_;
  };
  Stream out_, err_;
};

/// Writes data to stdout of this session, guarded: its lines are as wide as they are.
void write_data(std::string_view text);
/// Writes a model's text to stdout: byte for byte into a file or pipe, else as data.
void write_model_text(std::string_view text);

/// Writes to stderr past the guard: a progress bar is drawn with control sequences of our own.
void write_controls(std::string_view text);

}  // namespace ingot::cli
