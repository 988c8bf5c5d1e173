#include "shard/align/alignment_refusals.h"

#include <algorithm>

#include <fmt/format.h>

#include "formats/base/error.h"

namespace ingot::shard {

using formats::SchemeId;

namespace {

formats::Role role_of(const TensorToAlign& tensor) {
  return tensor.tensor->rule == nullptr ? formats::Role::kOther : tensor.tensor->rule->role;
}

std::string unit_name(SchemeId scheme) {
  if (scheme == SchemeId::kFp8Block) return "FP8 block";
  if (scheme == SchemeId::kInt8Block) return "INT8 block";
  return fmt::format("{} group", formats::scheme_facts(scheme).name);
}

/// `a`, `a or b`, `a, b or c`.
std::string alternatives(const std::vector<std::string_view>& words) {
  std::string text;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (i > 0) text += i + 1 == words.size() ? " or " : ", ";
    text += words[i];
  }
  return text;
}

std::vector<std::string_view> fits_that_work(const TensorToAlign& tensor, const CutNeed& need,
                                             const formats::ModelConfig& config,
                                             bool is_deepseek_mp) {
  std::vector<std::string_view> words;
  const bool is_torn = need.divides();
  if (is_torn && !is_deepseek_mp && tensor.scheme == SchemeId::kFp8Block &&
      halved_to_fit(need.unit, need.width / need.n) != 0)
    words.push_back(tp_fit_name(TpFit::kRetile));
  const auto side = paddable_side(tensor, config);
  if (side && side->is_rows == need.along_rows && !block_joins_sections(tensor, *side))
    words.push_back(tp_fit_name(TpFit::kPad));
  if (is_torn && formats::scheme_facts(tensor.scheme).quantized)
    words.push_back(tp_fit_name(TpFit::kBf16));
  return words;
}

}  // namespace

void AlignmentRefusals::add(const TensorToAlign& tensor) {
  add(tensor, false);
}

void AlignmentRefusals::add_joined(const TensorToAlign& tensor) {
  add(tensor, true);
}

void AlignmentRefusals::add(const TensorToAlign& tensor, bool is_joined) {
  const CutNeed need = need_of(tensor);
  const auto same = std::find_if(refusals_.begin(), refusals_.end(), [&](const Refusal& other) {
    return role_of(*other.first) == role_of(tensor) && other.first->scheme == tensor.scheme &&
           other.need.width == need.width && other.need.n == need.n &&
           other.need.unit == need.unit && other.need.along_rows == need.along_rows &&
           other.is_joined == is_joined;
  });
  if (same != refusals_.end()) {
    ++same->count;
  } else {
    refusals_.push_back({.first = &tensor, .need = need, .is_joined = is_joined, .count = 1});
  }
}

/// The most slices below the asked number that fit, 1 when none do.
std::uint32_t AlignmentRefusals::most_slices(const Refusal& refusal) const {
  const Owner owner = refusal.first->cut.owner;
  const std::uint64_t heads = config_.num_attention_heads;
  for (auto n = static_cast<std::uint32_t>(refusal.need.n) - 1; n > 1; --n) {
    CutNeed need = refusal.need;
    need.n = n;
    // --tp cuts the heads as well.
    const bool cuts_heads = owner != Owner::kTp || heads % n == 0;
    const bool cuts_kv_heads = owner != Owner::kKvHeads || refusal.need.n % n == 0;
    if (need.fits() && cuts_heads && cuts_kv_heads) return n;
  }
  return 1;
}

std::string AlignmentRefusals::remedies(const Refusal& refusal) const {
  std::string text;
  const auto words = fits_that_work(*refusal.first, refusal.need, config_, is_deepseek_mp);
  if (!words.empty()) text = fmt::format("--tp-fit {}", alternatives(words));
  if (refusal.need.n == 1) return text;
  const bool is_expert = refusal.first->cut.owner == Owner::kExpert;
  const char* option = is_deepseek_mp ? "--mp" : is_expert ? "--etp" : "--tp";
  text += fmt::format("{}{} {}", text.empty() ? "" : "; or ", option, most_slices(refusal));
  return text;
}

std::string AlignmentRefusals::fact(const Refusal& refusal) {
  const CutNeed& need = refusal.need;
  const TensorToAlign& tensor = *refusal.first;
  const char* side = need.along_rows ? "rows" : "columns";
  if (refusal.is_joined) {
    return fmt::format("gate and up share an {} of {} rows, which padding would tear apart",
                       unit_name(tensor.scheme), indivisible(tensor.scheme, tensor.group)[0]);
  }
  if (!need.divides())
    return fmt::format("{} {} cannot be cut for {} ranks", need.width, side, need.n);
  return fmt::format("{} {} / {} ranks = {}, the {} has {} {}", need.width, side, need.n,
                     need.width / need.n, unit_name(tensor.scheme), need.unit, side);
}

void AlignmentRefusals::throw_if_any() const {
  ErrorList faults;
  for (const Refusal& refusal : refusals_) {
    std::string text = fmt::format("{} ({})", fact(refusal), remedies(refusal));
    if (refusal.count > 1) text += fmt::format("; {} more like it", refusal.count - 1);
    faults.add(
        Error(ErrorCode::kUnsupported, std::move(text)).in_tensor(refusal.first->tensor->name));
  }
  faults.throw_if_any();
}

}  // namespace ingot::shard
