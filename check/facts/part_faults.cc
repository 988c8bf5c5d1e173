#include "check/facts/part_faults.h"

#include <unordered_map>

#include "formats/recognition/encoding_recognition.h"

namespace ingot::check {

using formats::Checkpoint;
using formats::DType;
using formats::LogicalTensor;
using formats::Part;
using formats::SchemeId;
using formats::StoredParts;
using formats::StoredTensor;

namespace {

/// For which scheme these parts are most likely meant, whatever is wrong with them.
SchemeId likely_scheme(const Checkpoint& checkpoint, const StoredParts& parts) {
  const DType codes = checkpoint.stored()[parts.weight()].dtype;
  const StoredTensor* scale =
      parts.has(Part::kScale) ? &checkpoint.stored()[parts[Part::kScale]] : nullptr;
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

}  // namespace

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

}  // namespace ingot::check
