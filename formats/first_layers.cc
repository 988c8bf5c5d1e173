#include "formats/first_layers.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "formats/base/error.h"
#include "formats/base/words.h"
#include "formats/checkpoint/checkpoint_listing.h"
#include "formats/config/keys.h"
#include "formats/config/nested_config.h"
#include "formats/experts/expert_view.h"
#include "formats/json/json.h"
#include "formats/json/json_form.h"
#include "formats/records/manifest.h"

// A config says things of its layers in five ways: a list with an entry per layer, a text with a
// letter per layer, numbers of layers, an object by such numbers, and a count of the last layers.
// Each is cut by its form, so that a key of a new family is, too. What a cut may break is compared
// afterwards: kinds of layers and shapes, as the family reads them.

namespace ingot::formats {
namespace {

struct LayerCut {
  LayerCounts layers;          // layers of the source
  std::uint64_t n_layers = 0;  // number of main layers of the view
};

bool ends_with_one_of(std::string_view key, std::span<const std::string_view> ends) {
  return std::ranges::any_of(ends, [&](std::string_view end) { return key.ends_with(end); });
}

bool has_entry_per_layer(std::string_view key, const Json& value, LayerCounts layers) {
  // Lists of other things may by chance be as long as the model has layers.
  constexpr std::array<std::string_view, 7> kOthers = {
      "architectures", "_token_id", "_token_ids", "_section", "_limit", "_factor", "_multipliers"};
  return is_per_layer(value, layers) && !ends_with_one_of(key, kOthers);
}

// Numbers of layers, ascending: `mlp_only_layers`, `full_attn_idxs`, `ple_layer_ids`.
bool is_of_numbers(std::string_view key, const Json& value) {
  constexpr std::array<std::string_view, 4> kEnds = {"layers", "layer_ids", "idxs", "indices"};
  return value.is_array() && !value.empty() && ends_with_one_of(key, kEnds) &&
         std::ranges::all_of(value, &Json::is_number_unsigned) &&
         std::ranges::is_sorted(value.get<std::vector<std::uint64_t>>());
}

bool is_by_number(const Json& value) {
  if (!value.is_object() || value.empty()) return false;
  return std::ranges::all_of(value.items(), [](const auto& item) {
    return !item.key().empty() && item.key().find_first_not_of("0123456789") == std::string::npos;
  });
}

void cut_list(Json& list, std::uint64_t n) {
  list.erase(list.begin() + static_cast<std::ptrdiff_t>(n), list.end());
}

// `1,2,5`
std::string cut_numbers(const std::string& text, std::uint64_t n) {
  const Json numbers = Json::parse("[" + text + "]", nullptr, /*allow_exceptions=*/false);
  if (!numbers.is_array() || !std::ranges::all_of(numbers, &Json::is_number_unsigned)) return text;
  std::vector<std::uint64_t> kept = numbers.get<std::vector<std::uint64_t>>();
  std::erase_if(kept, [&](std::uint64_t layer) { return layer >= n; });
  return fmt::format("{}", fmt::join(kept, ","));
}

// Cuts what an object says of layers. The numbers of layers in an inner object may be counted from
// 1, as Kimi's are; one more there is of no layer.
void cut_keys(Json& keys, const LayerCut& cut, bool is_inner) {
  for (auto& [key, value] : keys.items()) {
    const KeyRow* row = find_key(key);
    if (row != nullptr && row->key() == "num_hidden_layers" && value == cut.layers.main) {
      value = cut.n_layers;
    } else if ((row != nullptr && row->key() == "num_nextn_predict_layers") ||
               key == "num_mtp_layers") {
      value = 0;
    } else if (has_entry_per_layer(key, value, cut.layers)) {
      cut_list(value, cut.n_layers);
    } else if (is_of_numbers(key, value)) {
      const std::uint64_t end = cut.n_layers + (is_inner ? 1 : 0);
      std::erase_if(value.get_ref<Json::array_t&>(),
                    [&](const Json& layer) { return layer.get<std::uint64_t>() >= end; });
    } else if (is_by_number(value)) {
      Json kept = Json::object();
      for (const auto& [layer, of_layer] : value.items())
        if (number_from<std::uint64_t>(layer).value_or(cut.n_layers) < cut.n_layers)
          kept[layer] = of_layer;
      value = std::move(kept);
    } else if (value.is_string() && key == "moe_layers_enum") {
      value = cut_numbers(value.get<std::string>(), cut.n_layers);
    } else if (value.is_string() && key.ends_with("pattern") &&
               value.get_ref<const std::string&>().size() == cut.layers.main) {
      value = value.get<std::string>().substr(0, cut.n_layers);
    } else if (key == "num_kv_shared_layers" && value.is_number_unsigned()) {
      const std::uint64_t n_left = cut.layers.main - cut.n_layers;
      const auto n_shared = value.get<std::uint64_t>();
      value = n_shared > n_left ? n_shared - n_left : 0;
    } else if (value.is_object() && !is_inner && key.find("quantization") == std::string::npos &&
               key.find("rope") == std::string::npos &&
               (!key.ends_with("_config") || key.find("att") != std::string::npos)) {
      cut_keys(value, cut, /*is_inner=*/true);
    }
  }
}

Error other_kind(std::uint64_t n_layers, std::string_view key) {
  return Error(ErrorCode::kUnsupported,
               "--layers 0-{} would change the kind of a layer: '{}' follows from the number of "
               "layers (choose another number of layers)",
               n_layers - 1, key)
      .in_file(std::string(kConfigName));
}

// The lists by layer that readers of the source see, whether config.json has them or its class
// derives them: said where the cut config would mean something else.
void keep_kinds(const Checkpoint& source, const LayerCut& cut, Json& document) {
  const ModelConfig before = config_of_view(source, document);
  Json& text = text_section(source.config(), document);
  bool is_changed = false;
  for (const auto& [key, value] : text_keys(source.config()).items()) {
    if (!has_entry_per_layer(key, value, cut.layers)) continue;
    Json kept = value;
    cut_list(kept, cut.n_layers);
    if (json_member(text_keys(before), key) == kept) continue;
    text[key] = kept;
    is_changed = true;
  }
  const ModelConfig after = is_changed ? config_of_view(source, document) : before;
  const ModelConfig& whole = source.config();
  const auto require_same = [&](std::string_view key, std::vector<bool> from,
                                std::vector<bool> to) {
    from.resize(static_cast<std::size_t>(cut.n_layers), false);
    to.resize(static_cast<std::size_t>(cut.n_layers), false);
    if (from != to) throw other_kind(cut.n_layers, key);
  };
  require_same("mlp_layer_types", whole.layer_is_moe, after.layer_is_moe);
  require_same("layer_types", whole.layer_is_linear, after.layer_is_linear);
  for (const auto& [key, value] : text_keys(whole).items()) {
    if (!has_entry_per_layer(key, value, cut.layers)) continue;
    Json kept = value;
    cut_list(kept, cut.n_layers);
    if (json_member(text_keys(after), key) != kept) throw other_kind(cut.n_layers, key);
  }
}

// Entries that name the layer to read from, and the end of layers that run in a loop.
void require_sources(const Json& keys, const LayerCut& cut) {
  for (const auto& [key, value] : keys.items()) {
    if (value.is_object() && key.find("loop") != std::string::npos) require_sources(value, cut);
    if ((key == "core_end" || key == "loop_layer_index_end") && value.is_number_unsigned() &&
        value.get<std::uint64_t>() > cut.n_layers) {
      throw Error(ErrorCode::kUnsupported,
                  "--layers 0-{}: '{}' is {}, so layers that would be left out run in a loop (take "
                  "more layers)",
                  cut.n_layers - 1, key, value.get<std::uint64_t>())
          .in_file(std::string(kConfigName));
    }
    if (!has_entry_per_layer(key, value, cut.layers) || key.find("source") == std::string::npos)
      continue;
    for (std::uint64_t layer = 0; layer < cut.n_layers; ++layer) {
      if (!value[layer].is_number_unsigned() || value[layer].get<std::uint64_t>() < cut.n_layers)
        continue;
      throw Error(ErrorCode::kUnsupported,
                  "--layers 0-{}: layer {} reads from layer {}, which is left out ('{}'; take more "
                  "layers)",
                  cut.n_layers - 1, layer, value[layer].get<std::uint64_t>(), key)
          .in_file(std::string(kConfigName));
    }
  }
}

}  // namespace

Checkpoint with_first_layers(std::shared_ptr<const Checkpoint> source, std::uint64_t n_layers) {
  const ModelConfig& whole = source->config();
  const LayerCut cut{{.main = whole.num_hidden_layers, .mtp = whole.num_nextn_predict_layers},
                     n_layers};
  if (n_layers == 0 || n_layers >= cut.layers.main) {
    throw Error(
        ErrorCode::kInvalidArgument,
        "--layers 0-{}: the model has the layers 0-{} (choose fewer, or leave --layers out)",
        n_layers - 1, cut.layers.main - 1)
        .in_file(std::string(kConfigName));
  }
  if (source->slicing() != nullptr || source->family().rules.empty()) {
    throw Error(ErrorCode::kUnsupported, "--layers needs {}",
                source->slicing() != nullptr
                    ? "the whole model (give the directory above, or merge the ranks)"
                    : "a family that says which tensors are of which layer (--family, or --family "
                      "auto)")
        .in_file(source->directory().string());
  }
  require_sources(text_keys(whole), cut);
  Json document = *whole.raw;
  cut_keys(text_section(whole, document), cut, /*is_inner=*/false);
  // Some nested configs say the number once more.
  if (json_member(document, "num_hidden_layers") == cut.layers.main)
    document["num_hidden_layers"] = n_layers;
  keep_kinds(*source, cut, document);
  ModelConfig config = config_of_view(*source, document);

  const NameGrammar names(source->family(), config);
  ExpertView kept(*source);
  for (const LogicalTensor& tensor : source->tensors()) {
    if (tensor.layer && *tensor.layer >= n_layers) continue;
    // A tensor for the next layer, which the last one has not, as Inkling's queries.
    if (tensor.rule != nullptr && !names.match(tensor.name) && names.knows(tensor.name)) continue;
    if (tensor.rule != nullptr && !tensor.rule->any_shape &&
        rule_shape(*tensor.rule, config, tensor.layer) !=
            rule_shape(*tensor.rule, whole, tensor.layer)) {
      throw Error(
          ErrorCode::kUnsupported,
          "--layers 0-{}: '{}' has a share for every layer of the model, and cannot stay as "
          "it is",
          n_layers - 1, tensor.name)
          .in_directory(source->directory().string());
    }
    kept.keep(tensor);
  }
  Draft draft = source->draft_of_view();
  draft.config = std::move(config);
  draft.config_text = json_text(document, json_form_of(source->config_text()));
  draft.lacks_promised_mtp = false;
  return kept.finish(std::move(source), std::move(draft));
}

std::optional<std::uint64_t> recorded_layers(const Manifest& output) {
  constexpr std::uint64_t kMost = std::numeric_limits<std::uint32_t>::max();
  const std::string range = text_at(json_member(output.recipe, "choices"), "layers");
  const auto last = number_from<std::uint64_t>(std::string_view(range).substr(range.find('-') + 1));
  return last && *last < kMost ? std::optional(*last + 1) : std::nullopt;
}

Checkpoint with_layers_as_in(Checkpoint source, const Manifest& output) {
  const auto n_layers = recorded_layers(output);
  if (!n_layers || *n_layers >= source.config().num_hidden_layers) return source;
  return with_first_layers(std::make_shared<const Checkpoint>(std::move(source)), *n_layers);
}

}  // namespace ingot::formats
