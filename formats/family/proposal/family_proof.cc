#include "formats/family/proposal/family_proof.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "formats/base/hash.h"
#include "formats/base/words.h"
#include "formats/family/family_yaml.h"
#include "formats/family/rule_scope.h"
#include "formats/family/text_names.h"

namespace ingot::formats {
namespace {

constexpr std::string_view kProofMark = "\n# proof of ";

/// Members of a fused set that engines cannot do without, by kind of fusion.
struct FusedSet {
  Fuse fuse;
  std::array<Role, 2> needed;
};
constexpr std::array kFusedSets = {
    FusedSet{Fuse::kQkv, {Role::kQProj, Role::kKProj}},
    FusedSet{Fuse::kQaKva, {Role::kKvaProj, Role::kKvaProj}},
    FusedSet{Fuse::kIndexerK, {Role::kIndexerK, Role::kIndexerWeights}},
};

class Proof {
 public:
  Proof(const Family& family, const ModelConfig& config)
      : family_(family), config_(config), grammar_(family, config) {}

  void take(const UnknownWeight& weight) {
    names_.insert(weight.name);
    if (shared_rule(weight.name) != nullptr || class_head_rule(weight.name, config_) != nullptr)
      return;
    const auto match = grammar_.match(weight.name);
    const std::string kind = grammar_.pattern_of(weight.name);
    if (!match) {
      add(kind, "no row has it");
      return;
    }
    const TensorRule& rule = *match->rule;
    has_stacks_ |= rule.presence == Presence::kStacked;
    if (rule.role == Role::kOtherModality) return;
    if (rule.any_shape) {
      add(kind, "its row says no shape");
    } else if (*weight.shape != rule_shape(rule, config_, match->layer) &&
               *weight.shape != weight_shape(rule, config_, match->layer, true)) {
      add(kind, fmt::format("its row says {}, and it has {}",
                            shape_text(rule_shape(rule, config_, match->layer)),
                            shape_text(*weight.shape)));
    }
    if (rule.fuse == Fuse::kNone || weight.shape->size() < 2) return;
    const std::string_view stem = weight.name.substr(0, weight.name.rfind('.'));
    const std::string_view module = stem.substr(0, stem.rfind('.') + 1);
    fused_[{std::string(module), rule.fuse}].emplace(rule.role, &rule);
  }

  std::vector<std::string> faults() {
    for (const auto& [set, members] : fused_) judge_set(set.first, set.second, members);
    for_each_expected(family_, config_, has_stacks_, [&](const ExpectedTensor& expected) {
      if (!names_.contains(expected.name))
        add(grammar_.pattern_of(expected.name), "its row promises it, and it is not there");
    });
    std::vector<std::string> texts;
    for (const auto& [kind, fault] : faults_) texts.push_back(fmt::format("{}: {}", kind, fault));
    return texts;
  }

 private:
  using Members = std::multimap<Role, const TensorRule*>;

  void add(const std::string& kind, std::string fault) {
    faults_.try_emplace(kind, std::move(fault));
  }

  void judge_set(const std::string& module, Fuse fuse, const Members& members) {
    const bool is_quantized = members.begin()->second->fp8_by_default;
    const bool are_alike = std::ranges::all_of(members, [&](const auto& member) {
      return member.second->fp8_by_default == is_quantized || fuse == Fuse::kIndexerK;
    });
    if (!are_alike)
      add(grammar_.pattern_of(module + "weight"),
          "tensors that engines load as one are quantized and plain");
    const auto set = std::ranges::find(kFusedSets, fuse, &FusedSet::fuse);
    const bool is_whole =
        set == kFusedSets.end()
            ? members.size() >= 2
            : std::ranges::all_of(set->needed, [&](Role role) { return members.contains(role); });
    if (!is_whole)
      add(grammar_.pattern_of(module + "weight"),
          "of tensors that engines load as one, one is missing");
  }

  const Family& family_;
  const ModelConfig& config_;
  NameGrammar grammar_;
  std::set<std::string_view> names_;
  std::map<std::pair<std::string, Fuse>, Members> fused_;
  std::map<std::string, std::string> faults_;
  bool has_stacks_ = false;
};

std::string hash_of(std::string_view text) {
  return hash_bytes(std::as_bytes(std::span(text))).hex();
}

/// Turns the row at which a refusal points into a comment that says why; false where it points at
/// none.
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

std::string without_refused_rows(std::string yaml) {
  constexpr int kMostLeftOut = 256;
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

std::vector<std::string> faults_of(std::string_view yaml, const ModelConfig& config,
                                   std::span<const UnknownWeight> weights) {
  try {
    const auto table = parse_family(yaml, {});
    require_widths(table->family(), config);
    // A config may not say that there are MTP layers: opening counts them by names, too.
    ModelConfig counted = config;
    std::vector<StoredTensor> stored;
    for (const UnknownWeight& weight : weights) stored.emplace_back().name = weight.name;
    count_mtp_layers(table->family(), stored, counted);
    Proof proof(table->family(), counted);
    for (const UnknownWeight& weight : weights) proof.take(weight);
    return proof.faults();
  } catch (const Error& error) {
    return {std::string(error.message())};
  }
}

std::string with_proof(std::string yaml, std::string_view proof) {
  const std::string hash = hash_of(yaml);
  yaml.pop_back();
  return yaml + fmt::format("{}{}: {}\n", kProofMark, hash, proof);
}

std::string proof_in(std::string_view yaml) {
  const std::size_t at = yaml.rfind(kProofMark);
  if (at == std::string_view::npos || !yaml.ends_with('\n')) return {};
  std::string_view line = yaml.substr(at + kProofMark.size());
  line.remove_suffix(1);
  const std::size_t colon = line.find(": ");
  if (colon == std::string_view::npos || line.find('\n') != std::string_view::npos) return {};
  const std::string text(yaml.substr(0, at + 1));
  return line.substr(0, colon) == hash_of(text) ? std::string(line.substr(colon + 2))
                                                : std::string();
}

}  // namespace ingot::formats
