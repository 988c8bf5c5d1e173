#include "formats/text/base64.h"

#include <algorithm>

namespace ingot {

namespace {

constexpr std::string_view kStandardLetters =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
constexpr std::string_view kLettersForAddresses =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

}  // namespace

std::string base64_text(std::string_view bytes) {
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (; !bytes.empty(); bytes.remove_prefix(std::min<std::size_t>(bytes.size(), 3))) {
    const auto at = [&](std::size_t i) {
      return i < bytes.size() ? std::uint32_t{static_cast<unsigned char>(bytes[i])} : 0U;
    };
    const std::uint32_t group = at(0) << 16 | at(1) << 8 | at(2);
    for (std::size_t i = 0; i < 4; ++i)
      text += i <= bytes.size() ? kStandardLetters[group >> (18 - 6 * i) & 63U] : '=';
  }
  return text;
}

std::optional<std::string> base64_bytes(std::string_view text, Base64 letters) {
  const std::string_view all =
      letters == Base64::kStandard ? kStandardLetters : kLettersForAddresses;
  const std::string_view digits = text.substr(0, text.find_last_not_of('=') + 1);
  if (digits.empty() || text.size() % 4 != 0 || text.size() - digits.size() > 2 ||
      digits.find_first_not_of(all) != digits.npos)
    return std::nullopt;
  std::string bytes;
  bytes.reserve(text.size() / 4 * 3);
  std::uint32_t bits = 0;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    bits = bits << 6 | static_cast<std::uint32_t>(all.find(digits[i]));
    if (i % 4 != 0) bytes += static_cast<char>(bits >> (6 - 2 * (i % 4)) & 0xffU);
  }
  return bytes;
}

}  // namespace ingot
