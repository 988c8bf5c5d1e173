#include "convert/run/actions.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "formats/base/checked.h"
#include "formats/base/error.h"

namespace ingot::convert {

using formats::Part;

std::vector<Hash128> TensorTask::source_hashes(const std::map<Part, Hash128>& known) const {
  std::vector<Hash128> hashes;
  tensor.encoding.stored.for_each([&](Part part, std::uint32_t stored) {
    const auto found = known.find(part);
    hashes.push_back(found != known.end() ? found->second : loop.hash(stored));
  });
  return hashes;
}

TensorResult transcode(const TensorTask& task) {
  const formats::LogicalTensor& tensor = task.tensor;
  const std::vector<float> scales =
      formats::read_block_scales(task.source, tensor, task.scale_policy());
  const bool allows_nan = task.allows_nan();
  const quantize::Transcode kernel =
      quantize::find_transcode(tensor.encoding.scheme, task.planned.to);
  INGOT_CHECK(kernel != nullptr);
  const BandPlan bands = BandPlan::to_cast(tensor, task.planned.to);
  PartWriter part = task.part(0);
  HeldValues held;
  std::vector<float> values_of_row, became;
  // Row by row, since hardly any tensor comes here: visit(row of the band, its values).
  const auto decode_rows = [&](const quantize::CodedMatrix& rows, const auto& visit) {
    values_of_row.resize(rows.cols);
    const formats::MatrixView<float> values{
        .data = values_of_row.data(), .rows = 1, .cols = rows.cols, .stride = rows.cols};
    for (std::size_t r = 0; r < rows.rows; ++r) {
      quantize::decode(rows.row_range(r, 1), values);
      visit(r, values);
    }
  };
  const Hash128 weight = task.loop.recode(
      tensor.encoding.stored.weight(), bands, part,
      [&](const Band& band, std::span<const std::byte> values, std::span<std::byte> out) {
        quantize::CodedMatrix rows = task.rows_of(bands, band, values);
        rows.scales = scales;
        const quantize::DecodeFaults faults = kernel(rows, out);
        if (faults.nan_codes > 0 && !allows_nan) {
          throw task.nan_code(band.first_row + faults.first_nan / band.cols,
                              band.first_col + faults.first_nan % band.cols);
        }
        if (held.is_open()) held.see_words(out, bands.output_bits / 8);
        if (held.is_open())
          decode_rows(rows, [&](std::size_t, const auto&) { held.count(values_of_row); });
        if (!task.lossless_only) return;
        decode_rows(rows, [&](std::size_t row, const formats::MatrixView<float>& before) {
          became.resize(band.cols);
          const formats::MatrixView<float> after{
              .data = became.data(), .rows = 1, .cols = band.cols, .stride = band.cols};
          quantize::decode({.scheme = task.planned.to,
                            .codes = out.data() + row * band.cols * bands.output_bits / 8,
                            .rows = 1,
                            .cols = band.cols},
                           after);
          task.require_held(band.first_row + row, band.first_col, before, after);
        });
      });
  held.require_some(tensor, task.planned.to, task.plan.recipe.allow.underflow);
  return {.source = task.source_hashes({{Part::kWeight, weight}}), .output = {part.finish()}};
}

namespace {

template <typename T>
std::vector<std::byte> bytes_of(const std::vector<T>& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(T));
  if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

std::int32_t quant_bias(float offset, std::int64_t sum) {
  // Both factors are integers below 2^53 / 2^8, so the product is exact.
  const double bias = -static_cast<double>(offset) * static_cast<double>(sum);
  if (std::abs(bias) > std::numeric_limits<std::int32_t>::max())
    throw Error(ErrorCode::kUnsupported, "has a quant_bias of {}, beyond 32 bits", bias);
  return static_cast<std::int32_t>(std::nearbyint(bias));
}

}  // namespace

std::vector<std::byte> dimensions_part(const Plan& plan, const PlannedTensor& planned,
                                       formats::DType dtype) {
  const formats::Shape shape = plan.slice_shape(planned);
  if (dtype == formats::DType::kI64) return bytes_of(shape);
  std::vector<std::int32_t> sides;
  for (const std::uint64_t side : shape) {
    if (side > std::uint64_t{std::numeric_limits<std::int32_t>::max()})
      throw Error(ErrorCode::kLimit, "a side of {} is beyond its I32 shape", side);
    sides.push_back(static_cast<std::int32_t>(side));
  }
  return bytes_of(sides);
}

std::vector<std::byte> modelslim_part(Part part, const ModelslimInputs& inputs) {
  switch (part) {
    case Part::kInputScale:
      return bytes_of(std::vector<float>{inputs.input.scale});
    case Part::kInputOffset:
      return bytes_of(std::vector<float>{inputs.input.offset});
    case Part::kDeqScale: {
      std::vector<float> scales;
      for (const float scale : inputs.row_scales) {
        scales.push_back(inputs.input.scale * scale);
        if (std::isfinite(scales.back()) && scales.back() != 0) continue;
        throw Error(ErrorCode::kBadScale,
                    "would have a deq_scale of {}: {} times {}, the scale of its inputs",
                    scales.back(), scale, inputs.input.scale);
      }
      return bytes_of(scales);
    }
    case Part::kQuantBias: {
      std::vector<std::int32_t> biases;
      for (const std::int64_t sum : inputs.row_sums)
        biases.push_back(quant_bias(inputs.input.offset, sum));
      return bytes_of(biases);
    }
    default:
      INGOT_CHECK(false);
  }
  return {};
}

namespace {

TensorResult converted(const TensorTask& task, std::optional<float> amax) {
  if (task.keeps_global && task.planned.may_keep_codes) {
    TensorResult kept = keep_codes(task);
    kept.keeps_codes = true;
    return kept;
  }
  switch (task.planned.action) {
    case Action::kCopy:
    case Action::kRewrap:
      return keep_codes(task);
    case Action::kCast:
      return goes_through_bands(task.tensor, task.planned) ? encode(task, amax) : transcode(task);
    case Action::kQuantize:
      return encode(task, amax);
    case Action::kDrop:
      break;
  }
  return {};
}

}  // namespace

void SetConverter::operator()(std::span<const std::uint32_t> tensors) {
  std::optional<Shared> shared;
  const std::uint32_t set = context_.plan.tensors[tensors.front()].fused_set;
  if (set != PlannedTensor::kNone) {
    shared = journalled(set);
    if (!shared) shared = shared_of(set);
  }
  const auto amax = shared ? std::optional(shared->amax) : std::nullopt;
  const bool keeps_globals = shared && shared->keeps_globals;
  for (const std::uint32_t index : tensors) {
    TensorResult& result = results_.of[index];
    result = at_tensor(
        index, [&](const TensorTask& task) { return converted(task, amax); }, keeps_globals);
    result.amax = amax;
    result.keeps_globals = keeps_globals;
    context_.writer.finish_item(index);
  }
  loop_.forget_kept();
}

// Names file and tensor in errors of `act`.
template <typename Act>
std::invoke_result_t<const Act&, const TensorTask&> SetConverter::at_tensor(std::uint32_t index,
                                                                            const Act& act,
                                                                            bool under_own_global) {
  const TensorTask task(context_, loop_, tiles_, index, under_own_global);
  try {
    for (const std::uint32_t stored : task.plan.reread(task.planned)) loop_.keep(stored);
    return act(task);
  } catch (Error& error) {
    if (error.code() == ErrorCode::kInterrupted || error.code() == ErrorCode::kNoSpace) throw;
    const auto& stored = context_.plan.source.stored()[task.tensor.encoding.stored.weight()];
    error.in_file(context_.plan.source.files()[stored.file].name).in_tensor(task.tensor.name);
    throw;
  }
}

// Facts of a set that an earlier run began: the source of a finished tensor may be gone.
std::optional<SetConverter::Shared> SetConverter::journalled(std::uint32_t set) const {
  for (const std::uint32_t index : context_.plan.fused_sets[set]) {
    const TensorResult& result = results_.of[index];
    if (results_.done[index] != 0 && result.amax)
      return Shared{.amax = *result.amax, .keeps_globals = result.keeps_globals};
  }
  return std::nullopt;
}

SetConverter::Shared SetConverter::shared_of(std::uint32_t set) {
  const std::vector<std::uint32_t>& tensors = context_.plan.fused_sets[set];
  const auto may_keep = [&](std::uint32_t index) {
    return context_.plan.tensors[index].may_keep_codes;
  };
  Shared shared{.keeps_globals = std::ranges::any_of(tensors, may_keep)};
  const auto look = [&](bool at_kept) {
    for (const std::uint32_t index : tensors) {
      if (may_keep(index) == at_kept)
        shared.amax = std::max(shared.amax, at_tensor(index, amax_of));
    }
  };
  look(false);
  for (const std::uint32_t index : tensors) {
    shared.keeps_globals =
        shared.keeps_globals && (may_keep(index) || at_tensor(index, [&](const TensorTask& task) {
                                   return holds_amax(task, shared.amax);
                                 }));
  }
  if (!shared.keeps_globals) look(true);
  return shared;
}

}  // namespace ingot::convert
