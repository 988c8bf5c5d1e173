#include "inference/chat/jinja/methods.h"

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>

namespace ingot::inference::jinja {
namespace {

// Of ranges, only what no template asks for.
constexpr std::array<std::string_view, 5> kRangeAbsent = {"count", "index", "start", "stop",
                                                          "step"};

TypeMethods methods_of(const Value& value) {
  switch (value.kind()) {
    case Kind::kText:
      return string_methods();
    case Kind::kMapping:
      return mapping_methods();
    case Kind::kSequence:
      if (value.sequence().form == Sequence::Form::kList) return list_methods();
      if (value.sequence().form == Sequence::Form::kTuple) return tuple_methods();
      if (value.sequence().form == Sequence::Form::kRange) {
        return {.rows = {}, .absent = kRangeAbsent};
      }
      break;
    default:
      break;
  }
  return {};
}

}  // namespace

const MethodRow* find_method(RenderState& state, const Value& self, std::string_view name) {
  const TypeMethods methods = methods_of(self);
  for (const MethodRow& row : methods.rows) {
    if (row.name == name) return &row;
  }
  if (std::find(methods.absent.begin(), methods.absent.end(), name) != methods.absent.end()) {
    state.unsupported(fmt::format("the method '{}' of a {}", name, type_name(self)));
  }
  return nullptr;
}

Value call_method(RenderState& state, const MethodRow& row, const Value& self,
                  Arguments&& arguments) {
  if (row.open != nullptr) return row.open(state, self, std::move(arguments));
  return row.bound(state, self, bind(state, row.name, row.signature, std::move(arguments)));
}

}  // namespace ingot::inference::jinja
