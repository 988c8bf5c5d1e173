#include <array>

#include "inference/cache/kv_cache.h"

namespace ingot::inference {
namespace {

struct Row {
  KvFormat format;
  std::string_view name;
};
constexpr std::array kRows = {Row{KvFormat::kF32, "f32"}, Row{KvFormat::kBf16, "bf16"},
                              Row{KvFormat::kFp8, "fp8"}, Row{KvFormat::kInt8, "int8"}};
constexpr std::array kFormats = {kRows[0].format, kRows[1].format, kRows[2].format,
                                 kRows[3].format};

constexpr bool rows_match_enum() {
  for (std::size_t i = 0; i < kRows.size(); ++i) {
    if (kRows[i].format != static_cast<KvFormat>(i)) return false;
  }
  return true;
}
static_assert(rows_match_enum());

}  // namespace

std::span<const KvFormat> kv_formats() {
  return kFormats;
}

std::string_view kv_format_name(KvFormat format) {
  return kRows.at(static_cast<std::size_t>(format)).name;
}

std::optional<KvFormat> find_kv_format(std::string_view name) {
  for (const Row& row : kRows) {
    if (row.name == name) return row.format;
  }
  return std::nullopt;
}

}  // namespace ingot::inference
