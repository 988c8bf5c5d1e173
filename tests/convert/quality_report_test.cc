#include "convert/output/tensor_records.h"

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/records/manifest.h"
#include "tests/convert/conversion.h"
#include "tests/convert/plain_decode.h"
#include "tests/convert/program_decode.h"
#include "tests/convert/targets.h"
#include "tests/support/temp_dir.h"

// What a run reports of the error of its encodings, against sums taken here over the bytes.

namespace ingot::convert {
namespace {

using formats::SchemeId;
using namespace ingot::testing;
using ingot::testing::Target;

// Sums over one tensor, in long double and in order.
struct Sums {
  long double error2 = 0, reference2 = 0, product = 0;
  double max_error = 0;
  std::uint64_t elements = 0, zeroed = 0;

  void add(float value, float decoded) {
    const long double error = static_cast<long double>(value) - decoded;
    error2 += error * error;
    reference2 += static_cast<long double>(value) * value;
    product += static_cast<long double>(value) * decoded;
    max_error = std::max(max_error, std::abs(double{value} - double{decoded}));
    if (value != 0 && decoded == 0) ++zeroed;
    ++elements;
  }
};

class Quality : public ::testing::TestWithParam<Target> {
 protected:
  void SetUp() override {
    Conversion conversion(synth_model(), directory_ / "out");
    GetParam().apply(conversion.recipe);
    // FP8 blocks would be kept as they are on their own grid.
    conversion.recipe.choices.fp8_grid = quantize::Fp8Grid::kUe8m0;
    report_ = conversion.run();
    const auto checkpoint = formats::Checkpoint::open(directory_ / "out");
    const OutputTensors before = read_output(synth_model());
    for (const formats::LogicalTensor& tensor : checkpoint.tensors()) {
      if (tensor.encoding.scheme != GetParam().storage->scheme) continue;
      const std::vector<float> was = released_values(before, tensor.name);
      const std::vector<float> is = decoded(checkpoint, tensor);
      Sums& sums = by_tensor_[tensor.name];
      for (std::size_t i = 0; i < was.size(); ++i) sums.add(was[i], is[i]);
    }
  }
  std::vector<formats::TensorRecord> records() const {
    const auto manifest = formats::read_manifest(directory_ / "out");
    return formats::read_tensor_records(directory_ / "out" / formats::kRecordsName,
                                        manifest->records_hash);
  }

  TempDir directory_;
  ExecuteReport report_;
  std::map<std::string, Sums> by_tensor_;
};

INSTANTIATE_TEST_SUITE_P(Schemes, Quality, ::testing::ValuesIn(scheme_targets()),
                         [](const auto& row) { return test_name(row.param.name()); });

constexpr double kSlack = 1e-9;

TEST_P(Quality, IsThatOfTheBytesThatWereWritten) {
  // Per tensor, in the records.
  std::size_t n_measured = 0;
  for (const formats::TensorRecord& record : records()) {
    if (!record.error) {
      EXPECT_NE(record.action, "quantize") << record.name;
      continue;
    }
    ++n_measured;
    ASSERT_TRUE(by_tensor_.contains(record.name)) << record.name;
    const Sums& sums = by_tensor_.at(record.name);
    const auto relative = static_cast<double>(std::sqrt(sums.error2 / sums.reference2));
    EXPECT_NEAR(record.error->relative_error, relative, kSlack * relative) << record.name;
    EXPECT_NEAR(record.error->sqnr_db, -20 * std::log10(relative), 1e-6) << record.name;
    EXPECT_EQ(record.error->max_error, sums.max_error) << record.name;
    EXPECT_EQ(record.error->elements, sums.elements) << record.name;
    EXPECT_EQ(record.error->zeroed, sums.zeroed) << record.name;
    EXPECT_GT(record.error->cosine, 0.98) << record.name;
    EXPECT_LE(record.error->exact_blocks, record.error->blocks) << record.name;
    EXPECT_GT(record.error->blocks, 0U) << record.name;
  }
  EXPECT_EQ(n_measured, by_tensor_.size());

  // By scheme and role, in the report.
  Sums all;
  for (const auto& [name, sums] : by_tensor_) {
    all.error2 += sums.error2;
    all.reference2 += sums.reference2;
    all.elements += sums.elements;
  }
  double error2 = 0, reference2 = 0;
  std::uint64_t elements = 0, n_tensors = 0, blocks = 0;
  for (const QualityReport::Row& row : report_.quality.rows) {
    EXPECT_EQ(row.scheme, GetParam().storage->scheme);
    error2 += row.sums.error2;
    reference2 += row.sums.reference2;
    elements += row.sums.elements;
    n_tensors += row.n_tensors;
    blocks += row.sums.blocks;
  }
  EXPECT_EQ(elements, all.elements);
  EXPECT_EQ(n_tensors, by_tensor_.size());
  EXPECT_EQ(blocks, report_.quality.exact_blocks + report_.quality.rounded_blocks);
  EXPECT_NEAR(error2, static_cast<double>(all.error2), kSlack * error2);
  EXPECT_NEAR(reference2, static_cast<double>(all.reference2), kSlack * reference2);

  // The worst, largest error first.
  std::vector<std::pair<double, std::string>> order;
  for (const auto& [name, sums] : by_tensor_)
    order.emplace_back(-static_cast<double>(std::sqrt(sums.error2 / sums.reference2)), name);
  std::sort(order.begin(), order.end());
  const auto& worst = report_.quality.worst;
  ASSERT_EQ(worst.size(), std::min<std::size_t>(20, order.size()));
  for (std::size_t i = 0; i < worst.size(); ++i) {
    EXPECT_NEAR(worst[i].sums.relative_error(), -order[i].first, kSlack) << i;
    EXPECT_TRUE(i == 0 || worst[i - 1].sums.relative_error() >= worst[i].sums.relative_error());
  }
  EXPECT_GT(report_.quality.rounded_twice, 0U) << "the source was FP8";
}

TEST(QualityReport, IsEmptyForCopiesAndCasts) {
  const TempDir directory;
  const ExecuteReport report = Conversion(synth_model(), directory / "out").run();
  EXPECT_TRUE(report.quality.empty());
}

TEST(QualityReport, ATensorFromBf16IsRoundedOnce) {
  const TempDir directory;
  Conversion(synth_model(), directory / "bf16").run();
  Conversion conversion(directory / "bf16", directory / "out");
  conversion.recipe.to = SchemeId::kInt8Channel;
  EXPECT_EQ(conversion.run().quality.rounded_twice, 0U);
}

}  // namespace
}  // namespace ingot::convert
