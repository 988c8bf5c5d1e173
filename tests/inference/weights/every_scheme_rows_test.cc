#include "formats/family/families.h"
#include "tests/convert/plain_decode.h"
#include "tests/convert/program_decode.h"
#include "tests/inference/weights/variants.h"
#include "tests/support/test.h"

// The values held in memory are those that quantize decodes, bit for bit, of wholes and of parts.

namespace ingot::inference {
namespace {

using formats::LogicalTensor;
using namespace ingot::testing;

// The first element of a part that is not that of the whole.
std::string difference(const std::vector<float>& of_whole, std::size_t whole_cols,
                       const std::vector<float>& of_part, Range rows, Range cols) {
  for (std::size_t r = 0; r < rows.count; ++r) {
    for (std::size_t c = 0; c < cols.count; ++c) {
      const float is = of_part[r * cols.count + c];
      const float was = of_whole[(rows.first + r) * whole_cols + cols.first + c];
      if (std::bit_cast<std::uint32_t>(is) != std::bit_cast<std::uint32_t>(was))
        return fmt::format("row {}, column {} is {}, not {}", r, c, is, was);
    }
  }
  return "";
}

// Parts whose edges lie in and between groups.
std::vector<std::pair<Range, Range>> parts_of(const LogicalTensor& tensor) {
  const std::size_t n = tensor.shape[0], k = tensor.shape[1];
  const std::size_t step = 32;
  std::vector<std::pair<Range, Range>> parts;
  const Range some_rows = {.first = n / 3, .count = n - n / 3 - n / 5};
  parts.emplace_back(some_rows, all(k));
  parts.emplace_back(Range{.first = n - 1, .count = 1}, all(k));
  if (k >= 3 * step) {
    const std::size_t middle = k / 2 / step * step;
    parts.emplace_back(all(n), Range{.first = 0, .count = middle});
    parts.emplace_back(all(n), Range{.first = middle, .count = k - middle});
    parts.emplace_back(some_rows, Range{.first = step, .count = step});
  }
  return parts;
}

void expect_decodes_as_quantize_does(const std::filesystem::path& directory, formats::SchemeId id,
                                     std::size_t at_least) {
  const formats::Checkpoint source = formats::Checkpoint::open(directory);
  const WeightStore store(source, Profile::kF32, 2);
  std::size_t n_compared = 0;
  for (const LogicalTensor& tensor : source.tensors()) {
    if (tensor.encoding.scheme != id || tensor.shape.size() != 2) continue;
    const std::vector<float> values = decoded(source, tensor);
    const Linear linear = whole(store, tensor);
    const std::size_t k = tensor.shape[1];
    EXPECT_EQ(difference(values, k, decoded_rows(linear), all(tensor.shape[0]), all(k)), "")
        << tensor.name;
    EXPECT_EQ(linear.n_bytes(), store.bytes_of({.name = tensor.name,
                                                .whole = tensor.shape,
                                                .rows = all(tensor.shape[0]),
                                                .cols = all(k)}));
    EXPECT_EQ(linear.rounding(), WeightRounding::kExact);
    // Experts are many and alike.
    if (n_compared++ % 4 != 0) continue;
    for (const auto& [rows, cols] : parts_of(tensor)) {
      const Linear part = store.linear(tensor.name, tensor.shape[0], k, rows, cols);
      EXPECT_EQ(difference(values, k, decoded_rows(part), rows, cols), "")
          << tensor.name << " rows from " << rows.first << ", columns from " << cols.first;
      EXPECT_EQ(
          part.n_bytes(),
          store.bytes_of({.name = tensor.name, .whole = tensor.shape, .rows = rows, .cols = cols}));
      // Rows of a part, as the model cuts heads.
      if (rows.count < 2) continue;
      const quantize::CodedMatrix last = part.weight().row_range(rows.count - 1, 1);
      std::vector<float> row(cols.count);
      decode_row(last, 0, row);
      EXPECT_EQ(difference(values, k, row, {rows.first + rows.count - 1, 1}, cols), "");
    }
  }
  EXPECT_GE(n_compared, at_least);
}

class EverySchemeRows : public ::testing::TestWithParam<Target> {};
INSTANTIATE_TEST_SUITE_P(Dialects, EverySchemeRows, ::testing::ValuesIn(first_targets()),
                         target_name);
INSTANTIATE_TEST_SUITE_P(SlowDialects, EverySchemeRows,
                         ::testing::ValuesIn(all_targets_but(first_targets())), target_name);

TEST_P(EverySchemeRows, AreWhatQuantizeDecodes) {
  expect_decodes_as_quantize_does(variant(GetParam()), GetParam().storage->scheme, 30);
}

TEST(PlainRows, AreWhatQuantizeDecodes) {
  expect_decodes_as_quantize_does(ingot::testing::small_bf16(), formats::SchemeId::kBf16, 70);
}

// Ragged widths, and FP32 scales that are no powers of two.
TEST(SyntheticRows, AreWhatQuantizeDecodes) {
  expect_decodes_as_quantize_does(ingot::testing::synth_model(), formats::SchemeId::kFp8Block, 20);
}

TEST(WeightStore, ReadsRowsOfAPartOnly) {
  const formats::Checkpoint source = formats::Checkpoint::open(ingot::testing::tiny_bf16());
  const WeightStore store(source, Profile::kF32, 1);
  const Linear part =
      store.linear("model.embed_tokens.weight", 2048, 256, {.first = 100, .count = 3}, all(256));
  EXPECT_EQ(part.n_bytes(), 3U * 256 * 2);
  EXPECT_EQ(store.bytes_read(), 3U * 256 * 2);
  // Rows cut by columns are read from the first to the last byte.
  const Linear columns = store.linear("model.embed_tokens.weight", 2048, 256,
                                      {.first = 0, .count = 2}, {.first = 64, .count = 32});
  EXPECT_EQ(columns.n_bytes(), 2U * 32 * 2);
  EXPECT_EQ(store.bytes_read(), 3U * 256 * 2 + 256 * 2 + 32 * 2);
}

TEST(WeightStore, ReadsTheSameOnAnyNumberOfThreads) {
  // Larger than a band of reading.
  const TempDir directory;
  formats::write_synthetic_checkpoint(directory / "m",
                                      {.family = formats::find_family("deepseek_v3"),
                                       .size = formats::SynthSize::kTiny,
                                       .layers = 2,
                                       .hidden = 1024,
                                       .vocab = 6000,
                                       .fp8 = false});
  const formats::Checkpoint source = formats::Checkpoint::open(directory / "m");
  const Range rows = {.first = 1, .count = 5998};
  for (const Range cols : {all(1024), Range{.first = 16, .count = 1008}}) {
    std::vector<float> first;
    for (const std::size_t threads : {1U, 3U, 8U}) {
      const WeightStore store(source, Profile::kF32, threads);
      const auto values =
          decoded_rows(store.linear("model.embed_tokens.weight", 6000, 1024, rows, cols));
      if (first.empty()) first = values;
      EXPECT_TRUE(values == first) << threads << " threads";
    }
    const auto& tensors = source.tensors();
    const auto embedding = std::find_if(tensors.begin(), tensors.end(), [](const auto& tensor) {
      return tensor.name == "model.embed_tokens.weight";
    });
    EXPECT_EQ(difference(decoded(source, *embedding), 1024, first, rows, cols), "");
  }
}

TEST(WeightStore, DecodesSmallTensors) {
  const formats::Checkpoint source = formats::Checkpoint::open(ingot::testing::tiny_v32());
  const WeightStore store(source, Profile::kNative, 1);
  EXPECT_TRUE(store.has("model.norm.weight"));
  EXPECT_FALSE(store.has("model.norm.bias"));
  const auto stored = ingot::testing::read_output(ingot::testing::tiny_v32());
  for (const char* name :
       {"model.norm.weight", "model.layers.1.mlp.gate.e_score_correction_bias"}) {
    const auto& tensor = stored.at(name);
    EXPECT_EQ(store.vector(name, tensor.shape), ingot::testing::code_values(tensor)) << name;
  }
}

}  // namespace
}  // namespace ingot::inference
