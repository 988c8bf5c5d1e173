#include "formats/family/text_names.h"

#include <algorithm>
#include <array>
#include <set>

#include "formats/config/nested_config.h"
#include "formats/family/family.h"
#include "formats/json/json.h"

namespace ingot::formats {
namespace {

constexpr std::string_view kModel = "model.";

// The first of these with which names begin is the prefix.
constexpr std::array<std::string_view, 2> kPrefixes = {"model.language_model.", "language_model."};

// Modules for images and sound, at the top of a model or right below it.
constexpr std::array<std::string_view, 20> kTowers = {"vision_tower",    "vision_model",
                                                      "vision_encoder",  "visual",
                                                      "vision",          "vision_language_adapter",
                                                      "mm_projector",    "multi_modal_projector",
                                                      "patch_merger",    "pre_mm_projector_norm",
                                                      "patch_merge_mlp", "vit_large_projector",
                                                      "embed_vision",    "audio_tower",
                                                      "audio_model",     "audio_encoder",
                                                      "audio",           "audio_projector",
                                                      "embed_audio",     "aligner"};

constexpr std::size_t kTowerDepth = 2;

// Embeddings of n-grams, beside the model or inside of a layer.
constexpr std::array<std::string_view, 4> kTables = {"ngram_embedding", "ngram_embeddings",
                                                     "engram_embedding", "engram_table"};

constexpr TensorRule kLookupTableRule = {.pattern = "",
                                         .role = Role::kLookupTable,
                                         .scope = Scope::kModel,
                                         .cut = Cut::kVocab,
                                         .any_shape = true};
constexpr TensorRule kOtherModalityRule = {
    .pattern = "", .role = Role::kOtherModality, .scope = Scope::kModel, .any_shape = true};

// Whether the prefix stands in place of `model.`, and not before it.
bool replaces_model(std::string_view prefix) {
  return prefix.starts_with(kModel);
}

template <std::size_t N>
bool is_in(const std::array<std::string_view, N>& words, std::string_view word) {
  return std::ranges::find(words, word) != words.end();
}

bool is_of_other_modality(std::string_view name) {
  const TensorRule* rule = shared_rule(name);
  return rule != nullptr && rule->role == Role::kOtherModality;
}

}  // namespace

const TensorRule* shared_rule(std::string_view name) {
  std::string_view rest = name;
  for (std::size_t depth = 0;; ++depth) {
    const std::size_t dot = rest.find('.');
    const std::string_view word = rest.substr(0, dot);
    if (depth < kTowerDepth && is_in(kTowers, word)) return &kOtherModalityRule;
    if (is_in(kTables, word)) return &kLookupTableRule;
    if (dot == std::string_view::npos) return nullptr;
    rest.remove_prefix(dot + 1);
  }
}

std::string find_text_prefix(std::span<const StoredTensor> stored) {
  for (const std::string_view prefix : kPrefixes) {
    if (std::ranges::any_of(
            stored, [&](const StoredTensor& tensor) { return tensor.name.starts_with(prefix); }))
      return std::string(prefix);
  }
  return {};
}

void count_named_mtp(const Family& family, std::span<const StoredTensor> stored,
                     ModelConfig& config) {
  const Json& keys = text_keys(config);
  const bool is_said = std::ranges::any_of(
      kMtpLayerKeys, [&](const char* key) { return keys.is_object() && keys.contains(key); });
  if (is_said || family.mtp_layers.empty()) return;
  std::set<std::string> numbers;
  for (const StoredTensor& tensor : stored) {
    const std::string name = text_model_name(tensor.name, config.text);
    if (!name.starts_with(family.mtp_layers)) continue;
    const std::size_t begin = family.mtp_layers.size();
    numbers.insert(name.substr(begin, name.find('.', begin) - begin));
  }
  std::uint64_t& n_layers = config.num_nextn_predict_layers;
  while (numbers.contains(std::to_string(n_layers))) ++n_layers;
}

std::string text_model_name(std::string_view stored, const TextNesting& nesting) {
  const std::string_view prefix = nesting.prefix;
  if (prefix.empty() || !stored.starts_with(prefix)) return std::string(stored);
  std::string name(replaces_model(prefix) ? kModel : "");
  return name.append(stored.substr(prefix.size()));
}

std::string stored_text_name(std::string_view name, const TextNesting& nesting) {
  const std::string_view prefix = nesting.prefix;
  if (prefix.empty() || (replaces_model(prefix) && !name.starts_with(kModel)))
    return std::string(name);
  if (replaces_model(prefix)) name.remove_prefix(kModel.size());
  return std::string(prefix).append(name);
}

std::vector<std::string> module_aliases(std::string_view module, const TextNesting& nesting) {
  std::vector<std::string> aliases = {std::string(module)};
  if (nesting.key.empty()) return aliases;
  TextNesting in_memory;
  in_memory.prefix = kPrefixes.front();
  const std::string text = text_model_name(module, nesting);
  aliases.push_back(is_of_other_modality(module) ? std::string(kModel).append(module)
                                                 : stored_text_name(text, in_memory));
  aliases.push_back(text);
  return aliases;
}

}  // namespace ingot::formats
