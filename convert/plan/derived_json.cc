#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "convert/plan/passes.h"
#include "convert/plan/repair.h"
#include "formats/checkpoint/promised_tensors.h"
#include "formats/checkpoint/stored_facts.h"
#include "formats/composed.h"
#include "formats/config/config_meaning.h"
#include "formats/config/nested_config.h"
#include "formats/container/checkpoint_index.h"
#include "formats/dialect/dialect.h"
#include "formats/dialect/dialect_words.h"
#include "formats/family/text_names.h"
#include "formats/json/json.h"
#include "formats/json/json_form.h"
#include "formats/modules/module_list.h"

namespace ingot::convert {

using formats::Checkpoint;
using formats::Json;
using formats::LogicalTensor;

namespace {

/// Engines build the routed experts of a layer as one module, and the config has one form for it.
/// The projections have rows of different lengths: a row with one scale may be called a whole row
/// in one of them, and a group in another, where it is as long as a group. All get one name here.
void agree_on_rows(std::vector<formats::WrittenTensor>& written,
                   const std::vector<bool>& has_whole_rows) {
  struct Experts {
    std::uint64_t form = 0;
    bool has_one_form = true, has_whole_rows = true;
  };
  std::map<std::string_view, Experts> layers;  // by the module that holds the experts
  const auto module_of = [&](const formats::WrittenTensor& row) {
    if (!formats::scheme_facts(row.scheme).chooses_cols) return std::string_view();
    return formats::experts_of(row.name);
  };
  for (std::size_t i = 0; i < written.size(); ++i) {
    const std::string_view module = module_of(written[i]);
    if (module.empty()) continue;
    Experts& experts =
        layers.try_emplace(module, Experts{.form = written[i].block[1]}).first->second;
    experts.has_one_form = experts.has_one_form && experts.form == written[i].block[1];
    experts.has_whole_rows = experts.has_whole_rows && has_whole_rows[i];
  }
  for (formats::WrittenTensor& row : written) {
    const auto experts = layers.find(module_of(row));
    if (experts == layers.end() || experts->second.has_one_form) continue;
    if (experts->second.has_whole_rows) row.block[1] = 0;
  }
}

// A head that is the embedding is a layer of its own to transformers, and to vLLM under ModelOpt:
// both build it quantized unless a list names it, and then miss its scales.
void add_tied_head(const Checkpoint& source, std::vector<formats::WrittenTensor>& written) {
  const auto is_head = [](const formats::TensorRule* rule) {
    return role_of(rule) == formats::Role::kHead;
  };
  if (!source.config().tie_word_embeddings ||
      std::ranges::any_of(written, is_head, &formats::WrittenTensor::rule))
    return;
  for (const formats::TensorRule& rule : source.family().rules) {
    if (!is_head(&rule)) continue;
    written.push_back(
        {.name = rule.pattern, .scheme = formats::SchemeId::kBf16, .rule = &rule, .rank = 2});
    return;
  }
}

// With the blocks of retiled tensors, or with those that they had before.
std::vector<formats::WrittenTensor> written_tensors(const Plan& plan, bool retiled) {
  const Checkpoint& source = plan.source;
  const formats::StoredActivations of_source(source);
  std::vector<formats::WrittenTensor> written;
  const bool is_repair = plan.recipe.choices.repair != nullptr;
  const auto stored_activations = [&](const LogicalTensor& tensor) {
    return is_repair ? repaired_activations(of_source.said_of(tensor), source.dialect(), tensor)
                     : of_source.of(tensor);
  };
  written.reserve(plan.tensors.size());
  std::vector<bool> has_whole_rows;
  for (const PlannedTensor& planned : plan.tensors) {
    if (planned.action == Action::kDrop) continue;
    const LogicalTensor& tensor = plan.tensor_of(planned);
    formats::WrittenTensor& row = written.emplace_back();
    row.name = tensor.name;
    row.scheme = planned.to;
    row.activations =
        planned.storage != nullptr ? planned.storage->activations : stored_activations(tensor);
    row.rule = tensor.rule;
    row.layer = tensor.layer;
    row.expert = tensor.expert;
    row.rank = tensor.shape.size();
    const bool is_new = planned.action == Action::kQuantize;
    row.block =
        is_new ? planned.block : std::array{tensor.encoding.block_rows, tensor.encoding.block_cols};
    has_whole_rows.push_back(row.block[1] == 0 ||
                             (!tensor.shape.empty() && row.block[1] >= tensor.shape.back()));
    if (formats::scheme_facts(planned.to).chooses_cols)
      row.block[1] = formats::stated_group_cols(row.block[1], tensor.shape.back());
    row.has_zero_points = planned.find(formats::Part::kZeroPoint) != nullptr;
    row.has_group_order = planned.find(formats::Part::kGroupOrder) != nullptr;
    if (retiled && planned.alignment.block[0] != 0) row.block = planned.alignment.block;
    for (std::size_t part = 0; part < planned.n_parts; ++part)
      row.stored.push_back(plan.part_name(planned, part));
  }
  agree_on_rows(written, has_whole_rows);
  add_tied_head(plan.source, written);
  return written;
}

void state_widths(const shard::PaddedWidths& widths, Json& config) {
  const auto state = [&](const char* key, std::uint64_t width) {
    if (width != 0) config[key] = width;
  };
  state("vocab_size", widths.vocab);
  state("intermediate_size", widths.intermediate);
  state("moe_intermediate_size", widths.moe_intermediate);
}

constexpr const char* kExpertDtype = "expert_dtype";

// The config's word for the routed experts, FP4 or FP8: DeepSeek-V4 has it next to its block, V4.1
// in it. Engines use only this word. `is_needed`: also adds it where it is missing.
void state_expert_dtype(const formats::WrittenModel& model, bool is_needed, Json& owner) {
  if (!owner.is_object() || !(is_needed || owner.contains(kExpertDtype))) return;
  const auto expert =
      std::ranges::find_if(model.tensors, [&](const formats::WrittenTensor& tensor) {
        const bool is_main = tensor.layer && *tensor.layer < model.source.num_hidden_layers;
        return is_main && formats::is_routed_expert(role_of(tensor.rule));
      });
  if (expert == model.tensors.end()) return;
  const bool is_fp4 = formats::scheme_facts(expert->scheme).code == formats::CodeKind::kE2m1;
  if (is_fp4 || expert->scheme == formats::SchemeId::kFp8Block) {
    owner[kExpertDtype] = is_fp4 ? "fp4" : "fp8";
  } else {
    owner.erase(kExpertDtype);
  }
}

// Says that there are no MTP layers. Lists with an entry per layer went on over them, and are read
// as such by the number of layers. Ids of tokens are no such list, however many there are.
void drop_mtp_layers(const formats::ModelConfig& config, Json& text) {
  text[formats::mtp_layer_key(text)] = 0;
  const std::uint64_t n_layers = config.num_hidden_layers;
  for (auto& [key, value] : text.items()) {
    const bool is_per_layer =
        value.is_array() && value.size() == n_layers + config.num_nextn_predict_layers;
    if (is_per_layer && !key.ends_with("_token_id"))
      value.erase(value.begin() + static_cast<std::ptrdiff_t>(n_layers), value.end());
  }
}

// Promises the MTP layers that the checkpoint has beyond its config's. A step may have several.
void state_mtp_layers(const Checkpoint& source, Json& config) {
  if (!formats::understated_mtp(source.family(), source.config())) return;
  const std::uint64_t n_layers = source.config().num_nextn_predict_layers;
  Json& text = formats::text_section(source.config(), config);
  for (std::uint64_t n = 1; n <= n_layers; ++n) {
    text[formats::mtp_layer_key(text)] = n;
    const std::string written = formats::json_text(config);
    if (formats::parse_model_config(written, "config.json").num_nextn_predict_layers >= n_layers)
      return;
  }
}

// A config without a description of its quantization.
formats::ModelConfig without_block(formats::ModelConfig config) {
  Json raw = *config.raw;
  if (raw.is_object()) formats::set_quantization_block(config, raw, Json());
  Json keys = *config.text.keys;
  if (keys.is_object()) formats::set_quantization_block(config, keys, Json());
  config.raw = std::move(raw);
  config.text.keys = std::move(keys);
  return config;
}

// True if the config ties the head to the embedding, but the two differ in the output: they
// differed in the source, they are not written alike, or the values of one change.
bool has_head_apart(const Plan& plan) {
  const auto tied = formats::tied_head(plan.source);
  if (!tied) return false;
  const PlannedTensor *head = nullptr, *embedding = nullptr;
  for (const PlannedTensor& planned : plan.tensors) {
    if (planned.action == Action::kDrop) continue;
    if (&plan.tensor_of(planned) == tied->head) head = &planned;
    if (&plan.tensor_of(planned) == tied->embedding) embedding = &planned;
  }
  if (head == nullptr || embedding == nullptr) return false;
  return plan.source_facts.has_head_apart || head->to != embedding->to || head->is_changed ||
         embedding->is_changed;
}

// Made again from only the tensors, unless the source says the same in another order.
Json repaired_block(const Plan& plan, const formats::WrittenModel& model) {
  const auto derive = plan.target.dialect->quantization_config;
  const Json& before = formats::quantization_block(plan.source.config());
  const formats::ModelConfig silent = without_block(plan.source.config());
  Json block;
  try {
    block = derive({.source = silent,
                    .tensors = model.tensors,
                    .power_of_two_scales = model.power_of_two_scales});
  } catch (const Error& error) {
    // A form that is only read and kept, as FP4 experts with FP8.
    if (error.code() != ErrorCode::kUnsupported || before.is_null()) throw;
    return derive(model);
  }
  take_over_caches(before, block);
  return nlohmann::json(block) == nlohmann::json(before) ? before : block;
}

// config.json and description of the output; as ranks have them, or as the unsliced output would.
std::string derive_config(Plan& plan, bool of_ranks) {
  const Checkpoint& source = plan.source;
  if (plan.is_whole_copy) {
    if (!source.description().is_null())
      plan.json.description = formats::json_text(source.description());
    return source.config_text();
  }
  const std::vector<formats::WrittenTensor> written = written_tensors(plan, of_ranks);
  const bool is_repair = plan.recipe.choices.repair != nullptr;
  const bool same_dialect = plan.target.dialect == &source.dialect() && !is_repair;
  const formats::WrittenModel model{.source = source.config(),
                                    .description = same_dialect && !source.description().is_null()
                                                       ? &source.description()
                                                       : nullptr,
                                    .tensors = written,
                                    .power_of_two_scales = plan.target.power_of_two_scales};
  const auto describe = plan.target.dialect->description;
  Json description = describe == nullptr ? Json() : describe(model);

  Json config = *source.config().raw;
  if (config.is_null()) {
    if (of_ranks && !description.is_null()) plan.json.description = formats::json_text(description);
    return {};
  }
  // Fused projections were taken apart when they were read.
  if (formats::text_at(config, formats::kProjectionLayout) == formats::kFusedProjections)
    config.erase(formats::kProjectionLayout);
  Json quantization =
      is_repair ? repaired_block(plan, model) : plan.target.dialect->quantization_config(model);
  // Without the key, vLLM takes experts for FP4.
  const bool is_needed = formats::is_native(*plan.target.dialect, source.family()) &&
                         !plan.is_copy() &&
                         formats::json_member(quantization, kExpertDtype).is_null();
  state_expert_dtype(model, false, quantization);
  state_caches(plan, quantization, description);
  if (of_ranks && !description.is_null()) plan.json.description = formats::json_text(description);
  formats::set_quantization_block(source.config(), config, std::move(quantization));
  state_expert_dtype(model, is_needed, config);
  Json& text = formats::text_section(source.config(), config);
  if (source.config().num_nextn_predict_layers > 0 &&
      (source.lacks_promised_mtp() || plan.recipe.mtp == MtpPolicy::kDrop))
    drop_mtp_layers(source.config(), text);
  if (has_head_apart(plan)) formats::untie_head(source.config(), config);
  if (is_repair || plan.recipe.choices.composed != nullptr) state_mtp_layers(source, config);
  if (of_ranks) state_widths(plan.alignments.widths, text);
  // A config with the same meaning stays as it is, to the byte.
  if (config == *source.config().raw) return source.config_text();
  return formats::json_text(config, formats::json_form_of(source.config_text()));
}

// True if ranks have other blocks or widths than the whole.
bool is_realigned(const Plan& plan) {
  const shard::PaddedWidths& widths = plan.alignments.widths;
  return widths.vocab != 0 || widths.intermediate != 0 || widths.moe_intermediate != 0 ||
         std::ranges::any_of(plan.tensors, [](const PlannedTensor& planned) {
           return planned.alignment.block[0] != 0;
         });
}

void derive_index(Plan& plan) {
  if (plan.is_sliced()) return;  // each rank directory has an index of its own
  if (plan.files.size() == 1 && plan.files[0].name == "model.safetensors") return;
  formats::CheckpointIndex index;
  index.frame = index_frame(plan);
  std::uint64_t total = 0;
  for (const PlannedFile& file : plan.files) {
    for (const PartRef& at : file.parts) {
      const PlannedTensor& planned = plan.tensors[at.tensor];
      index.weight_map.emplace_back(plan.part_name(planned, at.part), file.name);
      total += planned.parts[at.part].n_bytes;
    }
  }
  plan.json.index = formats::checkpoint_index_text(index, total);
}

}  // namespace

std::vector<std::string> modules_left_plain(const Plan& plan) {
  std::vector<std::string> modules;
  if (plan.target.dialect != &plan.source.dialect()) return modules;
  const Json& block = formats::quantization_block(plan.source.config());
  for (const char* key : {"modules_to_not_convert", "ignored_layers"}) {
    const std::vector<std::string> listed = formats::strings_at(block, key);
    modules.insert(modules.end(), listed.begin(), listed.end());
  }
  std::ranges::sort(modules);
  return modules;
}

void require_sound_mtp(const Plan& plan, ErrorList& refusals) {
  if (plan.recipe.mtp == MtpPolicy::kDrop) return;
  const formats::Family& family = plan.source.family();
  const formats::ModelConfig& config = plan.source.config();
  const auto said = formats::understated_mtp(family, config);
  if (said && plan.recipe.choices.repair == nullptr && plan.recipe.choices.composed == nullptr) {
    refusals.add(ErrorCode::kMismatch, "",
                 "config.json says num_nextn_predict_layers {}, and {} MTP layer(s) "
                 "are here (--mtp drop leaves them out; ingot repair sets the number)",
                 *said, config.num_nextn_predict_layers);
  }
  for (const auto& [layer, n] : formats::uneven_experts(family, config, plan.source.stored()))
    refusals.add(ErrorCode::kShapeMismatch, "", "{}", formats::uneven_text(layer, n, config));
}

formats::IndexFrame index_frame(const Plan& plan) {
  formats::IndexFrame frame = plan.source.index_frame();
  if (!plan.is_copy()) frame.metadata = Json();
  return frame;
}

void derive_json(Plan& plan) {
  const Checkpoint& source = plan.source;
  plan.json.config = derive_config(plan, true);
  if (!plan.json.config.empty()) {
    const formats::ModelConfig written =
        formats::parse_model_config(plan.json.config, "config.json");
    if (written.quantization) plan.json.quant_method = written.quantization->quant_method;
  }
  if (source.lacks_promised_mtp()) {
    plan.warnings.push_back(fmt::format(
        "config.json promises {} MTP layer(s) that the checkpoint does not hold; the output says "
        "num_nextn_predict_layers 0",
        source.config().num_nextn_predict_layers));
  }
  if (has_head_apart(plan)) {
    plan.warnings.emplace_back(
        "config.json says tie_word_embeddings, but the head that is stored is not the embedding; "
        "the output says tie_word_embeddings false");
  }
  derive_index(plan);
  if (!plan.is_sliced()) return;
  if (is_realigned(plan)) {
    std::string whole = derive_config(plan, false);
    if (whole != plan.json.config) plan.json.whole_config = std::move(whole);
  }
  if (const auto derive = functions_of(*plan.options.layout).derive_json) derive(plan);
}

}  // namespace ingot::convert
