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

// The most that any block needs.
MixerMemory most_of_blocks(const ModelSpec& spec, std::size_t threads, std::uint64_t longest) {
  MixerMemory most;
  const auto add = [&](const MixerMemory& block) {
    most.per_row = std::max(most.per_row, block.per_row);
    most.per_token = std::max(most.per_token, block.per_token);
    most.fixed = std::max(most.fixed, block.fixed);
  };
  const auto width = [](const std::optional<MlpSpec>& mlp) { return mlp ? mlp->width : 0; };
  for (const LayerSpec& layer : spec.layers) {
    for (const BlockSpec& block : layer.blocks) {
      if (const auto* mlp = block.as<MlpSpec>()) {
        add({.per_row = 3 * mlp->width});
      } else if (const auto* experts = block.as<MixtureSpec>()) {
        add({.per_row = 3 * std::max({experts->expert.width * experts->router.topk,
                                      width(experts->shared), width(experts->dense)})});
      } else {
        add(std::get<MixerSpec>(block.body).memory(threads, longest));
      }
    }
  }
  return most;
}

// The memory of a step of so many rows, without weights, caches and logits.
std::uint64_t step_memory(const ModelSpec& spec, std::uint64_t rows, std::uint64_t longest,
                          std::size_t threads) {
  constexpr std::size_t kQueryBlock = 32;
  // States per row: the residual and its norm, and inputs of a block that later blocks read.
  std::size_t states = 4;
  for (const LayerSpec& layer : spec.layers) {
    const bool keeps = std::ranges::any_of(
        layer.blocks, [](const BlockSpec& block) { return block.input_of.has_value(); });
    if (keeps || layer.short_convolution > 0) states = 6;
  }
  const MixerMemory block = most_of_blocks(spec, threads, longest);
  const std::uint64_t per_row = states * spec.hidden + 4 * spec.stream_width() + block.per_row;
  const std::uint64_t per_token = 2 * kQueryBlock * threads + block.per_token;
  return (rows * per_row + longest * per_token + block.fixed) * sizeof(float) +
         threads * sizeof(MatmulTiles);
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
    streams.insert(streams.end(), spec.visits(l), cache_streams(spec, rank, profile, format, l));
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
    // The layer's own keys, and those of earlier layers that are still read.
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
