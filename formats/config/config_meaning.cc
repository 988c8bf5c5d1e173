// Values that transformers 5 derives and writes are computed here in the same way.

#include "formats/config/config_meaning.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "formats/config/derived_keys.h"
#include "formats/config/keys.h"
#include "formats/config/nested_config.h"
#include "formats/config/released_words.h"
#include "formats/json/json.h"

namespace ingot::formats {
namespace {

constexpr std::size_t kShownBytes = 200;
constexpr std::uint64_t kMaxLayers = std::uint64_t{1} << 14;  // layers whose kinds are listed

// Two names of one fact, which readers here take by one name for each family.
using Twins = std::pair<std::string_view, std::string_view>;
constexpr std::array kTwins = {Twins{"num_nextn_predict_layers", "num_mtp_layers"},
                               Twins{"sliding_window", "sliding_window_size"},
                               Twins{"head_dim", "attention_head_dim"},
                               Twins{"head_dim", "kv_channels"}};

// Models of transformers that point head_dim at the rotated slice, whatever the file says.
constexpr std::array kHeadIsRope = {"deepseek_v2", "deepseek_v3", "deepseek_v32",
                                    "kimi_k2",     "glm_moe_dsa", "glm4_moe_lite"};

std::optional<std::uint64_t> whole(const Json& value) {
  return value.is_number_unsigned() ? std::optional(value.get<std::uint64_t>()) : std::nullopt;
}

// One id is no list, and neither is the same number for every layer.
Json plain(const Json& value) {
  const bool is_one = value.is_array() && !value.empty() && value[0].is_number() &&
                      std::ranges::all_of(value, [&](const Json& v) { return v == value[0]; });
  return is_one ? value[0] : value;
}

Json words_of(const std::vector<bool>& flags, std::string_view yes, std::string_view no) {
  Json list = Json::array();
  for (const bool flag : flags) list.push_back(flag ? yes : no);
  return list;
}

constexpr std::string_view kTheta = "rope_theta", kPartial = "partial_rotary_factor";
constexpr std::array kRopeObjects = {"rope_parameters", "rope_scaling"};

// The meaning of a parameter of rope that is absent.
Json absent_rope(std::string_view key) {
  const KeyRow* row = find_key(fmt::format("rope.{}", key));
  return row == nullptr || row->absent.empty() ? Json() : Json::parse(row->absent);
}

constexpr std::string_view kFullAttention = "full_attention", kIndexed = "indexed_attention";

// A kind of layers in the word that transformers 5 has for it; releases have others.
Json kind_of_layer(const Json& type) {
  using Older = std::pair<std::string_view, std::string_view>;
  constexpr std::array kOlder = {
      Older{"attention", kFullAttention}, Older{"mamba", "linear_attention"},
      Older{"deepseek_sparse_attention", kIndexed}, Older{"qwen_sparse_attention", kIndexed}};
  const auto older =
      std::ranges::find_if(kOlder, [&](const auto& one) { return type == one.first; });
  return older == kOlder.end() ? type : Json(older->second);
}

// Parameters of rope by key, each with its place.
using RopeValues = std::vector<std::pair<std::string, ConfigValue>>;

RopeValues rope_values(const Json& object, const std::string& path) {
  RopeValues values;
  for (const auto& [key, value] : object.items()) {
    if (value.is_null()) continue;
    values.emplace_back(key == "type" ? "rope_type" : key,
                        ConfigValue{.value = value, .path = fmt::format("{}.{}", path, key)});
  }
  return values;
}

// transformers 5 may have parameters for each kind of layer; those that all are alike are as one.
Json flat_rope(const Json& object) {
  if (!object.is_object() || object.empty()) return object;
  for (const auto& [key, value] : object.items()) {
    if (!value.is_object() || value != object.front()) return object;
  }
  return object.front();
}

}  // namespace

std::string config_text(const Json& value) {
  if (value.is_null()) return "absent";
  std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (text.size() <= kShownBytes) return text;
  text.resize(kShownBytes);
  return text + "...";
}

bool says_nothing(const Json& value) {
  return value.is_null() || value == false || value == 0 || value == -1 ||
         (value.is_structured() && value.empty());
}

std::string cache_words(const Json& block) {
  if (!block.is_object()) return {};
  for (const auto& [key, value] : block.items()) {
    // Quark writes its keys whether it quantizes caches or not.
    if (key.starts_with("kv_cache") && !says_nothing(value) && value != std::string_view("auto"))
      return fmt::format("{} is {}", key, config_text(value));
  }
  return cache_words(json_member(block, "quantization"));
}

/// Reads one object: the whole config, or its text_config.
class ConfigMeaning::Reader {
 public:
  Reader(const Json& object, std::string prefix, ConfigMeaning& meaning)
      : object_(object), keys_(object, {}), prefix_(std::move(prefix)), meaning_(meaning) {}

  void read() {
    for (const KeyRow& row : key_rows()) {
      row.sense == KeySense::kModel ? read_row(row) : compare_spellings(row);
    }
    read_rotary_dim();
    read_rope();
    forget_idle_rope();
    read_widths();
    read_mlp_layers();
    read_layer_types();
    read_indexers();
    read_twins();
    read_unknown();
  }

 private:
  [[nodiscard]] const Json& at(std::string_view key) const { return json_member(object_, key); }
  [[nodiscard]] std::string path(std::string_view key) const {
    return fmt::format("{}{}", prefix_, key);
  }
  [[nodiscard]] ConfigValue said(std::string_view key) const {
    return {.value = at(key), .path = path(key)};
  }
  [[nodiscard]] std::optional<std::uint64_t> number(std::string_view key) const {
    return whole(at(key));
  }
  [[nodiscard]] std::uint64_t layers() const {
    const std::uint64_t n = keys_.layers().main;
    return n <= kMaxLayers ? n : 0;
  }
  [[nodiscard]] std::uint64_t usual_head() const {
    return usual_head_dim(number("hidden_size").value_or(0),
                          number("num_attention_heads").value_or(0));
  }

  // Keeps a value, or finds that it contradicts the one that is known.
  void say(const std::string& meaning, ConfigValue said) {
    const auto [known, is_new] = meaning_.known_.try_emplace(prefix_ + meaning, std::move(said));
    if (!is_new) meaning_.compare(said, known->second);
  }

  void contradict(std::string sentence) { meaning_.contradictions_.push_back(std::move(sentence)); }

  void forget_if(const std::string& meaning, const Json& absent) {
    const auto known = meaning_.known_.find(prefix_ + meaning);
    if (known != meaning_.known_.end() && known->second.value == absent)
      meaning_.known_.erase(known);
  }

  void read_row(const KeyRow& row) {
    for (const std::string& key : row.spellings) {
      if (!at(key).is_null() && !is_without_effect(key))
        say(row.key(), {.value = plain(at(key)), .path = path(key)});
    }
    if (!row.absent.empty()) forget_if(row.key(), Json::parse(row.absent));
  }

  // Compares spellings of keys whose meaning is elsewhere.
  void compare_spellings(const KeyRow& row) {
    if (row.key().starts_with("rope.")) return;
    const std::string& first = spelling_in(object_, row.key());
    const ConfigValue known{.value = plain(at(first)), .path = path(first)};
    for (const std::string& key : row.spellings) {
      if (!at(key).is_null()) meaning_.compare({.value = plain(at(key)), .path = path(key)}, known);
    }
  }

  // A window that a switch turns off.
  [[nodiscard]] bool is_without_effect(std::string_view key) const {
    return (key == "sliding_window" || key == "max_window_layers") &&
           at("use_sliding_window") == false;
  }

  // A number that follows from others; a written one must be equal, and then adds no fact.
  void derive(std::string_view key, std::optional<std::uint64_t> wanted, const std::string& why) {
    say_unless(key, wanted ? Json(*wanted) : Json());
    if (!wanted || at(key).is_null() || at(key) == *wanted) return;
    contradict(
        fmt::format("{} is {}, but {} make it {}", path(key), config_text(at(key)), why, *wanted));
  }

  // MiniMax: the part of a head that is rotated, in values.
  void read_rotary_dim() {
    const auto rotated = number("rotary_dim");
    const std::uint64_t width = number("head_dim").value_or(usual_head());
    if (!rotated || width == 0) return;
    say("rope.partial_rotary_factor",
        {.value = Json(static_cast<double>(*rotated) / static_cast<double>(width)),
         .path = path("rotary_dim / head_dim")});
  }

  // A config has rope in up to three places, and readers prefer different ones: transformers 5
  // takes rope_scaling before rope_parameters where both are there, others the other way round.
  void read_rope() {
    std::vector<RopeValues> objects;
    for (const char* key : kRopeObjects) {
      const Json object = flat_rope(at(key));
      if (object.is_object() && !object.empty()) objects.push_back(rope_values(object, path(key)));
    }
    for (const RopeValues& values : objects) {
      for (const auto& [key, said] : values) say("rope." + key, said);
    }
    if (objects.size() == 2) miss_in_rope(objects[0], objects[1]);
    if (objects.size() == 2) miss_in_rope(objects[1], objects[0]);
    for (const std::string_view key : {kTheta, kPartial}) {
      if (!at(key).is_null()) say(fmt::format("rope.{}", key), said(key));
    }
  }

  // Readers of only one object miss a parameter that only the other has.
  void miss_in_rope(const RopeValues& values, const RopeValues& other) {
    for (const auto& [key, said] : values) {
      const auto there = std::ranges::find(other, key, &RopeValues::value_type::first);
      if (there != other.end() || key == kTheta || key == kPartial ||
          said.value == absent_rope(key))
        continue;
      const std::string& elsewhere = other.front().second.path;
      contradict(fmt::format("{} is {}, but {} says nothing of it: readers take one or the other",
                             said.path, config_text(said.value),
                             elsewhere.substr(0, elsewhere.rfind('.'))));
    }
  }

  // Removes what equals its absence, and the parameters of a scaling that is not there.
  void forget_idle_rope() {
    const std::string begin = path("rope.");
    const auto type = meaning_.known_.find(begin + "rope_type");
    const bool is_plain =
        type == meaning_.known_.end() || *type->second.value == std::string_view("default");
    std::erase_if(meaning_.known_, [&](const auto& entry) {
      if (!entry.first.starts_with(begin)) return false;
      const std::string key = entry.first.substr(begin.size());
      const bool counts = !is_plain || key == kTheta || key == kPartial ||
                          key.starts_with("mrope") || entry.second.value->is_object();
      return !counts || *entry.second.value == absent_rope(key);
    });
  }

  void read_widths() {
    const auto nope = number("qk_nope_head_dim"), rope = number("qk_rope_head_dim");
    const bool are_there = nope && rope && std::max(*nope, *rope) <= ConfigKeys::kMaxWidth;
    derive("qk_head_dim", are_there ? std::optional(*nope + *rope) : std::nullopt,
           "qk_nope_head_dim and qk_rope_head_dim");
    const auto is_type = [&](std::string_view type) { return at("model_type") == type; };
    if (rope && std::ranges::any_of(kHeadIsRope, is_type)) {
      // GLM-5.2 has the other part of a head there, which says as little.
      if (nope != number("head_dim"))
        derive("head_dim", rope, "latent attention and qk_rope_head_dim");
    } else {
      say_unless("head_dim", Json(usual_head()));
    }
    say_unless("num_key_value_heads", at("num_attention_heads"));
  }

  void say_unless(std::string_view key, const Json& absent) {
    if (!at(key).is_null() && at(key) != absent) say(std::string(key), said(key));
  }

  // Without any such key all layers are mixtures, where there are experts.
  void read_mlp_layers() {
    if (layers() == 0) return;
    const bool has_experts = meaning_.known_.contains(path("n_routed_experts"));
    std::vector<ConfigValue> others;
    for (auto& [key, is_meaning, mixtures, refusal] : mixtures_by_key(keys_)) {
      ConfigValue said{.value = words_of(mixtures, "sparse", "dense"), .path = path(key)};
      if (!refusal.empty()) {
        if (has_experts && is_meaning) contradict(std::move(refusal));
      } else if (is_meaning) {
        say("mlp_layer_types", std::move(said));
      } else if (has_experts) {
        others.push_back(std::move(said));
      }
    }
    const auto known = meaning_.known_.find(path("mlp_layer_types"));
    for (const ConfigValue& other : others)
      meaning_.compare(other, known == meaning_.known_.end() ? others.front() : known->second);
    const std::vector<bool> all(static_cast<std::size_t>(layers()), has_experts);
    forget_if("mlp_layer_types", words_of(all, "sparse", "dense"));
  }

  // One kind for all layers is the default of the model's code, if it is the kind that goes with
  // the rest.
  void read_layer_types() {
    const Json& types = at("layer_types");
    if (types.is_null()) return;
    if (!types.is_array()) return say("layer_types", said("layer_types"));
    const bool is_sparse = !at("index_topk").is_null();
    Json kinds = Json::array();
    for (const Json& type : types) kinds.push_back(kind_of_layer(type));
    // Some classes call layers with an indexer full; a list that has both words means both.
    if (is_sparse && std::ranges::find(kinds, Json(kIndexed)) == kinds.end())
      std::replace(kinds.begin(), kinds.end(), Json(kFullAttention), Json(kIndexed));
    compare_steps(kinds);
    compare_switch(kinds);
    const Json usual(is_sparse ? kIndexed : kFullAttention);
    const bool is_usual =
        std::all_of(kinds.begin(), kinds.end(), [&](const Json& kind) { return kind == usual; });
    if (is_usual && kinds.size() >= layers()) return;
    say("layer_types", {.value = std::move(kinds), .path = path("layer_types")});
  }

  // Qwen's classes and SmolLM3's kernels follow the switch, SmolLM3's masks follow the list.
  void compare_switch(const Json& kinds) {
    if (at("use_sliding_window") != false || at("sliding_window").is_null() ||
        std::ranges::find(kinds, Json("sliding_attention")) == kinds.end())
      return;
    contradict(
        fmt::format("{} is false, but {} has sliding_attention: readers take one or the other",
                    path("use_sliding_window"), path("layer_types")));
  }

  // A step may say, too, which layers have linear attention.
  void compare_steps(const Json& kinds) {
    const auto linear = [](const Json& kind) {
      return kind == std::string_view("linear_attention");
    };
    if (kinds.size() != layers() || std::ranges::none_of(kinds, linear)) return;
    const auto by_step = linear_layers_by_step(keys_);
    if (!by_step) return;
    std::vector<bool> listed;
    for (const Json& kind : kinds) listed.push_back(linear(kind));
    if (listed == by_step->layers) return;
    contradict(fmt::format("{} is {}, but {} is {}: readers take one or the other",
                           path("layer_types"), config_text(kinds), path(by_step->key),
                           config_text(at(by_step->key))));
  }

  void read_indexers() {
    if (const Json& types = at("indexer_types"); types.is_array())
      say("indexer_types", said("indexer_types"));
    std::vector<bool> own;
    std::string_view key;
    for (std::uint64_t layer = 0; layer < layers(); ++layer) {
      const OwnIndexer indexer = own_indexer(object_, layer, /*knows_types=*/false);
      key = indexer.key;
      if (!indexer.is_own) return say("indexer_types", said(key));
      own.push_back(*indexer.is_own);
    }
    const bool are_all = std::ranges::find(own, false) == own.end();
    if (!are_all || key == "index_topk_pattern")
      say("indexer_types", {.value = words_of(own, "full", "shared"), .path = path(key)});
    const std::vector<bool> all(static_cast<std::size_t>(layers()), true);
    forget_if("indexer_types", words_of(all, "full", "shared"));
  }

  void read_twins() {
    for (const auto& [key, twin] : kTwins) {
      if (!at(key).is_null() && !at(twin).is_null() && !is_without_effect(key))
        meaning_.compare(said(twin), said(key));
    }
  }

  // Derived meanings take the usual spellings of their keys only.
  static bool is_known(const std::string& key) {
    const KeyRow* row = find_key(key);
    if (row == nullptr || row->sense == KeySense::kFamily) return false;
    return row->sense != KeySense::kDerived || key == row->key();
  }

  void read_unknown() {
    for (const auto& [key, value] : object_.items()) {
      const bool is_text =
          value.is_object() &&
          std::ranges::any_of(text_config_keys(), [&key = key](std::string_view text) {
            return text.substr(0, text.find('.')) == key;
          });
      if (is_known(key) || value.is_null() || is_text) continue;
      meaning_.unknown_.emplace(path(key), ConfigValue{.value = value, .path = path(key)});
    }
  }

  const Json& object_;
  ConfigKeys keys_;
  std::string prefix_;
  ConfigMeaning& meaning_;
};

ConfigMeaning::ConfigMeaning(const Json& given) {
  if (!given.is_object()) return;
  // The order of keys means nothing, in objects within it too.
  const nlohmann::json sorted(given);
  const Json config(sorted);
  const std::string key = text_nesting(config).key;
  const std::string prefix = key.empty() ? "" : fmt::format("{}.", key);
  if (!key.empty()) Reader(config, "", *this).read();
  Json text = key.empty() ? config : text_object(config, key);
  std::vector<TwoSpellings> twice;
  use_released_words(text, &twice);
  for (const TwoSpellings& said : twice) {
    contradictions_.push_back(fmt::format(
        "{0}{1} is {2}, but {3} make{4} it {5}: readers take one or the other", prefix, said.key,
        config_text(said.value), said.words, said.words.find(',') == std::string::npos ? "s" : "",
        config_text(said.meaning)));
  }
  Reader(text, prefix, *this).read();
  if (key.empty()) return;
  // Some readers look for rope above the text model's own keys.
  for (const auto& [meaning, said] : known_) {
    if (!meaning.starts_with("rope.")) continue;
    const auto own = known_.find(prefix + meaning);
    if (own != known_.end()) compare(said, own->second);
  }
}

void ConfigMeaning::compare(const ConfigValue& said, const ConfigValue& known) {
  if (*said.value == *known.value) return;
  contradictions_.push_back(fmt::format("{} is {}, but {} is {}: readers take one or the other",
                                        said.path, config_text(said.value), known.path,
                                        config_text(known.value)));
}

}  // namespace ingot::formats
