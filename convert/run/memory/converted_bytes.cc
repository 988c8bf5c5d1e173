#include "convert/run/memory/converted_bytes.h"

#include <algorithm>
#include <utility>

#include "convert/output/planned_checkpoint.h"
#include "convert/plan/band.h"
#include "formats/base/error.h"

namespace ingot::convert {

namespace {

// Bytes of sets that are kept besides those at work. Readers take the parts of a weight one after
// the other, so that a set waits a moment only.
constexpr std::uint64_t kMostHeld = std::uint64_t{16} << 20;

// True if the parts of the output are the stored ones, byte for byte.
bool is_copied(const PlannedTensor& planned) {
  return planned.action == Action::kCopy && !planned.joint_global;
}

}  // namespace

ConvertedBytes::ConvertedBytes(const Plan& plan, std::size_t threads)
    : plan_(plan), threads_(threads), encoder_(plan), files_(plan.files.size()) {
  set_of_.resize(plan.tensors.size());
  first_part_.resize(plan.tensors.size());
  std::map<std::uint32_t, std::uint32_t> fused;
  std::vector<std::uint32_t> n_parts;
  for (std::uint32_t t = 0; t < plan.tensors.size(); ++t) {
    const PlannedTensor& planned = plan.tensors[t];
    auto set = static_cast<std::uint32_t>(sets_.size());
    if (planned.fused_set != PlannedTensor::kNone)
      set = fused.emplace(planned.fused_set, set).first->second;
    if (set == sets_.size()) {
      sets_.emplace_back();
      set_bytes_.push_back(0);
      n_parts.push_back(0);
    }
    sets_[set].push_back(t);
    set_of_[t] = set;
    first_part_[t] = n_parts[set];
    n_parts[set] += planned.n_parts;
    for (std::uint32_t p = 0; p < planned.n_parts; ++p) {
      const PlannedPlace& place = plan.first_place(planned.parts[p]);
      const std::uint64_t n_bytes = planned.parts[p].n_bytes;
      set_bytes_[set] += n_bytes;
      if (n_bytes > 0) files_[place.file].push_back({place.offset, n_bytes, t, p});
    }
  }
  for (std::uint32_t f = 0; f < plan.files.size(); ++f) {
    const auto& joined = plan.files[f].joined;
    for (std::uint32_t j = 0; j < joined.size(); ++j) {
      if (joined[j].is_constant() && !joined[j].bytes.empty())
        files_[f].push_back({joined[j].offset, joined[j].bytes.size(), PlannedTensor::kNone, j});
    }
    std::ranges::sort(files_[f], {}, &Piece::offset);
  }
}

void ConvertedBytes::read(std::uint32_t file, std::uint64_t offset, std::span<std::byte> out) {
  const std::vector<Piece>& pieces = files_.at(file);
  auto piece = std::ranges::upper_bound(pieces, offset, {}, &Piece::offset);
  while (!out.empty()) {
    INGOT_CHECK(piece != pieces.begin());
    const Piece& from = *std::prev(piece);
    const std::uint64_t begin = offset - from.offset;
    INGOT_CHECK(begin < from.n_bytes);
    const std::size_t n = std::min<std::uint64_t>(out.size(), from.n_bytes - begin);
    if (from.tensor == PlannedTensor::kNone) {
      const std::string& bytes = plan_.files[file].joined[from.part].bytes;
      std::ranges::copy(std::as_bytes(std::span(bytes)).subspan(begin, n), out.begin());
    } else {
      read(from, begin, out.first(n));
    }
    out = out.subspan(n);
    offset += n;
    if (!out.empty()) {
      INGOT_CHECK(piece != pieces.end());
      ++piece;
    }
  }
}

void ConvertedBytes::read(const Piece& piece, std::uint64_t offset, std::span<std::byte> out) {
  const PlannedTensor& planned = plan_.tensors[piece.tensor];
  if (is_copied(planned)) {
    const formats::LogicalTensor& tensor = plan_.tensor_of(planned);
    const std::uint32_t stored = tensor.encoding.stored[planned.parts[piece.part].part];
    if (plan_.source.stored()[stored].n_bytes == piece.n_bytes)
      return plan_.source.read(stored, offset, out);
  }
  const std::uint32_t set = set_of_[piece.tensor];
  const std::shared_ptr<Held> of = held(set);
  {
    const std::lock_guard lock(of->mutex);
    if (of->parts.empty()) {
      for (EncodedTensor& made : encoder_.encode(sets_[set]))
        of->parts.push_back(std::move(made.bytes));
    }
  }
  const std::vector<std::byte>& part = of->parts[first_part_[piece.tensor] + piece.part];
  std::ranges::copy(std::span(part).subspan(offset, out.size()), out.begin());
  count_read(set, of, out.size());
}

std::shared_ptr<ConvertedBytes::Held> ConvertedBytes::held(std::uint32_t set) {
  const std::lock_guard lock(mutex_);
  std::shared_ptr<Held>& found = held_[set];
  if (found == nullptr) {
    found = std::make_shared<Held>();
    found->n_bytes = found->n_unread = set_bytes_[set];
    n_held_ += found->n_bytes;
    while (n_held_ > kMostHeld) {
      auto oldest = held_.end();
      for (auto at = held_.begin(); at != held_.end(); ++at) {
        if (at->second == found || at->second.use_count() > 1) continue;
        if (oldest == held_.end() || at->second->last_use < oldest->second->last_use) oldest = at;
      }
      if (oldest == held_.end()) break;
      n_held_ -= oldest->second->n_bytes;
      held_.erase(oldest);
    }
  }
  found->last_use = ++n_uses_;
  return found;
}

void ConvertedBytes::count_read(std::uint32_t set, const std::shared_ptr<Held>& held,
                                std::uint64_t n_bytes) {
  const std::lock_guard lock(mutex_);
  held->n_unread -= std::min(held->n_unread, n_bytes);
  const auto found = held_.find(set);
  if (held->n_unread > 0 || found == held_.end() || found->second != held) return;
  n_held_ -= held->n_bytes;
  held_.erase(found);
}

std::uint64_t ConvertedBytes::memory() const {
  // A thread has a set at work, and buffers of bands: two to read and write, and room for as many.
  constexpr std::uint64_t kBandsOfThread = 4;
  std::uint64_t largest = 0;
  for (std::uint32_t s = 0; s < sets_.size(); ++s) {
    if (!std::ranges::all_of(sets_[s],
                             [&](std::uint32_t t) { return is_copied(plan_.tensors[t]); }))
      largest = std::max(largest, set_bytes_[s]);
  }
  return kMostHeld + threads_ * (largest + plan_.sizes.band_bytes + kBandsOfThread * kBandBytes) +
         plan_.sizes.table_bytes + factor_memory(plan_, 1).useful;
}

formats::Checkpoint converted_checkpoint(const Plan& plan, ConvertedBytes& bytes,
                                         std::size_t threads) {
  return planned_checkpoint(plan, std::nullopt, threads,
                            [&bytes](std::uint32_t file, std::uint64_t offset,
                                     std::span<std::byte> out) { bytes.read(file, offset, out); });
}

}  // namespace ingot::convert
