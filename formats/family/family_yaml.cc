#include "formats/family/family_yaml.h"

#include <algorithm>
#include <array>
#include <deque>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "formats/base/pattern.h"
#include "formats/config/key_defaults.h"
#include "formats/container/sections.h"
#include "formats/family/families.h"
#include "formats/family/family_check.h"
#include "formats/family/forward.h"
#include "formats/family/roles.h"
#include "formats/family/usual_rows.h"
#include "formats/json/json.h"
#include "formats/text/spelling.h"
#include "formats/yaml/yaml.h"

namespace ingot::formats {
namespace {

constexpr YamlLimits kLimits = {.bytes = std::size_t{256} << 10, .depth = 8};
constexpr std::size_t kMaxFamilyRows = 4096;
constexpr std::size_t kMaxWidths = 256;
constexpr std::size_t kMaxChanges = 256;
constexpr std::size_t kMaxName = 256;
constexpr std::size_t kMaxAliases = 16;
constexpr std::uint8_t kMaxBlocks = 64;

template <typename Enum>
struct Word {
  std::string_view word;
  Enum value;
};
template <typename Enum>
Word(std::string_view, Enum) -> Word<Enum>;

constexpr std::array kScopes = {
    Word{"model", Scope::kModel},
    Word{"all", Scope::kLayer},
    Word{"main", Scope::kMainLayer},
    Word{"dense", Scope::kDenseLayer},
    Word{"moe", Scope::kMoeLayer},
    Word{"full_attention", Scope::kFullAttentionLayer},
    Word{"linear_attention", Scope::kLinearAttentionLayer},
    Word{"mtp", Scope::kMtpLayer},
};
constexpr std::array kCuts = {
    Word{"replicated", Cut::kReplicated},
    Word{"column", Cut::kColumn},
    Word{"row", Cut::kRow},
    Word{"vocab", Cut::kVocab},
};
constexpr std::array kFuses = {
    Word{"none", Fuse::kNone},      Word{"qa_kva", Fuse::kQaKva},
    Word{"gate_up", Fuse::kGateUp}, Word{"indexer_k", Fuse::kIndexerK},
    Word{"qkv", Fuse::kQkv},
};
constexpr std::array kSilences = {
    Word{"plain", Silence::kPlain},
    Word{"head", Silence::kHead},
    Word{"quantized", Silence::kQuantized},
    Word{"listed", Silence::kListed},
};
constexpr std::array kStackOrders = {
    Word{"none", StackOrder::kNone},
    Word{"output-major", StackOrder::kOutputMajor},
    Word{"input-major", StackOrder::kInputMajor},
};
constexpr std::array kGateUps = {
    Word{"halves", GateUpOrder::kHalves},
    Word{"interleaved", GateUpOrder::kInterleaved},
};
constexpr std::array kPresences = {
    Word{"required", Presence::kRequired},      Word{"optional", Presence::kOptional},
    Word{"single", Presence::kPerExpert},       Word{"stacked", Presence::kStacked},
    Word{"untied", Presence::kUntied},          Word{"corrected", Presence::kCorrected},
    Word{"own_indexer", Presence::kOwnIndexer},
};

constexpr std::array<std::string_view, 13> kFileKeys = {
    "family",  "summary", "model_types", "architecture", "dialect",  "mtp_layers", "like",
    "without", "change",  "widths",      "aliases",      "defaults", "forward"};
constexpr std::array<std::string_view, 16> kTraits = {
    "role",  "layers",   "shape",   "quantized", "silence", "may_be_quantized",
    "cut",   "sections", "heads",   "fuse",      "present", "spare",
    "dtype", "stack",    "gate_up", "flat"};

/// The keys of a row, and others.
std::vector<std::string_view> traits_and(std::initializer_list<std::string_view> others) {
  std::vector<std::string_view> keys(kTraits.begin(), kTraits.end());
  keys.insert(keys.end(), others);
  return keys;
}

template <typename Enum, std::size_t N>
Enum read_word(const Yaml& value, std::string_view what, const std::array<Word<Enum>, N>& words) {
  const std::string& text = value.text(what);
  const auto found = std::ranges::find(words, text, &Word<Enum>::word);
  if (found != words.end()) return found->value;
  std::vector<std::string_view> known;
  for (const Word<Enum>& word : words) known.push_back(word.word);
  value.refuse("{} '{}' is none of {}{}", what, text, fmt::join(known, ", "),
               did_you_mean(text, known));
}

DType read_dtype(const Yaml& value) {
  const std::string& name = value.text("dtype");
  const auto found = std::ranges::find(kDTypes, name, &DTypeFacts::name);
  if (found != kDTypes.end()) return found->dtype;
  value.refuse("there is no dtype '{}'{}", name, did_you_mean(name, kDTypes, &DTypeFacts::name));
}

bool is_plain_name(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
  });
}

class Table final : public FamilyTable {
 public:
  explicit Table(std::string_view yaml) : yaml_(yaml) {}

  [[nodiscard]] const Family& family() const override { return family_; }
  [[nodiscard]] std::span<const NameAlias> aliases() const override { return aliases_; }
  [[nodiscard]] const Json& defaults() const override { return defaults_; }

  void read(const Yaml& root) {
    if (root.is_null()) root.refuse("is empty (docs/families.md says what a family has)");
    if (!root.is_map()) root.refuse("a family is a map of family, model_types, tensors and so on");
    std::vector<std::string_view> keys(kFileKeys.begin(), kFileKeys.end());
    keys.push_back("tensors");
    root.require_keys(keys);
    read_words(root);
    if (const Yaml* like = root.find("like")) begin_like(*like);
    if (const Yaml* widths = root.find("widths")) read_widths(*widths);
    if (const Yaml* defaults = root.find("defaults")) take_defaults(*defaults);
    if (const Yaml* aliases = root.find("aliases")) read_aliases(*aliases);
    if (const Yaml* without = root.find("without")) leave_out(*without);
    if (const Yaml* change = root.find("change")) change_rows(*change);
    if (const Yaml* tensors = root.find("tensors")) read_tensors(*tensors);
    if (const Yaml* forward = root.find("forward")) take_forward(*forward);
    if (rows_.empty()) root.refuse("has no tensors (list them, or begin with those of `like`)");
    finish(root);
  }

 private:
  void read_words(const Yaml& root) {
    const Yaml* name = root.find("family");
    if (name == nullptr) root.refuse("lacks the family's name (family: my_model)");
    name_ = name->text("family");
    if (!is_plain_name(name_) || name_.size() > 64 || name_ == "generic") {
      name->refuse(
          "'{}' is no name of a family: small letters, digits and _, at most 64, and not generic",
          name_);
    }
    const auto read = [&](const char* key, std::string& text) {
      if (const Yaml* value = root.find(key)) text = value->text(key);
    };
    read("summary", summary_);
    read("architecture", architecture_);
    read("dialect", dialect_);
    read("mtp_layers", mtp_layers_);
    if (const Yaml* types = root.find("model_types")) model_types_ = types->texts("model_types");
    if (const Yaml* mtp = root.find("mtp_layers"); mtp != nullptr && !mtp_layers_.ends_with('.'))
      mtp->refuse("mtp_layers '{}' does not end with a dot", mtp_layers_);
  }

  void begin_like(const Yaml& like) {
    const std::string& name = like.text("like");
    base_ = name.starts_with(kFamilyFileMark) ? nullptr : find_family(name);
    if (base_ == nullptr || base_->rules.empty()) {
      like.refuse("there is no family '{}' with rows in the program{}", name,
                  did_you_mean(name, family_entries(), &FamilyEntry::name));
    }
    for (const TensorRule& rule : base_->rules) rows_.push_back({.rule = rule});
    if (base_->widths != nullptr) widths_ = *base_->widths;
    defaults_ = defaults_of(*base_);
    if (mtp_layers_.empty()) mtp_layers_ = base_->mtp_layers;
    if (dialect_.empty()) dialect_ = base_->dialect;
    const std::span<const NameAlias> aliases = aliases_of(*base_);
    aliases_.assign(aliases.begin(), aliases.end());
  }

  void read_aliases(const Yaml& aliases) {
    for (const auto& [key, line, value] : aliases.members("aliases")) {
      const std::string& meant = value.text(key);
      if (key.ends_with('.') != meant.ends_with('.') || meant == key || meant.empty())
        value.refuse(
            "aliases are two names, or two beginnings of names that both end with a dot, '{}' and "
            "'{}' are none",
            key, meant);
      if (key.find(kLayerMark) != std::string::npos && meant.find(kLayerMark) == std::string::npos)
        value.refuse("'{}' has {}, and '{}' has none", key, kLayerMark, meant);
      if (key.size() > kMaxName || meant.size() > kMaxName || aliases_.size() == kMaxAliases)
        value.refuse("there are more than {} aliases, or one is longer than {} characters",
                     kMaxAliases, kMaxName);
      aliases_.push_back({key, meant});
    }
  }

  void read_widths(const Yaml& widths) {
    if (widths.members("widths").size() > kMaxWidths)
      widths.refuse("there are more than {} widths", kMaxWidths);
    for (const Yaml::Member& member : widths.members("widths")) {
      const std::string& text = member.value.text(member.key);
      member.value.at_line([&] { widths_.add(member.key, Width::parse(text, &widths_)); });
    }
  }

  void take_defaults(const Yaml& defaults) { defaults_ = read_defaults(defaults, *defaults_); }

  void take_forward(const Yaml& value) {
    if (value.is_text() && value.text("forward") == "inherited") {
      require_base(value, "forward: inherited");
      if (base_->forward == nullptr)
        value.refuse("the file of {} says nothing of a forward pass", base_->name);
      forward_ = *base_->forward;
      return;
    }
    forward_ = read_forward(value, [&](const Yaml& layers) {
      FamilyRow row;
      take_layers(layers, row);
      return row.rule;
    });
  }

  void require_base(const Yaml& value, std::string_view key) const {
    if (base_ == nullptr)
      value.refuse("{} is about the rows of another family (name it with like)", key);
  }

  void leave_out(const Yaml& without) {
    require_base(without, "without");
    for (const std::string& text : without.texts("without")) {
      if (text.starts_with("re:") || text.size() > kMaxName)
        without.refuse("'{}' is no glob of at most {} characters", text, kMaxName);
      const Pattern pattern(text);
      const std::size_t n_left_out = std::erase_if(rows_, [&](const FamilyRow& row) {
        return pattern.matches(std::string(row.rule.pattern));
      });
      if (n_left_out == 0) without.refuse("'{}' matches no row of {}", text, base_->name);
    }
  }

  void change_rows(const Yaml& changes) {
    require_base(changes, "change");
    if (changes.list("change").size() > kMaxChanges)
      changes.refuse("change has more than {} entries", kMaxChanges);
    for (const Yaml& change : changes.list("change")) {
      change.require_keys(traits_and({"roles"}));
      const Yaml* roles = change.find("roles");
      if (roles == nullptr) change.refuse("a change lacks the roles of the rows that it is for");
      RoleSet meant;
      for (const std::string& word : roles->texts("roles")) meant = meant | roles_of(*roles, word);
      bool is_idle = true;
      for (FamilyRow& row : rows_) {
        if (!meant.has(row.rule.role)) continue;
        is_idle = false;
        take_traits(change, row);
      }
      if (is_idle) change.refuse("no row of {} has such a role", base_->name);
    }
  }

  static RoleSet roles_of(const Yaml& value, const std::string& word) {
    if (const auto roles = find_roles(word)) return *roles;
    refuse_role(value, word);
  }

  [[noreturn]] static void refuse_role(const Yaml& value, const std::string& word) {
    std::vector<std::string_view> known;
    for (int i = 0; i <= static_cast<int>(Role::kOther); ++i)
      known.push_back(role_name(static_cast<Role>(i)));
    value.refuse("there is no role '{}'{} (ingot list roles)", word, did_you_mean(word, known));
  }

  void read_tensors(const Yaml& tensors) {
    for (const Yaml& entry : tensors.list("tensors")) {
      const Yaml* group = entry.is_map() ? entry.find("tensors") : nullptr;
      if (group == nullptr) {
        add_row(entry, {}, nullptr, 0);
        continue;
      }
      entry.require_keys(traits_and({"under", "tensors", "blocks"}));
      const Yaml* under = entry.find("under");
      if (under == nullptr) entry.refuse("a group of rows lacks what its names begin with (under)");
      const Yaml* blocks = entry.find("blocks");
      const bool has_blocks = blocks != nullptr && blocks->boolean("blocks");
      std::uint8_t block = 0;
      for (const std::string& prefix : under->texts("under")) {
        if (block == kMaxBlocks) under->refuse("under has more than {} names", kMaxBlocks);
        for (const Yaml& row : group->list("tensors"))
          add_row(row, prefix, &entry, has_blocks ? block : 0);
        ++block;
      }
    }
  }

  void add_row(const Yaml& entry, const std::string& prefix, const Yaml* group,
               std::uint8_t block) {
    if (!entry.is_map()) entry.refuse("a row is not a map of name, role and so on");
    entry.require_keys(traits_and({"name"}));
    if (rows_.size() == kMaxFamilyRows) entry.refuse("is row {}", kMaxFamilyRows + 1);
    const Yaml* name = entry.find("name");
    if (name == nullptr) entry.refuse("a row lacks the name of its tensor");
    const std::string& pattern = patterns_.emplace_back(prefix + name->text("name"));
    if (pattern.size() > kMaxName) name->refuse("a name is longer than {} characters", kMaxName);
    FamilyRow row{.line = entry.line()};
    row.rule.pattern = pattern;
    row.rule.any_shape = true;
    row.rule.block = block;
    for (const Yaml* traits : {group, &entry}) {
      const Yaml* role = traits == nullptr ? nullptr : traits->find("role");
      if (role != nullptr) take_role(*role, row);
    }
    if (!row.has_role) entry.refuse("'{}' lacks a role", pattern);
    const UsualRow usual = row.rule.fine ? UsualRow{} : usual_row(row.rule.role);
    row.rule.cut = usual.cut;
    row.rule.fuse = usual.fuse;
    row.rule.fp8_by_default = usual.is_linear;
    if (group != nullptr) take_traits(*group, row);
    take_traits(entry, row);
    if (!row.has_shape && has_usual_shape(usual)) {
      row.rule.any_shape = false;
      row.rule.shape[0] = &expressions_.emplace_back(Width::parse(usual.out, &widths_));
      if (!usual.in.empty())
        row.rule.shape[1] = &expressions_.emplace_back(Width::parse(usual.in, &widths_));
    }
    require_marks(row, widths_);
    const bool is_of_mtp = has_mark(pattern, kMtpMark);
    if (!row.has_scope) {
      const bool is_in_layer =
          has_mark(pattern, kLayerMark) && row.rule.role != Role::kOtherModality;
      row.rule.scope = is_of_mtp ? Scope::kMtpLayer : is_in_layer ? Scope::kLayer : Scope::kModel;
    }
    if (!row.has_presence && has_mark(pattern, kExpertMark))
      row.rule.presence = Presence::kPerExpert;
    const auto same = std::ranges::find_if(rows_, [&](const FamilyRow& other) {
      return other.line == 0 && is_same_place(other.rule, row.rule);
    });
    same != rows_.end() ? void(*same = row) : rows_.push_back(row);
  }

  static void take_role(const Yaml& value, FamilyRow& row) {
    const std::string& word = value.text("role");
    const std::optional<Role> role = find_role(word);
    row.rule.fine = role ? std::nullopt : find_fine_role(word);
    if (!role && !row.rule.fine) refuse_role(value, word);
    row.rule.role = role ? *role : role_of(*row.rule.fine);
    row.has_role = true;
  }

  void take_traits(const Yaml& entry, FamilyRow& row) {
    TensorRule& rule = row.rule;
    for (const auto& [key, line, value] : entry.members("a row")) {
      if (key == "role") {
        take_role(value, row);
      } else if (key == "layers") {
        take_layers(value, row);
      } else if (key == "shape") {
        take_shape(value, rule);
        row.has_shape = true;
      } else if (key == "quantized") {
        rule.fp8_by_default = value.boolean(key);
      } else if (key == "silence") {
        rule.silence = read_word(value, key, kSilences);
      } else if (key == "may_be_quantized") {
        rule.may_be_quantized = value.boolean(key);
      } else if (key == "cut") {
        rule.cut = read_word(value, key, kCuts);
        if (rule.cut == Cut::kReplicated) rule.sections = {};
      } else if (key == "sections") {
        take_sections(value, rule);
      } else if (key == "heads") {
        rule.heads = width(value);
      } else if (key == "fuse") {
        rule.fuse = read_word(value, key, kFuses);
      } else if (key == "present") {
        take_presence(value, rule);
        row.has_presence = true;
      } else if (key == "spare") {
        rule.spare = width(value);
      } else if (key == "dtype") {
        rule.synth_dtype = read_dtype(value);
      } else if (key == "stack") {
        rule.stack = read_word(value, key, kStackOrders);
      } else if (key == "gate_up") {
        rule.gate_up = read_word(value, key, kGateUps);
      } else if (key == "flat") {
        rule.is_flat = value.boolean(key);
      }
    }
  }

  void take_shape(const Yaml& value, TensorRule& rule) {
    rule.shape = {};
    rule.any_shape = value.is_text() && value.text("shape") == "any";
    if (rule.any_shape) return;
    const std::span<const Yaml> sides = value.list("shape");
    if (sides.size() > kMaxRuleDimensions)
      value.refuse("a shape has at most {} dimensions", kMaxRuleDimensions);
    for (std::size_t i = 0; i < sides.size(); ++i) rule.shape[i] = width(sides[i]);
  }

  void take_sections(const Yaml& value, TensorRule& rule) {
    const std::span<const Yaml> lengths = value.list("sections");
    if (lengths.size() < 2 || lengths.size() > Sections::kMax)
      value.refuse("sections has 2 to {} widths", Sections::kMax);
    std::vector<const Width*>& sections = sections_.emplace_back();
    for (const Yaml& length : lengths) sections.push_back(width(length));
    rule.sections = sections;
  }

  const Width* width(const Yaml& value) {
    const std::string& text = value.text("a width");
    return value.at_line([&] { return &expressions_.emplace_back(Width::parse(text, &widths_)); });
  }

  void take_presence(const Yaml& value, TensorRule& rule) {
    if (!value.is_map()) {
      rule.presence = read_word(value, "present", kPresences);
      return;
    }
    value.require_keys(std::array<std::string_view, 2>{"when", "unless"});
    if (value.members("present").size() != 1)
      value.refuse("present has one of when and unless, with an expression behind it");
    const Yaml::Member& only = value.members("present")[0];
    rule.presence = only.key == "when" ? Presence::kWhen : Presence::kUnless;
    rule.condition = width(only.value);
  }

  void take_layers(const Yaml& value, FamilyRow& row) {
    row.rule.scope = Scope::kLayer;
    row.has_scope = true;
    std::vector<LayerCondition>& conditions = conditions_.emplace_back();
    bool has_word = false;
    const auto take = [&](const Yaml& one) {
      if (one.is_map()) {
        conditions.push_back(read_layer_condition(one));
        return;
      }
      if (std::exchange(has_word, true)) one.refuse("layers has two words (one, and conditions)");
      row.rule.scope = read_word(one, "layers", kScopes);
    };
    if (value.is_list()) {
      for (const Yaml& one : value.list("layers")) take(one);
    } else {
      take(value);
    }
    row.rule.layers = conditions;
  }

  void finish(const Yaml& root) {
    const bool names_mtp = std::ranges::any_of(
        rows_, [](const FamilyRow& row) { return has_mark(row.rule.pattern, kMtpMark); });
    for (FamilyRow& row : rows_) {
      if (names_mtp && !row.has_scope && row.rule.scope == Scope::kLayer)
        row.rule.scope = Scope::kMainLayer;
    }
    const std::string main_layers = require_consistent(rows_, mtp_layers_, root);
    for (const FamilyRow& row : rows_) rules_.push_back(row.rule);
    family_ = {.name = name_,
               .spec = name_,
               .summary = summary_,
               .model_types = model_types_,
               .architecture = architecture_,
               .rules = rules_,
               .widths = &widths_,
               .forward = forward_ ? &*forward_ : nullptr,
               .mtp_layers = mtp_layers_,
               .main_layers = main_layers_ = main_layers,
               .dialect = dialect_,
               .yaml = yaml_};
  }

  std::string yaml_, name_, summary_, architecture_, dialect_, mtp_layers_, main_layers_;
  std::vector<std::string> model_types_;
  JsonValue defaults_;
  const Family* base_ = nullptr;
  // The widths that rows of the family point to.
  NamedWidths widths_;
  std::vector<NameAlias> aliases_;
  std::deque<std::string> patterns_;
  std::deque<Width> expressions_;
  std::deque<std::vector<const Width*>> sections_;
  std::deque<std::vector<LayerCondition>> conditions_;
  std::vector<FamilyRow> rows_;
  std::vector<TensorRule> rules_;
  std::optional<Forward> forward_;
  Family family_;
};

}  // namespace

std::unique_ptr<const FamilyTable> parse_family(std::string_view yaml, std::string_view where) {
  const Yaml root = parse_yaml(yaml, where, kLimits);
  try {
    auto table = std::make_unique<Table>(yaml);
    table->read(root);
    return table;
  } catch (Error& error) {
    error.in_file(where);
    throw;
  }
}

}  // namespace ingot::formats
