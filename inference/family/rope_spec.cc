#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "inference/family/spec_parts.h"

namespace ingot::inference {

namespace {

bool is_yarn(const formats::RopeConfig& config) {
  if (config.type == "yarn") return true;
  if (config.type.empty() || config.type == "default") return false;
  refuse(ErrorCode::kUnsupported,
         fmt::format("rope scaling of type '{}'; the forward pass knows default and yarn",
                     config.type));
}

double yarn_factor(const formats::RopeConfig& config) {
  const double factor = config.factor.value_or(0);
  if (!(factor >= 1) || factor > 1e6) refuse("rope scaling yarn needs a 'factor' of at least 1");
  return factor;
}

// How much attention is sharpened for a context `factor` times as long.
double magnitude(double factor, double mscale) {
  return factor <= 1 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

// The pair whose wave turns `turns` times within the original context.
double pair_of_turns(double turns, double dim, double theta, double length) {
  return dim * std::log(length / (turns * 2 * std::numbers::pi)) / (2 * std::log(theta));
}

}  // namespace

double yarn_softmax_factor(const formats::RopeConfig& config) {
  const double all_dim = config.mscale_all_dim.value_or(0);
  if (!is_yarn(config) || all_dim == 0) return 1.0;
  const double g = magnitude(yarn_factor(config), all_dim);
  return g * g;
}

RopeSpec rope_spec(const formats::RopeConfig& config, std::size_t dim, bool interleaved,
                   bool truncate) {
  if (dim == 0 || dim % 2 != 0) refuse(fmt::format("a rotated slice of {} values", dim));
  if (!(config.theta > 1) || !std::isfinite(config.theta)) refuse("'rope_theta' is not above 1");
  RopeSpec spec{.dim = dim, .interleaved = interleaved, .freqs = {}};
  const std::size_t n_pairs = dim / 2;
  const auto width = static_cast<float>(dim);
  spec.freqs.resize(n_pairs);
  std::vector<float> periods(n_pairs);
  for (std::size_t i = 0; i < n_pairs; ++i) {
    const float exponent = static_cast<float>(2 * i) / width;
    periods[i] = static_cast<float>(std::pow(config.theta, static_cast<double>(exponent)));
    spec.freqs[i] = 1.0F / periods[i];
  }
  if (!is_yarn(config)) return spec;

  const double factor = yarn_factor(config);
  const auto length = static_cast<double>(config.original_max_position_embeddings.value_or(0));
  if (length < 1) refuse("rope scaling yarn needs 'original_max_position_embeddings'");
  const auto d = static_cast<double>(dim);
  const double fast = config.beta_fast.value_or(32), slow = config.beta_slow.value_or(1);
  if (!(fast > 0) || !(slow > 0)) refuse("'beta_fast' and 'beta_slow' are not above 0");
  const double first = pair_of_turns(fast, d, config.theta, length);
  const double last = pair_of_turns(slow, d, config.theta, length);
  const double low = std::max(truncate ? std::floor(first) : first, 0.0);
  double high = std::min(truncate ? std::ceil(last) : last, d - 1);
  if (low == high) high += 0.001;
  for (std::size_t i = 0; i < n_pairs; ++i) {
    const float position = static_cast<float>(i) - static_cast<float>(low);
    const float ramp = std::clamp(position / static_cast<float>(high - low), 0.0F, 1.0F);
    const float kept = 1.0F - ramp;
    const float stretched = 1.0F / (static_cast<float>(factor) * periods[i]);
    spec.freqs[i] = stretched * (1.0F - kept) + spec.freqs[i] * kept;
  }
  // Without mscale the whole effect is on cos and sin; with mscale_all_dim it is in the softmax
  // scale, and what is left here is the quotient.
  const bool has_mscales = config.mscale.value_or(0) != 0 && config.mscale_all_dim.value_or(0) != 0;
  spec.magnitude = static_cast<float>(has_mscales ? magnitude(factor, *config.mscale) /
                                                        magnitude(factor, *config.mscale_all_dim)
                                                  : magnitude(factor, 1.0));
  return spec;
}

}  // namespace ingot::inference
