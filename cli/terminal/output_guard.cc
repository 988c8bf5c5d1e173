#include "cli/terminal/output_guard.h"

#include <algorithm>
#include <array>
#include <iostream>
#include <utility>

#include <unistd.h>

#include "cli/terminal/terminal.h"
#include "formats/base/printable.h"

namespace ingot::cli {
namespace {

constexpr std::string_view kPlain = "\033[0m";
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

bool GuardedBuffer::put_open() {
  return put(printable_page(std::exchange(open_, {})));
}

bool GuardedBuffer::write_raw(std::string_view bytes) {
  const std::lock_guard lock(mutex_);
  return put_open() && put(bytes);
}

std::streamsize GuardedBuffer::xsputn(const char* bytes, std::streamsize n) {
  const std::lock_guard lock(mutex_);
  std::string_view text(bytes, static_cast<std::size_t>(n));
  if (open_.empty() && std::ranges::all_of(text, is_plain)) return put_lines(text) ? n : 0;
  const std::string whole = std::exchange(open_, {}).append(text);
  text = whole;
  open_ = text.substr(text.size() - open_bytes(text));
  text.remove_suffix(open_.size());
  constexpr std::string_view kBold = "\xfe\xff";
  while (!text.empty()) {
    const std::size_t end =
        is_styled_ ? std::min(text.find_first_of(kBold), text.size()) : text.size();
    if (!put_lines(printable_page(text.substr(0, end)))) return 0;
    text.remove_prefix(end);
    if (text.empty()) break;
    if (!put(text.starts_with(kBoldOn) ? "\033[1m" : kPlain)) return 0;
    text.remove_prefix(1);
  }
  return n;
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
    : stream_(guarded), raw_(*guarded.rdbuf()), buffer_(raw_, !emphasis(descriptor).on.empty()) {
  stream_.rdbuf(&buffer_);
}

OutputGuard::Stream::~Stream() {
  stream_.flush();
  const std::ios::iostate state = stream_.rdstate();
  stream_.rdbuf(&raw_);  // which forgets the state
  stream_.setstate(state);
}

OutputGuard::OutputGuard() : out_(std::cout, STDOUT_FILENO), err_(std::cerr, STDERR_FILENO) {}

void write_model_text(std::string_view text) {
  auto* const guard = dynamic_cast<GuardedBuffer*>(std::cout.rdbuf());
  if (guard == nullptr || ::isatty(STDOUT_FILENO) == 1) {
    std::cout << text;
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
