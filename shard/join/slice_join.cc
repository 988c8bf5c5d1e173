#include "shard/join/slice_join.h"

#include <algorithm>
#include <unordered_set>

#include <fmt/format.h>

#include "formats/base/checked.h"
#include "formats/dialect/dialect.h"
#include "formats/records/manifest.h"
#include "formats/text/list_text.h"

namespace ingot::shard {

using formats::shape_text;
using formats::StoredTensor;

namespace {

constexpr std::string_view kFetchAll =
    "fetch every rank's directory, all of one conversion, and run ingot check on each";

// Appends numbers to a key of a map, so that equal numbers have equal keys.
template <typename Numbers>
void append_key(std::string& key, const Numbers& numbers) {
  const std::uint64_t n = numbers.size();
  key.append(reinterpret_cast<const char*>(&n), sizeof n);
  key.append(reinterpret_cast<const char*>(numbers.data()),
             numbers.size() * sizeof *numbers.data());
}

std::string key_of(const PlacedSlice& placed) {
  const formats::SliceRecord& record = placed.record;
  std::string key;
  append_key(key,
             std::array<std::uint64_t, 7>{static_cast<std::uint64_t>(placed.dtype),
                                          static_cast<std::uint64_t>(record.axis + 1),
                                          placed.cut.n_slices(), placed.slice, record.repeat[0],
                                          record.repeat[1], record.is_zeroed ? 1U : 0U});
  append_key(key, record.sections.shares());
  append_key(key, record.whole);
  append_key(key, record.original);
  append_key(key, record.experts);
  return key;
}

std::string cut_text(const PlacedSlice& placed) {
  std::string text = fmt::format("{} {}", dtype_name(placed.dtype), shape_text(placed.shape()));
  if (placed.cut.n_slices() > 1) text += fmt::format(" in {} slices", placed.cut.n_slices());
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

constexpr auto kInt4 = formats::SchemeId::kInt4Group;

// How the codes of INT4 weights are stored, and the part that tells their shape.
std::pair<const formats::PartRow&, const formats::PartRow&> int4_parts() {
  const formats::StorageRow& storage =
      *formats::find_storage(formats::default_dialect(kInt4), kInt4);
  return {storage.parts.front(), *formats::find_part_row(storage, formats::Part::kDimensions)};
}

// Codes, by index, without a tensor that tells their shape.
std::vector<std::uint32_t> without_dimensions(std::span<const StoredTensor> wholes) {
  const auto& [codes, dimensions] = int4_parts();
  std::unordered_set<std::string_view> listed;
  for (const StoredTensor& whole : wholes) {
    const std::string_view name = whole.name;
    if (name.ends_with(dimensions.suffix))
      listed.insert(name.substr(0, name.size() - dimensions.suffix.size()));
  }
  std::vector<std::uint32_t> found;
  for (std::uint32_t i = 0; i < wholes.size(); ++i) {
    const std::string_view name = wholes[i].name;
    if (wholes[i].dtype == codes.dtype && name.ends_with(codes.suffix) &&
        !listed.contains(name.substr(0, name.size() - codes.suffix.size())))
      found.push_back(i);
  }
  return found;
}

// The shapes that tensors of INT4 weights tell. Slices tell their own.
std::unordered_map<std::uint32_t, formats::Shape> dimensions_of(
    std::span<const StoredTensor> wholes) {
  std::unordered_map<std::uint32_t, formats::Shape> dimensions;
  std::unordered_map<std::string_view, std::uint32_t> by_name;
  const std::string_view of_codes = int4_parts().first.suffix;
  const std::string_view of_dimensions = int4_parts().second.suffix;
  for (std::uint32_t i = 0; i < wholes.size(); ++i) {
    const std::string_view name = wholes[i].name;
    if (name.ends_with(of_dimensions))
      by_name.emplace(name.substr(0, name.size() - of_dimensions.size()), i);
  }
  if (by_name.empty()) return dimensions;
  for (const StoredTensor& whole : wholes) {
    const std::string_view name = whole.name;
    if (!name.ends_with(of_codes) || whole.shape.empty()) continue;
    const auto found = by_name.find(name.substr(0, name.size() - of_codes.size()));
    if (found == by_name.end() || wholes[found->second].shape != formats::Shape{whole.shape.size()})
      continue;
    formats::Shape shape = whole.shape;
    shape.back() = formats::packing(kInt4, whole.dtype).codes_of(shape.back());
    dimensions.emplace(found->second, std::move(shape));
  }
  return dimensions;
}

std::pair<std::uint32_t, std::uint64_t> place_of(const JoinedPiece& piece) {
  return {piece.file, piece.offset};
}

}  // namespace

SliceJoin::SliceJoin() {
  slices_.homes.emplace_back();
  by_home_.emplace("", 0);
}

std::pair<std::uint32_t, bool> SliceJoin::add_file(const std::filesystem::path& path,
                                                   std::string name,
                                                   std::optional<std::uint64_t> n_bytes,
                                                   std::uint32_t holder) {
  const std::optional<FileStamp> stamp = stamp_of(path);
  if (!stamp) {
    throw Error(ErrorCode::kNotFound, "{} names it, but it is not here (fetch this file)",
                formats::kManifestName)
        .in_file(path.string());
  }
  if (n_bytes && stamp->n_bytes != *n_bytes) {
    throw Error(ErrorCode::kMismatch, "has {} bytes, {} says {} (fetch this file again)",
                stamp->n_bytes, formats::kManifestName, *n_bytes)
        .in_file(path.string());
  }
  const auto [at, is_new] = by_inode_.try_emplace({stamp->device, stamp->inode},
                                                  static_cast<std::uint32_t>(slices_.files.size()));
  if (is_new) {
    formats::WeightsFile& file = slices_.files.emplace_back();
    file.facts.name = std::move(name);
    file.path = path;
    file.stamp = stamp;
    holders_.push_back(holder);
  }
  return {at->second, is_new};
}

void SliceJoin::set_facts(std::uint32_t file, std::uint64_t n_bytes, std::uint64_t data_start) {
  formats::SourceFile& facts = slices_.files.at(file).facts;
  facts.n_bytes = n_bytes;
  facts.data_start = data_start;
}

std::uint32_t SliceJoin::kind(const PlacedSlice& placed) {
  const std::lock_guard lock(mutex_);
  const auto [at, is_new] =
      by_kind_.try_emplace(key_of(placed), static_cast<std::uint32_t>(slices_.kinds.size()));
  if (is_new) slices_.kinds.push_back(placed);
  return at->second;
}

void SliceJoin::add(std::span<const FoundSlice> found) {
  const std::lock_guard lock(mutex_);
  for (const FoundSlice& slice : found) {
    wholes_[whole_index(slice.name)].pieces.push_back({.file = slice.file,
                                                       .kind = slice.kind,
                                                       .home = home_index(slice.home_file),
                                                       .offset = slice.offset,
                                                       .stride = slice.stride});
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

std::uint32_t SliceJoin::home_index(const std::string& home) {
  // Neighbours are mostly at home in one file.
  if (home == slices_.homes[last_home_]) return last_home_;
  const auto [at, is_new] =
      by_home_.try_emplace(home, static_cast<std::uint32_t>(slices_.homes.size()));
  if (is_new) slices_.homes.push_back(home);
  return last_home_ = at->second;
}

void SliceJoin::complete(Whole& whole, ErrorList& faults) const {
  auto& pieces = whole.pieces;
  std::ranges::sort(pieces, {}, place_of);
  const auto file_of = [&](const JoinedPiece& piece) -> const std::string& {
    return slices_.files[piece.file].facts.name;
  };
  const auto fault = [&](ErrorCode code, std::string message) {
    faults.add(Error(code, std::move(message)).in_tensor(whole.name));
  };
  for (std::size_t i = 1; i < pieces.size(); ++i) {
    const PlacedSlice &first = kind_of(pieces[0]), &other = kind_of(pieces[i]);
    if (!other.is_cut_like(first)) {
      return fault(ErrorCode::kMismatch,
                   fmt::format("is {} by {}, but {} by {} ({})", cut_text(first),
                               file_of(pieces[0]), cut_text(other), file_of(pieces[i]), kFetchAll));
    }
    if (holders_[pieces[i].file] == holders_[pieces[i - 1].file]) {
      return fault(ErrorCode::kDuplicate,
                   fmt::format("is in {} and in {} (which one is meant? move the other file away)",
                               file_of(pieces[i - 1]), file_of(pieces[i])));
    }
  }
  std::ranges::stable_sort(pieces, {}, [&](const JoinedPiece& piece) {
    return std::pair(kind_of(piece).record.is_zeroed, kind_of(piece).slice);
  });
  if (const std::string missing = missing_part(whole); !missing.empty()) {
    fault(ErrorCode::kMismatch,
          fmt::format("is not whole: {} (in {}; {})", missing, file_of(pieces[0]), kFetchAll));
  }
}

// The part that no slice holds, in words; empty when the pieces make up the whole.
std::string SliceJoin::missing_part(const Whole& whole) const {
  const PlacedSlice& any = kind_of(whole.pieces[0]);
  const std::uint32_t n_slices = any.cut.n_slices();
  std::vector<std::uint32_t> present;
  for (const JoinedPiece& piece : whole.pieces) {
    if (!kind_of(piece).record.is_zeroed) present.push_back(kind_of(piece).slice);
  }
  if (present.empty()) return "every rank holds zeros in its place";
  if (const auto absent = absent_below(n_slices, std::move(present)); !absent.empty())
    return fmt::format("no file has slice{} {} of {}", absent.size() == 1 ? "" : "s",
                       list_text(absent, 8), n_slices);
  for (std::size_t begin = 0; begin < whole.pieces.size();) {
    std::vector<std::uint32_t> experts;
    const PlacedSlice& first = kind_of(whole.pieces[begin]);
    bool has_every = first.record.is_zeroed;
    std::size_t end = begin;
    for (; end < whole.pieces.size(); ++end) {
      const PlacedSlice& slice = kind_of(whole.pieces[end]);
      if (slice.record.is_zeroed != first.record.is_zeroed || slice.slice != first.slice) break;
      const auto& held = slice.record.experts;
      has_every = has_every || held.empty();
      experts.insert(experts.end(), held.begin(), held.end());
    }
    begin = end;
    if (has_every) continue;
    const std::uint64_t n_experts = any.record.whole[0];
    if (const auto absent = absent_below(n_experts, std::move(experts)); !absent.empty()) {
      return fmt::format("no file has expert{} {} of {}{}", absent.size() == 1 ? "" : "s",
                         list_text(absent, 8), n_experts,
                         n_slices > 1 ? fmt::format(" in slice {}", first.slice) : "");
    }
  }
  return "";
}

JoinedModel SliceJoin::finish(bool gives_dimensions) {
  by_name_.clear();
  std::ranges::sort(wholes_, {}, &Whole::name);
  ErrorList faults;
  for (Whole& whole : wholes_) complete(whole, faults);
  faults.throw_if_any();
  std::ranges::stable_sort(wholes_, {},
                           [](const Whole& whole) { return place_of(whole.pieces[0]); });
  JoinedModel model;
  model.stored.reserve(wholes_.size());
  slices_.tensors.reserve(wholes_.size());
  std::size_t n_pieces = 0;
  for (const Whole& whole : wholes_) n_pieces += whole.pieces.size();
  slices_.pieces.reserve(n_pieces);
  for (Whole& whole : wholes_) {
    const JoinedPiece& first = whole.pieces[0];
    const PlacedSlice& kind = kind_of(first);
    slices_.tensors.push_back(
        {.first_piece = static_cast<std::uint32_t>(slices_.pieces.size()),
         .n_pieces = static_cast<std::uint32_t>(whole.pieces.size()),
         .is_stack = std::ranges::any_of(whole.pieces, [&](const JoinedPiece& piece) {
           return !kind_of(piece).record.experts.empty();
         })});
    slices_.pieces.insert(slices_.pieces.end(), whole.pieces.begin(), whole.pieces.end());
    model.stored.push_back({.name = std::move(whole.name),
                            .dtype = kind.dtype,
                            .shape = kind.shape(),
                            .file = first.file,
                            .offset = first.offset,
                            .n_bytes = formats::byte_count(kind.dtype, kind.shape()).value()});
    std::vector<JoinedPiece>().swap(whole.pieces);
  }
  wholes_.clear();
  if (gives_dimensions) {
    const auto& [codes, sizes] = int4_parts();
    for (const std::uint32_t index : without_dimensions(model.stored)) {
      // The dimensions part is never read, so it takes the place of the codes.
      StoredTensor dimensions = model.stored[index];
      dimensions.name.replace(dimensions.name.size() - codes.suffix.size(), std::string::npos,
                              sizes.suffix);
      dimensions.dtype = sizes.dtype;
      dimensions.shape = {model.stored[index].shape.size()};
      dimensions.n_bytes = formats::byte_count(sizes.dtype, dimensions.shape).value();
      model.stored.push_back(std::move(dimensions));
      slices_.tensors.push_back(slices_.tensors[index]);
    }
  }
  slices_.dimensions = dimensions_of(model.stored);
  model.slices = std::move(slices_);
  return model;
}

}  // namespace ingot::shard
