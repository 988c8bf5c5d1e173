#include "convert/output/model_card.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "convert/output/version.h"
#include "convert/recipe/composition.h"
#include "engines/serving.h"
#include "formats/base/printable.h"
#include "formats/base/words.h"
#include "formats/config/model_config.h"
#include "formats/config/routing.h"
#include "formats/json/json.h"
#include "report/figures.h"

namespace ingot::convert {

using formats::Json;

namespace {

constexpr std::size_t kMaxCardRules = 20;

bool is_changed(const PlannedTensor& planned) {
  return planned.action != Action::kCopy && planned.action != Action::kDrop;
}

// Words that YAML does not read as texts.
constexpr std::array<std::string_view, 9> kNoTexts = {"true", "false", "yes", "no", "on",
                                                      "off",  "null",  "y",   "n"};

// A text as YAML reads it again: JSON's form is one of its own, but for characters that JSON leaves
// as they are and YAML refuses, or that turn the direction of the text.
std::string yaml_text(const std::string& text) {
  const auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
  const auto is_plain = [&](char c) {
    return is_letter(c) || (c >= '0' && c <= '9') ||
           std::string_view("._-/+").find(c) != std::string_view::npos;
  };
  if (is_letter(text.front()) && std::ranges::all_of(text, is_plain) &&
      std::ranges::find(kNoTexts, lower_case(text)) == kNoTexts.end())
    return text;
  return printable(Json(text).dump(-1, ' ', false, Json::error_handler_t::replace));
}

std::string yaml_lines(const CardEntry& entry) {
  if (!entry.is_list) return fmt::format("{}: {}\n", entry.key, yaml_text(entry.values.front()));
  std::string lines = entry.key + ":\n";
  for (const std::string& value : entry.values) lines += fmt::format("- {}\n", yaml_text(value));
  return lines;
}

// The words for the output's numbers by which people search: of quantized tensors, else of those
// that were cast.
std::vector<std::string> number_words(const Plan& plan) {
  std::set<std::string> quantized, plain;
  for (const PlannedTensor& planned : plan.tensors) {
    if (planned.action == Action::kDrop) continue;
    const std::string name(formats::scheme_name(planned.to));
    if (formats::is_quantized(planned.to)) {
      quantized.insert(name.substr(0, name.find('-')));
    } else if (is_changed(planned)) {
      plain.insert(name);
    }
  }
  const std::set<std::string>& words = quantized.empty() ? plain : quantized;
  return {words.begin(), words.end()};
}

// With the config's word for how they are written down.
std::vector<std::string> tags(const Plan& plan) {
  std::vector<std::string> words = number_words(plan);
  const std::string& method = plan.json.quant_method;
  if (!method.empty() && std::ranges::find(words, method) == words.end()) words.push_back(method);
  return words;
}

// Distinct texts, in the order in which they are first.
void add_new(const std::vector<std::string>& texts, std::vector<std::string>& all) {
  for (const std::string& text : texts)
    if (std::ranges::find(all, text) == all.end()) all.push_back(text);
}

// The models that it is made of: one, or those of all givers.
std::vector<std::string> base_models(const SourceFacts& facts) {
  std::vector<std::string> models = facts.card.base_models;
  for (const SourceCard& card : facts.giver_cards) add_new(card.base_models, models);
  return models;
}

// The licences of all givers, where they are not one.
void state_licences(const SourceFacts& facts, std::vector<CardEntry>& entries) {
  std::vector<std::string> licences;
  for (const SourceCard& card : facts.giver_cards) {
    const auto found = std::ranges::find(card.kept, "license", &CardEntry::key);
    if (found != card.kept.end()) add_new(found->values, licences);
  }
  if (licences.size() < 2) return;
  std::erase_if(entries, [](const CardEntry& entry) { return entry.key == "license"; });
  entries.push_back({.key = "license", .values = std::move(licences), .is_list = true});
}

std::string front_matter(const Plan& plan) {
  const SourceCard& source = plan.source_facts.card;
  std::vector<CardEntry> entries = source.kept;
  state_licences(plan.source_facts, entries);
  const auto add = [&](std::string key, std::vector<std::string> values, bool is_list) {
    if (!values.empty() && !values.front().empty())
      entries.push_back({.key = std::move(key), .values = std::move(values), .is_list = is_list});
  };
  const std::vector<std::string> models = base_models(plan.source_facts);
  add("base_model", models, models.size() > 1);
  // No relation of the hub means fewer experts.
  if (!plan.recipe.choices.prunes) add("base_model_relation", {source.relation}, false);
  if (std::ranges::find(entries, "library_name", &CardEntry::key) == entries.end() &&
      !plan.json.config.empty())
    add("library_name", {"transformers"}, false);
  add("tags", tags(plan), true);
  std::ranges::sort(entries, {}, &CardEntry::key);
  std::string text = "---\n";
  for (const CardEntry& entry : entries) text += yaml_lines(entry);
  return text + "---\n";
}

// ` with 12 of 16 experts`; empty for a model that has all.
std::string experts_text(const Plan& plan) {
  const std::vector<formats::KeptExperts>& lists = plan.recipe.choices.kept_experts;
  if (lists.empty()) return {};
  return fmt::format(" with {}{} of {} experts",
                     formats::has_uneven_experts(plan.source.config()) ? "at most " : "",
                     plan.source.config().n_routed_experts, lists.front().n_experts);
}

// A row for each pair of schemes: tensors, roles, bytes in the output.
std::string changes_table(const Plan& plan) {
  struct Row {
    std::uint64_t n_tensors = 0, n_bytes = 0;
    std::set<std::string_view> roles;
  };
  std::map<std::pair<formats::SchemeId, formats::SchemeId>, Row> rows;
  std::uint64_t n_dropped = 0;
  for (const PlannedTensor& planned : plan.tensors) {
    if (planned.action == Action::kDrop) {
      ++n_dropped;
      continue;
    }
    const formats::LogicalTensor& tensor = plan.tensor_of(planned);
    Row& row = rows[{tensor.encoding.scheme, planned.to}];
    ++row.n_tensors;
    for (std::size_t p = 0; p < planned.n_parts; ++p) row.n_bytes += planned.parts[p].n_bytes;
    row.roles.insert(formats::role_name(role_of(tensor)));
  }
  std::string text = "| from | to | tensors | bytes | roles |\n|---|---|---|---|---|\n";
  for (const auto& [schemes, row] : rows) {
    text += fmt::format("| {} | {} | {} | {} | {} |\n", formats::scheme_name(schemes.first),
                        formats::scheme_name(schemes.second), count_text(row.n_tensors),
                        bytes_text(row.n_bytes), fmt::join(row.roles, ", "));
  }
  if (n_dropped > 0) text += fmt::format("\n{} tensors are left out.\n", count_text(n_dropped));
  return text;
}

// A row for each checkpoint that gave tensors; empty where there is one.
std::string givers_table(const Plan& plan) {
  const auto givers = plan.source.givers();
  if (givers.empty()) return {};
  std::vector<std::uint64_t> counts(givers.size());
  for (const PlannedTensor& planned : plan.tensors)
    if (planned.action != Action::kDrop) ++counts[plan.tensor_of(planned).giver];
  std::string text = "\n| source | model | licence | tensors |\n|---|---|---|---|\n";
  for (std::size_t i = 0; i < givers.size(); ++i) {
    const SourceCard& card = plan.source_facts.giver_cards.at(i);
    const std::string models = printable(fmt::format("{}", fmt::join(card.base_models, ", ")));
    text += fmt::format(
        "| {} | {}{} | {} | {} |\n", givers[i].name, models.empty() ? "not told" : models,
        card.commit.empty() ? "" : " at " + card.commit,
        licence_of(card).empty() ? "not told" : printable(licence_of(card)), count_text(counts[i]));
  }
  for (const OverlayFacts& overlay : plan.recipe.choices.composed->overlays) {
    const bool is_edits = overlay.kind == GiverKind::kEdits;
    text += fmt::format("| {} | {} | {} | |\n", overlay.name,
                        is_edits ? "values of some tensors" : "laid over the base",
                        overlay.licence.empty() ? "not told" : printable(overlay.licence));
  }
  return text;
}

// The recipe of a composed output, without its paths.
std::string composition_text(const Plan& plan) {
  std::string text = "base: BASE\n", sources;
  for (const formats::Giver& giver : plan.source.givers().subspan(1))
    sources += fmt::format("{}{}: DIR", sources.empty() ? "" : ", ", giver.name);
  if (!sources.empty()) text += fmt::format("sources: {{{}}}\n", sources);
  std::string overlays, edits;
  for (const OverlayFacts& overlay : plan.recipe.choices.composed->overlays) {
    if (overlay.kind == GiverKind::kEdits) {
      edits = "edits: DIR\n";
    } else {
      overlays += fmt::format("{}{}: DIR", overlays.empty() ? "" : ", ", overlay.name);
    }
  }
  if (!overlays.empty()) text += fmt::format("overlays: {{{}}}\n", overlays);
  text += edits;
  text += fmt::format("dialect: {}\n", plan.target.dialect->name);
  std::size_t n_rules = 0;
  for (const Rule& rule : plan.recipe.rules) {
    if (rule.origin == RuleOrigin::kDefault) continue;
    if (n_rules++ == 0) text += "rules:\n";
    if (n_rules > kMaxCardRules) break;
    text += fmt::format("- {{match: {}", yaml_text(rule.selector.text()));
    if (!rule.from.empty()) text += fmt::format(", from: {}", rule.from);
    if (rule.scheme || rule.from.empty())
      text +=
          fmt::format(", scheme: {}", rule.scheme ? formats::scheme_name(*rule.scheme) : "keep");
    text += "}\n";
  }
  if (n_rules > kMaxCardRules) text += "# and more rules\n";
  return text;
}

// The engines that are known to load the whole, or the one that it was made for.
std::string serving_text(const Plan& plan, std::span<const engines::EngineVerdict> engines) {
  engines::Served served = {.directory = "DIR",
                            .brings_code = !engines::own_classes(plan.source).empty()};
  for (const PlannedTensor& planned : plan.tensors) {
    for (std::size_t p = 0; p < planned.n_parts; ++p) served.n_bytes += planned.parts[p].n_bytes;
  }
  std::string commands;
  const engines::EngineRow* wanted = plan.recipe.choices.engine;
  for (const engines::EngineVerdict& verdict : engines) {
    const bool is_known = engines::is_known(verdict.evidence);
    if (!verdict.loads || (wanted != nullptr ? verdict.engine != wanted : !is_known)) continue;
    const std::string command = engines::serve_command(verdict, served);
    if (command.empty()) continue;
    commands +=
        fmt::format("# {}{}\n{}\n", verdict.engine->name,
                    is_known ? "" : fmt::format(" ({})", evidence_text(verdict.evidence)), command);
  }
  if (commands.empty()) return {};
  return fmt::format(
      "\nServe it with (DIR is this directory; slices of ranks are put together before, by `ingot "
      "merge`):\n\n```sh\n{}```\n",
      commands);
}

// The options of a verification. The path of a file means nothing to a reader.
std::string gate_text(const formats::JsonValue& gate) {
  if (gate.is_null()) return {};
  Json shown = *gate;
  if (shown.contains("thresholds")) shown["thresholds"] = "FILE";
  return fmt::format(
      "\nIt was published after these gates had passed (`ingot.verify.json` has the "
      "figures):\n\n```\n{}\n```\n",
      printable(typed(shown)));
}

}  // namespace

std::string typed(const formats::JsonValue& settings) {
  std::vector<std::string> words;
  for (const auto& [key, value] : settings->items()) {
    for (const Json& one : value.is_array() ? value : Json::array({value})) {
      if (key != "input" && key != "output") words.push_back((one == false ? "--no-" : "--") + key);
      if (one.is_boolean()) continue;
      words.push_back(engines::shell_word(one.is_string() ? one.get<std::string>() : one.dump()));
    }
  }
  return fmt::format("{}", fmt::join(words, " "));
}

bool has_model_card(const Plan& plan) {
  return plan.recipe.choices.repair == nullptr && !plan.source_facts.card.is_too_long &&
         (!plan.source.givers().empty() || plan.recipe.choices.prunes ||
          std::ranges::any_of(plan.tensors, is_changed));
}

namespace {

// The options of an adapter, whose record has no path.
void show_adapter(const Json& record, Json& shown) {
  shown["lora"] = "DIR";
  if (record.at("scale") != 1.0) shown["lora-scale"] = record.at("scale");
  if (record.contains("expert_b_order")) shown["expert-b-order"] = record.at("expert_b_order");
}

// The adapters that were folded in, by hash and the base that they name.
std::string adapter_text(const Plan& plan) {
  std::string text;
  for (const auto& editor : plan.recipe.choices.editors) {
    if (editor->kind() != "lora") continue;
    const Json record = editor->record();
    const std::string base = formats::text_at(record, "base_model");
    text += fmt::format(
        "\nA LoRA adapter is folded into {} of its tensors (`--lora`, hash {}{}); "
        "`ingot.tensors.jsonl.zst` has the share of the change that is left in each.\n",
        count_text(plan.counts.changed), record.at("hash").get<std::string>(),
        base.empty() ? "" : fmt::format(", made for {}", printable(base)));
  }
  return text;
}

}  // namespace

std::string recipe_command(const Recipe& recipe, std::string_view source) {
  const Json none = settings_of(Recipe().to_json());
  Json settings = settings_of(recipe.to_json()), shown = Json::object();
  Json& rules = settings["rule"];
  for (const Json& rule : settings["recipe"]) rules.push_back(rule);
  const std::size_t n_rules = rules.size();
  if (n_rules > kMaxCardRules) rules.erase(rules.begin() + kMaxCardRules, rules.end());
  // Hashes of files mean nothing to a reader, and defaults change nothing.
  for (const auto& [name, value] : settings.items()) {
    const bool is_folder = name == "scales-from" || name == "kv-scales";
    const bool is_file = name == "activation-scales" || name == "importance";
    const bool is_list = name == "kept-experts";
    if (is_list && !recipe.choices.prunes) continue;
    if (name == "lora") {
      show_adapter(value.front(), shown);
    } else if (name != "recipe" && value != formats::json_member(none, name)) {
      shown[is_list ? "keep-map" : name] = is_folder            ? Json("DIR")
                                           : is_file || is_list ? Json("FILE")
                                                                : value;
    }
  }
  std::string text =
      fmt::format("ingot {} {} OUT{}{}", shown.contains("keep-map") ? "prune" : "convert", source,
                  shown.empty() ? "" : " ", printable(typed(shown)));
  if (n_rules > kMaxCardRules)
    text += fmt::format("  # and {} more rules", n_rules - kMaxCardRules);
  return text;
}

std::string model_card_text(const Plan& plan, std::span<const engines::EngineVerdict> engines,
                            const formats::JsonValue& gate) {
  const SourceCard& source = plan.source_facts.card;
  const std::string base = source.is_named ? source.base_models.front() : "";
  std::string text = front_matter(plan);
  const std::vector<std::string> numbers = number_words(plan);
  text += fmt::format("\n# {}{}{}{}\n\n",
                      base.empty() ? "A model" : base.substr(base.find('/') + 1),
                      numbers.empty() ? "" : " in ", fmt::join(numbers, ", "), experts_text(plan));
  const bool is_composed = !plan.source.givers().empty();
  text += is_composed    ? "Made of several checkpoints"
          : base.empty() ? "Made"
                         : fmt::format("Made from [{0}](https://huggingface.co/{0})", base);
  if (!source.commit.empty() && !is_composed) text += " at " + source.commit;
  text += is_composed ? fmt::format(
                            " by ingot {}, with `ingot compose RECIPE OUT`:\n\n"
                            "```yaml\n{}```\n\n",
                            kVersion, composition_text(plan))
                      : fmt::format(" by ingot {}:\n\n```sh\n{}\n```\n\n", kVersion,
                                    recipe_command(plan.recipe, base.empty() ? "IN" : base));
  text += changes_table(plan);
  text += givers_table(plan);
  text +=
      "\n`ingot.json` has the recipe, and with `ingot.tensors.jsonl.zst` a hash of each tensor "
      "before and after; `ingot check` compares them with the files.\n";
  text += adapter_text(plan);
  text += gate_text(gate);
  text += serving_text(plan, engines);
  if (!source.text.empty()) text += "\n---\n\n" + source.text;
  return text;
}

}  // namespace ingot::convert
