#include "formats/family/proposal/family_proposal.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "formats/base/error.h"
#include "formats/base/words.h"
#include "formats/family/family_check.h"
#include "formats/family/family_yaml.h"
#include "formats/family/proposal/class_plan.h"
#include "formats/family/proposal/config_widths.h"
#include "formats/family/proposal/family_proof.h"
#include "formats/family/proposal/kind_of_tensors.h"
#include "formats/family/proposal/named_layers.h"
#include "formats/family/proposal/neighbours.h"
#include "formats/family/proposal/row_layers.h"
#include "formats/family/rule_scope.h"
#include "formats/family/usual_spellings.h"
#include "formats/family/width.h"

namespace ingot::formats {
namespace {

// A hundredth of the bytes.
constexpr std::uint64_t kNotablePart = 100;

constexpr std::string_view kLikeMark = "like:";
constexpr std::string_view kValueOutputs =
    "num_key_value_heads * head_dim, num_key_value_heads * v_head_dim";
constexpr std::string_view kInMtp = ", layers: mtp";

class Proposal {
 public:
  Proposal(const ModelConfig& config, std::span<const UnknownWeight> weights,
           const FamilyEvidence& evidence)
      : config_(config),
        evidence_(evidence),
        widths_(config),
        named_(config, names_of(weights)),
        class_(evidence.of_class, named_),
        neighbours_(config, evidence.without) {
    // Main layers first: those for multi-token prediction may have their names.
    std::map<std::string, Kind> kinds;
    for (const bool is_mtp : {false, true}) {
      for (const UnknownWeight& weight : weights) take(weight, is_mtp, kinds);
    }
    for (auto& [pattern, kind] : kinds) split_by_shape(pattern, std::move(kind));
    for (auto& [pattern, kind] : kinds_) ask_neighbours(pattern, kind);
    has_keys_ = std::ranges::any_of(kinds_, [this](const auto& entry) {
      return !entry.second.is_of_tower &&
             spelling_of(entry.first, entry.second).role == Role::kKProj;
    });
    // Biases follow from their weights.
    for (const bool are_biases : {false, true}) {
      for (auto& [pattern, kind] : kinds_) {
        if (!kind.is_of_tower && is_bias_name(pattern) == are_biases) judge(pattern, kind);
      }
    }
    leave_attention_whole();
  }

  std::string text() {
    std::string rows;
    for (const auto& [pattern, kind] : kinds_) rows += row(pattern, kind);
    for (const auto& [key, value] : evidence_.answers) {
      if (!asked_.contains(key) && key != kUnknownQuestion) {
        throw Error(ErrorCode::kInvalidArgument, "--answer {}: nothing asks for this{}", key,
                    questions_.empty() ? "" : fmt::format(" (open: {})", questions_[0].key));
      }
    }
    std::string type =
        config_.text.model_type.empty() ? config_.model_type : config_.text.model_type;
    if (type.empty()) type = "unknown";
    std::string name = type;
    for (char& c : name) {
      c = lower_case(c);
      if ((c < 'a' || c > 'z') && (c < '0' || c > '9')) c = '_';
    }
    if (name.size() > 64) name.resize(64);
    std::string head = fmt::format(
        "# Made by ingot from names, shapes, config.json and families like this one; a line ends "
        "with\n"
        "# its reason. A row whose reason begins with `guessed` needs a look before anything is\n"
        "# quantized. docs/families.md says what rows have.\n"
        "family: {}\n",
        name);
    const bool is_plain = std::ranges::all_of(type, [](char c) {
      return c == '_' || c == '-' || c == '.' || std::isalnum(static_cast<unsigned char>(c));
    });
    if (is_plain) head += fmt::format("model_types: [\"{}\"]\n", type);
    if (!mtp_layers_.empty()) head += fmt::format("mtp_layers: \"{}\"\n", mtp_layers_);
    if (const std::string share = other_share(); !share.empty())
      head += fmt::format("# {}\n", share);
    return head + "tensors:\n" + rows;
  }

  std::vector<FamilyQuestion> questions() && { return std::move(questions_); }

  bool has_stacks() const {
    return std::ranges::any_of(kinds_,
                               [](const auto& entry) { return entry.second.judged.stacks; });
  }

  /// Families with rows for most kinds of tensors, the one with most of them first.
  std::vector<const Family*> nearest() const {
    std::vector<const Family*> families;
    for (const auto& [family, n] : likeness_) families.push_back(family);
    std::ranges::sort(families, std::greater(), [&](const Family* family) {
      return std::pair(likeness_.at(family), family->name);
    });
    return families;
  }

  /// The share of the bytes of rows that only copy, where it is notable; else empty.
  std::string other_share() const {
    std::uint64_t all = 0, of_others = 0;
    const std::pair<const std::string, Kind>* largest = nullptr;
    for (const auto& entry : kinds_) {
      all += entry.second.n_bytes;
      const bool is_other = is_only_copied(entry.second);
      if (is_other) of_others += entry.second.n_bytes;
      if (is_other && (largest == nullptr || entry.second.n_bytes > largest->second.n_bytes))
        largest = &entry;
    }
    if (of_others == 0 || of_others * kNotablePart < all) return {};
    return fmt::format("{:.1f}% of the bytes are in rows that only copy, most of them in {}",
                       100.0 * static_cast<double>(of_others) / static_cast<double>(all),
                       largest->first);
  }

 private:
  static std::vector<std::string_view> names_of(std::span<const UnknownWeight> weights) {
    std::vector<std::string_view> names;
    for (const UnknownWeight& weight : weights) names.push_back(weight.name);
    return names;
  }

  void take(const UnknownWeight& weight, bool want_mtp, std::map<std::string, Kind>& kinds) {
    auto name = named_.words_of(weight.name);
    if (!name || name->is_mtp != want_mtp) return;
    std::vector<std::string>& words = name->words;
    const bool is_of_tower = named_.is_of_tower(*name);
    std::optional<std::uint32_t> layer;
    if (name->is_numbered && is_of_tower) {
      if (words[name->at - 1].find("expert") == std::string::npos) words[name->at] = kLayerMark;
    } else if (name->is_numbered) {
      layer = number_from(words[name->at]);
      if (want_mtp) *layer += static_cast<std::uint32_t>(config_.num_hidden_layers);
      mark_layer(*name);
    }
    mark_expert(words);
    std::string pattern = fmt::format("{}", fmt::join(words, "."));
    if (want_mtp && !name->is_numbered) of_mtp_.insert(pattern);
    Kind& kind = kinds[pattern];
    if (kind.first == nullptr) kind.first = &weight;
    kind.is_of_tower = is_of_tower;
    kind.has_one_shape &= *kind.first->shape == *weight.shape;
    kind.is_quantized |= weight.is_quantized;
    kind.n_bytes += weight.n_bytes;
    if (layer) {
      kind.layers.emplace(*layer, weight.shape);
      kind.firsts.emplace(*layer, &weight);
    }
  }

  /// Layers of several kinds may have tensors of one name and several shapes: a kind of tensors for
  /// each shape, where the config says in which layers it is and no one expression has them all.
  void split_by_shape(const std::string& pattern, Kind kind) {
    std::map<Shape, Kind> parts;
    std::string unused;
    const bool is_by_layer =
        !kind.has_one_shape && !kind.is_of_tower && !kind.layers.empty() &&
        !has_mark(pattern, kExpertMark) &&
        shape_by_layer(kind, usual_row(usual_spelling(pattern)), unused).empty();
    if (is_by_layer) {
      for (const auto& [layer, shape] : kind.layers) {
        Kind& part = parts[*shape];
        part.first = kind.firsts.at(layer);
        part.is_quantized |= part.first->is_quantized;
        part.n_bytes += part.first->n_bytes;
        part.layers.emplace(layer, shape);
      }
    }
    const bool is_told = std::ranges::none_of(parts, [&](const auto& part) {
      return row_layers(layers_in(part.second), config_).is_optional;
    });
    if (parts.empty() || !is_told) {
      kinds_.emplace(pattern, std::move(kind));
      return;
    }
    for (auto& [shape, part] : parts) kinds_.emplace(pattern, std::move(part));
  }

  void ask_neighbours(const std::string& pattern, Kind& kind) {
    if (kind.is_of_tower) return;
    kind.neighbours = neighbours_.rows_of({pattern, kind.layers, *kind.first->shape});
    if (std::ranges::none_of(kind.neighbours, &NeighbourRow::fits))
      kind.neighbours =
          neighbours_.rows_of({class_.meant(pattern), kind.layers, *kind.first->shape});
    // A norm over all heads is no other one where there is one head.
    const Shape& shape = *kind.first->shape;
    if (shape.size() == 1 && widths_.is_one_of(shape[0], "head_dim")) {
      std::erase_if(kind.neighbours, [](const NeighbourRow& row) {
        return is_norm(row.rule->role) && row.rule->cut != Cut::kReplicated;
      });
    }
    // Nothing here tells the order of matrices that are rows of one.
    if (!is_stack(pattern, kind)) {
      std::erase_if(kind.neighbours,
                    [](const NeighbourRow& row) { return row.rule->stack != StackOrder::kNone; });
    }
    if (!kind.has_one_shape && kind.layers.empty()) return;
    for (const NeighbourRow& row : kind.neighbours) likeness_[row.family] += row.fits ? 1 : 0;
  }

  // `mtp.layers.0.` represents the prefix of main layers where that ends with the same word.
  void mark_layer(NumberedWords& name) {
    std::vector<std::string>& words = name.words;
    if (!name.is_mtp) {
      words[name.at] = kLayerMark;
      return;
    }
    const std::string last = words[name.at - 1] + ".";
    const std::string& main = named_.main();
    if (!main.ends_with("." + last) && main != last) {
      words[name.at] = kMtpMark;
      return;
    }
    mtp_layers_ = name.prefix();
    const auto number = words.begin() + static_cast<std::ptrdiff_t>(name.at);
    std::vector<std::string> marked = split(main.substr(0, main.size() - 1), ".");
    marked.emplace_back(kLayerMark);
    marked.insert(marked.end(), number + 1, words.end());
    words = std::move(marked);
  }

  /// True if gate and up are both here, and one matrix each.
  bool has_gate_and_up(const std::string& pattern, Role role) const {
    const auto has = [&](Role wanted) {
      return std::ranges::any_of(kinds_, [&](const auto& entry) {
        const UsualSpelling spelling = spelling_of(entry.first, entry.second);
        return spelling.role == wanted && !spelling.is_joint &&
               module_of(stem_of(entry.first)) == module_of(stem_of(pattern));
      });
    };
    switch (role) {
      case Role::kExpertGate:
      case Role::kExpertUp:
        return has(Role::kExpertGate) && has(Role::kExpertUp);
      case Role::kSharedGate:
      case Role::kSharedUp:
        return has(Role::kSharedGate) && has(Role::kSharedUp);
      default:
        return has(Role::kDenseGate) && has(Role::kDenseUp);
    }
  }

  /// The shape of a row whose tensors have several; empty where the config does not say it.
  std::string shape_by_layer(const Kind& kind, const UsualRow& usual, std::string& guesses) const {
    const std::size_t n_sides = kind.first->shape->size();
    const bool are_alike = std::ranges::all_of(
        kind.layers, [&](const auto& entry) { return entry.second->size() == n_sides; });
    if (!are_alike || kind.layers.empty() || n_sides == 0 || n_sides > kMaxRuleDimensions)
      return {};
    std::vector<std::string> sides;
    for (std::size_t i = 0; i < n_sides; ++i) {
      sides.push_back(widths_.side_by_layer(kind.layers, i, i == 0 ? usual.out : usual.in));
      if (sides.back().empty()) return {};
    }
    guesses += "; by a list of the config that has the same widths";
    return fmt::format(", shape: [{}]", fmt::join(sides, ", "));
  }

  std::string shape_of(const Kind& kind, const UsualRow& usual, StackOrder order,
                       std::string& guesses) const {
    const Shape& shape = *kind.first->shape;
    if (!kind.has_one_shape) {
      if (std::string own = shape_by_layer(kind, usual, guesses); !own.empty()) return own;
      guesses += "; its shape differs from layer to layer, and none is checked";
      return ", shape: any";
    }
    if (shape.empty()) return ", shape: []";
    if (shape.size() > kMaxRuleDimensions) return ", shape: any";
    std::vector<std::string> sides;
    if (order != StackOrder::kNone && shape.size() == 3) {
      if (order_by_shape(kind, usual, widths_) == StackOrder::kNone)
        guesses += "; its order is that of its neighbours";
      const bool is_turned = order == StackOrder::kInputMajor && !kind.judged.is_stored_turned;
      sides = {widths_.side(shape[0], "n_routed_experts", guesses),
               widths_.side(shape[1], is_turned ? usual.in : usual.out, guesses),
               widths_.side(shape[2], is_turned ? usual.out : usual.in, guesses)};
      if (kind.judged.is_stored_turned) std::swap(sides[1], sides[2]);
    } else {
      for (std::size_t i = 0; i < shape.size(); ++i)
        sides.push_back(widths_.side(shape[i], i == 0 ? usual.out : usual.in, guesses));
    }
    return fmt::format(", shape: [{}]", fmt::join(sides, ", "));
  }

  /// Returns the layers of a row in the words of a family's file.
  RowLayers layers_of(const std::string& pattern, const Kind& kind, std::string& present,
                      std::string& guesses) const {
    if (of_mtp_.contains(pattern)) return {.text = std::string(kInMtp)};
    if (kind.layers.empty() || has_mark(pattern, kMtpMark)) return {};
    RowLayers found = row_layers(layers_in(kind), config_);
    if (found.is_optional && kind.judged.neighbour != nullptr) {
      std::string own = neighbours_.layers_of(*kind.judged.neighbour, kind.layers);
      if (!own.empty()) return {.text = std::move(own)};
    }
    if (!found.guess.empty()) guesses += "; " + found.guess;
    if (found.is_optional) present = "optional";
    return found;
  }

  /// The matrix of one expert for each of those in a stack: most schemes are written so.
  std::string single_rows(const std::string& stack, StackOrder order, const Shape& shape,
                          std::string_view layers, std::string_view dtype) const {
    const std::string_view stem = stem_of(stack);
    const std::string_view module = stem.substr(0, stem.rfind('.') + 1);
    const bool is_turned = order == StackOrder::kInputMajor;
    std::string rows;
    const std::span<const SingleExpert> singles = usual_singles(stem.substr(module.size()));
    for (const SingleExpert& single : singles) {
      const std::string name =
          fmt::format("{}{}{}.{}.weight", module, module.ends_with("experts.") ? "" : "experts.",
                      kExpertMark, single.word);
      if (kinds_.contains(name)) continue;
      const UsualRow usual = usual_row(single.role);
      std::string guesses;
      const std::string sides = fmt::format(
          "{}, {}", widths_.side(shape[is_turned ? 2 : 1] / singles.size(), usual.out, guesses),
          widths_.side(shape[is_turned ? 1 : 2], usual.in, guesses));
      rows += fmt::format(
          "- {{name: \"{}\", role: {}{}, shape: [{}]{}}}  # one expert of the stack{}\n", name,
          role_name(single.role), layers, sides, dtype, guesses);
      if (!kinds_.contains(std::string(stem).append("_bias"))) continue;
      rows += fmt::format(
          "- {{name: \"{}.bias\", role: {}-bias{}, shape: [{}]{}{}}}  # one expert of the stack\n",
          stem_of(name), role_name(single.role), layers, sides.substr(0, sides.find(", ")),
          usual.cut == Cut::kColumn ? ", cut: column" : "", dtype);
    }
    return rows;
  }

  /// True for a matrix within a module of its own that is called as one of a dense MLP.
  bool is_inner_matrix(const Kind& kind, const UsualSpelling& spelling) const {
    const bool is_down = spelling.role == Role::kDenseDown;
    const Shape& shape = *kind.first->shape;
    if (!kDenseMlpRoles.has(spelling.role) || !kind.has_one_shape || shape.size() != 2)
      return false;
    return !widths_.is_one_of(is_down ? shape[0] : shape[1], "hidden_size") &&
           order_by_shape(kind, usual_row(spelling), widths_) != StackOrder::kInputMajor;
  }

  /// True if the outputs of a kind are those of several matrices together.
  bool is_joined(const Kind& kind, const UsualRow& usual) const {
    const Shape& shape = *kind.first->shape;
    return kind.has_one_shape && !shape.empty() && widths_.is_one_of(shape[0], usual.out);
  }

  static std::string_view reason_of_copy(const std::string& pattern, std::size_t n_sides,
                                         bool is_odd_joint) {
    if (is_odd_joint)
      return "called as several matrices in one, whose widths it does not have, so it is only "
             "copied";
    if (n_sides == 2 && is_called_stack(pattern))
      return "the experts of a layer in one matrix, so it is only copied";
    return "no usual name, so it is only copied";
  }

  /// The row that the nearest family with this shape has for these names.
  const NeighbourRow* nearest_row(const Kind& kind) const {
    const NeighbourRow* best = nullptr;
    for (const NeighbourRow& row : kind.neighbours) {
      if (row.fits && (best == nullptr || nearness(row) > nearness(*best))) best = &row;
    }
    return best;
  }

  /// How many kinds of tensors rows of its family fit; more than that for the preferred family.
  std::pair<bool, std::size_t> nearness(const NeighbourRow& row) const {
    return {row.family->name == evidence_.preferred, likeness_.at(row.family)};
  }

  /// True for a row of an attention that ranks have whole for a kind of mixer of its own: it says
  /// nothing of how others are cut.
  static bool is_whole_attention(const TensorRule& rule) {
    return rule.cut == Cut::kReplicated && kAttentionRoles.has(rule.role) &&
           usual_row(rule.role).cut != Cut::kReplicated;
  }

  /// A family with so few rows that fit has no say against the nearest one.
  bool is_far(const NeighbourRow& row, const NeighbourRow& nearest) const {
    return 3 * likeness_.at(row.family) < 2 * likeness_.at(nearest.family);
  }

  /// Asks, or takes the answer.
  std::optional<std::string> ask(FamilyQuestion question) {
    const auto answer = evidence_.answers.find(question.key);
    if (answer != evidence_.answers.end()) {
      asked_.insert(question.key);
      return answer->second;
    }
    if (asked_.insert(question.key).second) questions_.push_back(std::move(question));
    return std::nullopt;
  }

  /// Judges what names, shapes and neighbours say; asks where they say nothing, or contradict one
  /// another.
  void judge(const std::string& pattern, Kind& kind) {
    const std::size_t n_sides = kind.first->shape->size();
    Judged& judged = kind.judged;
    UsualSpelling spelling = spelling_of(pattern, kind);
    UsualRow usual = usual_row(spelling);
    judged.stacks = is_stack(pattern, kind);
    // Several matrices in one tensor, of a kind that has none, or one where there are several.
    const bool is_stack_of_others = usual.is_linear && !judged.stacks && n_sides > 2;
    judged.is_odd_joint = spelling.is_joint && !is_joined(kind, usual);
    const bool is_no_matrix = (!usual.in.empty() && n_sides < 2) || is_inner_matrix(kind, spelling);
    if (is_stack_of_others || judged.is_odd_joint || is_no_matrix ||
        (is_expert_stack(spelling.role) && !judged.stacks)) {
      spelling = {};
      usual = {};
    }
    judged.spelling = spelling;
    judged.usual = usual;
    if (spelling.role == Role::kVProj) judged.usual.out = kValueOutputs;
    class_.choose(pattern, kind.neighbours);
    if (judged.stacks) {
      judge_stack(pattern, kind);
    } else {
      judge_matrix(pattern, kind);
    }
  }

  void judge_stack(const std::string& pattern, Kind& kind) {
    Judged& judged = kind.judged;
    judged.neighbour = nearest_row(kind);
    judged.order = order_of_stack(pattern, kinds_, widths_);
    judged.reason = "by its name and shape";
    const auto [rows, cols] = kind.first->block;
    const bool is_coded = kind.is_quantized && rows == 1 && cols > 1;
    // The class of the model, or values, may tell what shapes do not; where they contradict shapes,
    // nothing is told.
    const std::optional<StackOrder> told =
        class_.reads_stack(pattern) ? std::optional(evidence_.of_class.order) : evidence_.order;
    if (told && !is_coded)
      judged.order =
          judged.order == StackOrder::kNone || judged.order == *told ? *told : StackOrder::kNone;
    if (judged.order == StackOrder::kNone) {
      const auto answer =
          ask({.key = std::string(kStackQuestion),
               .text = "in which order do stacks of experts have the sides of their "
                       "matrices? Shapes and values do not tell",
               .values = {"output-major", "input-major"}});
      if (answer)
        judged.order =
            *answer == "output-major" ? StackOrder::kOutputMajor : StackOrder::kInputMajor;
      if (answer) judged.reason = "as answered";
    }
    // Coded along inputs they are stored in one way, whichever way plain ones are.
    if (is_coded) {
      std::optional<std::string> answer;
      if (told) answer = *told == StackOrder::kInputMajor ? "input-major" : "output-major";
      if (!answer)
        answer = ask({.key = std::string(kStackQuestion),
                      .text = "in which order does this model have the sides of plain stacks "
                              "of experts? Quantized ones do not tell",
                      .values = {"output-major", "input-major"}});
      judged.is_stored_turned = answer == "input-major";
      if (judged.is_stored_turned) judged.order = StackOrder::kInputMajor;
    }
    if (judged.neighbour != nullptr && judged.neighbour->rule->stack != judged.order)
      judged.neighbour = nullptr;
    if (judged.neighbour != nullptr) judged.reason = reason_of(kind, *judged.neighbour);
    if (judged.spelling.role == Role::kExpertsGateUp) judge_halves(pattern, judged);
  }

  void judge_halves(const std::string& pattern, Judged& judged) {
    std::optional<GateUpOrder> order = evidence_.gate_up;
    if (class_.reads_stack(pattern)) {
      order = evidence_.of_class.gate_up;
      judged.reason += fmt::format("; gates and ups in {}, as transformers' class has them",
                                   order == GateUpOrder::kHalves ? "halves" : "turn");
    } else if (order) {
      judged.reason += fmt::format("; gates and ups {}", evidence_.gate_up_reason);
    } else {
      const auto answer =
          ask({.key = std::string(kGateUpQuestion),
               .text = "how do outputs of gate and up follow one another in stacks of "
                       "experts? Values do not tell",
               .values = {"halves", "interleaved"}});
      if (answer) order = *answer == "halves" ? GateUpOrder::kHalves : GateUpOrder::kInterleaved;
      judged.reason += answer ? "; gates and ups as answered" : "; guessed: gates before ups";
    }
    judged.gate_up = order.value_or(GateUpOrder::kHalves);
  }

  /// Judges a bias by the matrix, or the stack, that it is of: true where one is there whose
  /// outputs it has.
  bool judge_bias(const std::string& pattern, Kind& kind) {
    if (!is_bias_name(pattern) || !kind.has_one_shape) return false;
    constexpr std::size_t kEnd = std::string_view(".bias").size();
    const std::string stem = pattern.substr(0, pattern.size() - kEnd);
    const bool is_of_stack = pattern.ends_with("_bias");
    const auto weight = kinds_.find(is_of_stack ? stem : stem + ".weight");
    if (weight == kinds_.end() || !weight->second.has_one_shape) return false;
    const Judged& of = weight->second.judged;
    const Shape &sides = *weight->second.first->shape, &lengths = *kind.first->shape;
    Judged& judged = kind.judged;
    if (is_of_stack) {
      const auto role = find_role(fmt::format("{}-bias", role_name(of.spelling.role)));
      const bool is_turned = of.order == StackOrder::kInputMajor && !of.is_stored_turned;
      const std::size_t out = is_turned ? 2 : 1;
      if (!of.stacks || !role || lengths != Shape{sides[0], sides.at(out)}) return false;
      judged.spelling = {.role = *role, .is_known = true};
      judged.is_of_stack = true;
      judged.gate_up = of.gate_up;
      judged.usual = {};
      if (of.spelling.role == Role::kExpertsGateUp) judged.usual.cut = Cut::kColumn;
    } else {
      const TensorRule* row = of.neighbour == nullptr ? nullptr : of.neighbour->rule;
      const bool is_linear = row == nullptr ? of.usual.is_linear : row->fp8_by_default;
      const bool has_parts = row != nullptr && (!row->sections.empty() || row->heads != nullptr);
      if (!is_linear || has_parts || of.is_turned || lengths != Shape{sides[0]}) return false;
      const Cut cut = row == nullptr ? of.usual.cut : row->cut;
      if (of.fine && *of.fine != FineRole::kQkvProj) return false;
      if (of.fine) judged.fine = FineRole::kQkvBias;
      judged.traits = of.traits;
      judged.usual = {.cut = cut == Cut::kColumn ? cut : Cut::kReplicated};
    }
    judged.reason = "a bias, cut as the outputs that it is of";
    return true;
  }

  void judge_matrix(const std::string& pattern, Kind& kind) {
    Judged& judged = kind.judged;
    const std::size_t n_sides = kind.first->shape->size();
    if (const NeighbourRow* row = nearest_row(kind)) {
      judged.neighbour = row;
      judged.reason = reason_of(kind, *row);
      // Recurrent modules differ in the matrices that are quantized.
      if (row->rule->fp8_by_default && is_of_new_recurrence(pattern, kind, row->rule->role)) {
        take_answer(pattern, kind, "it is of a recurrent module that no family has",
                    {std::string(role_name(Role::kOther)), like(*row)});
        return;
      }
      const auto contrary = std::ranges::find_if(kind.neighbours, [&](const NeighbourRow& other) {
        return other.fits && !are_alike(*row->rule, *other.rule) && !is_far(other, *row) &&
               !is_whole_attention(*other.rule);
      });
      if (contrary == kind.neighbours.end()) {
        ask_of_plan(pattern, kind, *row);
        return;
      }
      take_answer(
          pattern, kind,
          fmt::format("{} and {} treat it differently", row->family->name, contrary->family->name),
          {like(*row), like(*contrary)});
      return;
    }
    if (judge_bias(pattern, kind)) return;
    judged.reason = "by its name";
    const bool is_single =
        std::ranges::all_of(*kind.first->shape, [](std::uint64_t n) { return n == 1; });
    const bool is_turned = judged.usual.is_linear &&
                           order_by_shape(kind, judged.usual, widths_) == StackOrder::kInputMajor;
    judged.is_turned = is_turned;
    if (judged.spelling.is_known && !judged.spelling.is_joint) {
      std::string unused;
      const std::string by_layer = shape_by_layer(kind, judged.usual, unused);
      // A cut of attention is at heads: another width by chance tells none.
      const bool is_told = !by_layer.empty() && (!kAttentionRoles.has(judged.spelling.role) ||
                                                 by_layer.find("heads") != std::string::npos);
      const bool is_as_usual = !judged.usual.is_linear || judged.is_turned ||
                               are_both_usual(kind, judged.usual) || is_told;
      if (judged.spelling.role == Role::kAttentionGate && class_.cut(pattern) == Cut::kColumn &&
          (has_whole_heads(kind, config_) || !by_layer.empty()))
        judged.usual.cut = Cut::kColumn;
      if (is_as_usual || judged.usual.cut == Cut::kReplicated) return;
      if (class_.cut(pattern) == judged.usual.cut && has_whole_heads(kind, config_)) {
        judged.reason = "by its name; its widths are not the usual ones, cut as planned";
        return;
      }
      // Nothing says how many heads, or which parts, a cut would keep whole.
      judged.usual.cut = Cut::kReplicated;
      judged.reason = "by its name; its widths are not the usual ones, so ranks share it";
      return;
    }
    if (judged.spelling.is_joint) {
      judge_joined(pattern, kind);
      return;
    }
    judged.reason = reason_of_copy(pattern, n_sides, judged.is_odd_joint);
    if (is_single) return;
    if (n_sides < 2 && is_whole_on_ranks(pattern, kind)) {
      judged.reason = "a vector over the hidden state, or the experts, which ranks have whole";
      return;
    }
    std::vector<std::string> values = {std::string(role_name(Role::kOther))};
    if (n_sides == 1 && usual_place_is_attention(pattern) &&
        widths_.is_one_of(kind.first->shape->front(), "num_attention_heads"))
      values.emplace_back(role_name(Role::kAttentionSinks));
    if (!judged.is_odd_joint) {
      for (const NeighbourRow& row : kind.neighbours) {
        std::string role(role_name(row.rule->role));
        if (std::ranges::find(values, role) == values.end()) values.push_back(std::move(role));
      }
    }
    // One role in all families, whose widths are others.
    if (values.size() == 2 && n_sides == 2) {
      judged.spelling = {.role = *find_role(values[1]), .is_known = true};
      judged.usual = usual_row(judged.spelling.role);
      judged.usual.is_linear = kind.neighbours[0].rule->fp8_by_default;
    }
    take_answer(pattern, kind, "no family has such a tensor of this shape", values);
  }

  /// The usual meaning of a name, or of the class's own name for it, where it has its widths.
  UsualSpelling spelling_of(const std::string& pattern, const Kind& kind) const {
    const std::size_t n_sides = kind.first->shape->size();
    const UsualSpelling own = usual_spelling(pattern, n_sides);
    if (own.is_known) return own;
    const UsualSpelling of_class = usual_spelling(class_.meant(pattern), n_sides);
    const UsualRow usual = usual_row(of_class);
    return !usual.is_linear || are_both_usual(kind, usual) ? of_class : own;
  }

  /// Judges several matrices in one by the order in which they follow one another: that in which
  /// the class joins them, or the answer.
  void judge_joined(const std::string& pattern, Kind& kind) {
    Judged& judged = kind.judged;
    judged.reason = "by its name; several matrices in one, so ranks share it";
    if (judged.spelling.role == Role::kKProj || !kind.has_one_shape) return;
    std::string order(class_.joined(pattern)), teller = "as transformers' class does";
    if (order.empty()) {
      order = evidence_.joined;
      teller = "as the computed model has them";
    }
    if (order.empty() && !evidence_.answers.contains(kUnknownQuestion)) {
      order =
          ask({.key = std::string(kJoinedQuestion),
               .text = fmt::format("how do several matrices follow one another in {}? One after "
                                   "the other, or in turn by heads",
                                   pattern),
               .values = {std::string(kJoinedInParts), std::string(kJoinedInTurn)}})
              .value_or("");
      teller = "as answered";
      if (order.empty()) judged.reason.insert(0, "guessed: ");
    }
    if (order.empty()) return;
    judged.reason = fmt::format("by its name; joined {}", teller);
    set_joined(kind, order == kJoinedInParts, widths_);
  }

  /// Asks where the plan and a row cut different sides.
  void ask_of_plan(const std::string& pattern, Kind& kind, const NeighbourRow& row) {
    const std::optional<Cut> cut = class_.cut(pattern);
    const Cut own = row.rule->cut;
    if (cut && own != Cut::kReplicated && (*cut == Cut::kRow) != (own == Cut::kRow))
      take_answer(pattern, kind,
                  fmt::format("{} cuts it in another way than transformers' plan, {}",
                              row.family->name, class_.word(pattern)),
                  {like(row), std::string(role_name(Role::kOther))});
  }

  /// True if both sides have widths of the role, also if each has those of the other too.
  bool are_both_usual(const Kind& kind, const UsualRow& usual) const {
    const Shape& shape = *kind.first->shape;
    return kind.has_one_shape && shape.size() == 2 && widths_.is_one_of(shape[0], usual.out) &&
           widths_.is_one_of(shape[1], usual.in);
  }

  /// True for a matrix of a module that has the decays of a recurrence in the same layers, where
  /// families have them in another form, or no such matrix of a recurrence.
  bool is_of_new_recurrence(const std::string& pattern, const Kind& kind, Role role) const {
    const auto [begin, end] =
        kinds_.equal_range(std::string(module_of(stem_of(pattern))).append("A_log"));
    return std::ranges::any_of(std::ranges::subrange(begin, end), [&](const auto& entry) {
      const bool is_here = std::ranges::any_of(kind.layers, [&](const auto& layer) {
        return entry.second.layers.contains(layer.first);
      });
      return is_here && (!is_of_recurrence(role) || nearest_row(entry.second) == nullptr);
    });
  }

  /// True for a matrix or convolution that nothing is known of, and whose rows may be of heads.
  bool is_of_unknown_heads(const Kind& kind) const {
    const Shape& shape = *kind.first->shape;
    return kind.judged.neighbour == nullptr && kind.judged.spelling.role == Role::kOther &&
           shape.size() >= 2 && config_.head_dim > 0 && shape.front() > 1 &&
           shape.front() % config_.head_dim == 0;
  }

  /// Leaves an attention whole on each rank where parts other than its projections work on heads:
  /// engines compute no cut of the projections only.
  void leave_attention_whole() {
    for (const auto& [pattern, kind] : kinds_) {
      const std::string_view place = attention_of(pattern);
      if (place.empty() || kind.is_of_tower || !is_of_unknown_heads(kind)) continue;
      for (auto& [other, member] : kinds_) {
        if (attention_of(other) == place) member.judged.is_whole = true;
      }
    }
  }

  static std::string like(const NeighbourRow& row) {
    return fmt::format("{}{}", kLikeMark, row.family->name);
  }

  /// The answer to which row a kind of tensors has, where there is one.
  void take_answer(const std::string& pattern, Kind& kind, std::string_view reason,
                   std::vector<std::string> values) {
    Judged& judged = kind.judged;
    std::optional<std::string> answer;
    if (evidence_.answers.contains(kUnknownQuestion) && !evidence_.answers.contains(pattern)) {
      answer = evidence_.answers.find(kUnknownQuestion)->second;
    } else {
      answer = ask(
          {.key = pattern,
           .text = fmt::format("which role has it, {}? {}", shape_text(*kind.first->shape), reason),
           .values = std::move(values)});
    }
    judged.reason = fmt::format("guessed: {}", judged.reason);
    if (!answer) return;
    judged.reason = "as answered";
    if (answer->starts_with(kLikeMark)) {
      const std::string_view name = std::string_view(*answer).substr(kLikeMark.size());
      const auto row = std::ranges::find_if(kind.neighbours, [&](const NeighbourRow& one) {
        return one.fits && one.family->name == name;
      });
      if (row == kind.neighbours.end()) {
        throw Error(ErrorCode::kInvalidArgument, "--answer {}: {} has no row of this shape for it",
                    pattern, name);
      }
      judged.neighbour = &*row;
      return;
    }
    const std::optional<Role> role = find_role(*answer);
    if (!role)
      throw Error(ErrorCode::kInvalidArgument,
                  "--answer {}: there is no role '{}' (ingot list roles)", pattern, *answer);
    judged.neighbour = nullptr;
    judged.spelling = {.role = *role, .is_known = true};
    judged.usual = usual_row(*role);
  }

  /// True for norms, and outside of attention for vectors over what each rank has whole: the hidden
  /// state, and the experts of a router.
  bool is_whole_on_ranks(const std::string& pattern, const Kind& kind) const {
    if (pattern.find("norm") != std::string::npos) return true;
    if (usual_place_is_attention(pattern) || !kind.has_one_shape || kind.first->shape->size() != 1)
      return false;
    const std::uint64_t size = kind.first->shape->front();
    const bool is_inner = widths_.is_one_of(
        size, "intermediate_size, moe_intermediate_size, shared_intermediate_size");
    const bool is_of_router =
        pattern.find("gate.") != std::string::npos || pattern.find("router") != std::string::npos;
    return !is_inner && (widths_.is_one_of(size, "hidden_size") ||
                         (is_of_router && widths_.is_one_of(size, "n_routed_experts")));
  }

  std::string row(const std::string& pattern, const Kind& kind) const {
    if (kind.is_of_tower) {
      return fmt::format(
          "- {{name: \"{}\", role: {}{}, present: optional}}  # guessed: of a module with "
          "layers of its own, so it is only copied\n",
          pattern, role_name(Role::kOtherModality), kind.is_quantized ? ", quantized: true" : "");
    }
    const Judged& judged = kind.judged;
    const NeighbourRow* neighbour = judged.neighbour;
    const std::size_t n_sides = kind.first->shape->size();
    std::string notes, traits, shape;
    std::optional<std::string> own;
    std::optional<FineRole> fine = judged.fine;
    Role role = judged.spelling.role;
    UsualRow usual = judged.usual;
    if (neighbour != nullptr) {
      own = neighbours_.traits_of(*neighbour, kind.layers);
      if (!own) notes += "; its parts are given in no words of the config";
    }
    if (own) {
      const TensorRule& rule = *neighbour->rule;
      role = rule.role;
      fine = rule.fine;
      usual = {.cut = rule.cut, .fuse = rule.fuse, .is_linear = rule.fp8_by_default};
      traits = *own;
      shape = neighbours_.shape_of(*neighbour, kind.layers);
    }
    if (judged.is_whole && usual.cut != Cut::kReplicated) {
      own.reset();
      traits.clear();
      usual.cut = Cut::kReplicated;
      notes += "; ranks share it, since it is not known what else this attention does with heads";
    }
    std::string present = judged.stacks ? "stacked" : role == Role::kHead ? "untied" : "";
    const bool is_of_stack =
        judged.is_of_stack || (own && neighbour->rule->presence == Presence::kStacked);
    if (is_of_stack) present = "stacked";
    if (judged.stacks && judged.order != StackOrder::kNone) {
      traits += fmt::format(
          ", stack: {}", judged.order == StackOrder::kInputMajor ? "input-major" : "output-major");
    }
    if (judged.gate_up == GateUpOrder::kInterleaved || is_interleaved_bias(kind))
      traits += ", gate_up: interleaved";
    if (shape.empty()) shape = shape_of(kind, usual, judged.order, notes);
    const RowLayers where = layers_of(pattern, kind, present, notes);
    const std::string& layers = where.text;
    if (!own && (role == Role::kHead || role == Role::kMtpHead)) traits += ", silence: head";
    const UsualRow of_role = fine ? UsualRow{} : usual_row(role);
    if (!own) {
      const bool is_quantized = kind.is_quantized || (usual.is_linear && n_sides >= 2);
      if (is_quantized != of_role.is_linear) traits += fmt::format(", quantized: {}", is_quantized);
      if (kind.is_quantized && !usual.is_linear) notes += "; quantized in this checkpoint";
      if (usual.cut != of_role.cut)
        traits += fmt::format(", cut: {}", kCutWords[static_cast<std::size_t>(usual.cut)]);
      if (!judged.is_whole) traits += judged.traits;
      if (usual.cut != Cut::kReplicated && judged.traits.empty()) traits += widths_.heads_of(shape);
    }
    // Only queries are here where keys and values come from a low rank.
    const Fuse usually = usual_row(role).fuse;
    const Fuse wanted =
        usual.fuse == Fuse::kNone && usually == Fuse::kGateUp ? usually : usual.fuse;
    const bool is_fused = wanted == Fuse::kQkv      ? has_keys_
                          : wanted == Fuse::kGateUp ? has_gate_and_up(pattern, role)
                                                    : true;
    const Fuse fuse = is_fused ? wanted : Fuse::kNone;
    if (fuse != of_role.fuse)
      traits += fmt::format(", fuse: {}", kFuseWords[static_cast<std::size_t>(fuse)]);
    if (!present.empty()) traits += fmt::format(", present: {}", present);
    std::string dtype;
    if (const std::string_view word = class_.word(pattern); !word.empty())
      notes += fmt::format("; transformers' tp_plan: {}", word);
    if (!kind.is_quantized && kind.first->dtype != DType::kBf16)
      dtype = fmt::format(", dtype: {}", kDTypes[static_cast<std::size_t>(kind.first->dtype)].name);
    traits += dtype;
    // A wrong orientation would quantize along the wrong side: the user is asked.
    std::string question;
    if (judged.is_turned)
      question =
          "its shape says that inputs come before outputs; put its role as `other`, to copy it";
    if (judged.stacks && judged.order == StackOrder::kNone && n_sides == 3)
      question =
          "shapes do not tell the order of the stack; add `stack: output-major` for [experts, "
          "outputs, inputs], or `stack: input-major`";
    const auto row_in = [&](std::string_view which) {
      return fmt::format("- {{name: \"{}\", role: {}{}{}{}}}  # {}{}\n", pattern,
                         fine ? fine_role_name(*fine) : role_name(role), which, shape, traits,
                         judged.reason, notes);
    };
    std::string text = row_in(layers);
    if (where.is_in_mtp) text += row_in(kInMtp);
    if (!question.empty()) return fmt::format("# left out: {}\n# {}", question, row_in(layers));
    const bool has_singles = judged.order != StackOrder::kNone && kind.has_one_shape;
    const StackOrder stored = judged.is_stored_turned ? StackOrder::kOutputMajor : judged.order;
    return has_singles ? text + single_rows(pattern, stored, *kind.first->shape, layers, dtype)
                       : text;
  }

  const ModelConfig& config_;
  const FamilyEvidence& evidence_;
  ConfigWidths widths_;
  NamedLayers named_;
  ClassPlan class_;
  Neighbours neighbours_;
  bool has_keys_ = false;
  Kinds kinds_;
  std::map<const Family*, std::size_t> likeness_;  // kinds of tensors that rows of a family fit
  std::vector<FamilyQuestion> questions_;
  std::set<std::string> asked_;
  std::set<std::string> of_mtp_;
  std::string mtp_layers_;
};

}  // namespace

LearnedFamily learn_family(const ModelConfig& config, std::span<const UnknownWeight> weights,
                           const FamilyEvidence& evidence) {
  Proposal proposal(config, weights, evidence);
  LearnedFamily learned{.yaml = without_refused_rows(proposal.text()),
                        .share = proposal.other_share(),
                        .nearest = proposal.nearest()};
  learned.n_answers = evidence.answers.size();
  learned.has_stacks = proposal.has_stacks();
  learned.questions = std::move(proposal).questions();
  learned.faults = faults_of(learned.yaml, config, weights);
  return learned;
}

}  // namespace ingot::formats
