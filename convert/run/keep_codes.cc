#include <algorithm>
#include <cmath>
#include <map>

#include <fmt/format.h>

#include "convert/run/actions.h"
#include "formats/container/float8.h"

namespace ingot::convert {

using formats::DType;
using formats::Part;

namespace {

// Number of scales that are converted at once: half a megabyte as FP32.
constexpr std::uint64_t kScalesAtOnce = std::uint64_t{1} << 17;

bool is_e4m3_nan(std::byte code) {
  return (std::to_integer<unsigned>(code) & 0x7FU) == 0x7FU;
}

// True if two dtypes have the same bytes: U8 and F8_E8M0 are two names of exponents.
bool is_same_kind(DType a, DType b) {
  const auto is_exponent = [](DType dtype) {
    return dtype == DType::kU8 || dtype == DType::kF8E8M0;
  };
  return a == b || (is_exponent(a) && is_exponent(b));
}

void require_claimed_scales(const TensorTask& task, std::span<const float> scales) {
  if (!task.context.plan.target.power_of_two_scales ||
      task.tensor.encoding.scheme != formats::SchemeId::kFp8Block)
    return;
  for (const float scale : scales) {
    if (scale == 0 || formats::is_e8m0_value(std::fabs(scale))) continue;
    throw Error(ErrorCode::kBadScale,
                "has a scale of {}, but config.json says scale_fmt ue8m0, powers of two (ingot "
                "repair takes scale_fmt out)",
                scale);
  }
}

void judge_scales(const TensorTask& task, const formats::ScaleReader& scales) {
  if (task.planned.action == Action::kCopy || task.planned.keeps_input)
    formats::require_good_input_scales(task.source, task.tensor, task.scale_policy());
  if (!scales.has_scales()) return;
  const std::uint64_t step = scales.rows_within(kScalesAtOnce);
  for (std::uint64_t row = 0; row < scales.rows(); row += step) {
    require_claimed_scales(task,
                           scales.read({.first = row, .n = std::min(step, scales.rows() - row)}));
  }
}

// True if global scales, of weights and of activations, become their reciprocals.
bool is_turned(const TensorTask& task) {
  return task.tensor.encoding.global_divides != task.planned.storage->global_divides;
}

bool is_of_inputs(Part part) {
  return part == Part::kInputScale || part == Part::kInputOffset || part == Part::kQuantBias ||
         part == Part::kDeqScale;
}

// True if a part is the stored one, byte for byte.
bool is_kept(const TensorTask& task, const PlannedPart& part) {
  if (task.planned.action == Action::kCopy || part.part == Part::kWeight) return true;
  if (part.part == Part::kZeroPoint || part.part == Part::kGroupOrder) return true;
  const formats::StoredParts& stored = task.tensor.encoding.stored;
  const bool is_input = is_of_inputs(part.part);
  if (is_input ? !task.planned.keeps_input : part.part != Part::kScale) return false;
  if (part.part == Part::kInputScale && is_turned(task)) return false;
  return stored.has(part.part) &&
         is_same_kind(task.source.stored()[stored[part.part]].dtype, part.dtype);
}

float reciprocal(float scale, std::string_view what) {
  const float turned = 1.0F / scale;
  if (turned > 0 && std::isfinite(turned)) return turned;
  throw Error(ErrorCode::kBadScale, "has a {} of {}, whose reciprocal is not a number", what,
              scale);
}

// Refuses NaN codes and adds up the rows where a part is made of their sums.
BandLoop::Look look_at_codes(const TensorTask& task, std::vector<std::int64_t>& row_sums) {
  const bool may_be_nan =
      formats::scheme_facts(task.tensor.encoding.scheme).code == formats::CodeKind::kE4m3 &&
      !task.allows_nan();
  const bool needs_sums = task.planned.find(Part::kQuantBias) != nullptr;
  if (!may_be_nan && !needs_sums) return {};
  const std::uint64_t cols = task.tensor.shape.back();
  if (needs_sums) row_sums.assign(*formats::element_count(task.tensor.shape) / cols, 0);
  return [=, &task, &row_sums](const Band& band, std::span<const std::byte> codes) {
    std::uint64_t position = band.source_offset;
    if (may_be_nan) {
      unsigned any = 0;
      for (const std::byte code : codes) any |= is_e4m3_nan(code) ? 1U : 0U;
      if (any != 0) {
        const auto first = std::find_if(codes.begin(), codes.end(), is_e4m3_nan);
        position += static_cast<std::uint64_t>(first - codes.begin());
        throw task.nan_code(position / cols, position % cols);
      }
    }
    if (!needs_sums) return;
    for (const std::byte code : codes)
      row_sums[position++ / cols] += static_cast<std::int8_t>(code);
  };
}

}  // namespace

float kept_input_scale(const TensorTask& task) {
  const float stored = formats::read_input_scale(task.source, task.tensor);
  return is_turned(task) ? reciprocal(stored, "scale of its inputs") : stored;
}

// 1 / (1 / x) is not always x, so the number that was written first is taken from the source's
// records where it still fits.
float target_global(const PlannedValues& of, const OriginalGlobals& originals,
                    const formats::GlobalScale& stored) {
  if (stored.divides == of.planned.storage->global_divides) return stored.value;
  const auto original = originals.find(of.tensor.name);
  if (original != originals.end() && original->second.divides != stored.divides &&
      1.0F / original->second.value == stored.value) {
    return original->second.value;
  }
  return reciprocal(stored.value, "global scale");
}

namespace {

// With `lossless_only`: codes are kept, but the scales that they will be multiplied with may be
// others. Looks at them in bands of rows.
void require_scales_held(const TensorTask& task, const formats::ScaleReader& scales) {
  const bool turns = scales.global() && task.planned.storage != nullptr && is_turned(task);
  const bool is_divided = task.planned.find(Part::kDeqScale) != nullptr;
  if (!task.lossless_only || !(turns || is_divided)) return;
  const std::uint64_t n_rows = scales.rows_within(kScalesAtOnce);
  for (std::uint64_t row = 0; row < scales.rows(); row += n_rows) {
    const formats::ScaleReader::Range range{.first = row,
                                            .n = std::min(n_rows, scales.rows() - row)};
    const std::vector<float> before = scales.read(range);
    std::vector<float> after = before;
    if (turns) {
      const std::uint32_t stored = task.tensor.encoding.stored[Part::kScale];
      const DType dtype = task.source.stored()[stored].dtype;
      const std::uint64_t width = formats::dtype_bits(dtype) / 8;
      std::vector<std::byte> bytes(before.size() * width);
      task.source.read(stored, row * scales.cols() * width, bytes);
      const formats::GlobalScale turned{
          .value = target_global(task, task.context.original_globals, *scales.global()),
          .divides = task.planned.storage->global_divides};
      formats::widen_scales(dtype, bytes, turned, after);
    } else {
      const float input = task.planned.input.scale;
      for (float& scale : after) scale = input * scale / input;
    }
    const auto [was, is] = std::ranges::mismatch(before, after);
    if (was == before.end()) continue;
    const auto at = static_cast<std::uint64_t>(was - before.begin());
    throw ValueLost(ErrorCode::kMismatch,
                    fmt::format("would lose values: in row {} and column {} of its scales {:.9g} "
                                "becomes {:.9g} (keep its dialect)",
                                row + at / scales.cols(), at % scales.cols(), *was, *is));
  }
}

}  // namespace

TensorResult keep_codes(const TensorTask& task) {
  if (task.planned.joint_global) return rescale_blocks(task);
  const formats::ScaleReader scales(task.source, task.tensor, task.scale_policy());
  judge_scales(task, scales);
  require_scales_held(task, scales);
  TensorResult result;
  std::map<Part, Hash128> read;
  std::vector<std::int64_t> row_sums;
  const auto all_scales = [&] { return scales.read({.first = 0, .n = scales.rows()}); };
  const auto write = [&](std::size_t p, std::span<const std::byte> bytes) {
    PartWriter part = task.part(p);
    part.write(bytes);
    result.output.push_back(part.finish());
  };
  for (std::size_t p = 0; p < task.planned.n_parts; ++p) {
    const PlannedPart& part = task.planned.parts[p];
    if (part.part == Part::kDimensions) {
      write(p, dimensions_part(task.context.plan, task.planned, part.dtype));
    } else if (is_kept(task, part)) {
      const bool is_codes = part.part == Part::kWeight;
      BandLoop::Copied copied =
          task.loop.copy(task.tensor.encoding.stored[part.part], task.part(p),
                         is_codes ? look_at_codes(task, row_sums) : BandLoop::Look());
      read[part.part] = copied.source;
      result.output.push_back(std::move(copied.output));
    } else if (part.part == Part::kScale) {
      if (part.dtype != DType::kF32) {
        throw Error(ErrorCode::kUnsupported,
                    "has scales of a dtype that the target dialect cannot hold without rounding");
      }
      write(p, std::as_bytes(std::span<const float>(all_scales())));
    } else if (part.part == Part::kGlobal) {
      const formats::GlobalScale& stored = *scales.global();
      const float global = target_global(task, task.context.original_globals, stored);
      if (is_turned(task)) {
        result.original_global = {.value = stored.value, .divides = stored.divides};
        result.inexact_global = 1.0F / global != stored.value;
      }
      write(p, std::as_bytes(std::span(&global, 1)));
    } else if (part.part == Part::kInputScale && task.planned.keeps_input) {
      const float scale = kept_input_scale(task);
      write(p, std::as_bytes(std::span(&scale, 1)));
    } else if (part.part == Part::kOffset) {
      write(p, std::vector<std::byte>(part.n_bytes));
    } else {
      const std::vector<float> rows = all_scales();
      write(p, modelslim_part(
                   part.part,
                   {.input = task.planned.input, .row_scales = rows, .row_sums = row_sums}));
    }
  }
  result.source = task.source_hashes(read);
  return result;
}

OriginalGlobals original_globals(const Plan& plan) {
  OriginalGlobals originals;
  const bool turns_any = std::ranges::any_of(plan.tensors, [&](const PlannedTensor& planned) {
    const formats::Encoding& encoding = plan.tensor_of(planned).encoding;
    return planned.action == Action::kRewrap && encoding.stored.has(Part::kGlobal) &&
           encoding.global_divides != planned.storage->global_divides;
  });
  if (!turns_any) return originals;
  const auto givers = plan.source.givers();
  std::map<std::string_view, std::uint32_t> giver_of;
  if (!givers.empty()) {
    for (const formats::LogicalTensor& tensor : plan.source.tensors())
      giver_of.emplace(tensor.name, tensor.giver);
  }
  const auto read = [&](const std::filesystem::path& directory, std::uint32_t giver) {
    const auto manifest = formats::read_manifest(directory);
    if (!manifest) return;
    for (const formats::TensorRecord& record :
         formats::read_tensor_records(directory / formats::kRecordsName, manifest->records_hash)) {
      const auto found = giver_of.find(record.name);
      const bool is_given = givers.empty() || (found != giver_of.end() && found->second == giver);
      if (!record.original_global || !is_given) continue;
      originals[record.name] = {.value = record.original_global->value,
                                .divides = record.original_global->divides};
    }
  };
  if (givers.empty()) read(plan.source.directory(), 0);
  for (std::uint32_t giver = 0; giver < givers.size(); ++giver)
    read(givers[giver].model->directory(), giver);
  return originals;
}

}  // namespace ingot::convert
