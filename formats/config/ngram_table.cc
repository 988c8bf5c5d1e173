#include "formats/config/ngram_table.h"

#include <algorithm>
#include <limits>
#include <set>

#include "formats/base/checked.h"
#include "formats/base/error.h"
#include "formats/json/json_fields.h"

namespace ingot::formats {
namespace {

constexpr std::uint64_t kMaxHeads = std::uint64_t{1} << 10;
constexpr std::uint64_t kMaxTableRows = std::uint64_t{1} << 31;
constexpr std::uint64_t kMaxTokens = 64;

bool is_prime(std::uint64_t number) {
  if (number < 4) return number > 1;
  if (number % 2 == 0) return false;
  for (std::uint64_t by = 3; by * by <= number; by += 2) {
    if (number % by == 0) return false;
  }
  return true;
}

/// The step of SplitMix64 (Steele, Lea and Flood, 2014) from a state.
constexpr std::uint64_t kGamma = 0x9E3779B97F4A7C15;
std::uint64_t mixed(std::uint64_t state) {
  state += kGamma;
  state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9;
  state = (state ^ (state >> 27)) * 0x94D049BB133111EB;
  return state ^ (state >> 31);
}

}  // namespace

std::optional<NgramTable> ngram_table(const Json& keys, std::uint64_t layer) {
  const JsonFields fields(keys, "config.json");
  const std::vector<std::uint64_t> listed = fields.optional_numbers("ple_layer_ids");
  const std::set<std::uint64_t> layers(listed.begin(), listed.end());
  const auto own = layers.find(layer + 1);
  if (own == layers.end()) return std::nullopt;
  const auto number = [&](const char* key, std::uint64_t most) {
    return fields.optional_number(key, most).value_or(0);
  };
  const std::uint64_t n_tokens = number("ngram_size", kMaxTokens);
  const std::uint64_t n_heads =
      n_tokens < 2 ? 0 : (n_tokens - 1) * number("heads_per_ngram", kMaxHeads);
  const std::uint64_t base = number("ngram_vocab_size_base", kMaxTableRows);
  const std::uint64_t divisor = number("make_ngram_vocab_size_divisible_by", kMaxTableRows);
  if (n_heads == 0 || base == 0 || divisor == 0) return std::nullopt;
  const auto place = static_cast<std::uint64_t>(std::distance(layers.begin(), own));
  if (place > kMaxHeads || (place + 1) * n_heads > kMaxHeads) {
    throw Error(ErrorCode::kLimit, "has {} heads of n-grams up to layer {} (at most {})",
                (place + 1) * n_heads, layer, kMaxHeads)
        .in_file("config.json");
  }
  NgramTable table;
  std::uint64_t prime = base - 1;
  for (std::uint64_t head = 0; head < (place + 1) * n_heads; ++head) {
    do ++prime;
    while (!is_prime(prime));
    if (head < place * n_heads) continue;
    table.sizes.push_back(prime);
    table.rows += prime;
  }
  table.rows = round_up(table.rows, divisor);
  const std::uint64_t vocab = std::max<std::uint64_t>(number("vocab_size", kMaxTableRows), 1);
  const std::uint64_t half =
      std::max<std::uint64_t>(std::numeric_limits<std::int64_t>::max() / vocab / 2, 1);
  const std::uint64_t seed =
      fields.optional_number("seed", JsonFields::kAnyNumber).value_or(0) + 10007 * place;
  for (std::uint64_t i = 1; i <= n_tokens; ++i)
    table.multipliers.push_back(2 * (mixed(seed + kGamma * i) % half) + 1);
  return table;
}

}  // namespace ingot::formats
