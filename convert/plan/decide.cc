#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "check/rules/loader_rules.h"
#include "convert/plan/band.h"
#include "convert/plan/passes.h"
#include "convert/plan/repair.h"
#include "convert/recipe/narrowing.h"
#include "engines/limits.h"
#include "formats/base/error.h"
#include "formats/composed.h"
#include "formats/config/nested_config.h"
#include "formats/dialect/dialect.h"
#include "formats/family/text_names.h"
#include "formats/json/json.h"
#include "formats/modules/joined_module.h"
#include "formats/modules/module_list.h"
#include "formats/storage/encoding.h"

namespace ingot::convert {

using formats::Activations;
using formats::Checkpoint;
using formats::LogicalTensor;
using formats::Part;
using formats::SchemeId;
using formats::StorageRow;

namespace {

// Refuses weights in forms that every engine that is judged refuses. One engine that loads
// everything is enough: loader rules report the refusals of others.
void refuse_what_no_engine_loads(const Plan& plan, ErrorList& refusals) {
  const formats::Dialect& dialect = *plan.target.dialect;
  engines::EngineLimitsMet met(dialect);
  std::vector<engines::EngineWeight> weights;
  for (const PlannedTensor& planned : plan.tensors) {
    const formats::LogicalTensor& tensor = plan.tensor_of(planned);
    // A tensor that is copied is as the source's maker wanted it.
    if (planned.storage == nullptr || any_matches(plan.recipe.allow.engine_refuses, tensor.name))
      continue;
    weights.push_back(
        {.name = tensor.name,
         .rule = tensor.rule,
         .scheme = planned.to,
         .activations = planned.storage->activations,
         .has_group_order = has_optional_part(planned, tensor, formats::Part::kGroupOrder),
         .has_zero_points = has_optional_part(planned, tensor, formats::Part::kZeroPoint),
         .family = plan.source.family().name,
         .is_stacked = tensor.stack != formats::StackOrder::kNone});
    met.add(weights.back());
  }
  if (!met.is_refused_by_all()) return;
  std::vector<std::string_view> names;
  for (const engines::EngineRow* engine : engines::judged_versions()) names.push_back(engine->name);
  for (const engines::EngineWeight& weight : weights) {
    for (const auto& [engine, limit] : engines::limits_of_all(dialect, weight)) {
      if (!limit->is_refusal() || !limit->is_of_form()) continue;
      refusals.add(ErrorCode::kUnsupported, weight.name,
                   "none of {} loads this: {} refuses {} with {} activations in dialect {} "
                   "({}); it loads {} (--allow 'engine-refuses=PATTERN' writes it "
                   "anyway)",
                   fmt::join(names, ", "), engine->name, formats::scheme_facts(weight.scheme).name,
                   activations_name(weight.activations), dialect.name, limit->reason,
                   limit->instead);
    }
  }
}

constexpr std::array<std::uint64_t, 2> kReleasedBlock = {128, 128};
constexpr std::uint64_t kCodesPerWord = 8;  // of INT4
// A band of one row of scale groups must fit in memory many times over.
constexpr std::uint64_t kMaxBandBytes = std::uint64_t{256} << 20;

bool says_ue8m0(const formats::Json& block) {
  return formats::text_at(block, "scale_fmt") == "ue8m0";
}

// True if the source's config or manifest says that its FP8 scales, which it has or had before it
// was cast, are powers of two.
bool source_says_ue8m0(const Plan& plan) {
  return says_ue8m0(plan.source_facts.quantization);
}

// True if the checkpoint that gave a tensor says so.
bool giver_says_ue8m0(const Plan& plan, const LogicalTensor& tensor) {
  return formats::is_taken(tensor)
             ? says_ue8m0(formats::quantization_block(plan.source.giver_of(tensor).config()))
             : source_says_ue8m0(plan);
}

// Scales of MX formats are powers of two by definition.
bool has_mx_tensors(const Checkpoint& source) {
  return std::ranges::any_of(source.tensors(), [](const LogicalTensor& tensor) {
    return formats::scheme_facts(tensor.encoding.scheme).scale_dtype == formats::DType::kF8E8M0;
  });
}

// The form of a weight that is_seen_only(), in words.
std::string form_of_files(const formats::Encoding& encoding) {
  const std::string_view scheme = scheme_name(encoding.scheme);
  if (is_read_only(encoding.scheme)) return std::string(scheme);
  if (formats::is_packed_int8(encoding)) return "packed in 8 bits";
  return fmt::format("{} {}", scheme,
                     encoding.is_reordered ? "with scales that no loader takes so"
                                           : "whose columns have factors (pre_quant_scale)");
}

// The row by which `check` tells the same.
std::string_view plain_module_rule(const formats::Dialect& dialect, SchemeId scheme) {
  for (const check::LoaderRule& rule : check::loader_rules()) {
    if (rule.name.ends_with(".plain-module") && rule.dialect == dialect.name &&
        (rule.schemes == nullptr || rule.schemes(formats::scheme_facts(scheme))))
      return rule.name;
  }
  return "";
}

class Decider {
 public:
  explicit Decider(Plan& plan) : plan_(plan) {}

  void run() {
    plan_.target.via = recipe_.choices.via;
    const bool ue8m0 = source_says_ue8m0(plan_) || has_mx_tensors(source_);
    source_grid_ = ue8m0 ? quantize::Fp8Grid::kUe8m0 : quantize::Fp8Grid::kAmax;
    plan_.target.encode = {.fp8_grid = recipe_.choices.fp8_grid.value_or(source_grid_),
                           .search = recipe_.choices.search};
    find_source_group();
    find_changes(plan_, refusals_);
    find_touched_modules();
    listed_ = modules_left_plain(plan_);
    for (std::uint32_t i = 0; i < source_.tensors().size(); ++i) decide_by_rules(i);
    for (const PlannedTensor& planned : plan_.tensors) {
      if (planned.action == Action::kQuantize) encoded_experts_.insert(experts_of(planned));
    }
    look_for_other_experts();
    require_single_scheme();
    if (n_listed_ > 0) {
      plan_.warnings.push_back(
          fmt::format("{} weights stay plain, as the source's own list of modules says (--rule "
                      "role:ROLE=SCHEME quantizes them)",
                      n_listed_));
    }
    require_sound_mtp(plan_, refusals_);
    for (std::string& text : narrowing_.sentences(recipe_))
      plan_.warnings.push_back(std::move(text));
    for (PlannedTensor& planned : plan_.tensors) apply_dialect(planned);
    settle_cache_scales(plan_);
    settle_words_of_codes(plan_, refusals_);
    refuse_what_no_engine_loads(plan_, refusals_);
    refusals_.throw_if_any();
    set_released_scales(plan_, released_, refusals_);
    require_search();
    require_zero_points_fit();
    join_fused_tensors(plan_, refusals_);
    agree_on_globals(plan_, refusals_);
    require_used_inputs(plan_, refusals_);
    set_input_scales(plan_, refusals_);
    set_importance(plan_, refusals_);
    set_moments(plan_, refusals_);
    refusals_.throw_if_any();
    claim_powers_of_two();
  }

 private:
  bool is_composed() const { return recipe_.choices.composed != nullptr; }

  const formats::Dialect& dialect_of(const LogicalTensor& tensor) const {
    return source_.giver_of(tensor).dialect();
  }

  bool is_mtp(const LogicalTensor& tensor) const {
    return tensor.layer && *tensor.layer >= source_.config().num_hidden_layers;
  }

  // True if a default would quantize a tensor that the makers of the source left plain.
  bool stays_plain(const LogicalTensor& tensor, const Decision& decision) const {
    if (listed_.empty() || is_quantized(tensor.encoding.scheme) || !decision.scheme ||
        !is_quantized(*decision.scheme) || decision.rule->origin != RuleOrigin::kDefault)
      return false;
    const std::string_view module = formats::module_name(tensor.name);
    return std::ranges::any_of(
        formats::module_aliases(module, source_.config().text),
        [&](const std::string& name) { return formats::names_or_holds(listed_, name); });
  }

  // The module that loaders make of a weight and others, which has one scheme: all experts of a
  // layer are one.
  static std::string layer_module(const LogicalTensor& tensor) {
    std::string module =
        formats::joined_module(tensor.name, tensor.rule, formats::ExpertJoin::kLayer);
    return module.empty() ? tensor.name : module;
  }

  // Modules of which some value changes.
  void find_touched_modules() {
    if (!recipe_.choices.keep_touched) return;
    for (const auto& [index, changes] : plan_.changes)
      touched_.insert(layer_module(source_.tensors()[index]));
  }

  // True if --keep-touched holds a tensor wider than this scheme.
  bool is_kept_wider(const LogicalTensor& tensor, SchemeId to) const {
    const auto& wide = recipe_.choices.keep_touched;
    return wide && is_quantized(to) &&
           formats::scheme_facts(to).code_bits < formats::scheme_facts(*wide).code_bits &&
           touched_.contains(layer_module(tensor));
  }

  // Decides by the rules, before the dialect: kCopy, kCast, kQuantize or kDrop.
  void decide_by_rules(std::uint32_t i) {
    const LogicalTensor& tensor = source_.tensors()[i];
    const SchemeId from = tensor.encoding.scheme;
    Decision decision = recipe_.decide(tensor);
    const bool is_asked_for = decision.scheme.has_value();
    // Everything that was chosen for a composed model is meant to stay as it is.
    if (is_composed() && !decision.scheme && is_quantized(from)) decision.scheme = from;
    if (stays_plain(tensor, decision)) {
      decision.scheme.reset();
      ++n_listed_;
    }
    narrowing_.note(tensor, decision);
    PlannedTensor planned{.tensor = i, .action = Action::kCopy, .to = from};
    planned.is_changed = plan_.changes.contains(i);
    if (is_kept_wider(tensor, decision.scheme.value_or(from)))
      decision.scheme = recipe_.choices.keep_touched;
    if (decision.scheme && (*decision.scheme != from || (is_asked_for && changes_grid(tensor)))) {
      planned.to = *decision.scheme;
      planned.action = is_quantized(planned.to) ? Action::kQuantize : Action::kCast;
    } else if (decision.scheme && is_quantized(from)) {
      is_selected_[from] = true;
      // Packed codes are the same codes in words of their own.
      if (formats::is_seen_only(tensor.encoding)) planned.action = Action::kRewrap;
    }
    if (planned.action == Action::kQuantize) is_selected_[planned.to] = true;
    if (recipe_.mtp == MtpPolicy::kDrop && is_mtp(tensor)) planned.action = Action::kDrop;
    plan_.tensors.push_back(planned);
  }

  // FP8 blocks to FP8 blocks, and INT4 to INT4, keep their scales unless another grid or group, or
  // another model's scales, were asked for. Packed INT8 keeps the scales of rows; its groups are
  // blocks of a form that is not written.
  bool changes_grid(const LogicalTensor& tensor) const {
    const SchemeId scheme = tensor.encoding.scheme;
    if (formats::is_seen_only(tensor.encoding))
      return scheme != SchemeId::kInt8Channel || !formats::is_packed_int8(tensor.encoding);
    if (!quantize::find_scheme(scheme) || !quantize::find_scheme(scheme)->takes_scales)
      return false;
    if (recipe_.choices.scales_from != nullptr) return true;
    if (scheme == SchemeId::kFp8Block) return plan_.target.encode.fp8_grid != source_grid_;
    const std::uint64_t group = tensor.encoding.block_cols, cols = tensor.shape.back();
    return formats::scheme_facts(scheme).chooses_cols && recipe_.choices.group_size &&
           group != (*recipe_.choices.group_size == 0 ? cols : *recipe_.choices.group_size);
  }

  // The group of the source's first weight whose columns share a scale by choice.
  void find_source_group() {
    for (const LogicalTensor& tensor : source_.tensors()) {
      if (!formats::scheme_facts(tensor.encoding.scheme).chooses_cols) continue;
      source_group_ = formats::stated_group_cols(tensor.encoding.block_cols, tensor.shape.back());
      return;
    }
  }

  // The block of an encoded weight, where a checkpoint may choose it.
  std::array<std::uint64_t, 2> chosen_block(const PlannedTensor& planned,
                                            const LogicalTensor& tensor) const {
    if (!formats::scheme_facts(planned.to).chooses_cols) return kReleasedBlock;
    if (recipe_.choices.group_size) return {1, *recipe_.choices.group_size};
    if (const LogicalTensor* released = released_.find(tensor.name);
        released != nullptr && released->encoding.scheme == planned.to)
      return {1, released->encoding.block_cols};
    return {1, source_group_.value_or(kReleasedBlock[1])};
  }

  // Engines load few of ModelOpt's mixtures: a file that describes one is written only where rules
  // ask for several schemes, or the source has them in this dialect.
  bool keeps_others() const {
    return holds_mixtures() &&
           (dialect_.description_file.empty() || &dialect_ == &source_.dialect() || is_composed());
  }

  bool holds_mixtures() const {
    return formats::holds_mixtures(dialect_, source_.family()) || holds_other_experts_;
  }

  bool is_of_experts(SchemeId scheme) const {
    return formats::is_of_experts(dialect_, source_.family(), scheme);
  }
  static bool is_single_expert(const LogicalTensor& tensor) {
    return is_routed_expert(role_of(tensor)) && tensor.stack == formats::StackOrder::kNone;
  }

  // Sets holds_other_experts_: routed experts have a scheme that the dialect has for them next to
  // FP8 blocks, and no rule asks for a third.
  void look_for_other_experts() {
    const bool has_experts = std::ranges::any_of(plan_.tensors, [&](const PlannedTensor& planned) {
      return planned.action != Action::kDrop && is_of_experts(planned.to) &&
             is_single_expert(plan_.tensor_of(planned));
    });
    holds_other_experts_ =
        has_experts && std::ranges::all_of(is_selected_, [&](const auto& selected) {
          return selected.first == SchemeId::kFp8Block || is_of_experts(selected.first);
        });
  }

  void require_single_scheme() {
    if (holds_mixtures() || is_selected_.size() < 2) return;
    std::string names;
    for (const auto& [scheme, unused] : is_selected_)
      names += fmt::format("{}{}", names.empty() ? "" : " and ", scheme_name(scheme));
    throw Error(ErrorCode::kUnsupported,
                "dialect {} holds one quantized scheme, the rules ask for {} (use --dialect "
                "compressed-tensors)",
                dialect_.name, names);
  }

  bool has_wanted_activations(SchemeId scheme) const {
    return !recipe_.choices.activations ||
           formats::find_storage(dialect_, source_.family(), scheme, recipe_.choices.activations) !=
               nullptr;
  }

  // True if a quantized tensor can be kept unchanged when rules quantize others.
  bool can_stay(const LogicalTensor& tensor) const {
    const SchemeId scheme = tensor.encoding.scheme;
    if (formats::is_seen_only(tensor.encoding)) return false;
    const formats::Dialect& own = dialect_of(tensor);
    if (&dialect_ == &own && is_selected_.empty()) return true;
    // Loaders of another dialect build such a module plain.
    if (&dialect_ != &own && tensor.rule != nullptr &&
        !formats::can_be_quantized(dialect_, *tensor.rule) && !is_allowed(tensor) &&
        !plain_module_rule(dialect_, scheme).empty())
      return false;
    if (formats::find_storage(dialect_, source_.family(), scheme) == nullptr) return false;
    if (is_of_experts(scheme) && !is_single_expert(tensor)) return false;
    if (!is_selected_.empty() && holds_other_experts_ && scheme != SchemeId::kFp8Block &&
        !is_of_experts(scheme))
      return false;
    if (!holds_mixtures() && is_selected_.empty() && !has_wanted_activations(scheme) &&
        std::ranges::any_of(source_.tensors(), [&](const LogicalTensor& other) {
          return is_quantized(other.encoding.scheme) &&
                 has_wanted_activations(other.encoding.scheme);
        }))
      return false;  // of several schemes, the dialect keeps the one that --activations fit
    return keeps_others() || is_selected_.empty() || is_selected_.contains(scheme);
  }

  void apply_dialect(PlannedTensor& planned) {
    const LogicalTensor& tensor = plan_.tensor_of(planned);
    const SchemeId from = tensor.encoding.scheme;
    const bool is_seen_only = formats::is_seen_only(tensor.encoding);
    if (planned.action == Action::kCopy && (is_quantized(from) || is_seen_only)) {
      if (is_seen_only && is_selected_.empty()) {
        return refusals_.add(ErrorCode::kUnsupported, tensor.name,
                             "is {}, a form that is only read (--to bf16)",
                             form_of_files(tensor.encoding));
      }
      if (!can_stay(tensor)) {
        if (is_composed()) {
          return refusals_.add(ErrorCode::kUnsupported, tensor.name,
                               "is {}, which dialect {} cannot hold here, and no rule gives it "
                               "another scheme (a rule with scheme: bf16, or another dialect)",
                               form_of_files(tensor.encoding), dialect_.name);
        }
        planned.action = Action::kCast;
        planned.to = SchemeId::kBf16;
        planned.is_demoted = true;
      } else if (&dialect_ != &dialect_of(tensor) || wants_other_activations(tensor) ||
                 (!is_selected_.empty() && tensor.encoding.stored.has(Part::kOutputScale))) {
        // A block that is made again says nothing of outputs.
        planned.action = Action::kRewrap;
      }
    }
    const bool is_encoded_again = planned.is_changed && (planned.action == Action::kCopy ||
                                                         planned.action == Action::kRewrap);
    if (is_encoded_again) return encode_again(planned, tensor);
    if (planned.action == Action::kCast || planned.action == Action::kQuantize) {
      if (!quantize::can_convert(from, planned.to)) {
        refusals_.add(ErrorCode::kUnsupported, tensor.name,
                      "cannot convert {} to {} (keep them with --rule "
                      "'PATTERN=keep'; see ingot list schemes)",
                      scheme_name(from), scheme_name(planned.to));
        return;
      }
    }
    if (planned.action == Action::kQuantize) {
      if (tensor.shape.size() >= 2) {
        planned.block =
            formats::scale_group(planned.to, tensor.shape, chosen_block(planned, tensor));
      }
      require_shape(planned, tensor);
      require_quantizable(planned, tensor);
    }
    if (planned.action == Action::kRewrap && is_seen_only) require_quantizable(planned, tensor);
    if (planned.action == Action::kCast && !goes_through_bands(tensor, planned))
      require_bands(planned, tensor);
    if (planned.action == Action::kQuantize || planned.action == Action::kRewrap) {
      planned.storage = storage_of(planned, tensor);
      if (planned.action == Action::kRewrap)
        planned.block = {tensor.encoding.block_rows, tensor.encoding.block_cols};
      planned.adds_zero_points = recipe_.choices.zero_points &&
                                 planned.action == Action::kQuantize &&
                                 planned.storage != nullptr && takes_zero_points(*planned.storage);
    }
  }

  // The row of the source's own dialect that has just the parts of a tensor, under the names of its
  // files, and of several that with the activations which the files say; null: another dialect or
  // other activations are asked for.
  const StorageRow* own_row(const LogicalTensor& tensor) {
    if (&dialect_ != &source_.dialect() || recipe_.choices.activations) return nullptr;
    const formats::StoredParts& stored = tensor.encoding.stored;
    const Activations activations = said_of(tensor).of(tensor.name, tensor.encoding);
    const StorageRow* found = nullptr;
    for (const auto rows : formats::storage_rows(dialect_, source_.family())) {
      for (const StorageRow& row : rows) {
        bool fits = row.scheme == tensor.encoding.scheme;
        for (const formats::PartRow& at : row.parts)
          fits = fits && (at.is_optional || stored.has(at.part));
        stored.for_each([&](Part part, std::uint32_t index) {
          const formats::PartRow* at = formats::find_part_row(row, part);
          fits = fits && at != nullptr &&
                 formats::part_name(*at, tensor.name) == source_.stored()[index].name;
        });
        if (fits && (found == nullptr || row.activations == activations)) found = &row;
        if (fits && row.activations == activations) return found;
      }
    }
    return found;
  }

  // Values that change in the scheme that they have, in the source's blocks.
  void encode_again(PlannedTensor& planned, const LogicalTensor& tensor) {
    const formats::StoredParts& stored = tensor.encoding.stored;
    // Moments of inputs go by blocks of neighbours, which an order takes apart.
    const bool takes_moments =
        recipe_.choices.gptq || recipe_.choices.search == quantize::ScaleSearch::kHessian;
    const bool has_order = stored.has(Part::kGroupOrder);
    const bool is_known = quantize::can_convert(planned.to, planned.to) &&
                          !(has_order && takes_moments) && !stored.has(Part::kQuantBias);
    if (!is_known) {
      return refusals_.add(
          ErrorCode::kUnsupported, tensor.name,
          "changes, and is {}{}, which is not encoded here (give it another scheme "
          "with --to or --rule, or --keep-touched bf16)",
          scheme_name(planned.to),
          stored.has(Part::kQuantBias) ? " with a bias of its codes"
          : has_order                  ? " with columns in an order of groups, by moments"
                                       : "");
    }
    if (!is_quantized(planned.to)) {
      planned.action = Action::kCast;
      return;
    }
    planned.action = Action::kRewrap;
    planned.storage = own_row(tensor);
    planned.keeps_input = planned.storage != nullptr && stored.has(Part::kInputScale);
    if (planned.storage == nullptr) planned.storage = storage_of(planned, tensor);
    planned.action = Action::kQuantize;
    planned.block = {tensor.encoding.block_rows, tensor.encoding.block_cols};
    planned.adds_zero_points = stored.has(Part::kZeroPoint);
    planned.keeps_group_order = has_order;
  }

  // Activations of a tensor, as the files of its giver say.
  const formats::SourceActivations& said_of(const LogicalTensor& tensor) {
    if (!said_) said_.emplace(source_);
    return said_->said_of(tensor);
  }

  // In the same dialect a tensor is copied, unless --activations asks for others than it has.
  bool wants_other_activations(const LogicalTensor& tensor) {
    const auto& wanted = recipe_.choices.activations;
    if (!wanted) return false;
    const bool has_scale = tensor.encoding.stored.has(Part::kInputScale);
    const bool is_said = said_of(tensor).of(tensor.name, tensor.encoding) == Activations::kStatic;
    const bool is_other =
        wanted == Activations::kStatic ? !has_scale || !is_said : has_scale || is_said;
    return is_other && formats::find_storage(dialect_, source_.family(), tensor.encoding.scheme,
                                             wanted) != nullptr;
  }

  // True if scales are stored for activations that, as the source's files say, are not quantized.
  bool has_unused_inputs(const LogicalTensor& tensor) {
    return tensor.encoding.stored.has(Part::kInputScale) &&
           said_of(tensor).of(tensor.name, tensor.encoding) == Activations::kWeightOnly;
  }

  // The module of all experts of a layer, of which the tensor is one; empty: of none.
  std::string_view experts_of(const PlannedTensor& planned) const {
    return formats::experts_of(formats::module_name(plan_.tensor_of(planned).name));
  }

  // The row for codes that are kept with the scales of their activations; null: the source has
  // none, or the dialect no place for them, or the recipe asks for others or none, or other
  // projections of the same experts are encoded, which have none: loaders build experts alike.
  const StorageRow* row_of_kept_inputs(const PlannedTensor& planned, const LogicalTensor& tensor) {
    const Choices& choices = recipe_.choices;
    const bool takes_stored = !choices.input_scale && choices.activation_scales == nullptr &&
                              choices.activations == Activations::kStatic;
    if (planned.action != Action::kRewrap || (choices.activations && !takes_stored)) return nullptr;
    if (!takes_stored && has_unused_inputs(tensor)) return nullptr;
    const std::string_view experts = experts_of(planned);
    if (!takes_stored && !experts.empty() && encoded_experts_.contains(experts)) return nullptr;
    const auto keeps_all = [&](const StorageRow& row) {
      return !row.is_read_only && row.scheme == planned.to && keeps_inputs(row, source_, tensor);
    };
    for (const auto rows : formats::storage_rows(dialect_, source_.family())) {
      if (const auto row = std::ranges::find_if(rows, keeps_all); row != rows.end()) return &*row;
    }
    return nullptr;
  }

  // The row for codes of a dialect that is only read, or with unused scales of activations, with
  // the activations that its files say; null: there is none. No engine loads INT8 without quantized
  // activations.
  const StorageRow* chosen_row(const PlannedTensor& planned, const LogicalTensor& tensor) {
    if (!dialect_of(tensor).is_read_only && !has_unused_inputs(tensor)) return nullptr;
    const Activations activations = said_of(tensor).of(tensor.name, tensor.encoding);
    const bool is_int8 = formats::scheme_facts(planned.to).code == formats::CodeKind::kInt8;
    const bool is_possible = activations != Activations::kStatic &&
                             !(is_int8 && activations == Activations::kWeightOnly);
    return is_possible ? formats::find_storage(dialect_, source_.family(), planned.to, activations)
                       : nullptr;
  }

  const StorageRow* storage_of(PlannedTensor& planned, const LogicalTensor& tensor) {
    const auto& wanted = recipe_.choices.activations;
    const formats::Family& family = source_.family();
    const StorageRow* row = row_of_kept_inputs(planned, tensor);
    planned.keeps_input = row != nullptr;
    if (row == nullptr && !wanted && planned.action == Action::kRewrap)
      row = chosen_row(planned, tensor);
    if (row == nullptr) row = formats::find_storage(dialect_, family, planned.to, wanted);
    // A tensor that is only kept may have any row of its scheme.
    if (row == nullptr && planned.action == Action::kRewrap)
      row = formats::find_storage(dialect_, family, planned.to);
    if (row != nullptr && row->is_read_only && planned.action == Action::kQuantize) row = nullptr;
    if (is_of_experts(planned.to) && !is_single_expert(tensor)) row = nullptr;
    if (row == nullptr) {
      std::string held;
      for (const StorageRow& other : dialect_.storage) {
        if (other.is_read_only) continue;
        held += fmt::format("{}{} ({})", held.empty() ? "" : ", ", scheme_name(other.scheme),
                            activations_name(other.activations));
      }
      refusals_.add(ErrorCode::kUnsupported, tensor.name,
                    "dialect {} cannot hold {}{}{} (it holds {})", dialect_.name,
                    scheme_name(planned.to), wanted ? " with activations " : "",
                    wanted ? activations_name(*wanted) : "", held);
      return nullptr;
    }
    if (!wanted && !planned.keeps_input && !row->activations_choice.empty()) {
      // Stored codes tell a repair.
      if (recipe_.choices.repair != nullptr) {
        const auto activations = repaired_activations(said_of(tensor), dialect_, tensor);
        if (const StorageRow* found =
                formats::find_storage(dialect_, family, planned.to, activations);
            found != nullptr && activations != Activations::kStatic)
          return found;
      }
      refusals_.add(ErrorCode::kInvalidArgument, tensor.name,
                    "dialect {} needs --activations for {}: {}", dialect_.name,
                    scheme_name(planned.to), row->activations_choice);
    }
    return row;
  }

  void require_bands(const PlannedTensor& planned, const LogicalTensor& tensor) {
    try {
      (void)BandPlan::to_cast(tensor, planned.to);
    } catch (const Error& error) {
      refusals_.add(error.code(), tensor.name, "{}", error.message());
    }
  }

  bool is_allowed(const LogicalTensor& tensor) const {
    return any_matches(recipe_.allow.engine_refuses, tensor.name);
  }

  void require_quantizable(const PlannedTensor& planned, const LogicalTensor& tensor) {
    if (tensor.rule == nullptr || formats::can_be_quantized(dialect_, *tensor.rule)) return;
    if (is_allowed(tensor) || tensor.shape.size() < 2) return;
    refusals_.add(ErrorCode::kUnsupported, tensor.name,
                  "no loader of mixtures builds {} quantized, but a rule asks for {} "
                  "(loader rule {}; leave it out of the rule; --allow "
                  "'engine-refuses=PATTERN' writes it anyway)",
                  formats::role_name(tensor.rule->role), scheme_name(planned.to),
                  plain_module_rule(dialect_, planned.to));
  }

  void require_shape(const PlannedTensor& planned, const LogicalTensor& tensor) {
    const formats::SchemeFacts& facts = formats::scheme_facts(planned.to);
    const auto refuse = [&](const std::string& fact) {
      refusals_.add(ErrorCode::kUnsupported, tensor.name, "{}", fact);
    };
    if (tensor.shape.size() < 2)
      return refuse(
          fmt::format("{} needs a matrix (rule them out with --rule 'PATTERN=keep')", facts.name));
    if (std::ranges::find(tensor.shape, std::uint64_t{0}) != tensor.shape.end())
      return refuse(fmt::format(
          "{} needs values, and there are none (rule them out with --rule 'PATTERN=keep')",
          facts.name));
    if (const std::string fault = expert_form_fault(plan_, planned); !fault.empty())
      return refuse(fault);
    const bool is_group_along_row = facts.group_rows == 1 && facts.group_cols > 1;
    const std::uint64_t group = planned.block[1];
    if (is_group_along_row && tensor.shape.back() % group != 0) {
      refuse(fmt::format(
          "{} needs columns in multiples of {}, and padding would change the model "
          "({}write them otherwise, e.g. --rule 'PATTERN=bf16')",
          facts.name, group, facts.chooses_cols ? other_groups(tensor.shape.back()) : ""));
      return;
    }
    if (facts.chooses_cols && tensor.shape.back() % kCodesPerWord != 0) {
      refuse(
          fmt::format("{} packs {} columns into a word, and {} are no multiple (write them "
                      "otherwise, e.g. --rule 'PATTERN=bf16')",
                      facts.name, kCodesPerWord, tensor.shape.back()));
      return;
    }
    const BandPlan bands = BandPlan::to_encode(tensor, planned.to, planned.block);
    if (bands.buffer_bytes() > kMaxBandBytes) {
      refuse(fmt::format("rows too long to encode as {} in memory", facts.name));
    }
  }

  // `--group-size 32 or 64 would do; `, for so many columns; empty where none would.
  static std::string other_groups(std::uint64_t cols) {
    std::string words;
    for (const std::uint64_t size : {32U, 64U, 128U}) {
      if (cols % size == 0) words += fmt::format("{}{}", words.empty() ? "" : " or ", size);
    }
    if (cols % kCodesPerWord == 0) words += words.empty() ? "row" : " or row";
    return words.empty() ? "" : fmt::format("--group-size {} would do; or ", words);
  }

  static bool takes_zero_points(const StorageRow& row) {
    return row.scheme == SchemeId::kInt4Group &&
           formats::find_part_row(row, Part::kZeroPoint) != nullptr;
  }

  // Zero points are chosen with the scales, none of which is negative.
  void require_zero_points_fit() {
    if (!recipe_.choices.zero_points) return;
    if (recipe_.choices.search == quantize::ScaleSearch::kSigned) {
      throw Error(ErrorCode::kInvalidArgument,
                  "--search signed has negative scales in place of zero points, and --zero-points "
                  "has less error than these (give --zero-points without --search)");
    }
    if (recipe_.choices.scales_from != nullptr) {
      throw Error(ErrorCode::kInvalidArgument,
                  "--zero-points chooses scales and zero points together, and --scales-from gives "
                  "scales (leave one of them out)");
    }
  }

  // Schemes that do not have the search take mse, where another one has it.
  void require_search() {
    const PlannedTensor* first = nullptr;
    for (const PlannedTensor& planned : plan_.tensors) {
      if (!searches_scales(plan_, planned)) continue;
      if (has_search(planned)) return;
      if (first == nullptr) first = &planned;
    }
    if (first == nullptr) return;
    std::string words;
    for (const quantize::ScaleSearch search : quantize::find_scheme(first->to)->searches)
      words += fmt::format("{}{}", words.empty() ? "" : ", ", scale_search_name(search));
    refusals_.add(ErrorCode::kInvalidArgument, plan_.tensor_of(*first).name,
                  "--search {} does not belong to {} (which has {})",
                  scale_search_name(recipe_.choices.search), scheme_name(first->to), words);
  }

  bool has_search(const PlannedTensor& planned) const {
    const auto searches = quantize::find_scheme(planned.to)->searches;
    return std::ranges::find(searches, recipe_.choices.search) != searches.end();
  }

  void claim_powers_of_two() {
    const Checkpoint* release = recipe_.choices.scales_from.get();
    const bool release_claims = release != nullptr && release->config().quantization &&
                                release->config().quantization->scale_fmt == "ue8m0";
    bool any = false;
    bool all = true;
    for (const PlannedTensor& planned : plan_.tensors) {
      if (planned.to != SchemeId::kFp8Block || planned.action == Action::kDrop) continue;
      any = true;
      if (planned.action != Action::kQuantize) {
        // Block FP8 has its own scales; tensors of MX formats tell nothing of them.
        const std::uint32_t scale = plan_.tensor_of(planned).encoding.stored[Part::kScale];
        const RepairFacts* repair = recipe_.choices.repair.get();
        const bool is_so = repair != nullptr ? repair->power_of_two_scales
                                             : giver_says_ue8m0(plan_, plan_.tensor_of(planned));
        all = all && (is_so || source_.stored()[scale].dtype == formats::DType::kF8E8M0);
      } else if (planned.scales != PlannedTensor::kNone) {
        all = all && release_claims;
      } else {
        all = all && plan_.target.encode.fp8_grid == quantize::Fp8Grid::kUe8m0;
      }
    }
    plan_.target.power_of_two_scales = any && all;
  }

  Plan& plan_;
  const Checkpoint& source_ = plan_.source;
  const Recipe& recipe_ = plan_.recipe;
  const formats::Dialect& dialect_ = *plan_.target.dialect;
  quantize::Fp8Grid source_grid_ = quantize::Fp8Grid::kAmax;
  std::optional<std::uint64_t> source_group_;
  std::vector<std::string> listed_;                 // modules that the source leaves plain, sorted
  std::size_t n_listed_ = 0;                        // weights that stay plain for that
  std::optional<formats::StoredActivations> said_;  // see said_of()
  const ReleasedTensors released_{recipe_.choices.scales_from.get()};
  std::set<std::string> touched_;  // see find_touched_modules()
  std::map<SchemeId, bool> is_selected_;
  std::set<std::string_view> encoded_experts_;  // see experts_of(); of those that are encoded
  bool holds_other_experts_ = false;
  Narrowing narrowing_;
  ErrorList refusals_;
};

}  // namespace

void decide(Plan& plan) {
  Decider(plan).run();
}

}  // namespace ingot::convert
