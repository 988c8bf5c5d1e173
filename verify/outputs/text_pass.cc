#include "verify/outputs/text_pass.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "formats/base/stop_scope.h"
#include "inference/family/model_family.h"
#include "inference/generate/memory_plan.h"

namespace ingot::verify {

using inference::LayerStream;
using inference::Matrix;
using inference::RunMemory;

namespace {

// Documents that pass through the model together, and the weights that there is room for then.
struct Batch {
  std::size_t first = 0, count = 0;
  std::uint64_t weight_limit = 0;
};

// Divides documents into batches of as many as fit into memory, at least one each.
std::vector<Batch> divide(const formats::Checkpoint& model, const inference::ModelSpec& spec,
                          std::span<const std::size_t> lengths, const RunOptions& options,
                          std::size_t states) {
  const auto need_of = [&](std::span<const std::size_t> some) {
    RunMemory need = inference::stream_memory(model, options.output_profile, some, options.threads);
    const auto rows = std::accumulate(some.begin(), some.end(), std::uint64_t{0});
    need.scratch +=
        (rows * (spec.stream_width() + states * spec.hidden + 1) + kHeadRows * spec.vocab) *
        sizeof(float);
    return need;
  };
  // The figure of a refusal is enough for every document.
  const std::size_t longest = *std::max_element(lengths.begin(), lengths.end());
  inference::weight_limit(need_of({&longest, 1}), options.mem_limit);
  std::vector<Batch> batches;
  for (std::size_t first = 0; first < lengths.size(); first += batches.back().count) {
    const auto rest = lengths.subspan(first);
    std::size_t fits = 1, beyond = rest.size() + 1;
    while (beyond - fits > 1) {
      const std::size_t middle = fits + (beyond - fits) / 2;
      (need_of(rest.first(middle)).least() <= options.mem_limit ? fits : beyond) = middle;
    }
    batches.push_back(
        {.first = first,
         .count = fits,
         .weight_limit = inference::weight_limit(need_of(rest.first(fits)), options.mem_limit)});
  }
  return batches;
}

}  // namespace

void pass_documents(const formats::Checkpoint& model, std::span<const Prompt> documents,
                    const RunOptions& options, std::size_t states, const TakeHidden& take) {
  const StopScope stop(options.stop_requested, "a text was read");
  const inference::ModelSpec spec = inference::model_spec(model.family(), model.config());
  const std::vector<PromptSpan> all = spans_of(documents, spec);
  const std::vector<Batch> batches = divide(model, spec, lengths_of(all), options, states);
  std::uint64_t done = 0;
  for (const Batch& batch : batches) {
    const std::vector<PromptSpan> spans =
        spans_of(documents.subspan(batch.first, batch.count), spec);
    const std::vector<inference::Row> rows = rows_of(spans, 1);
    LayerStream stream(model, {.profile = options.output_profile,
                               .threads = options.threads,
                               .weight_limit = batch.weight_limit});
    Matrix hidden = stream.embed(rows);
    for (std::size_t l = 0; l < spec.n_main; ++l) {
      stream.layer(l, hidden, rows);
      if (options.progress) options.progress(++done, batches.size() * spec.n_main);
    }
    take(stream, hidden, spans);
  }
}

}  // namespace ingot::verify
