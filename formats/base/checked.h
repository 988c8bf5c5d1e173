#pragma once

#include <concepts>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>

#include "formats/base/error.h"

namespace ingot {

/// a*b of numbers from a file, or nullopt when it does not fit 64 bits.
[[nodiscard]] inline std::optional<std::uint64_t> checked_mul(std::uint64_t a, std::uint64_t b) {
  std::uint64_t result = 0;
  if (__builtin_mul_overflow(a, b, &result)) return std::nullopt;
  return result;
}

/// a+b of numbers from a file, or nullopt when it does not fit 64 bits.
[[nodiscard]] inline std::optional<std::uint64_t> checked_add(std::uint64_t a, std::uint64_t b) {
  std::uint64_t result = 0;
  if (__builtin_add_overflow(a, b, &result)) return std::nullopt;
  return result;
}

/// Converts between integer types; throws kLimit naming `what` when the value does not fit.
template <std::integral To, std::integral From>
[[nodiscard]] To narrow(From value, std::string_view what) {
  if (!std::in_range<To>(value)) {
    throw Error(ErrorCode::kLimit, std::string(what) + " does not fit: " + std::to_string(value));
  }
  return static_cast<To>(value);
}

/// ceil(a / b) for b > 0, without overflow.
[[nodiscard]] constexpr std::uint64_t ceil_div(std::uint64_t a, std::uint64_t b) {
  return a / b + (a % b != 0 ? 1 : 0);
}

/// The largest multiple of `step` that is <= value.
[[nodiscard]] constexpr std::uint64_t round_down(std::uint64_t value, std::uint64_t step) {
  return value - value % step;
}

/// The smallest multiple of `step` that is >= value; the caller has bounded `value`.
[[nodiscard]] constexpr std::uint64_t round_up(std::uint64_t value, std::uint64_t step) {
  return ceil_div(value, step) * step;
}

}  // namespace ingot
