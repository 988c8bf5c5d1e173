#include "check/check.h"
#include "convert/job/journal.h"
#include "convert/output/output_directory.h"
#include "convert/output/tensor_records.h"
#include "formats/json/json.h"
#include "formats/records/manifest.h"
#include "tests/check/findings.h"
#include "tests/convert/conversion.h"
#include "tests/convert/program_decode.h"
#include "tests/convert/targets.h"
#include "tests/support/test.h"

namespace ingot::convert {
namespace {

using namespace ingot::testing;
using formats::SchemeId;
using ingot::testing::Target;

TEST(Inspection, SeesFinishedFilesBeforePublication) {
  const TempDir directory;
  Conversion(synth_model(), directory / "plain").run();
  Conversion conversion(synth_model(), directory / "out");
  std::map<std::string, std::string> seen;
  std::vector<std::string> published;
  conversion.execute.inspect = [&](const std::filesystem::path& staged) {
    seen = tree(staged);
    published = top_level(conversion.output);
    return Inspection{};
  };
  EXPECT_FALSE(conversion.run().refused);
  EXPECT_TRUE(seen == tree(directory / "plain"));
  EXPECT_EQ(published, std::vector<std::string>{std::string(formats::kPartialName)});
  EXPECT_TRUE(tree(directory / "out") == tree(directory / "plain"));
}

TEST(Inspection, PublishesItsReportUnlistedInTheManifest) {
  const TempDir directory;
  Conversion(synth_model(), directory / "plain").run();
  Conversion conversion(synth_model(), directory / "out");
  conversion.execute.inspect = [](const std::filesystem::path&) {
    return Inspection{.report = "{\"version\": 1}\n"};
  };
  conversion.run();
  auto files = tree(directory / "out");
  EXPECT_EQ(files[std::string(formats::kVerifyName)], "{\"version\": 1}\n");
  files.erase(std::string(formats::kVerifyName));
  EXPECT_TRUE(files == tree(directory / "plain"));
  EXPECT_TRUE(but_tokenizer(check::check_checkpoint(directory / "out", {}).findings).empty());
}

TEST(Inspection, RefusalPublishesNothingAndCanBeResumed) {
  const TempDir directory;
  Conversion(synth_model(), directory / "plain").run();
  Conversion conversion(synth_model(), directory / "out");
  int times = 0;
  conversion.execute.inspect = [&](const std::filesystem::path&) {
    ++times;
    return Inspection{.may_publish = times > 1, .report = "{}\n"};
  };
  EXPECT_TRUE(conversion.run().refused);
  expect_unpublished(directory / "out");

  conversion.execute.resume = true;
  const ExecuteReport again = conversion.run();
  EXPECT_FALSE(again.refused);
  EXPECT_EQ(times, 2);
  EXPECT_GT(again.tensors_resumed, 0U);
  EXPECT_EQ(again.tensors_redone, 0U);
  auto files = tree(directory / "out");
  EXPECT_EQ(files.erase(std::string(formats::kVerifyName)), 1U);
  EXPECT_TRUE(files == tree(directory / "plain"));
}

TEST(Inspection, ReplacesTheReportOfAnOlderCheckpoint) {
  const TempDir directory;
  Conversion conversion(synth_model(), directory / "out");
  conversion.execute.inspect = [](const std::filesystem::path&) {
    return Inspection{.report = "{\"old\": true}\n"};
  };
  conversion.run();
  conversion.execute.force = true;
  conversion.execute.inspect = nullptr;
  conversion.run();
  EXPECT_FALSE(tree(directory / "out").contains(std::string(formats::kVerifyName)));
}

TEST(Inspection, ReportSurvivesAKillAtAnyRename) {
  const TempDir directory;
  Conversion conversion(synth_model(), directory / "whole");
  conversion.execute.inspect = [](const std::filesystem::path&) {
    return Inspection{.report = "{}\n"};
  };
  conversion.run();
  const auto expected = tree(directory / "whole");
  for (const bool report_is_in_place : {false, true}) {
    Conversion cut(synth_model(), directory / (report_is_in_place ? "after" : "before"));
    const OutputPaths paths = stage_finished(cut, directory / "whole");
    if (report_is_in_place)
      std::filesystem::rename(paths.staged / formats::kVerifyName,
                              paths.output / formats::kVerifyName);
    Journal::append_to(paths.journal, *Journal::read(paths.journal)).add_publishing(true, true);
    cut.execute.resume = true;
    cut.run();
    EXPECT_TRUE(tree(cut.output) == expected) << report_is_in_place;
  }
}

Conversion gated(const std::filesystem::path& output, bool passes) {
  Conversion conversion(synth_model(), output);
  conversion.execute.gate =
      formats::Json{{"verify", "weights"}, {"require", "weights.cosine>=0.999"}};
  conversion.execute.inspect = [passes](const std::filesystem::path&) {
    return Inspection{.may_publish = passes};
  };
  return conversion;
}

using Gate = InTempDir;

TEST_F(Gate, IsNotForgottenByResume) {
  EXPECT_TRUE(gated(dir_ / "out", false).run().refused);
  Conversion plain(synth_model(), dir_ / "out");
  plain.execute.resume = true;
  for (int attempt = 0; attempt < 2; ++attempt) {
    expect_error(ErrorCode::kMismatch,
                 {"--verify weights --require 'weights.cosine>=0.999'", "--no-verify"},
                 [&] { plain.run(); });
    expect_unpublished(dir_ / "out");
  }
  // Nor is one that was never reached.
  Conversion stopped = gated(dir_ / "stopped", true);
  ASSERT_TRUE(run_stopped(stopped, 100));
  plain.output = dir_ / "stopped";
  expect_error(ErrorCode::kMismatch, {"--verify weights"}, [&] { plain.run(); });

  Conversion passed = gated(dir_ / "out", true);
  passed.execute.resume = true;
  EXPECT_FALSE(passed.run().refused);
  gated(dir_ / "plain", true).run();
  EXPECT_TRUE(tree(dir_ / "out") == tree(dir_ / "plain"));
}

TEST_F(Gate, ThatIsLeftOutStandsInTheManifest) {
  EXPECT_TRUE(gated(dir_ / "out", false).run().refused);
  Conversion open(synth_model(), dir_ / "out");
  open.execute.resume = true;
  open.execute.no_verify = true;
  open.run();
  EXPECT_EQ(formats::read_manifest(dir_ / "out")->unverified,
            "--verify weights --require 'weights.cosine>=0.999'");
  EXPECT_TRUE(but_tokenizer(check::check_checkpoint(dir_ / "out", {}).findings).empty());
  // Without a verification there is none to leave out.
  expect_error(ErrorCode::kInvalidArgument, {"--no-verify"}, [&] { open.run(); });
}

TEST_F(Gate, LooksAtAnOutputThatWasFinishedBefore) {
  Conversion(synth_model(), dir_ / "out").run();
  const auto before = tree(dir_ / "out");
  for (const bool passes : {true, false}) {
    Conversion again = gated(dir_ / "out", passes);
    again.execute.resume = true;
    const ExecuteReport report = again.run();
    EXPECT_TRUE(report.already_done);
    EXPECT_EQ(report.refused, !passes);
    EXPECT_TRUE(tree(dir_ / "out") == before);
  }
}

TEST_F(Gate, LooksAtAPublicationThatWasCut) {
  Conversion(synth_model(), dir_ / "whole").run();
  Conversion cut(synth_model(), dir_ / "out");
  const OutputPaths paths = stage_finished(cut, dir_ / "whole");
  Journal::append_to(paths.journal, *Journal::read(paths.journal)).add_publishing(false, false);
  Conversion again = gated(dir_ / "out", false);
  again.execute.resume = true;
  const ExecuteReport report = again.run();
  EXPECT_TRUE(report.only_published);
  EXPECT_TRUE(report.refused);
  EXPECT_TRUE(tree(dir_ / "out") == tree(dir_ / "whole"));
}

// The error of encodings that a run reports, against sums taken here over the bytes.

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
    const auto source = formats::Checkpoint::open(synth_model());
    for (const formats::LogicalTensor& tensor : checkpoint.tensors()) {
      if (tensor.encoding.scheme != GetParam().storage->scheme) continue;
      const auto same =
          std::ranges::find(source.tensors(), tensor.name, &formats::LogicalTensor::name);
      const std::vector<float> was = decoded(source, *same);
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

INSTANTIATE_TEST_SUITE_P(Schemes, Quality, ::testing::ValuesIn(scheme_targets()), target_name);

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
