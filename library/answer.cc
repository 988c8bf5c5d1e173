#include "library/answer.h"

#include "check/rules/loader_rules.h"
#include "convert/output/version.h"
#include "formats/base/fault_lines.h"
#include "formats/json/json.h"
#include "report/rows.h"

namespace ingot {

using formats::Json;

namespace {

// The version of docs/schema/.
constexpr int kSchema = 2;

}  // namespace

void Answer::Faults::add(Json fault) {
  listed.emplace_back(std::move(fault));
  ++n;
}

void Answer::add(Json keys) {
  for (const auto& [name, faults] : {std::pair{"errors", &errors_}, {"warnings", &warnings_}}) {
    if (!keys.contains(name)) continue;
    Json& list = keys[name];
    const std::uint64_t n =
        keys.contains("summary") ? keys["summary"][name].get<std::uint64_t>() : list.size();
    faults->n += n - list.size();
    for (Json& fault : list) faults->add(std::move(fault));
    keys.erase(name);
  }
  keys.erase("summary");
  Json all = *keys_;
  all.update(keys);
  keys_ = std::move(all);
}

void Answer::end_by(const Error& error) {
  Json fault = check::fault_json(check::finding_of(error));
  const auto* list = dynamic_cast<const FaultList*>(&error);
  if (list == nullptr) errors_.add(fault);
  for (const Error& one : list == nullptr ? std::vector<Error>() : list->faults())
    errors_.add(check::fault_json(check::finding_of(one)));
  fault["text"] = error.what();
  error_ = std::move(fault);
}

Json Answer::document() const {
  const auto listed = [](const Faults& faults) {
    return formats::json_list(faults.listed,
                              [](const formats::JsonValue& fault) { return *fault; });
  };
  Json document = {{"schema", kSchema}, {"command", command}, {"version", convert::kVersion}};
  if (keys_->contains("passed")) document["passed"] = keys_->at("passed");
  document["error"] = *error_;
  document["errors"] = listed(errors_);
  document["warnings"] = listed(warnings_);
  document["summary"] = {{"errors", errors_.n}, {"warnings", warnings_.n}};
  if (!keys_.is_null()) document.update(*keys_);
  return as_document(std::move(document));
}

}  // namespace ingot
