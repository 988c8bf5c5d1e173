#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "formats/base/pattern.h"
#include "formats/json/json.h"
#include "formats/storage/encoding.h"

namespace ingot::formats {

/// One of compressed-tensors' config_groups.
struct TargetGroup {
  std::string name, format;
  std::optional<SchemeId> scheme;  ///< that its weight arguments describe, if we know one
  bool has_weights = false;        ///< `weights` is an object
  bool has_static_inputs = false;  ///< activations have a scale that is stored
};

/// compressed-tensors' config_groups and ignore list, as loaders match modules against them. It
/// reads what is wrong too, and the defaults of what is left out. Entries are names, `re:` and an
/// expression that matches from the start (Python's re.match), or the name of a class, of which we
/// know `Linear`. Names and expressions come before classes, whichever group they are in; among
/// them the first wins.
class LoaderTargets {
 public:
  /// `block` is quantization_config. What cannot be understood is left out, and said in faults().
  explicit LoaderTargets(const Json& block);

  [[nodiscard]] const std::vector<TargetGroup>& groups() const { return groups_; }
  /// Expressions that do not compile, and groups without targets.
  [[nodiscard]] const std::vector<std::string>& faults() const { return faults_; }
  [[nodiscard]] bool ignores(const std::string& module) const {
    return ignored_.find(module) != kNone;
  }
  /// The group that a linear layer falls to, were it not ignored; null: none.
  [[nodiscard]] const TargetGroup* group_of(const std::string& module) const;
  /// Some target may be the name of a class that we do not know, so no module is surely without a
  /// group.
  [[nodiscard]] bool has_unknown_classes() const { return has_unknown_classes_; }

 private:
  static constexpr std::size_t kNone = ~std::size_t{0};

  /// Names and expressions in their order.
  class Entries {
   public:
    void add_name(const std::string& name, std::size_t value) {
      names_.try_emplace(name, next_++, value);
    }
    void add_pattern(Pattern pattern, std::size_t value) {
      patterns_.push_back({std::move(pattern), next_++, value});
    }
    /// The value of the first entry that matches, or kNone.
    [[nodiscard]] std::size_t find(const std::string& module) const;

   private:
    struct Expression {
      Pattern pattern;
      std::size_t place, value;
    };
    std::unordered_map<std::string, std::pair<std::size_t, std::size_t>> names_;  // place, value
    std::vector<Expression> patterns_;
    std::size_t next_ = 0;
  };

  void add_entry(Entries& entries, const std::string& text, std::size_t value);

  std::vector<TargetGroup> groups_;
  std::vector<std::string> faults_;
  Entries targets_, ignored_;
  std::size_t linear_ = kNone;
  bool has_unknown_classes_ = false;
  std::size_t n_patterns_ = 0;
};

/// The scheme that the arguments of a group's weights describe, with the defaults that
/// compressed-tensors gives to absent ones; nothing when it is none of ours.
std::optional<SchemeId> scheme_of_arguments(const Json& weights);

}  // namespace ingot::formats
