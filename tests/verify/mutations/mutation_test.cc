#include "formats/checkpoint/checkpoint.h"
#include "formats/container/bfloat16.h"
#include "formats/container/float8.h"
#include "formats/storage/block_scales.h"
#include "quantize/kernels/code_encode.h"
#include "tests/convert/targets.h"
#include "tests/support/contains_pattern.h"
#include "tests/support/edited_weights.h"
#include "tests/support/test.h"
#include "tests/verify/mutations/fault.h"
#include "tests/verify/mutations/good_conversions.h"
#include "tests/verify/mutations/verdict.h"
#include "verify/structure/compared_checkpoint.h"
#include "verify/weights/weight_check.h"

// The faults that separate best, in every scheme: scales a little off or in another's place, and
// one code. The model is random and its scales are no powers of two: where the values of a source
// lie on the grid of the output, a factor moves all of them and none beyond half a step.

namespace ingot::testing {
namespace {

using ::testing::HasSubstr;

constexpr const char* kModule = "model.layers.1.mlp.experts.1.up_proj";

class FaultInScheme : public ::testing::TestWithParam<Target> {
 protected:
  // A copy that holds the same files: a changed one takes the place of its link.
  void SetUp() override {
    std::filesystem::copy(converted(), directory_ / "output",
                          std::filesystem::copy_options::recursive |
                              std::filesystem::copy_options::create_hard_links);
  }

  // The conversion of the row, made once per process.
  [[nodiscard]] const std::filesystem::path& converted() const {
    static const TempDir directory;
    static std::map<std::string, std::filesystem::path> made;
    const std::string name = fmt::format("{}-{}", GetParam().name(), static_cast<int>(search_));
    const auto [at, is_new] = made.try_emplace(name, directory / name);
    if (!is_new) return at->second;
    Conversion conversion(synth_model(), at->second);
    GetParam().apply(conversion.recipe);
    conversion.recipe.choices.search = search_;
    conversion.run();
    forget_the_conversion(conversion.output);
    return at->second;
  }

  // Changes the parts of the module that hold codes, or those that hold block scales.
  void change(bool scales, const std::function<void(EditedTensor&)>& body) const {
    EditedWeights weights(directory_ / "output");
    std::size_t n_changed = 0;
    for (const std::string& name : weights.names(std::string(kModule) + ".weight")) {
      const bool is_scale = name.ends_with(".weight_scale") || name.ends_with(".weight_scale_inv");
      const bool is_code = name.ends_with(".weight") || name.ends_with(".weight_packed");
      if (scales ? !is_scale : !is_code) continue;
      body(weights.at(name));
      ++n_changed;
    }
    ASSERT_EQ(n_changed, 1U);
    weights.save();
  }

  void expect_rejected() const {
    const Verdict verdict = judge_default(synth_model(), directory_ / "output");
    EXPECT_FALSE(verdict.passed) << "nobody noticed";
    EXPECT_THAT(verdict.text, ::testing::HasSubstr(kModule));
  }

  TempDir directory_;
  quantize::ScaleSearch search_ = quantize::ScaleSearch::kMse;
};

// 1.01 times an F32 scale; of fewer bits, the next larger one.
TEST_P(FaultInScheme, SlightlyWrongScalesAreSeen) {
  change(true, [](EditedTensor& scale) {
    if (scale.dtype == formats::DType::kF32) {
      scale.map<float>([](float value) { return value * 1.01F; });
    } else if (scale.dtype == formats::DType::kBf16) {
      scale.map<std::uint16_t>(
          [](std::uint16_t word) { return static_cast<std::uint16_t>(word + 1); });
    } else {
      scale.map<std::uint8_t>(
          [](std::uint8_t code) { return static_cast<std::uint8_t>(code + 1); });
    }
  });
  expect_rejected();
}

// The second lowest bit of a byte: two steps of INT8, more of the others.
TEST_P(FaultInScheme, IsSeenInOneBitOfACode) {
  change(false, [](EditedTensor& codes) {
    codes.set<std::uint8_t>(321, codes.get<std::uint8_t>(321) ^ 2U);
  });
  expect_rejected();
}

// Scales several times too large under codes that were rounded again from the source: no value is
// farther than half a step, which has grown.
class CoarseScheme : public FaultInScheme {
 protected:
  // `n` numbers from the first on; all of them: 0.
  void coarsen(std::size_t n) const {
    change(true, [n](EditedTensor& scale) {
      const bool is_float = scale.dtype == formats::DType::kF32;
      const bool is_bf16 = scale.dtype == formats::DType::kBf16;
      const std::size_t all = scale.bytes.size() / (formats::dtype_bits(scale.dtype) / 8);
      for (std::size_t i = 0; i < (n == 0 ? all : n); ++i) {
        if (is_float) {
          scale.set<float>(i, scale.get<float>(i) * 3);
        } else if (is_bf16) {
          scale.set<std::uint16_t>(i,
                                   static_cast<std::uint16_t>(scale.get<std::uint16_t>(i) + 256));
        } else {  // two more in the exponent, of E4M3 or of E8M0
          const bool is_e4m3 = scale.dtype == formats::DType::kF8E4M3;
          const int code = scale.get<std::uint8_t>(i) + (is_e4m3 ? 16 : 2);
          if (!is_e4m3 || code < 0x7F) scale.set<std::uint8_t>(i, static_cast<std::uint8_t>(code));
        }
      }
    });
    round_anew();
  }

 private:
  static std::vector<float> source_values() {
    const EditedWeights weights(synth_model());
    const EditedTensor& codes = weights.read(std::string(kModule) + ".weight");
    const EditedTensor& scales = weights.read(std::string(kModule) + ".weight_scale_inv");
    std::vector<float> values(codes.bytes.size());
    for (std::size_t i = 0; i < values.size(); ++i) {
      const std::size_t row = i / codes.shape[1], col = i % codes.shape[1];
      values[i] = formats::kE4m3Values[codes.get<std::uint8_t>(i)] *
                  scales.get<float>(row / 128 * scales.shape[1] + col / 128);
    }
    return values;
  }

  void round_anew() const {
    const std::string weight = std::string(kModule) + ".weight";
    const auto model = formats::Checkpoint::open(directory_ / "output");
    const auto tensors = model.tensors();
    const auto tensor = std::find_if(tensors.begin(), tensors.end(),
                                     [&](const auto& entry) { return entry.name == weight; });
    ASSERT_NE(tensor, tensors.end());
    const std::vector<float> scales = formats::read_block_scales(model, *tensor);
    std::vector<float> values = source_values();
    const auto rows = static_cast<std::size_t>(tensor->shape[0]);
    const auto cols = static_cast<std::size_t>(tensor->shape[1]);
    const quantize::ScaledGroups groups{
        .values = {.data = values.data(), .rows = rows, .cols = cols, .stride = cols},
        .block_rows = tensor->encoding.block_rows,
        .block_cols = tensor->encoding.block_cols,
        .scales = scales};
    change(false, [&](EditedTensor& codes) {
      auto* out = reinterpret_cast<std::byte*>(codes.bytes.data());
      const std::size_t stride = codes.bytes.size() / rows;
      quantize::scalar::encode_codes(formats::scheme_facts(tensor->encoding.scheme).code, groups,
                                     out, stride);
    });
  }
};

TEST_P(CoarseScheme, IsSeenInEveryGroup) {
  coarsen(0);
  expect_rejected();
}

TEST_P(CoarseScheme, IsSeenInOneGroup) {
  coarsen(1);
  expect_rejected();
}

INSTANTIATE_TEST_SUITE_P(EveryScheme, CoarseScheme, ::testing::ValuesIn(scheme_targets()),
                         target_name);

INSTANTIATE_TEST_SUITE_P(EveryScheme, FaultInScheme, ::testing::ValuesIn(scheme_targets()),
                         target_name);

// A search finds the same scale for all rows of a block, which were FP8 under it.
class NeighbourInScheme : public FaultInScheme {
 protected:
  NeighbourInScheme() { search_ = quantize::ScaleSearch::kAmax; }
};

// Four places on: four rows, or blocks of a row.
TEST_P(NeighbourInScheme, IsSeenWhereItsScaleIsTaken) {
  change(true, [](EditedTensor& scale) {
    const auto n_bytes = static_cast<std::ptrdiff_t>(formats::dtype_bits(scale.dtype) / 8 * 4);
    std::rotate(scale.bytes.begin(), scale.bytes.begin() + n_bytes, scale.bytes.end());
  });
  expect_rejected();
}

// Those that have many scales in so small a weight.
std::vector<Target> finely_scaled() {
  std::vector<Target> targets = scheme_targets();
  std::erase_if(targets, [](const Target& target) {
    const formats::SchemeId scheme = target.storage->scheme;
    return scheme == formats::SchemeId::kFp8Block || scheme == formats::SchemeId::kFp8Tensor ||
           scheme == formats::SchemeId::kInt8Block;
  });
  return targets;
}

INSTANTIATE_TEST_SUITE_P(EveryScheme, NeighbourInScheme, ::testing::ValuesIn(finely_scaled()),
                         target_name);

// Every fault of the tables is put into a good conversion, which is then compared with its source
// at the default levels: as the conversion left it, and without any record of its outputs.

std::vector<Fault> all_of(std::initializer_list<std::vector<Fault>> tables) {
  std::vector<Fault> all;
  for (const auto& table : tables) all.insert(all.end(), table.begin(), table.end());
  return all;
}

// Other bytes in weights, which hashes find whatever their values are. By default every third of
// each table, the others in slow tests: their values are compared, which takes the time.
std::vector<Fault> weight_faults(bool is_default) {
  std::vector<Fault> faults;
  for (const auto& table : {scale_faults(), code_faults(), module_faults(), model_faults()}) {
    for (std::size_t i = 0; i < table.size(); ++i) {
      if ((i % 3 == 0) == is_default) faults.push_back(table[i]);
    }
  }
  return faults;
}

std::vector<Fault> other_faults() {
  return all_of({slice_faults(), file_faults(), config_faults()});
}

// The verdict on a good conversion, with its manifest or without; computed once per process.
const Verdict& verdict_on_good(Good good, bool forgets) {
  static std::map<std::pair<Good, bool>, Verdict> known;
  const auto [at, is_new] = known.try_emplace({good, forgets});
  if (!is_new) return at->second;
  const TempDir directory;
  const Pair pair = copy_of_good(good, directory.path());
  if (forgets) forget_the_conversion(pair.output);
  return at->second = judge_default(pair.source, pair.output);
}

class Mutation : public ::testing::TestWithParam<Fault> {
 protected:
  static void expect_rejected(bool forgets) {
    const Fault& fault = GetParam();
    const Verdict& before = verdict_on_good(fault.good, forgets);
    ASSERT_TRUE(before.passed) << before.text;
    const TempDir directory;
    const Pair pair = copy_of_good(fault.good, directory.path());
    fault.apply(pair);
    if (forgets) forget_the_conversion(pair.output);
    const Verdict after = judge_default(pair.source, pair.output, fault.names);
    EXPECT_FALSE(after.passed) << "nobody noticed";
    EXPECT_THAT(after.text, ::testing::HasSubstr(std::string(fault.names)));
  }
};

TEST_P(Mutation, IsRejectedByNameWithoutManifestAndHashes) {
  expect_rejected(true);
}

class MutationBesideManifest : public Mutation {};

TEST_P(MutationBesideManifest, IsRejectedByName) {
  expect_rejected(false);
}

std::string fault_name(const ::testing::TestParamInfo<Fault>& row) {
  return std::string(row.param.name);
}

INSTANTIATE_TEST_SUITE_P(FirstFaults, Mutation,
                         ::testing::ValuesIn(all_of({weight_faults(true), other_faults()})),
                         fault_name);
INSTANTIATE_TEST_SUITE_P(SlowFaults, Mutation, ::testing::ValuesIn(weight_faults(false)),
                         fault_name);
INSTANTIATE_TEST_SUITE_P(ModuleFaults, MutationBesideManifest, ::testing::ValuesIn(module_faults()),
                         fault_name);
INSTANTIATE_TEST_SUITE_P(SlowFaults, MutationBesideManifest,
                         ::testing::ValuesIn(all_of({scale_faults(), code_faults(), model_faults(),
                                                     other_faults()})),
                         fault_name);

// The causes of misrounded values in a report.

const std::string kUpModule = "model.layers.2.mlp.experts.3.up_proj";

std::string cause_of(Good good, const std::function<void(const Pair&)>& damage) {
  const TempDir directory;
  const Pair pair = copy_of_good(good, directory.path());
  damage(pair);
  const verify::ComparedCheckpoint before = verify::open_compared(pair.source, {});
  const verify::ComparedCheckpoint after = verify::open_compared(pair.output, {});
  for (const verify::TensorWeights& tensor :
       verify::compare_weights(before.model, after.model, {}).tensors) {
    if (tensor.name != kUpModule + ".weight") continue;
    EXPECT_GT(tensor.sums.misrounded, 0U);
    return tensor.cause;
  }
  ADD_FAILURE() << "no such tensor";
  return {};
}

void edit_scale(const Pair& pair, const char* name, const std::function<float(float)>& change) {
  edit_tensor(pair.output, kUpModule + name,
              [&](EditedTensor& scale) { scale.map<float>(change); });
}

float bf16(float value) {
  return formats::float_from_bf16(formats::bf16_from_float(value));
}

// As llm-compressor computes for a BF16 model: scale = amax / 127.5, and the quotient, in BF16.
void quantize_in_bf16(const Pair& pair) {
  const EditedWeights source(pair.source);
  const EditedTensor& fp8 = source.read(kUpModule + ".weight");
  const EditedTensor& blocks = source.read(kUpModule + ".weight_scale_inv");
  EditedWeights output(pair.output);
  EditedTensor& codes = output.at(kUpModule + ".weight");
  EditedTensor& scales = output.at(kUpModule + ".weight_scale");
  const std::size_t cols = codes.shape[1];
  for (std::size_t row = 0; row < codes.shape[0]; ++row) {
    std::vector<float> values(cols);
    float amax = 0;
    for (std::size_t col = 0; col < cols; ++col) {
      values[col] = formats::kE4m3Values[fp8.get<std::uint8_t>(row * cols + col)] *
                    blocks.get<float>(row / 128 * blocks.shape[1] + col / 128);
      amax = std::max(amax, std::fabs(values[col]));
    }
    const float scale = bf16(amax / 127.5F);
    scales.set<float>(row, scale);
    for (std::size_t col = 0; col < cols; ++col) {
      const float code = std::nearbyint(bf16(values[col] / scale));
      codes.set<std::int8_t>(row * cols + col,
                             static_cast<std::int8_t>(std::clamp(code, -128.0F, 127.0F)));
    }
  }
  output.save();
}

TEST(MisroundingCause, NamesArithmeticInBf16) {
  EXPECT_THAT(cause_of(Good::kInt8, quantize_in_bf16), HasSubstr("BF16 arithmetic"));
}

TEST(MisroundingCause, NamesTheNeighboursScale) {
  EXPECT_THAT(
      cause_of(Good::kInt8,
               [](const Pair& pair) {
                 edit_tensor(pair.output, kUpModule + ".weight_scale", [](EditedTensor& scale) {
                   std::rotate(scale.bytes.begin(), scale.bytes.begin() + 4, scale.bytes.end());
                 });
               }),
      HasSubstr("neighbouring row"));
}

TEST(MisroundingCause, NamesTheNeighbouringBlock) {
  const auto rotate = [](const Pair& pair) {
    edit_tensor(pair.output, kUpModule + ".weight_scale", [](EditedTensor& scale) {
      const auto cols = static_cast<std::ptrdiff_t>(scale.shape[1]);
      for (auto row = scale.bytes.begin(); row != scale.bytes.end(); row += cols)
        std::rotate(row, row + 1, row + cols);
    });
  };
  EXPECT_THAT(cause_of(Good::kNvfp4Ct, rotate), HasSubstr("neighbouring block"));
}

TEST(MisroundingCause, NamesAReciprocal) {
  const auto invert = [](float scale) { return 1 / scale; };
  EXPECT_THAT(
      cause_of(Good::kInt8, [&](const Pair& pair) { edit_scale(pair, ".weight_scale", invert); }),
      HasSubstr("reciprocal of the scale"));
  EXPECT_THAT(cause_of(Good::kNvfp4Ct,
                       [&](const Pair& pair) { edit_scale(pair, ".weight_global_scale", invert); }),
              HasSubstr("reciprocal of the global scale"));
}

TEST(MisroundingCause, NamesASharedGlobal) {
  const auto part = [](const Pair& pair) {
    edit_scale(pair, ".weight_scale_2", [](float global) { return global * 1.37F; });
  };
  EXPECT_THAT(cause_of(Good::kNvfp4Modelopt, part),
              ::testing::AllOf(HasSubstr("shared with"), HasSubstr("experts.3.gate_proj")));
}

TEST(MisroundingCause, NamesAFactor) {
  const auto grow = [](float scale) { return scale * 1.01F; };
  EXPECT_THAT(
      cause_of(Good::kInt8, [&](const Pair& pair) { edit_scale(pair, ".weight_scale", grow); }),
      ContainsPattern("1\\.0(1|0999.|1000.) times"));
}

TEST(MisroundingCause, IsSilentWhereNoneExplainsTheFigures) {
  EXPECT_EQ(cause_of(Good::kInt8,
                     [](const Pair& pair) {
                       edit_tensor(pair.output, kUpModule + ".weight", [](EditedTensor& codes) {
                         for (std::size_t i = 0; i < codes.bytes.size(); i += 7)
                           codes.set<std::int8_t>(i, static_cast<std::int8_t>(i % 127));
                       });
                     }),
            "");
}

}  // namespace
}  // namespace ingot::testing
