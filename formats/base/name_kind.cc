#include "formats/base/name_kind.h"

namespace ingot {

std::string name_kind(std::string_view name) {
  std::string kind;
  bool in_number = false;
  for (const char c : name) {
    const bool is_digit = c >= '0' && c <= '9';
    if (is_digit && !in_number) kind += '*';
    if (!is_digit) kind += c;
    in_number = is_digit;
  }
  return kind;
}

}  // namespace ingot
