#include "library/plan_json.h"

#include "check/rules/loader_rules.h"
#include "formats/json/json.h"

namespace ingot::library {

using formats::Json;

Json plan_json(const convert::Plan& plan) {
  Json json = {{"family", plan.source.family().name},
               {"dialect", plan.target.dialect->name},
               {"bytes_in", plan.sizes.bytes_in},
               {"bytes_out", plan.sizes.bytes_out},
               {"warnings", check::remarks_json(plan.warnings)},
               {"files", Json::array()},
               {"config", nullptr}};
  if (!plan.json.config.empty()) json["config"] = formats::parse_json(plan.json.config, "config");
  for (const convert::PlannedFile& file : plan.files) {
    for (const convert::PlannedFile::Member& member : file.members)
      json["files"].push_back({{"name", member.path}, {"bytes", file.n_bytes}});
  }
  json["tensors"] = formats::json_list(plan.tensors, [&](const convert::PlannedTensor& planned) {
    const formats::LogicalTensor& tensor = plan.tensor_of(planned);
    const bool is_dropped = planned.action == convert::Action::kDrop;
    return Json{{"name", tensor.name},
                {"role", formats::role_name(role_of(tensor))},
                {"action", convert::action_name(planned.action)},
                {"scheme", is_dropped ? Json(nullptr) : Json(formats::scheme_name(planned.to))}};
  });
  return json;
}

}  // namespace ingot::library
