#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace ingot::cli {

/// Headings of `ingot COMMAND --help`, in the order of their appearance; the common flags come
/// first.
enum class FlagGroup {
  kCommon,
  kSource,
  kTarget,
  kSlicing,
  kComparison,
  kPrompts,
  kAnswers,
  kJob,
  kReport
};

/// The variable that a flag sets; it outlives the parse. A bool becomes true where the flag is
/// given. An optional bool has a second flag, --no-NAME, that sets it to false. A vector gets one
/// value each time.
using FlagTarget =
    std::variant<std::string*, std::optional<std::string>*, std::vector<std::string>*, bool*,
                 std::optional<bool>*, std::uint64_t*, std::optional<std::uint64_t>*,
                 std::optional<std::uint32_t>*, double*, std::optional<double>*>;

struct NumberRange {
  double least = 0, most = 0;
};

/// What is demanded of a flag besides its type.
struct FlagRule {
  bool is_required = false;
  bool is_positive = false;
  std::optional<NumberRange> range = {};
  std::vector<std::string> choices = {};  ///< empty: any value
  bool ignores_case = false;              ///< in the choices
  std::string needs = {};                 ///< the flag that must be given too
  std::vector<std::string> excludes = {};
  std::string value_name = {};  ///< in --help, instead of the type
};

/// A flag of a command, or, without leading dashes, a word at its place. --help shows the value of
/// the variable as the default, unless that is empty or 0.
struct Flag {
  std::string name;
  FlagTarget target;
  std::string help;
  FlagRule rule = {};
};

/// The flags of one command. The parser reads the table and notes which flags were given.
class FlagTable {
 public:
  struct Row {
    FlagGroup group;
    Flag flag;
  };

  void add(FlagGroup group, std::vector<Flag> flags) {
    for (Flag& flag : flags) rows_.push_back({group, std::move(flag)});
  }
  void set_footer(std::string text) { footer_ = std::move(text); }

  [[nodiscard]] std::span<const Row> rows() const { return rows_; }
  [[nodiscard]] const std::string& footer() const { return footer_; }

  void note_given(std::string name) { given_.insert(std::move(name)); }
  [[nodiscard]] bool is_given(std::string_view name) const { return given_.contains(name); }

 private:
  std::vector<Row> rows_;
  std::string footer_;
  std::set<std::string, std::less<>> given_;
};

/// What most commands take.
inline constexpr const char* kThreadsHelp = "threads (default: every processor)";
inline constexpr const char* kJsonHelp = "one JSON document on stdout";
inline constexpr NumberRange kThreadRange = {1, 1024};

}  // namespace ingot::cli
