#include "formats/family/family_check.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "formats/base/words.h"
#include "formats/config/keys.h"

namespace ingot::formats {
namespace {

// Each row of a group holds those of its condition, and pairs of rows are compared by them.
constexpr std::size_t kMaxValues = 256;
constexpr std::uint64_t kMaxFirstLayer = 1;

constexpr std::array kMarks = {kLayerMark, kMtpMark, kExpertMark};

/// The mark that a word is or ends with; empty without one.
std::string_view mark_of(std::string_view word) {
  const std::size_t at = word.find('{');
  return at == std::string_view::npos || word.find('}') != word.size() - 1 ? std::string_view()
                                                                           : word.substr(at);
}

bool is_plain(std::string_view text) {
  return std::ranges::all_of(text, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-';
  });
}

template <typename... Args>
[[noreturn]] void refuse(const FamilyRow& row, fmt::format_string<Args...> fact, Args&&... args) {
  throw Error(ErrorCode::kInvalidArgument, "{}'{}' {}",
              row.line > 0 ? fmt::format("line {}: ", row.line) : "", row.rule.pattern,
              fmt::format(fact, std::forward<Args>(args)...));
}

bool is_number_word(std::string_view word) {
  return !word.empty() && std::ranges::all_of(word, [](char c) { return c >= '0' && c <= '9'; });
}

/// True if the number of a layer is in the name.
bool is_numbered(std::string_view pattern) {
  return has_mark(pattern, kLayerMark) || has_mark(pattern, kMtpMark);
}

/// The kinds of layers of a scope: dense with full and with linear attention, mixtures with either,
/// MTP layers; of a model itself.
unsigned kinds_of(Scope scope) {
  switch (scope) {
    case Scope::kModel:
      return 32;
    case Scope::kLayer:
      return 1 | 2 | 4 | 8 | 16;
    case Scope::kMainLayer:
      return 1 | 2 | 4 | 8;
    case Scope::kDenseLayer:
      return 1 | 2;
    case Scope::kMoeLayer:
      return 4 | 8 | 16;
    case Scope::kFullAttentionLayer:
      return 1 | 4 | 16;
    case Scope::kLinearAttentionLayer:
      return 2 | 8;
    case Scope::kMtpLayer:
      return 16;
  }
  return 0;
}

// The number of a layer may be any other value.
bool shares_value(const LayerCondition& a, const LayerCondition& b) {
  const auto has = [](const LayerCondition& condition, std::string_view value) {
    return std::ranges::find(condition.values, value) != condition.values.end();
  };
  return has(a, kLayerMark) || has(b, kLayerMark) ||
         std::ranges::any_of(a.values, [&](const std::string& value) { return has(b, value); });
}

/// True if no layer can be in both. Two lists of layers are taken to have none in common.
bool excludes(const LayerCondition& a, const LayerCondition& b) {
  if (a.values.empty() && b.values.empty()) {
    return a.key == b.key ? a.is_for_listed != b.is_for_listed : a.is_for_listed && b.is_for_listed;
  }
  return a.key == b.key && !a.values.empty() && !b.values.empty() && !shares_value(a, b);
}

/// True if two rows of one pattern can hold in one layer.
bool may_meet(const TensorRule& a, const TensorRule& b) {
  // The name does not tell tensors outside the layers from those that all MTP layers share.
  if (!is_numbered(a.pattern)) return true;
  if ((kinds_of(a.scope) & kinds_of(b.scope)) == 0) return false;
  for (const LayerCondition& one : a.layers) {
    for (const LayerCondition& other : b.layers) {
      if (excludes(one, other)) return false;
    }
  }
  const bool are_opposite = (a.presence == Presence::kWhen && b.presence == Presence::kUnless) ||
                            (a.presence == Presence::kUnless && b.presence == Presence::kWhen);
  return !are_opposite || !(*a.condition == *b.condition);
}

void require_disjoint(const std::vector<FamilyRow>& rows) {
  std::map<std::string_view, std::vector<const FamilyRow*>> by_pattern;
  for (const FamilyRow& row : rows) {
    std::vector<const FamilyRow*>& same = by_pattern[row.rule.pattern];
    for (const FamilyRow* other : same) {
      if (!may_meet(row.rule, other->rule)) continue;
      refuse(row,
             "is the name of another row in the same layers{} (give them other `layers`, or leave "
             "one out)",
             other->line > 0 ? fmt::format(", in line {}", other->line) : "");
    }
    same.push_back(&row);
  }
}

/// The rows of a weight and of its bias are taken apart and cut by their own fields.
void require_one_order(const std::vector<FamilyRow>& rows) {
  const auto is_fused = [](Role role) {
    return role == Role::kExpertsGateUp || role == Role::kExpertsGateUpBias;
  };
  const FamilyRow* first = nullptr;
  for (const FamilyRow& row : rows) {
    if (!is_fused(row.rule.role)) continue;
    if (first == nullptr) first = &row;
    if (row.rule.gate_up != first->rule.gate_up)
      refuse(row,
             "has another order of gate and up than the stack or bias before it (give both the "
             "same `gate_up`)");
  }
}

void require_sound(const FamilyRow& row) {
  const TensorRule& rule = row.rule;
  if (rule.is_flat && (rule.stack == StackOrder::kNone || rule.any_shape))
    refuse(row, "is flat and no stack of matrices (give it `stack` and a shape of three sides)");
  const bool is_of_layer = is_numbered(rule.pattern);
  const bool is_of_tower = rule.role == Role::kOtherModality;
  if (!is_of_tower && rule.scope == Scope::kModel &&
      (is_of_layer || has_mark(rule.pattern, kExpertMark)))
    refuse(row, "is outside the layers and has the number of one (leave `layers: model` out)");
  if (rule.scope != Scope::kModel && rule.scope != Scope::kMtpLayer && !is_of_layer)
    refuse(row, "is in layers and lacks the number of one (write it as {{layer}})");
  if (has_mark(rule.pattern, kMtpMark) && rule.scope != Scope::kMtpLayer)
    refuse(row, "has the number of an MTP layer and is in others (leave `layers` out)");
  if (rule.presence == Presence::kStacked && has_mark(rule.pattern, kExpertMark))
    refuse(row, "is of one expert and not a stack of them (leave `present` out)");
  if (rule.presence == Presence::kPerExpert && !has_mark(rule.pattern, kExpertMark))
    refuse(row, "is of one expert and lacks its number (write it as {{expert}})");
  const auto n_dimensions = static_cast<std::size_t>(
      std::ranges::count_if(rule.shape, [](const Width* width) { return width != nullptr; }));
  if (rule.fp8_by_default && !rule.any_shape && n_dimensions < 2)
    refuse(row, "is quantized and no matrix (leave `quantized` out)");
  if (rule.cut == Cut::kReplicated && !rule.sections.empty())
    refuse(row, "has sections and is not cut (give it `cut`)");
  const bool is_stack = rule.role == Role::kExpertsGateUp || rule.role == Role::kExpertsGate ||
                        rule.role == Role::kExpertsUp || rule.role == Role::kExpertsDown;
  if (is_stack && rule.stack == StackOrder::kNone)
    refuse(row,
           "is a stack of experts (say how its matrices are stored: `stack: output-major` or "
           "`stack: input-major`)");
  if (rule.stack != StackOrder::kNone && n_dimensions != 3)
    refuse(row, "is a stack of experts and has not three dimensions (say which in `shape`)");
}

}  // namespace

std::string_view key_mark(std::string_view pattern) {
  for (const std::string_view word : name_words(pattern)) {
    const std::string_view mark = mark_of(word);
    if (!mark.empty() && std::ranges::find(kMarks, mark) == kMarks.end()) return mark;
  }
  return {};
}

Width count_of(std::string_view mark, const Family& family) {
  return Width::parse(mark.substr(1, mark.size() - 2), family.widths);
}

bool is_same_place(const TensorRule& a, const TensorRule& b) {
  return a.pattern == b.pattern && a.scope == b.scope &&
         std::ranges::equal(a.layers, b.layers,
                            [](const LayerCondition& x, const LayerCondition& y) {
                              return x.key == y.key && x.values == y.values && x.first == y.first &&
                                     x.is_for_listed == y.is_for_listed;
                            });
}

LayerCondition read_layer_condition(const Yaml& value) {
  for (const char* key : {"listed_in", "not_listed_in"}) {
    const Yaml* list = value.find(key);
    if (list == nullptr) continue;
    value.require_keys(std::array<std::string_view, 2>{key, "from"});
    LayerCondition condition{.key = list->text(key),
                             .is_for_listed = key == std::string_view("listed_in")};
    if (const Yaml* from = value.find("from"))
      condition.first = from->number("from", kMaxFirstLayer);
    return condition;
  }
  const std::span<const Yaml::Member> members = value.members("layers");
  if (members.size() != 1) value.refuse("a condition on layers has one key, and values");
  LayerCondition condition{.key = members[0].key, .values = members[0].value.texts(members[0].key)};
  if (condition.values.empty()) value.refuse("a condition on layers lacks values");
  if (condition.values.size() > kMaxValues)
    value.refuse("a condition on layers has more than {} values", kMaxValues);
  return condition;
}

void require_marks(const FamilyRow& row, const NamedWidths& widths) {
  std::set<std::string_view> seen;
  std::string_view before;
  for (const std::string_view word : name_words(row.rule.pattern)) {
    if (word.empty())
      refuse(row, "has nothing between two dots, before the first or after the last");
    const std::string_view mark = mark_of(word);
    const std::string_view head = word.substr(0, word.size() - mark.size());
    const bool is_known = std::ranges::find(kMarks, mark) != kMarks.end();
    // A key has something before it, or every config or the family knows it, so that no misspelt
    // mark is one.
    const std::string_view key = mark.size() > 2 ? mark.substr(1, mark.size() - 2) : mark;
    const bool is_mark =
        is_known ? head.empty()
                 : mark.size() > 2 && is_plain(key) &&
                       (!head.empty() || find_key(key) != nullptr || widths.find(key) != nullptr);
    if (!is_plain(head) || (!mark.empty() && !is_mark)) {
      refuse(row,
             "has '{}': a word between dots has letters, digits, _ and -, or is one of {{layer}}, "
             "{{mtp}} and {{expert}}, or ends with a key of config.json in braces",
             word);
    }
    if (is_known && before.empty()) refuse(row, "begins with a number");
    if (!mark.empty() && !seen.insert(is_known ? mark : "{KEY}").second)
      refuse(row, "has {} twice", is_known ? mark : "a number below a key");
    before = word;
  }
  if (seen.contains(kLayerMark) && seen.contains(kMtpMark))
    refuse(row, "has both {{layer}} and {{mtp}} (a layer has one number)");
}

std::string require_consistent(const std::vector<FamilyRow>& rows, std::string_view mtp_layers,
                               const Yaml& root) {
  // The word before a number decides its meaning, and all words before one below a key.
  std::map<std::string_view, std::string_view> meaning;
  for (const FamilyRow& row : rows) {
    require_sound(row);
    std::string_view before;
    for (const std::string_view word : name_words(row.rule.pattern)) {
      if (const std::string_view mark = mark_of(word); !mark.empty()) {
        const bool is_known = std::ranges::find(kMarks, mark) != kMarks.end();
        const std::string_view pattern = row.rule.pattern;
        const auto place = is_known ? before : pattern.substr(0, pattern.find(mark));
        const auto [known, is_new] = meaning.emplace(place, mark);
        if (!is_new && known->second != mark) {
          refuse(row,
                 "has {} behind '{}', where another row has {} (MTP layers named like others: "
                 "mtp_layers)",
                 mark, place, known->second);
        }
      }
      before = word;
    }
  }
  require_one_order(rows);
  std::string main_layers;
  for (const FamilyRow& row : rows) {
    std::string_view before;
    for (const std::string_view word : name_words(row.rule.pattern)) {
      if (is_number_word(word) && meaning.contains(before)) {
        refuse(row, "has a number where other rows have {} (it would never match)",
               meaning.at(before));
      }
      before = word;
    }
    if (mtp_layers.empty()) continue;
    if (row.rule.pattern.starts_with(mtp_layers)) {
      refuse(row,
             "is in an MTP layer under its own name (write it as a row of the main layers: "
             "mtp_layers replaces their beginning)");
    }
    if (has_mark(row.rule.pattern, kMtpMark))
      root.refuse("has both mtp_layers and {{mtp}}: choose one");
    const std::size_t at = row.rule.pattern.find(kLayerMark);
    if (at == std::string_view::npos) continue;
    const std::string_view begin = row.rule.pattern.substr(0, at);
    if (main_layers.empty()) main_layers = begin;
    if (main_layers != begin) {
      refuse(row,
             "does not begin with {} as the layers of other rows do, which mtp_layers replaces",
             main_layers);
    }
  }
  require_disjoint(rows);
  return main_layers.empty() ? "model.layers." : main_layers;
}

}  // namespace ingot::formats
