#include "convert/run/band_loop.h"

#include <algorithm>

#include "formats/base/stop_scope.h"

namespace ingot::convert {
namespace {

std::span<std::byte> room_for(std::uint64_t n_bytes, std::vector<std::byte>& buffer) {
  if (buffer.size() < n_bytes) buffer.resize(n_bytes);
  return std::span(buffer).first(n_bytes);
}

}  // namespace

BandLoop::BandLoop(RunContext& context, std::uint64_t most_kept)
    : context_(context), source_(context.plan.source), most_kept_(most_kept) {}

std::span<const std::byte> BandLoop::bytes_of(std::uint32_t stored, std::uint64_t offset,
                                              std::span<std::byte> buffer) const {
  if (const auto kept = kept_.find(stored); kept != kept_.end())
    return kept->second.subspan(offset, buffer.size());
  const StageTimer timer(context_.times.read, buffer.size());
  source_.read(stored, offset, buffer);
  return buffer;
}

void BandLoop::read(std::uint32_t stored, std::uint64_t offset, std::span<std::byte> out) const {
  const auto bytes = bytes_of(stored, offset, out);
  if (bytes.data() != out.data()) std::ranges::copy(bytes, out.begin());
}

template <typename Step>
void BandLoop::for_each(const BandPlan& bands, const Step& step) {
  for (std::uint64_t b = 0; b < bands.count(); ++b) {
    StopScope::check();
    context_.progress();
    step(bands.band(b));
  }
}

BandLoop::Copied BandLoop::copy(std::uint32_t stored, PartWriter part, const Look& look) {
  // Short enough to be read straight into the output's memory.
  const std::uint64_t most = std::min<std::uint64_t>(kBandBytes, context_.writer.window_bytes());
  TensorHasher hasher;
  for_each(BandPlan::of_bytes(source_.stored()[stored].n_bytes, most), [&](const Band& band) {
    const std::span<std::byte> values = part.prepare(band.output_bytes, output_);
    read(stored, band.source_offset, values);
    if (look) look(band, values);
    if (!part.is_plain()) {
      const StageTimer timer(context_.times.hash, values.size());
      hasher.update(values);
    }
    part.commit();
  });
  Copied copied{.source = {}, .output = part.finish()};
  copied.source = part.is_plain() ? copied.output.front() : hasher.finish();
  return copied;
}

Hash128 BandLoop::recode(std::uint32_t stored, const BandPlan& bands, PartWriter& part,
                         const Recode& recode, const std::function<void()>& written) {
  TensorHasher hasher;
  for_each(bands, [&](const Band& band) {
    const auto values = bytes_of(stored, band.source_offset, room_for(band.source_bytes, input_));
    {
      const StageTimer timer(context_.times.hash, values.size());
      hasher.update(values);
    }
    const std::span<std::byte> out = part.prepare(band.output_bytes, output_);
    {
      const StageTimer timer(context_.times.compute, out.size());
      recode(band, values, out);
    }
    part.commit();
    if (written) written();
  });
  return hasher.finish();
}

void BandLoop::look(std::uint32_t stored, const BandPlan& bands, const Look& look) {
  for_each(bands, [&](const Band& band) {
    look(band, bytes_of(stored, band.source_offset, room_for(band.source_bytes, input_)));
  });
}

Hash128 BandLoop::hash(std::uint32_t stored) {
  TensorHasher hasher;
  look(stored, BandPlan::of_bytes(source_.stored()[stored].n_bytes, kBandBytes),
       [&](const Band&, std::span<const std::byte> values) { hasher.update(values); });
  return hasher.finish();
}

void BandLoop::keep(std::uint32_t stored) {
  const std::uint64_t n_bytes = source_.stored()[stored].n_bytes;
  if (kept_.contains(stored) || n_bytes > most_kept_ - n_kept_) return;
  kept_bytes_.reserve(most_kept_);  // kept spans point into this memory
  const auto values = room_for(n_kept_ + n_bytes, kept_bytes_).subspan(n_kept_);
  read(stored, 0, values);
  n_kept_ += n_bytes;
  kept_[stored] = values;
}

void BandLoop::forget_kept() {
  kept_.clear();
  n_kept_ = 0;
}

}  // namespace ingot::convert
