#include "report/rows.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "formats/json/json.h"
#include "report/figures.h"
#include "report/table_text.h"

namespace ingot {
namespace {

using formats::Json;

TEST(Rows, BecomeATableByTheirMembers) {
  const Json rows = {
      {{"name", "a"}, {"tensors", 1234}, {"error", {{"cosine", 1.0}}}, {"roles", {"x", "y"}}},
      {{"name", "b"}, {"tensors", 5}, {"error", {{"cosine", nullptr}}}, {"is_kept", true}}};
  const Table table = table_of(
      rows,
      {{"name"},
       {"n", "tensors"},
       {"cosine", "error.cosine", cosine_text},
       {"roles"},
       {"kept", "is_kept"},
       {"left out", "name", shown, false},
       {"both", "", [](const Json& row) { return row.at("name").get<std::string>() + "!"; }}});
  EXPECT_EQ(table_text(table),
            "  name      n  cosine  roles  kept  both\n"
            "  a     1,234       1  x, y         a!\n"
            "  b         5       –         yes   b!\n");
}

TEST(Rows, WithoutAnyAreATableOfTitles) {
  EXPECT_EQ(table_text(table_of(Json::array(), {{"name"}})), "  name\n");
}

TEST(AsDocument, HoldsOnlyTextAndNumbersOfJson) {
  const Json report = {{"name", "\xff"}, {"list", {std::nan(""), 1.5}}, {"error", HUGE_VAL}};
  EXPECT_EQ(as_document(report),
            formats::parse_json(R"({"name":"\ufffd","list":[null,1.5],"error":null})", "a report"));
}

}  // namespace
}  // namespace ingot
