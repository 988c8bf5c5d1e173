#pragma once

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/base/error.h"

namespace ingot::testing {

/// Runs `body` and expects an ingot::Error of exactly this code whose text holds every fragment.
template <typename Body>
void expect_error(ErrorCode code, std::initializer_list<std::string> fragments, Body&& body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error_code_name(error.code()), error_code_name(code)) << error.what();
    for (const std::string& fragment : fragments) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr(fragment));
    }
    return;
  }
  FAIL() << "no error was thrown, expected " << error_code_name(code);
}

}  // namespace ingot::testing
