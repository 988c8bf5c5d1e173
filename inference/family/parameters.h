#pragma once

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <fmt/format.h>

#include "formats/family/forward.h"
#include "formats/text/spelling.h"

namespace ingot::inference {

/// The value of a key, as config_value() has it; throws kCorrupt where an outer one is not an
/// object.
const formats::Json& value_of(const formats::ModelConfig& config, std::string_view key);

/// A word of a file, and its meaning.
template <typename Value>
struct Word {
  std::string_view word;
  Value value;
};

/// The least and the most that a number of a config may be; those of whole numbers by default.
struct Limits {
  double least = 1, most = 1 << 16;
};
inline constexpr Limits kAnyReal = {-1e9, 1e9};

/// A parameter that is a member of a spec. Flags have no limits.
template <typename Spec>
struct ParameterRow {
  std::string_view name;
  std::variant<std::size_t Spec::*, bool Spec::*, float Spec::*> member;
  Limits limits = {};
};

/// A part of a family's forward pass, with the numbers of a config in a layer. A
/// parameter that no kind has asked for is a fault of the file.
class Parameters {
 public:
  Parameters(const formats::Family& family, const formats::ModelConfig& config,
             const formats::ForwardPart& part, std::optional<std::uint32_t> layer = std::nullopt)
      : family_(family), config_(config), part_(part), layer_(layer) {}

  /// Throws kInvalidArgument naming the family's file.
  [[noreturn]] void refuse(int line, const std::string& fact) const;
  [[nodiscard]] bool has(std::string_view name) { return find(name) != nullptr; }
  /// The key or expression of a parameter, for messages.
  [[nodiscard]] std::string key(std::string_view name);
  /// Keys of a number may be anything but true or false (kCorrupt), those of a flag only these or
  /// lists by layer; it is set where its expression is not 0.
  [[nodiscard]] std::uint64_t number(std::string_view name, std::uint64_t usual) {
    return whole(name, usual, /*is_flag=*/false);
  }
  [[nodiscard]] bool flag(std::string_view name, bool usual) {
    return whole(name, usual ? 1 : 0, /*is_flag=*/true) != 0;
  }
  /// Reads a flag that is a boolean in some configs and a number in others.
  [[nodiscard]] bool is_set(std::string_view name, bool usual);
  /// A number, or the one of a key, which is kCorrupt beyond the limits; nullopt where the config
  /// lacks that key and the file has no default for it.
  [[nodiscard]] std::optional<double> real(std::string_view name, Limits limits = kAnyReal);
  template <typename Value, std::size_t N>
  [[nodiscard]] Value word(std::string_view name, Value usual,
                           const std::array<Word<Value>, N>& words) {
    const formats::ForwardValue* value = find(name);
    if (value == nullptr) return usual;
    const std::string& text = text_of(*value);
    const auto found = std::ranges::find(words, text, &Word<Value>::word);
    if (found != words.end()) return found->value;
    refuse(value->line, fmt::format("there is no {} '{}'{}", name, text,
                                    did_you_mean(text, words, &Word<Value>::word)));
  }
  /// Members whose parameters the file has; the others must be within their limits as they are.
  template <typename Spec, std::size_t N>
  void set(Spec& spec, const std::array<ParameterRow<Spec>, N>& rows) {
    for (const ParameterRow<Spec>& row : rows)
      std::visit([&](auto member) { set(spec.*member, row.name, row.limits); }, row.member);
  }
  /// A number within limits; throws kCorrupt for another one.
  [[nodiscard]] std::size_t count(std::string_view name, std::size_t usual, Limits limits = {});
  /// The kind that the part is of.
  [[nodiscard]] std::string kind();
  void require_all_asked() const;
  [[nodiscard]] int line() const { return part_.line; }

 private:
  void set(std::size_t& member, std::string_view name, Limits limits) {
    member = count(name, member, limits);
  }
  void set(bool& member, std::string_view name, Limits /*limits*/) { member = flag(name, member); }
  void set(float& member, std::string_view name, Limits limits) {
    if (const auto given = real(name, limits)) member = static_cast<float>(*given);
  }
  std::uint64_t whole(std::string_view name, std::uint64_t usual, std::optional<bool> is_flag);
  const formats::ForwardValue* find(std::string_view name);
  /// The value for this config: kUnsupported for a word that the file does not know.
  [[nodiscard]] const std::string& text_of(const formats::ForwardValue& value) const;
  double literal(const formats::ForwardValue& value, std::string_view text) const;

  const formats::Family& family_;
  const formats::ModelConfig& config_;
  const formats::ForwardPart& part_;
  std::optional<std::uint32_t> layer_;
  std::vector<std::string_view> asked_;
};

}  // namespace ingot::inference
