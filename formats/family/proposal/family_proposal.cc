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
#include "formats/config/nested_config.h"
#include "formats/family/family_check.h"
#include "formats/family/family_yaml.h"
#include "formats/family/proposal/named_layers.h"
#include "formats/family/rule_scope.h"
#include "formats/family/usual_spellings.h"
#include "formats/family/width.h"
#include "formats/json/json.h"
#include "formats/json/json_fields.h"

namespace ingot::formats {
namespace {

constexpr std::uint64_t kMaxNumber = std::uint64_t{1} << 32;
constexpr std::array<std::string_view, 4> kCutWords = {"replicated", "column", "row", "vocab"};
constexpr std::array<std::string_view, 5> kFuseWords = {"none", "qa_kva", "gate_up", "indexer_k",
                                                        "qkv"};

/// Names that differ only in numbers.
struct Kind {
  std::set<std::uint32_t> layers;
  const UnknownWeight* first = nullptr;
  bool is_quantized = false;
  bool has_one_shape = true;
  bool is_of_tower = false;
};

class Proposal {
 public:
  Proposal(const ModelConfig& config, std::span<const UnknownWeight> weights)
      : config_(config), n_layers_(config.num_hidden_layers), named_(config, names_of(weights)) {
    // Main layers first: those for multi-token prediction may have their names.
    for (const bool is_mtp : {false, true}) {
      for (const UnknownWeight& weight : weights) take(weight, is_mtp);
    }
    has_keys_ = std::ranges::any_of(kinds_, [](const auto& entry) {
      return !entry.second.is_of_tower && usual_spelling(entry.first).role == Role::kKProj;
    });
    find_widths();
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
    return head + "tensors:\n" + rows;
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
    if (layer) kind.layers.insert(*layer);
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

  // Numbers of the config, by the names that shapes may use.
  void find_widths() {
    for (const auto& [key, value] : text_keys(config_).items()) {
      const auto number = whole_number(value, kMaxNumber);
      if (number && *number > 1) offer(key);
    }
    for (const char* text :
         {"head_dim", "num_attention_heads * head_dim", "num_key_value_heads * head_dim",
          "num_attention_heads * v_head_dim", "kv_lora_rank + qk_rope_head_dim",
          "shared_intermediate_size", "n_routed_experts", "2 * moe_intermediate_size",
          "2 * hidden_size", "1"})
      offer(text);
  }
  void offer(std::string_view text) {
    try {
      const Width width = Width::parse(text);
      if (const std::uint64_t size = width.size(config_); size != 0) widths_.emplace(size, text);
    } catch (const Error&) {
      // No key that an expression can name.
    }
  }

  std::string side(std::uint64_t size, std::string_view likely, std::string& guesses) const {
    for (const std::string& text : split(likely, ", ")) {
      if (Width::parse(text).size(config_) == size) return text;
    }
    const auto [begin, end] = widths_.equal_range(size);
    if (begin == end) {
      guesses += fmt::format("; no width of the config is {}", size);
      return std::to_string(size);
    }
    if (!likely.empty() || std::next(begin) != end)
      guesses += fmt::format("; {} may be another width", size);
    return begin->second;
  }

  /// Orientation of the last two sides: the order that the shape fits, if it fits just one.
  StackOrder told_by_shape(const Kind& kind, const UsualTreatment& usual) const {
    const Shape& shape = *kind.first->shape;
    const auto is = [&](std::uint64_t size, std::string_view likely) {
      return std::ranges::any_of(split(likely, ", "), [&](const std::string& text) {
        return Width::parse(text).size(config_) == size;
      });
    };
    if (!kind.has_one_shape || shape.size() < 2) return StackOrder::kNone;
    const std::uint64_t first = shape[shape.size() - 2], second = shape.back();
    const bool is_output_major = is(first, usual.out) && is(second, usual.in);
    const bool is_input_major = is(first, usual.in) && is(second, usual.out);
    if (is_output_major == is_input_major) return StackOrder::kNone;
    return is_output_major ? StackOrder::kOutputMajor : StackOrder::kInputMajor;
  }

  /// Orientation of a stack, by its own shape and those of the stacks of its module; kNone where no
  /// shape tells, or two disagree. Quantized stacks are output-major.
  StackOrder order_of_stack(const std::string& pattern) const {
    const auto module_of = [](std::string_view name) {
      const std::string_view stem = stem_of(name);
      return stem.substr(0, stem.rfind('.') + 1);
    };
    StackOrder order = StackOrder::kNone;
    for (const auto& [other, kind] : kinds_) {
      if (module_of(other) != module_of(pattern) || !is_stack(other)) continue;
      std::vector<StackOrder> said = {
          told_by_shape(kind, usual_treatment(usual_spelling(other).role))};
      if (kind.is_quantized) said.push_back(StackOrder::kOutputMajor);
      for (const StackOrder own : said) {
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

  static bool is_stack(const std::string& pattern) {
    const Role role = usual_spelling(pattern).role;
    return role == Role::kExpertsGateUp || role == Role::kExpertsDown;
  }

  std::string shape_of(const Kind& kind, const UsualTreatment& usual, StackOrder order,
                       std::string& traits, std::string& guesses) const {
    const Shape& shape = *kind.first->shape;
    if (!kind.has_one_shape) {
      guesses += "; its shape differs from layer to layer, and none is checked";
      return {};
    }
    if (shape.empty() || shape.size() > kMaxRuleDimensions) return {};
    std::vector<std::string> sides;
    if (order != StackOrder::kNone && shape.size() == 3) {
      if (told_by_shape(kind, usual) == StackOrder::kNone)
        guesses += "; its order is that of its neighbours";
      const bool is_turned = order == StackOrder::kInputMajor;
      traits += is_turned ? ", stack: input-major" : ", stack: output-major";
      sides = {side(shape[0], "n_routed_experts", guesses),
               side(shape[1], is_turned ? usual.in : usual.out, guesses),
               side(shape[2], is_turned ? usual.out : usual.in, guesses)};
    } else {
      for (std::size_t i = 0; i < shape.size(); ++i)
        sides.push_back(side(shape[i], i == 0 ? usual.out : usual.in, guesses));
    }
    return fmt::format(", shape: [{}]", fmt::join(sides, ", "));
  }

  /// The layers of a row, as families have them.
  std::string layers_of(const std::string& pattern, const Kind& kind, std::string& present,
                        std::string& guesses) const {
    if (of_mtp_.contains(pattern)) return ", layers: mtp";
    if (kind.layers.empty() || has_mark(pattern, kMtpMark)) return {};
    const auto n_all = static_cast<std::uint32_t>(layer_count(config_));
    const auto is_where = [&](Scope scope, std::uint32_t n) {
      for (std::uint32_t layer = 0; layer < n; ++layer) {
        if (scope_holds(scope, config_, layer) != kind.layers.contains(layer)) return false;
      }
      return true;
    };
    for (const auto& [scope, word] : {std::pair{Scope::kLayer, "all"},
                                      {Scope::kMainLayer, "main"},
                                      {Scope::kMoeLayer, "moe"},
                                      {Scope::kDenseLayer, "dense"},
                                      {Scope::kFullAttentionLayer, "full_attention"},
                                      {Scope::kLinearAttentionLayer, "linear_attention"},
                                      {Scope::kMtpLayer, "mtp"}}) {
      if (is_where(scope, n_all))
        return scope == Scope::kLayer ? "" : fmt::format(", layers: {}", word);
    }
    // A checkpoint that leaves MTP layers out.
    if (is_where(Scope::kLayer, static_cast<std::uint32_t>(n_layers_))) return {};
    if (std::string condition = condition_of(kind.layers); !condition.empty()) {
      guesses += "; by a key of the config that has the same layers";
      return fmt::format(", layers: {}", condition);
    }
    guesses +=
        fmt::format("; in {} of {} layers, and nothing says in which", kind.layers.size(), n_all);
    present = "optional";
    return {};
  }

  /// A list of the config that has one set of values in these layers, and others elsewhere.
  std::string condition_of(const std::set<std::uint32_t>& layers) const {
    for (const auto& [key, list] : text_keys(config_).items()) {
      const bool is_text = list.is_string();
      if (!is_text && !list.is_array()) continue;
      const std::size_t n = is_text ? list.get_ref<const std::string&>().size() : list.size();
      if (n_layers_ == 0 || (n != n_layers_ && n != layer_count(config_))) continue;
      std::set<std::string> within, without;
      bool is_plain = true;
      for (std::uint32_t layer = 0; layer < n_layers_; ++layer) {
        std::string word;
        if (is_text) {
          word = list.get_ref<const std::string&>()[layer];
        } else {
          const Json& entry = list[layer];
          is_plain &= entry.is_primitive();
          word = entry.is_string() ? entry.get<std::string>() : entry.dump();
        }
        is_plain &= std::ranges::all_of(
            word, [](char c) { return c >= ' ' && c < 127 && c != '"' && c != '\\'; });
        (layers.contains(layer) ? within : without).insert(word);
      }
      const bool is_apart = is_plain && !within.empty() && !without.empty() &&
                            std::ranges::none_of(within, [&](const std::string& word) {
                              return without.contains(word);
                            });
      const bool is_key = std::ranges::all_of(
          key, [](char c) { return c == '_' || std::isalnum(static_cast<unsigned char>(c)); });
      if (is_apart && is_key)
        return fmt::format("{{{}: [\"{}\"]}}", key, fmt::join(within, "\", \""));
    }
    return {};
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
      const UsualTreatment usual = usual_treatment(single.role);
      std::string guesses;
      const std::string sides =
          fmt::format("{}, {}", side(shape[is_turned ? 2 : 1] / singles.size(), usual.out, guesses),
                      side(shape[is_turned ? 1 : 2], usual.in, guesses));
      rows += fmt::format(
          "- {{name: \"{}\", role: {}{}, shape: [{}], quantized: true, cut: {}{}{}}}{}\n", name,
          role_name(single.role), layers, sides, kCutWords[static_cast<std::size_t>(usual.cut)],
          usual.fuse == Fuse::kGateUp ? ", fuse: gate_up" : "", dtype,
          guesses.empty() ? "" : "  # guessed: " + guesses.substr(2));
    }
    return rows;
  }

  std::string row(const std::string& pattern, const Kind& kind) const {
    if (kind.is_of_tower) {
      return fmt::format(
          "- {{name: \"{}\", role: {}{}, present: optional}}  # guessed: of a module with "
          "layers of its own, so it is only copied\n",
          pattern, role_name(Role::kOtherModality), kind.is_quantized ? ", quantized: true" : "");
    }
    UsualSpelling spelling = usual_spelling(pattern);
    UsualTreatment usual = usual_treatment(spelling.role);
    const std::size_t n_sides = kind.first->shape->size();
    const bool is_matrix = n_sides >= 2, stacks = is_stack(pattern) && n_sides == 3;
    // Several matrices in one tensor, of a kind that has none, or one where there are several.
    if ((usual.is_linear && !stacks && n_sides > 2) || (is_stack(pattern) && !stacks)) {
      spelling = {};
      usual = {};
    }
    const TensorRule* known =
        spelling.is_known || is_stack(pattern) ? nullptr : row_of_tables(pattern);
    if (known != nullptr && (n_sides == 2 || !known->fp8_by_default)) {
      spelling = {.role = known->role, .is_known = true};
      usual.is_linear = known->fp8_by_default;
    }
    const StackOrder order = stacks ? order_of_stack(pattern) : StackOrder::kNone;
    const bool is_turned =
        usual.is_linear && !stacks && told_by_shape(kind, usual) == StackOrder::kInputMajor;
    std::string guesses, traits,
        present = stacks                         ? "stacked"
                  : spelling.role == Role::kHead ? "untied"
                                                 : "";
    if (!spelling.is_known) guesses += "; no usual name, so it is only copied";
    if (spelling.role == Role::kAttentionBias) {
      std::string weight = pattern.substr(0, pattern.rfind('.')) + ".weight";
      usual = usual_treatment(usual_spelling(weight).role);
      if (usual.cut == Cut::kRow) usual.cut = Cut::kReplicated;
      usual.is_linear = false;
    }
    const std::string shape = shape_of(kind, usual, order, traits, guesses);
    const std::string layers = layers_of(pattern, kind, present, guesses);
    if (spelling.role == Role::kHead || spelling.role == Role::kMtpHead)
      traits += ", silence: head";
    if (kind.is_quantized || (usual.is_linear && is_matrix)) traits += ", quantized: true";
    if (kind.is_quantized && !usual.is_linear) guesses += "; quantized in this checkpoint";
    if (usual.cut != Cut::kReplicated)
      traits += fmt::format(", cut: {}", kCutWords[static_cast<std::size_t>(usual.cut)]);
    // Only queries are here where keys and values come from a low rank.
    const bool is_fused = usual.fuse != Fuse::kQkv || has_keys_;
    if (usual.fuse != Fuse::kNone && is_fused)
      traits += fmt::format(", fuse: {}", kFuseWords[static_cast<std::size_t>(usual.fuse)]);
    if (!present.empty()) traits += fmt::format(", present: {}", present);
    std::string dtype;
    if (!kind.is_quantized && kind.first->dtype != DType::kBf16)
      dtype = fmt::format(", dtype: {}", kDTypes[static_cast<std::size_t>(kind.first->dtype)].name);
    traits += dtype;
    // Nothing may be quantized along the wrong side.
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
  std::uint64_t n_layers_ = 0;
  NamedLayers named_;
  bool has_keys_ = false;
  std::map<std::string, Kind> kinds_;
  std::set<std::string> of_mtp_;
  std::multimap<std::uint64_t, std::string> widths_;
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
