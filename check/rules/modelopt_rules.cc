#include "check/rules/rule_input.h"
#include "engines/readers/reader.h"
#include "formats/dialect/modelopt.h"
#include "formats/family/text_names.h"

// ModelOpt: hf_quant_config.json, and the block in config.json that says the same.

namespace ingot::check {

using formats::Exclusion;
using formats::kModeloptMixed;
using Statement = formats::ModeloptStatement;

namespace {

constexpr const char* kHfQuantConfig = "hf_quant_config.json";
const Json kNothing = Json::object();

bool is_known_algo(const RuleInput& input, std::string_view name) {
  return name == kModeloptMixed || find_storage(input.dialect(), name) != nullptr;
}

Statement file_of(const RuleInput& input) {
  return Statement::of_file(input.checkpoint.description());
}

Statement block_of(const RuleInput& input) {
  return Statement::of_config(input.block());
}

/// The statement that engines read: the file where there is one.
Statement statement_of(const RuleInput& input) {
  return input.checkpoint.description().is_object() ? file_of(input) : block_of(input);
}

/// The fault of a module that engines build quantizable and that is left out in this way.
constexpr const char* exclusion_fault(bool is_quantized, Exclusion exclusion, bool is_mixed) {
  if (is_quantized) {
    if (is_mixed) return "is quantized, but 'quantized_layers' does not list it";
    return exclusion == Exclusion::kWhole
               ? "is quantized, but the list of excluded modules takes it in"
               : "is quantized, but an excluded module's name is part of its own";
  }
  return exclusion == Exclusion::kNone
             ? "is plain, but no excluded module matches it (list it)"
             : "is plain, but no excluded module matches its name, or a whole component of it "
               "(add a '*')";
}

template <bool is_quantized, Exclusion exclusion>
void left_out(const RuleInput& input) {
  const Statement statement = statement_of(input);
  if (!statement.exists || statement.lacks_list()) return;
  // The rule quantized.config-without-weights names the cause.
  if (!is_quantized && has_no_codes(input.checkpoint)) return;
  // SGLang takes an entry that is a whole component of the name, too.
  const engines::ExcludedModules of_sglang(strings_at(statement.object, statement.list),
                                           engines::Engine::kSglang, false);
  const auto is_component = [&](const LinearModule& module) {
    return !is_quantized && exclusion == Exclusion::kInside &&
           of_sglang.find({.name = module.name}) == engines::Listed::kYes;
  };
  for (const LinearModule& module : input.facts.modules) {
    if (module.is_quantizable && module.is_quantized == is_quantized &&
        statement.block.exclusion_of(module.name) == exclusion && !is_component(module))
      input.report_kind(*module.tensor, kMismatch, "{}",
                        exclusion_fault(is_quantized, exclusion, statement.is_mixed()));
  }
}

void description_present(const RuleInput& input) {
  if (input.checkpoint.description().is_object()) return;
  input.report_file(kHfQuantConfig, kNotFound,
                    "is missing: only config.json says how the weights are quantized");
}

void required_keys(const RuleInput& input) {
  const Statement statement = statement_of(input);
  if (!statement.exists) {
    if (input.checkpoint.description().is_object())
      input.report_file(kHfQuantConfig, kNotFound, "has no section 'quantization'");
    return;
  }
  const auto require = [&](const char* key) {
    if (!statement.object.contains(key))
      input.report_file(statement.file, kNotFound, "has no '{}'", key);
  };
  require("quant_algo");
  // A mixture lists the modules that are quantized; ModelOpt leaves an empty list of others out.
  require(statement.is_mixed() ? "quantized_layers" : statement.list);
  if (statement.lacks_list() && statement.object.contains("quantized_layers"))
    input.report_file(statement.file, kMismatch, "has a 'quantized_layers' of no object");
  if (std::string_view(statement.file) != kHfQuantConfig) return;  // config.json lacks these keys
  require("kv_cache_quant_algo");
  if (statement.block.algo_name().find("NVFP4") != std::string::npos) require("group_size");
}

void exclude_not_empty(const RuleInput& input) {
  const Statement statement = statement_of(input);
  const auto list = statement.object.find(statement.list);
  if (list == statement.object.end() || (list->is_array() && !list->empty())) return;
  input.report_file(statement.file, kNotFound, "has an empty '{}' (name lm_head)", statement.list);
}

/// Each module that a mixture lists has the algorithm that is listed.
void algos_of_mixture(const RuleInput& input, const Statement& statement) {
  if (statement.lacks_list()) return;
  for (const LinearModule& module : input.facts.modules) {
    if (!module.is_quantized || statement.block.exclusion_of(module.name) != Exclusion::kNone)
      continue;
    const StorageRow* algo = statement.block.algo_of(module.name);
    if (algo != nullptr && algo->scheme == module.tensor->encoding.scheme) continue;
    input.report_kind(*module.tensor, kMismatch,
                      "is {}, but 'quantized_layers' of {} says {}quant_algo {}",
                      facts_of(*module.tensor).name, statement.file, algo == nullptr ? "no " : "",
                      algo == nullptr ? "that is known" : algo->config_name);
  }
}

void quant_algo(const RuleInput& input) {
  const Statement statement = statement_of(input);
  if (!statement.object.contains("quant_algo")) return;
  const std::string& name = statement.block.algo_name();
  if (name.empty())
    return input.report_file(statement.file, kUnsupported,
                             "says quant_algo {}, which no loader knows",
                             statement.object.at("quant_algo").dump());
  if (!is_known_algo(input, name)) {
    // Others are read and not written; limits of engines tell who loads them.
    if (const std::string fault = formats::unknown_algo(statement.object); !fault.empty())
      input.report_file(statement.file, kUnsupported, "says {}", fault);
    return;
  }
  if (statement.is_mixed()) return algos_of_mixture(input, statement);
  const StorageRow* algo = find_storage(input.dialect(), name);
  for (const LogicalTensor& tensor : input.weights()) {
    const SchemeId scheme = tensor.encoding.scheme;
    if (!is_quantized(tensor) || (algo != nullptr && scheme == algo->scheme)) continue;
    // Schemes without a row have been reported.
    if (find_storage(input.dialect(), scheme) != nullptr)
      input.report_kind(tensor, kMismatch, "is {}, but {} says quant_algo {}",
                        facts_of(tensor).name, statement.file, name);
  }
}

void algo_of_sglang(const RuleInput& input) {
  const Statement statement = statement_of(input);
  const engines::EngineRow& sglang = engines::newest(engines::Engine::kSglang);
  const engines::Reader reader = engines::reader_of(input.checkpoint, input.facts, sglang);
  const bool is_told = !is_known_algo(input, statement.block.algo_name());
  if (!is_told && reader.of_all && reader.of_all->because.starts_with("quant_algo"))
    input.report_file(statement.file, kUnsupported, "says {}, which {} does not know",
                      reader.of_all->because, sglang.name);
}

void input_scale(const RuleInput& input) {
  const Statement statement = statement_of(input);
  for (const LinearModule& module : input.facts.modules) {
    const formats::Encoding& encoding = module.tensor->encoding;
    const StorageRow* algo = statement.is_mixed()
                                 ? statement.block.algo_of(module.name)
                                 : find_storage(input.dialect(), statement.block.algo_name());
    if (algo == nullptr || algo->activations != Activations::kStatic ||
        algo->scheme != encoding.scheme || encoding.stored.has(Part::kInputScale))
      continue;
    const bool can_be_left_out =
        find_storage(input.dialect(), algo->scheme, Activations::kWeightOnly) != nullptr;
    input.report_kind(
        *module.tensor, kMissingTensor,
        "has no input_scale, which loaders of {} multiply by (supply activation scales{})",
        algo->config_name,
        can_be_left_out ? ", or leave all of them out with --activations weight-only" : "");
  }
}

void algo_arguments(const RuleInput& input) {
  constexpr const char* kColumnFactors = "pre_quant_scale";
  const bool has_factors = std::ranges::any_of(input.weights(), [](const auto& weight) {
    return weight.encoding.stored.has(formats::Part::kColumnFactor);
  });
  for (const Statement& statement : {file_of(input), block_of(input)}) {
    const auto judge_size = [&](const Json& object, const StorageRow& algo, std::string_view path) {
      const Json& size = json_member(object, "group_size");
      if (!size.is_null() && size != formats::modelopt_group_size(algo))
        input.report_file(statement.file, kMismatch,
                          "{}group_size is {}, but quant_algo {} means {}", path, config_text(size),
                          algo.config_name, formats::modelopt_group_size(algo));
    };
    for (const char* key : {"has_zero_point", kColumnFactors}) {
      const Json& value = json_member(statement.object, key);
      if (!formats::says_nothing(value) && !(has_factors && key == kColumnFactors))
        input.report_file(statement.file, kMismatch, "{} is {}, but there are no such tensors", key,
                          config_text(value));
    }
    const Json& layers = json_member(statement.object, "quantized_layers");
    for (const auto& [module, layer] : (layers.is_object() ? layers : kNothing).items()) {
      const StorageRow* algo = find_storage(input.dialect(), text_at(layer, "quant_algo"));
      // FP8 blocks have two sides.
      if (algo != nullptr && algo->scheme != SchemeId::kFp8Block)
        judge_size(layer, *algo, fmt::format("quantized_layers.{}.", module));
    }
    const StorageRow* algo = find_storage(input.dialect(), statement.block.algo_name());
    if (algo == nullptr) continue;
    if (!formats::says_nothing(json_member(statement.object, "group_size")))
      judge_size(statement.object, *algo, "");
    const Json& groups = json_member(statement.object, "config_groups");
    for (const auto& [name, group] : (groups.is_object() ? groups : kNothing).items()) {
      const std::string where = fmt::format("config_groups.{}", name);
      for (const std::string& fault : formats::modelopt_group_faults(group, *algo, where))
        input.report_config(kMismatch, "{}", fault);
    }
  }
}

void report_difference(const RuleInput& input, const Json& in_block, const char* key_there,
                       const Json& in_file, const char* key_here) {
  input.report_config(kMismatch,
                      "quantization_config.{} is {}, but {} in hf_quant_config.json is {}: engines "
                      "read one or the other",
                      key_there, config_text(in_block), key_here, config_text(in_file));
}

void cache_in_both(const RuleInput& input) {
  constexpr const char *kInBlock = "kv_cache_scheme", *kInFile = "kv_cache_quant_algo";
  const Statement file = file_of(input), block = block_of(input);
  if (!file.exists || !block.exists) return;
  const Json &a = json_member(block.object, kInBlock), &b = json_member(file.object, kInFile);
  if (a.is_null() != b.is_null()) report_difference(input, a, kInBlock, b, kInFile);
}

void statements_agree(const RuleInput& input) {
  const Statement file = file_of(input), block = block_of(input);
  for (const char* key : {"quant_algo", "group_size"}) {
    const Json &a = json_member(block.object, key), &b = json_member(file.object, key);
    if (!a.is_null() && !b.is_null() && a != b) report_difference(input, a, key, b, key);
  }
  for (const LinearModule& module : input.facts.modules) {
    if (!block.is_mixed() || !file.is_mixed()) break;
    if (block.block.algo_of(module.name) != file.block.algo_of(module.name))
      input.report_kind(*module.tensor, kMismatch,
                        "has another quant_algo in config.json's quantized_layers than in those of "
                        "hf_quant_config.json: engines read one or the other");
  }
  for (const LinearModule& module : input.facts.modules) {
    if (!block.object.contains("ignore") || !file.object.contains("exclude_modules")) break;
    const bool is_in_block = block.block.excluded().covers_for_all(module.name);
    if (is_in_block != file.block.excluded().covers_for_all(module.name))
      input.report_kind(*module.tensor, kMismatch,
                        "is left out only by {}: engines read config.json's ignore or "
                        "hf_quant_config.json's exclude_modules",
                        is_in_block ? "config.json" : kHfQuantConfig);
  }
}

constexpr std::string_view kModelopt = "modelopt";

// vLLM 0.32 gives a tied head the quantization config, and then the embedding's weight
// (vocab_parallel_embedding.py:634); these classes compute logits with the embedding itself.
constexpr std::array<std::string_view, 4> kHeadless = {"cohere2", "cohere2_moe", "gemma2",
                                                       "gemma3n"};

void excluded_tied_head(const RuleInput& input) {
  const Statement statement = statement_of(input);
  if (!statement.exists || statement.lacks_list() || !input.config().tie_word_embeddings ||
      is_in(kHeadless, input.checkpoint.family().name) || has_no_codes(input.checkpoint))
    return;
  for (const TensorRule& rule : input.checkpoint.family().rules) {
    if (rule.role != Role::kHead || rule.scope != formats::Scope::kModel) continue;
    const std::string_view head = formats::module_name(rule.pattern);
    const std::string stored = formats::stored_text_name(head, input.config().text);
    const auto is_named = [&](std::string_view name) {
      return statement.block.exclusion_of(name) != Exclusion::kNone;
    };
    // A head that is stored is a module, for which other rows are.
    const bool is_stored = std::ranges::any_of(
        input.facts.modules,
        [&](const LinearModule& module) { return role_of(*module.tensor) == Role::kHead; });
    if (is_stored || is_named(head) || is_named(stored)) return;
    input.report_file(
        statement.file, kMismatch,
        "leaves out no '{}', which is tied to the embedding: vLLM builds it quantized, "
        "under scales that are not stored (ingot repair adds it)",
        stored);
  }
}

constexpr LoaderRule kModeloptRows[] = {
    {"modelopt.scale-shape", kModelopt, "all", kError,
     "scales have the dimensions of the parameter that they are copied into", part_shapes},
    {"modelopt.description-present", kModelopt, "SGLang, TensorRT-LLM", kWarning,
     "hf_quant_config.json exists", description_present},
    {"modelopt.required-keys", kModelopt, "all", kError,
     "quant_algo, kv_cache_quant_algo, group_size and exclude_modules exist", required_keys},
    {"modelopt.exclude-not-empty", kModelopt, "SGLang", kWarning, "exclude_modules is not empty",
     exclude_not_empty},
    {"modelopt.quant-algo", kModelopt, "all", kError,
     "quant_algo is known, and is that of the weights", quant_algo},
    {"modelopt.algo-of-sglang", kModelopt, "SGLang", kWarning,
     "quant_algo is one that SGLang knows", algo_of_sglang},
    {"modelopt.exclude-quantized", kModelopt, "all", kError,
     "no quantized module matches an excluded one", left_out<true, Exclusion::kWhole>},
    {"modelopt.exclude-inside", kModelopt, "vLLM", kWarning,
     "no quantized module's name holds that of an excluded one",
     left_out<true, Exclusion::kInside>},
    {"modelopt.exclude-plain", kModelopt, "all", kError,
     "every plain module that engines build quantizable is excluded",
     left_out<false, Exclusion::kNone>},
    {"modelopt.exclude-plain-whole", kModelopt, "SGLang", kWarning,
     "every plain module is excluded by a match of its name or of a component of it",
     left_out<false, Exclusion::kInside>},
    {"modelopt.tied-head", kModelopt, "vLLM", kWarning,
     "a head that is tied to the embedding is excluded", excluded_tied_head, kAnyScheme, false,
     kIsAllowable},
    {"modelopt.mtp-head", kModelopt, "vLLM with speculative decoding", kWarning,
     "a plain head of a multi-token prediction layer is excluded without shared_head too",
     draft_names<engines::Engine::kVllm>},
    {"modelopt.plain-module", kModelopt, "all", kError,
     "embedding, router, norms, eh_proj and weights_proj are not quantized", plain_module,
     kAnyScheme, false, kIsAllowable},
    {"modelopt.input-scale", kModelopt, "all", kError,
     "under NVFP4 and FP8 every quantized weight has an input_scale", input_scale},
    {"modelopt.cache-scales", kModelopt, "vLLM, SGLang", kWarning,
     "a quantized cache of keys and values has its scales stored", cache_scales},
    {"modelopt.arguments", kModelopt, "all", kError,
     "group_size, config_groups and the like are those of quant_algo", algo_arguments},
    // nvidia/Qwen3.6-35B-A3B-NVFP4 has it only in the file.
    {"modelopt.cache-in-both", kModelopt, "one reader or another", kWarning,
     "config.json and hf_quant_config.json both say that the cache is quantized, or neither",
     cache_in_both},
    {"modelopt.statements-agree", kModelopt, "one reader or another", kError,
     "config.json and hf_quant_config.json say the same", statements_agree},
};

}  // namespace

const RuleTable kModeloptRules = kModeloptRows;

}  // namespace ingot::check
