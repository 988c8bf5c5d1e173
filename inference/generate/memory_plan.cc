#include "inference/generate/memory_plan.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <vector>

#include <fmt/format.h>

#include "formats/base/checked.h"
#include "formats/base/error.h"
#include "inference/family/model_family.h"
#include "inference/generate/generate.h"
#include "inference/kernels/matmul_task.h"
#include "inference/model/decoder_layer.h"
#include "inference/model/model_memory.h"
#include "inference/model/step/step.h"

namespace ingot::inference {
namespace {

std::string megabytes(std::uint64_t n_bytes) {
  return fmt::format("{} MB", (n_bytes + 999'999) / 1'000'000);
}

// The program itself, tokenizer included, and its facts about each stored tensor.
constexpr std::uint64_t kProgram = std::uint64_t{48} << 20U;
constexpr std::uint64_t kBytesPerStoredTensor = 1024;

// Values alive at once in a block, per row of a step.
struct ValuesPerRow {
  std::size_t threads;

  std::size_t operator()(const LatentSpec& spec) const {
    return spec.heads * (spec.nope + spec.rope_dim + spec.v + 2 * spec.kv_lora) +
           (spec.indexer ? spec.indexer->heads * spec.indexer->head_dim : 0);
  }
  std::size_t operator()(const GroupedSpec& spec) const {
    // Layers that choose blocks: index heads, and which tokens each of them chose.
    const BlockIndexSpec blocks = spec.blocks.value_or(BlockIndexSpec());
    // Logits by distance of the heads that are computed at once.
    const DistanceSpec distances = spec.distances.value_or(DistanceSpec());
    return 2 * (spec.heads + spec.kv_heads) * std::max(spec.head_dim, spec.value_dim) +
           blocks.heads * (blocks.head_dim + blocks.topk * blocks.size) +
           spec.heads * distances.values + std::min(threads, spec.heads) * distances.extent;
  }
  std::size_t operator()(const CompressedSpec& spec) const {
    const std::size_t series = spec.compressor && spec.compressor->overlap ? 2 : 1;
    const std::size_t entry = spec.head_dim + spec.index_head_dim;
    return 2 * spec.heads * spec.head_dim + spec.q_lora + spec.out_groups * spec.out_lora +
           8 * series * entry + spec.index_heads * spec.index_head_dim;
  }
  std::size_t operator()(const DeltaNetSpec& spec) const {
    return 6 * (2 * spec.key_heads * spec.key_dim + 2 * spec.value_heads * spec.value_dim) +
           spec.value_heads * spec.key_dim;
  }
  std::size_t operator()(const StateSpaceSpec& spec) const {
    return 6 * (spec.heads * (spec.head_dim + 1) + spec.groups * spec.state);
  }
  std::size_t operator()(const SelectiveScanSpec& spec) const {
    return 6 * (spec.channels + spec.step_rank + spec.state);
  }
  std::size_t operator()(const LightningSpec& spec) const { return 6 * spec.heads * spec.head_dim; }
  std::size_t operator()(const GatedConvolutionSpec& spec) const { return 6 * spec.channels; }
  std::size_t operator()(const MlpSpec& spec) const { return 3 * spec.width; }
  std::size_t operator()(const MixtureSpec& spec) const {
    return 3 * std::max({spec.expert.width * spec.router.topk, spec.shared ? spec.shared->width : 0,
                         spec.dense ? spec.dense->width : 0});
  }
};

// The same per cached token of the longest sequence.
struct ValuesPerToken {
  std::size_t threads;

  std::size_t operator()(const LatentSpec& spec) const {
    const std::size_t indexer =
        spec.indexer ? spec.indexer->head_dim + threads * (spec.indexer->heads + 1) : 0;
    return indexer + 2 * (spec.kv_lora + spec.rope_dim) +
           threads * (spec.nope + spec.rope_dim + spec.v);
  }
  std::size_t operator()(const GroupedSpec& spec) const {
    const std::size_t index = spec.blocks ? spec.blocks->head_dim + threads : 0;
    return spec.kv_heads * (spec.head_dim + spec.value_dim) + 1 + index;
  }
  // Keys of the rows that are computed at once, all entries, and the indexer's products.
  std::size_t operator()(const CompressedSpec& spec) const {
    if (!spec.compressor) return 0;
    const std::size_t per_entry = (2 + threads) * spec.head_dim + spec.index_head_dim +
                                  threads * (spec.index_heads + 2 * spec.heads);
    return ceil_div(per_entry, spec.compressor->ratio);
  }
  template <typename Body>
  std::size_t operator()(const Body&) const {
    return 0;
  }
};

// The most that any block needs.
template <typename Values>
std::size_t most_of_blocks(const ModelSpec& spec, const Values& values) {
  std::size_t most = 0;
  for (const LayerSpec& layer : spec.layers) {
    for (const BlockSpec& block : layer.blocks)
      most = std::max(most, std::visit(values, block.body));
  }
  return most;
}

// Values alive at once in a layer, per row of a step.
std::size_t values_per_row(const ModelSpec& spec, std::size_t threads) {
  // The residual and its norm, and what blocks keep for others.
  std::size_t states = 4;
  for (const LayerSpec& layer : spec.layers) {
    const bool keeps = std::ranges::any_of(
        layer.blocks, [](const BlockSpec& block) { return block.input_of.has_value(); });
    states = std::max<std::size_t>(states, keeps || layer.short_convolution > 0 ? 6 : 4);
  }
  return states * spec.hidden + 4 * spec.stream_width() +
         most_of_blocks(spec, ValuesPerRow{threads});
}

// Values alive at once per cached token of the longest sequence.
std::size_t values_per_token(const ModelSpec& spec, std::size_t threads) {
  constexpr std::size_t kQueryBlock = 32;
  return 2 * kQueryBlock * threads + most_of_blocks(spec, ValuesPerToken{threads});
}

// The memory of a step of so many rows, without weights, caches and logits.
std::uint64_t step_memory(const ModelSpec& spec, std::uint64_t rows, std::uint64_t longest,
                          std::size_t threads) {
  // Keys and values of as many heads as are expanded at once.
  constexpr std::uint64_t kExpanded = std::uint64_t{64} << 20U;
  std::uint64_t expanded = 0, windows = 0;
  for (const LayerSpec& layer : spec.layers) {
    if (const auto* latent = layer.find<LatentSpec>()) {
      const std::uint64_t per_head = latent->nope + latent->v;
      const std::uint64_t at_once = std::min(longest * latent->heads, kExpanded / 4 / per_head);
      expanded = std::max(expanded, std::max(at_once, longest) * per_head * sizeof(float));
    } else if (const auto* compressed = layer.find<CompressedSpec>()) {
      windows = std::max<std::uint64_t>(
          windows, (2 + 2 * threads) * compressed->window * compressed->head_dim);
    }
  }
  return (rows * values_per_row(spec, threads) + longest * values_per_token(spec, threads) +
          windows) *
             sizeof(float) +
         expanded + threads * sizeof(MatmulTiles);
}

std::uint64_t program_memory(const formats::Checkpoint& source) {
  return kProgram + source.stored().size() * kBytesPerStoredTensor;
}

struct TokenCount {
  std::uint64_t in_pages = 0;  // whole pages of every sequence
  std::uint64_t longest = 0;
};

TokenCount count_tokens(std::span<const std::size_t> lengths) {
  TokenCount count;
  for (const std::size_t length : lengths) {
    count.in_pages += round_up(length, KvCache::kPageTokens);
    count.longest = std::max<std::uint64_t>(count.longest, length);
  }
  return count;
}

}  // namespace

RunMemory run_memory(const formats::Checkpoint& source, Profile profile, KvFormat format,
                     std::span<const std::size_t> final_lengths, std::size_t threads,
                     std::size_t drafts, std::size_t batch_tokens) {
  const ModelSpec spec = model_spec(source);
  const RankView rank = rank_view(source);
  const WeightStore weights(source, profile, threads);
  const bool with_mtp = drafts > 0 && rank.is_last_stage() && MtpLayer::is_in(weights, spec);
  RunMemory need{need_of_weights(weights, expert_shape(spec, rank, with_mtp), with_mtp, spec)};
  std::vector<std::vector<CacheStream>> streams;
  const Range stage = stage_part(rank, spec.n_main);
  for (std::size_t l = stage.first; l < stage.first + stage.count; ++l) {
    streams.push_back(cache_streams(spec, rank, profile, format, l));
  }
  if (with_mtp) streams.push_back(cache_streams(spec, rank, profile, format, spec.n_main));
  const auto [n_tokens, longest] = count_tokens(final_lengths);
  need.sequence = KvCache::bytes_per_sequence(streams);
  need.cache = n_tokens * KvCache::bytes_per_token(streams) + final_lengths.size() * need.sequence;
  need.cache_tokens = n_tokens;

  const std::uint64_t rows = std::min<std::uint64_t>(n_tokens, batch_tokens);
  const std::uint64_t answer_rows =
      std::min<std::uint64_t>(final_lengths.size() * (1 + drafts), rows);
  need.scratch = step_memory(spec, rows, longest, threads) +
                 answer_rows * 3 * spec.vocab * sizeof(float) + program_memory(source);
  return need;
}

RunMemory stream_memory(const formats::Checkpoint& source, Profile profile,
                        std::span<const std::size_t> lengths, std::size_t threads) {
  const ModelSpec spec = model_spec(source);
  const WeightStore weights(source, profile, threads);
  RunMemory need;
  for (const formats::LogicalTensor& tensor : source.tensors()) {
    if (tensor.layer) continue;
    std::uint64_t n_bytes = 0;
    tensor.encoding.stored.for_each(
        [&](formats::Part, std::uint32_t stored) { n_bytes += source.stored()[stored].n_bytes; });
    need.resident = std::max(need.resident, n_bytes);
  }
  const TokenCount tokens = count_tokens(lengths);
  const RankView rank = rank_view(source);
  const ExpertShape all = expert_shape(spec, rank, true);
  const auto cache_of = [&](std::size_t l) {
    const std::vector<std::vector<CacheStream>> streams = {
        cache_streams(spec, rank, profile, plain_kv_format(profile), l)};
    return tokens.in_pages * KvCache::bytes_per_token(streams) +
           lengths.size() * KvCache::bytes_per_sequence(streams);
  };
  for (std::size_t l = 0; l < spec.layers.size(); ++l) {
    const bool is_there =
        std::any_of(source.tensors().begin(), source.tensors().end(),
                    [&](const formats::LogicalTensor& tensor) { return tensor.layer == l; });
    if (!is_there) continue;
    const auto at = static_cast<std::uint32_t>(l);
    const WeightNeed layer = need_of_layer(weights, all.of_layer(at), at);
    need.resident = std::max(need.resident, layer.resident);
    need.experts = std::max(need.experts, layer.experts);
    need.two_experts = std::max(need.two_experts, layer.two_experts);
    // In addition to the layer's own, keys of earlier ones that are still read.
    std::uint64_t caches = cache_of(l);
    for (std::size_t before = 0; before < std::min(l, spec.n_main); ++before) {
      if (spec.last_reader(before) >= l) caches += cache_of(before);
    }
    need.cache = std::max(need.cache, caches);
  }
  need.scratch =
      step_memory(spec, tokens.in_pages, tokens.longest, threads) + program_memory(source);
  return need;
}

MemoryShare share_memory(const RunMemory& need, std::span<const std::size_t> final_lengths,
                         std::size_t batch_tokens, std::uint64_t limit) {
  if (need.cache_tokens == 0) return {.weights = weight_limit(need, limit)};
  std::vector<std::uint64_t> lengths;
  for (const std::size_t length : final_lengths)
    lengths.push_back(round_up(length, KvCache::kPageTokens));
  std::ranges::sort(lengths, std::greater());
  lengths.resize(std::min(lengths.size(), batch_tokens));
  const std::uint64_t longest = lengths.front();
  const std::uint64_t most = std::accumulate(lengths.begin(), lengths.end(), std::uint64_t{0});
  const std::uint64_t states = lengths.size() * need.sequence;
  const std::uint64_t per_token =
      (need.cache - final_lengths.size() * need.sequence) / need.cache_tokens;
  RunMemory planned = need;
  planned.cache = longest * per_token + states;
  const std::uint64_t spare = weight_limit(planned, limit) - need.resident - need.two_experts;
  const std::uint64_t beside_all = limit - std::min(limit, planned.all());
  const std::uint64_t more =
      std::max(spare / 4, beside_all) / std::max<std::uint64_t>(per_token, 1);
  const std::uint64_t n_tokens = std::min(most, round_down(longest + more, KvCache::kPageTokens));
  planned.cache = n_tokens * per_token + states;
  return {.cache_tokens = n_tokens, .weights = weight_limit(planned, limit)};
}

std::uint64_t weight_limit(const RunMemory& need, std::uint64_t limit) {
  if (limit >= need.least()) return limit - need.cache - need.scratch;
  throw Error(ErrorCode::kLimit,
              "{} of memory do not suffice: the caches take {}, a step {}, resident weights {} and "
              "two experts {}; --mem-limit {}MB would be enough, {}MB for all experts",
              megabytes(limit), megabytes(need.cache), megabytes(need.scratch),
              megabytes(need.resident), megabytes(need.two_experts),
              (need.least() + 999'999) / 1'000'000, (need.all() + 999'999) / 1'000'000);
}

}  // namespace ingot::inference
