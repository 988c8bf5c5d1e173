#include "inference/chat/jinja/value.h"

#include <array>

namespace ingot::inference::jinja {

Value Value::undefined(std::string_view name) {
  return Value(Undefined{.name = std::make_shared<const std::string>(name)});
}

bool truth(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
    case Kind::kNone:
      return false;
    case Kind::kBoolean:
      return value.boolean();
    case Kind::kInteger:
      return value.integer() != 0;
    case Kind::kFloat:
      return value.real() != 0;
    case Kind::kText:
      return !value.text().empty();
    case Kind::kSequence: {
      // An iterator has no length to ask for, so Python takes it for true.
      const Sequence& sequence = value.sequence();
      return sequence.form == Sequence::Form::kIterator || !sequence.items.empty();
    }
    case Kind::kMapping:
      return !value.mapping().entries.empty();
    case Kind::kNamespace:
    case Kind::kLoop:
    case Kind::kCallable:
      break;
  }
  return true;
}

std::string_view type_name(const Value& value) {
  static constexpr std::array<std::string_view, 11> kNames = {
      "undefined", "none",    "boolean",   "integer", "float",   "string",
      "list",      "mapping", "namespace", "loop",    "function"};
  static_assert(kNames.size() == static_cast<std::size_t>(Kind::kCallable) + 1);
  if (!value.is(Kind::kSequence)) return kNames.at(static_cast<std::size_t>(value.kind()));
  static constexpr std::array<std::string_view, 5> kForms = {"list", "tuple", "range", "view",
                                                             "iterator"};
  return kForms.at(static_cast<std::size_t>(value.sequence().form));
}

}  // namespace ingot::inference::jinja
