#pragma once

#include <charconv>
#include <cstdint>
#include <string>

#include <gtest/gtest.h>

#include "formats/base/error.h"

namespace ingot::testing {

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
