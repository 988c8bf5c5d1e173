#include <algorithm>
#include <array>
#include <optional>
#include <unordered_set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "check/rules/linear_modules.h"
#include "check/rules/loader_rule_bodies.h"
#include "formats/dialect/modelopt_algos.h"

// ModelOpt: hf_quant_config.json, or the block in config.json that says the same.

namespace ingot::formats::rule_bodies {
namespace {

constexpr const char* kFile = "hf_quant_config.json";
constexpr std::string_view kMixed = "MIXED_PRECISION";

// Loaders know these too; this version reads no weights of them.
constexpr std::array<std::string_view, 3> kOtherAlgos = {"FP8_PB_WO", "MXFP8", kMixed};
constexpr std::array<std::string_view, 4> kAlgosOfSglang = {"FP8", "NVFP4", "W4A16_NVFP4", kMixed};

bool is_known_algo(std::string_view name) {
  return find_modelopt_algo(name) != nullptr ||
         std::find(kOtherAlgos.begin(), kOtherAlgos.end(), name) != kOtherAlgos.end();
}

/// What says how the model is quantized, and where it stands.
struct Statement {
  const Json* object = nullptr;
  const char* file = kFile;
  const char* list = "exclude_modules";
};

Statement statement_of(const Checkpoint& checkpoint) {
  const Json& description = checkpoint.description();
  if (description.is_object()) {
    const auto inner = description.find("quantization");
    if (inner != description.end() && inner->is_object()) return {.object = &*inner};
    return {};
  }
  return {.object = config_block(checkpoint), .file = "config.json", .list = "ignore"};
}

std::string algo_name(const Statement& statement) {
  if (statement.object == nullptr) return {};
  const auto value = statement.object->find("quant_algo");
  return value != statement.object->end() && value->is_string() ? value->get<std::string>()
                                                                : std::string();
}

Finding in_statement(const Statement& statement, ErrorCode code, std::string message) {
  return violation(code, statement.file, "", std::move(message));
}

// Expressions are not of this dialect; an entry that looks like one is only text.
ModuleList excluded_modules(const Statement& statement) {
  std::vector<std::string> entries = strings_at(*statement.object, statement.list);
  std::erase_if(entries,
                [](const std::string& entry) { return entry.empty() || entry.starts_with("re:"); });
  return {entries, PatternSyntax::kGlob};
}

/// With MIXED_PRECISION modules are listed, not left out: by name, or by one above it.
class ListedLayers {
 public:
  explicit ListedLayers(const Json& layers) {
    for (const auto& [name, algo] : layers.items()) names_.insert(name);
  }
  [[nodiscard]] bool has(std::string module) const {
    while (!names_.contains(module)) {
      const std::size_t dot = module.rfind('.');
      if (dot == std::string::npos) return false;
      module.resize(dot);
    }
    return true;
  }

 private:
  std::unordered_set<std::string> names_;
};

enum class Match : std::uint8_t { kNone, kInside, kWhole };

/// Calls visit(module, match) for the modules that a config must tell apart.
template <typename Visit>
void for_each_module(const Checkpoint& checkpoint, const Visit& visit) {
  const Statement statement = statement_of(checkpoint);
  if (statement.object == nullptr) return;
  const ModuleList excluded = excluded_modules(statement);
  std::optional<ListedLayers> listed;
  const auto layers = statement.object->find("quantized_layers");
  if (algo_name(statement) == kMixed && layers != statement.object->end() && layers->is_object())
    listed.emplace(*layers);
  for (const LinearModule& module : linear_modules(checkpoint)) {
    if (!module.is_quantizable) continue;
    if (listed) {
      visit(module, listed->has(module.name) ? Match::kNone : Match::kWhole);
    } else {
      visit(module, excluded.covers_for_all(module.name)   ? Match::kWhole
                    : excluded.covers_for_any(module.name) ? Match::kInside
                                                           : Match::kNone);
    }
  }
}

void report_modules(const Checkpoint& checkpoint, bool is_quantized, Match match,
                    std::string_view message, const Report& report) {
  FindingsByKind found;
  for_each_module(checkpoint, [&](const LinearModule& module, Match is) {
    if (module.is_quantized != is_quantized || is != match) return;
    found.add(module.tensor->rule, at(checkpoint, codes_of(checkpoint, *module.tensor),
                                      ErrorCode::kMismatch, std::string(message)));
  });
  found.report(report);
}

}  // namespace

void modelopt_description_present(const Checkpoint& checkpoint, const RuleOptions&,
                                  const Report& report) {
  if (checkpoint.description().is_object()) return;
  report(violation(ErrorCode::kNotFound, kFile, "",
                   "is missing: config.json alone says how the weights are quantized"));
}

void modelopt_required_keys(const Checkpoint& checkpoint, const RuleOptions&,
                            const Report& report) {
  const Statement statement = statement_of(checkpoint);
  if (statement.object == nullptr) {
    if (!checkpoint.description().is_object()) return;
    report(in_statement(statement, ErrorCode::kNotFound, "has no section 'quantization'"));
    return;
  }
  const auto require = [&](const char* key) {
    if (statement.object->contains(key)) return;
    report(in_statement(statement, ErrorCode::kNotFound, fmt::format("has no '{}'", key)));
  };
  require("quant_algo");
  require(statement.list);
  const std::string algo = algo_name(statement);
  if (algo == kMixed) require("quantized_layers");
  if (std::string_view(statement.file) != kFile) return;  // the block has neither
  require("kv_cache_quant_algo");
  if (algo.find("NVFP4") != std::string::npos) require("group_size");
}

void modelopt_exclude_not_empty(const Checkpoint& checkpoint, const RuleOptions&,
                                const Report& report) {
  const Statement statement = statement_of(checkpoint);
  if (statement.object == nullptr) return;
  const auto list = statement.object->find(statement.list);
  if (list == statement.object->end() || (list->is_array() && !list->empty())) return;
  report(in_statement(statement, ErrorCode::kNotFound,
                      fmt::format("has an empty '{}' (name lm_head)", statement.list)));
}

void modelopt_quant_algo(const Checkpoint& checkpoint, const RuleOptions&, const Report& report) {
  const Statement statement = statement_of(checkpoint);
  if (statement.object == nullptr || !statement.object->contains("quant_algo")) return;
  const std::string name = algo_name(statement);
  if (!is_known_algo(name)) {
    report(in_statement(statement, ErrorCode::kUnsupported,
                        fmt::format("says quant_algo '{}', which no loader knows", name)));
    return;
  }
  const ModeloptAlgo* algo = find_modelopt_algo(name);
  if (name == kMixed) return;
  FindingsByKind found;
  for (const LogicalTensor& tensor : checkpoint.tensors()) {
    if (!is_quantized(tensor) || (algo != nullptr && tensor.encoding.scheme == algo->scheme))
      continue;
    // What no spelling holds has been said.
    if (find_spelling(checkpoint.dialect(), tensor.encoding.scheme) == nullptr) continue;
    found.add(tensor.rule,
              at(checkpoint, codes_of(checkpoint, tensor), ErrorCode::kMismatch,
                 fmt::format("is {}, but {} says quant_algo {}",
                             scheme_facts(tensor.encoding.scheme).name, statement.file, name)));
  }
  found.report(report);
}

void modelopt_algo_of_sglang(const Checkpoint& checkpoint, const RuleOptions&,
                             const Report& report) {
  const Statement statement = statement_of(checkpoint);
  const std::string name = algo_name(statement);
  const bool is_of_sglang =
      std::find(kAlgosOfSglang.begin(), kAlgosOfSglang.end(), name) != kAlgosOfSglang.end();
  if (!is_known_algo(name) || is_of_sglang) return;
  report(in_statement(statement, ErrorCode::kUnsupported,
                      fmt::format("says quant_algo {}, SGLang 0.5.23 knows {}", name,
                                  fmt::join(kAlgosOfSglang, ", "))));
}

void modelopt_exclude_quantized(const Checkpoint& checkpoint, const RuleOptions&,
                                const Report& report) {
  report_modules(checkpoint, true, Match::kWhole,
                 "is quantized, but the list of excluded modules takes it in", report);
}

void modelopt_exclude_inside(const Checkpoint& checkpoint, const RuleOptions&,
                             const Report& report) {
  report_modules(checkpoint, true, Match::kInside,
                 "is quantized, but an excluded module's name is part of its own", report);
}

void modelopt_exclude_plain(const Checkpoint& checkpoint, const RuleOptions&,
                            const Report& report) {
  report_modules(checkpoint, false, Match::kNone,
                 "is plain, but no excluded module matches it (list it)", report);
}

void modelopt_exclude_plain_whole(const Checkpoint& checkpoint, const RuleOptions&,
                                  const Report& report) {
  report_modules(checkpoint, false, Match::kInside,
                 "is plain, but no excluded module matches the whole of its name (add a '*')",
                 report);
}

void modelopt_mtp_head(const Checkpoint& checkpoint, const RuleOptions&, const Report& report) {
  const Statement statement = statement_of(checkpoint);
  if (statement.object == nullptr) return;
  const ModuleList excluded = excluded_modules(statement);
  FindingsByKind found;
  for (const LinearModule& module : linear_modules(checkpoint)) {
    const std::string alias = mtp_head_alias(module.name);
    if (alias.empty() || module.is_quantized || excluded.covers_for_any(alias)) continue;
    // What is wrong under the stored name has been said.
    if (!excluded.covers_for_any(module.name)) continue;
    found.add(module.tensor->rule,
              at(checkpoint, codes_of(checkpoint, *module.tensor), ErrorCode::kMismatch,
                 fmt::format("is plain, but not excluded as '{}' (exclude both names)", alias)));
  }
  found.report(report);
}

void modelopt_input_scale(const Checkpoint& checkpoint, const RuleOptions&, const Report& report) {
  const std::string name = algo_name(statement_of(checkpoint));
  const ModeloptAlgo* algo = find_modelopt_algo(name);
  if (algo == nullptr || algo->activations != Activations::kStatic) return;
  FindingsByKind found;
  for (const LogicalTensor& tensor : checkpoint.tensors()) {
    if (tensor.encoding.scheme != algo->scheme) continue;
    if (tensor.encoding.stored.has(Part::kInputScale)) continue;
    found.add(tensor.rule,
              at(checkpoint, codes_of(checkpoint, tensor), ErrorCode::kMissingTensor,
                 fmt::format("has no input_scale, which loaders of {} multiply by (supply "
                             "activation scales)",
                             name)));
  }
  found.report(report);
}

}  // namespace ingot::formats::rule_bodies
