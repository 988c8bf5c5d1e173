#include "inference/tokenizer/unigram.h"

#include <algorithm>
#include <limits>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "formats/json/json.h"
#include "inference/tokenizer/characters.h"

namespace ingot::inference {

using formats::Json;

namespace {

constexpr std::size_t kLongestToken = 512;
constexpr double kUnknownPenalty = 10;

/// The best way to a place of the piece: its last token, which begins at `start`.
struct BestPath {
  static constexpr std::size_t kNone = ~std::size_t{0};
  double score = 0;
  std::size_t start = kNone;
  bool is_unknown = false;
};

}  // namespace

Unigram Unigram::parse(const Component& model, const Vocabulary& vocabulary) {
  Unigram result(vocabulary);
  double lowest = std::numeric_limits<double>::infinity();
  for (const Json& entry : model.array("vocab")) {
    // The vocabulary has seen to pairs and texts.
    if (!entry[1].is_number())
      model.refuse(fmt::format("gives token {} a score that is no number",
                               quote_text(entry[0].get_ref<const std::string&>())));
    result.longest_ = std::max(result.longest_, entry[0].get_ref<const std::string&>().size());
    result.scores_.push_back(entry[1].get<double>());
    lowest = std::min(lowest, result.scores_.back());
  }
  if (result.longest_ > kLongestToken) {
    throw Error(ErrorCode::kLimit, "{} has a token of {} bytes, at most {} are accepted",
                model.path(), result.longest_, kLongestToken);
  }
  result.unknown_score_ = lowest - kUnknownPenalty;
  result.byte_fallback_ = model.boolean("byte_fallback", false);
  if (const Json* unknown = model.find("unk_id"); unknown != nullptr && !unknown->is_null()) {
    result.unknown_ = token_id(*unknown, model, "unk_id");
    if (vocabulary.text(*result.unknown_) == nullptr) model.refuse("unk_id", "is no token");
  }
  return result;
}

void Unigram::encode(std::string_view piece, TextWork& work, std::vector<std::int32_t>& ids) const {
  std::vector<BestPath> best(piece.size() + 1);
  best[0].start = 0;
  const auto offer = [&](std::size_t start, std::size_t end, double score, bool is_unknown) {
    const double sum = score + best[start].score;
    if (best[end].start == BestPath::kNone || sum > best[end].score)
      best[end] = {.score = sum, .start = start, .is_unknown = is_unknown};
  };
  for (std::size_t start = 0; start < piece.size();) {
    const std::size_t next = start + code_point_at(piece, start).n_bytes;
    bool has_single = false;
    work.count();
    for (std::size_t end = next;; end += code_point_at(piece, end).n_bytes) {
      if (end - start > longest_) break;
      if (const auto id = vocabulary_->find(piece.substr(start, end - start))) {
        offer(start, end, scores_[static_cast<std::size_t>(*id)], id == unknown_);
        has_single = has_single || end == next;
      }
      if (end == piece.size()) break;
    }
    if (!has_single) offer(start, next, unknown_score_, true);
    start = next;
  }

  std::vector<std::string_view> tokens;
  bool follows_unknown = false;
  for (std::size_t end = piece.size(); end > 0; end = best[end].start) {
    const std::size_t start = best[end].start;
    if (best[end].is_unknown && follows_unknown) {
      tokens.back() = piece.substr(start, end - start + tokens.back().size());
    } else {
      tokens.push_back(piece.substr(start, end - start));
    }
    follows_unknown = best[end].is_unknown;
  }
  for (auto token = tokens.rbegin(); token != tokens.rend(); ++token) append(*token, ids);
}

void Unigram::append(std::string_view token, std::vector<std::int32_t>& ids) const {
  if (const auto id = vocabulary_->find(token)) return ids.push_back(*id);
  if (byte_fallback_ && vocabulary_->append_bytes(token, ids)) return;
  if (unknown_) return ids.push_back(*unknown_);
  throw Error(ErrorCode::kCorrupt, "the tokenizer has no token for {}, and no unk_id",
              quote_text(token));
}

}  // namespace ingot::inference
