#include "inference/model/step/step.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

#include "formats/base/error.h"
#include "inference/parallel/rank_view.h"

namespace ingot::inference {

StepRows::StepRows(std::span<const Row> rows) {
  positions.reserve(rows.size());
  std::vector<SequenceId> seen;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    positions.push_back(rows[r].position);
    tokens.push_back(rows[r].token);
    const bool goes_on = !runs.empty() && runs.back().sequence == rows[r].sequence;
    if (goes_on) {
      if (rows[r].position != runs.back().total()) {
        throw Error(ErrorCode::kInvalidArgument,
                    "row {} of the step is at position {} of its sequence, after {}", r,
                    rows[r].position, runs.back().total() - 1);
      }
      if (rows[r].is_answer == runs.back().is_answer) {
        ++runs.back().count;
        continue;
      }
    } else {
      seen.push_back(rows[r].sequence);
    }
    runs.push_back({.sequence = rows[r].sequence,
                    .is_answer = rows[r].is_answer,
                    .first_row = r,
                    .count = 1,
                    .first_position = rows[r].position});
  }
  std::sort(seen.begin(), seen.end());
  if (std::adjacent_find(seen.begin(), seen.end()) != seen.end()) {
    throw Error(ErrorCode::kInvalidArgument,
                "the rows of one sequence are not adjacent in the step");
  }
}

bool is_near_tie(float chosen, float left_out) {
  return std::abs(chosen - left_out) <= kNearTie * std::max(std::abs(chosen), std::abs(left_out));
}

bool is_near_tie(std::span<const float> values, std::span<const std::uint32_t> chosen) {
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  float last = std::numeric_limits<float>::infinity(), next = kNone;
  auto at = chosen.begin();
  for (std::uint32_t i = 0; i < values.size(); ++i) {
    const bool is_chosen = at != chosen.end() && *at == i;
    if (is_chosen) {
      last = std::min(last, values[i]);
      ++at;
    } else {
      next = std::max(next, values[i]);
    }
  }
  return next != kNone && !chosen.empty() && is_near_tie(last, next);
}

std::span<float> LayerStep::state(const SequenceRun& run) const {
  if (!mixer_states.empty())
    return mixer_states.at(static_cast<std::size_t>(&run - rows.runs.data()));
  return cache.state(run.sequence, cache_layer, run.first_position, run.total());
}

void LayerStep::show(const Selection& chosen) const {
  for (std::size_t r = 0; taps.indexer && r < chosen.size(); ++r) {
    if (!chosen[r].empty()) taps.indexer(layer, r, chosen[r]);
  }
}

void LayerStep::write(std::size_t stream, MatrixView<const float> values) const {
  if (taps.cache) taps.cache(layer, first_stream, stream, values);
  for (const SequenceRun& run : rows.runs) {
    for (std::size_t i = 0; i < run.count; ++i) {
      cache.write(run.sequence, cache_layer, first_stream + stream, run.first_position + i,
                  {values.row(run.first_row + i), values.cols});
    }
  }
}

namespace {

Matrix gathered_from(const KvCache& cache, std::size_t layer, Profile profile, SequenceId sequence,
                     std::size_t stream, std::span<const std::uint32_t> positions) {
  const CacheStream& form = cache.streams(layer)[stream];
  Matrix values(positions.size(), form.width);
  cache.gather(sequence, layer, stream, positions, values.values());
  if (form.format != KvFormat::kBf16) round_between(profile, values.values());
  return values;
}

}  // namespace

Matrix LayerStep::cached(Profile profile, SequenceId sequence, std::size_t stream,
                         std::span<const std::uint32_t> positions) const {
  return gathered_from(cache, cache_layer, profile, sequence, first_stream + stream, positions);
}

Matrix LayerStep::cached_keys(Profile profile, SequenceId sequence, std::size_t stream,
                              std::span<const std::uint32_t> positions) const {
  return gathered_from(key_cache, key_layer, profile, sequence, first_stream + stream, positions);
}

void require_keys_in_stage(const ModelSpec& spec, const Range& stage) {
  if (spec.sources > 0 && stage.count < spec.n_main) {
    throw Error(ErrorCode::kUnsupported,
                "layers mix their inputs with weights of the layer before, which another pipeline "
                "stage may have (leave --pp at 1)");
  }
  const auto* mixture = spec.find<MixtureSpec>();
  for (std::size_t l = stage.first; l < stage.first + stage.count; ++l) {
    const auto layer = static_cast<std::uint32_t>(l);
    const std::uint32_t home = mixture == nullptr ? layer : mixture->home(layer);
    if (home != layer && stage.count < spec.n_main) {
      throw Error(ErrorCode::kUnsupported,
                  "layer {} has the experts of layer {}, which another pipeline stage may have "
                  "(leave --pp at 1)",
                  l, home);
    }
    if (spec.keys_of(l) >= stage.first) continue;
    throw Error(ErrorCode::kUnsupported,
                "layer {} reads the keys of layer {}, which another pipeline stage has (cut the "
                "stages elsewhere, or use --tp)",
                l, spec.keys_of(l));
  }
}

std::vector<std::uint32_t> first_positions(std::size_t n) {
  std::vector<std::uint32_t> positions(n);
  std::iota(positions.begin(), positions.end(), 0U);
  return positions;
}

Matrix product(const StepContext& context, const Linear& linear, const Matrix& x) {
  Matrix y(x.rows(), linear.rows());
  linear.apply(x.view(), y.view(), context.threads);
  return y;
}

Matrix rounded_product(const StepContext& context, const Linear& linear, const Matrix& x,
                       std::span<const float> bias) {
  Matrix y = product(context, linear, x);
  add_bias(bias, y);
  round_between(context.profile, y.values());
  return y;
}

void add_bias(std::span<const float> bias, Matrix& y) {
  INGOT_CHECK(bias.empty() || bias.size() == y.cols());
  for (std::size_t r = 0; !bias.empty() && r < y.rows(); ++r) {
    for (std::size_t c = 0; c < bias.size(); ++c) y.row(r)[c] += bias[c];
  }
}

void grow_queries(Profile profile, const std::optional<GrowthSpec>& growth,
                  std::span<const std::uint32_t> positions, Matrix& queries) {
  if (!growth) return;
  for (std::size_t r = 0; r < queries.rows(); ++r) {
    const double lengths = (static_cast<double>(positions[r]) + growth->offset) / growth->length;
    const double logarithm =
        growth->is_smooth ? std::log(std::max(lengths, 1.0)) : std::log1p(std::floor(lengths));
    float factor = static_cast<float>(growth->is_power ? std::pow(1.0 + lengths, growth->beta)
                                                       : 1.0 + growth->beta * logarithm);
    round_between(profile, std::span(&factor, 1));
    for (float& value : queries.row(r)) value *= factor;
  }
  round_between(profile, queries.values());
}

Matrix of_width(Matrix values, std::size_t width) {
  if (values.cols() == width) return values;
  Matrix out(values.rows(), width);
  const std::size_t n = std::min(values.cols(), width);
  for (std::size_t r = 0; r < values.rows(); ++r)
    std::ranges::copy(values.row(r).first(n), out.row(r).begin());
  return out;
}

void show_hidden(const ModelSpec& spec, const Taps& taps, std::size_t index, const Matrix& hidden) {
  if (!taps.hidden) return;
  if (spec.carried == 0) return taps.hidden(index, hidden);
  taps.hidden(index, of_width(hidden, spec.shown_width()));
}

Matrix of_last_stage(const StepContext& context, std::string_view name, std::size_t rows,
                     std::size_t cols, const std::function<Matrix()>& compute) {
  Matrix values = context.rank.is_last_stage() ? compute() : Matrix(rows, cols);
  broadcast(context.comm, {.group = Group::kPipeline, .name = name}, context.rank.n_stages() - 1,
            values.values());
  return values;
}

bool is_in_last_stage(const StepContext& context, bool is_here) {
  float value = is_here ? 1.0F : 0.0F;
  broadcast(context.comm, {.group = Group::kPipeline, .name = "layers of the last stage"},
            context.rank.n_stages() - 1, std::span(&value, 1));
  return value != 0.0F;
}

void reduce(const LayerStep& step, std::string_view name, Matrix& sums) {
  step.context.comm.all_reduce({.group = Group::kTensor, .name = name, .layer = step.layer},
                               sums.values());
  round_between(step.context.profile, sums.values());
}

void scale_rounded(Profile profile, float factor, Matrix& values) {
  if (factor == 1.0F) return;
  for (float& value : values.values()) value *= factor;
  round_between(profile, values.values());
}

void add_rounded(Profile profile, Matrix& to, const Matrix& what) {
  for (std::size_t i = 0; i < what.values().size(); ++i) to.values()[i] += what.values()[i];
  round_between(profile, to.values());
}

void require_finite(const Matrix& values, std::size_t layer, std::string_view operation) {
  for (std::size_t r = 0; r < values.rows(); ++r) {
    const auto row = values.row(r);
    const bool bad = std::any_of(row.begin(), row.end(), [](float value) {
      return (std::bit_cast<std::uint32_t>(value) & 0x7F800000U) == 0x7F800000U;
    });
    if (bad) {
      throw Error(ErrorCode::kNonFinite,
                  "layer {}: {} of row {} holds NaN or infinite values (a damaged weight or scale? "
                  "see ingot check --deep)",
                  layer, operation, r);
    }
  }
}

SequenceId ModelCache::add() {
  const SequenceId sequence = main_.add();
  INGOT_CHECK(mtp_.add() == sequence);
  return sequence;
}

void ModelCache::free(SequenceId sequence) {
  main_.free(sequence);
  mtp_.free(sequence);
}

}  // namespace ingot::inference
