#pragma once

#include <charconv>
#include <cstdint>
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

/// Bytes that an error of kLimit says would be enough, as `--mem-limit 12MB`; 0 when it says none.
inline std::uint64_t enough_memory(const Error& error) {
  EXPECT_EQ(error.code(), ErrorCode::kLimit) << error.what();
  const std::string text = error.message();
  const std::size_t at = text.find("--mem-limit ");
  EXPECT_NE(at, std::string::npos) << text;
  if (at == std::string::npos) return 0;
  std::uint64_t megabytes = 0;
  std::from_chars(text.data() + at + 12, text.data() + text.size(), megabytes);
  return megabytes * 1'000'000;
}

}  // namespace ingot::testing
