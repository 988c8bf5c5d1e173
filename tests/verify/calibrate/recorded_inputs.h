#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "inference/model/attention/attention.h"
#include "shard/join/source.h"
#include "tests/convert/conversion.h"
#include "tests/convert/output_tensors.h"
#include "tests/inference/model/runner.h"
#include "tests/support/test.h"
#include "verify/calibrate/calibrate.h"

// Inputs of tiny-v32's linears, that follow from the hidden states of another pass over the model.

namespace ingot::testing {

/// Documents of these lengths, of token ids below `vocab`.
inline std::vector<verify::Prompt> random_documents(const std::vector<std::size_t>& lengths,
                                                    std::uint32_t vocab = 2048,
                                                    std::uint32_t seed = 11) {
  std::mt19937 random(seed);
  std::vector<verify::Prompt> documents;
  for (const std::size_t length : lengths) {
    verify::Prompt& document = documents.emplace_back();
    for (std::size_t i = 0; i < length; ++i)
      document.ids.push_back(static_cast<std::int32_t>(random() % vocab));
  }
  return documents;
}

/// Calibrates a checkpoint directory.
inline verify::CalibrationReport run_calibration(const std::filesystem::path& model,
                                                 const std::vector<verify::Prompt>& documents,
                                                 const std::filesystem::path& out,
                                                 const verify::RunOptions& options = {},
                                                 const verify::CalibrationOptions& what = {}) {
  return verify::calibrate(shard::open_source(model), documents, out, options, what);
}

/// Every statistic of a file.
inline OutputTensors read_statistics(const std::filesystem::path& file) {
  OutputTensors tensors;
  add_file(file, tensors);
  return tensors;
}

using Rows = std::vector<std::vector<float>>;

inline constexpr std::size_t kHidden = 256, kExperts = 16, kTopk = 4, kLayers = 5;

/// One document is long enough for the indexer to choose, and one has no token for the MTP layer.
inline const std::vector<verify::Prompt>& documents() {
  static const std::vector<verify::Prompt> all = random_documents({90, 1, 17});
  return all;
}

// The model by its other way, document by document.
struct Recorded {
  ingot::testing::OpenedModel opened{tiny_v32()};
  std::vector<Recording> documents;
  Recorded() {
    for (const verify::Prompt& document : testing::documents()) {
      documents.push_back(ingot::testing::run(
          opened.model, std::vector<std::int64_t>(document.ids.begin(), document.ids.end())));
    }
  }
};

inline const Recorded& recorded() {
  static const Recorded once;
  return once;
}

inline inference::Matrix matrix_of(const std::vector<float>& values) {
  inference::Matrix matrix(values.size() / kHidden, kHidden);
  std::ranges::copy(values, matrix.values().begin());
  return matrix;
}

// x / rms(x) * weight in double, of every row of a matrix.
inline Rows normalized(const inference::Matrix& x, const std::string& weight) {
  const inference::WeightStore weights(recorded().opened.source, inference::Profile::kF32, 1);
  const std::vector<float> factors = weights.vector(weight, {kHidden});
  Rows rows;
  for (std::size_t r = 0; r < x.rows(); ++r) {
    double sum = 0;
    for (const float value : x.row(r)) sum += double{value} * double{value};
    const double scale = 1 / std::sqrt(sum / kHidden + 1e-6);
    std::vector<float>& row = rows.emplace_back();
    for (std::size_t c = 0; c < kHidden; ++c)
      row.push_back(static_cast<float>(double{x.row(r)[c]} * scale * double{factors[c]}));
  }
  return rows;
}

inline Rows attention_inputs(std::size_t layer) {
  Rows rows;
  for (const Recording& document : recorded().documents) {
    const Rows some = normalized(matrix_of(document.hidden.at(layer)),
                                 fmt::format("model.layers.{}.input_layernorm.weight", layer));
    rows.insert(rows.end(), some.begin(), some.end());
  }
  return rows;
}

// The input of the MLP or the experts of a layer: the attention is computed once more.
inline Rows mlp_inputs(std::size_t layer) {
  const formats::Checkpoint& source = recorded().opened.source;
  const inference::ModelSpec& spec = recorded().opened.model.spec();
  const inference::WeightStore weights(source, inference::Profile::kF32, 1);
  inference::OneRank comm;
  const inference::StepContext context{.spec = spec,
                                       .profile = inference::Profile::kF32,
                                       .form = inference::AttentionForm::kAbsorbed,
                                       .threads = 1,
                                       .rank = {},
                                       .comm = comm};
  const std::string prefix = fmt::format("model.layers.{}.", layer);
  const inference::BlockWeights own(weights, static_cast<std::uint32_t>(layer));
  const inference::MlaAttention attention(own, context,
                                          *spec.layers[layer].find<inference::LatentSpec>());
  Rows all;
  for (const Recording& document : recorded().documents) {
    inference::Matrix hidden = matrix_of(document.hidden.at(layer));
    inference::Matrix x(hidden.rows(), kHidden);
    const Rows inputs = normalized(hidden, prefix + "input_layernorm.weight");
    std::vector<inference::Row> rows;
    for (std::size_t r = 0; r < x.rows(); ++r) {
      std::ranges::copy(inputs[r], x.row(r).begin());
      rows.push_back({.sequence = 0, .position = static_cast<std::uint32_t>(r)});
    }
    inference::KvCache cache({inference::cache_streams(spec, {}, inference::Profile::kF32,
                                                       inference::KvFormat::kF32, layer)},
                             128);
    cache.reserve(cache.add(), x.rows());
    inference::Selection selection;
    const inference::StepRows grouped(rows);
    const inference::Matrix attended = attention.partial({.context = context,
                                                          .rows = grouped,
                                                          .layer = layer,
                                                          .cache_layer = 0,
                                                          .cache = cache,
                                                          .key_cache = cache,
                                                          .selection = selection,
                                                          .taps = {}},
                                                         x);
    for (std::size_t i = 0; i < hidden.values().size(); ++i)
      hidden.values()[i] += attended.values()[i];
    const Rows some = normalized(hidden, prefix + "post_attention_layernorm.weight");
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

// y = W x of every row, in double.
inline Rows product(const Rows& x, const std::string& name, std::size_t n) {
  const inference::WeightStore weights(recorded().opened.source, inference::Profile::kF32, 1);
  const std::size_t k = x.at(0).size();
  const inference::Linear linear = weights.linear(name, n, k, {0, n}, {0, k});
  Rows out(x.size());
  std::vector<float> decoded(k);
  for (std::size_t row = 0; row < n; ++row) {
    inference::decode_row(linear.weight(), row, decoded);
    for (std::size_t i = 0; i < x.size(); ++i) {
      double sum = 0;
      for (std::size_t c = 0; c < k; ++c) sum += double{decoded[c]} * double{x[i][c]};
      out[i].push_back(static_cast<float>(sum));
    }
  }
  return out;
}

}  // namespace ingot::testing
