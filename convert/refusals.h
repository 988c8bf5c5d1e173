#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include "formats/base/error.h"

namespace ingot::convert {

/// Refusals of the same kind, told together with the first tensors of each.
class Refusals {
 public:
  void add(ErrorCode code, std::string fact, std::string_view tensor) {
    Refusal& refusal = by_fact_[std::move(fact)];
    refusal.code = code;
    if (refusal.count++ < kNamed)
      refusal.names += fmt::format("{}'{}'", refusal.count > 1 ? ", " : "", tensor);
  }

  /// Throws what was added, one error per fact.
  void throw_if_any() const {
    ErrorList errors;
    for (const auto& [fact, refusal] : by_fact_) {
      errors.add(
          Error(refusal.code, fmt::format("{}: {} tensor(s): {}{}", fact, refusal.count,
                                          refusal.names, refusal.count > kNamed ? ", ..." : "")));
    }
    errors.throw_if_any();
  }

 private:
  static constexpr std::size_t kNamed = 5;

  struct Refusal {
    ErrorCode code{};
    std::size_t count = 0;
    std::string names;
  };
  std::map<std::string, Refusal> by_fact_;
};

}  // namespace ingot::convert
