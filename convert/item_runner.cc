#include "convert/item_runner.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include <fmt/format.h>

#include "convert/transform.h"
#include "formats/base/error.h"
#include "formats/block_scales.h"

namespace ingot::convert {

using formats::LogicalTensor;
using formats::StoredTensor;

namespace {

// A copy goes straight from the file into the window; pieces of this size are hashed while in
// cache.
constexpr std::uint64_t kCopyBytes = std::uint64_t{1} << 20;

// Adds the time from construction to destruction to a stage.
class StageTimer {
 public:
  StageTimer(std::atomic<std::uint64_t>& ns, std::atomic<std::uint64_t>& bytes,
             std::uint64_t n_bytes)
      : ns_(ns), begin_(std::chrono::steady_clock::now()) {
    bytes.fetch_add(n_bytes, std::memory_order_relaxed);
  }
  ~StageTimer() {
    const auto elapsed = std::chrono::steady_clock::now() - begin_;
    ns_.fetch_add(static_cast<std::uint64_t>(
                      std::chrono::duration_cast<std::chrono::nanoseconds>(elapsed).count()),
                  std::memory_order_relaxed);
  }
  StageTimer(const StageTimer&) = delete;
  StageTimer& operator=(const StageTimer&) = delete;

 private:
  std::atomic<std::uint64_t>& ns_;
  std::chrono::steady_clock::time_point begin_;
};

bool any_matches(const std::vector<Pattern>& patterns, const std::string& name) {
  return std::any_of(patterns.begin(), patterns.end(),
                     [&](const Pattern& p) { return p.matches(name); });
}

// Scales are read and judged even where the bytes are only copied: a checkpoint with a zero or
// infinite scale is broken whatever is done with it.
std::vector<float> scales_of(const ItemContext& context, const LogicalTensor& tensor) {
  if (tensor.encoding.block_cols == 0) return {};
  const formats::ScalePolicy policy{.allow_zero =
                                        any_matches(context.recipe.allow.zero_scale, tensor.name)};
  return formats::read_block_scales(context.source, tensor, policy);
}

}  // namespace

std::uint64_t item_runner_bytes() {
  return 2 * max_band_bytes();
}

ItemRunner::ItemRunner(ItemContext& context)
    : context_(context), input_(max_band_bytes()), output_(max_band_bytes()) {}

ItemHashes ItemRunner::run(std::uint32_t item) {
  const PlannedTensor& planned = context_.plan.tensors[item];
  const LogicalTensor& tensor = context_.source.tensors()[planned.tensor];
  ItemHashes hashes;
  try {
    if (planned.action == Action::kCopy) copy(item, planned, hashes);
    if (planned.action == Action::kCast) cast(item, planned, hashes);
  } catch (Error& error) {
    if (error.code() != ErrorCode::kInterrupted && error.code() != ErrorCode::kNoSpace) {
      const StoredTensor& stored = context_.source.stored()[tensor.encoding.stored[0]];
      error.in_file(context_.source.files()[stored.file].name).in_tensor(tensor.name);
    }
    throw;
  }
  return hashes;
}

void ItemRunner::run_header(std::uint32_t file) {
  const std::string text = context_.plan.header(context_.source, file);
  const auto item = static_cast<std::uint32_t>(context_.plan.tensors.size() + file);
  put(item, file, 0, std::as_bytes(std::span(text)));
  context_.writer.finish_item(item);
}

void ItemRunner::copy(std::uint32_t item, const PlannedTensor& planned, ItemHashes& hashes) {
  const LogicalTensor& tensor = context_.source.tensors()[planned.tensor];
  scales_of(context_, tensor);
  for (std::size_t p = 0; p < planned.n_parts; ++p) {
    const PlannedPart& part = planned.parts[p];
    TensorHasher hasher;
    for (std::uint64_t done = 0; done < part.n_bytes;) {
      context_.check_stop();
      const std::uint64_t n = std::min(kCopyBytes, part.n_bytes - done);
      const WindowWriter::Lease lease = context_.writer.acquire(part.file, part.offset + done, n);
      std::uint64_t at = done;
      for (std::size_t i = 0; i < lease.n_pieces; ++i) {
        const std::span<std::byte> piece = lease.pieces[i];
        {
          const StageTimer timer(context_.times.read_ns, context_.times.read_bytes, piece.size());
          context_.source.read(tensor.encoding.stored[p], at, piece);
        }
        const StageTimer timer(context_.times.hash_ns, context_.times.hash_bytes, piece.size());
        hasher.update(piece);
        at += piece.size();
      }
      context_.writer.commit(lease, item);
      done += n;
      context_.done_bytes.fetch_add(n, std::memory_order_relaxed);
    }
    hashes.source.push_back(hasher.finish());
    hashes.output.push_back(hashes.source.back());
  }
}

void ItemRunner::cast(std::uint32_t item, const PlannedTensor& planned, ItemHashes& hashes) {
  const LogicalTensor& tensor = context_.source.tensors()[planned.tensor];
  const PlannedPart& part = planned.parts[0];
  const std::vector<float> scales = scales_of(context_, tensor);
  const bool nan_allowed = any_matches(context_.recipe.allow.nan_code, tensor.name);
  const BandPlan bands(tensor, planned.to);
  TensorHasher source_hasher, output_hasher;
  for (std::uint64_t b = 0; b < bands.count(); ++b) {
    context_.check_stop();
    const Band band = bands.band(b);
    const std::span<std::byte> input = std::span(input_).first(band.source_bytes);
    {
      const StageTimer timer(context_.times.read_ns, context_.times.read_bytes, input.size());
      context_.source.read(tensor.encoding.stored[0], band.source_offset, input);
    }
    const WindowWriter::Lease lease =
        context_.writer.acquire(part.file, part.offset + band.output_offset, band.output_bytes);
    // Straight into the window, unless the band straddles two.
    const std::span<std::byte> output =
        lease.n_pieces == 1 ? lease.pieces[0] : std::span(output_).first(band.output_bytes);
    quantize::DecodeFaults faults;
    {
      const StageTimer timer(context_.times.compute_ns, context_.times.compute_bytes,
                             output.size());
      faults = transform_band(tensor, bands, band, planned.to, scales, input, output);
    }
    if (faults.nan_codes > 0 && !nan_allowed) {
      const std::uint64_t row = band.first_row + faults.first_nan / band.cols;
      const std::uint64_t col = band.first_col + faults.first_nan % band.cols;
      throw Error(
          ErrorCode::kNonFinite,
          fmt::format(
              "holds a NaN code at row {}, column {} (fetch the file again, or accept it with "
              "--allow 'nan-code={}')",
              row, col, tensor.name));
    }
    {
      const StageTimer timer(context_.times.hash_ns, context_.times.hash_bytes,
                             input.size() + output.size());
      source_hasher.update(input);
      output_hasher.update(output);
    }
    if (lease.n_pieces == 2) {
      std::memcpy(lease.pieces[0].data(), output.data(), lease.pieces[0].size());
      std::memcpy(lease.pieces[1].data(), output.data() + lease.pieces[0].size(),
                  lease.pieces[1].size());
    }
    context_.writer.commit(lease, item);
    context_.done_bytes.fetch_add(band.output_bytes, std::memory_order_relaxed);
  }
  hashes.source.push_back(source_hasher.finish());
  for (std::size_t p = 1; p < formats::scheme_facts(tensor.encoding.scheme).n_parts; ++p) {
    hashes.source.push_back(hash_stored(tensor.encoding.stored[p]));
  }
  hashes.output.push_back(output_hasher.finish());
}

Hash128 ItemRunner::hash_stored(std::uint32_t stored) {
  const std::uint64_t n_bytes = context_.source.stored()[stored].n_bytes;
  TensorHasher hasher;
  for (std::uint64_t done = 0; done < n_bytes;) {
    const auto piece =
        std::span(input_).first(std::min<std::uint64_t>(input_.size(), n_bytes - done));
    context_.source.read(stored, done, piece);
    hasher.update(piece);
    done += piece.size();
  }
  return hasher.finish();
}

void ItemRunner::put(std::uint32_t item, std::uint32_t file, std::uint64_t offset,
                     std::span<const std::byte> bytes) {
  for (std::size_t done = 0; done < bytes.size();) {
    const std::size_t n = std::min<std::size_t>(kCopyBytes, bytes.size() - done);
    const WindowWriter::Lease lease = context_.writer.acquire(file, offset + done, n);
    for (std::size_t i = 0; i < lease.n_pieces; ++i) {
      std::memcpy(lease.pieces[i].data(), bytes.data() + done, lease.pieces[i].size());
      done += lease.pieces[i].size();
    }
    context_.writer.commit(lease, item);
  }
}

}  // namespace ingot::convert
