#include "convert/plan/slice_plan.h"

#include <algorithm>

#include <fmt/format.h>

#include "convert/recipe/refusals.h"
#include "formats/base/error.h"
#include "formats/records/native_names.h"
#include "quantize/scheme.h"

namespace ingot::convert {

using formats::Checkpoint;
using formats::LogicalTensor;
using formats::SchemeId;

namespace {

shard::ExpertMap expert_map(const Checkpoint& source, const SlicingOptions& options) {
  const formats::ModelConfig& config = source.config();
  const auto n_experts = static_cast<std::uint32_t>(config.n_routed_experts);
  if (options.expert_map.empty())
    return shard::ExpertMap::contiguous(n_experts, options.topology.ep);
  const auto& moe = config.layer_is_moe;
  const auto first = std::find(moe.begin(), moe.end(), true);
  return shard::ExpertMap::parse(
      options.expert_map, options.expert_map_where,
      {.n_experts = n_experts,
       .has_shared = config.n_shared_experts > 0,
       .ep = options.topology.ep,
       .first_moe_layer = static_cast<std::uint32_t>(first - moe.begin()),
       .n_layers =
           static_cast<std::uint32_t>(config.num_hidden_layers + config.num_nextn_predict_layers),
       .allow_redundant = options.redundant_experts,
       .allow_uneven = options.uneven_experts});
}

// Bytes that each tensor takes in the output, near enough to balance stages by.
std::vector<std::uint64_t> output_bytes(const Checkpoint& source, const Plan& plan) {
  std::vector<std::uint64_t> n_bytes(source.tensors().size(), 0);
  for (const PlannedTensor& item : plan.tensors) {
    if (item.action == Action::kDrop) continue;
    const LogicalTensor& tensor = source.tensors()[item.tensor];
    const formats::SchemeFacts& facts = formats::scheme_facts(item.to);
    n_bytes[item.tensor] = facts.code_bits == 0
                               ? source.stored()[tensor.encoding.stored.weight()].n_bytes
                               : *formats::element_count(tensor.shape) * facts.code_bits / 8;
  }
  return n_bytes;
}

void become_bf16(const LogicalTensor& tensor, PlannedTensor& item, Refusals& refusals) {
  const SchemeId from = tensor.encoding.scheme;
  item.to = SchemeId::kBf16;
  item.action = from == SchemeId::kBf16 ? Action::kCopy : Action::kCast;
  item.spelling = nullptr;
  item.block = {0, 0};
  item.group = PlannedTensor::kNone;
  item.scales = PlannedTensor::kNone;
  if (item.action == Action::kCast && !quantize::can_convert(from, item.to)) {
    refusals.add(ErrorCode::kUnsupported,
                 fmt::format("cannot be cut between blocks, nor cast from {} to bf16",
                             formats::scheme_facts(from).name),
                 tensor.name);
  }
}

// Members that became BF16 leave their groups; groups without members vanish.
void renew_groups(Plan& plan) {
  std::vector<std::vector<std::uint32_t>> groups;
  for (std::vector<std::uint32_t>& members : plan.groups) {
    std::erase_if(members, [&](std::uint32_t member) {
      return plan.tensors[member].group == PlannedTensor::kNone;
    });
    if (members.empty()) continue;
    for (const std::uint32_t member : members)
      plan.tensors[member].group = static_cast<std::uint32_t>(groups.size());
    groups.push_back(std::move(members));
  }
  plan.groups = std::move(groups);
}

// Whether every part of a tensor, as it is spelled without this layout, has a name in it.
bool has_native_names(const Checkpoint& source, const PlannedTensor& item) {
  const LogicalTensor& tensor = source.tensors()[item.tensor];
  const auto is_known = [&](const std::string& name) {
    return formats::native_name(name, source.config()).has_value();
  };
  if (item.action != Action::kCopy) {
    return item.spelling == nullptr ||
           std::ranges::all_of(item.spelling->parts, [&](const formats::PartSpelling& part) {
             return is_known(formats::part_name(part, tensor.name));
           });
  }
  bool all = true;
  tensor.encoding.stored.for_each([&](formats::Part, std::uint32_t stored) {
    all = all && is_known(source.stored()[stored].name);
  });
  return all;
}

// DeepSeek's inference code knows BF16 and FP8 blocks of 128 x 128.
void require_native(const Checkpoint& source, const Plan& plan) {
  Refusals refusals;
  for (const PlannedTensor& item : plan.tensors) {
    if (item.action == Action::kDrop) continue;
    const LogicalTensor& tensor = source.tensors()[item.tensor];
    const bool is_block = item.to == SchemeId::kFp8Block &&
                          group_of(tensor, item) == std::array<std::uint64_t, 2>{128, 128};
    if (formats::scheme_facts(item.to).quantized && !is_block) {
      refusals.add(ErrorCode::kUnsupported,
                   fmt::format("layout deepseek-mp holds bf16 and 128 x 128 fp8-block, not {} (use "
                               "--to bf16 or fp8, or --layout ranks)",
                               formats::scheme_facts(item.to).name),
                   tensor.name);
    } else if (!formats::native_name(tensor.name, source.config())) {
      refusals.add(ErrorCode::kUnsupported, "layout deepseek-mp has no name for it", tensor.name);
    } else if (!has_native_names(source, item)) {
      refusals.add(ErrorCode::kUnsupported,
                   "layout deepseek-mp knows scales by the names of dialect deepseek alone (add "
                   "--dialect deepseek)",
                   tensor.name);
    }
  }
  refusals.throw_if_any();
}

}  // namespace

void slice_plan(const Checkpoint& source, const PlanOptions& options, Plan& plan) {
  plan.layout = options.layout;
  if (!options.layout->is_sliced) return;
  plan.links = options.links;
  if (source.family().rules.empty() && !options.slicing.topology.is_single()) {
    throw Error(
        ErrorCode::kUnsupported,
        fmt::format("family {} knows no tensor names, so nothing says how to cut them (give "
                    "the model's family with --family)",
                    source.family().name));
  }
  plan.slicing = shard::Slicing{.topology = options.slicing.topology,
                                .experts = expert_map(source, options.slicing),
                                .shared = options.slicing.shared,
                                .fit = options.slicing.fit,
                                .stages = {},
                                .is_native = options.layout->name == "deepseek-mp"};
  const auto n_layers = static_cast<std::uint32_t>(source.config().num_hidden_layers);
  const std::uint32_t pp = options.slicing.topology.pp;
  plan.slicing->stages = options.slicing.stages.empty()
                             ? shard::balanced_stages(source, output_bytes(source, plan), pp)
                             : shard::parse_stages(options.slicing.stages, n_layers, pp);
  const bool is_native = plan.slicing->is_native;
  if (is_native) require_native(source, plan);

  std::vector<shard::TensorToFit> to_fit;
  std::vector<std::uint32_t> items;
  ErrorList faults;
  for (std::uint32_t i = 0; i < plan.tensors.size(); ++i) {
    PlannedTensor& item = plan.tensors[i];
    if (item.action == Action::kDrop) continue;
    const LogicalTensor& tensor = source.tensors()[item.tensor];
    item.cut = shard::cut_of(tensor, source.config(), *plan.slicing, faults);
    to_fit.push_back(
        {.tensor = &tensor, .scheme = item.to, .group = group_of(tensor, item), .cut = item.cut});
    items.push_back(i);
  }
  faults.throw_if_any();

  plan.fits = shard::fit_blocks(to_fit, source.config(), *plan.slicing);
  if (is_native && plan.fits.block[0] != 0) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("layout deepseek-mp holds FP8 blocks of 128 x 128, and retiling would "
                            "make them {} x {} (use --tp-fit bf16, or --layout ranks)",
                            plan.fits.block[0], plan.fits.block[1]));
  }
  Refusals refusals;
  for (std::size_t i = 0; i < items.size(); ++i) {
    PlannedTensor& item = plan.tensors[items[i]];
    item.fit = plan.fits.tensors[i];
    if (item.fit.to_bf16) {
      become_bf16(source.tensors()[item.tensor], item, refusals);
      item.fit.to_bf16 = false;
      ++plan.n_fitted_to_bf16;
    }
  }
  refusals.throw_if_any();
  plan.fits.tensors.clear();
  renew_groups(plan);
}

formats::Json slicing_json(const PlanOptions& options) {
  if (!options.layout->is_sliced) return nullptr;
  const SlicingOptions& slicing = options.slicing;
  formats::Json json = {{"layout", std::string(options.layout->name)},
                        {"tp", slicing.topology.tp},
                        {"ep", slicing.topology.ep},
                        {"etp", slicing.topology.etp},
                        {"pp", slicing.topology.pp},
                        {"shared_experts", std::string(shard::shared_experts_name(slicing.shared))},
                        {"tp_fit", std::string(shard::tp_fit_name(slicing.fit))},
                        {"links", options.links}};
  if (!slicing.expert_map.empty()) {
    json["expert_map"] = formats::parse_json(slicing.expert_map, slicing.expert_map_where);
    json["redundant_experts"] = slicing.redundant_experts;
    json["uneven_experts"] = slicing.uneven_experts;
  }
  if (!slicing.stages.empty()) json["stages"] = slicing.stages;
  return json;
}

}  // namespace ingot::convert
