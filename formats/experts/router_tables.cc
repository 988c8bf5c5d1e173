#include "formats/experts/router_tables.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include "formats/base/error.h"
#include "formats/storage/block_scales.h"

namespace ingot::formats {
namespace {

double cosine(std::span<const float> a, std::span<const float> b) {
  double both = 0, of_a = 0, of_b = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double x = a[i], y = b[i];
    both += x * y;
    of_a += x * x;
    of_b += y * y;
  }
  return of_a > 0 && of_b > 0 ? both / (std::sqrt(of_a) * std::sqrt(of_b)) : 0;
}

// New numbers of the kept experts, the most similar to a dropped one first.
std::vector<std::int64_t> like(std::uint64_t dropped, const RouterRows& router) {
  const std::size_t width = router.rows.size() / router.n_experts;
  const auto row = [&](std::uint64_t n) { return router.rows.subspan(n * width, width); };
  std::vector<std::pair<double, std::int64_t>> all;
  for (std::size_t n = 0; n < router.kept.size(); ++n)
    all.emplace_back(-cosine(row(dropped), row(router.kept[n])), static_cast<std::int64_t>(n));
  std::ranges::sort(all);
  std::vector<std::int64_t> numbers;
  for (const auto& [distance, number] : all) numbers.push_back(number);
  return numbers;
}

template <typename Number>
std::vector<std::int64_t> numbers_of(std::span<const std::byte> bytes) {
  std::vector<Number> numbers(bytes.size() / sizeof(Number));
  if (!bytes.empty()) std::memcpy(numbers.data(), bytes.data(), numbers.size() * sizeof(Number));
  return {numbers.begin(), numbers.end()};
}

template <typename Number>
std::vector<std::byte> bytes_of(std::span<const std::int64_t> values) {
  std::vector<Number> numbers;
  for (const std::int64_t value : values) numbers.push_back(static_cast<Number>(value));
  const auto bytes = std::as_bytes(std::span(numbers));
  return {bytes.begin(), bytes.end()};
}

}  // namespace

std::vector<std::int64_t> redirected_rows(std::span<const std::int64_t> table, std::size_t width,
                                          const RouterRows& router) {
  INGOT_CHECK(width > 0 && width <= router.kept.size() && router.n_experts > 0);
  std::map<std::int64_t, std::vector<std::int64_t>> substitutes;
  std::vector<std::int64_t> renumbered;
  for (std::size_t begin = 0; begin + width <= table.size(); begin += width) {
    const auto before = table.subspan(begin, width);
    std::vector<std::int64_t> after(width, -1);
    for (std::size_t i = 0; i < width; ++i) {
      if (before[i] < 0 || static_cast<std::uint64_t>(before[i]) >= router.n_experts)
        throw Error(ErrorCode::kCorrupt, "gives token {} expert {}, of {}", begin / width,
                    before[i], router.n_experts);
      const auto found =
          std::ranges::lower_bound(router.kept, static_cast<std::uint32_t>(before[i]));
      if (found != router.kept.end() && *found == before[i]) after[i] = found - router.kept.begin();
    }
    for (std::size_t i = 0; i < width; ++i) {
      if (after[i] >= 0) continue;
      std::vector<std::int64_t>& choices = substitutes[before[i]];
      if (choices.empty()) choices = like(static_cast<std::uint64_t>(before[i]), router);
      after[i] = *std::ranges::find_if(choices, [&](std::int64_t number) {
        return std::ranges::find(after, number) == after.end();
      });
    }
    renumbered.insert(renumbered.end(), after.begin(), after.end());
  }
  return renumbered;
}

std::vector<std::byte> redirected(const Checkpoint& source, const RouterTable& table) {
  const StoredTensor &entries = source.stored()[table.table],
                     &router = source.stored()[table.router];
  std::vector<std::byte> bytes(entries.n_bytes), of_router(router.n_bytes);
  source.read(table.table, 0, bytes);
  source.read(table.router, 0, of_router);
  std::vector<float> rows(element_count(router.shape).value());
  widen_scales(router.dtype, of_router, std::nullopt, rows);
  // Rows behind those of the experts are of no expert that has tensors.
  rows.resize(rows.size() / router.shape[0] * table.n_experts);
  if (!std::ranges::all_of(rows, [](float value) { return std::isfinite(value); }))
    throw fault_of(source.files(), router, ErrorCode::kNonFinite,
                   "has numbers that are not finite, and experts are compared by it");
  const bool is_wide = entries.dtype == DType::kI64;
  const auto numbers =
      is_wide ? numbers_of<std::int64_t>(bytes) : numbers_of<std::int32_t>(bytes);
  try {
    const auto made =
        redirected_rows(numbers, entries.shape[1],
                        {.rows = rows, .n_experts = table.n_experts, .kept = table.kept});
    return is_wide ? bytes_of<std::int64_t>(made) : bytes_of<std::int32_t>(made);
  } catch (Error& error) {
    throw error.in_file(source.files()[entries.file].name).in_tensor(entries.name);
  }
}

}  // namespace ingot::formats
