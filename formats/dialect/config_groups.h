#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "formats/base/pattern.h"
#include "formats/dialect/dialect.h"
#include "formats/modules/module_patterns.h"

// The groups of compressed-tensors: how they are written, read and judged, from one table of forms.

namespace ingot::formats {

/// An entry of `config_groups`. Keys that would say no more than their absence are left out, since
/// older readers refuse a key that they do not know, even a null.
Json config_group(const QuantizationGroup& group, const std::vector<std::string>& targets);

/// [rows, columns] of the block structure that the groups of `block` give to weights; nullopt when
/// there is no such group. kUnsupported for several sizes.
std::optional<std::array<std::uint64_t, 2>> compressed_tensors_block_size(const Json& block);

/// The scheme that the arguments of a group's weights describe, with the defaults that
/// compressed-tensors gives to absent ones; nullopt when it is none of ours.
std::optional<SchemeId> scheme_of_arguments(const Json& weights);

/// A group as it was read.
struct ConfigGroup {
  std::string name, format;
  const Json* json = nullptr;      ///< object of the group in the block
  bool has_weights = false;        ///< `weights` is an object
  std::optional<SchemeId> scheme;  ///< scheme that `weights` describes, if one of ours
  /// Block of the weights; {0, 0} where none is said, {1, 0} for whole rows where columns are
  /// chosen.
  std::array<std::uint64_t, 2> block = {0, 0};
  bool has_zero_points = false, has_group_order = false;
  std::optional<Activations> activations;  ///< activations of the group; nullopt: no arguments
};

/// The `config_groups` and `ignore` of a compressed-tensors block, as engines match modules against
/// them: ignored modules are plain. Entries are names, `re:` and an expression that matches from
/// the start (Python's re.match), or the name of a class, of which we know `Linear`. Names and
/// expressions come before classes, whichever group they are in; among them the first wins. A
/// repeated target means the last group that has it, at the place of the first.
class ConfigGroups {
 public:
  /// `block` is quantization_config, and must outlive this. Each entry that cannot be understood is
  /// left out and described in `faults` by a phrase about the block. Without `faults`, throws
  /// kCorrupt for a list that is no list and for an expression that does not compile.
  explicit ConfigGroups(const Json& block, std::vector<std::string>* faults = nullptr);

  [[nodiscard]] const std::vector<ConfigGroup>& groups() const { return groups_; }
  /// True if a name or an expression of `ignore` matches this very name, as engines ask.
  [[nodiscard]] bool ignore_matches(std::string_view module) const {
    return ignored_.find(module) != kNone;
  }
  /// True if `ignore` takes a stored module in, by its name or by that of a module of engines of
  /// which it is a part (`qkv_proj`, `experts`): configs that were written for an engine say those.
  [[nodiscard]] bool is_ignored(std::string_view module) const {
    return ignored_.find_whole(module) != kNone;
  }
  [[nodiscard]] bool has_targets() const { return !targets_.texts.empty(); }
  /// True if `ignore` has this very name, not an expression that matches it.
  [[nodiscard]] bool ignores_name(std::string_view module) const {
    return ignored_.places.contains(std::string(module));
  }
  /// The group whose targets match this very name or have an expression that does, as engines ask;
  /// null: none.
  [[nodiscard]] const ConfigGroup* named_target(std::string_view module) const;
  /// The group of the first target that is a part of the name of a class, in any case of letters;
  /// null: none.
  [[nodiscard]] const ConfigGroup* class_target(std::string_view name) const;
  /// The group of the target that is exactly `text`; null: none.
  [[nodiscard]] const ConfigGroup* exact_target(std::string_view text) const;
  /// The group that a stored linear layer falls to, were it not ignored, by its name or by that of
  /// a module of engines as for is_ignored(); null: none.
  [[nodiscard]] const ConfigGroup* target_of(std::string_view module) const;
  /// target_of() of a module that is not ignored; null for one that is.
  [[nodiscard]] const ConfigGroup* stored_group(std::string_view module) const {
    return is_ignored(module) ? nullptr : target_of(module);
  }
  /// The group of a module; nullopt when it is plain, or in a group that no scheme of ours fits.
  [[nodiscard]] std::optional<QuantizationGroup> group_of(std::string_view module) const;
  /// True if the block says one scale a row where the scheme has groups of a chosen length.
  [[nodiscard]] bool has_row_scales(std::string_view module) const {
    const std::optional<QuantizationGroup> group = group_of(module);
    return group && scheme_facts(group->scheme).chooses_cols && group->block[1] == 0;
  }
  /// True if some target may be the name of a class that we do not know, so no module is surely
  /// without a group.
  [[nodiscard]] bool has_unknown_classes() const { return has_unknown_classes_; }

 private:
  static constexpr std::size_t kNone = ~std::size_t{0};
  static constexpr std::string_view kLinear = "Linear";
  class Faults;

  /// Names and expressions by their places in the order in which they were read.
  struct Entries {
    /// The places of modules that were asked for: rules and engines ask for the same ones.
    struct Found;

    std::unordered_map<std::string, std::size_t> places;
    std::vector<std::pair<Pattern, std::size_t>> patterns;
    std::vector<std::string> texts;   // texts by place
    std::vector<std::size_t> groups;  // group of each entry, by its place
    std::shared_ptr<Found> found;     // places that were found; copies share them

    Entries();
    void add(const std::string& text, std::size_t group, const std::string& where, Faults& faults);
    /// The place of the first entry that matches this name, or kNone. Safe from many threads.
    [[nodiscard]] std::size_t find(std::string_view module) const;
    /// The place of find(); where it has none, that of the first entry that matches a module of
    /// engines of which this one is a part.
    [[nodiscard]] std::size_t find_whole(std::string_view module) const;
    [[nodiscard]] std::size_t match(const std::string& module) const;
  };

  void add_targets(const Json& group, Faults& faults);

  std::vector<ConfigGroup> groups_;
  Entries targets_, ignored_;
  bool has_unknown_classes_ = false;
};

/// The modules that engines join of linear layers (`qkv_proj`), where all of these are of one
/// class; not those of routed experts.
std::vector<ClassedModule> joined_modules(std::span<const ClassedModule> modules);

/// Keys in a group and in the arguments in it that compressed-tensors does not define, and so
/// refuses; with the object that has each (`config_groups.group_0.weights`).
std::vector<std::pair<std::string, std::string>> unknown_keys(const ConfigGroup& group);

/// Arguments of a group that its scheme does not imply or that contradict it, a phrase each: an
/// order of columns, sizes and dtypes of another scheme, outputs that are quantized.
std::vector<std::string> argument_faults(const ConfigGroup& group);

/// The group's activations, in the same words for all spellings: "dynamic in 8 bits of type float";
/// empty where it has none.
std::string activations_text(const ConfigGroup& group);

/// The arguments of activations that no loader of the group's weights can compute with (`num_bits
/// 4`), or empty.
std::string activations_fault(const ConfigGroup& group);

}  // namespace ingot::formats
