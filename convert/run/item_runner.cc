#include "convert/run/item_runner.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include <fmt/format.h>

#include "convert/plan/transform.h"
#include "convert/run/part_writer.h"
#include "convert/run/tensor_encoder.h"
#include "convert/run/tensor_rewrapper.h"
#include "formats/base/error.h"
#include "formats/storage/block_scales.h"

namespace ingot::convert {

using formats::LogicalTensor;
using formats::StoredTensor;

namespace {

// As FP32, half a megabyte.
constexpr std::uint64_t kScalesAtOnce = std::uint64_t{1} << 17;

bool is_e4m3_nan(std::byte code) {
  return (std::to_integer<unsigned>(code) & 0x7FU) == 0x7FU;
}

}  // namespace

std::uint64_t item_runner_bytes(const Plan& plan) {
  return 2 * max_band_bytes() + plan.band_bytes;
}

ItemRunner::ItemRunner(ItemContext& context)
    : context_(context), input_(max_band_bytes()), output_(max_band_bytes()) {}

void ItemRunner::run(std::span<const std::uint32_t> item, const Finished& finished) {
  std::optional<float> amax;
  const std::uint32_t group = context_.plan.tensors[item.front()].group;
  if (group != PlannedTensor::kNone) {
    amax = context_.known_amax(group);
    if (!amax) amax = reduce(group);
  }
  for (const std::uint32_t member : item) finished(member, run_tensor(member, amax));
  kept_.clear();
}

ItemRecord ItemRunner::run_tensor(std::uint32_t item, std::optional<float> amax) {
  const PlannedTensor& planned = context_.plan.tensors[item];
  const LogicalTensor& tensor = context_.source.tensors()[planned.tensor];
  try {
    switch (planned.action) {
      case Action::kCopy:
        return copy(item);
      case Action::kRewrap:
        return TensorRewrapper(*this, item).run();
      case Action::kCast:
        if (!goes_through_bands(tensor, planned)) return cast(item);
        return TensorEncoder(*this, item, amax).run();
      case Action::kQuantize:
        return TensorEncoder(*this, item, amax).run();
      case Action::kDrop:
        break;
    }
    return {};
  } catch (Error& error) {
    name_source(error, tensor);
    throw;
  }
}

void ItemRunner::name_source(Error& error, const LogicalTensor& tensor) const {
  if (error.code() == ErrorCode::kInterrupted || error.code() == ErrorCode::kNoSpace) return;
  const StoredTensor& stored = context_.source.stored()[tensor.encoding.stored.weight()];
  error.in_file(context_.source.files()[stored.file].name).in_tensor(tensor.name);
}

float ItemRunner::reduce(std::uint32_t group) {
  const std::uint64_t n_bytes = context_.plan.group_bytes(context_.source, group);
  const bool fits = n_bytes <= context_.group_bytes;
  if (fits && group_codes_.size() < n_bytes) group_codes_.resize(n_bytes);
  std::span<std::byte> free = group_codes_;
  float largest = 0;
  for (const std::uint32_t member : context_.plan.groups[group]) {
    const PlannedTensor& planned = context_.plan.tensors[member];
    const LogicalTensor& tensor = context_.source.tensors()[planned.tensor];
    try {
      if (fits) {
        const std::uint32_t weight = tensor.encoding.stored.weight();
        const std::span<std::byte> codes = free.first(context_.source.stored()[weight].n_bytes);
        free = free.subspan(codes.size());
        kept_[weight] = codes;
        const StageTimer timer(context_.times.read_ns, context_.times.read_bytes, codes.size());
        context_.source.read(weight, 0, codes);
      }
      largest = std::max(largest, TensorEncoder(*this, member, std::nullopt).reduce());
    } catch (Error& error) {
      name_source(error, tensor);
      throw;
    }
  }
  return largest;
}

void ItemRunner::run_header(std::uint32_t file) {
  const std::string text = context_.plan.header(context_.source, file);
  const auto item = static_cast<std::uint32_t>(context_.plan.tensors.size() + file);
  const PlannedFile& planned = context_.plan.files[file];
  for (std::uint32_t m = 0; m < planned.members.size(); ++m)
    put(item, planned.first_member + m, 0, std::as_bytes(std::span(text)));
  context_.writer.finish_item(item);
}

ItemRecord ItemRunner::copy(std::uint32_t item) {
  const PlannedTensor& planned = context_.plan.tensors[item];
  const LogicalTensor& tensor = context_.source.tensors()[planned.tensor];
  judge_scales(tensor, formats::ScaleReader(context_.source, tensor, scale_policy(tensor)));
  ItemRecord record;
  for (std::size_t p = 0; p < planned.n_parts; ++p) {
    const formats::Part part = planned.parts[p].part;
    CopiedPart copied = part == formats::Part::kWeight
                            ? copy_codes(item, p)
                            : copy_part(item, p, tensor.encoding.stored[part]);
    record.source.push_back(copied.source);
    record.output.push_back(std::move(copied.output));
  }
  return record;
}

ItemRunner::CopiedPart ItemRunner::copy_codes(std::uint32_t item, std::size_t part,
                                              const Look& look) {
  const LogicalTensor& tensor = context_.source.tensors()[context_.plan.tensors[item].tensor];
  const std::uint32_t stored = tensor.encoding.stored.weight();
  const bool may_be_nan =
      formats::scheme_facts(tensor.encoding.scheme).code == formats::CodeKind::kE4m3 &&
      !any_matches(context_.recipe.allow.nan_code, tensor.name);
  if (!may_be_nan) return copy_part(item, part, stored, look);
  std::uint64_t position = 0;
  return copy_part(item, part, stored, [&](std::span<const std::byte> codes) {
    unsigned any = 0;
    for (const std::byte code : codes) any |= is_e4m3_nan(code) ? 1U : 0U;
    if (any != 0) {
      const auto first = std::find_if(codes.begin(), codes.end(), is_e4m3_nan);
      const std::uint64_t at = position + static_cast<std::uint64_t>(first - codes.begin());
      throw nan_code(tensor, at / tensor.shape.back(), at % tensor.shape.back());
    }
    position += codes.size();
    if (look) look(codes);
  });
}

ItemRunner::CopiedPart ItemRunner::copy_part(std::uint32_t item, std::size_t part,
                                             std::uint32_t stored, const Look& look) {
  PartWriter writer(context_, item, part);
  TensorHasher whole;
  const std::uint64_t n_bytes = context_.plan.tensors[item].parts[part].n_bytes;
  const auto take = [&](std::span<std::byte> piece, std::uint64_t at) {
    {
      const StageTimer timer(context_.times.read_ns, context_.times.read_bytes, piece.size());
      context_.source.read(stored, at, piece);
    }
    if (look) look(piece);
    if (writer.is_plain()) return;
    const StageTimer timer(context_.times.hash_ns, context_.times.hash_bytes, piece.size());
    whole.update(piece);
  };
  while (writer.written() < n_bytes) {
    context_.check_stop();
    const std::uint64_t left = n_bytes - writer.written();
    if (const auto lease = writer.lease(left)) {
      std::uint64_t at = writer.written();
      for (std::size_t i = 0; i < lease->n_pieces; ++i) {
        take(lease->pieces[i], at);
        at += lease->pieces[i].size();
      }
      writer.commit(*lease);
    } else {
      const auto piece = std::span(input_).first(std::min<std::uint64_t>(input_.size(), left));
      take(piece, writer.written());
      writer.write(piece);
    }
  }
  CopiedPart copied{.source = {}, .output = writer.finish()};
  copied.source = writer.is_plain() ? copied.output.front() : whole.finish();
  return copied;
}

ItemRecord ItemRunner::cast(std::uint32_t item) {
  const PlannedTensor& planned = context_.plan.tensors[item];
  const LogicalTensor& tensor = context_.source.tensors()[planned.tensor];
  PartWriter writer(context_, item, 0);
  const std::vector<float> scales =
      formats::read_block_scales(context_.source, tensor, scale_policy(tensor));
  const bool nan_allowed = any_matches(context_.recipe.allow.nan_code, tensor.name);
  const BandPlan bands(tensor, planned.to);
  TensorHasher source_hasher;
  for (std::uint64_t b = 0; b < bands.count(); ++b) {
    context_.check_stop();
    const Band band = bands.band(b);
    const std::span<std::byte> input = std::span(input_).first(band.source_bytes);
    {
      const StageTimer timer(context_.times.read_ns, context_.times.read_bytes, input.size());
      context_.source.read(tensor.encoding.stored.weight(), band.source_offset, input);
    }
    // Straight into the window, unless the band straddles two or is cut.
    const auto lease = writer.lease_all(band.output_bytes);
    const std::span<std::byte> output = lease && lease->n_pieces == 1
                                            ? lease->pieces[0]
                                            : std::span(output_).first(band.output_bytes);
    quantize::DecodeFaults faults;
    {
      const StageTimer timer(context_.times.compute_ns, context_.times.compute_bytes,
                             output.size());
      faults = transform_band(tensor, bands, band, planned.to, scales, input, output);
    }
    if (faults.nan_codes > 0 && !nan_allowed) {
      throw nan_code(tensor, band.first_row + faults.first_nan / band.cols,
                     band.first_col + faults.first_nan % band.cols);
    }
    {
      const StageTimer timer(context_.times.hash_ns, context_.times.hash_bytes, input.size());
      source_hasher.update(input);
    }
    if (lease) {
      if (lease->n_pieces == 2) lease->fill(output);
      writer.commit(*lease);
    } else {
      writer.write(output);
    }
  }
  return {.source = hash_sources(tensor, source_hasher.finish()), .output = {writer.finish()}};
}

Error ItemRunner::nan_code(const LogicalTensor& tensor, std::uint64_t row, std::uint64_t col) {
  return Error(ErrorCode::kNonFinite,
               fmt::format("holds a NaN code at row {}, column {} (fetch the file again, or accept "
                           "it with --allow 'nan-code={}')",
                           row, col, tensor.name));
}

std::vector<Hash128> ItemRunner::hash_sources(const LogicalTensor& tensor, Hash128 weight) {
  std::vector<Hash128> hashes;
  tensor.encoding.stored.for_each([&](formats::Part part, std::uint32_t stored) {
    hashes.push_back(part == formats::Part::kWeight ? weight : hash_stored(stored));
  });
  return hashes;
}

std::span<const std::byte> ItemRunner::read_codes(const LogicalTensor& tensor, std::uint64_t offset,
                                                  std::span<std::byte> buffer) {
  const std::uint32_t weight = tensor.encoding.stored.weight();
  if (const auto kept = kept_.find(weight); kept != kept_.end())
    return kept->second.subspan(offset, buffer.size());
  const StageTimer timer(context_.times.read_ns, context_.times.read_bytes, buffer.size());
  context_.source.read(weight, offset, buffer);
  return buffer;
}

formats::ScalePolicy ItemRunner::scale_policy(const LogicalTensor& tensor) const {
  return {.allow_zero = any_matches(context_.recipe.allow.zero_scale, tensor.name)};
}

void ItemRunner::judge_scales(const LogicalTensor& tensor,
                              const formats::ScaleReader& scales) const {
  if (!scales.has_scales()) return;
  const std::uint64_t step = std::max<std::uint64_t>(kScalesAtOnce / scales.cols(), 1);
  for (std::uint64_t row = 0; row < scales.rows(); row += step) {
    require_claimed_scales(tensor,
                           scales.read({.first = row, .n = std::min(step, scales.rows() - row)}));
  }
}

void ItemRunner::require_claimed_scales(const LogicalTensor& tensor,
                                        std::span<const float> scales) const {
  if (!context_.plan.power_of_two_scales || tensor.encoding.scheme != formats::SchemeId::kFp8Block)
    return;
  for (const float scale : scales) {
    if (scale == 0 || (std::bit_cast<std::uint32_t>(scale) & 0x7FFFFFU) == 0) continue;
    throw Error(
        ErrorCode::kBadScale,
        fmt::format("has a scale of {}, but config.json says scale_fmt ue8m0, powers of two "
                    "(remove scale_fmt from the source's config.json)",
                    scale));
  }
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

void ItemRunner::put(std::uint32_t item, std::uint32_t member, std::uint64_t offset,
                     std::span<const std::byte> bytes) {
  const std::size_t most = context_.writer.window_bytes();
  for (std::size_t done = 0; done < bytes.size();) {
    const std::size_t n = std::min(most, bytes.size() - done);
    const WindowWriter::Lease lease = context_.writer.acquire(member, offset + done, n);
    lease.fill(bytes.subspan(done, n));
    done += n;
    context_.writer.commit(lease, item);
  }
}

}  // namespace ingot::convert
