#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/checkpoint/checkpoint.h"
#include "formats/json/json.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_checkpoint.h"

// A checkpoint over tensors that the caller has found.

namespace ingot::formats {
namespace {

using namespace ingot::testing;

// Every byte of tensor i is i, and each calls the same file its home.
class NumberedBytes final : public StoredBytes {
 public:
  [[nodiscard]] std::span<const SourceFile> files() const override { return files_; }
  void read(std::uint32_t index, const StoredTensor& tensor, std::uint64_t offset,
            std::span<std::byte> out) const override {
    EXPECT_LE(offset + out.size(), tensor.n_bytes);
    std::fill(out.begin(), out.end(), static_cast<std::byte>(index));
  }
  [[nodiscard]] std::vector<std::byte> header_bytes(std::uint32_t file) const override {
    return std::vector<std::byte>(file + 3);
  }
  [[nodiscard]] bool has_data(std::uint32_t file) const override { return file == 0; }
  void read_file(std::uint32_t, std::uint64_t offset, std::span<std::byte> out) const override {
    std::fill(out.begin(), out.end(), static_cast<std::byte>(offset));
  }
  void close_file(std::uint32_t file) const override { closed = file; }
  [[nodiscard]] bool is_whole() const override { return false; }
  [[nodiscard]] std::string home_file(std::uint32_t index) const override {
    return "home-" + std::to_string(index);
  }

  mutable std::uint32_t closed = ~std::uint32_t{0};

 private:
  std::vector<SourceFile> files_ = {{"slices", 1000, 8}};
};

// The contents of a directory, as if they had been found elsewhere.
Draft found_in(const TinyCheckpoint& checkpoint, const TempDir& dir) {
  checkpoint.write(dir / "model");
  const Checkpoint opened = Checkpoint::open(dir / "model");
  Draft model;
  model.directory = dir.path();
  model.has_index = true;
  model.config = opened.config();
  model.stored.assign(opened.stored().begin(), opened.stored().end());
  model.side_files = {{"tokenizer.json", 5}};
  model.bytes = std::make_unique<NumberedBytes>();
  return model;
}

using AssembledCheckpoint = InTempDir;

TEST_F(AssembledCheckpoint, UnderstandsItsTensorsAsADirectoryDoes) {
  TinyCheckpoint tiny = tiny_deepseek_v3();
  make_fp8(tiny, kUpWeight, "model.layers.0.mlp.up_proj.weight_scale_inv");
  const Checkpoint checkpoint = Checkpoint::assemble(found_in(tiny, dir_));
  const Checkpoint opened = Checkpoint::open(dir_ / "model");
  EXPECT_EQ(checkpoint.family().name, "deepseek_v3");
  EXPECT_EQ(checkpoint.dialect().name, "deepseek");
  ASSERT_EQ(checkpoint.tensors().size(), opened.tensors().size());
  for (std::size_t i = 0; i < opened.tensors().size(); ++i) {
    EXPECT_EQ(checkpoint.tensors()[i].name, opened.tensors()[i].name);
    EXPECT_EQ(checkpoint.tensors()[i].shape, opened.tensors()[i].shape);
    EXPECT_EQ(checkpoint.tensors()[i].encoding.scheme, opened.tensors()[i].encoding.scheme);
    EXPECT_EQ(checkpoint.tensors()[i].rule, opened.tensors()[i].rule);
    EXPECT_EQ(checkpoint.tensors()[i].layer, opened.tensors()[i].layer);
  }
  EXPECT_TRUE(checkpoint.has_index());
  EXPECT_EQ(checkpoint.slicing(), nullptr);
  EXPECT_EQ(checkpoint.directory(), dir_.path());
  ASSERT_EQ(checkpoint.side_files().size(), 1U);
  EXPECT_EQ(checkpoint.side_files()[0].path, "tokenizer.json");
}

TEST_F(AssembledCheckpoint, ReadsFromTheBytesThatItWasGiven) {
  Draft model = found_in(tiny_deepseek_v3(), dir_);
  auto* bytes = dynamic_cast<NumberedBytes*>(model.bytes.get());
  const Checkpoint checkpoint = Checkpoint::assemble(std::move(model));
  EXPECT_EQ(&checkpoint.bytes(), bytes);
  EXPECT_FALSE(checkpoint.is_whole());
  EXPECT_EQ(checkpoint.home_file(7), "home-7");
  ASSERT_EQ(checkpoint.files().size(), 1U);
  EXPECT_EQ(checkpoint.files()[0].name, "slices");
  std::array<std::byte, 4> out{};
  checkpoint.read(5, 2, out);
  EXPECT_THAT(out, ::testing::Each(std::byte{5}));
  checkpoint.read_file(0, 9, out);
  EXPECT_THAT(out, ::testing::Each(std::byte{9}));
  EXPECT_EQ(checkpoint.header_bytes(0).size(), 3U);
  EXPECT_TRUE(checkpoint.has_data(0));
  checkpoint.close_file(0);
  EXPECT_EQ(bytes->closed, 0U);
}

TEST_F(AssembledCheckpoint, DirectoryIsWhole) {
  tiny_deepseek_v3().write(dir_ / "model");
  const Checkpoint opened = Checkpoint::open(dir_ / "model");
  EXPECT_TRUE(opened.is_whole());
  EXPECT_EQ(opened.home_file(0), "");
}

TEST_F(AssembledCheckpoint, TakesTheDialectThatItIsGiven) {
  Draft model = found_in(tiny_deepseek_v3(), dir_);
  model.dialect = find_dialect("modelslim");
  model.description = Json{{"model_quant_type", "W8A8"}};
  const Checkpoint checkpoint = Checkpoint::assemble(std::move(model));
  EXPECT_EQ(checkpoint.dialect().name, "modelslim");
  EXPECT_EQ(checkpoint.description().at("model_quant_type"), "W8A8");
}

TEST_F(AssembledCheckpoint, RefusesWhatADirectoryIsRefusedFor) {
  Draft twice = found_in(tiny_deepseek_v3(), dir_);
  twice.stored.push_back(twice.stored.front());
  expect_error(ErrorCode::kDuplicate, {twice.stored.front().name, "slices"},
               [&] { Checkpoint::assemble(std::move(twice)); });

  Draft misshapen = found_in(tiny_deepseek_v3(), dir_);
  for (StoredTensor& tensor : misshapen.stored) {
    if (tensor.name == kUpWeight) tensor.shape.front() *= 2;
  }
  expect_error(ErrorCode::kShapeMismatch, {kUpWeight},
               [&] { Checkpoint::assemble(std::move(misshapen)); });

  Draft unknown = found_in(tiny_deepseek_v3(), dir_);
  unknown.stored.front().name = "model.surprise.weight";
  ErrorList faults;
  const Checkpoint collected = Checkpoint::assemble(std::move(unknown), {.faults = &faults});
  ASSERT_EQ(faults.errors().size(), 1U);
  EXPECT_EQ(faults.errors()[0].code(), ErrorCode::kUnknownTensor);
  EXPECT_FALSE(collected.tensors().empty());
}

}  // namespace
}  // namespace ingot::formats
