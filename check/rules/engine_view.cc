#include "check/rules/engine_view.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <set>
#include <tuple>

#include <fmt/format.h>

#include "check/rules/rule_input.h"
#include "formats/base/error.h"
#include "formats/dialect/modelopt.h"
#include "formats/json/json.h"

namespace ingot::check {

using formats::Engine;
using formats::Exclusion;
using formats::ModeloptBlock;

namespace {

constexpr std::string_view kPlain = "plain";

struct Belief {
  std::string scheme, because;
};

Belief plain(std::string because) {
  return {std::string(kPlain), std::move(because)};
}

Belief quantized(SchemeId scheme, std::string because) {
  return {std::string(scheme_facts(scheme).name), std::move(because)};
}

bool is_vllm(Engine engine) {
  return engine == Engine::kVllm || engine == Engine::kVllmAscend;
}

/// How an engine reads a checkpoint's configs.
class Reader {
 public:
  Reader(const Checkpoint& checkpoint, Engine engine)
      : checkpoint_(checkpoint), engine_(engine), facts_(checkpoint) {
    const Json* block = facts_.quantization;
    if (checkpoint.dialect().name == "modelopt") {
      // A file beside config.json comes before it.
      const Json& file = json_member(checkpoint.description(), "quantization");
      const bool has_file = checkpoint.description().is_object() && file.is_object();
      const Json* body = has_file ? &file : block;
      if (body == nullptr) return;
      // The block in config.json is flat, unless it has the form of the file.
      const bool is_flat = !has_file && &formats::modelopt_body(*body) == body;
      modelopt_.emplace(formats::modelopt_body(*body),
                        std::array{is_flat ? "ignore" : "exclude_modules"}, &faults_);
    }
  }

  [[nodiscard]] const std::vector<LinearModule>& modules() const { return facts_.modules; }

  [[nodiscard]] Belief belief(const LinearModule& module) const {
    const std::string_view dialect = checkpoint_.dialect().name;
    if (!module.is_quantizable) return plain("always plain");
    if (facts_.groups) return by_groups(module);
    if (modelopt_) return by_modelopt(module);
    if (dialect == "modelslim") return by_description(module);
    if (facts_.quantization == nullptr) return plain("no quantization_config");
    const bool is_expert =
        module.tensor->rule != nullptr && is_routed_expert(module.tensor->rule->role);
    if (dialect == "mxfp4")
      return is_expert ? by_exemption(module, SchemeId::kMxfp4) : plain("not an expert");
    return by_exemption(module,
                        is_expert && has_fp4_experts() ? SchemeId::kMxfp4 : scheme_of_method());
  }

 private:
  [[nodiscard]] std::string_view name_of(const LinearModule& module) const {
    return is_vllm(engine_) && !module.mtp_name.empty() ? module.mtp_name : module.name;
  }

  [[nodiscard]] Belief by_groups(const LinearModule& module) const {
    const std::string_view name = name_of(module);
    if (facts_.groups->is_ignored(name)) return plain("ignore");
    const formats::ConfigGroup* group = facts_.groups->target_of(name);
    if (group == nullptr) return plain("no target matches");
    const std::string because = "config_groups." + group->name;
    if (!group->has_weights) return plain(because);
    if (!group->scheme) return {"unknown scheme", because};
    return quantized(*group->scheme, because);
  }

  [[nodiscard]] Belief by_modelopt(const LinearModule& module) const {
    const Exclusion exclusion = modelopt_->exclusion_of(module.name);
    const bool is_out =
        exclusion == Exclusion::kWhole || (exclusion == Exclusion::kInside && is_vllm(engine_));
    if (is_out) return plain("excluded modules");
    // What is excluded for others stands under the algorithm all the same.
    const formats::StorageRow* algo =
        exclusion == Exclusion::kNone ? modelopt_->algo_of(module.name)
                                      : find_storage(checkpoint_.dialect(), modelopt_->algo_name());
    if (algo == nullptr) return {"unknown scheme", "quant_algo " + modelopt_->algo_name()};
    return quantized(algo->scheme, "quant_algo " + modelopt_->algo_name());
  }

  [[nodiscard]] Belief by_description(const LinearModule& module) const {
    const Json& word = json_member(checkpoint_.description(), module.tensor->name.c_str());
    if (!word.is_string()) return plain("not in the description");
    const std::string& text = word.get_ref<const std::string&>();
    const formats::StorageRow* row = find_storage(checkpoint_.dialect(), text);
    if (row == nullptr) return text == "FLOAT" ? plain(text) : Belief{"unknown scheme", text};
    return quantized(row->scheme, text);
  }

  // DeepSeek's FP8 says one thing of all layers that engines build quantized.
  [[nodiscard]] SchemeId scheme_of_method() const {
    const Json& block = *facts_.quantization;
    const Json& method = json_member(block, "quant_method");
    if (method.is_string() && method.get_ref<const std::string&>() == "blockwise_int8")
      return SchemeId::kInt8Block;
    return json_member(block, "weight_block_size").is_array() ? SchemeId::kFp8Block
                                                                : SchemeId::kFp8Tensor;
  }

  // DeepSeek-V4 says so beside the block, V4.1 in it.
  [[nodiscard]] bool has_fp4_experts() const {
    for (const Json* object : {&*checkpoint_.config().raw, facts_.quantization}) {
      if (json_member(*object, "expert_dtype") == "fp4") return true;
    }
    return false;
  }

  [[nodiscard]] Belief by_exemption(const LinearModule& module, SchemeId scheme) const {
    const Json& block = *facts_.quantization;
    const char* key = exemption_key(block, engine_ == Engine::kTransformers);
    if (is_exempt(checkpoint_, module.tensor->name, strings_at(block, key))) return plain(key);
    const Json& method = json_member(block, "quant_method");
    return quantized(scheme, "quant_method " + (method.is_string() ? method.get<std::string>()
                                                                   : std::string("(none)")));
  }

  const Checkpoint& checkpoint_;
  Engine engine_;
  RuleFacts facts_;
  std::vector<std::string> faults_;
  std::optional<ModeloptBlock> modelopt_;
};

constexpr std::array kReadable = {"deepseek", "compressed-tensors", "modelopt", "modelslim",
                                  "mxfp4"};

std::string_view joined_name(const LogicalTensor& tensor) {
  if (tensor.rule == nullptr) return {};
  switch (tensor.rule->role) {
    case Role::kExpertGate:
    case Role::kExpertUp:
      return "experts.w13";
    case Role::kExpertDown:
      return "experts.w2";
    default:
      break;
  }
  switch (tensor.rule->fuse) {
    case formats::Fuse::kQaKva:
      return "fused_qkv_a_proj";
    case formats::Fuse::kGateUp:
      return "gate_up_proj";
    case formats::Fuse::kQkv:
      return "qkv_proj";
    default:
      return {};
  }
}

/// A name without its numbers, and these.
struct NumberedName {
  std::vector<std::string> words;  // between numbers: one more
  std::vector<std::uint64_t> numbers;
};

NumberedName split_numbers(std::string_view name) {
  NumberedName split{.words = {""}, .numbers = {}};
  while (!name.empty()) {
    const std::string_view word = name.substr(0, name.find('.'));
    name.remove_prefix(std::min(name.size(), word.size() + 1));
    std::uint64_t number = 0;
    const auto [end, fault] = std::from_chars(word.data(), word.data() + word.size(), number);
    if (!word.empty() && fault == std::errc() && end == word.data() + word.size()) {
      split.numbers.push_back(number);
      split.words.emplace_back(name.empty() ? "" : ".");
      continue;
    }
    split.words.back() += word;
    if (!name.empty()) split.words.back() += '.';
  }
  return split;
}

std::string ranges_text(const std::set<std::uint64_t>& numbers) {
  if (numbers.size() == 1) return std::to_string(*numbers.begin());
  std::string text;
  for (auto at = numbers.begin(); at != numbers.end();) {
    const std::uint64_t first = *at;
    std::uint64_t last = first;
    while (++at != numbers.end() && *at == last + 1) last = *at;
    text += fmt::format("{}{}", text.empty() ? "" : ",", first);
    if (last != first) text += fmt::format("-{}", last);
  }
  return "{" + text + "}";
}

/// Modules that differ by numbers alone.
struct Kind {
  BelievedModules row;
  std::vector<std::string> words;
  std::vector<std::set<std::uint64_t>> numbers;
};

bool names_engine(std::string_view loaders, Engine engine) {
  if (loaders == "all" || loaders == "one reader or another") return true;
  switch (engine) {
    case Engine::kVllm:
    case Engine::kVllmAscend:  // is vLLM's loader with kernels of its own
      return loaders.find("vLLM") != std::string_view::npos;
    case Engine::kSglang:
      return loaders.find("SGLang") != std::string_view::npos;
    case Engine::kTransformers:
      return loaders == "transformers";
    case Engine::kTrtllm:
      return false;
  }
  return false;
}

}  // namespace

EngineView engine_view(const Checkpoint& checkpoint, Engine engine) {
  if (checkpoint.slicing() != nullptr) {
    throw Error(ErrorCode::kUnsupported,
                "slices of ranks are no checkpoint that engines load (ingot merge makes one)")
        .in_file(checkpoint.directory().string());
  }
  const std::string_view dialect = checkpoint.dialect().name;
  if (std::ranges::find(kReadable, dialect) == kReadable.end()) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("what engines read out of the config of dialect {} is not known here "
                            "(ingot convert writes another dialect)",
                            dialect))
        .in_file("config.json");
  }
  EngineView view;
  for (EngineVerdict& verdict : engine_verdicts(checkpoint)) {
    if (verdict.engine == engine) view.verdict = std::move(verdict);
  }
  const Reader reader(checkpoint, engine);
  std::vector<Kind> kinds;
  std::map<std::tuple<std::vector<std::string>, std::string, std::string, std::string>, std::size_t>
      number_of;
  for (const LinearModule& module : reader.modules()) {
    const Belief belief = reader.belief(module);
    const std::string stored(module.is_quantized ? facts_of(*module.tensor).name : kPlain);
    NumberedName split = split_numbers(module.name);
    const auto [place, is_new] =
        number_of.try_emplace({split.words, stored, belief.scheme, belief.because}, kinds.size());
    if (is_new) {
      kinds.push_back({.row = {.stored = stored,
                               .believed = belief.scheme,
                               .because = belief.because,
                               .joined = engine == Engine::kTransformers
                                             ? std::string()
                                             : std::string(joined_name(*module.tensor))},
                       .words = split.words,
                       .numbers = std::vector<std::set<std::uint64_t>>(split.numbers.size())});
    }
    Kind& kind = kinds[place->second];
    ++kind.row.count;
    for (std::size_t i = 0; i < split.numbers.size(); ++i) kind.numbers[i].insert(split.numbers[i]);
  }
  for (Kind& kind : kinds) {
    for (std::size_t i = 0; i < kind.words.size(); ++i) {
      kind.row.name += kind.words[i];
      if (i < kind.numbers.size()) kind.row.name += ranges_text(kind.numbers[i]);
    }
    view.modules.push_back(std::move(kind.row));
  }
  return view;
}

std::vector<Finding> findings_for(Engine engine, std::span<const Finding> findings) {
  std::vector<Finding> own;
  for (const Finding& finding : findings) {
    const LoaderRule* rule = find_loader_rule(finding.rule);
    if (rule != nullptr && rule->engine && *rule->engine != engine) continue;
    if (rule != nullptr && !rule->engine && !names_engine(rule->loaders, engine)) continue;
    own.push_back(finding);
    if (rule != nullptr && rule->engine) own.back().severity = Severity::kError;
  }
  return own;
}

}  // namespace ingot::check
