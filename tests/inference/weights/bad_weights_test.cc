#include "formats/container/other_float8.h"
#include "inference/weights/expert_store.h"
#include "inference/weights/weight_store.h"
#include "tests/convert/plain_decode.h"
#include "tests/inference/weights/crafted.h"
#include "tests/inference/weights/linears.h"
#include "tests/support/test.h"

namespace ingot::inference {
namespace {

using namespace ingot::testing;
using enum ErrorCode;

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
    expect_error(kMissingTensor, {"'model.layers.9.x.weight'", "is not in the checkpoint"}, body);
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
  expect_error(kShapeMismatch, {"'lm_head.weight'", "[2048, 256]", "[2048, 128]"}, [&] {
    static_cast<void>(store.linear("lm_head.weight", 2048, 128, all(2048), all(128)));
  });
  expect_error(kShapeMismatch, {"'model.norm.weight'", "[256]", "[128]"},
               [&] { static_cast<void>(store.vector("model.norm.weight", {128})); });
  for (const auto& [name, shape] :
       {std::pair("lm_head.weight", "[2048, 256]"), std::pair("model.norm.weight", "[256]")}) {
    expect_error(kShapeMismatch, {name, shape, "[2049, 256]"}, [&, name = name] {
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
  expect_error(kUnsupported, {"'a.weight'", "column 8", "bf16", "multiple of 16"},
               [&] { from("a.weight", 8); });
  expect_error(kUnsupported, {"'b.weight'", "column 16", "mxfp4", "multiple of 32"},
               [&] { from("b.weight", 16); });
  expect_error(kUnsupported, {"'b.weight'", "3 columns wide"}, [&] {
    static_cast<void>(store.linear("b.weight", 4, 96, all(4), {.first = 0, .count = 3}));
  });
}

TEST(BadWeights, ThatNothingIsComputedWithAreRefused) {
  const Crafted crafted({{"a.weight", "I64", {4, 16}},
                         {"b.weight", "F8_E4M3", {4, 16}},
                         {"b.weight_scale_inv", "F32", {1, 1}, bytes_of<float>({1})}});
  expect_error(kUnsupported, {"'a.weight'", "dtype"}, [&] { read(crafted, "a.weight", 4, 16); });
  const formats::Checkpoint source = crafted.open();
  const WeightStore store(source, Profile::kF32, 1);
  expect_error(kUnsupported, {"'a.weight'"}, [&] {
    static_cast<void>(store.vector("a.weight", {4, 16}));
  });
  expect_error(kUnsupported, {"'b.weight'", "fp8-block", "BF16, F16 or F32"}, [&] {
    static_cast<void>(store.vector("b.weight", {4, 16}));
  });
}

TEST(BadWeights, RefusalNamesPositionAndValueOfBadScales) {
  const auto fp8 = [](float scale) {
    return Crafted({{"a.weight", "F8_E4M3", {4, 16}},
                    {"a.weight_scale", "F32", {4, 1}, bytes_of<float>({1, 1, scale, 1})}});
  };
  read(fp8(2), "a.weight", 4, 16);
  expect_error(kBadScale, {"'a.weight'", "row 2, column 0 is -1"},
               [&] { read(fp8(-1), "a.weight", 4, 16); });
  expect_error(kBadScale, {"is nan"},
               [&] { read(fp8(std::numeric_limits<float>::quiet_NaN()), "a.weight", 4, 16); });

  const auto nvfp4 = [](std::uint8_t scale, float global) {
    return Crafted({{"a.weight", "U8", {2, 16}},
                    {"a.weight_scale", "F8_E4M3", {2, 2}, bytes_of<std::uint8_t>({8, 8, 8, scale})},
                    {"a.weight_scale_2", "F32", {}, bytes_of<float>({global})}});
  };
  read(nvfp4(8, 0.5F), "a.weight", 2, 32);
  for (const auto bad : std::vector<std::uint8_t>{0x00, 0x7F, 0x80, 0x88, 0xFF}) {
    expect_error(kBadScale, {"'a.weight'", "row 1, column 1"},
                 [&] { read(nvfp4(bad, 0.5F), "a.weight", 2, 32); });
  }
  expect_error(kBadScale, {"a.weight_scale_2 is 0"}, [&] { read(nvfp4(8, 0), "a.weight", 2, 32); });
  // The two make infinity, under which a code of zero would be NaN, and zero.
  read(nvfp4(0x7E, 1e30F), "a.weight", 2, 32);
  expect_error(kBadScale, {"row 1, column 1 is 448, and inf multiplied by 1e+38"},
               [&] { read(nvfp4(0x7E, 1e38F), "a.weight", 2, 32); });
  expect_error(kBadScale, {"row 1, column 1", "and 0 multiplied by"},
               [&] { read(nvfp4(1, 0x1p-142F), "a.weight", 2, 32); });

  const Crafted mx({{"a.weight", "F8_E4M3", {2, 64}},
                    {"a.weight_scale", "U8", {2, 2}, bytes_of<std::uint8_t>({0, 127, 255, 127})}});
  expect_error(kBadScale, {"row 1, column 0 is nan"}, [&] { read(mx, "a.weight", 2, 64); });
}

// An infinite weight may vanish behind a gate.
TEST(BadWeights, OfOtherFloat8ThatAreNotFiniteAreRefused) {
  const auto e5m2 = [](std::uint8_t code) {
    std::vector<std::uint8_t> codes(64, 0x21);
    codes[17] = code;
    return Crafted({{"a.weight", "F8_E5M2", {4, 16}, bytes_of(codes)},
                    {"a.weight_scale", "F32", {1}, bytes_of<float>({1})}});
  };
  read(e5m2(0x7B), "a.weight", 4, 16);
  for (const std::uint8_t code : std::initializer_list<std::uint8_t>{0x7C, 0xFC, 0x7F}) {
    expect_error(kNonFinite, {"model.safetensors", "'a.weight'", "decodes to"},
                 [&] { read(e5m2(code), "a.weight", 4, 16); });
  }
}

// A part is cut out of rows and columns, from the middle of a group.
TEST(ReadOnlyWeights, AreHeldAsTheirValues) {
  std::vector<std::uint8_t> codes(6 * 96);
  std::vector<float> scales(6 * 3);
  for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::uint8_t>(i % 0x7C);
  for (std::size_t i = 0; i < scales.size(); ++i) scales[i] = 0.3F + static_cast<float>(i);
  const Crafted crafted({{"a.weight", "F8_E5M2", {6, 96}, bytes_of(codes)},
                         {"a.weight_scale", "F32", {6, 3}, bytes_of(scales)}});
  const formats::Checkpoint source = crafted.open();
  const WeightStore store(source, Profile::kF32, 1);
  const auto values = decoded_rows(
      store.linear("a.weight", 6, 96, {.first = 1, .count = 4}, {.first = 48, .count = 48}));
  ASSERT_EQ(values.size(), 4U * 48U);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::size_t row = 1 + i / 48, col = 48 + i % 48;
    const float code = formats::float_from_float8(formats::kFloat8Kinds[0], codes[row * 96 + col]);
    EXPECT_EQ(values[i], code * scales[row * 3 + col / 32]) << i;
  }
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
  expect_error(kMissingTensor, {"'a.weight'", "no input scale", "--profile bf16"},
               [&] { read(crafted, "a.weight", 2, 32); });
  read(crafted, "a.weight", 2, 32, Profile::kBf16);
}

TEST(BadWeights, RefuseProfileNativeWithABadInputScale) {
  for (const float scale : {0.0F, -1.0F, std::numeric_limits<float>::infinity()}) {
    const Crafted crafted({{"a.weight", "F8_E4M3", {2, 16}},
                           {"a.weight_scale", "F32", {1}, bytes_of<float>({1})},
                           {"a.input_scale", "F32", {1}, bytes_of<float>({scale})}});
    expect_error(kBadScale, {"'a.weight'", "a.input_scale is"},
                 [&] { read(crafted, "a.weight", 2, 16); });
    read(crafted, "a.weight", 2, 16, Profile::kF32);
  }
}

TEST(BadWeights, RefuseStaticActivationsUnknownToTheScheme) {
  const Crafted crafted({{"a.weight", "F8_E4M3", {2, 32}},
                         {"a.weight_scale", "U8", {2, 1}, bytes_of<std::uint8_t>({127, 127})},
                         {"a.input_scale", "F32", {1}, bytes_of<float>({1})}});
  expect_error(kUnsupported, {"'a.weight'", "static activations", "mxfp8"},
               [&] { read(crafted, "a.weight", 2, 32); });
}

TEST(BadWeights, ThatAreNotFiniteAreRefusedAsVectors) {
  const Crafted crafted(
      {{"a.weight", "F32", {3}, bytes_of<float>({1, std::numeric_limits<float>::infinity(), 2})}});
  const formats::Checkpoint source = crafted.open();
  const WeightStore store(source, Profile::kF32, 1);
  expect_error(kNonFinite, {"'a.weight'", "inf at position 1"},
               [&] { static_cast<void>(store.vector("a.weight", {3})); });
}

TEST(BadWeights, WithCodesThatHaveAnOffsetAreRefused) {
  const Crafted crafted({{"a.weight", "I8", {2, 16}},
                         {"a.weight_scale", "F32", {2, 1}, bytes_of<float>({1, 1})},
                         {"a.weight_offset", "F32", {2, 1}, bytes_of<float>({0, 3})}});
  expect_error(kUnsupported, {"a.weight_offset is not zero in row 1"},
               [&] { read(crafted, "a.weight", 2, 16); });
}

// Experts of a layer in one tensor: [E, 2I, D] with the rows of gate first, and [E, D, I].

constexpr std::size_t kE = 3, kI = 80, kD = 144;
const std::string kStack = "model.layers.1.mlp.experts.";

std::vector<std::uint8_t> codes(std::size_t n, std::uint32_t seed, std::uint8_t not_a_number) {
  std::mt19937 random(seed);
  std::vector<std::uint8_t> bytes(n);
  for (auto& byte : bytes) {
    byte = static_cast<std::uint8_t>(random());
    if ((byte & 0x7FU) == not_a_number) byte = 1;
  }
  return bytes;
}

std::vector<float> scales(std::size_t n, std::uint32_t seed) {
  std::vector<float> values = ingot::testing::normal_values(n, seed);
  for (float& value : values) value = std::abs(value) + 0.01F;
  return values;
}

// A stack [E, n, k] of a scheme and the decoded values of each matrix.
struct Stack {
  std::vector<TinyTensor> tensors;
  std::vector<float> values;
};

enum class Kind { kBf16, kFp8Block, kFp8Channel, kInt8Channel };

Stack stack(Kind kind, const std::string& name, std::size_t n, std::size_t k, std::uint32_t seed) {
  Stack stack;
  const std::size_t count = kE * n * k;
  if (kind == Kind::kBf16) {
    std::vector<std::uint16_t> words(count);
    for (std::size_t i = 0; i < count; ++i) {
      words[i] = static_cast<std::uint16_t>(0x3E00U + (i * 2654435761U + seed) % 0x300U);
      stack.values.push_back(ingot::testing::bf16_value(words[i]));
    }
    stack.tensors.push_back({name, "BF16", {kE, n, k}, bytes_of(words)});
    return stack;
  }
  const bool is_int8 = kind == Kind::kInt8Channel;
  const auto bytes = codes(count, seed, is_int8 ? 0xFF : 0x7F);
  const std::size_t block = kind == Kind::kFp8Block ? 128 : 1;
  const std::size_t down = (n + block - 1) / block;
  const std::size_t across = kind == Kind::kFp8Block ? (k + 127) / 128 : 1;
  const auto factors = scales(kE * down * across, seed + 1);
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t e = i / (n * k), r = i / k % n, c = i % k;
    const float code = is_int8 ? static_cast<float>(static_cast<std::int8_t>(bytes[i]))
                               : ingot::testing::e4m3_value(bytes[i]);
    const std::size_t column = across == 1 ? 0 : c / 128;
    stack.values.push_back(code * factors[(e * down + r / block) * across + column]);
  }
  stack.tensors.push_back({name, is_int8 ? "I8" : "F8_E4M3", {kE, n, k}, bytes_of(bytes)});
  stack.tensors.push_back({name + (block == 128 ? "_scale_inv" : "_scale"),
                           "F32",
                           {kE, down, across},
                           bytes_of(factors)});
  return stack;
}

std::string kind_name(const ::testing::TestParamInfo<Kind>& kind) {
  constexpr const char* kNames[] = {"bf16", "fp8_block", "fp8_channel", "int8_channel"};
  return kNames[static_cast<std::size_t>(kind.param)];
}

class StackedExperts : public ::testing::TestWithParam<Kind> {};
INSTANTIATE_TEST_SUITE_P(Schemes, StackedExperts,
                         ::testing::Values(Kind::kBf16, Kind::kFp8Block, Kind::kFp8Channel,
                                           Kind::kInt8Channel),
                         kind_name);

TEST_P(StackedExperts, AreTheMatricesOfTheStack) {
  const Stack both = stack(GetParam(), kStack + "gate_up_proj", 2 * kI, kD, 1);
  const Stack down = stack(GetParam(), kStack + "down_proj", kD, kI, 2);
  std::vector<TinyTensor> tensors = both.tensors;
  tensors.insert(tensors.end(), down.tensors.begin(), down.tensors.end());
  const Crafted crafted(tensors);
  const formats::Checkpoint source = crafted.open();
  const WeightStore store(source, Profile::kF32, 1);
  const ExpertShape shape = {.experts = ingot::testing::experts_of({1}, 1, 2),
                             .n_experts = kE,
                             .hidden = kD,
                             .intermediate = kI,
                             .inner = all(kI)};
  const ExpertStore::Need need = ExpertStore::need(store, shape);
  ExpertStore experts(store, shape, need.all, 2);
  const auto slice = [](const std::vector<float>& values, std::size_t at, std::size_t n) {
    const auto first = values.begin() + static_cast<std::ptrdiff_t>(at);
    return std::vector<float>(first, first + static_cast<std::ptrdiff_t>(n));
  };
  for (const std::uint32_t e : {1U, 2U}) {
    const auto expert = experts.get(1, e);
    const std::size_t at = e * 2 * kI * kD;
    EXPECT_EQ(decoded_rows(expert->gate), slice(both.values, at, kI * kD));
    EXPECT_EQ(decoded_rows(expert->up), slice(both.values, at + kI * kD, kI * kD));
    EXPECT_EQ(decoded_rows(expert->down), slice(down.values, e * kD * kI, kD * kI));
  }
  EXPECT_EQ(experts.counters().bytes_read, need.all);
  // A part of one matrix.
  const std::string name = kStack + "gate_up_proj";
  const LinearPart wanted = {.name = name,
                             .whole = {kE, 2 * kI, kD},
                             .matrix = 2,
                             .rows = {.first = 50, .count = 60},
                             .cols = {.first = 112, .count = 32}};
  const Linear part = store.read(wanted, 1);
  const auto values = decoded_rows(part);
  for (std::size_t r = 0; r < 60; ++r) {
    for (std::size_t c = 0; c < 32; ++c)
      ASSERT_EQ(values[r * 32 + c], both.values[(2 * 2 * kI + 50 + r) * kD + 112 + c]);
  }
  EXPECT_EQ(part.n_bytes(), store.bytes_of(wanted));
}

TEST(StackedExperts, RefuseAnotherNumber) {
  const Crafted crafted(stack(Kind::kBf16, kStack + "gate_up_proj", 2 * kI, kD, 1).tensors);
  const formats::Checkpoint source = crafted.open();
  const WeightStore store(source, Profile::kF32, 1);
  ingot::testing::expect_error(
      kShapeMismatch, {"gate_up_proj'", "[3, 160, 144]", "[4, 160, 144]"}, [&] {
        static_cast<void>(
            ExpertStore::need(store, {.experts = ingot::testing::experts_of({1}, 0, 4),
                                      .n_experts = 4,
                                      .hidden = kD,
                                      .intermediate = kI,
                                      .inner = all(kI)}));
      });
}

}  // namespace
}  // namespace ingot::inference
