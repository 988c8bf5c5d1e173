#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <vector>

#include <fmt/format.h>

#include "formats/json/json.h"
#include "inference/family/spec_parts.h"

namespace ingot::inference {

namespace {

enum class Scaling : std::uint8_t { kNone, kLinear, kYarn, kLlama3, kLong, kPart };

Scaling scaling_of(const formats::RopeConfig& config) {
  if (config.type == "yarn") return Scaling::kYarn;
  if (config.type == "llama3") return Scaling::kLlama3;
  if (config.type == "linear") return Scaling::kLinear;
  // The older name of it is in Phi-3's first releases.
  if (config.type == "longrope" || config.type == "su") return Scaling::kLong;
  if (config.type == "proportional") return Scaling::kPart;
  if (config.type.empty() || config.type == "default") return Scaling::kNone;
  refuse(ErrorCode::kUnsupported,
         fmt::format("'rope_type' is '{}'; the forward pass knows default, linear, yarn, llama3, "
                     "longrope and proportional",
                     config.type));
}

double factor_of(const formats::RopeConfig& config) {
  const double factor = config.factor.value_or(0);
  if (!(factor >= 1) || factor > 1e6) {
    refuse(fmt::format("rope scaling {} needs a 'factor' of at least 1", config.type));
  }
  return factor;
}

double length_of(const formats::RopeConfig& config) {
  const auto length = static_cast<double>(config.original_max_position_embeddings.value_or(0));
  if (length < 1) {
    refuse(fmt::format("rope scaling {} needs 'original_max_position_embeddings'", config.type));
  }
  return length;
}

// Llama 3.1: long waves are stretched, short ones stay, those between are mixed.
void stretch_long_waves(const formats::RopeConfig& config, const RopeBands& bands,
                        std::vector<float>& freqs) {
  const auto factor = static_cast<float>(factor_of(config));
  const double length = length_of(config);
  if (!(bands.low > 0) || !(bands.high >= bands.low) || !std::isfinite(bands.high)) {
    refuse("'low_freq_factor' and 'high_freq_factor' make no band");
  }
  const auto longest = static_cast<float>(length / bands.low);
  const auto shortest = static_cast<float>(length / bands.high);
  const auto low = static_cast<float>(bands.low),
             width = static_cast<float>(bands.high - bands.low);
  for (float& freq : freqs) {
    const float wave = static_cast<float>(2 * std::numbers::pi) / freq;
    if (wave > longest) {
      freq /= factor;
    } else if (wave >= shortest && width > 0) {
      const float kept = (static_cast<float>(length) / wave - low) / width;
      freq = (1.0F - kept) * freq / factor + kept * freq;
    }
  }
}

// Phi-3: each pair has a factor, one for contexts up to the original length and one for longer
// ones; the latter count where the model is made for such contexts.
void read_long(const formats::ModelConfig& config, const formats::JsonFields& scaling,
               bool may_be_long, RopeBands& bands) {
  constexpr const char* kOriginal = "original_max_position_embeddings";
  const std::uint64_t original = required(
      config.rope.original_max_position_embeddings.value_or(
          spec_fields(config).optional_number(kOriginal, std::uint64_t{1} << 32).value_or(0)),
      kOriginal);
  const double longest = static_cast<double>(config.max_position_embeddings);
  const double factor = config.rope.factor.value_or(longest / static_cast<double>(original));
  const bool is_long = config.max_position_embeddings > original;
  const char* key = is_long && may_be_long ? "long_factor" : "short_factor";
  const formats::Json* factors = scaling.optional_array(key);
  if (factors == nullptr) refuse(fmt::format("'{}' of rope is missing", key));
  for (const formats::Json& one : *factors) {
    const double value = one.is_number() ? one.get<double>() : 0;
    if (!(value > 0) || value > 1e6) refuse(fmt::format("'{}' of rope has {}", key, one.dump()));
    bands.factors.push_back(value);
  }
  if (bands.magnitude) return;
  const auto said = scaling.optional_real(is_long ? "long_mscale" : "short_mscale", 0, 1e6);
  bands.magnitude = said.value_or(
      factor <= 1 ? 1 : std::sqrt(1 + std::log(factor) / std::log(static_cast<double>(original))));
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

RopeBands rope_bands(const formats::ModelConfig& config, bool may_be_long) {
  const auto scaling = rope_fields(config);
  if (!scaling) return {};
  RopeBands bands{.truncate = scaling->boolean("truncate", true)};
  bands.low = scaling->optional_real("low_freq_factor", 0, 1e9).value_or(bands.low);
  bands.high = scaling->optional_real("high_freq_factor", 0, 1e9).value_or(bands.high);
  bands.magnitude = scaling->optional_real("attention_factor", 0, 1e6);
  bands.part = scaling->optional_real("partial_rotary_factor", 0, 1).value_or(1);
  if (scaling_of(config.rope) == Scaling::kLong) read_long(config, *scaling, may_be_long, bands);
  return bands;
}

double yarn_softmax_factor(const formats::RopeConfig& config) {
  const double all_dim = config.mscale_all_dim.value_or(0);
  if (scaling_of(config) != Scaling::kYarn || all_dim == 0) return 1.0;
  const double g = magnitude(factor_of(config), all_dim);
  return g * g;
}

RopeSpec rope_spec(const formats::RopeConfig& config, std::size_t dim, bool interleaved,
                   const RopeBands& bands) {
  if (dim == 0 || dim % 2 != 0) {
    refuse(
        fmt::format("a rotated slice of {} values is not made of pairs ('partial_rotary_factor' "
                    "of 'head_dim', 'rotary_dim' or 'qk_rope_head_dim')",
                    dim));
  }
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
  const Scaling scaling = scaling_of(config);
  // Gemma 4: the first pairs turn, as in a slice of all.
  if (scaling == Scaling::kPart) {
    const auto turned = static_cast<std::size_t>(bands.part * static_cast<double>(n_pairs));
    const auto factor = static_cast<float>(config.factor.value_or(1));
    for (std::size_t i = 0; i < n_pairs; ++i)
      spec.freqs[i] = i < turned ? spec.freqs[i] / factor : 0.0F;
  }
  if (scaling == Scaling::kLlama3) stretch_long_waves(config, bands, spec.freqs);
  if (scaling == Scaling::kLinear) {
    const auto factor = static_cast<float>(factor_of(config));
    for (float& freq : spec.freqs) freq /= factor;
  }
  if (scaling == Scaling::kLong) {
    if (bands.factors.size() != n_pairs)
      refuse(fmt::format("rope has {} factors for {} pairs", bands.factors.size(), n_pairs));
    for (std::size_t i = 0; i < n_pairs; ++i)
      spec.freqs[i] = 1.0F / (static_cast<float>(bands.factors[i]) * periods[i]);
    spec.magnitude = static_cast<float>(bands.magnitude.value_or(1));
  }
  if (scaling != Scaling::kYarn) return spec;

  const double factor = factor_of(config), length = length_of(config);
  const auto d = static_cast<double>(dim);
  const double fast = config.beta_fast.value_or(32), slow = config.beta_slow.value_or(1);
  if (!(fast > 0) || !(slow > 0)) refuse("'beta_fast' and 'beta_slow' are not above 0");
  const double first = pair_of_turns(fast, d, config.theta, length);
  const double last = pair_of_turns(slow, d, config.theta, length);
  const double low = std::max(bands.truncate ? std::floor(first) : first, 0.0);
  double high = std::min(bands.truncate ? std::ceil(last) : last, d - 1);
  if (low == high) high += 0.001;
  for (std::size_t i = 0; i < n_pairs; ++i) {
    const float position = static_cast<float>(i) - static_cast<float>(low);
    const float ramp = std::clamp(position / static_cast<float>(high - low), 0.0F, 1.0F);
    const float kept = 1.0F - ramp;
    const float stretched = 1.0F / (static_cast<float>(factor) * periods[i]);
    spec.freqs[i] = stretched * (1.0F - kept) + spec.freqs[i] * kept;
  }
  if (bands.magnitude) {
    spec.magnitude = static_cast<float>(*bands.magnitude);
    return spec;
  }
  // Without mscale the whole effect is on cos and sin; with mscale_all_dim it is in the softmax
  // scale, and the quotient remains here.
  const bool has_mscales = config.mscale.value_or(0) != 0 && config.mscale_all_dim.value_or(0) != 0;
  spec.magnitude = static_cast<float>(has_mscales ? magnitude(factor, *config.mscale) /
                                                        magnitude(factor, *config.mscale_all_dim)
                                                  : magnitude(factor, 1.0));
  return spec;
}

}  // namespace ingot::inference
