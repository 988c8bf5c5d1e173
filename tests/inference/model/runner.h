#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "formats/checkpoint/checkpoint.h"
#include "inference/model/model.h"
#include "inference/parallel/comm.h"
#include "shard/join/source.h"

namespace ingot::testing {

/// Frobenius norm of the difference over that of `wanted`.
inline double relative_error(std::span<const float> is, std::span<const float> wanted) {
  double difference = 0, size = 0;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const double d = double{is[i]} - double{wanted[i]};
    difference += d * d;
    size += double{wanted[i]} * double{wanted[i]};
  }
  return is.size() == wanted.size() ? std::sqrt(difference / size) : INFINITY;
}

inline inference::ModelOptions f32_options(
    inference::AttentionForm form = inference::AttentionForm::kAuto, std::size_t threads = 1) {
  return {.profile = inference::Profile::kF32, .form = form, .threads = threads};
}

/// An opened model with its source and its one rank.
struct OpenedModel {
  explicit OpenedModel(const std::filesystem::path& directory,
                       const inference::ModelOptions& options = f32_options())
      : OpenedModel(shard::open_source(directory), options) {}
  OpenedModel(formats::Checkpoint checkpoint, const inference::ModelOptions& options)
      : source(std::move(checkpoint)), model(source, {}, comm, options) {}

  inference::OneRank comm;
  formats::Checkpoint source;
  inference::Model model;
};

/// Bytes that a token takes in the caches of all layers, in FP32.
inline std::uint64_t cache_bytes_per_token(const inference::Model& model) {
  inference::ModelCache cache = model.make_cache(inference::KvFormat::kF32, 0);
  std::uint64_t n_bytes = 0;
  for (const inference::KvCache* part : {&cache.main(), &cache.mtp()}) {
    for (std::size_t l = 0; l < part->n_layers(); ++l)
      n_bytes += inference::KvCache::bytes_per_token({part->streams(l)});
  }
  return n_bytes;
}

/// Everything that a forward pass over one sequence shows.
struct Recording {
  std::map<std::size_t, std::vector<float>> hidden;  ///< by index, [tokens x D]
  std::map<std::size_t, std::vector<std::uint32_t>> experts;
  std::map<std::size_t, std::vector<float>> expert_weights;
  std::vector<float> logits;   ///< [tokens x vocab]
  std::vector<float> normed;   ///< [tokens x D]
  std::size_t n_selected = 0;  ///< rows for which the indexer had to choose
  /// Positions that it chose, by layer and row of the step.
  std::map<std::pair<std::size_t, std::size_t>, std::vector<std::uint32_t>> selected;

  inference::Taps taps() {
    return {
        .hidden =
            [this](std::size_t index, const inference::Matrix& rows) {
              auto& all = hidden[index];
              all.insert(all.end(), rows.values().begin(), rows.values().end());
            },
        .router =
            [this](std::size_t layer, std::span<const std::uint32_t> ids,
                   std::span<const float> weights) {
              experts[layer].insert(experts[layer].end(), ids.begin(), ids.end());
              expert_weights[layer].insert(expert_weights[layer].end(), weights.begin(),
                                           weights.end());
            },
        .indexer =
            [this](std::size_t layer, std::size_t row, std::span<const std::uint32_t> positions) {
              ++n_selected;
              selected[{layer, row}].assign(positions.begin(), positions.end());
            }};
  }
};

/// Feeds tokens [from, tokens.size()) in chunks and adds the results to `recording`. The answer
/// begins at token `answer`.
inline void feed_from(std::size_t from, const inference::Model& model, inference::ModelCache& cache,
                      inference::SequenceId sequence, std::span<const std::int64_t> tokens,
                      std::size_t chunk, Recording& recording, std::size_t answer = SIZE_MAX) {
  for (std::size_t first = from; first < tokens.size(); first += chunk) {
    std::vector<inference::Row> rows;
    for (std::size_t i = first; i < std::min(first + chunk, tokens.size()); ++i) {
      rows.push_back({.sequence = sequence,
                      .position = static_cast<std::uint32_t>(i),
                      .token = static_cast<std::int32_t>(tokens[i]),
                      .logits = true,
                      .is_answer = i >= answer});
    }
    inference::Matrix normed;
    const inference::Matrix logits = model.step(rows, cache, recording.taps(), &normed);
    recording.logits.insert(recording.logits.end(), logits.values().begin(), logits.values().end());
    recording.normed.insert(recording.normed.end(), normed.values().begin(), normed.values().end());
  }
}

/// The same of the tokens that the cache does not hold yet.
inline void feed(const inference::Model& model, inference::ModelCache& cache,
                 inference::SequenceId sequence, std::span<const std::int64_t> tokens,
                 std::size_t chunk, Recording& recording, std::size_t answer = SIZE_MAX) {
  feed_from(cache.main().length(sequence), model, cache, sequence, tokens, chunk, recording,
            answer);
}

inline Recording run(const inference::Model& model, std::span<const std::int64_t> tokens,
                     std::size_t chunk = SIZE_MAX / 2,
                     inference::KvFormat format = inference::KvFormat::kF32) {
  Recording recording;
  inference::ModelCache cache = model.make_cache(format, tokens.size());
  feed(model, cache, cache.add(), tokens, chunk, recording);
  return recording;
}

/// Output of a single layer for the hidden states of a sequence from its first token on.
inline inference::Matrix isolated_layer(const inference::Model& model, std::size_t layer,
                                        inference::Matrix hidden) {
  inference::ModelCache cache = model.make_cache(inference::KvFormat::kF32, hidden.rows());
  const inference::SequenceId sequence = cache.add();
  cache.main().reserve(sequence, hidden.rows());
  std::vector<inference::Row> rows;
  for (std::size_t i = 0; i < hidden.rows(); ++i) {
    rows.push_back({.sequence = sequence, .position = static_cast<std::uint32_t>(i)});
  }
  model.layer(layer, hidden, rows, cache);
  return hidden;
}

/// Cosine of every row with its counterpart.
inline std::vector<double> row_cosines(const inference::Matrix& is,
                                       const inference::Matrix& wanted) {
  std::vector<double> cosines(wanted.rows());
  for (std::size_t r = 0; r < wanted.rows(); ++r) {
    double both = 0, a = 0, b = 0;
    for (std::size_t c = 0; c < wanted.cols(); ++c) {
      const double x = is.row(r)[c], y = wanted.row(r)[c];
      both += x * y;
      a += x * x;
      b += y * y;
    }
    cosines[r] = both / std::sqrt(a * b);
  }
  return cosines;
}

inline double mean(std::span<const double> values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

inline double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values.at(values.size() / 2);
}

inline bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0);
}

/// Every hidden state and every logit is the same bits.
inline bool same_bits(const Recording& a, const Recording& b) {
  if (a.hidden.size() != b.hidden.size()) return false;
  for (const auto& [index, values] : a.hidden) {
    if (!same_bits(values, b.hidden.at(index))) return false;
  }
  return same_bits(a.logits, b.logits) && same_bits(a.normed, b.normed);
}

/// -log softmax(logits)[token], in double.
inline double negative_log_likelihood(std::span<const float> logits, std::int64_t token) {
  double top = -INFINITY, sum = 0;
  for (const float value : logits) top = std::max(top, double{value});
  for (const float value : logits) sum += std::exp(double{value} - top);
  return std::log(sum) + top - double{logits[static_cast<std::size_t>(token)]};
}

inline std::int64_t argmax(std::span<const float> values) {
  return std::max_element(values.begin(), values.end()) - values.begin();
}

/// Distance of the two largest values.
inline double top_gap(std::span<const float> values) {
  float best = -INFINITY, second = -INFINITY;
  for (const float value : values) {
    if (value > best) {
      second = best;
      best = value;
    } else {
      second = std::max(second, value);
    }
  }
  return double{best} - double{second};
}

/// Greedy continuation of at most `n` tokens, up to and with `eos`.
inline std::vector<std::int64_t> greedy(const inference::Model& model,
                                        std::span<const std::int64_t> prompt, std::size_t n,
                                        std::int64_t eos) {
  inference::ModelCache cache = model.make_cache(inference::KvFormat::kF32, prompt.size() + n + 1);
  const inference::SequenceId sequence = cache.add();
  std::vector<std::int64_t> tokens(prompt.begin(), prompt.end()), out;
  std::size_t chunk = tokens.size();
  while (out.size() < n && (out.empty() || out.back() != eos)) {
    Recording recording;
    feed(model, cache, sequence, tokens, chunk, recording, prompt.size());
    const std::size_t vocab = model.spec().vocab;
    out.push_back(argmax(std::span(recording.logits).last(vocab)));
    tokens.push_back(out.back());
    chunk = 1;
  }
  return out;
}

}  // namespace ingot::testing
