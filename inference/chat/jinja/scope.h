#pragma once

#include <functional>
#include <map>
#include <string_view>
#include <utility>

#include "inference/chat/jinja/value.h"

namespace ingot::inference::jinja {

/// The variables of a template, a loop's body, a macro's body or a block. A `set` stays in the
/// scope in which it stands; an `if` has none of its own.
class Scope {
 public:
  /// Names must outlive the scope: those of the template do.
  explicit Scope(const Scope* outer) : outer_(outer) {}
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

  void set(std::string_view name, Value value) {
    variables_.insert_or_assign(name, std::move(value));
  }

  /// Here or further out; null when nowhere.
  [[nodiscard]] const Value* find(std::string_view name) const {
    for (const Scope* scope = this; scope != nullptr; scope = scope->outer_) {
      const auto found = scope->variables_.find(name);
      if (found != scope->variables_.end()) return &found->second;
    }
    return nullptr;
  }

 private:
  const Scope* outer_;
  std::map<std::string_view, Value> variables_;
};

}  // namespace ingot::inference::jinja
