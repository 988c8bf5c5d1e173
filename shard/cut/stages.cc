#include "shard/cut/stages.h"

#include <algorithm>
#include <optional>

#include <fmt/format.h>

#include "formats/base/checked.h"
#include "formats/base/error.h"
#include "formats/base/words.h"

namespace ingot::shard {

using formats::Role;

namespace {

/// Bytes of each main layer; the first includes the tensors before the layers, the last those after
/// them.
std::vector<std::uint64_t> layer_bytes(const formats::TensorSource& source,
                                       std::span<const std::uint64_t> n_bytes) {
  const std::span<const formats::LogicalTensor> tensors = source.tensors();
  INGOT_CHECK(n_bytes.size() == tensors.size());
  std::vector<std::uint64_t> layers(static_cast<std::size_t>(source.config().num_hidden_layers));
  if (layers.empty()) return layers;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const formats::TensorRule* rule = tensors[i].rule;
    if (rule == nullptr) continue;
    if (tensors[i].layer) {
      layers[std::min<std::size_t>(*tensors[i].layer, layers.size() - 1)] += n_bytes[i];
    } else if (rule->role == Role::kEmbedding) {
      layers.front() += n_bytes[i];
    } else if (rule->role == Role::kFinalNorm || rule->role == Role::kHead) {
      layers.back() += n_bytes[i];
    }
  }
  return layers;
}

/// Fills stage after stage up to `limit` bytes, leaving a layer for each later one. Nullopt when
/// the last stage would exceed it.
std::optional<std::vector<std::uint32_t>> filled(std::span<const std::uint64_t> layers,
                                                 std::uint32_t pp, std::uint64_t limit) {
  std::vector<std::uint32_t> first = {0};
  std::size_t next = 0;
  for (std::uint32_t stage = 0; stage < pp; ++stage) {
    const std::size_t end = layers.size() - (pp - 1 - stage);
    const bool is_last = stage + 1 == pp;
    std::uint64_t total = 0;
    const std::size_t begin = next;
    while (next < end && total + layers[next] <= limit) total += layers[next++];
    if (next == begin || (is_last && next < end)) return std::nullopt;
    first.push_back(static_cast<std::uint32_t>(next));
  }
  return first;
}

Error bad_stages(std::string_view text, std::string_view fact) {
  return Error(ErrorCode::kInvalidArgument,
               "'{}' {} (stages are ranges of layers such as 0-30,31-60)", text, fact);
}

}  // namespace

std::uint32_t Stages::stage_of(std::uint32_t layer) const {
  const auto after = std::upper_bound(first.begin(), first.end(), layer);
  const auto stage = static_cast<std::uint32_t>(after - first.begin());
  return std::min(stage == 0 ? 0 : stage - 1, count() - 1);
}

Stages balanced_stages(const formats::TensorSource& source, std::span<const std::uint64_t> n_bytes,
                       std::uint32_t pp) {
  INGOT_CHECK(pp > 0);
  const std::vector<std::uint64_t> layers = layer_bytes(source, n_bytes);
  const auto n_layers = narrow<std::uint32_t>(layers.size(), "the number of layers");
  if (pp == 1) return {.first = {0, n_layers}};
  if (pp > n_layers) {
    throw Error(ErrorCode::kInvalidArgument,
                "--pp {} needs a layer for each stage, the model has {} (choose at most {})", pp,
                n_layers, n_layers);
  }
  std::uint64_t low = 0;
  std::uint64_t high = 0;
  for (const std::uint64_t bytes : layers) high += bytes;
  while (low < high) {
    const std::uint64_t middle = low + (high - low) / 2;
    if (filled(layers, pp, middle)) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return {.first = filled(layers, pp, high).value()};
}

Stages parse_stages(std::string_view text, std::uint32_t n_layers, std::uint32_t pp) {
  Stages stages = {.first = {0}};
  std::string_view rest = text;
  while (true) {
    const std::size_t comma = rest.find(',');
    const std::string_view range = rest.substr(0, comma);
    const std::size_t dash = range.find('-');
    const auto first = number_from(range.substr(0, dash));
    const auto last =
        dash == std::string_view::npos ? std::nullopt : number_from(range.substr(dash + 1));
    if (!first || !last)
      throw bad_stages(text, fmt::format("holds '{}', which is no range", range));
    if (*first != stages.first.back()) {
      throw bad_stages(text, fmt::format("has a stage from layer {}, it must begin with layer {}",
                                         *first, stages.first.back()));
    }
    if (*last < *first)
      throw bad_stages(text, fmt::format("has the range {} that ends before it begins", range));
    if (*last >= n_layers) {
      throw bad_stages(text, fmt::format("names layer {}, the model has {} main layers, counted "
                                         "from 0",
                                         *last, n_layers));
    }
    stages.first.push_back(*last + 1);
    if (comma == std::string_view::npos) break;
    rest.remove_prefix(comma + 1);
  }
  if (stages.first.back() != n_layers) {
    throw bad_stages(text, fmt::format("ends with layer {}, the last main layer is {}",
                                       stages.first.back() - 1, n_layers - 1));
  }
  if (stages.count() != pp)
    throw bad_stages(text, fmt::format("has {} stages, --pp is {}", stages.count(), pp));
  return stages;
}

}  // namespace ingot::shard
