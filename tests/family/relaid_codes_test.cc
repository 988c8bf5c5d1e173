#include <algorithm>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "formats/base/fd.h"
#include "formats/checkpoint/checkpoint.h"
#include "formats/container/safetensors.h"
#include "formats/storage/block_scales.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_checkpoint.h"

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

// Symmetric codes whose zero points are stored as the other checkpoint_format stores an 8.
TEST(ZeroPoints, OfTheOtherFormatNameTheFormat) {
  struct Case {
    std::string format;
    std::uint32_t stored;
    std::string remedy;
  };
  for (const Case& at : {Case{"gptq", 0x88888888U, "set it to gptq_v2"},
                         Case{"gptq_v2", 0x77777777U, "set it to gptq"},
                         Case{"gptq", 0x88888878U, "sym true (correct it)"}}) {
    const testing::TempDir directory;
    const auto config = fmt::format(
        R"({{"model_type": "other", "num_hidden_layers": 1, "quantization_config": {{"quant_method":
        "gptq", "bits": 4, "group_size": 32, "sym": true, "checkpoint_format": "{}"}}}})",
        at.format);
    std::string zeros(4, '\0');
    std::memcpy(zeros.data(), &at.stored, zeros.size());
    testing::TinyCheckpoint{.config = config,
                            .files = {{"model.safetensors",
                                       {{"a.qweight", "I32", {4, 8}},
                                        {"a.qzeros", "I32", {1, 1}, zeros},
                                        {"a.scales", "F32", {1, 8}}}}},
                            .weight_map = {}}
        .write(directory / "model");
    const Checkpoint checkpoint = Checkpoint::open(directory / "model", {.family = "generic"});
    ASSERT_EQ(checkpoint.tensors().size(), 1U);
    testing::expect_error(ErrorCode::kMismatch, {"a.qzeros", at.remedy}, [&] {
      std::vector<std::byte> codes(4);
      checkpoint.read(checkpoint.tensors()[0].encoding.stored.weight(), 0, codes);
    });
  }
}

}  // namespace
}  // namespace ingot::formats
