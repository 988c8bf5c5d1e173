#include <algorithm>

#include <fmt/format.h>

#include "convert/plan/passes.h"
#include "formats/base/error.h"
#include "formats/config/native_config.h"
#include "formats/json/json.h"
#include "formats/records/native_names.h"

// Layout deepseek-mp, which DeepSeek's inference code loads: a file per rank under names of its
// own.

namespace ingot::convert {

using formats::LogicalTensor;
using formats::SchemeId;

namespace {

// True if every part of a tensor, as it is stored without this layout, has a name in this layout.
bool has_deepseek_names(const Plan& plan, const PlannedTensor& planned) {
  const LogicalTensor& tensor = plan.tensor_of(planned);
  const auto is_known = [&](const std::string& name) {
    return formats::native_name(name, plan.source.config()).has_value();
  };
  if (planned.action != Action::kCopy) {
    return planned.storage == nullptr ||
           std::ranges::all_of(planned.storage->parts, [&](const formats::PartRow& part) {
             return is_known(formats::part_name(part, tensor.name));
           });
  }
  return std::ranges::all_of(plan.stored_of(planned), [&](std::uint32_t stored) {
    return is_known(plan.source.stored()[stored].name);
  });
}

// DeepSeek's inference code knows BF16 and FP8 blocks of 128 x 128.
void require_shards_holdable(const Plan& plan) {
  const formats::Checkpoint& source = plan.source;
  ErrorList refusals;
  for (const PlannedTensor& planned : plan.tensors) {
    if (planned.action == Action::kDrop) continue;
    const LogicalTensor& tensor = plan.tensor_of(planned);
    const bool is_block = planned.to == SchemeId::kFp8Block &&
                          scale_block_of(tensor, planned) == std::array<std::uint64_t, 2>{128, 128};
    if (formats::scheme_facts(planned.to).quantized && !is_block) {
      refusals.add(ErrorCode::kUnsupported, tensor.name,
                   "layout deepseek-mp holds bf16 and 128 x 128 fp8-block, not {} (use "
                   "--to bf16 or fp8, or --layout ranks)",
                   formats::scheme_facts(planned.to).name);
    } else if (!formats::native_name(tensor.name, source.config())) {
      refusals.add(ErrorCode::kUnsupported, tensor.name, "layout deepseek-mp has no name for it");
    } else if (!has_deepseek_names(plan, planned)) {
      refusals.add(ErrorCode::kUnsupported, tensor.name,
                   "layout deepseek-mp knows scales only by the names of dialect deepseek (add "
                   "--dialect deepseek)");
    }
  }
  refusals.throw_if_any();
}

void require_fits(const Plan& plan) {
  if (plan.alignments.block[0] == 0) return;
  throw Error(ErrorCode::kUnsupported,
              "layout deepseek-mp holds FP8 blocks of 128 x 128, and retiling would make them {} x "
              "{} (use --tp-fit bf16, or --layout ranks)",
              plan.alignments.block[0], plan.alignments.block[1]);
}

// model{i}-mp{N}.safetensors: everything that a rank loads, replicas included, in one file.
void assign_shards(Plan& plan) {
  const std::uint32_t n_ranks = plan.slicing->topology.n_ranks();
  for (std::uint32_t rank = 0; rank < n_ranks; ++rank) {
    PlannedFile& file = add_file(plan, fmt::format("model{}-mp{}.safetensors", rank, n_ranks));
    file.members.front().ranks = {rank};
  }
  for (PlannedTensor& planned : plan.tensors) {
    std::vector<PlannedPlace> places;
    for (const std::uint32_t ep : ep_ranks_of(plan, planned)) places.push_back({.file = ep});
    if (places.empty()) {
      for (std::uint32_t rank = 0; rank < n_ranks; ++rank)
        places.push_back({.file = rank, .first_slice = planned.cut.n == 1 ? 0 : rank});
    }
    for (std::size_t p = 0; p < planned.n_parts; ++p) set_places(plan, planned.parts[p], places);
  }
}

std::string stored_name(const std::string& hub_name, const formats::ModelConfig& config) {
  const auto name = formats::native_name(hub_name, config);
  INGOT_CHECK(name.has_value());
  return *name;
}

void derive_inference_config(Plan& plan) {
  const formats::ModelConfig config = formats::parse_model_config(plan.json.config, "config.json");
  const bool is_fp8 = std::ranges::any_of(plan.tensors, [](const PlannedTensor& planned) {
    return planned.action != Action::kDrop && planned.to == SchemeId::kFp8Block;
  });
  plan.json.native_config = formats::json_text(formats::native_config(config, is_fp8));
}

}  // namespace

constexpr LayoutFunctions kDeepseekMpLayout{.require_holdable = require_shards_holdable,
                                            .require_fits = require_fits,
                                            .assign_files = assign_shards,
                                            .stored_name = stored_name,
                                            .derive_json = derive_inference_config};

}  // namespace ingot::convert
