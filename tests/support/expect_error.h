#pragma once

#include <charconv>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

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

/// Expects these words in a text, in this order where "..." is between them.
inline void expect_words(std::string_view text, std::string_view words) {
  for (std::size_t at = 0; !words.empty();) {
    const std::size_t end = std::min(words.find("..."), words.size());
    const std::size_t found = text.find(words.substr(0, end), at);
    EXPECT_NE(found, std::string_view::npos) << words.substr(0, end) << "\n  not in " << text;
    if (found != std::string_view::npos) at = found + end;
    words.remove_prefix(std::min(end + 3, words.size()));
  }
}

/// Expects an error with several words in this order: "model.safetensors...not a regular file".
template <typename Body>
void expect_error(ErrorCode code, std::string_view words, Body&& body) {
  expect_error(code, std::initializer_list<std::string>{}, [&] {
    try {
      body();
    } catch (const Error& error) {
      expect_words(error.what(), words);
      throw;
    }
  });
}

/// A row of refusals: what is done to a good input, and the error that follows.
template <typename Input>
struct Refusal {
  const char* name;
  ErrorCode code;
  std::string_view words;
  std::function<void(Input&)> damage;
  friend void PrintTo(const Refusal& row, std::ostream* out) { *out << row.name; }
};

/// The name of a row, for INSTANTIATE_TEST_SUITE_P.
inline constexpr auto kNameOfRow = [](const auto& row) { return std::string(row.param.name); };

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
