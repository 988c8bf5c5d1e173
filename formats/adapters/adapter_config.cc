#include "formats/adapters/adapter_config.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "formats/base/stop_scope.h"
#include "formats/json/json.h"
#include "formats/json/json_fields.h"

// Source: PEFT 0.21, LoraConfig and its pattern keys; docs/lora.md has the keys.

namespace ingot::formats {
namespace {

constexpr std::size_t kMaxExpressions = 10'000;

// Keys that are read below, and those that change nothing in the sum: they chose where an adapter
// was made, how it was trained, or tell where it comes from.
constexpr std::array<std::string_view, 34> kKnownKeys = {"alpha_pattern",
                                                         "auto_mapping",
                                                         "base_model_name_or_path",
                                                         "bias",
                                                         "corda_config",
                                                         "ensure_weight_tying",
                                                         "eva_config",
                                                         "exclude_modules",
                                                         "fan_in_fan_out",
                                                         "inference_mode",
                                                         "init_lora_weights",
                                                         "layers_pattern",
                                                         "layers_to_transform",
                                                         "loftq_config",
                                                         "lora_alpha",
                                                         "lora_bias",
                                                         "lora_dropout",
                                                         "lora_ga_config",
                                                         "megatron_config",
                                                         "megatron_core",
                                                         "modules_to_save",
                                                         "peft_type",
                                                         "peft_version",
                                                         "qalora_group_size",
                                                         "r",
                                                         "rank_pattern",
                                                         "revision",
                                                         "runtime_config",
                                                         "target_modules",
                                                         "target_parameters",
                                                         "task_type",
                                                         "trainable_token_indices",
                                                         "use_dora",
                                                         "use_rslora"};

// Initializations that take their part out of the base weights, and whether the rest and the first
// adapter add up to these; and initializations that leave them as they are.
struct Residual {
  std::string_view name;
  bool adds_up;
};
constexpr std::array<Residual, 5> kResidual = {
    {{"pissa", true}, {"olora", true}, {"corda", true}, {"lora_ga", true}, {"loftq", false}}};
constexpr std::array<std::string_view, 4> kHarmless = {"gaussian", "eva", "mica", "orthogonal"};

bool has_entry(const auto& list, std::string_view word) {
  return std::ranges::find(list, word) != list.end();
}

bool is_unset(const Json& value) {
  return value.is_null() || value == false || value == "" ||
         ((value.is_array() || value.is_object()) && value.empty());
}

[[noreturn]] void refuse_option(std::string_view key, const Json& value) {
  throw Error(ErrorCode::kUnsupported,
              "says {} {}, which changes what the adapter adds in a way that is not known here "
              "(merge it with PEFT, and convert the result)",
              key, value.dump(-1, ' ', true, Json::error_handler_t::replace).substr(0, 80));
}

void read_residual(const JsonFields& fields, AdapterConfig& config) {
  const Json* init = fields.find("init_lora_weights");
  if (init == nullptr || init->is_null() || init->is_boolean()) return;
  const std::string word = init->is_string() ? init->get<std::string>() : "";
  for (const Residual& row : kResidual) {
    if (!word.starts_with(row.name)) continue;
    config.residual_of = word;
    config.residual_adds_up = row.adds_up;
    return;
  }
  if (!has_entry(kHarmless, word)) refuse_option("init_lora_weights", *init);
}

std::map<std::string, std::vector<std::uint64_t>> read_token_rows(const Json& value) {
  std::map<std::string, std::vector<std::uint64_t>> rows;
  const auto read = [&](const std::string& module, const Json& ids) {
    if (!ids.is_array()) fail_json("", "'trainable_token_indices' is no list of ids");
    for (const Json& id : ids) {
      const auto number = whole_number(id, std::uint64_t{1} << 40);
      if (!number) fail_json("", "'trainable_token_indices' has an id that is no number");
      rows[module].push_back(*number);
    }
  };
  if (value.is_array()) {
    read("", value);
  } else if (value.is_object()) {
    for (const auto& [module, ids] : value.items()) read(module, ids);
  } else {
    fail_json("", "'trainable_token_indices' is no list and no object");
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

std::string whole_expression(std::string_view words) {
  return fmt::format("re:(.*\\.)?({})$", words);
}

Json value_at(const JsonFields& fields, const char* key) {
  const Json* value = fields.find(key);
  return value == nullptr ? Json() : *value;
}

}  // namespace

Error ConfigText::placed(std::string_view key, const Error& error) const {
  const std::string quoted =
      Json(std::string(key)).dump(-1, ' ', false, Json::error_handler_t::replace);
  for (std::size_t at = text_.find(quoted); at != std::string::npos;
       at = text_.find(quoted, at + 1)) {
    const std::size_t next = text_.find_first_not_of(" \t\r\n", at + quoted.size());
    if (next == std::string::npos || text_[next] != ':') continue;
    const auto line = 1 + std::count(text_.begin(), text_.begin() + static_cast<long>(at), '\n');
    return Error(error.code(), "line {}: {}", line, error.message()).in_file(where_);
  }
  return Error(error.code(), std::string(error.message())).in_file(where_);
}

AdapterValues::AdapterValues(double all, const Json& patterns, std::string_view key,
                             std::shared_ptr<const ConfigText> text)
    : all_(all), text_(std::move(text)) {
  if (patterns.is_null()) return;
  if (!patterns.is_object()) fail_json("", fmt::format("'{}' is no object", key));
  std::size_t n_expressions = 0;
  for (const auto& [words, value] : patterns.items()) {
    if (!value.is_number() || !std::isfinite(value.get<double>()))
      fail_json("", fmt::format("'{}' has a value for '{}' that is no number", key, words));
    Entry entry{.expression = {}, .value = value.get<double>(), .words = words};
    if (is_plain_end(words)) {
      by_end_.try_emplace(words, entries_.size());
    } else {
      if (++n_expressions > kMaxExpressions) {
        throw Error(ErrorCode::kLimit, "'{}' has more than {} expressions", key, kMaxExpressions);
      }
      text_->at(words, [&] { entry.expression.emplace_back(whole_expression(words)); });
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
    const Entry& entry = entries_[i];
    if (entry.expression.empty()) continue;
    StopScope::check();
    if (text_->at(entry.words, [&] { return entry.expression.front().matches(module); }))
      return entry.value;
  }
  return first < entries_.size() ? entries_[first].value : all_;
}

double AdapterConfig::scale_of(std::string_view module, std::uint64_t rank_of_it) const {
  const auto of = static_cast<double>(rank_of_it);
  return alpha.of(module) / (is_rank_stabilized ? std::sqrt(of) : of);
}

const std::vector<std::uint64_t>* AdapterConfig::ids_of(std::string_view module) const {
  for (const auto& [words, ids] : token_rows) {
    if (words.empty() || module == words || module.ends_with("." + words)) return &ids;
  }
  return nullptr;
}

AdapterConfig parse_adapter_config(std::string_view text, std::string_view where) {
  const Json json = parse_config(text, where);
  if (!json.is_object()) fail_json(where, "is no object");
  const JsonFields fields(json, "");
  const auto lines = std::make_shared<const ConfigText>(text, where);
  lines->at("peft_type", [&] {
    const std::string type = fields.text("peft_type", "LORA");
    if (type == "LORA") return;
    throw Error(ErrorCode::kUnsupported,
                "says peft_type {}, and only LORA is folded into weights here (merge it with PEFT, "
                "and convert the result)",
                type);
  });
  for (const auto& [key, value] : json.items()) {
    if (!has_entry(kKnownKeys, key) && !is_unset(value))
      lines->at(key, [&, &key = key, &value = value] { refuse_option(key, value); });
  }
  AdapterConfig config;
  const auto patterns = [&](double all, const char* key) {
    return lines->at(key, [&] { return AdapterValues(all, value_at(fields, key), key, lines); });
  };
  const std::uint64_t rank = lines->at("r", [&] {
    const auto said = fields.optional_number("r", std::uint64_t{1} << 32);
    if (said == 0) fail_json("", "says rank 0 ('r')");
    return said.value_or(8);
  });
  config.rank = patterns(static_cast<double>(rank), "rank_pattern");
  config.alpha = patterns(
      lines->at("lora_alpha",
                [&] { return fields.optional_real("lora_alpha", -1e30, 1e30).value_or(8); }),
      "alpha_pattern");
  const auto flag = [&](const char* key) {
    return lines->at(key, [&] { return fields.boolean(key, false); });
  };
  config.is_rank_stabilized = flag("use_rslora");
  config.has_lengths = flag("use_dora");
  config.is_input_major = flag("fan_in_fan_out");
  config.target_parameters = strings_at(json, "target_parameters");
  lines->at("trainable_token_indices", [&] {
    const Json tokens = value_at(fields, "trainable_token_indices");
    if (!is_unset(tokens)) config.token_rows = read_token_rows(tokens);
  });
  config.base_model = text_at(json, "base_model_name_or_path");
  lines->at("init_lora_weights", [&] { read_residual(fields, config); });
  config.peft_version = text_at(json, "peft_version");
  return config;
}

}  // namespace ingot::formats
