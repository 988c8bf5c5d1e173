#include "check/model_fingerprint.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include <fmt/format.h>

#include "formats/base/error.h"

namespace ingot::check {

namespace {

constexpr std::uint64_t kSampleBytes = 4096;
constexpr std::uint32_t kExpertsPerSample = 32;

bool is_sampled(const formats::LogicalTensor& tensor) {
  return !tensor.expert || *tensor.expert % kExpertsPerSample == 0;
}

}  // namespace

std::optional<Hash128> model_fingerprint(const formats::Checkpoint& model) {
  std::vector<const formats::LogicalTensor*> sorted;
  for (const formats::LogicalTensor& tensor : model.tensors()) sorted.push_back(&tensor);
  std::ranges::sort(sorted, {}, [](const auto* tensor) { return tensor->name; });
  TensorHasher hasher;
  std::vector<std::byte> sample;
  bool is_whole = true;
  for (const formats::LogicalTensor* tensor : sorted) {
    const std::string line =
        fmt::format("{} {} {}\n", tensor->name, formats::scheme_facts(tensor->encoding.scheme).name,
                    formats::shape_text(tensor->shape));
    hasher.update(std::as_bytes(std::span(line)));
    if (!is_sampled(*tensor)) continue;
    tensor->encoding.stored.for_each([&](formats::Part, std::uint32_t index) {
      const formats::StoredTensor& stored = model.stored()[index];
      is_whole = is_whole && model.has_data(stored.file);
      if (!is_whole) return;
      sample.resize(static_cast<std::size_t>(std::min(kSampleBytes, stored.n_bytes)));
      model.read(index, 0, sample);
      hasher.update(sample);
    });
  }
  return is_whole ? std::optional(hasher.finish()) : std::nullopt;
}

void require_same_model(const formats::CalibrationStatistics& statistics,
                        const formats::Checkpoint& model, std::string_view option) {
  if (statistics.record() == nullptr) return;
  const std::optional<Hash128> own = model_fingerprint(model);
  if (!own || *own == statistics.record()->source) return;
  throw Error(ErrorCode::kMismatch,
              "{}: the statistics are those of a model with fingerprint {}, '{}' has {} (run ingot "
              "calibrate on it)",
              option, statistics.record()->source.hex(), model.directory().string(), own->hex())
      .in_file(statistics.path().string());
}

}  // namespace ingot::check
