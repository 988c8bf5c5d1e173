#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "formats/base/error.h"

// YAML that people write: recipes, families. A text is read into a tree of texts, lists and maps;
// its reader gives each a meaning.

namespace ingot::formats {

/// Limits of a file of this kind.
struct YamlLimits {
  std::size_t bytes = std::size_t{1} << 20;
  std::size_t depth = 16;  ///< lists and maps inside each other
};

/// One value of a file, with its line. Every reader throws kInvalidArgument with that line when the
/// value is of another kind; the file is added by parse_yaml's caller.
class Yaml {
 public:
  enum class Kind : std::uint8_t { kNull, kText, kList, kMap };
  struct Member;

  Yaml(Kind kind, int line);
  // Defined where Member is complete.
  Yaml(const Yaml&);
  Yaml(Yaml&&) noexcept;
  Yaml& operator=(const Yaml&);
  Yaml& operator=(Yaml&&) noexcept;
  ~Yaml();

  [[nodiscard]] bool is_null() const { return kind_ == Kind::kNull; }
  [[nodiscard]] bool is_text() const { return kind_ == Kind::kText; }
  [[nodiscard]] bool is_list() const { return kind_ == Kind::kList; }
  [[nodiscard]] bool is_map() const { return kind_ == Kind::kMap; }
  /// Counted from 1.
  [[nodiscard]] int line() const { return line_; }

  /// `what` names the value in the error: `{what} is not a text`.
  [[nodiscard]] const std::string& text(std::string_view what) const;
  /// A text that is `true` or `false`, or another of YAML's words for them.
  [[nodiscard]] bool boolean(std::string_view what) const;
  /// A text that is a whole number up to `max`.
  [[nodiscard]] std::uint64_t number(std::string_view what, std::uint64_t max) const;
  [[nodiscard]] std::span<const Yaml> list(std::string_view what) const;
  /// The texts of a list; a single text is a list of one.
  [[nodiscard]] std::vector<std::string> texts(std::string_view what) const;
  [[nodiscard]] std::span<const Member> members(std::string_view what) const;

  /// The member of a map, or null. Anything else than a map has none.
  [[nodiscard]] const Yaml* find(std::string_view key) const;
  /// Refuses a map with a key that is not in `known`, and names the key that was meant.
  void require_keys(std::span<const std::string_view> known) const;

  /// Throws kInvalidArgument: `line N: FACT`.
  template <typename... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> fact, Args&&... args) const {
    refuse_as(fmt::format(fact, std::forward<Args>(args)...));
  }
  /// Runs a reader that may refuse this value and knows no line, and adds the line to its errors.
  template <std::invocable Body>
  decltype(auto) at_line(const Body& body) const {
    try {
      return body();
    } catch (const Error& error) {
      refuse_as(error.message());
    }
  }

 private:
  friend class YamlBuilder;
  [[noreturn]] void refuse_as(std::string_view fact) const;

  Kind kind_;
  int line_;
  std::string text_;
  std::vector<Yaml> items_;
  std::vector<Member> members_;
};

struct Yaml::Member {
  std::string key;
  int line = 0;  ///< line of the key
  Yaml value;
};

/// Reads exactly one document; an empty text is kNull. Throws kInvalidArgument with the line for
/// text that is no YAML, for forms that none of our files needs and that could make the tree larger
/// than its text or ambiguous (anchors, aliases, tags, a repeated key, a second document), and for
/// text that is longer or deeper than the limits. `where` names the file.
Yaml parse_yaml(std::string_view text, std::string_view where, const YamlLimits& limits = {});

}  // namespace ingot::formats
