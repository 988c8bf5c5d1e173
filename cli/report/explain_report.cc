#include "cli/report/explain_report.h"

#include <algorithm>

#include <fmt/format.h>

#include "cli/report/convert_report.h"
#include "convert/plan/passes.h"
#include "formats/base/printable.h"
#include "formats/json/json.h"
#include "formats/storage/meant_tensor.h"

namespace ingot::cli {

using convert::PlannedTensor;
using formats::Json;

namespace {

std::string rule_text(const convert::Rule& rule) {
  return fmt::format("{}={}", rule.selector.text(),
                     rule.scheme ? scheme_name(*rule.scheme) : std::string_view("keep"));
}

}  // namespace

Json explain_json(const convert::Plan& plan, std::string_view name) {
  const auto planned = std::ranges::find_if(plan.tensors, [&](const PlannedTensor& tensor) {
    return plan.tensor_of(tensor).name == name;
  });
  if (planned == plan.tensors.end()) {
    throw Error(ErrorCode::kNotFound,
                "no tensor '{}' in the source (see ingot inspect --tensors){}", name,
                formats::meant_tensor(name, plan.source.tensors()));
  }
  const formats::LogicalTensor& tensor = plan.tensor_of(*planned);
  const convert::Decision decision = plan.recipe.decide(tensor);
  Json json = {{"tensor", tensor.name},
               {"role", formats::role_name(role_of(tensor))},
               {"shape", tensor.shape},
               {"rule", decision.rule != nullptr ? Json(rule_text(*decision.rule)) : Json()},
               {"action", convert::action_name(planned->action)},
               {"from", scheme_name(tensor.encoding.scheme)},
               {"to", scheme_name(planned->to)},
               {"reads", Json::array()},
               {"writes", Json::array()}};
  tensor.encoding.stored.for_each([&](formats::Part, std::uint32_t index) {
    const formats::StoredTensor& stored = plan.source.stored()[index];
    json["reads"].push_back({{"name", stored.name},
                             {"dtype", formats::dtype_name(stored.dtype)},
                             {"shape", stored.shape},
                             {"file", plan.source.files()[stored.file].name},
                             {"offset", stored.offset}});
  });
  for (std::size_t p = 0; p < planned->n_parts; ++p) {
    for (const convert::PlannedSlice& slice : slices_of(plan, *planned, p)) {
      const convert::PlannedPlace& place = plan.places[slice.place];
      Json row = {
          {"name", plan.part_name(*planned, p)},
          {"dtype", formats::dtype_name(planned->parts[p].dtype)},
          {"shape", plan.is_sliced() ? plan.part_cut(*planned, p, place.ep_rank).slice_shape()
                                     : plan.part_shape(*planned, p)},
          {"file", plan.member_path(slice.member)},
          {"offset", slice.offset}};
      if (place.joined != convert::PlannedPlace::kOwn)
        row["in"] = plan.files[place.file].joined[place.joined].spec.name;
      json["writes"].push_back(std::move(row));
    }
  }
  return json;
}

std::string explain_text(const Json& explained) {
  const auto words = [](const Json& text) { return printable(text.get<std::string>()); };
  const auto shape = [](const Json& of) {
    return formats::shape_text(of["shape"].get<formats::Shape>());
  };
  const auto place = [&](const Json& row) {
    return fmt::format("{} {} {} at byte {} of {}\n", words(row["name"]), words(row["dtype"]),
                       shape(row), row["offset"].get<std::uint64_t>(), words(row["file"]));
  };
  std::string text = fmt::format(
      "{}\n  role    {}\n  shape   {}\n  rule    {}\n  action  {} ({} to {})\n",
      words(explained["tensor"]), words(explained["role"]), shape(explained),
      explained["rule"].is_null() ? "none: untouched means untouched" : words(explained["rule"]),
      action_word(words(explained["action"])), words(explained["from"]), words(explained["to"]));
  for (const Json& row : explained["reads"]) text += "  from    " + place(row);
  for (const Json& row : explained["writes"]) {
    text += "  into    " + place(row);
    if (row.contains("in")) text += fmt::format("          in {}\n", words(row["in"]));
  }
  return text;
}

}  // namespace ingot::cli
