// From the bytes of a whole tensor to the files of many ranks.
//
// The problem: a source is read once, front to back, whatever the number of ranks. A run of its
// bytes may belong to one file as it is, to each of several files (replicas), or in pieces of a few
// bytes to a slice per rank, in other blocks than it has (aligned); and each slice needs a hash of
// its own bytes in their own order.
//
// The choice: a list of targets, one per place of the plan, each with the cut that turns a range of
// the whole into runs of slices. Bytes come in order, so the runs of each slice come in order too:
// a slice is hashed as it is written, and no slice is ever in memory as a whole. When a band goes
// to one stretch of one file, which is the case without ranks, its memory is leased from the window
// of the output and filled in place by whoever makes the bytes (prepare, commit); else it is copied
// run by run into the windows (scatter). Replicas are hashed once. Slices in files that another
// part of the job writes are hashed and not written, since the record of the tensor has all hashes.
// A slice that its file holds turned is hashed in the order of the whole, and a band of it becomes
// a run of each row of the file: the windows gather these.
//
// Rejected: a reader per rank (reads the source as many times as there are ranks); whole slices in
// memory (as large as the tensor); hashing what was written (one more pass over the disk).
//
// The cost: one copy of each byte that is cut or replicated, and a list of runs per band.

#include "convert/run/part_writer.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "convert/plan/band.h"
#include "formats/base/error.h"

namespace ingot::convert {

using shard::PartCut;

PartWriter::PartWriter(RunContext& context, std::uint32_t tensor, std::size_t part)
    : context_(context), tensor_(tensor), part_(context.plan.tensors[tensor].parts[part]) {
  const Plan& plan = context.plan;
  const PlannedTensor& planned = plan.tensors[tensor];
  const auto places = plan.places_of(part_);
  std::size_t n_hashers = 0;
  std::set<std::uint32_t> hashed;  // first slices
  for (const PlannedPlace& place : places) {
    Target& target =
        targets_.emplace_back(Target{.place = &place,
                                     .file = &plan.files[place.file],
                                     .cut = plan.part_cut(planned, part, place.ep_rank)});
    if (place.ep_rank == PlannedPlace::kAllExperts) {
      const bool is_whole = target.cut.kind() == PartCut::Kind::kWhole;
      target.is_replica = !hashed.insert(is_whole ? 0 : place.first_slice).second;
    }
    target.turned = turned_rows(plan, place, target.cut);
    n_hashers = std::max<std::size_t>(n_hashers, place.first_hash + target.cut.n_distinct());
  }
  hashers_.resize(n_hashers);
  const PartCut& first = targets_.front().cut;
  if (planned.alignment != shard::Alignment{}) {
    const formats::Shape shape = plan.part_shape(planned, part);
    if (first.whole_shape() != shape) {
      aligner_.emplace(part_.part, planned.to, part_.dtype, shape, plan.aligned(planned, part));
    }
  }
  is_plain_ = !aligner_ && targets_.size() == 1 && targets_.front().file->members.size() == 1 &&
              first.kind() == PartCut::Kind::kWhole && first.slice_bytes() == first.whole_bytes();
  runs_.resize(first.n_slices());
}

// Takes memory of the output for the next n_bytes; false when they go to several stretches.
bool PartWriter::lease(std::uint64_t n_bytes) {
  lease_.reset();
  if (aligner_ || targets_.size() != 1 || n_bytes == 0 || n_bytes > kBandBytes) return false;
  const Target& target = targets_.front();
  if (!target.file->is_here || target.turned.is_turned()) return false;
  const PartCut::Kind kind = target.cut.kind();
  const auto n_members = static_cast<std::uint32_t>(target.file->members.size());
  const auto run = target.cut.run_at(written_, n_bytes);
  if (!run || run->n_bytes != n_bytes || kind == PartCut::Kind::kFirstOnly) return false;
  // Every member has a part that is not cut. A slice below the first wraps around.
  if (kind == PartCut::Kind::kWhole && n_members != 1) return false;
  const std::uint32_t member =
      kind == PartCut::Kind::kCut ? run->slice - target.place->first_slice : 0;
  if (member >= n_members) return false;
  const std::uint64_t offset = target.place->offset + run->slice_offset;
  if (!context_.writer.is_in_one_window(offset, n_bytes)) return false;
  leased_hasher_ = target.place->first_hash + run->slice;
  lease_ = context_.writer.acquire(target.file->first_member + member, offset, n_bytes);
  return true;
}

std::span<std::byte> PartWriter::prepare(std::uint64_t n_bytes, std::vector<std::byte>& spare) {
  if (lease(n_bytes)) return prepared_ = lease_->bytes;
  if (spare.size() < n_bytes) spare.resize(n_bytes);
  return prepared_ = std::span(spare).first(n_bytes);
}

void PartWriter::commit() {
  if (!lease_) {
    write(prepared_);
    return;
  }
  hash(hashers_[leased_hasher_], prepared_);
  context_.writer.commit(*lease_, tensor_);
  written_ += prepared_.size();
  scattered_ += prepared_.size();
  context_.done_bytes.fetch_add(prepared_.size(), std::memory_order_relaxed);
}

void PartWriter::hash(TensorHasher& hasher, std::span<const std::byte> bytes) {
  const StageTimer timer(context_.times.hash, bytes.size());
  hasher.update(bytes);
}

void PartWriter::write(std::span<const std::byte> bytes) {
  written_ += bytes.size();
  if (aligner_) {
    aligner_->push(bytes, [this](std::span<const std::byte> aligned) { scatter(aligned); });
  } else {
    scatter(bytes);
  }
}

void PartWriter::scatter(std::span<const std::byte> bytes) {
  for (const Target& target : targets_) {
    for (auto& list : runs_) list.clear();
    target.cut.for_each_run(scattered_, bytes.size(),
                            [&](const PartCut::Run& run) { runs_[run.slice].push_back(run); });
    for (std::uint32_t member = 0; member < target.file->members.size(); ++member)
      scatter_to(target, member, bytes);
  }
  scattered_ += bytes.size();
}

void PartWriter::scatter_to(const Target& target, std::uint32_t member,
                            std::span<const std::byte> bytes) {
  // A part that is not cut goes to every member, or only to the first.
  const PartCut::Kind kind = target.cut.kind();
  const std::uint32_t slice =
      kind == PartCut::Kind::kWhole ? 0 : target.place->first_slice + member;
  const std::vector<PartCut::Run>& runs = runs_[kind == PartCut::Kind::kCut ? slice : 0];
  if (runs.empty()) return;
  const bool is_zeroed = kind == PartCut::Kind::kFirstOnly && slice > 0;
  const bool hashes = !target.is_replica && (kind != PartCut::Kind::kWhole || member == 0);
  const std::uint64_t begin = runs.front().slice_offset;
  const std::uint64_t n_bytes = runs.back().slice_offset + runs.back().n_bytes - begin;
  std::size_t at = 0;
  std::uint64_t used = 0;  // of runs[at]
  const auto copy = [&](std::span<std::byte> piece) {
    while (!piece.empty()) {
      const PartCut::Run& run = runs[at];
      const std::uint64_t n = std::min<std::uint64_t>(piece.size(), run.n_bytes - used);
      std::memcpy(piece.data(), bytes.data() + (run.whole_offset - scattered_) + used, n);
      piece = piece.subspan(n);
      used += n;
      if (used == run.n_bytes) {
        ++at;
        used = 0;
      }
    }
  };
  const auto fill = [&](std::span<std::byte> piece) {
    if (is_zeroed) {
      std::memset(piece.data(), 0, piece.size());
    } else {
      copy(piece);
    }
    if (hashes) hash(hashers_[target.place->first_hash + slice], piece);
  };
  if (!target.file->is_here) {
    // Another part of the job writes it; its hash is in the record of the tensor all the same.
    elsewhere_.resize(std::min(n_bytes, hashes ? ByteSink::kMostBytes : 0));
    for (std::uint64_t left = hashes ? n_bytes : 0; left > 0;) {
      const std::span<std::byte> piece =
          std::span(elsewhere_).first(std::min<std::uint64_t>(left, elsewhere_.size()));
      fill(piece);
      left -= piece.size();
    }
    return;
  }
  const std::uint32_t file = target.file->first_member + member;
  if (target.turned.is_turned()) {
    elsewhere_.resize(n_bytes);
    fill(elsewhere_);
    put_turned(target, file, begin);
  } else {
    context_.writer.put(file, target.place->offset + begin, n_bytes, tensor_, fill);
  }
  context_.done_bytes.fetch_add(n_bytes, std::memory_order_relaxed);
}

// Puts the bytes at hand, which begin at `begin` of a slice, where its file has them.
void PartWriter::put_turned(const Target& target, std::uint32_t file, std::uint64_t begin) {
  const std::uint64_t cols = target.turned.cols;
  target.turned.for_each_run(
      begin, begin + elsewhere_.size(), [&](std::uint64_t at, std::uint64_t n, std::uint64_t from) {
        const auto fill = [&](std::span<std::byte> piece) {
          for (std::byte& byte : piece) {
            byte = elsewhere_[from];
            from += cols;
          }
        };
        context_.writer.put(file, target.place->offset + at, n, tensor_, fill);
      });
}

std::vector<Hash128> PartWriter::finish() {
  INGOT_CHECK(written_ == part_.n_bytes && scattered_ == targets_.front().cut.whole_bytes());
  std::vector<Hash128> hashes;
  for (TensorHasher& hasher : hashers_) hashes.push_back(hasher.finish());
  return hashes;
}

}  // namespace ingot::convert
