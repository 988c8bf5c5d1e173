#include "formats/adapters/adapter_config.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "formats/json/json.h"
#include "formats/json/json_fields.h"

// Source: PEFT 0.21, LoraConfig and its pattern keys; docs/lora.md has the keys.

namespace ingot::formats {
namespace {

constexpr std::size_t kMaxExpressions = 10'000;

// Keys that change nothing in the sum: they chose where an adapter was made, how it was trained, or
// tell where it comes from.
constexpr std::array<std::string_view, 23> kIdleKeys = {"auto_mapping",
                                                        "base_model_name_or_path",
                                                        "bias",
                                                        "corda_config",
                                                        "ensure_weight_tying",
                                                        "eva_config",
                                                        "exclude_modules",
                                                        "inference_mode",
                                                        "layers_pattern",
                                                        "layers_to_transform",
                                                        "loftq_config",
                                                        "lora_dropout",
                                                        "lora_ga_config",
                                                        "megatron_config",
                                                        "megatron_core",
                                                        "modules_to_save",
                                                        "peft_version",
                                                        "qalora_group_size",
                                                        "revision",
                                                        "runtime_config",
                                                        "target_modules",
                                                        "target_parameters",
                                                        "task_type"};
constexpr std::array<std::string_view, 11> kReadKeys = {"alpha_pattern",
                                                        "fan_in_fan_out",
                                                        "init_lora_weights",
                                                        "lora_alpha",
                                                        "lora_bias",
                                                        "peft_type",
                                                        "r",
                                                        "trainable_token_indices",
                                                        "use_dora",
                                                        "use_rslora",
                                                        "rank_pattern"};

// Initializations that take their part out of the base weights, and those that do not.
constexpr std::array<std::string_view, 5> kResidual = {"pissa", "olora", "corda", "lora_ga",
                                                       "loftq"};
constexpr std::array<std::string_view, 3> kHarmless = {"gaussian", "eva", "orthogonal"};

bool has_entry(const auto& list, std::string_view word) {
  return std::ranges::find(list, word) != list.end();
}

bool is_unset(const Json& value) {
  return value.is_null() || value == false || value == "" ||
         ((value.is_array() || value.is_object()) && value.empty());
}

[[noreturn]] void refuse_option(std::string_view where, std::string_view key, const Json& value) {
  throw Error(ErrorCode::kUnsupported,
              "says {} {}, which changes what the adapter adds in a way that is not known here "
              "(merge it with PEFT, and convert the result)",
              key, value.dump(-1, ' ', true, Json::error_handler_t::replace).substr(0, 80))
      .in_file(where);
}

std::string read_residual(const JsonFields& fields, std::string_view where) {
  const Json* init = fields.find("init_lora_weights");
  if (init == nullptr || init->is_null() || init->is_boolean()) return {};
  const std::string word = init->is_string() ? init->get<std::string>() : "";
  if (std::ranges::any_of(kResidual, [&](auto name) { return word.starts_with(name); }))
    return word;
  if (!has_entry(kHarmless, word)) refuse_option(where, "init_lora_weights", *init);
  return {};
}

std::map<std::string, std::vector<std::uint64_t>> read_token_rows(const Json& value,
                                                                  std::string_view where) {
  std::map<std::string, std::vector<std::uint64_t>> rows;
  const auto read = [&](const std::string& module, const Json& ids) {
    if (!ids.is_array()) fail_json(where, "'trainable_token_indices' is no list of ids");
    for (const Json& id : ids) {
      const auto number = whole_number(id, std::uint64_t{1} << 40);
      if (!number) fail_json(where, "'trainable_token_indices' has an id that is no number");
      rows[module].push_back(*number);
    }
  };
  if (value.is_array()) {
    read("embed_tokens", value);
  } else if (value.is_object()) {
    for (const auto& [module, ids] : value.items()) read(module, ids);
  } else {
    fail_json(where, "'trainable_token_indices' is no list and no object");
  }
  return rows;
}

// Most keys are names, or ends of them. A dot matches any character, but between two words names
// have no other.
bool is_plain_end(std::string_view expression) {
  return expression.find_first_of("\\^$*+?()[]{}|") == std::string_view::npos &&
         !expression.starts_with('.') && !expression.ends_with('.') &&
         expression.find("..") == std::string_view::npos;
}

Json value_at(const JsonFields& fields, const char* key) {
  const Json* value = fields.find(key);
  return value == nullptr ? Json() : *value;
}

}  // namespace

AdapterValues::AdapterValues(double all, const Json& patterns, std::string_view key) : all_(all) {
  if (patterns.is_null()) return;
  if (!patterns.is_object()) fail_json("", fmt::format("'{}' is no object", key));
  std::size_t n_expressions = 0;
  for (const auto& [words, value] : patterns.items()) {
    if (!value.is_number() || !std::isfinite(value.get<double>()))
      fail_json("", fmt::format("'{}' has a value for '{}' that is no number", key, words));
    Entry entry{.expression = {}, .value = value.get<double>()};
    if (is_plain_end(words)) {
      by_end_.try_emplace(words, entries_.size());
    } else {
      if (++n_expressions > kMaxExpressions) {
        throw Error(ErrorCode::kLimit, "'{}' has more than {} expressions", key, kMaxExpressions);
      }
      entry.expression.emplace_back(fmt::format("re:(.*\\.)?({})$", words));
    }
    entries_.push_back(std::move(entry));
  }
}

double AdapterValues::of(std::string_view module) const {
  std::size_t first = entries_.size();
  // The name and each end of it that begins behind a dot.
  for (std::string_view end = module;;) {
    if (const auto found = by_end_.find(end); found != by_end_.end())
      first = std::min(first, found->second);
    const std::size_t dot = end.find('.');
    if (dot == std::string_view::npos) break;
    end.remove_prefix(dot + 1);
  }
  for (std::size_t i = 0; i < first; ++i) {
    if (!entries_[i].expression.empty() && entries_[i].expression.front().matches(module))
      return entries_[i].value;
  }
  return first < entries_.size() ? entries_[first].value : all_;
}

double AdapterConfig::scale_of(std::string_view module, std::uint64_t rank_of_it) const {
  const auto of = static_cast<double>(rank_of_it);
  return alpha.of(module) / (is_rank_stabilized ? std::sqrt(of) : of);
}

AdapterConfig parse_adapter_config(std::string_view text, std::string_view where) {
  const Json json = parse_config(text, where);
  if (!json.is_object()) fail_json(where, "is no object");
  const JsonFields fields(json, where);
  const std::string type = fields.text("peft_type", "LORA");
  if (type != "LORA") {
    throw Error(ErrorCode::kUnsupported,
                "says peft_type {}, and only LORA is folded into weights here (merge it with PEFT, "
                "and convert the result)",
                type)
        .in_file(where);
  }
  for (const auto& [key, value] : json.items()) {
    if (!has_entry(kIdleKeys, key) && !has_entry(kReadKeys, key) && !is_unset(value))
      refuse_option(where, key, value);
  }
  AdapterConfig config;
  try {
    const std::uint64_t rank = fields.optional_number("r", std::uint64_t{1} << 32).value_or(8);
    if (rank == 0) fail_json(where, "says rank 0 ('r')");
    config.rank =
        AdapterValues(static_cast<double>(rank), value_at(fields, "rank_pattern"), "rank_pattern");
    const double alpha = fields.optional_real("lora_alpha", -1e30, 1e30).value_or(8);
    config.alpha = AdapterValues(alpha, value_at(fields, "alpha_pattern"), "alpha_pattern");
  } catch (Error& error) {
    error.in_file(where);
    throw;
  }
  config.is_rank_stabilized = fields.boolean("use_rslora", false);
  config.has_lengths = fields.boolean("use_dora", false);
  config.is_input_major = fields.boolean("fan_in_fan_out", false);
  config.target_parameters = strings_at(json, "target_parameters");
  if (const Json tokens = value_at(fields, "trainable_token_indices"); !is_unset(tokens))
    config.token_rows = read_token_rows(tokens, where);
  config.base_model = text_at(json, "base_model_name_or_path");
  config.residual_of = read_residual(fields, where);
  config.peft_version = text_at(json, "peft_version");
  return config;
}

}  // namespace ingot::formats
