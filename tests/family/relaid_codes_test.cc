#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "formats/checkpoint/checkpoint.h"

// AWQ and GPTQ, seen as compressed-tensors stores INT4.

namespace ingot::formats {
namespace {

TEST(RelaidCodes, PiecesAreThoseOfTheWhole) {
  std::mt19937 random(1);
  for (const char* name : {"qwen3_moe_awq", "qwen3_moe_gptq_asym_actorder"}) {
    const Checkpoint checkpoint =
        Checkpoint::open(std::filesystem::path(INGOT_SOURCE_DIR) / "tests/golden/families" / name);
    for (std::uint32_t i = 0; i < checkpoint.stored().size(); ++i) {
      std::vector<std::byte> whole(checkpoint.stored()[i].n_bytes);
      checkpoint.read(i, 0, whole);
      for (int round = 0; round < 5; ++round) {
        const std::size_t begin = random() % whole.size();
        std::vector<std::byte> piece(1 + random() % (whole.size() - begin));
        checkpoint.read(i, begin, piece);
        ASSERT_TRUE(std::equal(piece.begin(), piece.end(),
                               whole.begin() + static_cast<std::ptrdiff_t>(begin)))
            << checkpoint.stored()[i].name << ", " << piece.size() << " bytes from " << begin;
      }
    }
  }
}

}  // namespace
}  // namespace ingot::formats
