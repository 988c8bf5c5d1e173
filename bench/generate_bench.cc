// The forward pass on a checkpoint of real widths: decoding against reading the bytes that a token
// needs, sparse attention against the number of cached tokens, experts on demand, batches, drafts.
//
// usage: generate_bench DIRECTORY [threads] [rounds]
// DIRECTORY: `ingot synth DIR --family deepseek_v32 --layers 3 --dense-layers 1 --experts 32
// --vocab 8192 --fp8-grid ue8m0`; with `--mtp-layers 0` drafts are left out.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>
#include <vector>

#include "bench/bandwidth.h"
#include "bench/timing.h"
#include "formats/base/error.h"
#include "inference/family/model_family.h"
#include "inference/generate/generate.h"
#include "inference/generate/memory_plan.h"
#include "inference/model/attention/attention.h"
#include "inference/model/model_memory.h"
#include "shard/join/source.h"

namespace ingot::bench {
namespace {

using SteadyClock = std::chrono::steady_clock;

double seconds_since(SteadyClock::time_point start) {
  return std::chrono::duration<double>(SteadyClock::now() - start).count();
}

struct Setting {
  const formats::Checkpoint& source;
  std::size_t threads, rounds;
};

// Bytes of weights that one token multiplies: everything resident but the embedding, and its
// experts.
std::uint64_t active_bytes(const Setting& setting, const inference::ModelSpec& spec) {
  const inference::WeightStore weights(setting.source, inference::Profile::kNative, 1);
  const auto shape = inference::expert_shape(spec, {}, false);
  const auto need = inference::need_of_weights(weights, shape, false, spec);
  const std::uint64_t embedding = weights.bytes_of({.name = "model.embed_tokens.weight",
                                                    .whole = {spec.vocab, spec.hidden},
                                                    .rows = {0, spec.vocab},
                                                    .cols = {0, spec.hidden}});
  if (spec.router() == nullptr) return need.resident - embedding;
  return need.resident - embedding + need.experts / shape.n_experts * spec.router()->topk;
}

inference::Lists some_prompts(const inference::ModelSpec& spec, std::size_t n) {
  inference::Lists prompts(n, std::vector<std::int32_t>(16));
  std::size_t next = 5;
  for (auto& ids : prompts) {
    for (std::int32_t& id : ids) id = static_cast<std::int32_t>((next += 97) % spec.vocab);
  }
  return prompts;
}

inference::GenerateOptions greedy_answers() {
  inference::GenerateOptions options;
  options.sampling.temperature = 0;
  options.max_new_tokens = 17;
  return options;
}

void decode(const Setting& setting, inference::Profile profile) {
  inference::OneRank comm;
  const auto model =
      inference::Model(setting.source, {}, comm,
                       {.profile = profile, .threads = setting.threads, .without_mtp = true});
  const inference::GenerateOptions options = greedy_answers();
  const std::uint64_t active = active_bytes(setting, model.spec());
  std::vector<double> ratios, rates;
  for (std::size_t round = 0; round < setting.rounds; ++round) {
    const double bandwidth = read_bandwidth(setting.threads);
    const auto times = generate(model, some_prompts(model.spec(), 1), options).times;
    const double rate = static_cast<double>(times.decode_tokens) / times.decode_seconds;
    rates.push_back(rate);
    ratios.push_back(rate * static_cast<double>(active) / bandwidth);
  }
  std::printf("decode, %s, experts resident: %.2f tokens/s, %.2f GB active, %.2f of bandwidth\n",
              std::string(inference::profile_name(profile)).c_str(), median(rates),
              static_cast<double>(active) / 1e9, median(ratios));
}

// Seconds of one decoding row's attention over 2048 chosen of `n_cached` tokens, indexer apart.
double sparse_attention(const inference::MlaAttention& attention,
                        const inference::StepContext& context, inference::KvCache& cache,
                        inference::SequenceId sequence, std::size_t n_cached) {
  std::mt19937 random(7);
  std::vector<std::uint32_t> everything(n_cached), chosen;
  std::iota(everything.begin(), everything.end(), 0U);
  std::ranges::sample(everything, std::back_inserter(chosen), 2048, random);
  inference::Selection selection = {chosen};
  const inference::Row row{.sequence = sequence,
                           .position = static_cast<std::uint32_t>(n_cached - 1),
                           .is_answer = true};
  const inference::StepRows rows({&row, 1});
  inference::Matrix x(1, context.spec.hidden);
  std::ranges::fill(x.values(), 0.5F);
  const auto start = SteadyClock::now();
  static_cast<void>(attention.partial({.context = context,
                                       .rows = rows,
                                       .layer = 1,
                                       .cache_layer = 0,
                                       .cache = cache,
                                       .key_cache = cache,
                                       .selection = selection,
                                       .taps = {}},
                                      x));
  return seconds_since(start);
}

void sparse(const Setting& setting) {
  constexpr std::size_t kFew = 4096, kMany = 16384;
  auto spec = inference::model_spec(setting.source.family(), setting.source.config());
  if (spec.indexer() == nullptr) return;
  inference::LatentSpec latent = *spec.layers[1].find<inference::LatentSpec>();
  latent.indexer.reset();  // the choice is given
  latent.takes_earlier_choice = true;
  inference::OneRank comm;
  const inference::StepContext context{
      .spec = spec, .profile = inference::Profile::kF32, .threads = setting.threads, .comm = comm};
  const inference::WeightStore weights(setting.source, context.profile, setting.threads);
  const inference::MlaAttention attention(inference::BlockWeights(weights, 1), context, latent);
  inference::KvCache cache(
      {inference::cache_streams(spec, {}, context.profile, inference::KvFormat::kBf16, 1)}, kMany);
  const auto sequence = cache.add();
  cache.reserve(sequence, kMany);
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  for (std::size_t stream = 0; stream < 2; ++stream) {
    std::vector<float> values(cache.streams(0)[stream].width);
    for (std::size_t t = 0; t < kMany; ++t) {
      std::ranges::generate(values, [&] { return normal(random); });
      cache.write(sequence, 0, stream, t, values);
    }
  }
  std::vector<double> ratios, seconds;
  for (std::size_t round = 0; round < 4 * setting.rounds; ++round) {
    const double few = sparse_attention(attention, context, cache, sequence, kFew);
    const double many = sparse_attention(attention, context, cache, sequence, kMany);
    seconds.push_back(many);
    ratios.push_back(many / few);
  }
  std::printf(
      "sparse attention, a token over 2048 of 16384 cached: %.1f ms, %.2f of that over 4096\n",
      median(seconds) * 1e3, median(ratios));
}

// Answer tokens of n sequences in a step, against one read of the weights that any of them needs:
// of E experts, k a token, evenly and independently chosen, n tokens need E (1 - (1 - k/E)^n).
void batches(const Setting& setting) {
  inference::OneRank comm;
  const auto model =
      inference::Model(setting.source, {}, comm, {.threads = setting.threads, .without_mtp = true});
  const inference::ModelSpec& spec = model.spec();
  if (spec.router() == nullptr) return;
  const inference::WeightStore weights(setting.source, inference::Profile::kNative, 1);
  const auto need =
      inference::need_of_weights(weights, inference::expert_shape(spec, {}, false), false, spec);
  const double share =
      static_cast<double>(spec.router()->topk) / static_cast<double>(spec.router()->experts);
  const double expert_bytes = static_cast<double>(need.experts);
  const double others = static_cast<double>(active_bytes(setting, spec)) - share * expert_bytes;
  for (const std::size_t n : {1U, 8U, 32U}) {
    const double read = others + expert_bytes * (1 - std::pow(1 - share, static_cast<double>(n)));
    std::vector<double> ratios, rates;
    for (std::size_t round = 0; round < setting.rounds; ++round) {
      const double bandwidth = read_bandwidth(setting.threads);
      const auto result = generate(model, some_prompts(spec, n), greedy_answers());
      const double rate =
          static_cast<double>(result.times.decode_tokens) / result.times.decode_seconds;
      rates.push_back(rate);
      ratios.push_back(rate / static_cast<double>(n) * read / bandwidth);
    }
    std::printf(
        "%2zu sequences, native, experts resident: %.1f tokens/s, %.2f GB a step by "
        "arithmetic, %.2f of bandwidth\n",
        n, median(rates), read / 1e9, median(ratios));
  }
}

void on_demand(const Setting& setting) {
  inference::OneRank comm;
  const auto spec = inference::model_spec(setting.source.family(), setting.source.config());
  const inference::GenerateOptions options = greedy_answers();
  std::vector<double> per_token;
  for (const std::size_t n : {1U, 8U, 32U}) {
    const auto prompts = some_prompts(spec, n);
    const auto lengths = final_lengths(spec, prompts, options.max_new_tokens);
    const auto need = run_memory(setting.source, inference::Profile::kNative, options.kv_format,
                                 lengths, setting.threads);
    // Room for a quarter of the experts.
    const std::uint64_t limit = need.least() + (need.experts - need.two_experts) / 4;
    const auto model = inference::Model(setting.source, {}, comm,
                                        {.threads = setting.threads,
                                         .weight_limit = weight_limit(need, limit),
                                         .without_mtp = true});
    const auto before = model.expert_counters();
    const auto times = generate(model, prompts, options).times;
    const auto after = model.expert_counters();
    const auto n_tokens = static_cast<double>(times.prefill_tokens + times.decode_tokens);
    per_token.push_back(static_cast<double>(after.bytes_read - before.bytes_read) / n_tokens);
    std::printf(
        "%2zu sequences, experts on demand in a quarter of their memory: decode %.2f s per "
        "token, %.3f GB read per token over all (%.2f of one sequence), prefill %.1f "
        "tokens/s\n",
        n, times.decode_seconds / static_cast<double>(times.decode_tokens), per_token.back() / 1e9,
        per_token.back() / per_token.front(),
        static_cast<double>(times.prefill_tokens) / times.prefill_seconds);
  }
}

// The cost of proposing and checking, whether or not a proposal holds.
void drafts(const Setting& setting) {
  inference::OneRank comm;
  const auto model = inference::Model(setting.source, {}, comm, {.threads = setting.threads});
  if (!model.has_mtp()) return;
  for (const std::size_t n : {1U, 8U}) {
    double without = 0;
    for (const std::size_t k : {0U, 1U, 2U}) {
      inference::GenerateOptions options = greedy_answers();
      options.drafts = k;
      std::vector<double> seconds;
      inference::DraftCounts counts;
      for (std::size_t round = 0; round < setting.rounds; ++round) {
        const auto result = generate(model, some_prompts(model.spec(), n), options);
        counts = result.drafts;
        seconds.push_back(result.times.decode_seconds / static_cast<double>(counts.passes));
      }
      if (k == 0) without = median(seconds);
      std::printf(
          "%zu sequences, %zu drafts, native: %.1f ms a pass, %.2f of that without, %.2f "
          "tokens a pass\n",
          n, k, median(seconds) * 1e3, median(seconds) / without,
          static_cast<double>(counts.tokens) / static_cast<double>(counts.passes));
    }
  }
}

int run(int argc, char** argv) {
  if (argc < 2) {
    std::fputs("usage: generate_bench DIRECTORY [threads] [rounds]\n", stderr);
    return 2;
  }
  const std::size_t threads = argc > 2 ? std::strtoul(argv[2], nullptr, 10) : 2;
  const std::size_t rounds = argc > 3 ? std::strtoul(argv[3], nullptr, 10) : 5;
  const formats::Checkpoint source = shard::open_source(argv[1]);
  const Setting setting{source, threads, rounds};
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  std::printf("%zu threads, %zu rounds, medians\n", threads, rounds);
  for (const auto profile : {inference::Profile::kF32, inference::Profile::kNative}) {
    decode(setting, profile);
  }
  sparse(setting);
  on_demand(setting);
  batches(setting);
  drafts(setting);
  return 0;
}

}  // namespace
}  // namespace ingot::bench

int main(int argc, char** argv) {
  try {
    return ingot::bench::run(argc, argv);
  } catch (const ingot::Error& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 2;
  }
}
