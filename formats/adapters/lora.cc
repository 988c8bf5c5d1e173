#include "formats/adapters/lora.h"

#include <algorithm>
#include <cmath>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "formats/adapters/layer_places.h"
#include "formats/base/error.h"
#include "formats/base/words.h"
#include "formats/experts/separation.h"
#include "formats/files/hub_cache.h"
#include "formats/json/json.h"

namespace ingot::formats {
namespace {

std::string_view last_part(std::string_view path) {
  while (path.ends_with('/')) path.remove_suffix(1);
  return path.substr(path.rfind('/') + 1);
}

/// True if the model may be the one that the adapter names: by the hub's name, or a folder that
/// begins with its last word.
bool may_be(const Checkpoint& model, std::string_view base) {
  if (const auto snapshot = hub_snapshot_at(model.directory()))
    return lower_case(snapshot->model) == lower_case(base);
  const std::string here = lower_case(model.directory().filename().string());
  return here.starts_with(lower_case(last_part(base)));
}

/// Files of a tokenizer that the adapter's folder has, and the model's does not, or not so.
std::vector<std::string> other_tokenizers(const AdapterFile& adapter, const Checkpoint& model) {
  constexpr std::uint64_t kMaxTokenizerBytes = std::uint64_t{64} << 20;
  std::vector<std::string> others;
  for (const char* name : {"tokenizer.json", "tokenizer.model", "added_tokens.json"}) {
    const auto theirs = adapter.directory() / name, own = model.directory() / name;
    const auto their_stamp = stamp_of(theirs), own_stamp = stamp_of(own);
    if (!their_stamp) continue;
    const bool is_alike =
        own_stamp && own_stamp->n_bytes == their_stamp->n_bytes &&
        (own_stamp->n_bytes > kMaxTokenizerBytes ||
         read_text_file(own, kMaxTokenizerBytes) == read_text_file(theirs, kMaxTokenizerBytes));
    if (!is_alike) others.emplace_back(name);
  }
  return others;
}

/// The changes of one adapter of a model.
class Binder {
 public:
  Binder(const AdapterFile& file, const LoraOptions& options, const Checkpoint& model,
         ErrorList& faults)
      : file_(file), options_(options), model_(model), faults_(faults), places_(model) {}

  void add_all() {
    for (const auto& [name, stored] : file_.replaced()) replace(name, stored);
    for (const auto& [name, module] : file_.modules()) {
      if (module.token_rows != kNoTensor) add_token_rows(name, module);
      if (module.a == kNoTensor) continue;
      module.is_embedding ? add_embedding(name, module) : add_linear(name, module);
    }
  }

  [[nodiscard]] ValueChanges&& changes() && { return std::move(changes_); }
  [[nodiscard]] bool has_stacks() const { return has_stacks_; }

 private:
  /// A low-rank pair as the file has it for one layer: `left` [outputs, rank], `right` [rank,
  /// inputs].
  struct Pair {
    StoredMatrix left, right;
    std::uint64_t n_outputs = 0, n_inputs = 0, rank = 0;
    double factor = 1;
  };

  [[nodiscard]] StoredMatrix matrix(std::uint32_t stored, std::uint64_t first,
                                    std::uint64_t row_step, std::uint64_t col_step) const {
    return {.of = file_.numbers(),
            .stored = stored,
            .first = first,
            .row_step = row_step,
            .col_step = col_step};
  }
  [[nodiscard]] const Shape& shape(std::uint32_t stored) const {
    return file_.tensor(stored).shape;
  }

  template <typename... Args>
  void fault(std::uint32_t stored, ErrorCode code, fmt::format_string<Args...> format,
             Args&&... args) {
    faults_.add(fault_of(file_.numbers()->source().files(), file_.tensor(stored), code, format,
                         std::forward<Args>(args)...)
                    .in_directory(file_.directory().string()));
  }

  [[nodiscard]] bool lacks_own_head(std::string_view name) const {
    return model_.config().tie_word_embeddings &&
           (name.starts_with("lm_head") || name.starts_with("unembed_tokens"));
  }

  void miss(std::string_view name, std::uint32_t stored) {
    if (lacks_own_head(name)) {
      return fault(stored, ErrorCode::kUnsupported,
                   "changes the head, which is the embedding in this model, of whose tensors "
                   "nothing is known (give its family with --family, or --family auto)");
    }
    fault(stored, ErrorCode::kMissingTensor, "belongs to {}, which the model does not have", name);
  }

  [[nodiscard]] bool has_rank(std::string_view name, std::uint64_t rank, std::uint32_t stored) {
    if (rank == 0) {
      fault(stored, ErrorCode::kShapeMismatch, "has rank 0");
      return false;
    }
    const double said = file_.config().rank.of(name);
    if (said == static_cast<double>(rank)) return true;
    fault(stored, ErrorCode::kShapeMismatch, "has rank {}, and {} says {} for {}", rank,
          kAdapterConfigName, said, name);
    return false;
  }

  [[nodiscard]] double factor_of(std::string_view name, std::uint64_t rank) const {
    return file_.config().scale_of(name, rank) * options_.scale;
  }

  /// Adds a pair's outputs `own` to a place that has as many.
  void add_pair(const Pair& pair, const Window& own, const LayerPlace& place,
                std::uint32_t lengths = kNoTensor) {
    StoredMatrix left = pair.left;
    left.first += own.first * left.row_step;
    left.row_step *= own.step;
    const Window inputs{.n = place.n_inputs};
    ValueChange change{.tensor = place.tensor, .matrix = place.matrix};
    change.rows = place.is_turned ? inputs : place.outputs;
    change.cols = place.is_turned ? place.outputs : inputs;
    change.low_rank = {.left = place.is_turned ? pair.right.turned() : left,
                       .right = place.is_turned ? left.turned() : pair.right,
                       .rank = pair.rank,
                       .factor = pair.factor};
    if (lengths != kNoTensor) {
      change.lengths = matrix(lengths, own.first, own.step, 1);
      change.lengths_are_of_cols = place.is_turned;
    }
    changes_[place.tensor].push_back(std::move(change));
  }

  void add_linear(const std::string& name, const AdapterModule& module) {
    const bool is_flat = shape(module.a).size() == 2 && shape(module.b).size() == 2;
    auto place = is_flat && !module.is_leaf ? places_.linear(name) : std::nullopt;
    if (!place) return add_experts(name, module);
    if (file_.config().is_input_major) {
      place->is_turned = !place->is_turned;
      std::swap(place->outputs.n, place->n_inputs);
    }
    const Shape &a = shape(module.a), &b = shape(module.b);
    if (a[1] != place->n_inputs || b[0] != place->outputs.n || b[1] != a[0]) {
      return fault(module.a, ErrorCode::kShapeMismatch,
                   "of shape {} and lora_B of {} are for a layer of {} outputs and {} inputs, and "
                   "the model's {} has {} and {}",
                   shape_text(a), shape_text(b), b[0], a[1], name, place->outputs.n,
                   place->n_inputs);
    }
    if (!has_rank(name, a[0], module.a)) return;
    if (module.lengths != kNoTensor && element_count(shape(module.lengths)) != place->outputs.n) {
      return fault(module.lengths, ErrorCode::kShapeMismatch, "has shape {} for {} outputs",
                   shape_text(shape(module.lengths)), place->outputs.n);
    }
    const Pair pair{.left = matrix(module.b, 0, a[0], 1),
                    .right = matrix(module.a, 0, a[1], 1),
                    .n_outputs = b[0],
                    .n_inputs = a[1],
                    .rank = a[0],
                    .factor = factor_of(name, a[0])};
    add_pair(pair, {.n = b[0]}, *place, module.lengths);
    if (module.bias != kNoTensor) add_bias(name, module, pair);
  }

  void add_bias(const std::string& name, const AdapterModule& module, const Pair& pair) {
    const auto index = places_.tensor(fmt::format("{}.bias", name));
    if (!index) return miss(fmt::format("{}.bias", name), module.bias);
    if (model_.tensors()[*index].shape != shape(module.bias)) {
      return fault(module.bias, ErrorCode::kShapeMismatch, "has shape {}, and the model's bias {}",
                   shape_text(shape(module.bias)), shape_text(model_.tensors()[*index].shape));
    }
    ValueChange change{.tensor = *index, .rows = {.n = 1}, .cols = {.n = pair.n_outputs}};
    change.low_rank = {.left = {},
                       .right = matrix(module.bias, 0, pair.n_outputs, 1),
                       .rank = 1,
                       .factor = pair.factor};
    changes_[*index].push_back(std::move(change));
  }

  void add_embedding(const std::string& name, const AdapterModule& module) {
    const auto place = places_.linear(name);
    if (!place) return miss(name, module.a);
    const Shape &a = shape(module.a), &b = shape(module.b);
    const bool fits = a.size() == 2 && b.size() == 2 && a[1] == place->outputs.n &&
                      b[0] == place->n_inputs && b[1] == a[0];
    if (!fits) {
      return fault(module.a, ErrorCode::kShapeMismatch,
                   "of shape {} and lora_embedding_B of {} do not fit {}, which has {} rows of {}",
                   shape_text(a), shape_text(b), name, place->outputs.n, place->n_inputs);
    }
    if (!has_rank(name, a[0], module.a)) return;
    if (module.lengths != kNoTensor) {
      return fault(module.lengths, ErrorCode::kUnsupported,
                   "is DoRA of an embedding, whose form is another (merge it with PEFT)");
    }
    const Pair pair{.left = matrix(module.a, 0, 1, a[1]),
                    .right = matrix(module.b, 0, 1, a[0]),
                    .n_outputs = a[1],
                    .n_inputs = b[0],
                    .rank = a[0],
                    .factor = factor_of(name, a[0])};
    add_pair(pair, {.n = a[1]}, *place);
  }

  void add_token_rows(const std::string& name, const AdapterModule& module) {
    const auto place = places_.linear(name);
    if (!place) return miss(name, module.token_rows);
    const auto* ids = file_.config().ids_of(name);
    const Shape& rows = shape(module.token_rows);
    if (ids == nullptr || rows != Shape{ids->size(), place->n_inputs}) {
      return fault(module.token_rows, ErrorCode::kShapeMismatch,
                   "has shape {} for {} trainable_token_indices of rows of {}", shape_text(rows),
                   ids == nullptr ? 0 : ids->size(), place->n_inputs);
    }
    for (std::size_t i = 0; i < ids->size(); ++i) {
      if ((*ids)[i] >= place->outputs.n) {
        return fault(module.token_rows, ErrorCode::kShapeMismatch,
                     "replaces row {}, and the model's embedding has {}", (*ids)[i],
                     place->outputs.n);
      }
      changes_[place->tensor].push_back(
          {.tensor = place->tensor,
           .rows = {.first = (*ids)[i], .n = 1},
           .cols = {.n = place->n_inputs},
           .values = matrix(module.token_rows, i * place->n_inputs, place->n_inputs, 1)});
    }
  }

  void replace(const std::string& name, std::uint32_t stored) {
    const auto index = places_.tensor(name);
    if (!index && lacks_own_head(name) && repeats_embedding(file_, stored)) return;
    if (!index) return miss(name, stored);
    const LogicalTensor& tensor = model_.tensors()[*index];
    if (tensor.shape != shape(stored)) {
      return fault(stored, ErrorCode::kShapeMismatch, "has shape {}, and the model's {} has {}",
                   shape_text(shape(stored)), tensor.name, shape_text(tensor.shape));
    }
    // First of all: what is added goes on top.
    std::vector<ValueChange> first = replacement(tensor, *index, matrix(stored, 0, 0, 1));
    std::vector<ValueChange>& all = changes_[*index];
    all.insert(all.begin(), std::make_move_iterator(first.begin()),
               std::make_move_iterator(first.end()));
  }

  /// The parameter of a module of experts that a tensor is for: the inner one of nested wrappers is
  /// gate_up_proj, since transformers registers it first.
  struct Stacked {
    std::string module, leaf;
  };
  [[nodiscard]] std::optional<Stacked> stacked_of(const std::string& name,
                                                  const AdapterModule& module) const {
    constexpr std::string_view kInner = ".base_layer";
    if (name.ends_with(kInner))
      return Stacked{name.substr(0, name.size() - kInner.size()), "gate_up_proj"};
    const auto has_inner = file_.modules().contains(name + std::string(kInner));
    if (has_inner) return Stacked{name, "down_proj"};
    // A leaf of the module, as tinker and serving programs write it.
    const std::size_t dot = name.rfind('.');
    if (dot != std::string::npos &&
        (module.is_leaf || shape(module.a).size() == 3 || shape(module.b).size() == 3) &&
        places_.experts(name.substr(0, dot), name.substr(dot + 1)))
      return Stacked{name.substr(0, dot), name.substr(dot + 1)};
    std::set<std::string> leaves;
    for (const std::string& parameter : file_.config().target_parameters) {
      const std::size_t at = parameter.rfind('.');
      if (at == std::string::npos) continue;
      const std::string_view words = std::string_view(parameter).substr(0, at);
      if (name == words || name.ends_with(fmt::format(".{}", words)))
        leaves.insert(parameter.substr(at + 1));
    }
    if (leaves.size() == 1) return Stacked{name, *leaves.begin()};
    return by_shape(name, module);
  }

  /// The projection whose widths the adapter has, where only one of them does.
  [[nodiscard]] std::optional<Stacked> by_shape(const std::string& name,
                                                const AdapterModule& module) const {
    std::optional<Stacked> found;
    for (const std::string_view leaf : {"gate_up_proj", "down_proj"}) {
      const auto parameter = places_.experts(name, leaf);
      const auto place =
          parameter ? places_.expert(parameter->layer, parameter->members[0], 0) : std::nullopt;
      if (!place || shape(module.a).back() != place->n_inputs ||
          shape(module.b).front() != place->outputs.n * parameter->members.size())
        continue;
      if (found) return std::nullopt;
      found = Stacked{name, std::string(leaf)};
    }
    return found;
  }

  void add_experts(const std::string& name, const AdapterModule& module) {
    const auto stacked = stacked_of(name, module);
    const auto parameter = stacked ? places_.experts(stacked->module, stacked->leaf) : std::nullopt;
    const auto sample =
        parameter ? places_.expert(parameter->layer, parameter->members[0], 0) : std::nullopt;
    if (!sample) return miss(name, module.a);
    if (module.lengths != kNoTensor || module.bias != kNoTensor) {
      return fault(module.lengths != kNoTensor ? module.lengths : module.bias,
                   ErrorCode::kUnsupported,
                   "belongs to stacked experts, for which PEFT has no DoRA and no bias");
    }
    const std::uint64_t n_experts = places_.n_experts(), n_inputs = sample->n_inputs;
    const std::uint64_t n_members = parameter->members.size();
    const std::uint64_t n_outputs = sample->outputs.n * n_members;
    const std::string of = fmt::format("{}.{}", stacked->module, stacked->leaf);
    const Shape &a = shape(module.a), &b = shape(module.b);
    const auto refuse = [&] {
      fault(
          module.a, ErrorCode::kShapeMismatch,
          "of shape {} and lora_B of {} do not fit {} of {} experts with {} outputs and {} inputs",
          shape_text(a), shape_text(b), of, n_experts, n_outputs, n_inputs);
    };
    // [E r, columns], [E, r, columns], or [1, r, columns] for all.
    const bool is_shared = a.size() == 3 && a[0] == 1 && n_experts > 1;
    const bool is_flat = a.size() == 2 && n_experts > 0 && a[0] % n_experts == 0;
    if (!is_flat && !(a.size() == 3 && (is_shared || a[0] == n_experts))) return refuse();
    const std::uint64_t ranks_of_a = is_flat ? a[0] / n_experts : a[1], columns = a.back();
    // SGLang has the A of gate and up one after the other: [E, 2 r, columns].
    const bool has_own_a = n_members > 1 && a.size() == 3 && b.size() == 3 &&
                           b.back() * n_members == ranks_of_a && (b[0] == n_experts || b[0] == 1) &&
                           b[1] == n_outputs;
    const std::uint64_t rank = has_own_a ? b.back() : ranks_of_a;
    if (!has_rank(of, rank, module.a)) return;
    // PEFT up to 0.18 took every parameter for [E, inputs, outputs].
    const bool is_leaf = has_own_a || (b.size() == 3 && b.back() == rank &&
                                       (b[0] == n_experts || b[0] == 1) && b[0] != n_outputs);
    const std::uint64_t rows = is_leaf ? b[1] : b[0];
    const bool is_new = columns == n_inputs && rows == n_outputs;
    const bool is_old = columns == n_outputs && rows == n_inputs && !is_leaf;
    if (!is_new && !is_old) return refuse();
    if (is_new && is_old && !tells_version()) {
      return fault(module.a, ErrorCode::kUnsupported,
                   "may be PEFT's form up to 0.18 or the one of later versions, since {} has as "
                   "many inputs as outputs and the config has no peft_version (save it again with "
                   "PEFT 0.21 or later)",
                   of);
    }
    const bool swaps = is_old && !(is_new && tells_version() == Version::kNew);
    const std::uint64_t ranks = rank * n_experts;
    const bool fits_b = is_leaf || (b.size() == 2 && b[1] == ranks) ||
                        (b.size() == 3 && b[1] == rank && b[2] == n_experts);
    if (!fits_b) return refuse();
    const std::uint64_t a_step = is_shared ? 0 : ranks_of_a * columns;
    const bool is_block =
        b.size() == 2 && options_.expert_order.value_or(ExpertOrder::kPeft) == ExpertOrder::kBlock;
    if (b.size() == 2 && rank > 1 && n_experts > 1) has_stacks_ = true;
    std::uint64_t b_step = 1;
    StoredMatrix b_matrix = matrix(module.b, 0, ranks, n_experts);
    if (is_leaf) {
      b_step = b[0] == 1 ? 0 : rows * rank;
      b_matrix = matrix(module.b, 0, rank, 1);
      if (is_shared && b_step == 0) return refuse();
    } else if (is_block) {
      b_step = rank;
      b_matrix = matrix(module.b, 0, ranks, 1);
    }
    const StoredMatrix a_matrix = matrix(module.a, 0, columns, 1);
    Pair pair{.left = swaps ? a_matrix.turned() : b_matrix,
              .right = swaps ? b_matrix.turned() : a_matrix,
              .n_outputs = n_outputs,
              .n_inputs = n_inputs,
              .rank = rank,
              .factor = factor_of(of, rank)};
    for (std::uint32_t expert = 0; expert < n_experts; ++expert) {
      for (std::uint64_t m = 0; m < n_members; ++m) {
        const auto place = places_.expert(parameter->layer, parameter->members[m], expert);
        if (!place || place->outputs.n * n_members != n_outputs || place->n_inputs != n_inputs)
          return miss(fmt::format("expert {} of {}", expert, of), module.a);
        Pair of_member = pair;
        if (has_own_a) of_member.right.first += m * rank * columns;
        add_pair(of_member, rows_of_member(parameter->order, n_outputs, n_members, m), *place);
      }
      pair.left.first += swaps ? a_step : b_step;
      pair.right.first += swaps ? b_step : a_step;
    }
  }

  enum class Version : std::uint8_t { kOld, kNew };
  /// The form of stacked tensors that PEFT of the config's version writes; nullopt: not said.
  [[nodiscard]] std::optional<Version> tells_version() const {
    const std::string& version = file_.config().peft_version;
    const std::size_t dot = version.find('.');
    if (dot == std::string::npos || !version.starts_with("0.")) return std::nullopt;
    const std::string_view rest = std::string_view(version).substr(dot + 1);
    const auto minor = number_from<std::uint64_t>(rest.substr(0, rest.find('.')));
    if (!minor) return std::nullopt;
    return minor >= 21   ? std::optional(Version::kNew)
           : minor <= 18 ? std::optional(Version::kOld)
                         : std::nullopt;
  }

  const AdapterFile& file_;
  const LoraOptions& options_;
  const Checkpoint& model_;
  ErrorList& faults_;
  const LayerPlaces places_;
  ValueChanges changes_;
  bool has_stacks_ = false;
};

}  // namespace

void LoraAdapter::add_changes(const Checkpoint& model, ValueChanges& changes, ErrorList& faults,
                              std::vector<std::string>& remarks) const {
  Binder binder(file_, options_, model, faults);
  binder.add_all();
  const bool has_stacks = binder.has_stacks();
  const AdapterConfig& config = file_.config();
  std::vector<std::string> refused;
  for (auto& [index, of_tensor] : std::move(binder).changes()) {
    const std::string& name = model.tensors()[index].name;
    if (!config.residual_of.empty() && !matches_any(&options_.allow_residual, name))
      refused.push_back(name);
    std::vector<ValueChange>& all = changes[index];
    all.insert(all.end(), of_tensor.begin(), of_tensor.end());
  }
  if (!refused.empty()) {
    faults.add(Error(ErrorCode::kUnsupported,
                     "says init_lora_weights {}, which took a part out of the base: the adapter "
                     "fits what was left, not the released model ({} tensors, first {}; {} "
                     "--allow 'lora-base=PATTERN')",
                     config.residual_of, refused.size(), refused.front(),
                     config.residual_adds_up
                         ? "save it with path_initial_model_for_weight_conversion, or, where this "
                           "checkpoint is what was left,"
                         : "give the checkpoint that was left as the source, with")
                   .in_file((file_.directory() / kAdapterConfigName).string()));
  }
  if (!config.base_model.empty() && !may_be(model, config.base_model)) {
    remarks.push_back(
        fmt::format("the adapter was made for {}, by its {}; nothing tells that this "
                    "is that model",
                    config.base_model, kAdapterConfigName));
  }
  if (has_stacks && !options_.expert_order &&
      (file_.names_unsloth() || config.peft_version.empty())) {
    remarks.push_back(fmt::format(
        "the order of the numbers of stacked experts is not told by the adapter{}: they are read "
        "as PEFT does, and an unsloth before September 2026 trained them in blocks "
        "(--expert-b-order peft or block decides)",
        file_.names_unsloth() ? ", which names unsloth" : ""));
  }
  if (const auto others = other_tokenizers(file_, model); !others.empty()) {
    remarks.push_back(fmt::format(
        "the adapter's folder has {} of its own, and the output has the model's tokenizer (copy "
        "the adapter's over it where tokens were added)",
        fmt::join(others, ", ")));
  }
  const bool changes_embedding = std::ranges::any_of(changes, [&](const auto& entry) {
    return role_of(model.tensors()[entry.first]) == Role::kEmbedding;
  });
  if (changes_embedding && model.config().tie_word_embeddings)
    remarks.emplace_back("the adapter changes the embedding, which is the head of this model too");
}

Json LoraAdapter::record() const {
  const AdapterConfig& config = file_.config();
  Json json = {{"hash", file_.hash().hex()}, {"scale", options_.scale}};
  if (!config.base_model.empty()) json["base_model"] = config.base_model;
  if (!config.peft_version.empty()) json["peft_version"] = config.peft_version;
  if (config.has_lengths) json["dora"] = true;
  if (options_.expert_order) {
    json["expert_b_order"] =
        std::string(kExpertOrders[static_cast<std::size_t>(*options_.expert_order)]);
  }
  return json;
}

}  // namespace ingot::formats
