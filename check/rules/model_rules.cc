#include <optional>
#include <set>
#include <unordered_set>

#include "check/rules/rule_input.h"
#include "engines/row/engine.h"
#include "engines/versions/sharded_state.h"
#include "formats/base/words.h"
#include "formats/checkpoint/promised_tensors.h"
#include "formats/checkpoint/stored_facts.h"
#include "formats/config/nested_config.h"
#include "formats/config/routing.h"
#include "formats/family/text_names.h"
#include "formats/modules/module_list.h"
#include "formats/text/list_text.h"

// The promises of the config about the model: every tensor, in its shape, and no other.

namespace ingot::check {

namespace {

constexpr std::size_t kNamesShown = 8;

template <Gap gap>
void missing(const RuleInput& input) {
  const std::span<const std::string> names = input.facts.missing().of(gap);
  if (names.empty()) return;
  constexpr std::string_view kRemedy =
      gap == Gap::kMtpLayer ? " (set num_nextn_predict_layers to the number that exists)" : "";
  const bool is_one = names.size() == 1;
  input.report(
      violation(kMissingTensor, "", names.front(),
                fmt::format("{} tensor{} promised by config.json missing: {}{}", names.size(),
                            is_one ? " is" : "s are", list_text(names, kNamesShown), kRemedy)));
}

// The number in `...experts.17...`, if there is one.
std::optional<std::uint64_t> expert_number(std::string_view name) {
  const std::size_t experts = formats::experts_of(name).size();
  if (experts == 0) return std::nullopt;
  std::string_view behind = name.substr(experts + 1);
  return take_number(behind, "");
}

void expert_ids(const RuleInput& input) {
  missing<Gap::kExpert>(input);
  // Opening tells of main layers.
  const auto& uneven = input.facts.missing().uneven();
  for (const auto& [layer, n] : uneven) {
    if (layer >= input.config().num_hidden_layers)
      input.report_config(kShapeMismatch, "{}", formats::uneven_text(layer, n, input.config()));
  }
  if (!uneven.empty()) return;
  const std::uint64_t n_experts = input.config().n_routed_experts;
  if (input.checkpoint.family().rules.empty()) return;
  std::vector<std::string> extra;
  for (const StoredTensor& tensor : input.checkpoint.stored()) {
    if (const auto number = expert_number(tensor.name); number && *number >= n_experts)
      extra.push_back(tensor.name);
  }
  if (extra.empty()) return;
  std::ranges::sort(extra);
  input.report(violation(kUnknownTensor, "", extra.front(),
                         fmt::format("experts beyond the {} of config.json: {}", n_experts,
                                     list_text(extra, kNamesShown))));
}

void routing(const RuleInput& input) {
  const formats::ModelConfig& config = input.config();
  // A config without these numbers leaves them to the code of the model: not known here.
  if (config.n_routed_experts == 0 || config.num_experts_per_tok == 0) return;
  if (std::ranges::find(config.layer_is_moe, true) == config.layer_is_moe.end()) return;
  const auto judge = [&](std::optional<std::uint32_t> layer) {
    try {
      formats::read_routing(config, layer);
    } catch (const Error& error) {
      input.report(finding_of(error));
    }
  };
  judge(std::nullopt);
  for (std::uint32_t layer = 0; layer < config.layer_is_moe.size(); ++layer) {
    if (formats::has_uneven_experts(config) && config.layer_is_moe[layer]) judge(layer);
  }
}

void correction_bias_dtype(const RuleInput& input, const LogicalTensor& tensor) {
  if (role_of(tensor) != Role::kRouterBias || tensor.rule->synth_dtype != DType::kF32) return;
  const StoredTensor& stored = input.codes_of(tensor);
  if (stored.dtype != DType::kF32)
    input.report_at(stored, kDtypeMismatch, "is {}, loaders keep it in F32",
                    dtype_name(stored.dtype));
}

void indexer_k_scheme(const RuleInput& input, const LogicalTensor& tensor) {
  const SchemeId scheme = tensor.encoding.scheme;
  if (role_of(tensor) == Role::kIndexerK && scheme != SchemeId::kFp8Block &&
      scheme != SchemeId::kBf16)
    input.report_kind(tensor, kMismatch,
                      "is {}; joined with weights_proj it must be fp8-block or bf16",
                      facts_of(tensor).name);
}

void built_indexers(const RuleInput& input) {
  const formats::ModelConfig& config = input.config();
  const std::string_view family = input.checkpoint.family().name;
  // Nothing is known of the indexers of other families.
  const engines::StateEngine& vllm = engines::state_engine("vllm");
  if (!engines::builds_indexer(vllm, family, config, 0)) return;
  const auto builds = [&](std::uint32_t layer) {
    return *engines::builds_indexer(vllm, family, config, layer);
  };
  std::set<std::uint32_t> layers;
  for (const LogicalTensor& tensor : input.weights()) {
    if (role_of(tensor) != Role::kIndexerK || !tensor.layer) continue;
    layers.insert(*tensor.layer);
    if (!builds(*tensor.layer))
      input.report_kind(tensor, kMismatch,
                        "is in a layer that shares the indexer of an earlier one, where vLLM ends "
                        "with a KeyError (leave the indexer out)");
  }
  // Indexers that are missing by indexer_types too have been reported.
  const bool is_said = json_member(formats::text_keys(config), "indexer_types").is_null();
  if (layers.empty() || is_said || input.checkpoint.slicing() != nullptr) return;
  for (std::uint32_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    if (layers.contains(layer) || !builds(layer)) continue;
    input.report_config(kMismatch,
                        "vLLM builds an indexer in layer {}, which has none: it reads "
                        "index_topk_freq, index_skip_topk_offset and index_topk_pattern, not "
                        "indexer_types",
                        layer);
    return;
  }
}

void counted_mtp(const RuleInput& input) {
  const formats::ModelConfig& config = input.config();
  if (const auto said = formats::understated_mtp(input.checkpoint.family(), config))
    input.report_config(
        kMismatch,
        "num_nextn_predict_layers is {}, and {} MTP layer(s) are here, from layer {} on (ingot "
        "repair sets the number; ingot convert --mtp drop leaves the layers out)",
        *said, config.num_nextn_predict_layers, config.num_hidden_layers);
}

void head_of_tied(const RuleInput& input) {
  const auto tied = formats::tied_head(input.checkpoint);
  if (!tied) return;
  // Tables too large to be read are compared where they begin: a trained head differs there.
  if (formats::is_apart(input.checkpoint, *tied, input.options.most_bytes))
    input.report(violation(
        kMismatch, "config.json", tied->head->name,
        fmt::format("is stored and is not {}, which the config takes for it: vLLM and transformers "
                    "5 compute with the stored head, others with the embedding (put "
                    "tie_word_embeddings false; ingot repair does)",
                    tied->embedding->name)));
}

// vLLM's loaders end with an error for a name that a module lacks, but for these ends:
// models/utils.py and quantization/base_config.py of 0.32.
constexpr std::array<std::string_view, 7> kDroppedEnds = {
    ".bias", ".q_scale", ".k_scale", ".v_scale", ".q_zero_point", ".k_zero_point", ".v_zero_point"};

bool is_inside(std::string_view name, const std::unordered_set<std::string_view>& modules) {
  for (std::size_t dot = name.rfind('.'); dot != std::string_view::npos && dot != 0;
       dot = name.rfind('.', dot - 1)) {
    if (modules.contains(name.substr(0, dot))) return true;
  }
  return false;
}

void stray_part(const RuleInput& input) {
  std::unordered_set<std::string_view> modules;
  for (const LinearModule& module : input.facts.modules) {
    if (!module.tensor->is_unknown && (module.is_quantized || module.is_quantizable))
      modules.insert(formats::module_name(module.tensor->name));
  }
  const LogicalTensor* first = nullptr;
  std::size_t n = 0;
  for (const LogicalTensor& tensor : input.weights()) {
    const auto ends = [&](std::string_view end) { return tensor.name.ends_with(end); };
    if (!tensor.is_unknown || std::ranges::any_of(kDroppedEnds, ends) ||
        !is_inside(tensor.name, modules))
      continue;
    if (n++ == 0) first = &tensor;
  }
  if (first == nullptr) return;
  input.report_at(input.codes_of(*first), kUnknownTensor,
                  "is no part of the linear layer whose weight is next to it{}: vLLM ends with an "
                  "error for a name that its layer lacks",
                  n == 1 ? "" : fmt::format(" (so are {} more of other layers or names)", n - 1));
}

void table_of_tied(const RuleInput& input) {
  const std::string& head = input.checkpoint.table_called_head();
  if (head.empty()) return;
  const auto table = std::ranges::find_if(
      input.weights(), [](const LogicalTensor& t) { return role_of(t) == Role::kEmbedding; });
  if (table == input.weights().end()) return;
  input.report(input.violation_at(
      input.codes_of(*table), kMissingTensor,
      fmt::format("is stored as '{}' only: the config ties the head to the embedding, and loaders "
                  "skip a head that is tied, so the embedding stays unset (ingot repair gives the "
                  "table its name, and so does each conversion)",
                  head),
      table->name));
}

void class_head(const RuleInput& input) {
  const formats::ModelConfig& config = input.config();
  if (head_of(config) != formats::ModelHead::kClasses || input.checkpoint.slicing() != nullptr ||
      input.checkpoint.family().rules.empty())
    return;
  // A head that is made of rows of the vocabulary's: vLLM, models/adapters.py.
  const formats::Json& keys = text_keys(config);
  if (!json_member(keys, "classifier_from_token").is_null() ||
      !json_member(*config.raw, "classifier_from_token").is_null())
    return;
  const auto is_of_head = [&](const StoredTensor& tensor) {
    const std::string name = formats::text_model_name(tensor.name, config.text);
    return formats::class_head_rule(name, config) != nullptr;
  };
  if (std::ranges::none_of(input.checkpoint.stored(), is_of_head) &&
      !input.checkpoint.may_have_lost("score.weight"))
    input.report_config(kMissingTensor,
                        "'architectures' names {}, and no head of classes is here (score.weight): "
                        "loaders would make one up",
                        config.architecture);
}

void names_of_model(const RuleInput& input) {
  const formats::ModelConfig& config = input.config();
  if (config.text.bare_words.empty() || head_of(config) != formats::ModelHead::kTokens) return;
  input.report_config(
      kMismatch,
      "'architectures' names {}, and names of tensors lack its `model.`: vLLM loads "
      "them for embeddings only (--runner pooling), transformers by AutoModel",
      config.architecture.empty() ? "no class" : config.architecture);
}

constexpr LoaderRule kModelRows[] = {
    {"moe.expert-ids", "", "all", kError,
     "every mixture layer has the experts 0 to E-1, whole, and no others", expert_ids},
    {"moe.routing", "", "all", kError,
     "groups divide the experts, and those that are kept have as many as a token gets", routing},
    {"moe.stacked-shape", "", "all", kError, "stacked experts are [E, 2I, H] and [E, H, I]",
     kByStructure},
    {"router.correction-bias", "", "all", kError,
     "with topk_method noaux_tc every router has its e_score_correction_bias",
     missing<Gap::kCorrectionBias>},
    {"router.correction-bias-dtype", "", "vLLM, SGLang", kWarning,
     "e_score_correction_bias is F32 where the release has it so", correction_bias_dtype},
    {"indexer.complete", "", "all", kError,
     "every layer of a sparse-attention model has its indexer", missing<Gap::kIndexer>},
    {"indexer.k-scheme", "", "vLLM", kWarning,
     "indexer.wk, which is joined with weights_proj, is fp8-block or bf16", indexer_k_scheme},
    {"indexer.built", "", "vLLM", kWarning,
     "a layer has an indexer if and only if index_topk_freq or index_topk_pattern say so",
     built_indexers},
    {"mtp.present", "", "vLLM, SGLang with speculative decoding", kWarning,
     "the layers that num_nextn_predict_layers promises exist", missing<Gap::kMtpLayer>},
    {"mtp.counted", "", "vLLM, SGLang", kError,
     "num_nextn_predict_layers counts all multi-token prediction layers of the checkpoint",
     counted_mtp},
    {"mtp.complete", "", "vLLM, SGLang with speculative decoding", kError,
     "a multi-token prediction layer of the checkpoint is complete", missing<Gap::kMtpTensor>},
    {"mtp.draft-names", "", "SGLang with speculative decoding", kWarning,
     "the config says the same of a first such layer's modules behind model.decoder",
     draft_names<engines::Engine::kSglang>},
    {"model.tied-head", "", "SGLang, transformers 4", kError,
     "with tie_word_embeddings a head that is stored is the embedding, byte for byte", head_of_tied,
     kAnyScheme, kReadsValues, false, std::nullopt, "", nullptr, kIsSilent},
    {"model.tied-table", "", "vLLM, SGLang, transformers 4", kError,
     "the one table of a tied model is stored under the embedding's name", table_of_tied},
    {"model.stray-part", "", "vLLM", kWarning,
     "a tensor that is next to the weight of a linear layer is a part or a parameter of it",
     stray_part, kAnyScheme, false, kIsAllowable},
    {"model.bare-names", "", "vLLM, transformers", kWarning,
     "a model whose class computes logits has names with model. before them", names_of_model},
    {"model.class-head", "", "all", kError,
     "a classifier or reward model, by the class in architectures, has its head", class_head},
    {"model.complete", "", "all", kError, "every tensor that the config promises exists",
     missing<Gap::kOther>},
    {"model.shape", "", "all", kError, "every tensor has the shape that the config promises",
     kByStructure},
};

}  // namespace

const RuleTable kModelRules = kModelRows;

}  // namespace ingot::check
