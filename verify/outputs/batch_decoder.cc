#include "verify/outputs/batch_decoder.h"

#include <algorithm>

#include "inference/generate/generate.h"

namespace ingot::verify {

using inference::kPrefillRows;
using inference::KvCache;
using inference::KvFormat;
using inference::Matrix;
using inference::Row;

namespace {

std::size_t in_pages(std::span<const std::size_t> lengths) {
  std::size_t n_tokens = 0;
  for (const std::size_t length : lengths) {
    n_tokens += (length + KvCache::kPageTokens - 1) / KvCache::kPageTokens * KvCache::kPageTokens;
  }
  return n_tokens;
}

}  // namespace

KvFormat cache_format(inference::Profile profile) {
  return profile == inference::Profile::kF32 ? KvFormat::kF32 : KvFormat::kBf16;
}

BatchDecoder::BatchDecoder(const formats::Checkpoint& source,
                           const inference::ModelOptions& options,
                           std::span<const std::vector<std::int32_t>> prompts,
                           std::span<const std::size_t> most)
    : model_(inference::Model::open(source, {}, comm_, options)),
      prompts_(prompts),
      cache_(model_.make_cache(cache_format(options.profile), in_pages(most))),
      fed_(prompts.size(), 0) {
  for (std::size_t i = 0; i < prompts.size(); ++i) sequences_.push_back(cache_.add());
}

// Runs end at multiples of kPrefillRows, so that what a prompt computes does not depend on others.
std::vector<std::size_t> BatchDecoder::next_rows(std::vector<Row>& rows) {
  std::vector<std::size_t> finished;
  for (std::size_t p = 0; p < prompts_.size(); ++p) {
    const std::vector<std::int32_t>& prompt = prompts_[p];
    if (fed_[p] == prompt.size()) continue;
    const std::size_t end = std::min((fed_[p] / kPrefillRows + 1) * kPrefillRows, prompt.size());
    if (!rows.empty() && rows.size() + end - fed_[p] > kPrefillRows) continue;
    for (; fed_[p] < end; ++fed_[p]) {
      rows.push_back({.sequence = sequences_[p],
                      .position = static_cast<std::uint32_t>(fed_[p]),
                      .token = prompt[fed_[p]]});
    }
    if (end < prompt.size()) continue;
    rows.back().logits = true;
    finished.push_back(p);
  }
  return finished;
}

Matrix BatchDecoder::begin() {
  Matrix first(prompts_.size(), model_.spec().vocab);
  while (true) {
    std::vector<Row> rows;
    const std::vector<std::size_t> finished = next_rows(rows);
    if (rows.empty()) return first;
    const Matrix logits = model_.step(rows, cache_);
    for (std::size_t i = 0; i < finished.size(); ++i) {
      std::ranges::copy(logits.row(i), first.row(finished[i]).begin());
    }
  }
}

Matrix BatchDecoder::step(std::span<const Continuation> continuations) {
  std::vector<Row> rows;
  for (const auto& [prompt, token] : continuations) {
    rows.push_back({.sequence = sequences_[prompt],
                    .position = static_cast<std::uint32_t>(fed_[prompt]++),
                    .token = token,
                    .logits = true});
  }
  return model_.step(rows, cache_);
}

}  // namespace ingot::verify
