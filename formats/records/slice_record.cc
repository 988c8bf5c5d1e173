#include <algorithm>
#include <array>
#include <functional>

#include <fmt/format.h>

#include "formats/base/checked.h"
#include "formats/json/json.h"
#include "formats/json/json_fields.h"
#include "formats/records/slicing_record.h"

namespace ingot::formats {
namespace {

bool is_ascending(const std::vector<std::uint32_t>& numbers) {
  return std::adjacent_find(numbers.begin(), numbers.end(), std::greater_equal<>()) ==
         numbers.end();
}

std::uint64_t dimension_at(const Shape& shape, std::size_t from_the_end) {
  return shape.size() < from_the_end ? 1 : shape[shape.size() - from_the_end];
}

/// Whether element n-1 of the original, at every `repeat`th place, is one of the whole's.
bool reaches_within(std::uint64_t original, std::uint64_t repeat, std::uint64_t whole) {
  if (original > whole) return false;
  if (original == 0) return true;
  const auto last = checked_mul(original - 1, repeat);
  return last && *last < whole;
}

void require_original_inside(const SliceRecord& slice, std::string_view where) {
  if (slice.original.empty()) return;
  bool is_inside = slice.original.size() == slice.whole.size();
  for (std::size_t i = 0; is_inside && i + 2 < slice.whole.size(); ++i)
    is_inside = slice.original[i] == slice.whole[i];
  // Vectors and numbers repeat nothing.
  const bool is_matrix = slice.whole.size() >= 2;
  const std::array<std::uint64_t, 2> repeat =
      is_matrix ? slice.repeat : std::array<std::uint64_t, 2>{1, slice.repeat[0]};
  is_inside =
      is_inside && (is_matrix || slice.repeat == std::array<std::uint64_t, 2>{1, 1}) &&
      reaches_within(dimension_at(slice.original, 2), repeat[0], dimension_at(slice.whole, 2)) &&
      reaches_within(dimension_at(slice.original, 1), repeat[1], dimension_at(slice.whole, 1));
  if (is_inside) return;
  fail_json(where, fmt::format("the original {} times {} x {} is not within the whole {}",
                               shape_text(slice.original), slice.repeat[0], slice.repeat[1],
                               shape_text(slice.whole)));
}

void require_sound(const SliceRecord& slice, std::string_view where) {
  if (!element_count(slice.whole)) fail_json(where, "'whole' does not fit 64 bits");
  if (slice.axis >= 0) {
    const auto axis = static_cast<std::size_t>(slice.axis);
    if (axis >= slice.whole.size()) {
      fail_json(where, fmt::format("has axis {} of a whole with shape {}", slice.axis,
                                   shape_text(slice.whole)));
    }
    if (slice.sections == 0 || slice.whole[axis] % slice.sections != 0) {
      fail_json(where,
                fmt::format("has {} sections in {} elements", slice.sections, slice.whole[axis]));
    }
    if (slice.offset >= slice.whole[axis] / slice.sections) {
      fail_json(where, fmt::format("begins at {} of {} elements", slice.offset,
                                   slice.whole[axis] / slice.sections));
    }
  } else if (slice.offset != 0 || slice.sections != 1) {
    fail_json(where, "has an offset or sections, but no axis");
  }
  if (slice.is_zeroed && (slice.axis >= 0 || !slice.experts.empty()))
    fail_json(where, "is zeroed and cut at once");
  if (!slice.experts.empty()) {
    if (slice.whole.size() < 2 || slice.axis == 0)
      fail_json(where, "has experts, but is no stack of them");
    if (!is_ascending(slice.experts) || slice.experts.back() >= slice.whole[0])
      fail_json(where,
                fmt::format("has experts that are not ascending and below {}", slice.whole[0]));
  }
  if (slice.repeat[0] == 0 || slice.repeat[1] == 0) fail_json(where, "repeats nothing");
  require_original_inside(slice, where);
}

}  // namespace

Json slice_record_json(const SliceRecord& slice) {
  Json json = Json::object();
  if (slice.axis >= 0) {
    json["axis"] = static_cast<std::uint64_t>(slice.axis);
    json["offset"] = slice.offset;
  }
  json["whole"] = slice.whole;
  if (slice.sections != 1) json["sections"] = slice.sections;
  if (!slice.experts.empty()) json["experts"] = slice.experts;
  if (slice.is_zeroed) json["zeroed"] = true;
  if (!slice.original.empty()) json["original"] = slice.original;
  if (slice.repeat != std::array<std::uint64_t, 2>{1, 1}) json["repeat"] = slice.repeat;
  return json;
}

SliceRecord parse_slice_record(const Json& json, std::string_view where) {
  const JsonFields fields(json, where);
  SliceRecord slice;
  if (const auto axis = fields.optional_number32("axis")) {
    if (*axis > kMaxJsonDepth) fields.refuse("axis", "is beyond any shape");
    slice.axis = static_cast<int>(*axis);
    slice.offset = fields.number("offset");
  }
  slice.whole = fields.numbers("whole");
  slice.sections = fields.optional_number32("sections").value_or(1);
  slice.experts = fields.optional_numbers32("experts");
  slice.is_zeroed = fields.boolean("zeroed", false);
  slice.original = fields.optional_numbers("original");
  if (const std::vector<std::uint64_t> repeat = fields.optional_numbers("repeat");
      repeat.size() == slice.repeat.size()) {
    std::copy(repeat.begin(), repeat.end(), slice.repeat.begin());
  } else if (!repeat.empty()) {
    fields.refuse("repeat", "is not two numbers");
  }
  fields.expect_no_more();
  require_sound(slice, where);
  return slice;
}

}  // namespace ingot::formats
