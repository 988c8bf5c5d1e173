#include "verify/weights/weight_check.h"

#include "formats/base/stop_scope.h"
#include "formats/checkpoint/stored_facts.h"
#include "formats/container/bfloat16.h"
#include "formats/container/float8.h"
#include "formats/json/json.h"
#include "tests/convert/conversion.h"
#include "tests/convert/targets.h"
#include "tests/inference/weights/crafted.h"
#include "tests/support/test.h"
#include "tests/support/tiny_checkpoint.h"
#include "verify/gates/report.h"
#include "verify/structure/compared_checkpoint.h"
#include "verify/verification.h"
#include "verify/weights/stack_sides.h"

namespace ingot::verify {
namespace {

using namespace ingot::testing;
using formats::SchemeId;

std::vector<float> numbers(std::size_t n) {
  std::vector<float> values(n);
  for (std::size_t i = 0; i < n; ++i)
    values[i] = std::sin(static_cast<float>(i) * 1.7F) * std::ldexp(0.1F, static_cast<int>(i % 5));
  return values;
}

TinyTensor f32(const std::string& name, std::vector<std::uint64_t> shape,
               const std::vector<float>& values) {
  return {name, "F32", std::move(shape), bytes_of(values)};
}

TinyTensor bf16(const std::string& name, std::vector<std::uint64_t> shape,
                const std::vector<float>& values) {
  std::vector<std::uint16_t> words;
  words.reserve(values.size());
  for (const float value : values) words.push_back(formats::bf16_from_float(value));
  return {name, "BF16", std::move(shape), bytes_of(words)};
}

WeightsReport compare(const std::vector<TinyTensor>& source, const std::vector<TinyTensor>& output,
                      const WeightsOptions& options = {}) {
  return compare_weights(Crafted(source).open(), Crafted(output).open(), options);
}

TensorWeights only(const TinyTensor& source, const TinyTensor& output) {
  const WeightsReport report = compare({source}, {output});
  EXPECT_EQ(report.tensors.size(), 1U);
  EXPECT_EQ(report.unmatched, 0U);
  return report.tensors.at(0);
}

TEST(WeightCheck, EqualBytesAreIdentical) {
  const auto values = numbers(60);
  const TensorWeights found = only(bf16("a", {6, 10}, values), bf16("a", {6, 10}, values));
  EXPECT_EQ(found.relation, Relation::kIdentical);
  EXPECT_EQ(found.sums.exact, 60U);
  EXPECT_EQ(found.sums.error2, 0);
  EXPECT_GT(found.sums.source2, 0);
  EXPECT_EQ(found.sums.cosine(), 1);
  EXPECT_EQ(found.from, "bf16");
  EXPECT_EQ(found.to, "bf16");
}

TEST(WeightCheck, OneBitIsAChange) {
  const TinyTensor source = bf16("a", {6, 10}, numbers(60));
  TinyTensor output = source;
  output.data[86] = static_cast<char>(output.data[86] ^ 1);
  const TensorWeights found = only(source, output);
  EXPECT_EQ(found.relation, Relation::kChanged);
  EXPECT_EQ(found.sums.exact, 59U);
  EXPECT_GT(found.sums.max_error, 0);
  EXPECT_EQ(found.sums.misrounded, 1U);
}

TEST(WeightCheck, MinusZeroForZeroIsAChange) {
  const TinyTensor source = f32("a", {2}, {0.0F, 1.0F});
  const TensorWeights found = only(source, f32("a", {2}, {-0.0F, 1.0F}));
  EXPECT_EQ(found.relation, Relation::kChanged);
  EXPECT_EQ(found.sums.exact, 2U);
}

TEST(WeightCheck, MatrixRoundedToBf16IsWellRounded) {
  const auto values = numbers(700);
  const TensorWeights found = only(f32("a", {7, 100}, values), bf16("a", {7, 100}, values));
  EXPECT_EQ(found.relation, Relation::kWidened);
  EXPECT_EQ(found.sums.misrounded, 0U);
  EXPECT_LT(found.sums.exact, 100U);
  EXPECT_GT(found.sums.cosine(), 0.9999);
}

// One number times powers of two, all of which BF16 rounds down by three eighths of a step.
TEST(WeightCheck, RoundingMayShiftAllValuesAlike) {
  std::vector<float> values(200);
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = std::ldexp(1 + 0x1.8p-9F, static_cast<int>(i % 7));
  const TensorWeights found = only(f32("a", {2, 100}, values), bf16("a", {2, 100}, values));
  const double shift = std::fabs(found.sums.fitted_scale() - 1);
  EXPECT_GT(shift, 0x1p-10);
  EXPECT_LE(shift, found.rounding_shift);
  EXPECT_LT(found.rounding_shift, 0x1.01p-8);
  EXPECT_EQ(found.sums.misrounded, 0U);
  EXPECT_EQ(only(bf16("a", {2, 100}, values), bf16("a", {2, 100}, values)).rounding_shift, 0);
}

TEST(WeightCheck, VectorIsNarrowedOnlyByLostBits) {
  const auto values = numbers(50);
  EXPECT_EQ(only(f32("a", {50}, values), bf16("a", {50}, values)).relation, Relation::kNarrowed);
  const std::vector<float> short_ones(50, 1.5F);
  EXPECT_EQ(only(f32("a", {50}, short_ones), bf16("a", {50}, short_ones)).relation,
            Relation::kWidened);
  EXPECT_EQ(only(bf16("a", {50}, short_ones), f32("a", {50}, short_ones)).relation,
            Relation::kWidened);
}

TEST(WeightCheck, RouterMatrixIsNarrowed) {
  TinyCheckpoint checkpoint = ingot::testing::tiny_deepseek_v3();
  const TempDir directory;
  checkpoint.write(directory / "output");
  const std::string name = "model.layers.1.mlp.gate.weight";
  tensor_of(checkpoint, name) = f32(name, {2, 8}, numbers(16));
  const std::string linear = "model.layers.0.mlp.gate_proj.weight";
  TinyTensor& gate = tensor_of(checkpoint, linear);
  gate = f32(linear, gate.shape, numbers(gate.shape[0] * gate.shape[1]));
  checkpoint.write(directory / "source");
  const WeightsReport report =
      compare_weights(formats::Checkpoint::open(directory / "source"),
                      formats::Checkpoint::open(directory / "output"), {.threads = 1});
  EXPECT_GT(report.tensors.size(), 20U);
  for (const TensorWeights& tensor : report.tensors) {
    const Relation expected = tensor.name == name     ? Relation::kNarrowed
                              : tensor.name == linear ? Relation::kWidened
                                                      : Relation::kIdentical;
    EXPECT_EQ(tensor.relation, expected) << tensor.name;
  }
}

TEST(WeightCheck, RawNumbersAreComparedAsBytes) {
  const TinyTensor source{"a", "I64", {3}, bytes_of(std::vector<std::int64_t>{1, 2, 3})};
  EXPECT_EQ(only(source, source).relation, Relation::kIdentical);
  EXPECT_EQ(only(source, source).sums.exact, 3U);
  TinyTensor output = source;
  output.data[8] = 5;
  EXPECT_EQ(only(source, output).relation, Relation::kChanged);
  EXPECT_EQ(only(source, output).sums.exact, 2U);
  const TinyTensor other{"a", "I32", {3}, bytes_of(std::vector<std::int32_t>{1, 2, 3})};
  EXPECT_EQ(only(source, other).relation, Relation::kChanged);
  EXPECT_EQ(only(source, other).sums.exact, 0U);
}

TEST(WeightCheck, UnmatchedTensorsAreCounted) {
  const auto values = numbers(12);
  const WeightsReport report =
      compare({f32("a", {12}, values), f32("gone", {12}, values), f32("turned", {3, 4}, values)},
              {f32("turned", {4, 3}, values), f32("a", {12}, values), f32("new", {12}, values)});
  ASSERT_EQ(report.tensors.size(), 1U);
  EXPECT_EQ(report.tensors[0].name, "a");
  EXPECT_EQ(report.unmatched, 3U);
}

TEST(WeightCheck, NonfiniteValuesNameTheirSide) {
  auto values = numbers(40);
  values[7] = std::nanf("");
  auto output = values;
  output[9] = INFINITY;
  const TensorWeights found = only(f32("a", {2, 20}, values), bf16("a", {2, 20}, output));
  EXPECT_EQ(found.sums.source_nonfinite, 1U);
  EXPECT_EQ(found.sums.nonfinite, 1U);
  EXPECT_EQ(only(f32("a", {40}, values), f32("a", {40}, values)).relation, Relation::kIdentical);
}

/// Experts stacked: E4M3 codes [3, 130, 150] under a scale per block, every matrix with a grid of
/// its own, and their decoded values.
struct Stack {
  std::vector<TinyTensor> fp8;
  std::vector<float> values;
};

Stack stack() {
  constexpr std::size_t kE = 3, kN = 130, kK = 150;
  Stack made;
  std::vector<std::uint8_t> codes(kE * kN * kK);
  std::vector<float> scales(kE * 2 * 2);
  for (std::size_t i = 0; i < scales.size(); ++i) scales[i] = 0.01F * static_cast<float>(i + 1);
  for (std::size_t i = 0; i < codes.size(); ++i) {
    codes[i] = static_cast<std::uint8_t>(i * 2654435761U >> 7);
    if ((codes[i] & 0x7FU) == 0x7F) codes[i] = 1;
    const std::size_t e = i / (kN * kK), row = i / kK % kN, col = i % kK;
    made.values.push_back(formats::float_from_e4m3(codes[i]) *
                          scales[(e * 2 + row / 128) * 2 + col / 128]);
  }
  const std::string name = "model.layers.1.mlp.experts.down_proj";
  made.fp8 = {{name, "F8_E4M3", {kE, kN, kK}, bytes_of(codes)},
              {name + "_scale_inv", "F32", {kE, 2, 2}, bytes_of(scales)}};
  return made;
}

TEST(WeightCheck, StackedMatricesHaveTheirOwnScales) {
  const Stack source = stack();
  const std::vector<TinyTensor> f32_stack = {f32(source.fp8[0].name, {3, 130, 150}, source.values)};
  const TensorWeights widened = compare(source.fp8, f32_stack).tensors.at(0);
  EXPECT_EQ(widened.relation, Relation::kWidened);
  EXPECT_EQ(widened.sums.exact, 3U * 130 * 150);
  const TensorWeights quantized = compare(f32_stack, source.fp8).tensors.at(0);
  EXPECT_EQ(quantized.relation, Relation::kQuantized);
  EXPECT_EQ(quantized.sums.exact, 3U * 130 * 150);
  EXPECT_EQ(quantized.sums.misrounded, 0U);
}

TEST(WeightCheck, DifferentScaleOfOneSchemeIsAChange) {
  const Stack source = stack();
  auto output = source.fp8;
  EXPECT_EQ(compare(source.fp8, output).tensors.at(0).relation, Relation::kIdentical);
  output[1].data[4 * 11] = static_cast<char>(output[1].data[4 * 11] ^ 1);
  EXPECT_EQ(compare(source.fp8, output).tensors.at(0).relation, Relation::kChanged);
}

TEST(WeightCheck, OnlyNewNanCodesCount) {
  const Stack source = stack();
  auto output = source.fp8;
  output[0].data[5000] = '\x7F';
  const TensorWeights changed = compare(source.fp8, output).tensors.at(0);
  EXPECT_EQ(changed.relation, Relation::kChanged);
  EXPECT_EQ(changed.sums.nonfinite, 1U);
  const TensorWeights same = compare(output, output).tensors.at(0);
  EXPECT_EQ(same.relation, Relation::kIdentical);
  EXPECT_EQ(same.sums.source_nonfinite, 1U);
  EXPECT_EQ(same.sums.cosine(), 1);
}

TEST(WeightCheck, EmptyTensorsAreIdentical) {
  const TensorWeights found = only(f32("a", {0, 5}, {}), f32("a", {0, 5}, {}));
  EXPECT_EQ(found.relation, Relation::kIdentical);
  EXPECT_EQ(found.sums, ElementSums{});
}

TEST(WeightCheck, LargeTensorIsComparedToItsLastValue) {
  // More than one thread takes at a time, of rows longer than a band, and of no round number of
  // either.
  const auto values = numbers(1300003);
  for (const std::vector<std::uint64_t>& shape :
       {std::vector<std::uint64_t>{1300003}, {100003, 13}, {13, 100003}, {1, 1300003}}) {
    const std::size_t n = shape.size() == 1 ? shape[0] : shape[0] * shape[1];
    std::vector<float> source(
        values.begin(), values.begin() + static_cast<std::ptrdiff_t>(std::min(n, values.size())));
    source.resize(n, 0.5F);
    std::vector<float> output = source;
    output.back() += 2;
    const WeightsReport one = compare({f32("a", shape, source)}, {f32("a", shape, output)});
    EXPECT_EQ(one.tensors[0].sums.elements, n);
    EXPECT_EQ(one.tensors[0].sums.exact, n - 1);
    EXPECT_EQ(one.tensors[0].sums.max_error, 2);
    const WeightsReport four =
        compare({f32("a", shape, source)}, {f32("a", shape, output)}, {.threads = 4});
    EXPECT_EQ(four.tensors[0].sums, one.tensors[0].sums);
  }
}

TEST(WeightCheck, SampleTakesBandsAllOverTheTensor) {
  const std::size_t rows = 4096, cols = 64;
  std::vector<float> values = numbers(rows * cols);
  std::vector<float> output = values;
  for (std::size_t i = 0; i < rows * cols; i += cols) output[i] += 1;  // one in every row
  const WeightsReport report = compare({f32("a", {rows, cols}, values)},
                                       {f32("a", {rows, cols}, output)}, {.sample = 0.125});
  const ElementSums& sums = report.tensors[0].sums;
  EXPECT_EQ(report.sample, 0.125);
  EXPECT_EQ(sums.elements, rows * cols / 8);
  EXPECT_EQ(sums.elements - sums.exact, rows / 8);
  EXPECT_EQ(report.tensors[0].relation, Relation::kChanged);
  // A fault in one quarter is seen in whichever quarter it is.
  for (std::size_t quarter = 0; quarter < 4; ++quarter) {
    output = values;
    for (std::size_t i = 0; i < rows / 4 * cols; ++i) output[quarter * rows / 4 * cols + i] += 1;
    const WeightsReport part = compare({f32("a", {rows, cols}, values)},
                                       {f32("a", {rows, cols}, output)}, {.sample = 0.02});
    EXPECT_EQ(part.tensors[0].relation, Relation::kChanged);
    EXPECT_LT(part.tensors[0].sums.elements, rows * cols / 32);
  }
}

TEST(WeightCheck, RefusesSamplesOfNothingAndOfTooMuch) {
  for (const double sample : {0.0, -1.0, 1.5, std::nan("")}) {
    expect_error(ErrorCode::kInvalidArgument, {"sample"},
                 [&] { compare({f32("a", {1}, {1})}, {f32("a", {1}, {1})}, {.sample = sample}); });
  }
}

TEST(WeightCheck, RefusesRowsBeyondTheMemoryLimit) {
  expect_error(ErrorCode::kLimit, {"--mem-limit"}, [&] {
    const auto values = numbers(5000);
    compare({f32("a", {5000}, values)}, {f32("a", {5000}, values)}, {.mem_limit = 10000});
  });
}

TEST(WeightCheck, StopsWhenAsked) {
  int polls = 0;
  bool has_begun = false;
  const StopScope stop([&] { return has_begun && ++polls == 2; }, "it ran");
  expect_error(ErrorCode::kInterrupted, {"stopped"}, [&] {
    compare({f32("a", {1}, {1}), f32("b", {1}, {1})}, {f32("a", {1}, {1}), f32("b", {1}, {1})},
            {.progress = [&](std::uint64_t, std::uint64_t) { has_begun = true; }});
  });
  EXPECT_EQ(polls, 2);
}

TEST(WeightCheck, ProgressEndsAtTheBytesOfBothSides) {
  std::uint64_t done = 0, total = 0;
  const auto values = numbers(300);
  compare({f32("a", {300}, values), f32("b", {300}, values)},
          {bf16("a", {300}, values), f32("b", {300}, values)},
          {.threads = 2, .progress = [&](std::uint64_t now, std::uint64_t all) {
             EXPECT_GE(now, done);
             done = now;
             total = all;
           }});
  EXPECT_EQ(done, 300U * (4 + 2 + 4 + 4));
  EXPECT_EQ(total, done);
}

// The figures of real conversions. Faults in their scales are tested in mutations/.

struct Case {
  std::string name;
  SchemeId to;
  double least_cosine;
  quantize::ScaleSearch search = quantize::ScaleSearch::kAmax;
  bool from_bf16 = false;
  std::optional<quantize::Fp8Grid> grid = {};
};

std::vector<Case> cases() {
  using quantize::Fp8Grid;
  using quantize::ScaleSearch;
  return {{"bf16", SchemeId::kBf16, 0.99999},
          {"f32", SchemeId::kF32, 1},
          {"int8", SchemeId::kInt8Channel, 0.9995},
          {"int8_block", SchemeId::kInt8Block, 0.9995},
          {"fp8_channel", SchemeId::kFp8Channel, 0.9995},
          {"fp8_tensor", SchemeId::kFp8Tensor, 0.9995},
          {"fp8_block", SchemeId::kFp8Block, 0.9995, ScaleSearch::kAmax, true, Fp8Grid::kAmax},
          {"fp8_ue8m0", SchemeId::kFp8Block, 0.9995, ScaleSearch::kAmax, true, Fp8Grid::kUe8m0},
          {"mxfp8", SchemeId::kMxfp8, 0.9995},
          {"nvfp4_amax", SchemeId::kNvfp4, 0.995},
          {"nvfp4_4over6", SchemeId::kNvfp4, 0.9955, ScaleSearch::kFourOverSix},
          {"nvfp4_mse", SchemeId::kNvfp4, 0.9965, ScaleSearch::kMse},
          {"mxfp4", SchemeId::kMxfp4, 0.991}};
}

void convert_as(const Case& wanted, const std::filesystem::path& to) {
  Conversion conversion(wanted.from_bf16 ? tiny_bf16() : tiny_v32(), to);
  conversion.recipe.to = wanted.to;
  conversion.recipe.choices.search = wanted.search;
  conversion.recipe.choices.fp8_grid = wanted.grid;
  conversion.run();
}

WeightsReport compare(const std::filesystem::path& source, const std::filesystem::path& output,
                      const WeightsOptions& options = {}) {
  return compare_weights(shard::open_source(source, {}), shard::open_source(output, {}), options);
}

std::uint64_t misrounded(const WeightsReport& report) {
  std::uint64_t sum = 0;
  for (const TensorWeights& tensor : report.tensors) sum += tensor.sums.misrounded;
  return sum;
}

bool operator==(const TensorWeights& a, const TensorWeights& b) {
  return a.name == b.name && a.relation == b.relation && a.sums == b.sums;
}

class ConvertedWeights : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Schemes, ConvertedWeights, ::testing::ValuesIn(cases()),
                         [](const auto& row) { return row.param.name; });

TEST_P(ConvertedWeights, AreRoundedToTheGridAndFloors) {
  const TempDir directory;
  convert_as(GetParam(), directory / "out");
  const WeightsReport report =
      compare(GetParam().from_bf16 ? tiny_bf16() : tiny_v32(), directory / "out");
  EXPECT_EQ(report.unmatched, 0U);
  EXPECT_EQ(misrounded(report), 0U);
  std::uint64_t converted = 0, saturated = 0, elements = 0;
  for (const TensorWeights& tensor : report.tensors) {
    EXPECT_EQ(tensor.sums.nonfinite, 0U);
    if (tensor.relation == Relation::kIdentical) {
      EXPECT_EQ(tensor.sums.exact, tensor.sums.elements) << tensor.name;
      continue;
    }
    // Loaders want some linears plain, whatever the others are.
    const bool is_quantized = formats::scheme_facts(*formats::find_scheme(tensor.to)).quantized;
    EXPECT_EQ(tensor.relation, is_quantized ? Relation::kQuantized : Relation::kWidened)
        << tensor.name;
    EXPECT_GE(tensor.sums.cosine(), GetParam().least_cosine) << tensor.name;
    EXPECT_NEAR(tensor.sums.fitted_scale(), 1, 0.05) << tensor.name;
    ++converted;
    saturated += tensor.sums.saturated;
    elements += tensor.sums.elements;
  }
  EXPECT_GT(converted, 20U);
  const bool may_cut =
      GetParam().to == SchemeId::kMxfp4 || GetParam().to == SchemeId::kMxfp8 ||
      (GetParam().to == SchemeId::kNvfp4 && GetParam().search != quantize::ScaleSearch::kAmax);
  if (!may_cut) {
    EXPECT_LT(saturated, elements / 1000);
  }
}

TEST(ConvertedWeights, ReportIgnoresThreads) {
  const TempDir directory;
  convert_as({"nvfp4", SchemeId::kNvfp4, 0}, directory / "out");
  const WeightsReport one = compare(tiny_v32(), directory / "out", {.threads = 1});
  const WeightsReport four = compare(tiny_v32(), directory / "out", {.threads = 4});
  ASSERT_EQ(one.tensors.size(), four.tensors.size());
  for (std::size_t i = 0; i < one.tensors.size(); ++i)
    EXPECT_TRUE(one.tensors[i] == four.tensors[i]) << one.tensors[i].name;
}

TEST(ConvertedWeights, RewrappedNvfp4IsIdenticalThoughItsGlobalsDivide) {
  const TempDir directory;
  convert_as({"nvfp4", SchemeId::kNvfp4, 0}, directory / "divides");
  Conversion rewrap(directory / "divides", directory / "multiplies");
  rewrap.recipe.to = {};
  rewrap.recipe.choices.dialect = "modelopt";
  rewrap.recipe.choices.activations = formats::Activations::kWeightOnly;
  rewrap.run();
  const formats::Checkpoint output = formats::Checkpoint::open(directory / "multiplies");
  ASSERT_EQ(output.dialect().name, "modelopt");
  const WeightsReport report = compare(directory / "divides", directory / "multiplies");
  std::size_t n_nvfp4 = 0;
  for (const TensorWeights& tensor : report.tensors) {
    if (tensor.from != "nvfp4") continue;
    ++n_nvfp4;
    EXPECT_EQ(tensor.relation, Relation::kIdentical) << tensor.name;
  }
  EXPECT_GT(n_nvfp4, 20U);
}

TEST(ConvertedWeights, SeeOneFlippedBitOfACode) {
  const TempDir directory;
  ingot::testing::copy_example(directory / "out");
  const std::string name = "model.layers.1.mlp.experts.2.up_proj.weight";
  const formats::Checkpoint checkpoint = formats::Checkpoint::open(directory / "out");
  for (const formats::StoredTensor& stored : checkpoint.stored()) {
    if (stored.name != name) continue;
    std::fstream file(directory / "out" / checkpoint.files()[stored.file].name,
                      std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(stored.offset + 1000));
    const int byte = file.get();
    file.seekp(static_cast<std::streamoff>(stored.offset + 1000));
    file.put(static_cast<char>(byte ^ 1));
  }
  const WeightsReport report = compare(tiny_v32(), directory / "out");
  for (const TensorWeights& tensor : report.tensors) {
    EXPECT_EQ(tensor.relation, tensor.name == name ? Relation::kChanged : Relation::kIdentical)
        << tensor.name;
  }
  EXPECT_EQ(worst_tensors(report, 1).at(0)->name, name);
}

}  // namespace
}  // namespace ingot::verify

// Weights that training programs saved in F32 under a config of fewer bits.

namespace ingot::testing {
namespace {

using formats::SchemeId;

constexpr const char* kBias = "model.layers.1.mlp.gate.e_score_correction_bias";

// Every tensor is in F32, with numbers that are none of BF16.
void write_saved(const std::filesystem::path& directory, const std::string& dtype) {
  TinyCheckpoint tiny = tiny_deepseek_v3();
  tiny.config.insert(tiny.config.rfind('}'), R"(, "dtype": ")" + dtype + "\"");
  for (TinyTensor& tensor : tiny.files.begin()->second) {
    std::uint64_t n = 1;
    for (const std::uint64_t side : tensor.shape) n *= side;
    tensor.dtype = "F32";
    for (std::uint64_t i = 0; i < n; ++i) {
      const float value = 0.0123F + static_cast<float>(i) * 0.00321F;
      tensor.data.append(reinterpret_cast<const char*>(&value), sizeof value);
    }
  }
  tiny.write(directory);
}

std::map<std::string, formats::DType> dtypes_of(const std::filesystem::path& directory) {
  std::map<std::string, formats::DType> dtypes;
  const Fd file = Fd::open_for_reading(directory / "model.safetensors");
  for (const formats::StoredTensor& tensor : formats::read_safetensors_header(file).tensors)
    dtypes[tensor.name] = tensor.dtype;
  return dtypes;
}

TEST(SavedWidth, AllButWhatReleasesKeepIsCast) {
  for (const auto& [dtype, to, stored] :
       {std::tuple("bfloat16", SchemeId::kBf16, formats::DType::kBf16),
        std::tuple("float16", SchemeId::kF16, formats::DType::kF16)}) {
    SCOPED_TRACE(dtype);
    const TempDir directory;
    write_saved(directory / "in", dtype);
    Conversion conversion(directory / "in", directory / "out");
    conversion.recipe.to = to;
    conversion.run();
    for (const auto& [name, found] : dtypes_of(directory / "out"))
      EXPECT_EQ(found, name == kBias ? formats::DType::kF32 : stored) << name;
    // A norm that lost bits is no fault of an output whose source says so, with manifest or not.
    for (const bool has_manifest : {true, false}) {
      if (!has_manifest) std::filesystem::remove(directory / "out" / formats::kManifestName);
      const verify::Report report = verify::verify_pair(directory / "in", directory / "out",
                                                        {.levels = {verify::Level::kWeights}});
      EXPECT_TRUE(report.passed()) << has_manifest << verify::verdict_sentence(report);
    }
  }
}

TEST(SavedWidth, RulesComeFirst) {
  const TempDir directory;
  write_saved(directory / "in", "bfloat16");
  Conversion conversion(directory / "in", directory / "out");
  conversion.recipe.rules = {convert::parse_rule("role:final-norm=keep"),
                             convert::parse_rule("role:router-bias=bf16")};
  conversion.run();
  const auto dtypes = dtypes_of(directory / "out");
  EXPECT_EQ(dtypes.at("model.norm.weight"), formats::DType::kF32);
  EXPECT_EQ(dtypes.at(kBias), formats::DType::kBf16);
}

// The config says F32, or another target: nothing would change.
TEST(SavedWidth, ATargetThatChangesNothingIsRefused) {
  const TempDir directory;
  write_saved(directory / "f32", "float32");
  write_saved(directory / "bf16", "bfloat16");
  const auto refuse = [&](const char* source, SchemeId to) {
    Conversion conversion(directory / source, directory / "out");
    conversion.recipe.to = to;
    expect_error(ErrorCode::kInvalidArgument, {"--to", "no weight takes it", "--rule"},
                 [&] { conversion.run(); });
  };
  refuse("f32", SchemeId::kBf16);
  refuse("bf16", SchemeId::kF16);
  Conversion(directory / "bf16", directory / "cast").run();
  // The bias is F32, and no weight.
  std::filesystem::rename(directory / "cast", directory / "plain");
  refuse("plain", SchemeId::kF32);
  Conversion again(directory / "plain", directory / "again");
  EXPECT_NO_THROW(again.run());
}

}  // namespace
}  // namespace ingot::testing

namespace ingot::verify {
namespace {

using namespace ingot::testing;

constexpr std::uint64_t kExperts = 4, kWidth = 24, kHidden = 40;

/// Random stacks, [experts, outputs, inputs], whose channels of the hidden state are as strong as
/// `spread` makes them, in a model whose rows say `order`.
std::vector<StackSides> measured(double spread, const std::string& order) {
  std::mt19937_64 random(7);
  std::normal_distribution<double> normal;
  std::vector<double> channels(kHidden);
  for (double& channel : channels) channel = std::exp(spread * normal(random));
  // As files have it; a row that says the other order takes the same bytes for transposed ones.
  const auto stack = [&](std::uint64_t rows, std::uint64_t cols, bool hidden_is_rows) {
    std::string data;
    for (std::uint64_t i = 0; i < kExperts * rows * cols; ++i) {
      const std::uint64_t channel = hidden_is_rows ? i / cols % rows : i % cols;
      const auto value = static_cast<float>(channels[channel] * normal(random));
      data.append(reinterpret_cast<const char*>(&value), sizeof value);
    }
    return data;
  };
  TinyCheckpoint tiny;
  tiny.config = R"({"model_type": "odd", "hidden_size": 40, "num_hidden_layers": 1,
      "num_experts": 4, "moe_intermediate_size": 24})";
  tiny.files["model.safetensors"] = {{"layers.0.experts.gate_up_proj",
                                      "F32",
                                      {kExperts, 2 * kWidth, kHidden},
                                      stack(2 * kWidth, kHidden, false)},
                                     {"layers.0.experts.down_proj",
                                      "F32",
                                      {kExperts, kHidden, kWidth},
                                      stack(kHidden, kWidth, true)}};
  const TempDir dir;
  tiny.write(dir.path());
  std::ofstream(dir / "ingot-family.yaml")
      << "family: odd\ntensors:\n"
      << "- {name: \"layers.{layer}.experts.gate_up_proj\", role: experts-gate-up, stack: " << order
      << ", shape: [num_experts, 48, 40], present: stacked}\n"
      << "- {name: \"layers.{layer}.experts.down_proj\", role: experts-down, stack: " << order
      << ", shape: [num_experts, 40, 24], present: stacked}\n";
  return measure_stacks(formats::Checkpoint::open(dir.path()));
}

TEST(StackSides, AgreeWithARowThatIsRight) {
  for (const StackSides& sides : measured(0.5, "output-major")) {
    EXPECT_TRUE(sides.is_told) << stack_text(sides);
    EXPECT_TRUE(sides.is_as_row_says) << stack_text(sides);
    EXPECT_GT(sides.sure, 0.99);
    EXPECT_NE(stack_text(sides).find("values agree"), std::string::npos);
  }
}

TEST(StackSides, ContradictARowThatIsTransposed) {
  const std::vector<StackSides> found = measured(0.5, "input-major");
  EXPECT_EQ(found.size(), 2U);
  for (const StackSides& sides : found) {
    EXPECT_TRUE(sides.is_told) << stack_text(sides);
    EXPECT_FALSE(sides.is_as_row_says) << stack_text(sides);
    EXPECT_NE(stack_text(sides).find("transposed (9"), std::string::npos) << stack_text(sides);
  }
}

TEST(StackSides, TellNothingOfRandomNumbers) {
  for (const StackSides& sides : measured(0, "output-major")) {
    EXPECT_FALSE(sides.is_told) << stack_text(sides);
    EXPECT_LT(sides.sure, 0.999);
    EXPECT_NE(stack_text(sides).find("do not tell"), std::string::npos);
  }
}

// Outputs are judged by the requests to the conversion, which their manifest records.

using namespace ::testing;
namespace fs = std::filesystem;
using formats::SchemeId;
using ingot::testing::Conversion;
using ingot::testing::TempDir;
using ingot::testing::tiny_v32;

Report weights_of(const fs::path& source, const fs::path& output) {
  return verify_pair(source, output, {.levels = {Level::kWeights}});
}

std::vector<std::string> failed(const Report& report) {
  std::vector<std::string> gates;
  for (const GateResult& result : report.gates)
    if (!result.passed) gates.push_back(result.gate.metric);
  return gates;
}

struct Asked {
  std::string name;
  void (*ask)(convert::Recipe& recipe);
  std::string fails;                    // without the manifest
  std::optional<SchemeId> source = {};  // else as released
};

class WantedOption : public ::testing::TestWithParam<Asked> {
 protected:
  TempDir directory_;
};

TEST_P(WantedOption, CountsWhereTheManifestSaysIt) {
  fs::path source = tiny_v32();
  if (GetParam().source) {
    Conversion made(source, directory_ / "source");
    made.recipe.to = GetParam().source;
    made.recipe.choices.fp8_grid = quantize::Fp8Grid::kAmax;
    // Others may be the source's own, whose values are BF16's.
    made.recipe.choices.search = quantize::ScaleSearch::kAmax;
    if (GetParam().source == SchemeId::kF16)  // it has values that BF16 lacks
      made.recipe.rules.push_back(convert::parse_rule("role:router-bias=f16"));
    made.run();
    source = made.output;
  }
  Conversion conversion(source, directory_ / "output");
  GetParam().ask(conversion.recipe);
  conversion.run();
  const Report asked = weights_of(source, conversion.output);
  EXPECT_THAT(failed(asked), IsEmpty());
  EXPECT_THAT(asked.wanted, HasSubstr("judged as asked for: --"));
  fs::remove(conversion.output / formats::kManifestName);
  const Report silent = weights_of(source, conversion.output);
  EXPECT_THAT(failed(silent), Contains(GetParam().fails));
  EXPECT_THAT(silent.wanted, HasSubstr("no ingot.json names the options of the conversion"));
}

INSTANTIATE_TEST_SUITE_P(
    EveryOption, WantedOption,
    ::testing::Values(Asked{"via_bf16",
                            [](convert::Recipe& recipe) {
                              recipe.to = SchemeId::kInt8Channel;
                              recipe.choices.via = convert::Via::kBf16;
                              recipe.choices.search = quantize::ScaleSearch::kAmax;
                            },
                            "weights.misrounded", SchemeId::kFp8Channel},
                      Asked{"fp8_grid",
                            [](convert::Recipe& recipe) {
                              recipe.to = SchemeId::kFp8Block;
                              recipe.choices.fp8_grid = quantize::Fp8Grid::kAmax;
                            },
                            "weights.changed"},
                      Asked{"narrowing_rule",
                            [](convert::Recipe& recipe) {
                              recipe.to.reset();
                              recipe.rules.push_back(convert::parse_rule("role:router-bias=bf16"));
                            },
                            "weights.narrowed"},
                      Asked{"narrowing_rule_of_two_terms",
                            [](convert::Recipe& recipe) {
                              recipe.to.reset();
                              recipe.rules.push_back(
                                  convert::parse_rule("layers:1-4 & role:router-bias=bf16"));
                            },
                            "weights.narrowed"},
                      Asked{"rule_of_equal_bits",
                            [](convert::Recipe& recipe) {
                              recipe.to.reset();
                              recipe.rules.push_back(convert::parse_rule("layers:1-4=bf16"));
                            },
                            "weights.narrowed", SchemeId::kF16}),
    [](const auto& row) { return row.param.name; });

TEST(Wanted, TakesNoOtherOptionForLeave) {
  const TempDir directory;
  Conversion conversion(tiny_v32(), directory / "output");
  conversion.recipe.to = SchemeId::kInt8Channel;
  conversion.recipe.choices.via = convert::Via::kBf16;
  conversion.run();
  formats::Manifest manifest = *formats::read_manifest(conversion.output);
  formats::Json recipe = manifest.recipe;
  recipe["choices"]["via"] = "f32";
  manifest.recipe = recipe;
  const Wanted wanted = wanted_of(manifest);
  EXPECT_FALSE(wanted.via_bf16);
  EXPECT_TRUE(wanted.is_recorded);
  EXPECT_THAT(wanted.sentence(), IsEmpty());
}

}  // namespace
}  // namespace ingot::verify
