#include "check/rules/rule_input.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "engines/verdicts.h"
#include "formats/base/chunks.h"
#include "formats/base/error.h"
#include "formats/checkpoint/encoding_recognition.h"
#include "formats/json/json.h"
#include "formats/storage/block_scales.h"

namespace ingot::check {

using formats::StoredParts;

namespace {

const StoredTensor* find_part(const Checkpoint& checkpoint, const StoredParts& parts, Part part) {
  return parts.has(part) ? &checkpoint.stored()[parts[part]] : nullptr;
}

/// For which scheme these parts are most likely meant, whatever is wrong with them.
SchemeId likely_scheme(const Checkpoint& checkpoint, const StoredParts& parts) {
  const DType codes = checkpoint.stored()[parts.weight()].dtype;
  const StoredTensor* scale = find_part(checkpoint, parts, Part::kScale);
  if (is_float8(codes)) return SchemeId::kFp8Block;
  if (parts.has(Part::kGlobal)) return SchemeId::kNvfp4;
  const bool has_exponents =
      scale != nullptr && (scale->dtype == DType::kF8E8M0 || scale->dtype == DType::kU8);
  if (has_exponents) return SchemeId::kMxfp4;
  if (codes == DType::kI32) return SchemeId::kInt4Group;
  return codes == DType::kI8 ? SchemeId::kInt8Channel : SchemeId::kNvfp4;
}

bool is_understood(const Checkpoint& checkpoint) {
  std::size_t n_parts = 0;
  for (const LogicalTensor& tensor : checkpoint.tensors())
    tensor.encoding.stored.for_each([&](Part, std::uint32_t) { ++n_parts; });
  return n_parts == checkpoint.stored().size();
}

std::vector<PartFault> find_part_faults(const Checkpoint& checkpoint) {
  // Nearly always, and then names need not be sorted.
  if (is_understood(checkpoint)) return {};
  const auto stored = checkpoint.stored();
  const formats::StoredNames names(stored);
  const formats::RecognitionInput input{.stored = stored,
                                        .names = names,
                                        .files = checkpoint.files(),
                                        .block = claimed_block(checkpoint),
                                        .config = checkpoint.config(),
                                        .names_are_known = !checkpoint.family().rules.empty()};
  ErrorList errors;
  std::vector<StoredParts> refused;
  recognise_encodings(input, errors, &refused);
  struct Owner {
    SchemeId scheme;
    Part part;
  };
  std::unordered_map<std::string_view, Owner> owner_of;
  for (const StoredParts& parts : refused) {
    const SchemeId scheme = likely_scheme(checkpoint, parts);
    parts.for_each([&](Part part, std::uint32_t index) {
      owner_of.try_emplace(stored[index].name, Owner{scheme, part});
    });
  }
  std::vector<PartFault> faults;
  for (const Error& error : errors.errors()) {
    if (const auto owner = owner_of.find(error.tensor()); owner != owner_of.end())
      faults.push_back({error, owner->second.scheme, owner->second.part});
  }
  return faults;
}

EngineLimitsMet find_limits(const Checkpoint& checkpoint, std::uint64_t ranks) {
  EngineLimitsMet met(checkpoint.dialect());
  const std::vector<engines::EngineWeight> weights =
      engines::engine_weights(checkpoint, {.tensor_parallel = ranks});
  for (const engines::EngineWeight& weight : weights) met.add(weight);
  return met;
}

}  // namespace

std::uint64_t count_findings(std::span<const Finding> findings, Severity severity) {
  return static_cast<std::uint64_t>(std::ranges::count(
      findings, severity, [](const Finding& finding) { return finding.severity; }));
}

Finding finding_of(const Error& error) {
  Finding finding;
  finding.code = error.code();
  finding.file = error.file();
  finding.tensor = error.tensor();
  finding.message = error.message();
  return finding;
}

RuleFacts::RuleFacts(const Checkpoint& checkpoint, std::uint64_t ranks)
    : EngineInput(checkpoint),
      engine_limits(find_limits(checkpoint, ranks)),
      part_faults(find_part_faults(checkpoint)),
      missing(checkpoint) {}

void RuleFindings::add(const TensorRule* kind, Finding finding) {
  const auto [entry, is_new] = index_.try_emplace(kind, by_kind_.size());
  if (is_new) by_kind_.emplace_back(std::move(finding), 0);
  ++by_kind_[entry->second].second;
}

std::vector<Finding> RuleFindings::take() {
  for (auto& [finding, count] : by_kind_) {
    if (count > 1) finding.message += fmt::format(" (so do {} more of this kind)", count - 1);
    single_.push_back(std::move(finding));
  }
  return std::move(single_);
}

const StoredTensor* RuleInput::part_of(const LogicalTensor& tensor, Part part) const {
  return find_part(checkpoint, tensor.encoding.stored, part);
}

Finding violation(ErrorCode code, std::string_view file, std::string_view tensor,
                  std::string message) {
  return finding_of(Error(code, std::move(message)).in_file(file).in_tensor(tensor));
}

Finding violation_at(const Checkpoint& checkpoint, const StoredTensor& tensor, ErrorCode code,
                     std::string message) {
  return violation(code, checkpoint.files()[tensor.file].name, tensor.name, std::move(message));
}

std::array<std::uint64_t, 2> claimed_block(const Checkpoint& checkpoint) {
  try {
    return fp8_block_size(checkpoint.config());
  } catch (const Error&) {
    return {128, 128};  // the structure has said what is wrong with the config
  }
}

bool is_float8(DType dtype) {
  return dtype == DType::kF8E4M3 || dtype == DType::kF8E5M2 || dtype == DType::kF8E4M3Fnuz ||
         dtype == DType::kF8E5M2Fnuz;
}

bool is_part_of_model(const Checkpoint& checkpoint) {
  const formats::SlicingRecord* slicing = checkpoint.slicing();
  return slicing != nullptr && (slicing->pp > 1 || slicing->ep > 1);
}

namespace {

// Whole numbers of any dtype in a piece.
static_assert(kPieceBytes % 8 == 0 && kHashChunkBytes % kPieceBytes == 0);

std::uint32_t index_of(const Checkpoint& checkpoint, const StoredTensor& tensor) {
  return static_cast<std::uint32_t>(&tensor - checkpoint.stored().data());
}

void widen(DType dtype, std::span<const std::byte> bytes, std::vector<float>& values) {
  values.resize(bytes.size() / (dtype_bits(dtype) / 8));
  widen_scales(dtype, bytes, std::nullopt, values);
}

// Whether the numbers of a stored tensor can be read as scales: a dtype that widen_scales knows
// (I64 too: Ascend's F32 bits), and data that are here.
bool can_read_scales(const Checkpoint& checkpoint, const StoredTensor& tensor) {
  switch (tensor.dtype) {
    case DType::kF32:
    case DType::kBf16:
    case DType::kF16:
    case DType::kF8E4M3:
    case DType::kF8E8M0:
    case DType::kU8:
    case DType::kI64:
      return checkpoint.has_data(tensor.file);
    default:
      return false;
  }
}

// What stands behind what was looked at so far.
void append(OddValues& odd, const OddValues& next) {
  if (odd.n == 0 && next.n != 0) {
    odd.first = odd.total + next.first;
    odd.value = next.value;
  }
  odd.n += next.n;
  odd.total += next.total;
}

}  // namespace

void report_odd(const RuleInput& input, std::span<const StoredTensor* const> tensors,
                const Look& look, ErrorCode code,
                const std::function<std::string(const OddValues&)>& tell) {
  std::vector<std::uint64_t> sizes;
  std::vector<std::vector<OddValues>> chunks;
  for (const StoredTensor* tensor : tensors) {
    sizes.push_back(tensor->n_bytes);
    chunks.emplace_back(count_chunks(tensor->n_bytes));
  }
  const auto look_at = [&](const Chunk& chunk, std::span<std::byte> memory) {
    const StoredTensor& tensor = *tensors[chunk.run];
    OddValues& odd = chunks[chunk.run][chunk.index()];
    for_each_piece(
        chunk, memory,
        [&](std::uint64_t offset, std::span<std::byte> out) {
          input.stop_if_asked();
          input.checkpoint.read(index_of(input.checkpoint, tensor), offset, out);
        },
        [&](std::span<const std::byte> bytes, std::uint64_t) { append(odd, look(tensor, bytes)); });
  };
  for_each_chunk(sizes, input.options.threads, look_at);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    OddValues odd;
    for (const OddValues& chunk : chunks[i]) append(odd, chunk);
    if (odd.n != 0) input.report_at(*tensors[i], code, tell(odd));
  }
}

void report_odd_scales(const RuleInput& input, std::span<const StoredTensor* const> scales,
                       bool (*is_odd)(float), ErrorCode code,
                       const std::function<std::string(const OddValues&)>& tell) {
  std::vector<const StoredTensor*> readable;
  std::copy_if(
      scales.begin(), scales.end(), std::back_inserter(readable),
      [&](const StoredTensor* scale) { return can_read_scales(input.checkpoint, *scale); });
  const Look look = [is_odd](const StoredTensor& tensor, std::span<const std::byte> bytes) {
    OddValues odd;
    std::vector<float> values;
    widen(tensor.dtype, bytes, values);
    odd.total = values.size();
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (!is_odd(values[i]) || odd.n++ != 0) continue;
      odd.first = i;
      odd.value = values[i];
    }
    return odd;
  };
  report_odd(input, readable, look, code, tell);
}

std::optional<float> first_scale(const Checkpoint& checkpoint, const StoredTensor& tensor) {
  if (!can_read_scales(checkpoint, tensor) || tensor.n_bytes == 0) return std::nullopt;
  std::vector<std::byte> bytes(dtype_bits(tensor.dtype) / 8);
  checkpoint.read(index_of(checkpoint, tensor), 0, bytes);
  std::vector<float> value;
  widen(tensor.dtype, bytes, value);
  return value.front();
}

bool is_bad_scale(float scale) {
  return !(scale > 0 && std::isfinite(scale));
}

}  // namespace ingot::check
