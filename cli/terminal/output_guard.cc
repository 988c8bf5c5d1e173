#include "cli/terminal/output_guard.h"

#include <algorithm>
#include <array>
#include <iostream>
#include <utility>

#include <unistd.h>

#include "cli/terminal/session.h"
#include "cli/terminal/terminal.h"
#include "formats/base/printable.h"
#include "report/table_text.h"

namespace ingot::cli {
namespace {

constexpr std::string_view kPlain = "\033[0m", kBold = "\xfe\xff";
constexpr std::array<std::pair<std::string_view, std::string_view>, 4> kColours = {{
    {"error:", "\033[1;31m"},
    {"warning:", "\033[1;33m"},
    {"FAIL", "\033[1;31m"},
    {"PASS", "\033[1;32m"},
}};

bool is_plain(char c) {
  return (c >= ' ' && c <= '~') || c == '\n' || c == '\t';
}

// How many bytes at the end of a text may be the beginning of a character.
std::size_t open_bytes(std::string_view text) {
  constexpr std::size_t kLongest = 4;
  for (std::size_t n = 1; n < kLongest && n <= text.size(); ++n) {
    const auto byte = static_cast<unsigned char>(text[text.size() - n]);
    if ((byte & 0xC0U) == 0x80U) continue;
    const std::size_t whole = byte >= 0xF8 ? 1 : byte >= 0xF0 ? 4 : byte >= 0xE0 ? 3 : 2;
    return byte >= 0xC0 && n < whole ? n : 0;
  }
  return 0;
}

}  // namespace

bool GuardedBuffer::put(std::string_view text) {
  return to_.sputn(text.data(), static_cast<std::streamsize>(text.size())) ==
         static_cast<std::streamsize>(text.size());
}

bool GuardedBuffer::put_lines(std::string_view text) {
  if (!is_styled_) return put(text);
  while (!text.empty()) {
    if (std::exchange(is_at_line_start_, false)) {
      for (const auto& [word, colour] : kColours) {
        if (!text.starts_with(word)) continue;
        if (!put(colour) || !put(word) || !put(kPlain)) return false;
        text.remove_prefix(word.size());
      }
    }
    const std::size_t end = text.find('\n');
    is_at_line_start_ = end != std::string_view::npos;
    const std::string_view line = text.substr(0, is_at_line_start_ ? end + 1 : end);
    if (!put(line)) return false;
    text.remove_prefix(line.size());
  }
  return true;
}

// Printable text and marks.
bool GuardedBuffer::put_styled(std::string_view text) {
  while (!text.empty()) {
    const std::size_t end = std::min(text.find_first_of(kBold), text.size());
    if (!put_lines(text.substr(0, end))) return false;
    text.remove_prefix(end);
    if (text.empty()) break;
    if (!put(text.starts_with(kBoldOn) ? "\033[1m" : kPlain)) return false;
    text.remove_prefix(1);
  }
  return true;
}

// Shows what waits for the rest of its line.
bool GuardedBuffer::put_line() {
  is_within_line_ = is_within_line_ || !line_.empty();
  return put_styled(std::exchange(line_, {}));
}

// Shows that, and what waits for the rest of its character.
bool GuardedBuffer::put_open() {
  line_ += printable_page(std::exchange(open_, {}));
  return put_line();
}

// Takes printable text and marks.
bool GuardedBuffer::take_shown(std::string_view text, std::size_t width) {
  if (width == 0) return put_styled(text);
  line_ += text;
  const std::size_t end = line_.rfind('\n') + 1;
  if (end == 0) return true;
  const std::size_t begun = std::exchange(is_within_line_, false) ? line_.find('\n') + 1 : 0;
  const std::string lines =
      line_.substr(0, begun) + wrapped_text(line_.substr(begun, end - begun), width);
  line_.erase(0, end);
  return put_styled(lines);
}

bool GuardedBuffer::take(std::string_view text, std::size_t width) {
  if (open_.empty() && std::ranges::all_of(text, is_plain)) return take_shown(text, width);
  const std::string whole = std::exchange(open_, {}).append(text);
  text = whole;
  open_ = text.substr(text.size() - open_bytes(text));
  text.remove_suffix(open_.size());
  std::string shown;
  while (!text.empty()) {
    const std::size_t end =
        is_styled_ ? std::min(text.find_first_of(kBold), text.size()) : text.size();
    shown += printable_page(text.substr(0, end));
    if (end < text.size()) shown += text[end];
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return take_shown(shown, width);
}

bool GuardedBuffer::write_raw(std::string_view bytes) {
  const std::lock_guard lock(mutex_);
  const bool is_shown = put_open();
  is_within_line_ = false;
  return is_shown && put(bytes);
}

bool GuardedBuffer::write_data(std::string_view text) {
  const std::lock_guard lock(mutex_);
  if (!put_line() || !take(text, 0)) return false;
  if (!text.empty()) is_within_line_ = text.back() != '\n';
  return true;
}

std::streamsize GuardedBuffer::xsputn(const char* bytes, std::streamsize n) {
  const std::lock_guard lock(mutex_);
  const std::size_t width = width_ == nullptr ? 0 : width_();
  return take({bytes, static_cast<std::size_t>(n)}, width) ? n : 0;
}

GuardedBuffer::int_type GuardedBuffer::overflow(int_type c) {
  if (traits_type::eq_int_type(c, traits_type::eof())) return traits_type::not_eof(c);
  const char byte = traits_type::to_char_type(c);
  return xsputn(&byte, 1) == 1 ? c : traits_type::eof();
}

// A flush does not wait for the rest of a character: an open one is not shown.
int GuardedBuffer::sync() {
  const std::lock_guard lock(mutex_);
  return put_open() ? to_.pubsync() : -1;
}

OutputGuard::Stream::Stream(std::ostream& guarded, int descriptor)
    : stream_(guarded),
      raw_(*guarded.rdbuf()),
      buffer_(raw_, !emphasis(descriptor).on.empty(), [=] { return report_width(descriptor); }),
      flags_(guarded.flags()) {
  stream_.rdbuf(&buffer_);
  // A line is wrapped whole.
  if (::isatty(descriptor) == 1) stream_ << std::nounitbuf;
}

OutputGuard::Stream::~Stream() {
  stream_.flush();
  stream_.flags(flags_);
  const std::ios::iostate state = stream_.rdstate();
  stream_.rdbuf(&raw_);  // which forgets the state
  stream_.setstate(state);
}

OutputGuard::OutputGuard() : out_(std::cout, STDOUT_FILENO), err_(std::cerr, STDERR_FILENO) {}

void write_data(std::string_view text) {
  if (!session().is_of_program) return;
  auto* const guard = dynamic_cast<GuardedBuffer*>(std::cout.rdbuf());
  if (guard == nullptr) {
    std::cout << text;
  } else if (!guard->write_data(text)) {
    std::cout.setstate(std::ios::badbit);
  }
}

void write_model_text(std::string_view text) {
  auto* const guard = dynamic_cast<GuardedBuffer*>(std::cout.rdbuf());
  if (guard == nullptr || ::isatty(STDOUT_FILENO) == 1) {
    write_data(text);
  } else if (!guard->write_raw(text)) {
    std::cout.setstate(std::ios::badbit);
  }
}

void write_controls(std::string_view text) {
  auto* const guard = dynamic_cast<GuardedBuffer*>(std::cerr.rdbuf());
  if (guard == nullptr) {
    std::cerr << text << std::flush;
  } else {
    guard->write_raw(text);
  }
}

}  // namespace ingot::cli
