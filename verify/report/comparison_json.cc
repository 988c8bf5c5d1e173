#include <array>

#include "check/rules/loader_rules.h"
#include "report/rows.h"
#include "verify/report/sections.h"

namespace ingot::verify {

using formats::Json;
using formats::json_list;

namespace {

// Null where the figure tells nothing of closeness.
Json closer_json(Closer closer) {
  constexpr std::array kWords = {"A", "B", "equal", "undecided"};
  return closer == Closer::kNeither ? Json(nullptr)
                                    : Json(kWords.at(static_cast<std::size_t>(closer)));
}

}  // namespace

Json row_of(const PairedFigure& figure) {
  return {{"figure", figure.name},
          {"summary", figure.summary},
          {"pairs", figure.pairs},
          {"a", figure.a},
          {"b", figure.b},
          {"difference", figure.difference},
          {"interval",
           figure.interval ? Json({figure.interval->low, figure.interval->high}) : Json(nullptr)},
          {"tokens", figure.tokens},
          {"clusters", figure.clusters},
          {"drawn", figure.drawn},
          {"a_closer", figure.a_closer},
          {"b_closer", figure.b_closer},
          {"closer", closer_json(figure.closer())},
          {"farthest", figure.farthest}};
}

Json row_of(const PairedGroup& group) {
  Json json = Json::object();
  if (!group.role.empty()) json["role"] = group.role;
  if (group.layer) json["layer"] = *group.layer;
  json["tensors"] = group.tensors;
  json["a_schemes"] = group.a_schemes;
  json["b_schemes"] = group.b_schemes;
  json["a_closer"] = group.a_closer;
  json["b_closer"] = group.b_closer;
  for (const auto& [side, sums] : {std::pair{"a", &group.a}, {"b", &group.b}}) {
    json[side] = {{"relative_error", sums->relative_error()},
                  {"sqnr_db", sums->sqnr_db()},
                  {"cosine", sums->cosine()}};
  }
  json["difference_db"] = group.difference_db();
  return json;
}

Json row_of(const DemandResult& result) {
  return {{"figure", result.demand.figure},
          {"margin", result.demand.margin},
          {"worse", result.worse},
          {"passed", result.holds},
          {"reason", result.reason}};
}

Json comparison_json(const Comparison& comparison, std::size_t n_worst) {
  const Report& b = comparison.b;
  Json json = {{"warnings", check::remarks_json(warnings_of(comparison))},
               {"finding", comparison_sentence(comparison)},
               {"reference", comparison.a ? side_json(*b.source) : Json(nullptr)},
               {"a", side_json(comparison.a ? comparison.a->output : *b.source)},
               {"b", side_json(b.output)},
               {"levels", json_list(b.levels, level_name)}};
  if (!comparison.a) {
    json["difference"] = measured_json(b, n_worst);
    return as_document(std::move(json));
  }
  const std::vector<PairedTensor> tensors = paired_tensors(*comparison.a, b);
  const auto groups = [&](Grouping grouping) {
    return json_rows(paired_groups(tensors, grouping));
  };
  json["figures"] = json_rows(paired_figures(*comparison.a, b));
  if (!comparison.demands.empty()) {
    json["passed"] = comparison.passed();
    json["demands"] = json_rows(judge_demands(comparison));
  }
  json["by_role"] = groups({.by_role = true});
  json["by_layer"] = groups({.by_layer = true});
  json["by_layer_and_role"] = groups({.by_role = true, .by_layer = true});
  json["a"]["measured"] = measured_json(*comparison.a, n_worst);
  json["b"]["measured"] = measured_json(b, n_worst);
  return as_document(std::move(json));
}

}  // namespace ingot::verify
