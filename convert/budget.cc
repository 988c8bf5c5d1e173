#include "convert/budget.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <ranges>
#include <set>
#include <tuple>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "convert/convert.h"
#include "convert/recipe/statistics.h"
#include "convert/run/band_encoder.h"
#include "formats/base/checked.h"
#include "formats/base/error.h"
#include "formats/base/parallel.h"
#include "formats/base/stop_scope.h"
#include "formats/family/roles.h"
#include "formats/json/json.h"
#include "formats/storage/encoding.h"

// A budget of bits. Every group of linear layers has a loss and a size under each scheme; the sum
// of losses is to be the least that the sum of sizes allows. That is a knapsack, solved over the
// average in steps of 1/2048 bit. The state of a step has the exact size of its best choice:
// rounding may choose a little more loss, but never more bits. A tensor's losses are measured on a
// few of its bands, whose bytes a conversion's own encoder writes.

namespace ingot::convert {

using formats::Checkpoint;
using formats::Json;
using formats::LogicalTensor;
using formats::Role;
using formats::SchemeId;

namespace {

constexpr std::uint64_t kExpertsSeen = 8;  // of a layer and role
constexpr std::uint64_t kBandsSeen = 2;    // of a tensor
constexpr double kStep = 1.0 / 2048;       // bits of the average
constexpr formats::RoleSet kLinears =
    formats::kMlpRoles | formats::kAttentionRoles | formats::kIndexerRoles;

std::uint64_t elements_of(const LogicalTensor& tensor) {
  return std::accumulate(tensor.shape.begin(), tensor.shape.end(), std::uint64_t{1},
                         std::multiplies<>());
}

std::uint64_t bits_of(const PlannedTensor& planned) {
  std::uint64_t n_bytes = 0;
  for (std::size_t p = 0; p < planned.n_parts; ++p) n_bytes += planned.parts[p].n_bytes;
  return 8 * n_bytes;
}

// The words of the selectors whose tensors share a scheme in a layer.
std::string group_word(const LogicalTensor& tensor) {
  const Role role = role_of(tensor);
  if (formats::kExpertRoles.has(role)) return "experts";
  if (tensor.rule == nullptr || tensor.rule->fuse == formats::Fuse::kNone)
    return std::string(formats::role_name(role));
  return fmt::format("{} {}", formats::kSharedExpertRoles.has(role),
                     static_cast<int>(tensor.rule->fuse));
}

// Groups in the making, and the planned tensors of each.
struct Grouped {
  BudgetGroup group;
  std::vector<std::uint32_t> tensors;  // indices into TensorSource::tensors()
};

struct Linears {
  std::map<std::pair<std::uint32_t, std::string>, Grouped> groups;
  FixedLinears fixed;
};

// The linears that a plan quantizes: by a default rule, and others.
Linears linears_of(const Plan& plan) {
  Linears linears;
  for (const PlannedTensor& planned : plan.tensors) {
    const LogicalTensor& tensor = plan.tensor_of(planned);
    if (planned.action == Action::kDrop || !kLinears.has(role_of(tensor)) ||
        !is_quantized(planned.to))
      continue;
    const Rule* rule = plan.recipe.decide(tensor).rule;
    const bool is_free = planned.to == plan.recipe.to && tensor.layer && rule != nullptr &&
                         rule->origin == RuleOrigin::kDefault;
    if (!is_free) {
      linears.fixed.bits += bits_of(planned);
      linears.fixed.elements += elements_of(tensor);
      continue;
    }
    Grouped& at = linears.groups[{*tensor.layer, group_word(tensor)}];
    at.group.layer = *tensor.layer;
    const std::string role(formats::kExpertRoles.has(role_of(tensor))
                               ? std::string_view("experts")
                               : formats::role_name(role_of(tensor)));
    if (std::ranges::find(at.group.roles, role) == at.group.roles.end())
      at.group.roles.push_back(role);
    at.group.elements += elements_of(tensor);
    at.tensors.push_back(planned.tensor);
  }
  return linears;
}

// A few of many, evenly spread.
std::vector<std::uint64_t> spread(std::uint64_t n, std::uint64_t most) {
  std::vector<std::uint64_t> chosen;
  const std::uint64_t count = std::min(n, most);
  for (std::uint64_t i = 0; i < count; ++i) chosen.push_back((2 * i + 1) * n / (2 * count));
  return chosen;
}

struct Loss {
  double error = 0, signal = 0;
  [[nodiscard]] double relative() const { return signal > 0 ? error / signal : 0; }
};

// True if mean squares of the inputs of all matrices are known.
bool knows_inputs(const Importance& importance, const Checkpoint& source,
                  const LogicalTensor& tensor) {
  for (std::uint64_t matrix = 0; matrix < input_matrices(tensor); ++matrix) {
    if (input_statistic(importance, source, tensor, matrix, formats::kInputMeanSquare) == nullptr)
      return false;
  }
  return true;
}

// The loss of one tensor's sampled bands.
class TensorLoss {
 public:
  TensorLoss(const Plan& plan, const PlannedTensor& planned, const Importance& importance)
      : values_{.plan = plan, .planned = planned, .source = plan.source},
        importance_(importance),
        facts_(formats::scheme_facts(planned.to)) {}

  Loss measure() {
    const BandPlan bands =
        BandPlan::to_encode(values_.tensor, values_.planned.to, values_.planned.block);
    std::vector<Band> seen;
    const std::uint64_t n_matrices = std::min(input_matrices(values_.tensor), kExpertsSeen);
    for (const std::uint64_t index : spread(bands.count(), kBandsSeen * n_matrices))
      seen.push_back(bands.band(index));
    std::optional<float> amax;
    if (values_.planned.fused_set != PlannedTensor::kNone) {
      BandEncoder looking(values_, std::nullopt, tiles_);
      amax = 0;
      for (const Band& band : seen) amax = std::max(*amax, looking.largest(band, read(band)));
    }
    BandEncoder encoder(values_, amax, tiles_);
    for (const Band& band : seen) add(encoder, band);
    return loss_;
  }

 private:
  const std::vector<std::byte>& read(const Band& band) {
    codes_.resize(band.source_bytes);
    values_.source.read(values_.tensor.encoding.stored.weight(), band.source_offset, codes_);
    return codes_;
  }

  void add(BandEncoder& encoder, const Band& band) {
    const BandPlan& bands = encoder.bands();
    std::vector<std::byte> out(band.output_bytes);
    encoder.encode(band, read(band), out);
    // Both sides as numbers.
    const formats::ScaleReader reader(values_.source, values_.tensor, values_.scale_policy());
    const BandScales scales(reader, reader.range_of(band.first_row, band.rows));
    quantize::CodedMatrix source = values_.rows_of(bands, band, codes_);
    scales.undo(reader, source);
    const std::uint64_t n_scales =
        encoder.scales().size() * 8 / formats::dtype_bits(facts_.scale_dtype);
    std::vector<float> written(n_scales);
    std::optional<formats::GlobalScale> global;
    if (values_.planned.find(formats::Part::kGlobal) != nullptr)
      global = formats::GlobalScale{.value = encoder.global(),
                                    .divides = values_.planned.storage->global_divides};
    formats::widen_scales(facts_.scale_dtype, encoder.scales(), global, written);
    const std::array<std::uint64_t, 2> block = values_.planned.block;
    const quantize::CodedMatrix output = {.scheme = values_.planned.to,
                                          .codes = out.data(),
                                          .rows = band.rows,
                                          .cols = band.cols,
                                          .row_bytes = band.cols * bands.output_bits / 8,
                                          .scales = written,
                                          .scale_cols = ceil_div(band.cols, block[1]),
                                          .block_rows = block[0],
                                          .block_cols = block[1],
                                          .zeros = encoder.zeros()};
    std::vector<float> was(band.rows * band.cols), is(was.size());
    const auto view = [&](std::vector<float>& values) {
      return formats::MatrixView<float>{
          .data = values.data(), .rows = band.rows, .cols = band.cols, .stride = band.cols};
    };
    quantize::decode(source, view(was));
    quantize::decode(output, view(is));
    const std::uint64_t matrix =
        input_matrices(values_.tensor) == 1 ? 0 : band.first_row / bands.rows;
    const std::vector<float> mean_squares = importance_.file().values(*input_statistic(
        importance_, values_.plan.source, values_.tensor, matrix, formats::kInputMeanSquare));
    for (std::uint64_t row = 0; row < band.rows; ++row) {
      for (std::uint64_t col = 0; col < band.cols; ++col) {
        const double value = was[row * band.cols + col], error = is[row * band.cols + col] - value;
        const double weight = mean_squares[band.first_col + col];
        loss_.error += weight * error * error;
        loss_.signal += weight * value * value;
      }
    }
  }

  const PlannedValues values_;
  const Importance& importance_;
  const formats::SchemeFacts& facts_;
  TileBuffers tiles_;
  std::vector<std::byte> codes_;
  Loss loss_;
};

// Tensors of a group that are measured: few experts of each role, all others.
std::vector<std::uint32_t> seen_of(const Checkpoint& source, const Grouped& grouped) {
  std::map<Role, std::vector<std::uint32_t>> by_role;
  for (const std::uint32_t tensor : grouped.tensors)
    by_role[role_of(source.tensors()[tensor])].push_back(tensor);
  std::vector<std::uint32_t> seen;
  for (auto& [role, tensors] : by_role) {
    std::ranges::sort(tensors, {}, [&](std::uint32_t tensor) {
      return source.tensors()[tensor].expert.value_or(0);
    });
    for (const std::uint64_t index : spread(tensors.size(), kExpertsSeen))
      seen.push_back(tensors[index]);
  }
  return seen;
}

// `layers:0-2,5 & role:experts`.
std::vector<std::string> selectors_of(const std::vector<BudgetGroup>& groups, std::size_t choice) {
  std::map<std::string, std::vector<std::uint32_t>> layers_of;
  for (const BudgetGroup& group : groups) {
    if (group.chosen != choice) continue;
    for (const std::string& role : group.roles) layers_of[role].push_back(group.layer);
  }
  std::vector<std::string> selectors;
  for (auto& [role, layers] : layers_of) {
    std::ranges::sort(layers);
    std::vector<std::string> ranges;
    for (std::size_t i = 0; i < layers.size();) {
      std::size_t end = i + 1;
      while (end < layers.size() && layers[end] == layers[end - 1] + 1) ++end;
      ranges.push_back(end == i + 1 ? fmt::format("{}", layers[i])
                                    : fmt::format("{}-{}", layers[i], layers[end - 1]));
      i = end;
    }
    selectors.push_back(fmt::format("layers:{} & role:{}", fmt::join(ranges, ","), role));
  }
  return selectors;
}

std::string_view word_of(SchemeId scheme) {
  return formats::scheme_facts(scheme).name;
}

// An option of a recipe that no weight takes would be refused.
bool has_first(const Budget& budget) {
  return std::ranges::find(budget.groups, std::size_t{0}, &BudgetGroup::chosen) !=
         budget.groups.end();
}

// True if the dialect has the scheme as it is written by default, and groups of its scales fill the
// rows of all of the tensors.
bool may_have(const Plan& plan, SchemeId scheme, std::span<const std::uint32_t> tensors) {
  const formats::SchemeFacts& facts = formats::scheme_facts(scheme);
  if (!facts.quantized) return true;
  const formats::Checkpoint& source = plan.source;
  const auto* const row = formats::find_storage(*plan.target.dialect, source.family(), scheme);
  if (row == nullptr || row->is_read_only || !row->activations_choice.empty()) return false;
  return std::ranges::all_of(tensors, [&](std::uint32_t tensor) {
    const std::uint64_t cols = source.tensors()[tensor].shape.back();
    std::uint64_t group = facts.group_rows == 1 ? facts.group_cols : 0;
    if (facts.chooses_cols)
      group = std::max<std::uint64_t>(plan.recipe.choices.group_size.value_or(group), 8);
    return group <= 1 || cols % group == 0;
  });
}

bool searches(SchemeId scheme) {
  const quantize::Scheme* const arithmetic = quantize::find_scheme(scheme);
  return arithmetic != nullptr && !arithmetic->searches.empty();
}

// Leaves the default where the scheme does not have the search, as a mixture of schemes does.
void take_search_of(SchemeId scheme, Recipe& recipe) {
  const quantize::Scheme* const arithmetic = quantize::find_scheme(scheme);
  const bool has_search =
      arithmetic != nullptr &&
      std::ranges::find(arithmetic->searches, recipe.choices.search) != arithmetic->searches.end();
  if (!has_search) recipe.choices.search = Choices().search;
}

// The recipe that gives groups a scheme other than the first, for its sizes and losses: without
// options that belong to the first, and without importance where nothing is encoded.
Recipe recipe_of_choice(const Recipe& recipe, const Plan& first, SchemeId scheme,
                        const std::vector<std::string>& selectors, bool is_encoded) {
  Recipe other = recipe;
  other.to.reset();
  other.choices.dialect = first.target.dialect->name;
  take_search_of(scheme, other);
  if (!is_encoded || !searches(scheme)) {
    other.choices.importance.reset();
    other.choices.search = Choices().search;
  }
  other.choices.zero_points = recipe.choices.zero_points && scheme == SchemeId::kInt4Group;
  for (const std::string& selector : selectors)
    other.rules.push_back(make_rule(selector, word_of(scheme), RuleOrigin::kRecipe));
  return other;
}

}  // namespace

std::string budget_recipe(const Budget& budget) {
  std::string text = fmt::format(
      "# {:.3f} bits a weight of the quantized linear layers, scales included; from {:.3f} to "
      "{:.3f} can be had.\n",
      budget.bits, budget.least, budget.most);
  if (has_first(budget)) {
    text += fmt::format("to: {}\nquantize-attention: true\n", word_of(budget.schemes[0]));
  } else if (!budget.dialect.empty()) {
    text += fmt::format("dialect: {}\n", budget.dialect);
  }
  bool has_rules = false;
  for (std::size_t choice = 1; choice < budget.schemes.size(); ++choice) {
    for (const std::string& selector : selectors_of(budget.groups, choice)) {
      text += fmt::format("{}  - match: {}\n    scheme: {}\n", has_rules ? "" : "rules:\n",
                          selector, word_of(budget.schemes[choice]));
      has_rules = true;
    }
  }
  return text;
}

std::vector<SchemeId> budget_schemes(std::string_view words) {
  std::vector<SchemeId> schemes(kBudgetSchemes.begin(), kBudgetSchemes.end());
  if (words.empty()) return schemes;
  std::vector<SchemeId> known = schemes;
  known.insert(known.end(), kOtherBudgetSchemes.begin(), kOtherBudgetSchemes.end());
  schemes.clear();
  for (std::size_t begin = 0; begin <= words.size();) {
    const std::size_t end = std::min(words.find(',', begin), words.size());
    const std::string_view word = words.substr(begin, end - begin);
    begin = end + 1;
    const SchemeId scheme = parse_scheme_word(word, "--bits-from");
    if (std::ranges::find(known, scheme) == known.end()) {
      throw Error(ErrorCode::kInvalidArgument, "--bits-from does not choose {} (it has {})", word,
                  fmt::join(known | std::views::transform(word_of), ", "));
    }
    if (std::ranges::find(schemes, scheme) != schemes.end())
      throw Error(ErrorCode::kInvalidArgument, "--bits-from has {} twice", word);
    schemes.push_back(scheme);
  }
  if (!formats::scheme_facts(schemes.front()).quantized) {
    throw Error(ErrorCode::kInvalidArgument,
                "--bits-from begins with {}, which quantizes nothing (begin with the scheme whose "
                "layers are to be counted)",
                word_of(schemes.front()));
  }
  return schemes;
}

Budget choose_within(std::vector<BudgetGroup> groups, std::vector<SchemeId> schemes,
                     const FixedLinears& fixed, double wanted) {
  Budget budget{.schemes = std::move(schemes)};
  std::uint64_t elements = fixed.elements, least = fixed.bits, most = fixed.bits;
  std::vector<std::uint64_t> narrowest;  // by group
  for (const BudgetGroup& group : groups) {
    elements += group.elements;
    std::uint64_t low = std::numeric_limits<std::uint64_t>::max(), high = 0;
    for (std::size_t choice = 0; choice < group.bits.size(); ++choice) {
      if (!std::isfinite(group.losses[choice])) continue;
      low = std::min(low, group.bits[choice]);
      high = std::max(high, group.bits[choice]);
    }
    narrowest.push_back(low);
    least += low;
    most += high;
  }
  if (elements == 0) {
    throw Error(ErrorCode::kInvalidArgument,
                "--bits {}: no linear layer of this model would be quantized", wanted);
  }
  const auto n = static_cast<double>(elements);
  const auto average = [&](std::uint64_t bits) { return static_cast<double>(bits) / n; };
  budget.least = average(least);
  budget.most = average(most);
  // The best choice of the groups so far, by the step of its size above the least, and how it was
  // come to: the state of the groups before, and the choice of the last.
  struct State {
    double loss = std::numeric_limits<double>::infinity();
    std::uint64_t bits = 0;
  };
  struct Way {
    std::uint32_t before : 24 = 0, choice : 8 = 0;
  };
  const auto n_states =
      static_cast<std::size_t>((budget.most - budget.least) / kStep) + groups.size() + 2;
  INGOT_CHECK(n_states < std::size_t{1} << 24);
  const auto step_of = [&](std::uint64_t above) {
    return static_cast<std::size_t>(average(above) / kStep);
  };
  std::vector<State> states = {{.loss = 0, .bits = 0}};
  std::vector<std::vector<Way>> ways;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    StopScope::check();
    const BudgetGroup& group = groups[g];
    std::vector<State> next(n_states);
    std::vector<Way>& way = ways.emplace_back(n_states);
    for (std::size_t s = 0; s < states.size(); ++s) {
      const State& from = states[s];
      if (!std::isfinite(from.loss)) continue;
      for (std::size_t choice = 0; choice < group.bits.size(); ++choice) {
        const double loss = from.loss + group.losses[choice];
        if (!std::isfinite(loss)) continue;
        const std::uint64_t above = from.bits + group.bits[choice] - narrowest[g];
        const std::size_t step = step_of(above);
        if (!(loss < next[step].loss)) continue;
        next[step] = {.loss = loss, .bits = above};
        way[step].before = static_cast<std::uint32_t>(s) & 0xFFFFFFU;
        way[step].choice = static_cast<std::uint8_t>(choice);
      }
    }
    states = std::move(next);
  }
  const auto best_between = [&](double low, double high) {
    std::optional<std::size_t> best;
    for (std::size_t s = 0; s < states.size(); ++s) {
      const double bits = average(least + states[s].bits);
      if (!std::isfinite(states[s].loss) || bits < low || bits > high) continue;
      if (!best || states[s].loss < states[*best].loss) best = s;
    }
    return best;
  };
  std::optional<std::size_t> best = best_between(wanted - kBudgetSlack, wanted);
  if (!best) best = best_between(wanted, wanted + kBudgetSlack);
  if (!best) {
    double below = budget.least, above = budget.most;
    for (const State& state : states) {
      if (!std::isfinite(state.loss)) continue;
      const double bits = average(least + state.bits);
      if (bits <= wanted) below = std::max(below, bits);
      if (bits >= wanted) above = std::min(above, bits);
    }
    throw Error(ErrorCode::kInvalidArgument,
                "--bits {} cannot be had within {}: {} give from {:.3f} to {:.3f} bits for this "
                "model{}",
                wanted, kBudgetSlack,
                fmt::join(budget.schemes | std::views::transform(word_of), ", "), budget.least,
                budget.most,
                wanted < budget.least || wanted > budget.most
                    ? ""
                    : fmt::format(", the nearest are {:.3f} and {:.3f}", below, above));
  }
  budget.loss = states[*best].loss;
  budget.bits = average(least + states[*best].bits);
  for (std::size_t g = groups.size(), s = *best; g > 0; --g) {
    groups[g - 1].chosen = ways[g - 1][s].choice;
    s = ways[g - 1][s].before;
  }
  budget.groups = std::move(groups);
  budget.recipe = budget_recipe(budget);
  return budget;
}

Budget choose_schemes(std::shared_ptr<const Checkpoint> opened, Recipe& recipe,
                      const std::vector<SchemeId>& schemes, double bits, std::size_t threads) {
  if (recipe.to) {
    throw Error(ErrorCode::kInvalidArgument,
                "--bits chooses the schemes, and --to names one for all (leave one of them out)");
  }
  if (recipe.choices.importance == nullptr) {
    throw Error(ErrorCode::kInvalidArgument,
                "--bits needs statistics, to measure what each scheme loses (--importance, as "
                "ingot calibrate writes them)");
  }
  const std::shared_ptr<const Importance> statistics = recipe.choices.importance;
  const Importance& importance = *statistics;
  recipe.to = schemes.front();
  recipe.choices.quantize_attention = true;
  const auto shared = as_written(std::move(opened), recipe, {});
  const Checkpoint& source = *shared;
  // Losses are those of nearest codes.
  Recipe measured = recipe;
  measured.choices.gptq = false;
  measured.given.clear();  // an option may belong to one of the schemes only
  std::vector<Plan> plans;
  Recipe first = measured;
  take_search_of(schemes.front(), first);
  plans.push_back(plan_conversion(source, std::move(first), {}));
  Linears linears = linears_of(plans.front());
  for (std::size_t choice = 1; choice < schemes.size(); ++choice) {
    std::vector<BudgetGroup> able;
    bool is_encoded = false;
    for (auto& [unused, grouped] : linears.groups) {
      if (!may_have(plans.front(), schemes[choice], grouped.tensors)) continue;
      able.push_back(grouped.group);
      able.back().chosen = choice;
      for (const std::uint32_t tensor : grouped.tensors)
        is_encoded |= source.tensors()[tensor].encoding.scheme != schemes[choice];
    }
    plans.push_back(plan_conversion(source,
                                    recipe_of_choice(measured, plans.front(), schemes[choice],
                                                     selectors_of(able, choice), is_encoded),
                                    {}));
  }
  // By choice, the planned tensor of each tensor of the source.
  std::vector<std::map<std::uint32_t, const PlannedTensor*>> planned(plans.size());
  for (std::size_t choice = 0; choice < plans.size(); ++choice)
    for (const PlannedTensor& of : plans[choice].tensors) planned[choice][of.tensor] = &of;

  struct Task {
    Grouped* grouped;
    std::size_t choice;
    std::uint32_t tensor;
    double loss = 0;
  };
  std::vector<Task> tasks;
  ErrorList errors;
  for (auto& [unused, grouped] : linears.groups) {
    grouped.group.bits.assign(plans.size(), 0);
    grouped.group.losses.assign(plans.size(), 0);
    for (std::size_t choice = 0; choice < plans.size(); ++choice) {
      for (const std::uint32_t tensor : grouped.tensors)
        grouped.group.bits[choice] += bits_of(*planned[choice].at(tensor));
      const bool has_scheme = std::ranges::all_of(grouped.tensors, [&](std::uint32_t tensor) {
        return planned[choice].at(tensor)->to == schemes[choice];
      });
      if (!has_scheme) grouped.group.losses[choice] = std::numeric_limits<double>::infinity();
    }
    for (const std::uint32_t tensor : seen_of(source, grouped)) {
      const LogicalTensor& of = source.tensors()[tensor];
      if (!knows_inputs(importance, source, of)) {
        errors.add(Error(ErrorCode::kInvalidArgument,
                         "--bits: the statistics have no mean squares of its inputs")
                       .in_tensor(of.name));
        continue;
      }
      for (std::size_t choice = 0; choice < plans.size(); ++choice) {
        // Codes that are kept lose nothing.
        if (std::isfinite(grouped.group.losses[choice]) &&
            planned[choice].at(tensor)->action == Action::kQuantize)
          tasks.push_back({&grouped, choice, tensor});
      }
    }
  }
  errors.throw_if_any();
  parallel_for(tasks.size(), threads, [&](std::size_t i) {
    Task& task = tasks[i];
    TensorLoss loss(plans[task.choice], *planned[task.choice].at(task.tensor), importance);
    task.loss = loss.measure().relative();
  });
  // The mean over the tensors of a role that were seen, and the sum over roles.
  std::map<std::tuple<const Grouped*, Role>, std::set<std::uint32_t>> seen;
  for (const Task& task : tasks)
    seen[{task.grouped, role_of(source.tensors()[task.tensor])}].insert(task.tensor);
  for (const Task& task : tasks) {
    const auto n = seen.at({task.grouped, role_of(source.tensors()[task.tensor])}).size();
    task.grouped->group.losses[task.choice] += task.loss / static_cast<double>(n);
  }
  std::vector<BudgetGroup> groups;
  for (auto& [unused, grouped] : linears.groups) groups.push_back(std::move(grouped.group));
  Budget budget = choose_within(std::move(groups), schemes, linears.fixed, bits);
  const bool keeps_fp8 = std::ranges::all_of(budget.groups, [&](const BudgetGroup& group) {
    return schemes[group.chosen] == SchemeId::kFp8Block || !is_quantized(schemes[group.chosen]);
  });
  if (!has_first(budget)) {
    recipe.to.reset();
    // FP8 blocks are in the dialect of their source, others where they were measured.
    if (!keeps_fp8 && recipe.choices.dialect.empty()) {
      budget.dialect = plans.front().target.dialect->name;
      recipe.choices.dialect = budget.dialect;
      budget.recipe = budget_recipe(budget);
    }
  }
  std::size_t g = 0;
  bool is_weighted = false;  // where nothing is, importance would be refused
  for (const auto& [unused, grouped] : linears.groups) {
    const auto& of = planned[budget.groups[g++].chosen];
    for (const std::uint32_t tensor : grouped.tensors) is_weighted |= of.at(tensor)->is_weighted;
  }
  if (!is_weighted) {
    recipe.choices.importance.reset();
    std::erase(recipe.given, "--importance");
  }
  for (std::size_t choice = 1; choice < schemes.size(); ++choice) {
    for (const std::string& selector : selectors_of(budget.groups, choice))
      recipe.rules.push_back(make_rule(selector, word_of(schemes[choice]), RuleOrigin::kRecipe));
  }
  return budget;
}

Json Budget::to_json() const {
  Json json = {
      {"bits", bits}, {"least", least}, {"most", most}, {"loss", loss}, {"recipe", recipe}};
  json["schemes"] = formats::json_list(schemes, word_of);
  json["groups"] = formats::json_list(groups, [&](const BudgetGroup& group) {
    const auto loss_json = [](double of) { return std::isfinite(of) ? Json(of) : Json(); };
    return Json{{"layer", group.layer},
                {"roles", group.roles},
                {"elements", group.elements},
                {"bits", group.bits},
                {"losses", formats::json_list(group.losses, loss_json)},
                {"scheme", word_of(schemes[group.chosen])}};
  });
  return json;
}

}  // namespace ingot::convert
