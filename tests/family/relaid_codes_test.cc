#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <random>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "formats/base/fd.h"
#include "formats/checkpoint/checkpoint.h"
#include "formats/container/safetensors.h"
#include "formats/storage/block_scales.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"

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

/// A copy of a golden checkpoint in which the group of one column is another.
class GroupOrder : public ::testing::TestWithParam<std::pair<const char*, std::int32_t>> {
 protected:
  void SetUp() override {
    std::filesystem::copy(
        std::filesystem::path(INGOT_SOURCE_DIR) / "tests/golden/families" / GetParam().first,
        directory_ / "model");
    const auto file = directory_ / "model/model.safetensors";
    for (const StoredTensor& stored : read_safetensors_header(Fd::open_for_reading(file)).tensors) {
      if (!stored.name.ends_with(".g_idx")) continue;
      std::filesystem::permissions(file, std::filesystem::perms::owner_write,
                                   std::filesystem::perm_options::add);
      std::fstream(file, std::ios::in | std::ios::out | std::ios::binary)
          .seekp(static_cast<std::streamoff>(stored.offset))
          .write(reinterpret_cast<const char*>(&GetParam().second), 4);
      return;
    }
    FAIL() << "no g_idx";
  }

  testing::TempDir directory_;
};

TEST_P(GroupOrder, NamesGroupsThatThereAre) {
  const Checkpoint checkpoint = Checkpoint::open(directory_ / "model");
  testing::expect_error(ErrorCode::kCorrupt, {"g_idx", "into group"}, [&] {
    for (const LogicalTensor& tensor : checkpoint.tensors())
      static_cast<void>(read_block_scales(checkpoint, tensor));
  });
}

INSTANTIATE_TEST_SUITE_P(Numbers, GroupOrder,
                         ::testing::Values(std::pair("qwen3_moe_gptq", -1),
                                           std::pair("qwen3_moe_gptq", 99),
                                           std::pair("qwen3_moe_gptq_actorder", -1),
                                           std::pair("qwen3_moe_gptq_actorder", 99),
                                           std::pair("qwen3_moe_gptq_asym_actorder", -1)));

}  // namespace
}  // namespace ingot::formats
