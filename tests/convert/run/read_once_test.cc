#include "formats/json/json.h"
#include "tests/convert/conversion.h"
#include "tests/support/test.h"

// A conversion reads what is stored once, codes and scales. Where it keeps codes, loader rules have
// read small scales before.

namespace ingot::convert {
namespace {

using formats::Checkpoint;
using formats::SchemeId;
using ingot::testing::fixture;
using ingot::testing::TempDir;

using Counts = std::map<std::string, std::uint64_t>;

/// The bytes of another checkpoint, which are counted by stored tensor.
class CountedBytes final : public formats::ForwardedBytes {
 public:
  CountedBytes(const Checkpoint& source, Counts& counts)
      : ForwardedBytes(source.bytes()), counts_(counts) {}
  void read(std::uint32_t index, const formats::StoredTensor& tensor, std::uint64_t offset,
            std::span<std::byte> out) const override {
    counts_[tensor.name] += out.size();
    bytes_->read(index, tensor, offset, out);
  }

 private:
  Counts& counts_;
};

Checkpoint counted(const Checkpoint& source, Counts& counts) {
  formats::Draft draft = source.draft_of_view();
  draft.stored.assign(source.stored().begin(), source.stored().end());
  draft.tensors.assign(source.tensors().begin(), source.tensors().end());
  draft.bytes = std::make_unique<CountedBytes>(source, counts);
  return Checkpoint::view(std::move(draft));
}

struct Case {
  const char* name;
  const char* source;
  std::optional<SchemeId> to = {};
  const char* dialect = "";
};

class EveryPart : public ::testing::TestWithParam<Case> {};

TEST_P(EveryPart, IsReadOnce) {
  const TempDir dir;
  const Checkpoint source = Checkpoint::open(fixture(GetParam().source));
  Counts read;
  const Checkpoint seen = counted(source, read);
  Recipe recipe;
  recipe.to = GetParam().to;
  recipe.choices.dialect = GetParam().dialect;
  ingot::testing::resolve(recipe, seen);
  const Plan plan = ingot::testing::plan_for(seen, recipe);
  read.clear();
  execute(plan, dir / "out", {});
  std::size_t n_scales = 0;
  const bool keeps_codes = std::ranges::any_of(plan.tensors, [&](const PlannedTensor& planned) {
    return (planned.action == Action::kCopy || planned.action == Action::kRewrap) &&
           is_quantized(planned.to);
  });
  for (const PlannedTensor& planned : plan.tensors) {
    if (planned.n_parts == 0) continue;
    plan.tensor_of(planned).encoding.stored.for_each([&](formats::Part part, std::uint32_t i) {
      const formats::StoredTensor& stored = source.stored()[i];
      if (keeps_codes && part != formats::Part::kWeight) {
        EXPECT_GE(read[stored.name], stored.n_bytes) << stored.name;
      } else {
        EXPECT_EQ(read[stored.name], stored.n_bytes) << stored.name;
      }
      n_scales += part == formats::Part::kScale ? 1 : 0;
    });
  }
  EXPECT_GT(n_scales, 0U);
}

INSTANTIATE_TEST_SUITE_P(
    Conversions, EveryPart,
    ::testing::Values(Case{"Decoded", "glm4_moe_fp8_block", SchemeId::kBf16},
                      Case{"EncodedInSets", "qwen3_moe_gptq", SchemeId::kNvfp4},
                      Case{"Encoded", "qwen3_moe_gptq_asym", SchemeId::kFp8Channel},
                      Case{"Kept", "deepseek_v4_nvfp4"},
                      Case{"Rewrapped", "qwen3_moe_awq", std::nullopt, "compressed-tensors"}),
    [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace ingot::convert
