#include <bit>
#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "inference/weights/expert_store.h"
#include "tests/convert/plain_decode.h"
#include "tests/inference/weights/crafted.h"
#include "tests/inference/weights/linears.h"
#include "tests/support/expect_error.h"

// Experts of a layer in one tensor: [E, 2I, D] with the rows of gate first, and [E, D, I].

namespace ingot::inference {
namespace {

using ingot::testing::all;
using ingot::testing::bytes_of;
using ingot::testing::Crafted;
using ingot::testing::decoded_rows;
using ingot::testing::TinyTensor;

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

// A stack [E, n, k] of a scheme and what each matrix decodes to.
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
  const ExpertShape shape = {.layers = {1},
                             .n_experts = kE,
                             .mine = {.first = 1, .count = 2},
                             .hidden = kD,
                             .intermediate = kI};
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
      ErrorCode::kShapeMismatch, {"gate_up_proj'", "[3, 160, 144]", "[4, 160, 144]"}, [&] {
        static_cast<void>(ExpertStore::need(
            store,
            {.layers = {1}, .n_experts = 4, .mine = all(4), .hidden = kD, .intermediate = kI}));
      });
}

}  // namespace
}  // namespace ingot::inference
