#include "inference/generate/drafts.h"

#include <algorithm>

#include "formats/base/error.h"

namespace ingot::inference {
namespace {

Matrix rows_of(const Matrix& from, std::span<const std::size_t> which) {
  Matrix rows(which.size(), from.cols());
  for (std::size_t i = 0; i < which.size(); ++i)
    std::ranges::copy(from.row(which[i]), rows.row(i).begin());
  return rows;
}

}  // namespace

Drafter::Drafter(const Model& model, std::size_t k, const SamplingOptions& sampling)
    : model_(model), k_(k), sampling_(sampling) {
  if (model.spec().leaves_out_mtp) {
    throw Error(ErrorCode::kUnsupported,
                "the layers for multi-token prediction of family {} are not computed by this "
                "version, so nothing can be drafted (--draft 0)",
                model.spec().family);
  }
  if (!model.has_mtp()) {
    throw Error(ErrorCode::kUnsupported,
                "this model has no layer for multi-token prediction, so nothing can be drafted "
                "(--draft 0)");
  }
}

std::vector<std::vector<std::int32_t>> Drafter::propose(const Matrix& normed,
                                                        std::span<const AcceptedRows> accepted,
                                                        ModelCache& cache) const {
  std::vector<std::vector<std::int32_t>> drafts(accepted.size());
  std::vector<Row> entries;
  std::vector<std::size_t> from_rows, drafting, last_entries;
  for (std::size_t i = 0; i < accepted.size(); ++i) {
    const AcceptedRows& rows = accepted[i];
    INGOT_CHECK(rows.next.size() == rows.count);
    for (std::size_t r = 0; r < rows.count; ++r) {
      const std::size_t position = rows.first_position + r;
      entries.push_back({.sequence = rows.sequence,
                         .position = static_cast<std::uint32_t>(position),
                         .token = rows.next[r],
                         .is_answer = position + 1 >= rows.prompt_tokens});
      from_rows.push_back(rows.first_row + r);
    }
    if (rows.most_drafts == 0 || rows.count == 0) continue;
    drafting.push_back(i);
    last_entries.push_back(entries.size() - 1);
  }
  const Matrix all = model_.mtp(rows_of(normed, from_rows), entries, cache);
  Matrix states = rows_of(all, last_entries);
  draw(states, drafting, accepted, drafts);
  for (std::size_t n = 1; n < k_; ++n) {
    // Sequences that may go on, with the state that the layer made of each.
    std::vector<std::size_t> kept;
    std::vector<Row> rows;
    for (std::size_t at = 0; at < drafting.size(); ++at) {
      const AcceptedRows& sequence = accepted[drafting[at]];
      if (n >= sequence.most_drafts) continue;
      kept.push_back(at);
      rows.push_back(
          {.sequence = sequence.sequence,
           .position = static_cast<std::uint32_t>(sequence.first_position + sequence.count - 1 + n),
           .token = drafts[drafting[at]].back(),
           .is_answer = true});
    }
    states = model_.mtp(rows_of(states, kept), rows, cache);
    for (std::size_t at = 0; at < kept.size(); ++at) kept[at] = drafting[kept[at]];
    drafting = std::move(kept);
    draw(states, drafting, accepted, drafts);
  }
  for (const AcceptedRows& rows : accepted)
    cache.mtp().truncate(rows.sequence, rows.first_position + rows.count);
  return drafts;
}

void Drafter::draw(const Matrix& states, std::span<const std::size_t> drafting,
                   std::span<const AcceptedRows> accepted,
                   std::vector<std::vector<std::int32_t>>& drafts) const {
  const Matrix logits = model_.head(states);
  for (std::size_t at = 0; at < drafting.size(); ++at) {
    const AcceptedRows& rows = accepted[drafting[at]];
    std::vector<std::int32_t>& drafted = drafts[drafting[at]];
    // The draft follows the token that the sequence waits for and those drafted before.
    const std::uint64_t position = rows.first_position + rows.count + 1 + drafted.size();
    drafted.push_back(sample_token(logits.row(at), sampling_,
                                   {.prompt = rows.prompt_hash, .position = position}));
  }
}

}  // namespace ingot::inference
