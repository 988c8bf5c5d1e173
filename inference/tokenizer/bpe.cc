// Symbols are a linked list in an array; candidates for merging are a heap ordered by rank, then
// position. A merge leaves candidates behind whose symbols are gone or changed: they are recognised
// when they come up, since the pair at their position no longer has their rank. (Pairs that
// share a rank make the same token.) Rejected: looking for the best pair after every merge, which
// is quadratic in the piece and takes minutes on a megabyte without spaces.

#include "inference/tokenizer/bpe.h"

#include <algorithm>
#include <functional>
#include <limits>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "formats/json/json.h"
#include "inference/tokenizer/characters.h"

namespace ingot::inference {

using formats::Json;
using Symbol = BpeScratch::Symbol;

namespace {

constexpr std::int32_t kMergedAway = -1;
// Ids are below this; the largest vocabularies have a few hundred thousand.
constexpr std::uint64_t kMaxTokens = std::uint64_t{1} << 22;
constexpr std::size_t kMaxMerges = std::size_t{1} << 23;

std::uint64_t pair_key(std::int32_t left, std::int32_t right) {
  return std::uint64_t{static_cast<std::uint32_t>(left)} << 32 | static_cast<std::uint32_t>(right);
}

Symbol& at(std::vector<Symbol>& symbols, std::int32_t position) {
  return symbols[static_cast<std::size_t>(position)];
}

void append_symbol(BpeScratch& scratch, std::int32_t id) {
  auto& symbols = scratch.symbols;
  const auto position = static_cast<std::int32_t>(symbols.size());
  if (!symbols.empty()) symbols.back().next = position;
  symbols.push_back({.id = id, .previous = position - 1, .next = -1});
}

}  // namespace

Bpe Bpe::parse(const Component& model, const Vocabulary& vocabulary) {
  if (const Json* dropout = model.find("dropout")) {
    if (!dropout->is_number()) model.refuse("dropout", "is not a number");
    if (dropout->get<double>() != 0)
      model.unsupported("has dropout, which makes ids random: set it to null");
  }
  Bpe result(vocabulary);
  result.unknown_token_ = model.optional_text("unk_token");
  result.prefix_ = model.text("continuing_subword_prefix", "");
  result.suffix_ = model.text("end_of_word_suffix", "");
  result.fuse_unknown_ = model.boolean("fuse_unk", false);
  result.byte_fallback_ = model.boolean("byte_fallback", false);
  result.ignore_merges_ = model.boolean("ignore_merges", false);
  result.parse_merges(model);
  return result;
}

void Bpe::parse_merges(const Component& model) {
  // A comparison with a word would end the program where memory is short.
  const Json& all = model.get("merges");
  if (all.is_string() && all.get_ref<const std::string&>() == kAllMerges) {
    merges_all_ = true;
    return;
  }
  const Json& merges = model.array("merges");
  if (merges.size() > kMaxMerges) {
    throw Error(ErrorCode::kLimit, "{} has {} merges, at most {} are accepted", model.path(),
                merges.size(), kMaxMerges);
  }
  merges_.reserve(merges.size());
  for (const Json& merge : merges) {
    if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      add_merge(model, merge[0].get_ref<const std::string&>(),
                merge[1].get_ref<const std::string&>());
      continue;
    }
    if (!merge.is_string())
      model.refuse(fmt::format("has merge {} that is neither a string nor a pair", n_ranks_));
    const std::string_view text = merge.get_ref<const std::string&>();
    // The first line of a merges.txt, which some files keep.
    if (text.starts_with("#version")) continue;
    const std::size_t space = text.find(' ');
    if (space == std::string_view::npos || text.find(' ', space + 1) != std::string_view::npos)
      model.refuse(
          fmt::format("has merge {} that is not two tokens and a space", quote_text(text)));
    add_merge(model, text.substr(0, space), text.substr(space + 1));
  }
}

void Bpe::add_merge(const Component& model, std::string_view left, std::string_view right) {
  const auto id_of = [&](std::string_view text) {
    const auto id = vocabulary_->find(text);
    if (!id) {
      model.refuse(fmt::format("has merge {} of {} and {}, but {} is not in its vocab", n_ranks_,
                               quote_text(left), quote_text(right), quote_text(text)));
    }
    return *id;
  };
  const std::uint64_t key = pair_key(id_of(left), id_of(right));
  std::string whole(left);
  whole += right.substr(right.starts_with(prefix_) ? prefix_.size() : 0);
  merges_[key] = {.rank = n_ranks_, .id = id_of(whole)};
  ++n_ranks_;
}

void Bpe::encode(std::string_view piece, BpeScratch& scratch, TextWork& work,
                 std::vector<std::int32_t>& ids) const {
  work.count();
  if (ignore_merges_) {
    if (const auto id = vocabulary_->find(piece)) return ids.push_back(*id);
  }
  if (piece.size() > std::numeric_limits<std::int32_t>::max())
    throw Error(ErrorCode::kLimit, "a piece of {} bytes is too long to be merged", piece.size());
  start_symbols(piece, scratch);
  merge_symbols(scratch, work);
  for (const Symbol& symbol : scratch.symbols)
    if (symbol.id != kMergedAway) ids.push_back(symbol.id);
}

void Bpe::start_symbols(std::string_view piece, BpeScratch& scratch) const {
  scratch.symbols.clear();
  std::string affixed;
  std::vector<std::int32_t> bytes;
  bool follows_unknown = false;
  for (std::size_t i = 0; i < piece.size();) {
    const std::size_t n_bytes = code_point_at(piece, i).n_bytes;
    std::string_view character = piece.substr(i, n_bytes);
    const bool has_prefix = i > 0 && !prefix_.empty();
    i += n_bytes;
    const bool has_suffix = i == piece.size() && !suffix_.empty();
    if (has_prefix || has_suffix) {
      affixed = (has_prefix ? prefix_ : "") + std::string(character) + (has_suffix ? suffix_ : "");
      character = affixed;
    }
    const auto id = vocabulary_->find(character);
    bool is_unknown = false;
    if (id) {
      append_symbol(scratch, *id);
    } else if (bytes.clear(); byte_fallback_ && vocabulary_->append_bytes(character, bytes)) {
      for (const std::int32_t byte : bytes) append_symbol(scratch, byte);
    } else {
      if (!unknown_token_) continue;
      is_unknown = true;
      if (!follows_unknown || !fuse_unknown_) append_symbol(scratch, unknown_id(character));
    }
    follows_unknown = is_unknown;
  }
}

std::int32_t Bpe::unknown_id(std::string_view character) const {
  const auto id = vocabulary_->find(*unknown_token_);
  if (id) return *id;
  throw Error(ErrorCode::kCorrupt,
              "the tokenizer has no token for {}, and its unk_token {} is not in its vocab",
              quote_text(character), quote_text(*unknown_token_));
}

std::optional<Bpe::Merge> Bpe::merge_of(std::int32_t left, std::int32_t right) const {
  if (merges_all_) {
    const auto id = vocabulary_->find(*vocabulary_->text(left) + *vocabulary_->text(right));
    if (!id) return std::nullopt;
    return Merge{.rank = static_cast<std::uint32_t>(*id), .id = *id};
  }
  const auto found = merges_.find(pair_key(left, right));
  return found == merges_.end() ? std::nullopt : std::optional(found->second);
}

void Bpe::merge_symbols(BpeScratch& scratch, TextWork& work) const {
  auto& symbols = scratch.symbols;
  auto& candidates = scratch.candidates;
  candidates.clear();
  const auto pair_at = [&](std::int32_t position) -> std::optional<Merge> {
    const Symbol& left = at(symbols, position);
    if (left.id == kMergedAway || left.next < 0) return std::nullopt;
    return merge_of(left.id, at(symbols, left.next).id);
  };
  const auto add_candidate = [&](std::int32_t position) {
    work.count();
    const auto merge = pair_at(position);
    if (!merge) return false;
    candidates.push_back(std::uint64_t{merge->rank} << 32 | static_cast<std::uint32_t>(position));
    return true;
  };
  const auto push_candidate = [&](std::int32_t position) {
    if (add_candidate(position)) std::ranges::push_heap(candidates, std::greater<>());
  };

  for (std::size_t i = 0; i < symbols.size(); ++i) add_candidate(static_cast<std::int32_t>(i));
  std::ranges::make_heap(candidates, std::greater<>());
  while (!candidates.empty()) {
    std::ranges::pop_heap(candidates, std::greater<>());
    const std::uint64_t best = candidates.back();
    candidates.pop_back();
    const auto position = static_cast<std::int32_t>(best & 0xFFFFFFFFU);
    const auto merge = pair_at(position);
    if (!merge || merge->rank != best >> 32) continue;
    Symbol& left = at(symbols, position);
    Symbol& right = at(symbols, left.next);
    left.id = merge->id;
    left.next = right.next;
    right.id = kMergedAway;
    if (left.next >= 0) at(symbols, left.next).previous = position;
    if (left.previous >= 0) push_candidate(left.previous);
    push_candidate(position);
  }
}

Vocabulary Vocabulary::parse(const Component& model) {
  const formats::Json& vocab = model.get("vocab");
  Vocabulary result;
  result.ids_.reserve(vocab.size());
  if (model.text("type", "BPE") != "Unigram") {
    if (!vocab.is_object()) model.refuse("vocab", "is not an object");
    for (const auto& [text, id] : vocab.items()) result.add(text, id, model);
    return result;
  }
  if (!vocab.is_array()) model.refuse("vocab", "is not a list");
  for (std::size_t id = 0; id < vocab.size(); ++id) {
    const Json& entry = vocab[id];
    if (!entry.is_array() || entry.size() != 2 || !entry[0].is_string())
      model.refuse(fmt::format("has entry {} of vocab that is no token and its score", id));
    result.add(entry[0].get_ref<const std::string&>(), id, model);
  }
  return result;
}

void Vocabulary::add(std::string_view text, const Json& value, const Component& model) {
  const std::int32_t id = token_id(value, model, text);
  const auto index = static_cast<std::size_t>(id);
  if (index >= texts_.size()) texts_.resize(index + 1, nullptr);
  if (texts_[index] != nullptr) {
    model.refuse(fmt::format("gives id {} to both {} and {}", id, quote_text(*texts_[index]),
                             quote_text(text)));
  }
  const auto [place, is_new] = ids_.emplace(text, id);
  if (!is_new) {
    model.refuse(
        fmt::format("gives token {} the ids {} and {}", quote_text(text), place->second, id));
  }
  texts_[index] = &place->first;
}

bool Vocabulary::append_bytes(std::string_view bytes, std::vector<std::int32_t>& ids) const {
  const std::size_t before = ids.size();
  for (const char byte : bytes) {
    const auto id = find(fmt::format("<0x{:02X}>", static_cast<unsigned char>(byte)));
    if (!id) {
      ids.resize(before);
      return false;
    }
    ids.push_back(*id);
  }
  return true;
}

std::optional<std::int32_t> Vocabulary::find(std::string_view text) const {
  const auto at = ids_.find(text);
  return at == ids_.end() ? std::nullopt : std::optional(at->second);
}

const std::string* Vocabulary::text(std::int32_t id) const {
  const auto index = static_cast<std::size_t>(id);
  return id < 0 || index >= texts_.size() ? nullptr : texts_[index];
}

std::int32_t token_id(const formats::Json& value, const Component& component,
                      std::string_view token) {
  const auto id = formats::whole_number(value, kMaxTokens - 1);
  if (id) return static_cast<std::int32_t>(*id);
  const bool is_large =
      formats::whole_number(value, std::numeric_limits<std::uint64_t>::max()).has_value();
  throw Error(is_large ? ErrorCode::kLimit : ErrorCode::kCorrupt,
              fmt::format("{} gives token {} an id that is not a whole number below {}",
                          component.path(), quote_text(token), kMaxTokens));
}

}  // namespace ingot::inference
