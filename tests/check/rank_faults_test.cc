#include <algorithm>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "check/check.h"
#include "formats/records/manifest.h"
#include "tests/check/rank_directory.h"
#include "tests/support/expect_error.h"

// A rank's directory in which something contradicts its manifest, or is missing.

namespace ingot::formats {

using namespace check;

namespace {

namespace fs = std::filesystem;
using namespace ingot::testing;
using namespace ::testing;

using RankFaults = InTempDir;

TEST_F(RankFaults, WithoutItsManifestIsAMisshapenCheckpoint) {
  cut_for_rank(fp8_model(), {.tp = 2, .etp = 2}, 0).write(dir_ / "rank");
  fs::remove(dir_ / "rank/ingot.json");
  expect_error(ErrorCode::kShapeMismatch, {kGateOfDense, "[256, 256]", "[512, 256]"},
               [&] { Checkpoint::open(dir_ / "rank"); });
}

TEST_F(RankFaults, RefusesATensorOfAnotherShape) {
  RankDirectory rank = cut_for_rank(plain_model(), {.tp = 2, .etp = 2}, 1);
  rank.model.put_zeros(kGateOfDense, DType::kBf16, {256, 128});
  expect_finding(rank, ErrorCode::kShapeMismatch, kGateOfDense,
                 {"[256, 128]", "along dimension 0 from 256", "[512, 256]"});
}

TEST_F(RankFaults, RefusesASliceThatIsNoEqualPart) {
  RankDirectory rank = cut_for_rank(plain_model(), {.tp = 2, .etp = 2}, 1);
  rank.model.put_zeros(kGateOfDense, DType::kBf16, {200, 256});
  expect_finding(rank, ErrorCode::kShapeMismatch, kGateOfDense, {"[200, 256]", "512"});
}

TEST_F(RankFaults, RefusesASliceOfAnotherNumberOfRanks) {
  RankDirectory rank = cut_for_rank(plain_model(), {.tp = 2, .etp = 2}, 0);
  rank.model.put_zeros(kGateOfDense, DType::kBf16, {128, 256});
  expect_finding(rank, ErrorCode::kShapeMismatch, kGateOfDense, {"one of 4 slices", "makes 2"});
}

TEST_F(RankFaults, RefusesTheSliceOfAnotherRank) {
  RankDirectory rank = cut_for_rank(plain_model(), {.tp = 2, .etp = 2}, 1);
  rank.slices.at(kDownOfDense).offset = 0;
  expect_finding(rank, ErrorCode::kMismatch, kDownOfDense,
                 {"begins at 0 of 512", "rank 1 begins at 256"});
}

TEST_F(RankFaults, RefusesAWholeOutsideTheConfig) {
  RankDirectory rank = cut_for_rank(plain_model(), {.tp = 2, .etp = 2}, 0);
  rank.slices.at(kDownOfDense).whole[0] = 128;
  rank.model.put_zeros(kDownOfDense, DType::kBf16, {128, 256});
  expect_finding(rank, ErrorCode::kShapeMismatch, kDownOfDense, {"[128, 512]", "[256, 512]"});
}

TEST_F(RankFaults, RefusesASliceThatTheRecordsCallWhole) {
  RankDirectory rank = cut_for_rank(plain_model(), {.tp = 2, .etp = 2}, 0);
  rank.slices.erase(kDownOfDense);
  expect_finding(rank, ErrorCode::kShapeMismatch, kDownOfDense,
                 {"[256, 256]", "is whole by the manifest", "[256, 512]"});
}

TEST_F(RankFaults, RefusesAWholeTensorRecordedAsSlice) {
  RankDirectory rank = cut_for_rank(plain_model(), {.tp = 2, .etp = 2}, 1);
  rank.model.tensors[kNormOfDense] = plain_model().at(kNormOfDense);
  SliceRecord slice;
  slice.axis = 0;
  slice.offset = 128;
  slice.whole = {256};
  rank.slices[kNormOfDense] = slice;
  expect_finding(rank, ErrorCode::kMismatch, kNormOfDense, {"begins at 128 of 256", "begins at 0"});
}

TEST_F(RankFaults, RefusesScalesOfAnotherWholeThanTheirWeights) {
  const std::string scale = kDownOfDense + "_scale_inv";
  RankDirectory rank = cut_for_rank(fp8_model(), {.tp = 2, .etp = 2}, 0);
  ASSERT_EQ(rank.slices.at(scale).whole, (Shape{2, 4}));
  rank.slices.erase(scale);
  expect_finding(rank, ErrorCode::kShapeMismatch, scale,
                 {"a whole of shape [2, 2]", "[256, 512] needs 8 numbers"});

  const EditableCheckpoint whole =
      spelled_model({"modelslim", SchemeId::kInt8Channel, Activations::kStatic});
  const std::string deq = "model.layers.0.mlp.gate_proj.deq_scale";
  RankDirectory described = cut_for_rank(whole, {.tp = 2, .etp = 2}, 0);
  ASSERT_EQ(described.slices.at(deq).whole, (Shape{512}));
  described.slices.at(deq).whole = {1024};
  const Finding finding = only(check_rank(described).findings);
  EXPECT_THAT(finding.message, HasSubstr("one of 4 slices"));
  described.slices.erase(deq);
  expect_finding(described, ErrorCode::kShapeMismatch, deq, {"[256]", "needs 512 numbers"});
}

TEST_F(RankFaults, RefusesWhatBelongsToOtherRanks) {
  const EditableCheckpoint whole = plain_model();
  const CutPlan plan = {.ep = 2, .stage_layers = {0, 1, 2}};
  struct Case {
    std::uint32_t rank;
    std::string tensor, fact;
  };
  for (const Case& bad :
       {Case{2, "model.embed_tokens.weight", "without the embedding, with norm and head"},
        Case{0, "model.norm.weight", "with the embedding, without norm and head"},
        Case{0, "lm_head.weight", "without norm and head"},
        Case{0, "model.layers.1.mlp.gate.weight", "of layers 0 to 0"},
        Case{2, kNormOfDense, "of layers 1 to 2"},
        Case{2, kUpOfExpert3, "with other experts in layer 1"}}) {
    SCOPED_TRACE(bad.tensor);
    RankDirectory rank = cut_for_rank(whole, plan, bad.rank);
    rank.model.tensors[bad.tensor] = whole.tensors.at(bad.tensor);
    expect_finding(rank, ErrorCode::kMismatch, bad.tensor,
                   {"rank " + std::to_string(bad.rank), bad.fact});
  }
}

TEST_F(RankFaults, MissesWhatTheRankShouldHold) {
  const EditableCheckpoint whole = plain_model();
  const CutPlan plan = {.ep = 2, .stage_layers = {0, 1, 2}};
  struct Case {
    std::uint32_t rank;
    std::string tensor, rule;
  };
  for (const Case& bad :
       {Case{0, "model.embed_tokens.weight", "model.complete"},
        Case{2, "lm_head.weight", "model.complete"}, Case{0, kNormOfDense, "model.complete"},
        Case{3, kUpOfExpert3, "moe.expert-ids"},
        Case{2, "model.layers.1.mlp.shared_experts.up_proj.weight", "model.complete"},
        Case{2, "model.layers.2.enorm.weight", "mtp.complete"},
        Case{2, "model.layers.1.self_attn.indexer.wk.weight", "indexer.complete"},
        Case{3, "model.layers.1.mlp.gate.e_score_correction_bias", "router.correction-bias"}}) {
    SCOPED_TRACE(bad.tensor);
    RankDirectory rank = cut_for_rank(whole, plan, bad.rank);
    ASSERT_EQ(rank.model.tensors.erase(bad.tensor), 1U);
    const Finding finding = only(check_rank(rank).findings);
    EXPECT_EQ(finding.code, ErrorCode::kMissingTensor);
    EXPECT_EQ(finding.rule, bad.rule);
    EXPECT_EQ(finding.tensor, bad.tensor);
  }
}

TEST_F(RankFaults, LacksPromisedMtpOnTheLastStageOnly) {
  const EditableCheckpoint whole = plain_model();
  for (const std::uint32_t stage : {0U, 1U}) {
    RankDirectory rank = cut_for_rank(whole, {.stage_layers = {0, 1, 2}}, stage);
    rank.model.erase_prefix(testing::kMtp);
    const fs::path path = dir_ / std::to_string(stage);
    rank.write(path);
    EXPECT_EQ(Checkpoint::open(path).lacks_promised_mtp(), stage == 1);
    const std::vector<Finding> findings = check_checkpoint(path, {}).findings;
    if (stage == 0) {
      EXPECT_THAT(findings, IsEmpty());
    } else {
      ASSERT_EQ(findings.size(), 1U);
      EXPECT_EQ(findings[0].rule, "mtp.present");
    }
  }
}

TEST_F(RankFaults, SaysForeignRecordsOnce) {
  cut_for_rank(fp8_model(), {.tp = 2, .etp = 2}, 0).write(dir_ / "rank");
  (void)write_tensor_records(dir_ / "rank/ingot.tensors.jsonl.zst", {});
  expect_error(ErrorCode::kMismatch, {"ingot.tensors.jsonl.zst", "the manifest promises"},
               [&] { Checkpoint::open(dir_ / "rank"); });
  // Without them nothing can be said of shapes.
  const Finding finding = only(check_checkpoint(dir_ / "rank", {}).findings);
  EXPECT_THAT(finding.message, HasSubstr("the manifest promises"));
}

TEST_F(RankFaults, SaysOnceThatItsManifestContradictsItself) {
  RankDirectory rank = cut_for_rank(plain_model(), {.tp = 2, .etp = 2}, 0);
  rank.slicing.rank->tp_rank = 1;
  rank.write(dir_ / "rank");
  expect_error(ErrorCode::kMismatch, {"ingot.json", "tp_rank is 1", "of rank 0 it is 0"},
               [&] { Checkpoint::open(dir_ / "rank"); });
  EXPECT_EQ(1, std::ranges::count_if(check_checkpoint(dir_ / "rank", {}).findings,
                                     [](const Finding& finding) {
                                       return finding.message.find("tp_rank") != std::string::npos;
                                     }));
}

TEST_F(RankFaults, RefusesStagesOfAnotherNumberOfLayers) {
  RankDirectory rank = cut_for_rank(plain_model(), {}, 0);
  rank.slicing.stage_layers = {0, 3};
  expect_finding(rank, ErrorCode::kMismatch, "", {"divides 3 layers", "config.json has 2"});
}

TEST_F(RankFaults, RefusesTwoRecordsOfOneTensor) {
  RankDirectory rank = cut_for_rank(plain_model(), {.tp = 2, .etp = 2}, 0);
  rank.write(dir_ / "rank");
  Manifest manifest = *read_manifest(dir_ / "rank");
  std::vector<TensorRecord> records =
      read_tensor_records(dir_ / "rank/ingot.tensors.jsonl.zst", manifest.records_hash);
  for (const TensorRecord& record : std::vector(records)) {
    if (record.name == kGateOfDense) records.push_back(record);
  }
  manifest.records_hash = write_tensor_records(dir_ / "rank/ingot.tensors.jsonl.zst", records);
  std::ofstream(dir_ / "rank/ingot.json") << manifest_text(manifest);
  expect_error(ErrorCode::kDuplicate, {kGateOfDense, "several records"},
               [&] { Checkpoint::open(dir_ / "rank"); });
}

TEST_F(RankFaults, FindsFaultsOfValuesAndHashes) {
  RankDirectory rank = cut_for_rank(fp8_model(), {.tp = 2, .etp = 2}, 1);
  const std::string scale = kGateOfDense + "_scale_inv";
  rank.model.put_floats(scale, {2, 2}, -1);
  expect_finding(rank, ErrorCode::kBadScale, scale, {"not finite and positive"});

  cut_for_rank(fp8_model(), {.tp = 2, .etp = 2}, 1).write(dir_ / "rank");
  std::fstream file(dir_ / "rank/model.safetensors",
                    std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(-1, std::ios::end);
  file.put('\x33');
  file.close();
  const Finding finding = only(check_checkpoint(dir_ / "rank", {}).findings);
  EXPECT_EQ(finding.code, ErrorCode::kMismatch);
  EXPECT_THAT(finding.message, HasSubstr("its bytes have hash"));
}

}  // namespace
}  // namespace ingot::formats
