#include "convert/derived_json.h"

#include <algorithm>

#include <fmt/format.h>

#include "formats/checkpoint_index.h"
#include "formats/json.h"

namespace ingot::convert {

using formats::Checkpoint;
using formats::Json;
using formats::LogicalTensor;

namespace {

std::vector<formats::WrittenTensor> written_tensors(const Checkpoint& source, const Plan& plan) {
  std::vector<formats::WrittenTensor> written;
  for (const PlannedTensor& item : plan.tensors) {
    if (item.action == Action::kDrop) continue;
    const LogicalTensor& tensor = source.tensors()[item.tensor];
    written.push_back({.name = tensor.name,
                       .scheme = item.to,
                       .fp8_by_default = tensor.rule != nullptr && tensor.rule->fp8_by_default});
  }
  return written;
}

void derive_config(const Checkpoint& source, const Recipe& recipe, Plan& plan) {
  Json config = source.config().raw;
  if (config.is_null()) return;

  Json quantization =
      source.dialect().quantization_config(source.config(), written_tensors(source, plan));
  if (quantization.is_null()) {
    config.erase("quantization_config");
  } else {
    config["quantization_config"] = std::move(quantization);
  }

  if (source.config().num_nextn_predict_layers > 0) {
    if (source.lacks_promised_mtp()) {
      plan.warnings.push_back(fmt::format(
          "config.json promises {} MTP layer(s) that the checkpoint does not hold; the output says "
          "num_nextn_predict_layers 0",
          source.config().num_nextn_predict_layers));
    }
    if (source.lacks_promised_mtp() || recipe.mtp == MtpPolicy::kDrop)
      config["num_nextn_predict_layers"] = 0;
  }
  plan.config_text = formats::json_text(config);
}

void derive_index(const Checkpoint& source, Plan& plan) {
  if (plan.files.size() == 1 && plan.files[0].name == "model.safetensors") return;
  formats::CheckpointIndex index;
  std::uint64_t total = 0;
  for (const PlannedFile& file : plan.files) {
    for (const auto& [i, part] : file.parts) {
      index.weight_map.emplace_back(plan.part_name(source, plan.tensors[i], part), file.name);
      total += plan.tensors[i].parts[part].n_bytes;
    }
  }
  plan.index_text = formats::checkpoint_index_text(index, total);
}

}  // namespace

void derive_json(const Checkpoint& source, const Recipe& recipe, Plan& plan) {
  derive_config(source, recipe, plan);
  derive_index(source, plan);
}

}  // namespace ingot::convert
