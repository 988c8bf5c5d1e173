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
#include "formats/family/proposal/config_widths.h"
#include "formats/family/proposal/named_layers.h"
#include "formats/family/proposal/row_layers.h"
#include "formats/family/rule_scope.h"
#include "formats/family/usual_spellings.h"
#include "formats/family/width.h"

namespace ingot::formats {
namespace {

// A hundredth of the bytes.
constexpr std::uint64_t kNotablePart = 100;

/// Names that differ only in numbers.
struct Kind {
  ShapesByLayer layers;  // shape of such a tensor in each layer
  const UnknownWeight* first = nullptr;
  bool is_quantized = false;
  bool has_one_shape = true;
  bool is_of_tower = false;
  std::uint64_t n_bytes = 0;
};

class Proposal {
 public:
  Proposal(const ModelConfig& config, std::span<const UnknownWeight> weights)
      : config_(config), widths_(config), named_(config, names_of(weights)) {
    // Main layers first: those for multi-token prediction may have their names.
    for (const bool is_mtp : {false, true}) {
      for (const UnknownWeight& weight : weights) take(weight, is_mtp);
    }
    has_keys_ = std::ranges::any_of(kinds_, [](const auto& entry) {
      return !entry.second.is_of_tower && usual_spelling(entry.first).role == Role::kKProj;
    });
  }

  std::string text() {
    std::string rows;
    for (const auto& [pattern, kind] : kinds_) rows += row(pattern, kind);
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
        "# Proposed by ingot from names, shapes and config.json. Look at every row before anything "
        "is\n"
        "# quantized; lines that end with `# guessed` first. docs/families.md says what rows "
        "have.\n"
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

  /// other_share() of the weights.
  std::string other_share() const {
    std::uint64_t all = 0, of_others = 0;
    const std::pair<const std::string, Kind>* largest = nullptr;
    for (const auto& entry : kinds_) {
      all += entry.second.n_bytes;
      const bool is_other = is_only_copied(entry.first, entry.second);
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

  void take(const UnknownWeight& weight, bool want_mtp) {
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
    for (std::size_t i = 1; i < words.size(); ++i) {
      if (number_from(words[i]) && words[i - 1].find("expert") != std::string::npos) {
        words[i] = kExpertMark;
        break;
      }
    }
    std::string pattern = fmt::format("{}", fmt::join(words, "."));
    if (want_mtp && !name->is_numbered) of_mtp_.insert(pattern);
    Kind& kind = kinds_[pattern];
    if (kind.first == nullptr) kind.first = &weight;
    kind.is_of_tower = is_of_tower;
    kind.has_one_shape &= *kind.first->shape == *weight.shape;
    kind.is_quantized |= weight.is_quantized;
    kind.n_bytes += weight.n_bytes;
    if (layer) kind.layers.emplace(*layer, weight.shape);
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

  /// Orientation of the last two sides: the order that the shape fits, if it fits just one.
  StackOrder told_by_shape(const Kind& kind, const UsualRow& usual) const {
    const Shape& shape = *kind.first->shape;
    const auto is = [&](std::uint64_t size, std::string_view likely) {
      return widths_.is_one_of(size, likely);
    };
    if (!kind.has_one_shape || shape.size() < 2) return StackOrder::kNone;
    const std::uint64_t first = shape[shape.size() - 2], second = shape.back();
    const bool is_output_major = is(first, usual.out) && is(second, usual.in);
    const bool is_input_major = is(first, usual.in) && is(second, usual.out);
    if (is_output_major == is_input_major) return StackOrder::kNone;
    return is_output_major ? StackOrder::kOutputMajor : StackOrder::kInputMajor;
  }

  static std::string_view module_of(std::string_view name) {
    const std::string_view stem = stem_of(name);
    return stem.substr(0, stem.rfind('.') + 1);
  }

  /// The evidence of a stack itself on its orientation: its shape, the values that share a scale,
  /// which are of one output, and its biases, one for each output.
  std::vector<StackOrder> told_by_stack(const std::string& pattern, const Kind& kind) const {
    const Shape& shape = *kind.first->shape;
    std::vector<StackOrder> said = {
        told_by_shape(kind, usual_row(usual_spelling(pattern, 3).role))};
    const auto [rows, cols] = kind.first->block;
    if (kind.is_quantized && rows == 1 && cols > 1) said.push_back(StackOrder::kOutputMajor);
    if (kind.is_quantized && cols == 1 && rows > 1) said.push_back(StackOrder::kInputMajor);
    for (const std::string_view ending : {"_bias", ".bias"}) {
      const auto bias = kinds_.find(std::string(stem_of(pattern)).append(ending));
      if (bias == kinds_.end() || shape[1] == shape[2]) continue;
      const Shape& lengths = *bias->second.first->shape;
      if (lengths.size() != 2 || !bias->second.has_one_shape) continue;
      if (lengths[1] == shape[1]) said.push_back(StackOrder::kOutputMajor);
      if (lengths[1] == shape[2]) said.push_back(StackOrder::kInputMajor);
    }
    return said;
  }

  /// Orientation of a stack, by what it and the stacks of its module say; kNone where nothing
  /// tells, or two disagree.
  StackOrder order_of_stack(const std::string& pattern) const {
    StackOrder order = StackOrder::kNone;
    for (const auto& [other, kind] : kinds_) {
      if (module_of(other) != module_of(pattern) || !is_stack(other, kind)) continue;
      for (const StackOrder own : told_by_stack(other, kind)) {
        if (own == StackOrder::kNone) continue;
        if (order != StackOrder::kNone && order != own) return StackOrder::kNone;
        order = own;
      }
    }
    return order;
  }

  /// The name without the ending of weights.
  static std::string_view stem_of(std::string_view name) {
    constexpr std::string_view kWeight = ".weight";
    if (name.ends_with(kWeight)) name.remove_suffix(kWeight.size());
    return name;
  }

  static bool is_stack(const std::string& pattern, const Kind& kind) {
    const Role role = usual_spelling(pattern, 3).role;
    return kind.first->shape->size() == 3 &&
           (role == Role::kExpertsGateUp || role == Role::kExpertsDown);
  }

  /// True if gate and up are both here, and one matrix each.
  bool has_gate_and_up(const std::string& pattern, Role role) const {
    const auto has = [&](Role wanted) {
      return std::ranges::any_of(kinds_, [&](const auto& entry) {
        const UsualSpelling spelling =
            usual_spelling(entry.first, entry.second.first->shape->size());
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
                       std::string& traits, std::string& guesses) const {
    const Shape& shape = *kind.first->shape;
    if (!kind.has_one_shape) {
      if (std::string own = shape_by_layer(kind, usual, guesses); !own.empty()) return own;
      guesses += "; its shape differs from layer to layer, and none is checked";
      return ", shape: any";
    }
    if (shape.empty() || shape.size() > kMaxRuleDimensions) return ", shape: any";
    std::vector<std::string> sides;
    if (order != StackOrder::kNone && shape.size() == 3) {
      if (told_by_shape(kind, usual) == StackOrder::kNone)
        guesses += "; its order is that of its neighbours";
      const bool is_turned = order == StackOrder::kInputMajor;
      traits += is_turned ? ", stack: input-major" : ", stack: output-major";
      sides = {widths_.side(shape[0], "n_routed_experts", guesses),
               widths_.side(shape[1], is_turned ? usual.in : usual.out, guesses),
               widths_.side(shape[2], is_turned ? usual.out : usual.in, guesses)};
    } else {
      for (std::size_t i = 0; i < shape.size(); ++i)
        sides.push_back(widths_.side(shape[i], i == 0 ? usual.out : usual.in, guesses));
    }
    return fmt::format(", shape: [{}]", fmt::join(sides, ", "));
  }

  /// Returns the layers of a row in the words of a family's file.
  std::string layers_of(const std::string& pattern, const Kind& kind, std::string& present,
                        std::string& guesses) const {
    if (of_mtp_.contains(pattern)) return ", layers: mtp";
    if (kind.layers.empty() || has_mark(pattern, kMtpMark)) return {};
    std::set<std::uint32_t> layers;
    for (const auto& [layer, shape] : kind.layers) layers.insert(layer);
    RowLayers found = row_layers(layers, config_);
    if (!found.guess.empty()) guesses += "; " + found.guess;
    if (found.is_optional) present = "optional";
    return found.text;
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
      rows += fmt::format("- {{name: \"{}\", role: {}{}, shape: [{}]{}}}{}\n", name,
                          role_name(single.role), layers, sides, dtype,
                          guesses.empty() ? "" : "  # guessed: " + guesses.substr(2));
    }
    return rows;
  }

  /// True if the outputs of a kind are those of several matrices together.
  bool is_joined(const Kind& kind, const UsualRow& usual) const {
    const Shape& shape = *kind.first->shape;
    return kind.has_one_shape && !shape.empty() && widths_.is_one_of(shape[0], usual.out);
  }

  static std::string_view reason_of_copy(const std::string& pattern, std::size_t n_sides,
                                         bool is_odd_joint) {
    if (is_odd_joint)
      return "; called as several matrices in one, whose widths it does not have, so it is only "
             "copied";
    if (n_sides == 2 && is_called_stack(pattern))
      return "; the experts of a layer in one matrix, so it is only copied";
    return "; no usual name, so it is only copied";
  }

  /// A row before it is written.
  struct Judged {
    UsualSpelling spelling;
    StackOrder order = StackOrder::kNone;
    bool stacks = false;
    bool is_turned = false;     // inputs before outputs
    bool is_odd_joint = false;  // name says several matrices, the shape says one
    UsualRow usual;
  };
  Judged judge(const std::string& pattern, const Kind& kind) const {
    const std::size_t n_sides = kind.first->shape->size();
    UsualSpelling spelling = usual_spelling(pattern, n_sides);
    UsualRow usual = usual_row(spelling);
    const bool stacks = is_stack(pattern, kind);
    // Several matrices in one tensor, of a kind that has none, or one where there are several.
    const bool is_stack_of_others = usual.is_linear && !stacks && n_sides > 2;
    const bool is_odd_joint = spelling.is_joint && !is_joined(kind, usual);
    if (is_stack_of_others || is_odd_joint || (is_expert_stack(spelling.role) && !stacks)) {
      spelling = {};
      usual = {};
    }
    const TensorRule* known = spelling.is_known || stacks ? nullptr : row_of_tables(pattern);
    if (known != nullptr && !is_odd_joint && (n_sides == 2 || !known->fp8_by_default)) {
      spelling = {.role = known->role, .is_known = true};
      usual.is_linear = known->fp8_by_default;
    }
    const StackOrder order = stacks ? order_of_stack(pattern) : StackOrder::kNone;
    const bool is_turned =
        usual.is_linear && !stacks && told_by_shape(kind, usual) == StackOrder::kInputMajor;
    return {.spelling = spelling,
            .order = order,
            .stacks = stacks,
            .is_turned = is_turned,
            .is_odd_joint = is_odd_joint,
            .usual = usual};
  }

  bool is_only_copied(const std::string& pattern, const Kind& kind) const {
    if (kind.is_of_tower) return false;
    const Judged judged = judge(pattern, kind);
    return judged.spelling.role == Role::kOther || judged.is_turned ||
           (judged.stacks && judged.order == StackOrder::kNone);
  }

  std::string row(const std::string& pattern, const Kind& kind) const {
    if (kind.is_of_tower) {
      return fmt::format(
          "- {{name: \"{}\", role: {}{}, present: optional}}  # guessed: of a module with "
          "layers of its own, so it is only copied\n",
          pattern, role_name(Role::kOtherModality), kind.is_quantized ? ", quantized: true" : "");
    }
    const Judged judged = judge(pattern, kind);
    const auto& [spelling, order, stacks, is_turned, is_odd_joint, usually] = judged;
    UsualRow usual = usually;
    const std::size_t n_sides = kind.first->shape->size();
    std::string guesses, traits,
        present = stacks                         ? "stacked"
                  : spelling.role == Role::kHead ? "untied"
                                                 : "";
    if (!spelling.is_known) guesses += reason_of_copy(pattern, n_sides, is_odd_joint);
    if (spelling.is_joint) guesses += "; several matrices in one, so ranks share it";
    if (spelling.role == Role::kAttentionBias) {
      std::string weight = pattern.substr(0, pattern.rfind('.')) + ".weight";
      usual = usual_row(usual_spelling(weight));
      if (usual.cut == Cut::kRow) usual.cut = Cut::kReplicated;
      usual.is_linear = false;
    }
    const std::string shape = shape_of(kind, usual, order, traits, guesses);
    const std::string layers = layers_of(pattern, kind, present, guesses);
    if (spelling.role == Role::kHead || spelling.role == Role::kMtpHead)
      traits += ", silence: head";
    const UsualRow of_role = usual_row(spelling.role);
    const bool is_quantized = kind.is_quantized || (usual.is_linear && n_sides >= 2);
    if (is_quantized != of_role.is_linear) traits += fmt::format(", quantized: {}", is_quantized);
    if (kind.is_quantized && !usual.is_linear) guesses += "; quantized in this checkpoint";
    if (usual.cut != of_role.cut)
      traits += fmt::format(", cut: {}", kCutWords[static_cast<std::size_t>(usual.cut)]);
    // Only queries are here where keys and values come from a low rank.
    const bool is_fused = usual.fuse == Fuse::kQkv      ? has_keys_
                          : usual.fuse == Fuse::kGateUp ? has_gate_and_up(pattern, spelling.role)
                                                        : true;
    const Fuse fuse = is_fused ? usual.fuse : Fuse::kNone;
    if (fuse != of_role.fuse)
      traits += fmt::format(", fuse: {}", kFuseWords[static_cast<std::size_t>(fuse)]);
    if (usual.cut != Cut::kReplicated) traits += widths_.heads_of(shape);
    if (!present.empty()) traits += fmt::format(", present: {}", present);
    std::string dtype;
    if (!kind.is_quantized && kind.first->dtype != DType::kBf16)
      dtype = fmt::format(", dtype: {}", kDTypes[static_cast<std::size_t>(kind.first->dtype)].name);
    traits += dtype;
    // A wrong orientation would quantize along the wrong side: the user is asked.
    std::string question;
    if (is_turned)
      question =
          "its shape says that inputs come before outputs; put its role as `other`, to copy it";
    if (stacks && order == StackOrder::kNone && n_sides == 3)
      question =
          "shapes do not tell the order of the stack; add `stack: output-major` for [experts, "
          "outputs, inputs], or `stack: input-major`";
    const std::string text = fmt::format(
        "- {{name: \"{}\", role: {}{}{}{}}}{}\n", pattern, role_name(spelling.role), layers, shape,
        traits, guesses.empty() ? "" : "  # guessed: " + guesses.substr(2));
    if (!question.empty()) return fmt::format("# left out: {}\n# {}", question, text);
    const bool has_singles = order != StackOrder::kNone && kind.has_one_shape;
    return has_singles ? text + single_rows(pattern, order, *kind.first->shape, layers, dtype)
                       : text;
  }

  const ModelConfig& config_;
  ConfigWidths widths_;
  NamedLayers named_;
  bool has_keys_ = false;
  std::map<std::string, Kind> kinds_;
  std::set<std::string> of_mtp_;
  std::string mtp_layers_;
};

/// Comments the line out that a refusal of the text begins with, and says why. Returns whether
/// there is such a line.
bool leave_out_refused(std::string& yaml, std::string_view refusal) {
  constexpr std::string_view kLine = "line ";
  if (!refusal.starts_with(kLine)) return false;
  refusal.remove_prefix(kLine.size());
  const std::size_t colon = std::min(refusal.find(": "), refusal.size());
  const std::optional<std::uint32_t> line = number_from(refusal.substr(0, colon));
  std::size_t begin = 0;
  for (std::uint32_t i = 1; line && i < *line; ++i) begin = yaml.find('\n', begin) + 1;
  if (!line || yaml.substr(begin, 2) != "- ") return false;
  yaml.insert(begin, fmt::format("# left out, {}\n# ", refusal.substr(colon + 2)));
  return true;
}

}  // namespace

std::string other_share(std::span<const UnknownWeight> weights, const ModelConfig& config) {
  return Proposal(config, weights).other_share();
}

std::string propose_family(const ModelConfig& config, std::span<const UnknownWeight> weights) {
  constexpr int kMostLeftOut = 256;
  std::string yaml = Proposal(config, weights).text();
  // Names of one checkpoint may contradict each other in the meaning of their numbers.
  for (int i = 0; i < kMostLeftOut; ++i) {
    try {
      static_cast<void>(parse_family(yaml, {}));
      break;
    } catch (const Error& error) {
      if (!leave_out_refused(yaml, error.message())) break;
    }
  }
  return yaml;
}

}  // namespace ingot::formats
