#pragma once

#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "formats/base/error.h"

namespace ingot::convert {

/// Refusals of tensors, each told once for a tensor; those of one kind stand together.
class Refusals {
 public:
  void add(ErrorCode code, std::string fact, std::string_view tensor) {
    if (!told_.emplace(fact, tensor).second) return;
    Error error(code, std::move(fact));
    error.in_tensor(tensor);
    errors_.add(std::move(error));
  }

  /// Throws what was added.
  void throw_if_any() const { errors_.throw_if_any(); }

 private:
  std::set<std::pair<std::string, std::string>> told_;
  ErrorList errors_;
};

}  // namespace ingot::convert
