// Several checkpoints, seen as one.
//
// The problem: experts of one build, attention of another, an MTP layer of a third; scripts for one
// model each put them together, most by way of BF16.
//
// The choice: the tensors of the output are chosen before there is a plan, by the rules of the
// recipe and by headers only. What is chosen is one checkpoint over the files of all
// (formats/composed.h), so plan, execution, checks and verification are those of a conversion, and
// codes that no rule changes are copied with their scales.
//
// Rejected: a plan with several sources, since every pass would have to choose one; a merge of
// directories on disk, since it needs twice the disk, and no pass derives its config.

#include "convert/compose.h"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "convert/one_model.h"
#include "convert/plan/passes.h"
#include "convert/recipe/source_card.h"
#include "formats/checkpoint/checkpoint_listing.h"
#include "formats/composed.h"
#include "formats/dialect/dialect.h"
#include "formats/edited_tensors.h"
#include "formats/experts/expert_views.h"
#include "formats/family/cache_scales.h"
#include "formats/files/hub_cache.h"
#include "formats/overlay.h"
#include "formats/text/list_text.h"

namespace ingot::convert {

using formats::Checkpoint;
using formats::Giver;
using formats::LogicalTensor;
using formats::SchemeId;
using formats::TakenTensor;

namespace fs = std::filesystem;

namespace {

constexpr std::size_t kNamedTensors = 3;

/// An error of a directory that the recipe names, with its line there.
Error fault_at(const Composition& words, const NamedDirectory& at, ErrorCode code,
               std::string_view fact) {
  return Error(code, at.line > 0 ? fmt::format("line {}: {}", at.line, fact) : std::string(fact))
      .in_file(words.where);
}

/// Runs `body`; its errors name the line of the recipe that brought them about.
template <typename Body>
auto at_line(const Composition& words, const NamedDirectory& at, const Body& body) {
  try {
    return body();
  } catch (const Error& error) {
    if (at.line == 0 || error.code() == ErrorCode::kInterrupted) throw;
    throw fault_at(words, at, error.code(), fmt::format("'{}': {}", at.name, error.what()));
  }
}

/// Words about a text that may mean a model of the hub's cache; empty for any other.
std::string missing_model(const std::string& given) {
  const auto name = formats::parse_hub_name(given);
  return name ? fmt::format(", nor is a model of that name in the hub's cache (hf download {})",
                            name->model)
              : std::string();
}

/// Refuses paths that are no directories of checkpoints, and one directory under two names.
void require_directories(const Composition& words) {
  ErrorList faults;
  std::map<fs::path, const NamedDirectory*> seen;
  for (const NamedDirectory& at : words.givers) {
    std::error_code failure;
    const std::string path = at.path.string();
    if (!fs::exists(at.path, failure)) {
      faults.add(fault_at(words, at, ErrorCode::kNotFound,
                          fmt::format("'{}' is {}, which is not there{} (paths are relative to the "
                                      "recipe; --source {}=DIR names another)",
                                      at.name, path, missing_model(at.given), at.name)));
    } else if (!fs::is_directory(at.path, failure)) {
      faults.add(fault_at(
          words, at, ErrorCode::kInvalidArgument,
          fmt::format("'{}' is {}, a file: a recipe names directories of checkpoints, and no other "
                      "recipe (compose that first, and name its output)",
                      at.name, path)));
    } else {
      const auto [first, is_new] = seen.emplace(fs::canonical(at.path, failure), &at);
      if (!is_new)
        faults.add(fault_at(words, at, ErrorCode::kInvalidArgument,
                            fmt::format("'{}' and '{}' are one directory, {}", first->second->name,
                                        at.name, path)));
    }
  }
  faults.throw_if_any();
}

/// Opens the givers, each with the base's form of experts.
class Givers {
 public:
  Givers(const Composition& words, const ComposeOptions& options)
      : words_(words), options_(options) {
    require_directories(words);
    for (const NamedDirectory& at : words.givers) {
      if (at.kind != GiverKind::kBase && at.kind != GiverKind::kSource) continue;
      givers_.push_back({.name = at.name, .model = at_line(words, at, [&] { return open(at); })});
      places_.push_back(&at);
    }
    for (const NamedDirectory& at : words.givers) {
      if (at.kind == GiverKind::kOverlay) at_line(words, at, [&] { lay_over(at); });
    }
    for (const NamedDirectory& at : words.givers) {
      if (at.kind != GiverKind::kEdits) continue;
      const Checkpoint edits =
          at_line(words, at, [&] { return formats::open_loose_tensors(at.path, options.threads); });
      overlays_.push_back({.kind = at.kind,
                           .name = at.name,
                           .directory = at.path,
                           .licence = licence_of(read_source_card(edits, ""))});
    }
    ErrorList faults;
    for (std::size_t i = 1; i < givers_.size(); ++i) {
      try {
        at_line(words, *places_[i], [&] {
          ErrorList own;
          require_one_model(givers_[0], givers_[i], own);
          own.throw_if_any();
        });
      } catch (const Error& error) {
        faults.add(error);
      }
    }
    faults.throw_if_any();
    require_one_text();
  }

  [[nodiscard]] const std::vector<Giver>& all() const { return givers_; }
  [[nodiscard]] const std::vector<OverlayFacts>& overlays() const { return overlays_; }
  /// Names of the stored tensors of all overlays.
  [[nodiscard]] const std::set<std::string>& overlaid() const { return overlaid_; }
  [[nodiscard]] std::vector<std::string> remarks() const {
    std::vector<std::string> remarks = remarks_;
    for (std::size_t i = 1; i < givers_.size(); ++i) {
      for (std::string& text : differences_of(givers_[0], givers_[i], options_.threads))
        remarks.push_back(std::move(text));
      for (const std::string& text : givers_[i].model->remarks())
        remarks.push_back(fmt::format("source '{}': {}", givers_[i].name, text));
    }
    return remarks;
  }

 private:
  void lay_over(const NamedDirectory& at) {
    std::shared_ptr<const Checkpoint>& base = givers_[0].model;
    auto tensors =
        std::make_shared<const Checkpoint>(formats::open_loose_tensors(at.path, options_.threads));
    overlays_.push_back({.kind = at.kind,
                         .name = at.name,
                         .directory = at.path,
                         .licence = licence_of(read_source_card(*tensors, ""))});
    for (const formats::StoredTensor& stored : tensors->stored()) {
      if (!overlaid_.insert(stored.name).second)
        throw Error(ErrorCode::kDuplicate, "is in an overlay before this one too")
            .in_file(at.name)
            .in_tensor(stored.name);
    }
    const std::vector<std::string> remarks = base->remarks();
    const std::size_t n_tensors = tensors->stored().size(), n_before = base->stored().size();
    base = std::make_shared<const Checkpoint>(formats::with_overlay(
        base, {.name = at.name, .model = std::move(tensors)}, options_.threads));
    const std::size_t n_new = base->stored().size() - n_before;
    remarks_.push_back(
        fmt::format("overlay '{}': {} stored tensor(s) in place of the base's, {} new", at.name,
                    n_tensors - n_new, n_new));
    for (const std::string& text : remarks) {
      if (std::ranges::find(base->remarks(), text) == base->remarks().end())
        remarks_.push_back(text);
    }
  }

  std::shared_ptr<const Checkpoint> open(const NamedDirectory& at) const {
    std::string family = options_.family;
    // A file next to the base's weights says what the names of all mean.
    if (family.empty() && !givers_.empty() && !givers_[0].model->family().file_hash.empty())
      family = givers_[0].model->family().spec;
    try {
      Checkpoint model = options_.open(at.path, family);
      if (model.slicing() != nullptr) {
        throw Error(ErrorCode::kUnsupported,
                    "holds the slices of one rank (give the directory above, or merge the ranks)")
            .in_directory(at.path.string());
      }
      if (!givers_.empty())
        model =
            formats::with_experts_as_in(std::move(model), formats::experts_held(*givers_[0].model));
      return std::make_shared<const Checkpoint>(std::move(model));
    } catch (Error& error) {
      error.in_directory(at.path.string());
      throw;
    }
  }

  /// Tokens of one model mean the same in all its parts.
  void require_one_text() {
    ErrorList faults;
    for (std::size_t i = 1; i < givers_.size(); ++i) {
      const std::vector<std::string> names =
          differing_side_files(*givers_[0].model, *givers_[i].model);
      if (names.empty()) continue;
      const std::string list = list_text(names, kNamedTensors);
      if (words_.takes_base_side_files) {
        remarks_.push_back(
            fmt::format("source '{}' has another {}: the base's is written (side-files: base)",
                        givers_[i].name, list));
        continue;
      }
      faults.add(
          fault_at(words_, *places_[i], ErrorCode::kMismatch,
                   fmt::format("source '{}' has another {} than the base: which one is meant? "
                               "(`side-files: base` in the recipe writes the base's; to write the "
                               "source's, make it the base and take the other's tensors by rules)",
                               givers_[i].name, list)));
    }
    faults.throw_if_any();
  }

  const Composition& words_;
  const ComposeOptions& options_;
  std::vector<Giver> givers_;
  std::vector<const NamedDirectory*> places_;  // by giver
  std::vector<OverlayFacts> overlays_;
  std::set<std::string> overlaid_;
  std::vector<std::string> remarks_;
};

/// Chooses the giver of each tensor, by the rules.
class Choice {
 public:
  Choice(const Composition& words, const Recipe& recipe, const std::vector<Giver>& givers)
      : words_(words), recipe_(recipe), givers_(givers) {
    for (const Giver& giver : givers) {
      auto& names = names_.emplace_back();
      const auto tensors = giver.model->tensors();
      for (std::uint32_t i = 0; i < tensors.size(); ++i) names.emplace(tensors[i].name, i);
    }
    n_taken_.resize(givers.size());
    take_of_base();
    for (std::uint32_t giver = 1; giver < givers.size(); ++giver) take_new(giver);
    refuse_missing();
  }

  [[nodiscard]] const std::vector<TakenTensor>& taken() const { return taken_; }
  [[nodiscard]] std::vector<std::string> remarks() const {
    std::vector<std::string> remarks = remarks_;
    for (std::size_t giver = 1; giver < givers_.size(); ++giver) {
      if (n_taken_[giver] == 0)
        remarks.push_back(
            fmt::format("source '{}' gives no tensor: no rule that wins takes one "
                        "from it",
                        givers_[giver].name));
    }
    return remarks;
  }

 private:
  /// The rule that decides about a tensor, and the giver that it names.
  [[nodiscard]] std::pair<const Rule*, std::uint32_t> decide(const LogicalTensor& tensor) const {
    for (const Rule& rule : recipe_.rules) {
      if (!rule.matches(tensor)) continue;
      const auto named = std::ranges::find(givers_, rule.from, &Giver::name);
      return {&rule, rule.from.empty() ? 0U : static_cast<std::uint32_t>(named - givers_.begin())};
    }
    return {nullptr, 0};
  }

  void take(std::uint32_t giver, std::uint32_t tensor) {
    taken_.push_back({.giver = giver, .tensor = tensor});
    ++n_taken_[giver];
  }

  void take_of_base() {
    const auto tensors = givers_[0].model->tensors();
    std::size_t n_caches = 0;
    for (std::uint32_t i = 0; i < tensors.size(); ++i) {
      const auto [rule, giver] = decide(tensors[i]);
      const auto found = names_[giver].find(tensors[i].name);
      if (found != names_[giver].end()) {
        take(giver, found->second);
      } else if (formats::is_cache_scale(tensors[i].rule)) {
        // A cache's scales go with no weight.
        take(0, i);
        ++n_caches;
      } else {
        missing_[rule].push_back(tensors[i].name);
      }
    }
    if (n_caches > 0)
      remarks_.push_back(
          fmt::format("{} scale(s) of the key-value cache stay the base's: the "
                      "sources of their rules have none",
                      n_caches));
  }

  /// Tensors that the base lacks, as those of an MTP layer.
  void take_new(std::uint32_t giver) {
    const auto tensors = givers_[giver].model->tensors();
    for (std::uint32_t i = 0; i < tensors.size(); ++i) {
      if (!names_[0].contains(tensors[i].name) && decide(tensors[i]).second == giver)
        take(giver, i);
    }
  }

  void refuse_missing() const {
    ErrorList faults;
    for (const auto& [rule, names] : missing_) {
      faults.add(Error(ErrorCode::kMissingTensor,
                       "{}the rule '{}' takes {} tensor(s) from '{}' that it does not have: {} "
                       "(narrow its match, or put a rule before it that keeps them: match: '{}', "
                       "from: base)",
                       rule->line > 0 ? fmt::format("line {}: ", rule->line) : "",
                       rule->selector.text(), names.size(), rule->from,
                       list_text(names, kNamedTensors), names.front())
                     .in_file(rule->line > 0 ? words_.where : std::string()));
    }
    faults.throw_if_any();
  }

  const Composition& words_;
  const Recipe& recipe_;
  const std::vector<Giver>& givers_;
  std::vector<std::map<std::string_view, std::uint32_t>> names_;  // by giver
  std::vector<TakenTensor> taken_;
  std::vector<std::size_t> n_taken_;  // by giver
  std::map<const Rule*, std::vector<std::string>> missing_;
  std::vector<std::string> remarks_;
};

/// Tensors of one form, for which a dialect needs one row.
struct HeldForm {
  SchemeId scheme{};
  bool has_inputs = false;  ///< static activations, whose scales are stored
  bool is_single_expert = false;
  auto operator<=>(const HeldForm&) const = default;
};

bool holds_all(const formats::Dialect& dialect, const formats::Family& family,
               const std::set<HeldForm>& forms) {
  std::set<SchemeId> schemes;
  for (const HeldForm& form : forms) {
    schemes.insert(form.scheme);
    const auto wanted = form.has_inputs ? std::optional(formats::Activations::kStatic)
                                        : std::optional<formats::Activations>();
    const formats::StorageRow* row = formats::find_storage(dialect, family, form.scheme, wanted);
    if (row == nullptr || row->is_read_only) return false;
    if (formats::is_of_experts(dialect, family, form.scheme) && !form.is_single_expert)
      return false;
  }
  return schemes.size() < 2 || formats::holds_mixtures(dialect, family);
}

/// Sets the dialect that holds every scheme of the output, where the user leaves it open.
void choose_dialect(const Checkpoint& model, Recipe& recipe) {
  Choices& choices = recipe.choices;
  if (!choices.dialect.empty() || choices.engine != nullptr || recipe.to) return;
  std::set<HeldForm> forms;
  for (const LogicalTensor& tensor : model.tensors()) {
    const SchemeId from = tensor.encoding.scheme;
    const SchemeId to = recipe.decide(tensor).scheme.value_or(from);
    if (!formats::is_quantized(to)) continue;
    forms.insert(
        {.scheme = to,
         .has_inputs = to == from && tensor.encoding.stored.has(formats::Part::kInputScale),
         .is_single_expert =
             is_routed_expert(role_of(tensor)) && tensor.stack == formats::StackOrder::kNone});
  }
  if (forms.empty()) return;
  std::vector<const formats::Dialect*> candidates;
  for (const Giver& giver : model.givers()) candidates.push_back(&giver.model->dialect());
  for (const formats::Dialect* dialect : formats::dialects()) candidates.push_back(dialect);
  const auto found = std::ranges::find_if(candidates, [&](const formats::Dialect* dialect) {
    return !dialect->is_read_only && holds_all(*dialect, model.family(), forms);
  });
  if (found != candidates.end()) {
    choices.dialect = (*found)->name;
    return;
  }
  std::set<std::string_view> names;
  for (const HeldForm& form : forms) names.insert(formats::scheme_name(form.scheme));
  throw Error(ErrorCode::kUnsupported,
              "no dialect holds {} in one checkpoint (give some tensors another scheme: a rule "
              "with scheme: bf16; or choose with --dialect, which says what it cannot hold)",
              fmt::format("{}", fmt::join(names, ", ")));
}

/// Global scales of sets that loaders fuse, where their members come from several givers.
std::map<std::string, formats::GlobalScale> globals_of_mixed_sets(const Checkpoint& model) {
  std::map<std::string, std::vector<const LogicalTensor*>> sets;
  for (const LogicalTensor& tensor : model.tensors()) {
    if (tensor.encoding.stored.has(formats::Part::kGlobal))
      sets[fused_module(tensor)].push_back(&tensor);
  }
  std::map<std::string, formats::GlobalScale> globals;
  for (const auto& [key, set] : sets) {
    const bool is_mixed = std::ranges::any_of(
        set, [&](const LogicalTensor* tensor) { return tensor->giver != set.front()->giver; });
    if (!is_mixed) continue;
    for (const LogicalTensor* tensor : set)
      globals.emplace(tensor->name, *formats::ScaleReader(model, *tensor).global());
  }
  return globals;
}

/// Stored tensors of overlays over weights of the base that are taken from elsewhere.
std::vector<std::string> idle_overlaid(const Givers& givers,
                                       const std::vector<TakenTensor>& taken) {
  if (givers.overlaid().empty()) return {};
  const Checkpoint& base = *givers.all().front().model;
  std::set<std::string> idle = givers.overlaid();
  for (const TakenTensor& at : taken) {
    if (at.giver != 0) continue;
    base.tensors()[at.tensor].encoding.stored.for_each(
        [&](formats::Part, std::uint32_t index) { idle.erase(base.stored()[index].name); });
  }
  return {idle.begin(), idle.end()};
}

/// Weights of the base whose scales of activations an overlay gives.
std::set<std::string> inputs_laid_over(const Checkpoint& model,
                                       const std::set<std::string>& overlaid) {
  std::set<std::string> inputs;
  for (const LogicalTensor& tensor : model.tensors()) {
    const formats::StoredParts& stored = tensor.encoding.stored;
    if (!is_taken(tensor) && stored.has(formats::Part::kInputScale) &&
        overlaid.contains(model.stored()[stored[formats::Part::kInputScale]].name))
      inputs.insert(tensor.name);
  }
  return inputs;
}

}  // namespace

std::shared_ptr<const Checkpoint> compose(const Composition& words, Recipe& recipe,
                                          const ComposeOptions& options) {
  const Givers givers(words, options);
  for (const NamedDirectory& at : words.givers) {
    if (at.kind != GiverKind::kEdits) continue;
    recipe.choices.editors.push_back(at_line(words, at, [&] {
      return std::make_shared<const formats::EditedTensors>(at.path, options.threads);
    }));
  }
  recipe.set_layers(givers.all().front().model->config().num_hidden_layers);
  const Choice choice(words, recipe, givers.all());
  std::vector<std::string> remarks = givers.remarks();
  const std::vector<std::string> idle = idle_overlaid(givers, choice.taken());
  if (!idle.empty())
    remarks.push_back(
        fmt::format("{} stored tensor(s) of overlays have no effect, since rules take their "
                    "weights from other sources: {}",
                    idle.size(), list_text(idle, kNamedTensors)));
  for (std::string& text : choice.remarks()) remarks.push_back(std::move(text));
  auto model = std::make_shared<const Checkpoint>(
      formats::composed(givers.all(), choice.taken(), std::move(remarks)));
  recipe.choices.composed = std::make_shared<const ComposedFacts>(
      ComposedFacts{.overlays = givers.overlays(),
                    .globals = globals_of_mixed_sets(*model),
                    .inputs = inputs_laid_over(*model, givers.overlaid()),
                    .rescales = words.rescales,
                    .takes_base_side_files = words.takes_base_side_files});
  choose_dialect(*model, recipe);
  return model;
}

}  // namespace ingot::convert
