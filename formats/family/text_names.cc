#include "formats/family/text_names.h"

#include <algorithm>
#include <array>
#include <compare>
#include <set>

#include "formats/base/words.h"
#include "formats/config/nested_config.h"
#include "formats/family/cache_scales.h"
#include "formats/family/family.h"
#include "formats/family/family_check.h"
#include "formats/family/rule_scope.h"
#include "formats/json/json.h"
#include "formats/text/spelling.h"

namespace ingot::formats {
namespace {

constexpr std::string_view kModelPrefix = "model.";

// The first of these with which names begin is the prefix. Only the first is always in place of
// `model.`.
constexpr std::array<std::string_view, 3> kPrefixes = {"model.language_model.", "language_model.",
                                                       "thinker."};

// Modules for images and sound, at the top of a model or right below it.
constexpr std::array<std::string_view, 33> kTowers = {"vision_tower",
                                                      "vision_model",
                                                      "vision_encoder",
                                                      "visual",
                                                      "vision",
                                                      "vision_language_adapter",
                                                      "mm_projector",
                                                      "multi_modal_projector",
                                                      "patch_merger",
                                                      "pre_mm_projector_norm",
                                                      "patch_merge_mlp",
                                                      "vit_large_projector",
                                                      "vision_embedder",
                                                      "embed_vision",
                                                      "audio_tower",
                                                      "audio_model",
                                                      "audio_encoder",
                                                      "audio",
                                                      "audio_projector",
                                                      "embed_audio",
                                                      "aligner",
                                                      "sam_model",
                                                      "qwen2_model",
                                                      "projector",
                                                      "view_seperator",
                                                      "image_newline",
                                                      "talker",
                                                      "code2wav",
                                                      "mlp1",
                                                      "vit",
                                                      "vision_adapter",
                                                      "vision_projection",
                                                      "linear_proj"};

constexpr std::size_t kTowerDepth = 2;

// Embeddings of n-grams, outside of the model or inside of a layer.
constexpr std::array<std::string_view, 4> kTables = {"ngram_embedding", "ngram_embeddings",
                                                     "engram_embedding", "engram_table"};

constexpr TensorRule kLookupTableRule = {.pattern = "",
                                         .role = Role::kLookupTable,
                                         .scope = Scope::kModel,
                                         .cut = Cut::kVocab,
                                         .any_shape = true};
// Heads of classes and rewards: in place of a model's own head.
constexpr std::array<std::string_view, 7> kClassHeads = {
    "score", "classifier", "classification_head", "qa_outputs", "reward_head", "v_head", "rm_head"};
// vLLM and transformers build them as they build linear layers.
constexpr TensorRule kClassHeadRule = {.pattern = "",
                                       .role = Role::kOther,
                                       .scope = Scope::kModel,
                                       .silence = Silence::kQuantized,
                                       .any_shape = true};
constexpr TensorRule kClassBiasRule = {
    .pattern = "", .role = Role::kOther, .scope = Scope::kModel, .any_shape = true};

constexpr TensorRule kOtherModalityRule = {
    .pattern = "", .role = Role::kOtherModality, .scope = Scope::kModel, .any_shape = true};

std::string_view first_word(std::string_view name) {
  return name.substr(0, name.find('.'));
}

bool has_word(const std::vector<std::string>& words, std::string_view word) {
  return std::ranges::find(words, word) != words.end();
}

/// First words after `model.` in the rows of a family, without first words of its other rows.
std::vector<std::string> words_behind_model(const Family& family) {
  std::set<std::string> behind, others;
  for (const TensorRule& rule : family.rules) {
    const bool is_of_model = rule.pattern.starts_with(kModelPrefix);
    (is_of_model ? behind : others)
        .emplace(first_word(rule.pattern.substr(is_of_model ? kModelPrefix.size() : 0)));
  }
  for (const std::string& word : others) behind.erase(word);
  return {behind.begin(), behind.end()};
}

// The text before the number of an MTP layer in names.
struct NumberedHead {
  std::string_view text;
  bool counts_main = false;  ///< true where the number goes on behind those of the main layers

  auto operator<=>(const NumberedHead&) const = default;
};

// MTP layers beyond this many more than a config promises are not counted.
constexpr std::uint64_t kMostUnsaid = 64;

std::set<NumberedHead> mtp_heads(const Family& family) {
  std::set<NumberedHead> heads;
  if (!family.mtp_layers.empty()) heads.insert({family.mtp_layers, false});
  for (const TensorRule& rule : family.rules) {
    if (rule.scope != Scope::kMtpLayer) continue;
    const std::size_t apart = rule.pattern.find(kMtpMark), main = rule.pattern.find(kLayerMark);
    if (apart != std::string_view::npos) {
      heads.insert({rule.pattern.substr(0, apart), false});
    } else if (main != std::string_view::npos && family.mtp_layers.empty()) {
      heads.insert({rule.pattern.substr(0, main), true});
    }
  }
  return heads;
}

std::optional<std::uint64_t> number_behind(std::string_view name, std::string_view head) {
  if (!name.starts_with(head)) return std::nullopt;
  name.remove_prefix(head.size());
  return take_number(name, "");
}

bool is_of_other_modality(std::string_view name) {
  const TensorRule* rule = shared_rule(name);
  return role_of(rule) == Role::kOtherModality;
}

}  // namespace

const TensorRule* shared_rule(std::string_view name) {
  std::string_view rest = name;
  for (std::size_t depth = 0;; ++depth) {
    const std::size_t dot = rest.find('.');
    const std::string_view word = rest.substr(0, dot);
    if (depth < kTowerDepth && is_in(kTowers, word)) return &kOtherModalityRule;
    if (is_in(kTables, word)) return &kLookupTableRule;
    if (dot == std::string_view::npos) break;
    rest.remove_prefix(dot + 1);
  }
  return cache_scale_name(name) ? &kCacheScaleRule : nullptr;
}

const TensorRule* class_head_rule(std::string_view name, const ModelConfig& config) {
  if (head_of(config) != ModelHead::kClasses || !is_in(kClassHeads, first_word(name)))
    return nullptr;
  return name.ends_with(".weight") ? &kClassHeadRule : &kClassBiasRule;
}

void find_text_prefix(const Family& family, std::span<const StoredTensor> stored,
                      ModelConfig& config) {
  TextNesting& nesting = config.text;
  const auto begins = [&](std::string_view prefix) {
    return std::ranges::any_of(
        stored, [&](const StoredTensor& tensor) { return tensor.name.starts_with(prefix); });
  };
  const auto prefix = std::ranges::find_if(kPrefixes, begins);
  nesting.prefix = prefix == kPrefixes.end() ? std::string_view() : *prefix;
  nesting.replaces_model = nesting.prefix.starts_with(kModelPrefix);
  nesting.bare_words.clear();
  if (nesting.replaces_model || begins(nesting.prefix + std::string(kModelPrefix))) return;
  // A model saved without the class around it has no `model.`.
  std::vector<std::string> words = words_behind_model(family);
  ModelConfig with_model = config;
  with_model.text.prefix.clear();
  const NameGrammar grammar(family, with_model);
  const bool is_bare = std::ranges::any_of(stored, [&](const StoredTensor& tensor) {
    std::string_view name = tensor.name;
    if (!name.starts_with(nesting.prefix)) return false;
    name.remove_prefix(nesting.prefix.size());
    // DeepSeek's own names have a `norm.weight` too.
    const std::string whole = std::string(kModelPrefix).append(name);
    return has_word(words, first_word(name)) && grammar.knows(whole) &&
           has_mark(grammar.pattern_of(whole), kLayerMark);
  });
  if (!is_bare) return;
  nesting.replaces_model = true;
  if (nesting.prefix.empty()) nesting.bare_words = std::move(words);
}

void count_mtp_layers(const Family& family, std::span<const StoredTensor> stored,
                      ModelConfig& config) {
  const std::set<NumberedHead> heads = mtp_heads(family);
  if (heads.empty()) return;
  const std::uint64_t n_main = config.num_hidden_layers;
  ModelConfig more = config;
  more.num_nextn_predict_layers += kMostUnsaid;
  const NameGrammar grammar(family, more);
  std::set<std::uint64_t> layers;
  for (const StoredTensor& tensor : stored) {
    const std::string name = text_model_name(tensor.name, config.text);
    for (const NumberedHead& head : heads) {
      const auto number = number_behind(name, head.text);
      if (!number || *number < (head.counts_main ? n_main : 0)) continue;
      const std::uint64_t layer = head.counts_main ? *number : n_main + *number;
      if (layer < layer_count(config) || layers.contains(layer)) continue;
      const auto match = grammar.match(tensor.name);
      // A layer more is no MTP layer: it has the tensors of one.
      if (!match || (head.counts_main && match->rule->scope != Scope::kMtpLayer)) continue;
      layers.insert(layer);
    }
  }
  while (layers.contains(layer_count(config))) ++config.num_nextn_predict_layers;
}

std::optional<std::uint64_t> understated_mtp(const Family& family, const ModelConfig& config) {
  const Json& keys = text_keys(config);
  if (config.num_nextn_predict_layers == 0 || !keys.is_object()) return std::nullopt;
  const bool has_key = keys.contains(mtp_layer_key(keys));
  const std::set<NumberedHead> heads = mtp_heads(family);
  const bool are_apart = std::ranges::none_of(heads, &NumberedHead::counts_main);
  if (!has_key && are_apart) return std::nullopt;
  const std::uint64_t said =
      parse_model_config(config.raw->dump(), "config.json").num_nextn_predict_layers;
  return said < config.num_nextn_predict_layers ? std::optional(said) : std::nullopt;
}

std::string text_model_name(std::string_view stored, const TextNesting& nesting) {
  const std::string_view prefix = nesting.prefix;
  const bool is_of_text = prefix.empty() ? has_word(nesting.bare_words, first_word(stored))
                                         : stored.starts_with(prefix);
  if (!is_of_text) return std::string(stored);
  std::string name(nesting.replaces_model ? kModelPrefix : "");
  return name.append(stored.substr(prefix.size()));
}

std::string stored_text_name(std::string_view name, const TextNesting& nesting) {
  const bool is_of_model = name.starts_with(kModelPrefix);
  if (nesting.replaces_model) {
    if (!is_of_model) return std::string(name);
    const std::string_view rest = name.substr(kModelPrefix.size());
    const bool keeps = nesting.prefix.empty() && !has_word(nesting.bare_words, first_word(rest));
    return keeps ? std::string(name) : nesting.prefix + std::string(rest);
  }
  return nesting.prefix + std::string(name);
}

std::vector<std::string> module_aliases(std::string_view module, const TextNesting& nesting) {
  std::vector<std::string> aliases = {std::string(module)};
  if (!nesting.bare_words.empty()) aliases.push_back(text_model_name(module, nesting));
  if (!nesting.has_towers) return aliases;
  TextNesting in_memory;
  in_memory.prefix = kPrefixes.front();
  in_memory.replaces_model = true;
  const std::string text = text_model_name(module, nesting);
  aliases.push_back(is_of_other_modality(module) ? std::string(kModelPrefix).append(module)
                                                 : stored_text_name(text, in_memory));
  aliases.push_back(text);
  return aliases;
}

}  // namespace ingot::formats
