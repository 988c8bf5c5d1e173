#include "formats/text/text_input.h"

#include <gtest/gtest.h>

namespace ingot {
namespace {

TEST(TextInput, NamesOfOpenFilesTellNothing) {
  for (const char* path : {"/dev/stdin", "/dev/fd/63", "/proc/self/fd/0"})
    EXPECT_TRUE(is_nameless_input(path)) << path;
  for (const char* path : {"/dev/shm/prompts.jsonl", "a.json", "dev/stdin", "/dev/stdin.json"})
    EXPECT_FALSE(is_nameless_input(path)) << path;
}

}  // namespace
}  // namespace ingot
