#include "verify/layers/lockstep_memory.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include <fmt/format.h>

#include "formats/base/error.h"

namespace ingot::verify {

using inference::RunMemory;

namespace {

constexpr std::size_t kMostHeadRows = 256;

RunMemory need_of(const LockstepSide& side, std::span<const std::size_t> lengths,
                  std::size_t threads) {
  std::vector<std::size_t> sequences;
  for (std::size_t copy = 0; copy < side.copies; ++copy) {
    sequences.insert(sequences.end(), lengths.begin(), lengths.end());
  }
  return inference::stream_memory(side.model, side.profile, sequences, threads);
}

// The program, and what it knows of the checkpoint.
std::uint64_t idle_memory(const LockstepSide& side, std::size_t threads) {
  return inference::stream_memory(side.model, side.profile, {}, threads).scratch;
}

// Hidden states between the layers, twice where the next ones are made of them, and choices of
// experts and positions.
std::uint64_t held_memory(const inference::ModelSpec& spec, std::size_t copies,
                          std::uint64_t rows) {
  const std::uint64_t states = 2 * (1 + copies) * spec.hidden * sizeof(float);
  const std::uint64_t choices =
      2 * sizeof(std::uint32_t) *
      ((spec.router ? spec.router->topk : 0) + (spec.indexer ? spec.indexer->topk : 0));
  return rows * (states + choices);
}

}  // namespace

std::uint64_t head_bytes(const formats::Checkpoint& model, const inference::ModelSpec& spec) {
  const formats::Role role = spec.tied_head ? formats::Role::kEmbedding : formats::Role::kHead;
  std::uint64_t n_bytes = 0;
  for (const formats::LogicalTensor& tensor : model.tensors()) {
    if (tensor.rule == nullptr || tensor.rule->role != role) continue;
    tensor.encoding.stored.for_each(
        [&](formats::Part, std::uint32_t stored) { n_bytes += model.stored()[stored].n_bytes; });
  }
  return n_bytes;
}

LockstepMemory share_memory(const LockstepSide& source, const LockstepSide& output,
                            const inference::ModelSpec& spec, std::span<const std::size_t> lengths,
                            std::size_t threads, std::uint64_t limit) {
  const std::uint64_t rows = std::accumulate(lengths.begin(), lengths.end(), std::uint64_t{0});
  const std::uint64_t held = held_memory(spec, output.copies, rows);
  const RunMemory of_source = need_of(source, lengths, threads);
  const RunMemory of_output = need_of(output, lengths, threads);
  const std::uint64_t source_idle = idle_memory(source, threads);
  const std::uint64_t output_idle = idle_memory(output, threads);

  const std::uint64_t beside_source = held + output_idle + of_source.cache + of_source.scratch;
  const std::uint64_t beside_output = held + source_idle + of_output.cache + of_output.scratch;
  const std::uint64_t for_heads = held + source_idle + output_idle +
                                  head_bytes(source.model, spec) + head_bytes(output.model, spec);
  const std::uint64_t head_row = 2 * (spec.vocab + spec.hidden) * sizeof(float);

  const std::uint64_t enough =
      std::max({beside_source + of_source.resident + of_source.two_experts,
                beside_output + of_output.resident + of_output.two_experts, for_heads + head_row});
  if (limit < enough) {
    throw Error(ErrorCode::kLimit,
                fmt::format("{} MB of memory do not suffice to compare layers: hidden states of {} "
                            "tokens take {} MB, a layer at work up to {} MB; --mem-limit {}MB "
                            "would be enough",
                            limit / 1'000'000, rows, (held + 999'999) / 1'000'000,
                            (enough - held + 999'999) / 1'000'000, (enough + 999'999) / 1'000'000));
  }
  return {.source_weights = limit - beside_source,
          .output_weights = limit - beside_output,
          .head_rows = static_cast<std::size_t>(
              std::min<std::uint64_t>(kMostHeadRows, (limit - for_heads) / head_row))};
}

}  // namespace ingot::verify
