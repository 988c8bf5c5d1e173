#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "inference/weights/weight_store.h"
#include "tests/inference/weights/crafted.h"
#include "tests/inference/weights/linears.h"
#include "tests/support/expect_error.h"

namespace ingot::inference {
namespace {

using ingot::testing::all;
using ingot::testing::bytes_of;
using ingot::testing::Crafted;
using ingot::testing::expect_error;
using ingot::testing::TinyTensor;

// Reads a matrix whole.
void read(const Crafted& crafted, const std::string& name, std::size_t n, std::size_t k,
          Profile profile = Profile::kNative) {
  const formats::Checkpoint source = crafted.open();
  const WeightStore store(source, profile, 1);
  static_cast<void>(store.linear(name, n, k, all(n), all(k)));
}

TEST(BadWeights, ThatAreMissingAreNamed) {
  const formats::Checkpoint source = formats::Checkpoint::open(ingot::testing::example());
  const WeightStore store(source, Profile::kNative, 1);
  const auto expect_missing = [&](const auto& body) {
    expect_error(ErrorCode::kMissingTensor,
                 {"'model.layers.9.x.weight'", "is not in the checkpoint"}, body);
  };
  const std::string name = "model.layers.9.x.weight";
  expect_missing([&] { static_cast<void>(store.linear(name, 2, 2, all(2), all(2))); });
  expect_missing([&] { static_cast<void>(store.vector(name, {2})); });
  expect_missing([&] {
    static_cast<void>(
        store.bytes_of({.name = name, .whole = {2, 2}, .rows = all(2), .cols = all(2)}));
  });
  expect_missing([&] {
    static_cast<void>(
        store.read({.name = name, .whole = {2, 2, 2}, .rows = all(2), .cols = all(2)}, 1));
  });
}

TEST(BadWeights, RefusalNamesBothShapes) {
  const formats::Checkpoint source = formats::Checkpoint::open(ingot::testing::example());
  const WeightStore store(source, Profile::kNative, 1);
  expect_error(ErrorCode::kShapeMismatch, {"'lm_head.weight'", "[2048, 256]", "[2048, 128]"}, [&] {
    static_cast<void>(store.linear("lm_head.weight", 2048, 128, all(2048), all(128)));
  });
  expect_error(ErrorCode::kShapeMismatch, {"'model.norm.weight'", "[256]", "[128]"},
               [&] { static_cast<void>(store.vector("model.norm.weight", {128})); });
  for (const auto& [name, shape] :
       {std::pair("lm_head.weight", "[2048, 256]"), std::pair("model.norm.weight", "[256]")}) {
    expect_error(ErrorCode::kShapeMismatch, {name, shape, "[2049, 256]"}, [&] {
      static_cast<void>(store.bytes_of(
          {.name = name, .whole = {2049, 256}, .rows = all(2049), .cols = all(256)}));
    });
  }
}

TEST(BadWeights, RefuseColumnsThatSplitAGroup) {
  const Crafted crafted({{"a.weight", "BF16", {4, 96}},
                         {"b.weight_packed", "U8", {4, 48}},
                         {"b.weight_scale", "U8", {4, 3}}});
  const formats::Checkpoint source = crafted.open();
  const WeightStore store(source, Profile::kF32, 1);
  const auto from = [&](const char* name, std::size_t first) {
    static_cast<void>(store.linear(name, 4, 96, all(4), {.first = first, .count = 16}));
  };
  from("a.weight", 16);
  from("b.weight", 32);
  expect_error(ErrorCode::kUnsupported, {"'a.weight'", "column 8", "bf16", "multiple of 16"},
               [&] { from("a.weight", 8); });
  expect_error(ErrorCode::kUnsupported, {"'b.weight'", "column 16", "mxfp4", "multiple of 32"},
               [&] { from("b.weight", 16); });
  expect_error(ErrorCode::kUnsupported, {"'b.weight'", "3 columns wide"}, [&] {
    static_cast<void>(store.linear("b.weight", 4, 96, all(4), {.first = 0, .count = 3}));
  });
}

TEST(BadWeights, ThatNothingIsComputedWithAreRefused) {
  const Crafted crafted({{"a.weight", "I64", {4, 16}},
                         {"b.weight", "F8_E4M3", {4, 16}},
                         {"b.weight_scale_inv", "F32", {1, 1}, bytes_of<float>({1})}});
  expect_error(ErrorCode::kUnsupported, {"'a.weight'", "dtype"},
               [&] { read(crafted, "a.weight", 4, 16); });
  const formats::Checkpoint source = crafted.open();
  const WeightStore store(source, Profile::kF32, 1);
  expect_error(ErrorCode::kUnsupported, {"'a.weight'"}, [&] {
    static_cast<void>(store.vector("a.weight", {4, 16}));
  });
  expect_error(ErrorCode::kUnsupported, {"'b.weight'", "fp8-block", "BF16, F16 or F32"}, [&] {
    static_cast<void>(store.vector("b.weight", {4, 16}));
  });
}

TEST(BadWeights, RefusalNamesPositionAndValueOfBadScales) {
  const auto fp8 = [](float scale) {
    return Crafted({{"a.weight", "F8_E4M3", {4, 16}},
                    {"a.weight_scale", "F32", {4, 1}, bytes_of<float>({1, 1, scale, 1})}});
  };
  read(fp8(2), "a.weight", 4, 16);
  expect_error(ErrorCode::kBadScale, {"'a.weight'", "row 2, column 0 is -1"},
               [&] { read(fp8(-1), "a.weight", 4, 16); });
  expect_error(ErrorCode::kBadScale, {"is nan"},
               [&] { read(fp8(std::numeric_limits<float>::quiet_NaN()), "a.weight", 4, 16); });

  const auto nvfp4 = [](std::uint8_t scale, float global) {
    return Crafted({{"a.weight", "U8", {2, 16}},
                    {"a.weight_scale", "F8_E4M3", {2, 2}, bytes_of<std::uint8_t>({8, 8, 8, scale})},
                    {"a.weight_scale_2", "F32", {}, bytes_of<float>({global})}});
  };
  read(nvfp4(8, 0.5F), "a.weight", 2, 32);
  for (const auto bad : std::vector<std::uint8_t>{0x00, 0x7F, 0x80, 0x88, 0xFF}) {
    expect_error(ErrorCode::kBadScale, {"'a.weight'", "row 1, column 1"},
                 [&] { read(nvfp4(bad, 0.5F), "a.weight", 2, 32); });
  }
  expect_error(ErrorCode::kBadScale, {"a.weight_scale_2 is 0"},
               [&] { read(nvfp4(8, 0), "a.weight", 2, 32); });

  const Crafted mx({{"a.weight", "F8_E4M3", {2, 64}},
                    {"a.weight_scale", "U8", {2, 2}, bytes_of<std::uint8_t>({0, 127, 255, 127})}});
  expect_error(ErrorCode::kBadScale, {"row 1, column 0 is nan"},
               [&] { read(mx, "a.weight", 2, 64); });
}

TEST(BadWeights, AreReadWhereThePartIsGood) {
  const Crafted crafted({{"a.weight", "F8_E4M3", {4, 16}},
                         {"a.weight_scale", "F32", {4, 1}, bytes_of<float>({1, 1, 1, -1})}});
  const formats::Checkpoint source = crafted.open();
  const WeightStore store(source, Profile::kF32, 1);
  EXPECT_EQ(store.linear("a.weight", 4, 16, all(3), all(16)).rows(), 3U);
}

TEST(BadWeights, RefuseProfileNativeWithoutAnInputScale) {
  const std::string config = R"({"quantization_config": {"quant_method": "modelopt",
    "quant_algo": "NVFP4", "ignore": []}})";
  const Crafted crafted(
      {{"a.weight", "U8", {2, 16}},
       {"a.weight_scale", "F8_E4M3", {2, 2}, bytes_of<std::uint8_t>({8, 8, 8, 8})},
       {"a.weight_scale_2", "F32", {}, bytes_of<float>({1})}},
      config);
  expect_error(ErrorCode::kMissingTensor, {"'a.weight'", "no input scale", "--profile bf16"},
               [&] { read(crafted, "a.weight", 2, 32); });
  read(crafted, "a.weight", 2, 32, Profile::kBf16);
}

TEST(BadWeights, RefuseProfileNativeWithABadInputScale) {
  for (const float scale : {0.0F, -1.0F, std::numeric_limits<float>::infinity()}) {
    const Crafted crafted({{"a.weight", "F8_E4M3", {2, 16}},
                           {"a.weight_scale", "F32", {1}, bytes_of<float>({1})},
                           {"a.input_scale", "F32", {1}, bytes_of<float>({scale})}});
    expect_error(ErrorCode::kBadScale, {"'a.weight'", "a.input_scale is"},
                 [&] { read(crafted, "a.weight", 2, 16); });
    read(crafted, "a.weight", 2, 16, Profile::kF32);
  }
}

TEST(BadWeights, RefuseStaticActivationsUnknownToTheScheme) {
  const Crafted crafted({{"a.weight", "F8_E4M3", {2, 32}},
                         {"a.weight_scale", "U8", {2, 1}, bytes_of<std::uint8_t>({127, 127})},
                         {"a.input_scale", "F32", {1}, bytes_of<float>({1})}});
  expect_error(ErrorCode::kUnsupported, {"'a.weight'", "static activations", "mxfp8"},
               [&] { read(crafted, "a.weight", 2, 32); });
}

TEST(BadWeights, ThatAreNotFiniteAreRefusedAsVectors) {
  const Crafted crafted(
      {{"a.weight", "F32", {3}, bytes_of<float>({1, std::numeric_limits<float>::infinity(), 2})}});
  const formats::Checkpoint source = crafted.open();
  const WeightStore store(source, Profile::kF32, 1);
  expect_error(ErrorCode::kNonFinite, {"'a.weight'", "inf at position 1"},
               [&] { static_cast<void>(store.vector("a.weight", {3})); });
}

TEST(BadWeights, WithCodesThatHaveAnOffsetAreRefused) {
  const Crafted crafted({{"a.weight", "I8", {2, 16}},
                         {"a.weight_scale", "F32", {2, 1}, bytes_of<float>({1, 1})},
                         {"a.weight_offset", "F32", {2, 1}, bytes_of<float>({0, 3})}});
  expect_error(ErrorCode::kUnsupported, {"a.weight_offset is not zero in row 1"},
               [&] { read(crafted, "a.weight", 2, 16); });
}

}  // namespace
}  // namespace ingot::inference
