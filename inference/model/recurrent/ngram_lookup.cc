#include "inference/model/recurrent/ngram_lookup.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "formats/base/error.h"
#include "formats/base/parallel.h"
#include "inference/kernels/matmul.h"
#include "inference/kernels/vector_math.h"
#include "inference/model/recurrent/recurrence.h"
#include "inference/model/recurrent/whole_layer.h"
#include "inference/model/step/gated_streams.h"
#include "inference/model/step/norm.h"
#include "inference/model/step/recent_rows.h"
#include "inference/model/step/short_convolution.h"

namespace ingot::inference {

using formats::FineRole;

namespace {

constexpr float kLeastScore = 1e-6F;

}  // namespace

NgramLookup::NgramLookup(const BlockWeights& weights, const StepContext& context,
                         const NgramSpec& spec)
    : spec_(spec), store_(&weights.store()) {
  require_one_tensor_rank(context.rank, weights.layer());
  read_constants(weights);
  const std::size_t inputs = spec.sizes.size() * spec.width, hidden = context.spec.hidden;
  const std::size_t streams = context.spec.stream_width();
  keys_ = weights.linear(FineRole::kNgramKeys, streams, inputs);
  values_ = weights.linear(FineRole::kNgramValues, hidden, inputs);
  key_norm_ = norm_weights(weights, context.spec, FineRole::kNgramKeyNorm, streams);
  state_norm_ = norm_weights(weights, context.spec, FineRole::kNgramStateNorm, streams);
  output_norm_ = norm_weights(weights, context.spec, FineRole::kNgramOutputNorm, streams);
  convolution_ = weights.vector(FineRole::kNgramConvolution, {streams, 1, spec.kernel});
  const formats::Shape part = {spec.rows / spec.parts, spec.width};
  for (std::uint32_t i = 0; i < spec.parts; ++i) {
    parts_.push_back(weights.name(formats::Role::kLookupTable, i));
    // The part is there and has this shape.
    static_cast<void>(store_->bytes_of(
        {.name = parts_.back(), .whole = part, .rows = {0, 1}, .cols = {0, spec.width}}));
  }
}

// Reads the constants of the checkpoint, where it has them.
void NgramLookup::read_constants(const BlockWeights& weights) {
  const std::size_t n = spec_.sizes.size();
  const auto read = [&](FineRole role, std::vector<std::uint64_t>& numbers) {
    if (weights.has(role)) numbers = store_->whole_numbers(weights.name(role), {numbers.size()});
  };
  read(FineRole::kNgramMultipliers, spec_.multipliers);
  read(FineRole::kNgramSizes, spec_.sizes);
  std::uint64_t sum = 0;
  for (const std::uint64_t size : spec_.sizes) {
    offsets_.push_back(sum);
    sum += size;
  }
  read(FineRole::kNgramOffsets, offsets_);
  for (std::size_t i = 0; i < n; ++i) {
    if (spec_.sizes[i] > 0 && spec_.sizes[i] <= spec_.rows &&
        offsets_[i] <= spec_.rows - spec_.sizes[i])
      continue;
    throw Error(ErrorCode::kCorrupt,
                "layer {} has {} rows from {} on for head {} of its n-grams, of a table with {}",
                weights.layer(), spec_.sizes[i], offsets_[i], i, spec_.rows);
  }
}

Matrix NgramLookup::embeddings(const LayerStep& step, const SequenceRun& run,
                               std::span<float> recent) const {
  const std::size_t before = spec_.multipliers.size() - 1, width = spec_.width;
  Matrix own(run.count, 1);
  for (std::size_t r = 0; r < run.count; ++r)
    own.row(r)[0] = static_cast<float>(step.rows.tokens[run.first_row + r]);
  RecentRows rows(recent, 1);
  const Matrix tokens = rows.followed_by(run.first_position, before, own.view());
  rows.keep(run.first_position, own.view());
  const std::size_t n_heads = spec_.sizes.size(), per_length = n_heads / before;
  const std::uint64_t part_rows = spec_.rows / spec_.parts;
  Matrix found(run.count, n_heads * width);
  parallel_for(run.count, step.context.threads, [&](std::size_t r) {
    std::uint64_t hash = 0;
    bool is_cut = false;
    for (std::size_t back = 0; back <= before; ++back) {
      // Nothing is before the first token, or before one that ends a text.
      if (back > run.first_position + r) is_cut = true;
      const auto token =
          is_cut ? spec_.separator : static_cast<std::uint64_t>(tokens.row(r + before - back)[0]);
      is_cut = is_cut || (back > 0 && token == spec_.separator);
      hash ^= token * spec_.multipliers[back];
      for (std::size_t i = 0; back > 0 && i < per_length; ++i) {
        const std::size_t head = (back - 1) * per_length + i;
        const auto size = static_cast<std::int64_t>(spec_.sizes[head]);
        const std::int64_t rest = static_cast<std::int64_t>(hash) % size;
        const std::uint64_t row =
            offsets_[head] + static_cast<std::uint64_t>(rest < 0 ? rest + size : rest);
        const Linear read = store_->read({.name = parts_[row / part_rows],
                                          .whole = {part_rows, width},
                                          .rows = {row % part_rows, 1},
                                          .cols = {0, width}},
                                         1);
        decode_row(read.weight(), 0, found.row(r).subspan(head * width, width));
      }
    }
  });
  return found;
}

Matrix NgramLookup::forward(const LayerStep& step, const Matrix& streams,
                            std::span<const std::span<float>> states) const {
  const StepContext& context = step.context;
  const Profile profile = context.profile;
  const std::size_t width = streams.cols(), hidden = context.spec.hidden;
  const std::size_t n_tokens = state_of(spec_).tokens;
  Matrix found(streams.rows(), spec_.sizes.size() * spec_.width);
  for (std::size_t i = 0; i < states.size(); ++i) {
    const SequenceRun& run = step.rows.runs[i];
    const Matrix own = embeddings(step, run, states[i].last(n_tokens));
    std::ranges::copy(own.values(), found.row(run.first_row).begin());
  }
  const Matrix keys = normed_streams(context, key_norm_, rounded_product(context, keys_, found));
  const Matrix queries = normed_streams(context, state_norm_, streams);
  const Matrix values = rounded_product(context, values_, found);
  Matrix out(streams.rows(), width);
  for (std::size_t r = 0; r < out.rows(); ++r) {
    for (std::size_t first = 0; first < width; first += hidden) {
      const float score =
          dot(keys.row(r).subspan(first, hidden), queries.row(r).subspan(first, hidden)) /
          std::sqrt(static_cast<float>(hidden));
      const float root = std::sqrt(std::max(std::abs(score), kLeastScore));
      const float gate = score == 0 ? 0.5F : sigmoid_f32(std::copysign(root, score));
      for (std::size_t c = 0; c < hidden; ++c) out.row(r)[first + c] = gate * values.row(r)[c];
    }
  }
  round_between(profile, out.values());
  const Matrix normed = normed_streams(context, output_norm_, out);
  const formats::MatrixView<const float> weights{convolution_.data(), width, spec_.kernel,
                                                 spec_.kernel};
  for (std::size_t i = 0; i < states.size(); ++i) {
    const SequenceRun& run = step.rows.runs[i];
    Matrix local =
        convolved(profile, run, weights, {}, normed.block(run.first_row, run.count, 0, width),
                  states[i].first(states[i].size() - n_tokens), spec_.multipliers.size());
    for (float& value : local.values()) value = silu_f32(value);
    round_between(profile, local.values());
    for (std::size_t r = 0; r < run.count; ++r) {
      const auto to = out.row(run.first_row + r);
      std::ranges::transform(to, local.row(r), to.begin(), std::plus());
    }
  }
  round_between(profile, out.values());
  require_finite(out, step.layer, "the embeddings of n-grams");
  return out;
}

}  // namespace ingot::inference
