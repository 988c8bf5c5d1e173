#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

namespace ingot::formats {

/// Element types of the safetensors container, in its order from smallest to largest; files are
/// laid out in the reverse of it. Source: docs/formats.md, "Data types".
enum class DType : std::uint8_t {
  kBool,
  kF4,
  kF6E2M3,
  kF6E3M2,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kF8E8M0,
  kF8E4M3Fnuz,
  kF8E5M2Fnuz,
  kI16,
  kU16,
  kF16,
  kBf16,
  kI32,
  kU32,
  kF32,
  kC64,
  kF64,
  kI64,
  kU64,
};

struct DTypeFacts {
  DType dtype;
  std::string_view name;  ///< spelling in the header
  std::uint32_t bits;     ///< per element
};

inline constexpr std::array kDTypes = {
    DTypeFacts{DType::kBool, "BOOL", 8},
    DTypeFacts{DType::kF4, "F4", 4},
    DTypeFacts{DType::kF6E2M3, "F6_E2M3", 6},
    DTypeFacts{DType::kF6E3M2, "F6_E3M2", 6},
    DTypeFacts{DType::kU8, "U8", 8},
    DTypeFacts{DType::kI8, "I8", 8},
    DTypeFacts{DType::kF8E5M2, "F8_E5M2", 8},
    DTypeFacts{DType::kF8E4M3, "F8_E4M3", 8},
    DTypeFacts{DType::kF8E8M0, "F8_E8M0", 8},
    DTypeFacts{DType::kF8E4M3Fnuz, "F8_E4M3FNUZ", 8},
    DTypeFacts{DType::kF8E5M2Fnuz, "F8_E5M2FNUZ", 8},
    DTypeFacts{DType::kI16, "I16", 16},
    DTypeFacts{DType::kU16, "U16", 16},
    DTypeFacts{DType::kF16, "F16", 16},
    DTypeFacts{DType::kBf16, "BF16", 16},
    DTypeFacts{DType::kI32, "I32", 32},
    DTypeFacts{DType::kU32, "U32", 32},
    DTypeFacts{DType::kF32, "F32", 32},
    DTypeFacts{DType::kC64, "C64", 64},
    DTypeFacts{DType::kF64, "F64", 64},
    DTypeFacts{DType::kI64, "I64", 64},
    DTypeFacts{DType::kU64, "U64", 64},
};

/// True if a table has a row for every enumerator up to `last`, each in its place.
template <typename Rows, typename Row, typename Enum>
constexpr bool rows_match_enum(const Rows& rows, Enum Row::*id, Enum last) {
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].*id != static_cast<Enum>(i)) return false;
  }
  return rows.size() == static_cast<std::size_t>(last) + 1;
}
static_assert(rows_match_enum(kDTypes, &DTypeFacts::dtype, DType::kU64));

constexpr std::string_view dtype_name(DType dtype) {
  return kDTypes[static_cast<std::size_t>(dtype)].name;
}

constexpr std::uint32_t dtype_bits(DType dtype) {
  return kDTypes[static_cast<std::size_t>(dtype)].bits;
}

constexpr std::optional<DType> find_dtype(std::string_view name) {
  for (const DTypeFacts& row : kDTypes) {
    if (row.name == name) return row.dtype;
  }
  return std::nullopt;
}

/// A set of element types, e.g. those in which a part of a weight is read.
class DTypeSet {
 public:
  constexpr DTypeSet(std::initializer_list<DType> members) {
    for (const DType dtype : members) bits_ |= bit(dtype);
  }
  [[nodiscard]] constexpr bool has(DType dtype) const { return (bits_ & bit(dtype)) != 0; }
  [[nodiscard]] constexpr bool empty() const { return bits_ == 0; }
  friend constexpr DTypeSet operator|(DTypeSet a, DTypeSet b) {
    a.bits_ |= b.bits_;
    return a;
  }
  /// The names for messages, in the order of kDTypes: "F8_E8M0, BF16 or F32".
  [[nodiscard]] std::string text() const {
    std::string text;
    std::uint32_t left = bits_;
    for (const DTypeFacts& row : kDTypes) {
      if (!has(row.dtype)) continue;
      left &= ~bit(row.dtype);
      if (!text.empty()) text += left == 0 ? " or " : ", ";
      text += row.name;
    }
    return text;
  }

 private:
  static constexpr std::uint32_t bit(DType dtype) {
    return std::uint32_t{1} << static_cast<std::uint32_t>(dtype);
  }
  std::uint32_t bits_ = 0;
};

}  // namespace ingot::formats
