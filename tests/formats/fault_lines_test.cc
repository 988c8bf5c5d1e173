#include "formats/base/fault_lines.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ingot {
namespace {

using ::testing::ElementsAre;

ListedFault fault(std::string file, std::string tensor, std::string message) {
  return {.before = "", .file = file, .tensor = tensor, .message = message, .after = ""};
}

TEST(FaultLines, KeepFewFaultsAsTheyAre) {
  EXPECT_THAT(fault_lines(std::vector{fault("a", "t", "is short"), fault("", "", "is odd")}),
              ElementsAre("a: tensor 't': is short", "is odd"));
}

TEST(FaultLines, NameTensorsOfOneFaultTogether) {
  std::vector<ListedFault> faults;
  for (int i = 0; i < 7; ++i) faults.push_back(fault("", fmt::format("x.{}.w", i), "is not here"));
  faults.push_back(fault("", "y.v", "is not here"));
  EXPECT_THAT(fault_lines(faults),
              ElementsAre("is not here: 8 tensors: 'x.0.w', 'x.1.w', 'x.2.w', 'x.3.w', 'x.4.w' and "
                          "3 more: 2 of x.*.w, 1 of y.v"));
}

TEST(FaultLines, KeepSixOfACause) {
  std::vector<ListedFault> faults;
  for (int i = 0; i < 6; ++i) faults.push_back(fault("", "t", fmt::format("is {} long", i)));
  EXPECT_EQ(fault_lines(faults).size(), 6U);
  EXPECT_EQ(fault_lines(faults).back(), "tensor 't': is 5 long");
}

TEST(FaultLines, KeepFiveLinesOfACause) {
  std::vector<ListedFault> faults = {fault("", "", "another cause")};
  for (int i = 0; i < 9; ++i) {
    faults.push_back(fault(i < 7 ? "a" : "b", fmt::format("w{}", i),
                           fmt::format("shares a scale with 'v{}.{}' of {} rows", i, i, 64 + i)));
  }
  const std::vector<std::string> lines = fault_lines(faults);
  ASSERT_EQ(lines.size(), 7U);
  EXPECT_EQ(lines[0], "another cause");
  EXPECT_EQ(lines[5], "a: tensor 'w4': shares a scale with 'v4.4' of 68 rows");
  EXPECT_EQ(lines[6], "... and 4 more like it: 2 in a, 2 in b");
}

TEST(FaultLines, SayWhereTheRestIs) {
  std::vector<ListedFault> faults;
  for (int i = 0; i < 12; ++i)
    faults.push_back(fault(fmt::format("f{}", i), "", fmt::format("ends at byte {}", i)));
  EXPECT_EQ(fault_lines(faults).back(),
            "... and 7 more like it: 1 in f5, 1 in f6, 1 in f7 and elsewhere");
}

TEST(ErrorList, GroupsForPeopleAndKeepsAllForPrograms) {
  ErrorList faults;
  for (int i = 0; i < 80; ++i) {
    Error error(ErrorCode::kUnsupported, "cannot be held");
    faults.add(error.in_tensor(fmt::format("layers.{}.w", i)));
  }
  try {
    faults.throw_if_any();
    FAIL() << "nothing was thrown";
  } catch (const FaultList& list) {
    EXPECT_EQ(list.faults().size(), 80U);
    EXPECT_EQ(list.code(), ErrorCode::kUnsupported);
    EXPECT_STREQ(list.what(),
                 "cannot be held: 80 tensors: 'layers.0.w', 'layers.1.w', 'layers.2.w', "
                 "'layers.3.w', 'layers.4.w' and 75 more: 75 of layers.*.w");
  }
}

}  // namespace
}  // namespace ingot
