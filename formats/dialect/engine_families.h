#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string_view>

#include "formats/dialect/engines.h"

// What engines make of families: each has a model class and a loader of its own. What a loader
// refuses is a row of engine_limits.h.

namespace ingot::formats {

/// A set of schemes.
class SchemeSet {
 public:
  constexpr SchemeSet(std::initializer_list<SchemeId> schemes) {
    for (const SchemeId scheme : schemes) bits_ |= bit(scheme);
  }
  [[nodiscard]] constexpr bool contains(SchemeId scheme) const {
    return (bits_ & bit(scheme)) != 0;
  }

 private:
  static constexpr std::uint32_t bit(SchemeId scheme) {
    return std::uint32_t{1} << static_cast<std::uint32_t>(scheme);
  }
  std::uint32_t bits_ = 0;
};

/// Schemes of a family's weights that an engine was seen to take.
struct EngineFamily {
  Engine engine{};
  std::string_view family;  ///< Family::name
  Evidence evidence{};
  SchemeSet schemes;
};
/// Every row; docs/engines.md says how they were tried.
std::span<const EngineFamily> engine_families();

/// The best that is known of a scheme of a family: kNotOfFamily where no row has it. Engines that
/// were never run (EngineFacts::is_judged) have no rows: what is known of them is of no family, and
/// the best evidence is returned.
Evidence family_evidence(Engine engine, std::string_view family, SchemeId scheme);

}  // namespace ingot::formats
