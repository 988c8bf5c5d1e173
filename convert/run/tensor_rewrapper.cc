#include "convert/run/tensor_rewrapper.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "convert/run/ascend_parts.h"
#include "convert/run/part_writer.h"
#include "formats/base/error.h"
#include "formats/records/manifest.h"

namespace ingot::convert {

using formats::DType;
using formats::Part;

namespace {

// The same bytes under either name.
bool is_same_kind(DType a, DType b) {
  const auto is_exponent = [](DType dtype) {
    return dtype == DType::kU8 || dtype == DType::kF8E8M0;
  };
  return a == b || (is_exponent(a) && is_exponent(b));
}

}  // namespace

TensorRewrapper::TensorRewrapper(ItemRunner& runner, std::uint32_t item)
    : runner_(runner),
      item_(item),
      planned_(runner.context_.plan.tensors[item]),
      tensor_(runner.context_.source.tensors()[planned_.tensor]),
      scales_(runner.context_.source, tensor_, runner.scale_policy(tensor_)) {}

ItemRecord TensorRewrapper::run() {
  runner_.judge_scales(tensor_, scales_);
  ItemRecord record;
  for (std::size_t p = 0; p < planned_.n_parts; ++p) record.output.push_back(write(p));
  record.source = runner_.hash_sources(tensor_, codes_hash_);
  record.original_global = original_global_;
  record.inexact_global = inexact_global_;
  return record;
}

std::vector<Hash128> TensorRewrapper::write(std::size_t p) {
  const PlannedPart& part = planned_.parts[p];
  switch (part.part) {
    case Part::kWeight:
      return write_codes(p);
    case Part::kScale:
      return write_scales(p);
    case Part::kGlobal: {
      const float global = target_global();
      return write_bytes(p, std::as_bytes(std::span(&global, 1)));
    }
    case Part::kOffset:
      return write_bytes(p, std::vector<std::byte>(part.n_bytes));
    default: {
      const std::vector<float> rows = scales_.read({.first = 0, .n = scales_.rows()});
      return write_bytes(
          p, ascend_part(part.part,
                         {.input = planned_.input, .row_scales = rows, .row_sums = row_sums_}));
    }
  }
}

std::vector<Hash128> TensorRewrapper::write_codes(std::size_t p) {
  ItemRunner::Look add_sums;
  std::uint64_t position = 0;
  if (planned_.find(Part::kQuantBias) != nullptr) {
    const std::uint64_t cols = tensor_.shape.back();
    row_sums_.assign(planned_.parts[p].n_bytes / cols, 0);
    add_sums = [this, cols, &position](std::span<const std::byte> codes) {
      for (const std::byte code : codes)
        row_sums_[position++ / cols] += static_cast<std::int8_t>(code);
    };
  }
  ItemRunner::CopiedPart copied = runner_.copy_codes(item_, p, add_sums);
  codes_hash_ = copied.source;
  return std::move(copied.output);
}

std::vector<Hash128> TensorRewrapper::write_bytes(std::size_t p, std::span<const std::byte> bytes) {
  PartWriter writer(runner_.context_, item_, p);
  writer.write(bytes);
  return writer.finish();
}

std::vector<Hash128> TensorRewrapper::write_scales(std::size_t p) {
  const PlannedPart& part = planned_.parts[p];
  const formats::StoredParts& parts = tensor_.encoding.stored;
  if (parts.has(Part::kScale)) {
    const formats::StoredTensor& stored = runner_.context_.source.stored()[parts[Part::kScale]];
    if (is_same_kind(stored.dtype, part.dtype))
      return runner_.copy_part(item_, p, parts[Part::kScale]).output;
  }
  if (part.dtype != DType::kF32) {
    throw Error(ErrorCode::kUnsupported,
                "has scales of a dtype that the target dialect cannot hold without rounding");
  }
  const std::vector<float> scales = scales_.read({.first = 0, .n = scales_.rows()});
  return write_bytes(p, std::as_bytes(std::span(scales)));
}

// 1 / (1 / x) is not always x, so the number that was written first is taken from the source's
// records where it still fits.
float TensorRewrapper::target_global() {
  const formats::GlobalScale& stored = *scales_.global();
  if (stored.divides == planned_.spelling->global_divides) return stored.value;
  original_global_ = {.value = stored.value, .divides = stored.divides};
  const auto& originals = runner_.context_.original_globals;
  const auto original = originals.find(tensor_.name);
  if (original != originals.end() && original->second.divides != stored.divides &&
      1.0F / original->second.value == stored.value) {
    return original->second.value;
  }
  const float reciprocal = 1.0F / stored.value;
  if (!(reciprocal > 0) || !std::isfinite(reciprocal)) {
    throw Error(ErrorCode::kBadScale, "has a global scale whose reciprocal is not a number");
  }
  inexact_global_ = 1.0F / reciprocal != stored.value;
  return reciprocal;
}

std::map<std::string, formats::GlobalScale> original_globals(const Plan& plan,
                                                             const formats::Checkpoint& source) {
  std::map<std::string, formats::GlobalScale> originals;
  const bool any =
      std::any_of(plan.tensors.begin(), plan.tensors.end(), [&](const PlannedTensor& planned) {
        const formats::Encoding& encoding = source.tensors()[planned.tensor].encoding;
        return planned.action == Action::kRewrap && encoding.stored.has(formats::Part::kGlobal) &&
               encoding.global_divides != planned.spelling->global_divides;
      });
  if (!any) return originals;
  const auto manifest = formats::read_manifest(source.directory());
  if (!manifest) return originals;
  for (const formats::TensorRecord& record : formats::read_tensor_records(
           source.directory() / formats::kRecordsName, manifest->records_hash)) {
    if (record.original_global) {
      originals[record.name] = {.value = record.original_global->value,
                                .divides = record.original_global->divides};
    }
  }
  return originals;
}

}  // namespace ingot::convert
