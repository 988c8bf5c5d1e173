#include "engines/verdicts.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <unordered_map>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "engines/modules/modules.h"
#include "engines/readers/reader.h"
#include "engines/versions/cache_use.h"
#include "formats/base/error.h"
#include "formats/base/words.h"
#include "formats/config/nested_config.h"
#include "formats/dialect/dialect_words.h"
#include "formats/json/json.h"
#include "formats/storage/encoding.h"
#include "formats/storage/stack_form.h"
#include "formats/storage/unread_codes.h"
#include "formats/text/list_text.h"

namespace ingot::engines {

using formats::Checkpoint;
using formats::LogicalTensor;
using formats::SchemeId;

namespace {

EngineWeight weight_of(const Checkpoint& checkpoint, const EngineInput& input,
                       const LogicalTensor& tensor, Activations activations,
                       const Serving& serving) {
  const formats::StoredParts& stored = tensor.encoding.stored;
  const std::size_t n = tensor.shape.size();
  const std::uint32_t scale = stored[formats::Part::kScale];
  const bool has_scale = scale != formats::StoredParts::kAbsent;
  const std::size_t turned = tensor.stack == formats::StackOrder::kInputMajor ? 1 : 0;
  const SchemeId scheme = held_scheme(checkpoint, tensor);
  formats::InputMajorForm form{.bits = 0};
  if (input.packed && is_quantized(scheme)) {
    form = input.packed->form_of(formats::module_name(tensor.name));
    activations = Activations::kWeightOnly;
  }
  return {.name = tensor.name,
          .rule = tensor.rule,
          .scheme = scheme,
          .activations = activations,
          .has_group_order = stored.has(formats::Part::kGroupOrder),
          .has_zero_points = stored.has(formats::Part::kZeroPoint),
          .family = checkpoint.family().name,
          .is_stacked = tensor.stack != formats::StackOrder::kNone,
          .is_turned_stack = !is_quantized(tensor) && !formats::is_usual_stack(tensor),
          .alias = checkpoint.alias_of(checkpoint.stored()[stored.weight()].name),
          .has_identity_experts = checkpoint.has_identity_experts() && tensor.rule != nullptr &&
                                  is_routed_expert(tensor.rule->role),
          .rows = n < 2 ? 0 : tensor.shape[n - 2 + turned],
          .cols = n < 2 ? 0 : tensor.shape[n - 1 - turned],
          .block_rows = tensor.encoding.block_rows,
          .block_cols = tensor.encoding.block_cols,
          .has_inverse_name = has_scale && checkpoint.stored()[scale].name.ends_with("scale_inv"),
          .packed_bits = form.bits,
          .packed_group = form.group_size.value_or(tensor.encoding.block_cols),
          .is_auto_round = formats::is_auto_round(formats::method_of(checkpoint.config())),
          .says_no_zero_points = form.bits != 0 && input.says_no_zero_points,
          .is_in_half = checkpoint.config().dtype == "float16",
          .is_tied = checkpoint.config().tie_word_embeddings,
          .ranks = serving.tensor_parallel};
}

// True for plain weights that an engine may not read where it reads others.
bool is_special_as_plain(const Dialect& dialect, const EngineWeight& weight) {
  if (!weight.alias.empty() || weight.is_stacked) return true;
  if (weight.scheme == SchemeId::kRaw) return false;
  return std::ranges::any_of(limits_of_all(dialect, weight), [](const auto& of_engine) {
    const EngineLimit& limit = *of_engine.second;
    const bool is_of_plain = limit.effect == EngineEffect::kGarbage ||
                             limit.effect == EngineEffect::kGarbageWithout ||
                             is_of_files(limit.scope);
    return limit.scheme ? !is_quantized(*limit.scheme) : is_of_plain;
  });
}

bool says_powers_of_two(const Checkpoint& checkpoint, const LogicalTensor& tensor) {
  const auto& said = checkpoint.config().quantization;
  if (said && said->scale_fmt == "ue8m0") return true;
  const formats::StoredParts& parts = tensor.encoding.stored;
  return parts.has(formats::Part::kScale) &&
         checkpoint.stored()[parts[formats::Part::kScale]].dtype == formats::DType::kF8E8M0;
}

/// The shared experts that SGLang loads as routed ones.
class FusedShared {
 public:
  FusedShared(const Checkpoint& checkpoint, const EngineInput& input) : input_(input) {
    if (!input.activations) return;
    const FusedLayers fused = fused_layers(checkpoint, input);
    if (!fused.in_model && !fused.in_draft) return;
    n_layers_ = checkpoint.config().num_hidden_layers;
    for (const LogicalTensor& tensor : checkpoint.tensors()) {
      if (!tensor.layer || tensor.rule == nullptr || !is_routed_expert(tensor.rule->role)) continue;
      if (is_of_draft(*tensor.layer) ? fused.in_draft : fused.in_model)
        routed_.try_emplace(*tensor.layer, form_of(tensor));
    }
  }
  /// Tells if a tensor is a fused shared expert, stored in another form than its layer's routed
  /// ones.
  [[nodiscard]] FusedOtherwise find(const LogicalTensor& tensor) const {
    if (routed_.empty() || !tensor.layer || tensor.rule == nullptr ||
        !formats::kSharedExpertRoles.has(tensor.rule->role))
      return FusedOtherwise::kNo;
    const auto routed = routed_.find(*tensor.layer);
    if (routed == routed_.end() || routed->second == form_of(tensor)) return FusedOtherwise::kNo;
    return is_of_draft(*tensor.layer) ? FusedOtherwise::kInDraft : FusedOtherwise::kInModel;
  }

 private:
  /// Scheme (plain dtypes are one), activations, columns that share a scale, zero points.
  using Form = std::tuple<SchemeId, Activations, std::uint64_t, bool>;
  [[nodiscard]] Form form_of(const LogicalTensor& tensor) const {
    const formats::Encoding& encoding = tensor.encoding;
    if (!is_quantized(encoding.scheme)) return {SchemeId::kBf16, {}, 0, false};
    const bool has_groups = formats::scheme_facts(encoding.scheme).chooses_cols &&
                            !input_.activations->has_row_scales(tensor.name);
    return {encoding.scheme, input_.activations->of(tensor.name, encoding),
            has_groups ? encoding.block_cols : 0, encoding.stored.has(formats::Part::kZeroPoint)};
  }

  [[nodiscard]] bool is_of_draft(std::uint64_t layer) const {
    return n_layers_ != 0 && layer >= n_layers_;
  }

  const EngineInput& input_;
  std::uint64_t n_layers_ = 0;
  std::map<std::uint64_t, Form> routed_;  // forms by layer
};

/// The outputs of modules on a rank of tensor parallelism, of weights that are joined with others.
class ModuleRows {
 public:
  ModuleRows(const Checkpoint& checkpoint, std::uint64_t ranks)
      : key_heads_(checkpoint.config().num_key_value_heads), ranks_(ranks) {
    for (const LogicalTensor& tensor : checkpoint.tensors()) {
      if (const std::string module = module_of(tensor); !module.empty())
        rows_[module] += rows_on_rank(tensor);
    }
  }
  [[nodiscard]] std::uint64_t of(const LogicalTensor& tensor) const {
    if (tensor.rule == nullptr || tensor.shape.size() != 2) return 0;
    const auto joined = rows_.find(module_of(tensor));
    return joined == rows_.end() ? rows_on_rank(tensor) : joined->second;
  }

 private:
  /// Name of a module that is made of several weights, experts apart; empty for others.
  static std::string module_of(const LogicalTensor& tensor) {
    if (tensor.rule == nullptr || tensor.rule->fuse == formats::Fuse::kNone || tensor.expert ||
        tensor.shape.size() != 2)
      return {};
    const std::string_view leaf = joined_name(tensor, Engine::kSglang);
    if (leaf.empty()) return {};
    return std::string(parent_of(formats::module_name(tensor.name))).append(leaf);
  }
  [[nodiscard]] std::uint64_t rows_on_rank(const LogicalTensor& tensor) const {
    constexpr std::uint64_t kVocabularyRows = 64;  // multiples to which engines fill it up
    const std::uint64_t rows = tensor.shape.front();
    const Role role = tensor.rule->role;
    if (tensor.rule->cut == formats::Cut::kVocab)
      return (rows / ranks_ + kVocabularyRows - 1) / kVocabularyRows * kVocabularyRows;
    if (tensor.rule->cut != formats::Cut::kColumn) return rows;
    // Ranks have whole heads of keys and values, some of them the same ones.
    const bool is_of_keys = role == Role::kKProj || role == Role::kVProj;
    return rows / (is_of_keys && key_heads_ != 0 ? std::min(ranks_, key_heads_) : ranks_);
  }

  std::uint64_t key_heads_, ranks_;
  std::unordered_map<std::string, std::uint64_t> rows_;
};

// One weight of each kind that engines tell apart, in the order of the checkpoint: quantized ones,
// or matrices where nothing is quantized.
std::vector<EngineWeight> kinds_of(const Checkpoint& checkpoint, const EngineInput& input,
                                   const Serving& serving) {
  std::vector<EngineWeight> all = engine_weights(checkpoint, input, serving);
  if (std::ranges::none_of(all, [](const EngineWeight& w) { return is_quantized(w.scheme); })) {
    for (const LogicalTensor& tensor : checkpoint.tensors()) {
      if (tensor.shape.size() < 2 || is_quantized(tensor.encoding.scheme) ||
          tensor.encoding.scheme == SchemeId::kRaw)
        continue;
      all.push_back(weight_of(checkpoint, input, tensor, {}, serving));
    }
  }
  std::set<std::tuple<SchemeId, Activations, std::string_view, bool,
                      std::vector<std::pair<const EngineRow*, const EngineLimit*>>>>
      seen;
  std::erase_if(all, [&](const EngineWeight& weight) {
    return !seen.emplace(weight.scheme, weight.activations, weight.alias, weight.is_stacked,
                         limits_of_all(checkpoint.dialect(), weight))
                .second;
  });
  return all;
}

std::string what_is_not_read(const EngineWeight& weight, const Dialect& dialect) {
  const std::string_view scheme = formats::scheme_facts(weight.scheme).name;
  if (!is_quantized(weight.scheme)) return fmt::format("it is not known to read {}", scheme);
  return fmt::format("it is not known to read {} with {} activations in dialect {}", scheme,
                     activations_name(weight.activations), dialect.name);
}

/// The form of a weight of which it is not known that the engine reads it; empty: none. Limits are
/// known.
std::string unread_form(const EngineRow& engine, const EngineWeight& weight) {
  if (!engine.knows_name(weight))
    return fmt::format("names that begin with '{}' (ingot convert writes those of releases)",
                       weight.alias);
  const bool is_known_stack =
      !weight.is_stacked || !is_expert(weight) || takes_stacks(engine, weight.family);
  return is_known_stack ? std::string()
                        : fmt::format(
                              "stacks of experts of {} (ingot convert --experts separate "
                              "writes single ones)",
                              weight.family);
}

std::string_view name_of_option(std::string_view option) {
  return option.substr(0, option.find(' '));
}

EngineVerdict verdict_of(const EngineRow& engine, const Dialect& dialect, std::string_view family,
                         const std::vector<EngineWeight>& kinds) {
  EngineVerdict verdict{
      .engine = &engine, .loads = true, .options = {}, .tensor = {}, .reason = {}};
  const auto denied = [&](std::string_view tensor, std::string reason) {
    verdict.loads = false;
    verdict.tensor = tensor;
    verdict.reason = std::move(reason);
    return verdict;
  };
  if (!engine.is_written_for(family)) {
    return denied("", fmt::format("it is written for {}, and this is {}",
                                  fmt::join(engine.written_for, " and "), family));
  }
  const auto add_once = [](std::string_view text, std::vector<std::string>& texts) {
    if (!text.empty() && std::ranges::find(texts, text) == texts.end()) texts.emplace_back(text);
  };
  const bool has_quantized = std::ranges::any_of(
      kinds, [](const EngineWeight& weight) { return is_quantized(weight.scheme); });
  std::string unread;
  std::string_view first_unread;
  for (const EngineWeight& weight : kinds) {
    const EngineLimit* limit = limit_of(engine, dialect, weight);
    if (unread.empty() && (limit == nullptr || !limit->is_refusal())) {
      unread = unread_form(engine, weight);
      first_unread = weight.name;
    }
    // Another engine is why it is here.
    if (limit == nullptr && has_quantized && !is_quantized(weight.scheme)) continue;
    const EngineLoad* load = engine.find_load(dialect, weight.scheme, weight.activations);
    const bool is_refused = limit != nullptr && limit->is_refusal();
    if (is_refused || load == nullptr) {
      verdict.is_known = is_refused;
      verdict.is_silent = is_refused && limit->effect == EngineEffect::kGarbage;
      return denied(weight.name,
                    is_refused ? fmt::format("{} (it loads {})", limit->reason, limit->instead)
                               : what_is_not_read(weight, dialect));
    }
    const Evidence of_family = engine.family_evidence(weight.family, weight.scheme);
    verdict.evidence = std::max({verdict.evidence, engine.evidence_of(*load), of_family});
    add_once(load->option, verdict.options);
    for (const EngineLimit* met : limits_of(engine, dialect, weight)) {
      if (met->effect == EngineEffect::kCoarser || met->effect == EngineEffect::kRefusedOnCards)
        add_once(fmt::format("{} ({})", met->reason, met->instead), verdict.notes);
    }
    if (limit == nullptr || limit->needed_option().empty()) continue;
    // An option has one value for all weights.
    const std::string_view option = limit->needed_option();
    const auto other = std::ranges::find_if(verdict.options, [&](const std::string& known) {
      return known != option && name_of_option(known) == name_of_option(option);
    });
    if (other != verdict.options.end())
      return denied(weight.name, fmt::format("it needs {}, and other weights need {}: {}", option,
                                             *other, limit->reason));
    add_once(option, verdict.options);
  }
  if (!unread.empty()) {
    verdict.is_known = false;
    return denied(first_unread, "it is not known to read " + unread);
  }
  // An option that some weights need may be refused of others.
  for (const EngineWeight& weight : kinds) {
    for (const EngineLimit* limit : limits_of(engine, dialect, weight)) {
      if (limit->effect == EngineEffect::kRefusedOption &&
          std::ranges::find(verdict.options, limit->option) != verdict.options.end())
        return denied(weight.name, fmt::format("other weights need {}, with which {}",
                                               limit->option, limit->reason));
    }
  }
  // Some options name one way of quantization for the whole model.
  const auto of_all = std::ranges::find_if(verdict.options, [](const std::string& option) {
    return option.starts_with("--quantization ");
  });
  const auto first = std::ranges::find_if(
      kinds, [](const EngineWeight& weight) { return is_quantized(weight.scheme); });
  const auto other = std::ranges::find_if(kinds, [&](const EngineWeight& weight) {
    return is_quantized(weight.scheme) && weight.scheme != first->scheme;
  });
  if (of_all == verdict.options.end() || other == kinds.end()) return verdict;
  return denied(other->name,
                fmt::format("it needs {}, which is for all weights, and there are {} and {}",
                            *of_all, formats::scheme_facts(first->scheme).name,
                            formats::scheme_facts(other->scheme).name));
}

/// Judges the class of a model without a head of tokens.
void judge_pooling_class(const formats::ModelConfig& config, EngineVerdict& verdict) {
  const EngineRow& engine = *verdict.engine;
  const formats::ModelHead head = head_of(config);
  if (!verdict.loads || head == formats::ModelHead::kTokens) return;
  // Models that generate text were tried, and none of these.
  verdict.evidence = std::max(verdict.evidence, Evidence::kRead);
  if (engine.pooling_classes.empty() ||
      std::ranges::find(engine.pooling_classes, config.architecture) !=
          engine.pooling_classes.end())
    return;
  if (head == formats::ModelHead::kNone) {
    verdict.options.emplace_back(engine.pooling_option);
    verdict.evidence = Evidence::kNotTried;
    verdict.notes.push_back(fmt::format(
        "it has no class {}: it takes transformers' model, for embeddings", config.architecture));
    return;
  }
  // transformers has no class for rewards, so nothing is taken for it.
  verdict.is_silent = config.architecture.find("Reward") == std::string::npos;
  verdict.loads = false;
  verdict.reason = fmt::format(
      "it has no class {}, and transformers' model, which it takes for one that it lacks, has no "
      "head of classes",
      config.architecture);
}

}  // namespace

std::string_view failure_text(const EngineVerdict& verdict) {
  return verdict.is_silent ? "loads it without an error and computes garbage" : "does not load it";
}

std::vector<EngineWeight> engine_weights(const Checkpoint& checkpoint, const EngineInput& input,
                                         const Serving& serving) {
  std::vector<EngineWeight> weights;
  const auto& activations = input.activations;
  if (checkpoint.slicing() != nullptr || !activations) return weights;
  const FusedShared fused(checkpoint, input);
  const ModuleRows rows(checkpoint, serving.tensor_parallel);
  for (const LogicalTensor& tensor : checkpoint.tensors()) {
    if (!is_quantized(held_scheme(checkpoint, tensor))) {
      EngineWeight weight = weight_of(checkpoint, input, tensor, {}, serving);
      weight.fused_otherwise = fused.find(tensor);
      if (is_special_as_plain(checkpoint.dialect(), weight)) weights.push_back(weight);
      continue;
    }
    // No row is about that form of compressed-tensors.
    if (formats::is_packed_int8(tensor.encoding) && !input.packed) continue;
    EngineWeight& weight = weights.emplace_back(weight_of(
        checkpoint, input, tensor, activations->of(tensor.name, tensor.encoding), serving));
    weight.has_row_scales = activations->has_row_scales(tensor.name) ||
                            (weight.packed_bits != 0 && weight.packed_group == 0);
    weight.fused_otherwise = fused.find(tensor);
    weight.module_rows = rows.of(tensor);
    weight.has_power_of_two_scales =
        serving.has_power_of_two_scales || says_powers_of_two(checkpoint, tensor);
  }
  return weights;
}

EngineVerdict engine_verdict(const Checkpoint& checkpoint, const EngineInput& input,
                             const EngineRow& engine, const Serving& serving) {
  return engine_verdicts(checkpoint, input, std::array{&engine}, serving).front();
}

std::vector<EngineVerdict> engine_verdicts(const Checkpoint& checkpoint, const EngineInput& input,
                                           std::span<const EngineRow* const> engines,
                                           const Serving& serving) {
  std::vector<EngineVerdict> verdicts;
  const auto none_known = [&](const std::string& tensor, const std::string& reason) {
    for (const EngineRow* engine : engines) {
      verdicts.push_back(
          {.engine = engine, .is_known = false, .options = {}, .tensor = tensor, .reason = reason});
    }
    return verdicts;
  };
  if (const auto unread = formats::unread_codes(checkpoint))
    return none_known(unread->first->name, "it holds codes that this version cannot read");
  for (const LogicalTensor& tensor : checkpoint.tensors()) {
    if (input.packed) break;  // engines have rows for codes packed in words
    if (is_read_only(tensor.encoding.scheme))
      return none_known(tensor.name, "it was not tried with codes of this kind");
    if (formats::is_packed_int8(tensor.encoding))
      return none_known(tensor.name, "it was not tried with codes packed in 8 bits");
  }
  const std::vector<EngineWeight> kinds = kinds_of(checkpoint, input, serving);
  for (const EngineRow* engine : engines) {
    verdicts.push_back(verdict_of(*engine, checkpoint.dialect(), checkpoint.family().name, kinds));
    judge_pooling_class(checkpoint.config(), verdicts.back());
    if (auto note = cache_note(checkpoint, *engine))
      verdicts.back().notes.push_back(std::move(*note));
  }
  return verdicts;
}

namespace {

/// A name without its numbers, and the numbers.
struct NumberedName {
  std::vector<std::string> words;  // text before, between and behind the numbers
  std::vector<std::uint64_t> numbers;
};

NumberedName split_numbers(std::string_view name) {
  NumberedName split{.words = {""}, .numbers = {}};
  for (const std::string_view word : name_words(name)) {
    if (word.data() != name.data()) split.words.back() += '.';
    if (const auto number = number_from<std::uint64_t>(word)) {
      split.numbers.push_back(*number);
      split.words.emplace_back();
    } else {
      split.words.back() += word;
    }
  }
  return split;
}

using Numbers = std::vector<std::uint64_t>;
using Ranges = std::vector<std::set<std::uint64_t>>;  // numbers by place in the name

/// Modules that differ only by numbers.
struct Kind {
  BelievedModules row;
  std::vector<std::string> words;
  std::vector<Numbers> numbers;  // numbers of each
};

/// Ranges whose products are these numbers, each once: all layers with the same experts are one.
std::vector<Ranges> ranges_of(std::span<const Numbers> all) {
  Ranges whole(all.front().size());
  for (const Numbers& numbers : all)
    for (std::size_t i = 0; i < numbers.size(); ++i) whole[i].insert(numbers[i]);
  std::size_t n = 1;
  for (const std::set<std::uint64_t>& place : whole) n *= place.size();
  if (n == all.size() || whole.size() < 2) return {whole};
  std::map<std::uint64_t, std::vector<Numbers>> rests;
  for (const Numbers& numbers : all)
    rests[numbers.front()].emplace_back(numbers.begin() + 1, numbers.end());
  std::vector<Ranges> found;
  std::map<std::vector<Ranges>, std::size_t> known;  // the first of those with the same rests
  for (const auto& [first, rest] : rests) {
    const std::vector<Ranges> behind = ranges_of(rest);
    const auto [place, is_new] = known.try_emplace(behind, found.size());
    if (is_new) {
      for (const Ranges& ranges : behind) {
        found.push_back({{}});
        found.back().insert(found.back().end(), ranges.begin(), ranges.end());
      }
    }
    for (std::size_t i = 0; i < behind.size(); ++i) found[place->second + i].front().insert(first);
  }
  return found;
}

}  // namespace

EngineView engine_view(const Checkpoint& checkpoint, const EngineRow& engine,
                       const Serving& serving) {
  if (checkpoint.slicing() != nullptr) {
    throw Error(ErrorCode::kUnsupported,
                "slices of ranks are no checkpoint that engines load (ingot merge makes one)")
        .in_file(checkpoint.directory().string());
  }
  if (!reads_config(checkpoint.dialect(), engine.engine)) {
    throw Error(ErrorCode::kUnsupported,
                "how {} reads the config of dialect {} is not known here (ingot convert writes "
                "another dialect)",
                engine.name, checkpoint.dialect().name)
        .in_file("config.json");
  }
  const EngineInput facts(checkpoint);
  EngineView view{.verdict = engine_verdict(checkpoint, facts, engine, serving), .modules = {}};
  const Reader reader = reader_of(checkpoint, facts, engine);
  std::vector<Kind> kinds;
  std::map<std::tuple<std::vector<std::string>, std::string, std::string, std::string>, std::size_t>
      number_of;
  const std::uint64_t n_layers = checkpoint.config().num_hidden_layers;
  for (std::size_t i = 0; i < facts.modules.size(); ++i) {
    const LinearModule& module = facts.modules[i];
    const Reading reading = reader.of(i);
    const std::string stored = stored_scheme(module);
    NumberedName split = split_numbers(module.name);
    const auto& layer = module.tensor->layer;
    const bool is_of_draft = layer && n_layers != 0 && *layer >= n_layers;
    const auto [place, is_new] =
        number_of.try_emplace({split.words, stored, reading.scheme, reading.because}, kinds.size());
    if (is_new) {
      kinds.push_back({.row = {.stored = stored,
                               .believed = reading.scheme,
                               .because = reading.because,
                               .joined = std::string(joined_name(*module.tensor, engine.engine)),
                               .is_misread_draft = reading.scheme != stored},
                       .words = split.words});
    }
    kinds[place->second].row.is_misread_draft &= is_of_draft;
    kinds[place->second].numbers.push_back(std::move(split.numbers));
  }
  for (const Kind& kind : kinds) {
    for (const Ranges& ranges : ranges_of(kind.numbers)) {
      BelievedModules row = kind.row;
      row.count = 1;
      for (std::size_t i = 0; i < kind.words.size(); ++i) {
        row.name += kind.words[i];
        if (i == ranges.size()) continue;
        const std::string numbers = ranges_text(ranges[i], "-", ",");
        row.name += ranges[i].size() == 1 ? numbers : "{" + numbers + "}";
        row.count *= ranges[i].size();
      }
      view.modules.push_back(std::move(row));
    }
  }
  return view;
}

namespace {

void deny_by_belief(std::string tensor, const std::string& stored, const Reading& reading,
                    EngineVerdict& verdict) {
  verdict.loads = false;
  verdict.tensor = std::move(tensor);
  verdict.reason =
      reading.is_refused()
          ? fmt::format("it is {}, and its config is refused: {}", stored, reading.because)
          : fmt::format("it is {}, and read as {} by {}", stored, reading.scheme, reading.because);
}

}  // namespace

std::set<std::string, std::less<>> misread_weights(const Checkpoint& checkpoint,
                                                   const EngineRow& engine) {
  std::set<std::string, std::less<>> names;
  const EngineInput facts(checkpoint);
  const Reader reader = reader_of(checkpoint, facts, engine);
  for (std::size_t i = 0; i < facts.modules.size(); ++i) {
    const LinearModule& module = facts.modules[i];
    if (reader.of(i).scheme != stored_scheme(module)) names.insert(module.tensor->name);
  }
  return names;
}

void deny_by_beliefs(std::span<const BelievedModules> modules, EngineVerdict& verdict) {
  const BelievedModules* of_draft = nullptr;
  for (const BelievedModules& row : modules) {
    if (row.is_misread_draft && of_draft == nullptr) of_draft = &row;
    if (verdict.loads && !row.agrees() && !row.is_misread_draft)
      deny_by_belief(row.name, row.stored, {row.believed, row.because}, verdict);
  }
  if (verdict.loads && of_draft != nullptr)
    verdict.notes.push_back(
        fmt::format("no draft model for speculative decoding: '{}' is {}, and read as {} by {}",
                    of_draft->name, of_draft->stored, of_draft->believed, of_draft->because));
}

std::vector<EngineVerdict> believed_verdicts(const Checkpoint& checkpoint, const EngineInput& facts,
                                             const Serving& serving) {
  std::vector<EngineVerdict> verdicts = engine_verdicts(checkpoint, facts, engines(), serving);
  if (checkpoint.slicing() != nullptr) return verdicts;
  const std::uint64_t n_layers = checkpoint.config().num_hidden_layers;
  for (EngineVerdict& verdict : verdicts) {
    if (!verdict.loads || !reads_config(checkpoint.dialect(), verdict.engine->engine)) continue;
    const Reader reader = reader_of(checkpoint, facts, *verdict.engine);
    for (std::size_t i = 0; i < facts.modules.size() && verdict.loads; ++i) {
      // Draft models are the user's choice.
      const auto& layer = facts.modules[i].tensor->layer;
      if (layer && n_layers != 0 && *layer >= n_layers) continue;
      const Reading reading = reader.of(i);
      const std::string stored = stored_scheme(facts.modules[i]);
      if (reading.scheme == stored) continue;
      deny_by_belief(facts.modules[i].tensor->name, stored, reading, verdict);
    }
  }
  return verdicts;
}

}  // namespace ingot::engines
