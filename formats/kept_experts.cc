#include "formats/kept_experts.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "formats/base/error.h"
#include "formats/base/words.h"
#include "formats/checkpoint/checkpoint_listing.h"
#include "formats/config/keys.h"
#include "formats/config/nested_config.h"
#include "formats/config/routing.h"
#include "formats/experts/expert_view.h"
#include "formats/experts/renumbered_names.h"
#include "formats/experts/router_tables.h"
#include "formats/family/family_check.h"
#include "formats/family/width.h"
#include "formats/json/json.h"
#include "formats/json/json_form.h"
#include "formats/records/manifest.h"

// Everything that a model has for each expert is cut by one list, in one order. A tensor of one
// expert is told by its number, a stack by its role, and all else by its shape: a row of the family
// whose shape is another one with fewer experts has an entry for each on that side, whatever it is
// called; entries behind those of the experts (for shared ones, or for ones without tensors) stay.

namespace ingot::formats {
namespace {

constexpr std::string_view kCount = "n_routed_experts";
constexpr const char* kNumberKey = "num_experts";
constexpr const char* kLayersKey = "layers";

Error refused(const Checkpoint& source, const LogicalTensor& tensor, std::string_view fact) {
  return Error(ErrorCode::kUnsupported, "{}, and experts cannot be left out", fact)
      .in_file(source.directory().string())
      .in_tensor(tensor.name);
}

// The number in `3`, or in `model.layers.3.mlp`.
std::optional<std::uint32_t> layer_number(std::string_view text) {
  constexpr std::string_view kLayers = "layers.";
  if (const std::size_t at = text.rfind(kLayers); at != std::string_view::npos) {
    text.remove_prefix(at + kLayers.size());
    text = text.substr(0, text.find('.'));
  }
  return number_from(text);
}

// The width of a family whose config may have a number of experts for each layer.
constexpr std::string_view kExpertsByLayer = "experts_by_layer";

// Programs that read numbers by layer.
constexpr std::string_view kWhoReads =
    "the code of Hunyuan's release reads them; vLLM, SGLang and the class of transformers 5 take "
    "one number for all";

// True if the config of a model can say another number of experts for each layer.
bool can_count_by_layer(const Checkpoint& source) {
  const Width* said =
      source.family().widths == nullptr ? nullptr : source.family().widths->find(kExpertsByLayer);
  return (said != nullptr && said->size(source.config()) != 0) ||
         has_uneven_experts(source.config());
}

// Puts the number into every place of a config that says how many experts a layer has.
void state_count(Json& keys, std::uint64_t before, std::uint64_t after) {
  for (auto& [key, value] : keys.items()) {
    const KeyRow* row = find_key(key);
    if (row != nullptr && row->key() == kCount) {
      if (value == before) value = after;
      if (!value.is_array()) continue;
      for (Json& entry : value)
        if (entry == before) entry = after;
    } else if (value.is_object() && key.find("quantization") == std::string::npos &&
               key.find("vision") == std::string::npos && key.find("audio") == std::string::npos) {
      state_count(value, before, after);
    }
  }
}

bool is_even(const KeptExperts& kept) {
  return std::ranges::all_of(kept.layers, [&](const auto& layer) {
    return layer.second.size() == kept.layers.begin()->second.size();
  });
}

// Puts the number of each layer into the config's list.
void state_counts(const Checkpoint& source, const KeptExperts& kept, Json& document) {
  const ModelConfig& whole = source.config();
  Json& keys = text_section(whole, document);
  Json& list = keys[spelling_in(text_keys(whole), kCount)];
  if (!list.is_array()) {
    list = Json::array();
    for (std::uint32_t layer = 0; layer < whole.num_hidden_layers; ++layer)
      list.push_back(experts_of(whole, layer));
  }
  for (const auto& [layer, experts] : kept.layers) {
    if (layer < list.size()) list[layer] = experts.size();
  }
}

// Makes the config that says these numbers of experts, in `document` too.
ModelConfig pruned_config(const Checkpoint& source, const KeptExperts& kept, Json& document) {
  const ModelConfig& whole = source.config();
  const std::uint64_t n_kept = kept.layers.begin()->second.size();
  const auto read = [&] {
    ModelConfig config = config_of_view(source, document);
    // May be the number of those that are there.
    config.num_nextn_predict_layers = whole.num_nextn_predict_layers;
    return config;
  };
  const auto says = [&](const ModelConfig& config) {
    return std::ranges::all_of(kept.layers, [&](const auto& layer) {
      return experts_of(config, layer.first) == layer.second.size();
    });
  };
  if (is_even(kept) && !has_uneven_experts(whole)) {
    state_count(document, whole.n_routed_experts, n_kept);
    if (const ModelConfig config = read(); says(config)) return config;
    // The number that the class of the model has by itself.
    text_section(whole, document)[spelling_in(text_keys(whole), kCount)] = n_kept;
  } else {
    state_counts(source, kept, document);
  }
  ModelConfig config = read();
  if (says(config)) return config;
  throw Error(ErrorCode::kUnsupported,
              "says the number of experts in a way that is not known here, so that it cannot be "
              "made {}",
              is_even(kept) ? std::to_string(n_kept) : "that of each layer")
      .in_file(std::string(kConfigName));
}

// The object at a path of keys with dots, which is there.
Json& inner_object(Json& document, std::string_view path) {
  Json* object = &document;
  for (const std::string_view key : name_words(path)) object = &object->at(std::string(key));
  return *object;
}

// Tensors of a checkpoint without a family, by the names that they have under one.
class Meanings {
 public:
  explicit Meanings(const Checkpoint& known) {
    for (const LogicalTensor& tensor : known.tensors()) {
      if (tensor.rule == nullptr || !tensor.layer) continue;
      if (tensor.expert) {
        const std::string head = ExpertName(known, tensor).head();
        singles_.try_emplace(head, &tensor);
      } else {
        const std::string_view module = module_name(tensor.name);
        others_.emplace(is_stack(tensor) ? module : std::string_view(tensor.name), &tensor);
      }
    }
  }

  // The tensor with the row and the numbers that it has under the family.
  [[nodiscard]] LogicalTensor understood(LogicalTensor tensor) const {
    const LogicalTensor* known = nullptr;
    std::optional<std::uint32_t> expert;
    for (std::size_t dot = tensor.name.find('.'); dot != std::string::npos && known == nullptr;
         dot = tensor.name.find('.', dot + 1)) {
      const auto single = singles_.find(std::string_view(tensor.name).substr(0, dot + 1));
      if (single == singles_.end()) continue;
      const std::string_view rest = std::string_view(tensor.name).substr(dot + 1);
      expert = number_from(rest.substr(0, rest.find('.')));
      if (expert) known = single->second;
    }
    if (known == nullptr) known = other(tensor.name);
    if (known == nullptr) return tensor;
    tensor.rule = known->rule;
    tensor.layer = known->layer;
    tensor.expert = expert;
    tensor.stack = known->stack;
    return tensor;
  }

 private:
  // Parts of a stack are called after it: `down_proj_scale_inv`.
  [[nodiscard]] const LogicalTensor* other(std::string_view name) const {
    if (const auto found = others_.find(name); found != others_.end()) return found->second;
    for (std::size_t end = name.find_last_of("._"); end != std::string_view::npos && end > 0;
         end = name.find_last_of("._", end - 1)) {
      const auto found = others_.find(name.substr(0, end));
      if (found != others_.end() && is_stack(*found->second)) return found->second;
    }
    return nullptr;
  }

  std::map<std::string, const LogicalTensor*, std::less<>> singles_;
  std::map<std::string, const LogicalTensor*, std::less<>> others_;
};

// A view of the source, as its experts are gone through. `known` is the source under its family.
class Pruning {
 public:
  Pruning(const Checkpoint& source, const KeptExperts& kept, const Checkpoint& known,
          const ModelConfig& config)
      : source_(source), known_(known), kept_(kept), config_(config), view_(source) {
    if (&source != &known) meanings_.emplace(known);
  }

  void add(const LogicalTensor& given) {
    const LogicalTensor tensor = meanings_ ? meanings_->understood(given) : given;
    const auto layer = tensor.layer ? kept_.layers.find(*tensor.layer) : kept_.layers.end();
    if (layer == kept_.layers.end() || tensor.rule == nullptr) return view_.keep(given);
    const std::vector<std::uint32_t>& experts = layer->second;
    if (tensor.expert) return add_single(tensor, experts);
    if (is_stack(tensor)) return add_cut(tensor, 0, experts);
    if (tensor.rule->fine == FineRole::kRouterTable) return add_table(tensor, experts);
    if (const auto side = side_of_experts(tensor)) return add_cut(tensor, *side, experts);
    view_.keep(given);
  }

  Checkpoint finish(std::shared_ptr<const Checkpoint> source, Draft draft) {
    for (auto& [name, alias] : aliases_) draft.aliases.insert_or_assign(name, std::move(alias));
    return view_.finish(std::move(source), std::move(draft));
  }

 private:
  // The number of experts that the layer of a tensor has in the source.
  [[nodiscard]] std::uint64_t n_before(const LogicalTensor& tensor) const {
    return experts_of(known_.config(), tensor.layer);
  }

  // The side that has an entry for each expert; nullopt for a tensor that has none.
  [[nodiscard]] std::optional<std::size_t> side_of_experts(const LogicalTensor& tensor) const {
    const TensorRule& rule = *tensor.rule;
    const std::uint64_t n_left = n_before(tensor) - experts_of(config_, tensor.layer);
    if (rule.any_shape) {
      const bool is_of_router = rule.role == Role::kRouter || rule.role == Role::kRouterBias;
      return is_of_router && !tensor.shape.empty() && tensor.shape[0] == n_before(tensor)
                 ? std::optional<std::size_t>(0)
                 : std::nullopt;
    }
    const Shape before = rule_shape(rule, known_.config(), tensor.layer);
    const Shape after = rule_shape(rule, config_, tensor.layer);
    if (before == after) return std::nullopt;
    std::optional<std::size_t> side;
    for (std::size_t i = 0; i < before.size(); ++i) {
      if (before[i] == after[i]) continue;
      if (side || before[i] < n_left || before[i] - n_left != after[i])
        throw refused(source_, tensor, "it has a share for each expert in a form of its own");
      side = i;
    }
    if (is_of_attention(rule))
      throw refused(source_, tensor,
                    "attention has as many experts, which the config has one number for");
    return side;
  }

  static bool is_of_attention(const TensorRule& rule) {
    return rule.fine == FineRole::kAttentionRouter || rule.fine == FineRole::kExpertQueries ||
           rule.fine == FineRole::kExpertOutputs;
  }

  void add_single(LogicalTensor tensor, const std::vector<std::uint32_t>& experts) {
    const auto found = std::ranges::lower_bound(experts, *tensor.expert);
    if (found == experts.end() || *found != *tensor.expert) return;
    const auto number = static_cast<std::uint32_t>(found - experts.begin());
    const ExpertName name(known_, tensor);
    StoredParts parts;
    tensor.encoding.stored.for_each([&](Part part, std::uint32_t index) {
      const StoredTensor& stored = source_.stored()[index];
      const auto renamed = name.with(number, stored.name);
      if (!renamed) throw refused(source_, tensor, fmt::format("'{}' has no number", stored.name));
      if (const std::string_view alias = source_.alias_of(stored.name); !alias.empty())
        aliases_.emplace_back(*renamed, alias);
      parts.set(part, view_.keep(index, *renamed));
    });
    tensor.name = name.with(number, tensor.name).value();
    tensor.expert = number;
    tensor.encoding.stored = parts;
    put(std::move(tensor));
  }

  // Adds a tensor, which has no row in a checkpoint without a family.
  void put(LogicalTensor tensor) {
    if (meanings_) {
      tensor.rule = nullptr;
      tensor.layer.reset();
      tensor.expert.reset();
      tensor.stack = StackOrder::kNone;
    }
    view_.add(std::move(tensor));
  }

  // A stored tensor with only some entries of a side: those of the experts, and all behind them.
  std::uint32_t cut(std::uint32_t index, std::size_t side, std::uint64_t n_experts,
                    const std::vector<std::uint32_t>& experts) {
    const StoredTensor& stored = source_.stored()[index];
    std::vector<std::uint32_t> entries = experts;
    for (std::uint64_t n = n_experts; n < stored.shape[side]; ++n)
      entries.push_back(static_cast<std::uint32_t>(n));
    Shape shape = stored.shape;
    shape[side] = entries.size();
    const std::uint64_t before = std::accumulate(
        stored.shape.begin(), stored.shape.begin() + static_cast<std::ptrdiff_t>(side),
        std::uint64_t{1}, std::multiplies<>());
    const std::uint64_t whole = stored.n_bytes / before, entry = whole / stored.shape[side];
    View view{.nest = Nest(8, {{.n = before, .stride = whole},
                               {.n = entries.size(), .pieces = 1},
                               {.n = entry, .stride = 1}}),
              .pieces = {}};
    for (const std::uint32_t number : entries)
      view.pieces.push_back({.stored = index, .offset = number * entry});
    return view_.add(stored.name, std::move(shape), std::move(view));
  }

  void add_cut(LogicalTensor tensor, std::size_t side, const std::vector<std::uint32_t>& experts) {
    // Scales of a stack are those of each of its matrices; a row of another weight must have its
    // own.
    if (!is_stack(tensor) && is_coded(tensor.encoding.scheme) &&
        (side != 0 || tensor.encoding.block_rows != 1))
      throw refused(source_, tensor, "several experts share a scale");
    const std::uint64_t n_experts = n_before(tensor);
    StoredParts parts;
    tensor.encoding.stored.for_each([&](Part part, std::uint32_t index) {
      const StoredTensor& stored = source_.stored()[index];
      // One number for all experts.
      if (n_experts > 1 && element_count(stored.shape) == std::uint64_t{1})
        return parts.set(part, view_.keep(index));
      if (stored.shape.size() <= side || stored.shape[side] < n_experts)
        throw refused(source_, tensor,
                      fmt::format("'{}' of shape {} has no entry for each of {} experts",
                                  stored.name, shape_text(stored.shape), n_experts));
      parts.set(part, cut(index, side, n_experts, experts));
    });
    if (side < tensor.shape.size() && tensor.shape[side] >= n_experts)
      tensor.shape[side] -= n_experts - experts.size();
    tensor.encoding.stored = parts;
    put(std::move(tensor));
  }

  // The rows of the router that chooses for the same layer.
  [[nodiscard]] std::uint32_t router_of(const LogicalTensor& table) const {
    for (const LogicalTensor& given : source_.tensors()) {
      const LogicalTensor tensor = meanings_ ? meanings_->understood(given) : given;
      if (tensor.layer == table.layer && role_of(tensor) == Role::kRouter &&
          !is_coded(tensor.encoding.scheme) && tensor.shape.size() == 2 &&
          tensor.shape[0] >= n_before(table))
        return tensor.encoding.stored.weight();
    }
    throw refused(source_, table, "its layer has no router in plain numbers to compare experts by");
  }

  void add_table(LogicalTensor tensor, const std::vector<std::uint32_t>& experts) {
    const std::uint32_t index = tensor.encoding.stored.weight();
    const StoredTensor& stored = source_.stored()[index];
    if ((stored.dtype != DType::kI64 && stored.dtype != DType::kI32) || stored.shape.size() != 2 ||
        stored.shape[1] > experts.size())
      throw refused(source_, tensor, "it is no table of numbers of experts that can be read");
    const RouterTable table{.table = index,
                            .router = router_of(tensor),
                            .n_experts = n_before(tensor),
                            .kept = experts};
    View view{.nest = Nest(8, {{.n = stored.n_bytes, .stride = 1}}),
              .pieces = {{.stored = index}},
              .make = [table](const Checkpoint& source) { return redirected(source, table); },
              .made_dtype = stored.dtype};
    tensor.encoding.stored = StoredParts(view_.add(stored.name, stored.shape, std::move(view)));
    put(std::move(tensor));
  }

  const Checkpoint& source_;
  const Checkpoint& known_;
  std::optional<Meanings> meanings_;
  const KeptExperts& kept_;
  const ModelConfig& config_;
  ExpertView view_;
  std::vector<std::pair<std::string, std::string>> aliases_;
};

// A list of one layer, as it is in a document.
std::vector<std::uint32_t> experts_in(const Json& list, std::string_view layer, ErrorList& faults,
                                      std::string_view where) {
  const auto fault = [&](const std::string& fact) {
    faults.add(Error(ErrorCode::kInvalidArgument, "layer '{}' {}", layer, fact).in_file(where));
  };
  std::set<std::uint32_t> experts;
  if (!list.is_array() || list.empty()) fault("is no list of the experts that stay");
  if (!list.is_array()) return {};
  for (const Json& entry : list) {
    const auto number = whole_number(entry, ConfigKeys::kMaxCount);
    if (!number) {
      fault(fmt::format("has {}, which is no number of an expert", entry.dump()));
    } else if (!experts.insert(static_cast<std::uint32_t>(*number)).second) {
      fault(fmt::format("has expert {} a second time", *number));
    }
  }
  return {experts.begin(), experts.end()};
}

std::string routing_fault_of(const ModelConfig& config, std::uint64_t n_experts,
                             std::optional<std::uint32_t> layer = std::nullopt) {
  ModelConfig pruned = config;
  pruned.n_routed_experts = n_experts;
  pruned.by_layer.erase(std::string(kCount));
  try {
    (void)read_routing(pruned, layer);
  } catch (const Error& error) {
    return error.message();
  }
  return {};
}

// Groups of the router that keep more experts than others, so that some move to another group.
void remark_on_groups(const Checkpoint& source, const KeptExperts& kept,
                      std::vector<std::string>& remarks) {
  const std::size_t n_groups = read_routing(source.config()).groups;
  if (n_groups <= 1) return;
  std::vector<std::uint32_t> layers;
  for (const auto& [layer, experts] : kept.layers) {
    const std::uint64_t width = experts_of(source.config(), layer) / n_groups;
    for (std::size_t n = 0; n < experts.size(); ++n) {
      if (experts[n] / width == n / (experts.size() / n_groups)) continue;
      layers.push_back(layer);
      break;
    }
  }
  if (layers.empty()) return;
  remarks.push_back(
      fmt::format("in {} layer(s), as {}, the {} groups of the router do not keep the same number "
                  "of experts each, so that some experts are in another group now and others are "
                  "chosen for the same token",
                  layers.size(), layers.front(), n_groups));
}

}  // namespace

JsonValue KeptExperts::to_json() const {
  Json json = {{kNumberKey, n_experts}, {kLayersKey, Json::object()}};
  for (const auto& [layer, experts] : layers) json[kLayersKey][std::to_string(layer)] = experts;
  return json;
}

KeptExperts parse_kept_experts(const Json& document, std::string_view where) {
  KeptExperts kept;
  const bool has_layers = document.is_object() && document.contains(kLayersKey);
  const Json& layers = has_layers ? document.at(kLayersKey) : document;
  if (!layers.is_object() || layers.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                "is no object of layers with lists of the experts that stay, as {\"layers\": "
                "{\"3\": [0, 2, 5]}}")
        .in_file(where);
  }
  ErrorList faults;
  if (has_layers && document.contains(kNumberKey)) {
    const auto number = whole_number(document.at(kNumberKey), ConfigKeys::kMaxCount);
    if (!number)
      faults.add(Error(ErrorCode::kInvalidArgument, "'{}' is no number of experts", kNumberKey)
                     .in_file(where));
    kept.n_experts = number.value_or(0);
  }
  for (const auto& [name, list] : layers.items()) {
    const auto layer = layer_number(name);
    std::vector<std::uint32_t> experts = experts_in(list, name, faults, where);
    if (kept.n_experts != 0 && !experts.empty() && experts.back() >= kept.n_experts)
      faults.add(Error(ErrorCode::kInvalidArgument, "layer '{}' has expert {}, of {}", name,
                       experts.back(), kept.n_experts)
                     .in_file(where));
    if (!layer) {
      faults.add(Error(ErrorCode::kInvalidArgument,
                       "'{}' is no layer (its number, or a name such as model.layers.3.mlp)", name)
                     .in_file(where));
    } else if (!kept.layers.emplace(*layer, std::move(experts)).second) {
      faults.add(
          Error(ErrorCode::kInvalidArgument, "layer {} has a second list, '{}'", *layer, name)
              .in_file(where));
    }
  }
  faults.throw_if_any();
  return kept;
}

std::vector<std::uint32_t> layers_to_prune(const Checkpoint& source) {
  std::map<std::uint32_t, std::set<std::uint64_t>> found;
  for (const LogicalTensor& tensor : source.tensors()) {
    if (!tensor.layer || !is_of_routed_expert(role_of(tensor))) continue;
    const std::uint64_t n_experts = experts_of(source.config(), tensor.layer);
    std::set<std::uint64_t>& experts = found[*tensor.layer];
    if (tensor.expert) experts.insert(*tensor.expert);
    if (is_stack(tensor) && !tensor.shape.empty()) {
      for (std::uint64_t n = 0; n < std::min(tensor.shape[0], n_experts); ++n) experts.insert(n);
    }
  }
  std::vector<std::uint32_t> layers;
  for (const auto& [layer, experts] : found) {
    if (layer < source.config().num_hidden_layers ||
        experts.size() == experts_of(source.config(), layer))
      layers.push_back(layer);
  }
  return layers;
}

void require_experts(const Checkpoint& source) {
  const auto refuse = [&](std::string_view fact) {
    throw Error(ErrorCode::kUnsupported, std::string(fact)).in_file(source.directory().string());
  };
  if (source.slicing() != nullptr)
    refuse("one rank's slices stay as they are (give the directory above, or merge the ranks)");
  if (source.family().rules.empty())
    refuse(
        "experts are left out of a family that says which tensors are theirs (--family, or "
        "--family auto)");
  if (source.config().n_routed_experts == 0 || layers_to_prune(source).empty())
    refuse("has no routed experts that could be left out");
}

std::optional<std::uint64_t> nearest_fit(const ModelConfig& config, std::uint64_t n) {
  for (std::uint64_t step = 0; step < config.n_routed_experts; ++step) {
    if (n > step && n - step < config.n_routed_experts &&
        routing_fault_of(config, n - step).empty())
      return n - step;
    if (n + step < config.n_routed_experts && routing_fault_of(config, n + step).empty())
      return n + step;
  }
  return std::nullopt;
}

KeptExperts complete_list(const Checkpoint& source, KeptExperts kept,
                          std::vector<std::string>& remarks) {
  const ModelConfig& config = source.config();
  require_experts(source);
  const std::vector<std::uint32_t> layers = layers_to_prune(source);
  ErrorList faults;
  const auto fault = [&](std::string text) {
    faults.add(Error(ErrorCode::kInvalidArgument, std::move(text)));
  };
  if (kept.n_experts != 0 && kept.n_experts != config.n_routed_experts)
    fault(fmt::format("the list is for {} experts in a layer, the model has {}", kept.n_experts,
                      config.n_routed_experts));
  kept.n_experts = config.n_routed_experts;
  for (const auto& [layer, experts] : kept.layers) {
    if (!std::ranges::binary_search(layers, layer))
      fault(fmt::format("layer {} has no experts that could be left out", layer));
    const std::uint64_t n_experts = experts_of(config, layer);
    if (!experts.empty() && experts.back() >= n_experts)
      fault(fmt::format("layer {} has no expert {} (it has {}, from 0 on)", layer, experts.back(),
                        n_experts));
  }
  const auto last = std::ranges::find_if(layers.rbegin(), layers.rend(), [&](std::uint32_t layer) {
    return layer < config.num_hidden_layers;
  });
  for (const std::uint32_t layer : layers) {
    if (kept.layers.contains(layer)) continue;
    const auto model = last == layers.rend() ? kept.layers.end() : kept.layers.find(*last);
    if (layer < config.num_hidden_layers || model == kept.layers.end()) {
      fault(fmt::format("layer {} has experts, and the list does not have it", layer));
      continue;
    }
    kept.layers.emplace(layer, model->second);
    remarks.push_back(fmt::format(
        "MTP layer {} keeps the experts of layer {}, since nothing is known of its own: fewer of "
        "its drafts may be taken",
        layer, *last));
  }
  faults.throw_if_any();
  for (const auto& [layer, experts] : kept.layers) {
    const auto& [first, others] = *kept.layers.begin();
    if (experts.size() == others.size() || can_count_by_layer(source)) continue;
    throw Error(ErrorCode::kInvalidArgument,
                "layer {} keeps {} experts, layer {} {}: the config of family {} has one number "
                "for all layers (keep as many in each; of the families here only the config of "
                "hunyuan_v1_moe can say a number for each)",
                first, others.size(), layer, experts.size(), source.family().name);
  }
  if (std::ranges::all_of(kept.layers, [&](const auto& layer) {
        return layer.second.size() == experts_of(config, layer.first);
      }))
    throw Error(ErrorCode::kInvalidArgument, "all {} experts stay: nothing is left out",
                kept.n_experts);
  for (const auto& [layer, experts] : kept.layers) {
    const std::string found = routing_fault_of(config, experts.size(), layer);
    if (found.empty()) continue;
    const auto fits = nearest_fit(config, experts.size());
    throw Error(ErrorCode::kInvalidArgument, "{} of {} experts cannot stay: {}{}", experts.size(),
                experts_of(config, layer), found,
                fits ? fmt::format("; the nearest number that fits is {} (--keep {})", *fits,
                                   static_cast<double>(*fits) / static_cast<double>(kept.n_experts))
                     : "; no smaller number fits");
  }
  if (!is_even(kept))
    remarks.push_back(fmt::format("layers keep different numbers of experts: {}", kWhoReads));
  remark_on_groups(source, kept, remarks);
  return kept;
}

Checkpoint with_kept_experts(std::shared_ptr<const Checkpoint> source, const KeptExperts& kept,
                             const Checkpoint* meaning) {
  INGOT_CHECK(!kept.layers.empty());
  const Checkpoint& known = meaning != nullptr ? *meaning : *source;
  Json document = *source->config().raw;
  const ExpertNumbers numbers(known, kept.layers);
  for (const std::string& path : quantization_blocks(document))
    numbers.renumber(inner_object(document, path));
  Draft draft = source->draft_of_view();
  if (!draft.description.is_null()) {
    Json description = *draft.description;
    numbers.renumber(description);
    draft.description = std::move(description);
  }
  const ModelConfig config = pruned_config(known, kept, document);
  draft.config = meaning == nullptr ? config : config_of_view(*source, document);
  draft.config_text = json_text(document, json_form_of(source->config_text()));
  Pruning pruning(*source, kept, known, config);
  for (const LogicalTensor& tensor : source->tensors()) pruning.add(tensor);
  return pruning.finish(std::move(source), std::move(draft));
}

bool has_numbers_of(const ModelConfig& config, const KeptExperts& kept) {
  return std::ranges::all_of(kept.layers, [&](const auto& layer) {
    return experts_of(config, layer.first) == layer.second.size();
  });
}

std::vector<KeptExperts> recorded_experts(const Manifest& output) {
  std::vector<KeptExperts> lists;
  const Json& recorded = json_member(json_member(output.recipe, "choices"), "kept_experts");
  if (recorded.is_array()) {
    for (const Json& list : recorded) lists.push_back(parse_kept_experts(list, kManifestName));
  }
  return lists;
}

Checkpoint with_experts_kept_as_in(Checkpoint source, const Manifest& output) {
  const std::vector<KeptExperts> lists = recorded_experts(output);
  // The source may be one that was pruned before.
  std::size_t first = 0;
  for (std::size_t n = 0; n < lists.size(); ++n) {
    if (has_numbers_of(source.config(), lists[n])) first = n + 1;
  }
  for (std::size_t n = first; n < lists.size(); ++n) {
    const KeptExperts& kept = lists[n];
    if (kept.n_experts == 0 || source.config().n_routed_experts != kept.n_experts) continue;
    // Read as its files have it: the family says what is of which expert.
    std::optional<Checkpoint> known;
    if (source.family().rules.empty()) known.emplace(Checkpoint::open(source.directory()));
    source = with_kept_experts(std::make_shared<const Checkpoint>(std::move(source)), kept,
                               known ? &*known : nullptr);
  }
  if (lists.empty() || has_numbers_of(source.config(), lists.back())) return source;
  throw Error(
      ErrorCode::kMismatch,
      "has {} experts in a layer; the output was made of a model with {}, of which it keeps "
      "{} (give that one)",
      source.config().n_routed_experts, lists.back().n_experts,
      lists.back().layers.begin()->second.size())
      .in_file(source.directory().string());
}

}  // namespace ingot::formats
