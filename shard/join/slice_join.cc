#include "shard/join/slice_join.h"

#include <algorithm>
#include <numeric>
#include <tuple>

#include <fmt/format.h>

namespace ingot::shard {

using formats::shape_text;
using formats::StoredTensor;

namespace {

constexpr std::string_view kFetchAll =
    "fetch every rank's directory, all of one conversion, and run ingot check on each";

// Equal bytes for equal numbers.
template <typename Numbers>
void append_key(std::string& key, const Numbers& numbers) {
  const std::uint64_t n = numbers.size();
  key.append(reinterpret_cast<const char*>(&n), sizeof n);
  key.append(reinterpret_cast<const char*>(numbers.data()),
             numbers.size() * sizeof *numbers.data());
}

std::string key_of(const SliceForm& form) {
  std::string key;
  append_key(key, std::array<std::uint64_t, 6>{static_cast<std::uint64_t>(form.dtype),
                                               static_cast<std::uint64_t>(form.axis + 1), form.n,
                                               form.sections, form.repeat[0], form.repeat[1]});
  append_key(key, form.whole);
  append_key(key, form.original);
  return key;
}

std::string form_text(const SliceForm& form) {
  std::string text = fmt::format("{} {}", dtype_name(form.dtype), shape_text(form.shape()));
  if (form.n > 1) text += fmt::format(" in {} slices", form.n);
  return text;
}

// `0, 2, 3`, shortened.
std::string numbers_text(const std::vector<std::uint64_t>& numbers) {
  constexpr std::size_t kShown = 8;
  std::string text;
  for (std::size_t i = 0; i < numbers.size() && i < kShown; ++i)
    text += fmt::format("{}{}", i == 0 ? "" : ", ", numbers[i]);
  if (numbers.size() > kShown) text += fmt::format(" and {} more", numbers.size() - kShown);
  return text;
}

// Numbers below `n` that are not in `present`, as far as they are worth showing.
std::vector<std::uint64_t> absent_below(std::uint64_t n, std::vector<std::uint32_t> present) {
  constexpr std::size_t kEnough = 1000;
  std::sort(present.begin(), present.end());
  std::vector<std::uint64_t> absent;
  auto at = present.begin();
  for (std::uint64_t i = 0; i < n && absent.size() < kEnough; ++i) {
    while (at != present.end() && *at < i) ++at;
    if (at == present.end() || *at != i) absent.push_back(i);
  }
  return absent;
}

}  // namespace

SliceJoin::SliceJoin(std::vector<formats::WeightsFile> files, std::vector<std::uint32_t> holders)
    : holders_(std::move(holders)) {
  INGOT_CHECK(files.size() == holders_.size());
  slices_.files = std::move(files);
  slices_.homes.emplace_back();
  by_home_.emplace("", 0);
}

void SliceJoin::set_facts(std::uint32_t file, std::uint64_t n_bytes, std::uint64_t data_start) {
  formats::SourceFile& facts = slices_.files.at(file).facts;
  facts.n_bytes = n_bytes;
  facts.data_start = data_start;
}

void SliceJoin::add(std::span<const FoundSlice> found) {
  struct Kind {
    std::uint32_t form, experts;
  };
  std::unordered_map<const PlacedSlice*, Kind> kinds;
  const std::lock_guard lock(mutex_);
  for (const FoundSlice& slice : found) {
    const PlacedSlice& place = *slice.place;
    const auto [kind, is_new] = kinds.try_emplace(&place);
    if (is_new) kind->second = {form_index(place.form), experts_index(place.experts)};
    wholes_[whole_index(slice.name)].pieces.push_back({.place = {.file = slice.file,
                                                                 .slice = place.slice,
                                                                 .experts = kind->second.experts,
                                                                 .is_zeroed = place.is_zeroed,
                                                                 .offset = slice.offset},
                                                       .form = kind->second.form,
                                                       .home = home_index(slice.home_file)});
  }
}

std::uint32_t SliceJoin::whole_index(const std::string& name) {
  // Ranks mostly name their tensors in the same order.
  if (next_whole_ < wholes_.size() && wholes_[next_whole_].name == name) return next_whole_++;
  const auto [at, is_new] = by_name_.try_emplace(name, static_cast<std::uint32_t>(wholes_.size()));
  if (is_new) wholes_.push_back({.name = name, .pieces = {}});
  next_whole_ = at->second + 1;
  return at->second;
}

std::uint32_t SliceJoin::form_index(const SliceForm& form) {
  const auto [at, is_new] =
      by_form_.try_emplace(key_of(form), static_cast<std::uint32_t>(slices_.forms.size()));
  if (is_new) slices_.forms.push_back(form);
  return at->second;
}

std::uint32_t SliceJoin::experts_index(const std::vector<std::uint32_t>& experts) {
  if (experts.empty()) return JoinedPiece::kEveryExpert;
  std::string key;
  append_key(key, experts);
  const auto [at, is_new] = by_experts_.try_emplace(
      std::move(key), static_cast<std::uint32_t>(slices_.expert_sets.size()));
  if (is_new) slices_.expert_sets.push_back(experts);
  return at->second;
}

std::uint32_t SliceJoin::home_index(const std::string& home) {
  // Neighbours are mostly at home in one file.
  if (home == slices_.homes[last_home_]) return last_home_;
  const auto [at, is_new] =
      by_home_.try_emplace(home, static_cast<std::uint32_t>(slices_.homes.size()));
  if (is_new) slices_.homes.push_back(home);
  return last_home_ = at->second;
}

bool SliceJoin::settle(Whole& whole, ErrorList& faults) const {
  auto& pieces = whole.pieces;
  const auto by_file = [](const Piece& a, const Piece& b) {
    return std::tuple(a.place.file, a.place.offset) < std::tuple(b.place.file, b.place.offset);
  };
  std::sort(pieces.begin(), pieces.end(), by_file);
  const auto file_of = [&](const Piece& piece) -> const std::string& {
    return slices_.files[piece.place.file].facts.name;
  };
  const auto fault = [&](ErrorCode code, std::string message) {
    faults.add(Error(code, std::move(message)).in_tensor(whole.name));
    return false;
  };
  for (std::size_t i = 1; i < pieces.size(); ++i) {
    if (pieces[i].form != pieces[0].form) {
      return fault(
          ErrorCode::kMismatch,
          fmt::format("is {} by {}, but {} by {} ({})", form_text(slices_.forms[pieces[0].form]),
                      file_of(pieces[0]), form_text(slices_.forms[pieces[i].form]),
                      file_of(pieces[i]), kFetchAll));
    }
    if (holders_[pieces[i].place.file] == holders_[pieces[i - 1].place.file]) {
      return fault(ErrorCode::kDuplicate,
                   fmt::format("is in {} and in {} (which one is meant? move the other file away)",
                               file_of(pieces[i - 1]), file_of(pieces[i])));
    }
  }
  std::stable_sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) {
    return std::tuple(a.place.is_zeroed, a.place.slice) <
           std::tuple(b.place.is_zeroed, b.place.slice);
  });
  if (const std::string missing = missing_part(whole); !missing.empty()) {
    return fault(ErrorCode::kMismatch, fmt::format("is not whole: {} (in {}; {})", missing,
                                                   file_of(pieces[0]), kFetchAll));
  }
  return true;
}

// What nobody holds, in words; empty when the pieces make up the whole.
std::string SliceJoin::missing_part(const Whole& whole) const {
  const SliceForm& form = slices_.forms[whole.pieces[0].form];
  std::vector<std::uint32_t> present;
  for (const Piece& piece : whole.pieces) {
    if (!piece.place.is_zeroed) present.push_back(piece.place.slice);
  }
  if (present.empty()) return "every rank holds zeros in its place";
  if (const auto absent = absent_below(form.n, std::move(present)); !absent.empty())
    return fmt::format("of {} slices, nobody has {}", form.n, numbers_text(absent));

  for (std::size_t begin = 0; begin < whole.pieces.size();) {
    std::vector<std::uint32_t> experts;
    const JoinedPiece& first = whole.pieces[begin].place;
    bool has_every = first.is_zeroed;
    std::size_t end = begin;
    for (; end < whole.pieces.size(); ++end) {
      const JoinedPiece& piece = whole.pieces[end].place;
      if (piece.is_zeroed != first.is_zeroed || piece.slice != first.slice) break;
      has_every = has_every || piece.experts == JoinedPiece::kEveryExpert;
      if (has_every) continue;
      const auto& held = slices_.expert_sets[piece.experts];
      experts.insert(experts.end(), held.begin(), held.end());
    }
    begin = end;
    if (has_every) continue;
    if (const auto absent = absent_below(form.whole[0], std::move(experts)); !absent.empty()) {
      return fmt::format("of {} experts, nobody has {}{}", form.whole[0], numbers_text(absent),
                         form.n > 1 ? fmt::format(" of slice {}", first.slice) : "");
    }
  }
  return "";
}

JoinedModel SliceJoin::finish() {
  by_name_.clear();
  std::vector<std::uint32_t> order(wholes_.size());
  std::iota(order.begin(), order.end(), 0U);
  std::sort(order.begin(), order.end(),
            [&](std::uint32_t a, std::uint32_t b) { return wholes_[a].name < wholes_[b].name; });
  ErrorList faults;
  std::erase_if(order, [&](std::uint32_t i) { return !settle(wholes_[i], faults); });
  faults.throw_if_any();
  const auto place = [&](std::uint32_t i) {
    const JoinedPiece& first = wholes_[i].pieces[0].place;
    return std::pair(first.file, first.offset);
  };
  std::stable_sort(order.begin(), order.end(),
                   [&](std::uint32_t a, std::uint32_t b) { return place(a) < place(b); });

  JoinedModel model;
  model.stored.reserve(order.size());
  slices_.tensors.reserve(order.size());
  std::size_t n_pieces = 0;
  for (const std::uint32_t i : order) n_pieces += wholes_[i].pieces.size();
  slices_.pieces.reserve(n_pieces);
  for (const std::uint32_t i : order) {
    Whole& whole = wholes_[i];
    const SliceForm& form = slices_.forms[whole.pieces[0].form];
    JoinedTensor& joined = slices_.tensors.emplace_back();
    joined.form = whole.pieces[0].form;
    joined.home = whole.pieces[0].home;
    joined.first_piece = static_cast<std::uint32_t>(slices_.pieces.size());
    joined.n_pieces = static_cast<std::uint32_t>(whole.pieces.size());
    for (const Piece& piece : whole.pieces) {
      slices_.pieces.push_back(piece.place);
      joined.is_stack = joined.is_stack || piece.place.experts != JoinedPiece::kEveryExpert;
    }
    const auto [file, offset] = place(i);
    model.stored.push_back({.name = std::move(whole.name),
                            .dtype = form.dtype,
                            .shape = form.shape(),
                            .file = file,
                            .offset = offset,
                            .n_bytes = formats::byte_count(form.dtype, form.shape()).value()});
    std::vector<Piece>().swap(whole.pieces);
  }
  wholes_.clear();
  model.slices = std::move(slices_);
  return model;
}

}  // namespace ingot::shard
