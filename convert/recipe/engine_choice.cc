#include "convert/recipe/engine_choice.h"

#include <algorithm>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "engines/limits.h"
#include "formats/base/error.h"
#include "formats/dialect/dialect.h"
#include "formats/text/spelling.h"

namespace ingot::convert {

using engines::EngineLoad;
using engines::EngineRow;
using formats::Checkpoint;
using formats::Dialect;
using formats::SchemeId;

namespace {

// Quantized schemes that the output is to have: of --to and of rules, else those of the source. The
// first decides.
std::vector<SchemeId> wanted_schemes(const Recipe& recipe, const Checkpoint& source) {
  std::vector<SchemeId> schemes;
  const auto add = [&](SchemeId scheme) {
    if (is_quantized(scheme) && std::ranges::find(schemes, scheme) == schemes.end())
      schemes.push_back(scheme);
  };
  if (recipe.to) add(*recipe.to);
  for (const Rule& rule : recipe.rules) {
    if (rule.scheme) add(*rule.scheme);
  }
  if (!schemes.empty() || recipe.to) return schemes;
  for (const formats::LogicalTensor& tensor : source.tensors()) add(tensor.encoding.scheme);
  return schemes;
}

/// The rows of an engine that a model can use.
class Loads {
 public:
  Loads(const EngineRow& engine, const Checkpoint& source)
      : engine_(engine), family_(source.family()) {
    weights_.push_back({.name = "linear",
                        .rule = nullptr,
                        .scheme = {},
                        .activations = {},
                        .family = family_.name});
    const auto tensors = source.tensors();
    const auto expert = std::ranges::find_if(tensors, [](const formats::LogicalTensor& tensor) {
      return engines::is_expert(
          {.name = tensor.name, .rule = tensor.rule, .scheme = {}, .activations = {}});
    });
    if (expert != tensors.end()) {
      weights_.push_back({.name = expert->name,
                          .rule = expert->rule,
                          .scheme = {},
                          .activations = {},
                          .family = family_.name});
    }
  }

  /// The rows of a scheme that load for experts and all else, in the order of the table; without
  /// any, those that load for one of them, which is enough for a rule about these.
  [[nodiscard]] std::vector<const EngineLoad*> of(SchemeId scheme) const {
    std::vector<const EngineLoad*> rows = of(scheme, weights_.size());
    return rows.empty() ? of(scheme, 1) : rows;
  }

  /// The engine's reason against a scheme that it does not load, `: ` before it; empty where none
  /// is known.
  [[nodiscard]] std::string reason(SchemeId scheme) const {
    const auto is_met = [&](const engines::EngineLimit& limit) {
      return limit.is_refusal() &&
             (limit.family.empty()
                  ? limit.scheme == scheme && !is_special(limit.scope)
                  : limit.family == family_.name && limit.scheme.value_or(scheme) == scheme);
    };
    const auto limit = std::ranges::find_if(engine_.limits, is_met);
    return limit == engine_.limits.end() ? std::string() : fmt::format(": {}", limit->reason);
  }

  /// The names of all schemes that it loads of this model.
  [[nodiscard]] std::string names() const {
    std::vector<std::string_view> names;
    for (const formats::SchemeFacts& facts : formats::schemes()) {
      if (!of(facts.id, weights_.size()).empty()) names.push_back(facts.name);
    }
    return fmt::format("{}", fmt::join(names, ", "));
  }

  [[nodiscard]] bool holds_mixtures(const EngineLoad& row) const {
    return formats::holds_mixtures(*formats::find_dialect(row.dialect), family_);
  }

 private:
  [[nodiscard]] std::vector<const EngineLoad*> of(SchemeId scheme, std::size_t least) const {
    std::vector<const EngineLoad*> rows;
    for (const EngineLoad& row : engine_.loads) {
      const bool is_written = row.dialect.empty() || formats::find_dialect(row.dialect) != nullptr;
      if (row.scheme == scheme && is_written && n_loaded(row) >= least) rows.push_back(&row);
    }
    return rows;
  }

  /// For how many kinds of weights the engine refuses nothing.
  [[nodiscard]] std::size_t n_loaded(const EngineLoad& row) const {
    const Dialect* dialect = formats::find_dialect(row.dialect);
    if (dialect == nullptr) return weights_.size();
    // A dialect that holds only stacks belongs to a family.
    const formats::StorageRow* storage = formats::find_storage(*dialect, family_, row.scheme);
    // Experts of another scheme than the rest are asked for by rules and --dialect.
    if (storage == nullptr || formats::is_of_experts(*dialect, family_, row.scheme)) return 0;
    const bool is_of_stacks = storage->experts == formats::ExpertForm::kStacked;
    if (is_of_stacks && dialect->name != family_.dialect) return 0;
    std::size_t n = 0;
    for (engines::EngineWeight weight : weights_) {
      weight.scheme = row.scheme;
      weight.activations = *row.activations;
      weight.is_stacked = is_of_stacks;
      const engines::EngineLimit* limit = engines::limit_of(engine_, *dialect, weight);
      if (limit == nullptr || !limit->is_refusal()) ++n;
    }
    return n;
  }

  const EngineRow& engine_;
  const formats::Family& family_;
  std::vector<engines::EngineWeight> weights_;  // an expert, if there are any, and another
};

std::string text_of(const std::vector<const EngineLoad*>& rows) {
  std::vector<std::string> texts;
  for (const EngineLoad* row : rows)
    texts.push_back(fmt::format("{} ({})", row->dialect, activations_name(*row->activations)));
  return fmt::format("{}", fmt::join(texts, ", "));
}

// Throws for schemes that the engine has no row for.
void require_loaded(const EngineRow& engine, const std::vector<SchemeId>& schemes,
                    const Loads& loads) {
  for (const SchemeId scheme : schemes) {
    if (!loads.of(scheme).empty()) continue;
    throw Error(ErrorCode::kUnsupported,
                "{} does not load {} of this model{} (it loads {}; see ingot list loads)",
                engine.name, scheme_name(scheme), loads.reason(scheme), loads.names());
  }
}

// True if the dialect of a row may hold all of some schemes for the engine.
bool holds_all(const EngineLoad& row, const std::vector<SchemeId>& schemes, const Loads& loads) {
  if (schemes.size() > 1 && !loads.holds_mixtures(row)) return false;
  return std::ranges::all_of(schemes, [&](SchemeId scheme) {
    const std::vector<const EngineLoad*> rows = loads.of(scheme);
    return std::ranges::find(rows, row.dialect, &EngineLoad::dialect) != rows.end();
  });
}

// Throws because no row of the engine is left under the user's choices, or for this mixture.
[[noreturn]] void refuse_choice(const EngineRow& engine, const Choices& choices, SchemeId scheme,
                                const std::vector<const EngineLoad*>& rows) {
  std::string asked = choices.dialect.empty() ? "" : fmt::format(" --dialect {}", choices.dialect);
  if (choices.activations)
    asked += fmt::format(" --activations {}", activations_name(*choices.activations));
  if (asked.empty()) {
    throw Error(ErrorCode::kUnsupported,
                "{} does not load {} together with another quantized scheme (one scheme for all, "
                "or bf16 for the others)",
                engine.name, scheme_name(scheme));
  }
  throw Error(ErrorCode::kInvalidArgument,
              "{} does not load{}: {} of this model it reads in {} (leave {} out)", engine.name,
              asked, scheme_name(scheme), text_of(rows),
              choices.dialect.empty() ? "--activations" : "--dialect");
}

}  // namespace

const EngineRow* parse_engine(std::string_view word) {
  if (const EngineRow* engine = engines::find_engine(word)) return engine;
  refuse_word("--for", word, engines::engines(), &EngineRow::word);
}

void choose_for_engine(Recipe& recipe, const Checkpoint& source, const formats::Layout& layout) {
  if (recipe.choices.engine == nullptr) return;
  const EngineRow& engine = *recipe.choices.engine;
  if (layout.is_sliced && layout.engine != engine.word) {
    const auto layouts = formats::layouts();
    const auto own = std::ranges::find(layouts, engine.word, &formats::Layout::engine);
    throw Error(ErrorCode::kInvalidArgument,
                "{} reads no files of layout {}, and cuts a whole checkpoint while it loads (leave "
                "out --tp, --ep and --layout, or --for{})",
                engine.name, layout.name,
                own == layouts.end() ? "" : fmt::format("; or take --layout {}", own->name));
  }
  const Loads loads(engine, source);
  const std::vector<SchemeId> schemes = wanted_schemes(recipe, source);
  require_loaded(engine, schemes, loads);
  if (schemes.empty()) return;

  Choices& choices = recipe.choices;
  std::vector<const EngineLoad*> rows = loads.of(schemes.front());
  // Tensors that are kept stay in their dialect.
  if (!recipe.to) {
    std::stable_partition(rows.begin(), rows.end(), [&](const EngineLoad* row) {
      return row->dialect == source.dialect().name;
    });
  }
  // For a mixture the planned output tells whether activations fit.
  const bool has_activations = choices.activations && schemes.size() == 1;
  const auto row = std::ranges::find_if(rows, [&](const EngineLoad* load) {
    return (choices.dialect.empty() || choices.dialect == load->dialect) &&
           (!has_activations || choices.activations == load->activations) &&
           holds_all(*load, schemes, loads);
  });
  if (row == rows.end()) refuse_choice(engine, choices, schemes.front(), rows);
  const Dialect& dialect = *formats::find_dialect((*row)->dialect);
  choices.dialect = dialect.name;
  const formats::StorageRow* usual =
      formats::find_storage(dialect, source.family(), schemes.front());
  const bool is_default = usual != nullptr && usual->activations == (*row)->activations &&
                          usual->activations_choice.empty();
  if (!choices.activations && !is_default) choices.activations = (*row)->activations;
}

}  // namespace ingot::convert
