#include "formats/records/slicing_record.h"

#include "formats/json/json.h"
#include "formats/records/manifest.h"
#include "tests/support/json_edit.h"
#include "tests/support/listed.h"
#include "tests/support/test.h"

namespace ingot::formats {
namespace {

using namespace ingot::testing;

using Experts = RankRecord::Experts;

// TP 2 x EP 4 over two stages: 8 ranks, of which rank 6 is (stage 1, r = 2).
SlicingRecord example_slicing() {
  SlicingRecord slicing;
  slicing.tp = 2;
  slicing.ep = 4;
  slicing.etp = 1;
  slicing.pp = 2;
  slicing.n_ranks = 8;
  slicing.shared_experts = "tp";
  slicing.tp_fit = "retile";
  slicing.stage_layers = {0, 30, 61};
  slicing.expert_map = Json{{"slots", {0, 1, 2, 3}}};
  slicing.job = {0x1122334455667788, 0x99AABBCCDDEEFF00};
  return slicing;
}

SlicingRecord example_rank() {
  SlicingRecord slicing = example_slicing();
  RankRecord rank;
  rank.rank = 6;
  rank.stage = 1;
  rank.tp_rank = 0;
  rank.ep_rank = 2;
  rank.etp_rank = 0;
  rank.first_layer = 30;
  rank.end_layer = 62;
  rank.has_embedding = false;
  rank.has_head = true;
  rank.experts = {{30, {2, 5}, {5, 2, 5}}, {31, {1}, {1}}};
  rank.whole_config = Json{{"vocab_size", 129280}};
  slicing.rank = rank;
  return slicing;
}

SlicingRecord example_top() {
  SlicingRecord slicing = example_slicing();
  for (std::uint64_t i = 0; i < 8; ++i)
    slicing.ranks.push_back({"rank-0000" + std::to_string(i) + "-of-00008", Hash128{i, 7}});
  return slicing;
}

SliceRecord example_slice() {
  SliceRecord slice;
  slice.axis = 1;
  slice.offset = 64;
  slice.whole = {8, 256, 512};
  slice.sections = Sections::equal(2);
  slice.experts = {1, 4, 7};
  slice.original = {8, 128, 500};
  slice.repeat = {2, 1};
  return slice;
}

TEST(SlicingRecord, RankRoundTrips) {
  const Json json = slicing_record_json(example_rank());
  const SlicingRecord back = parse_slicing_record(json, "ingot.json");
  EXPECT_EQ(slicing_record_json(back), json);
  EXPECT_EQ(back.tp, 2U);
  EXPECT_EQ(back.ep, 4U);
  EXPECT_EQ(back.pp, 2U);
  EXPECT_EQ(back.n_ranks, 8U);
  EXPECT_EQ(back.shared_experts, "tp");
  EXPECT_EQ(back.tp_fit, "retile");
  EXPECT_EQ(back.stage_layers, (std::vector<std::uint32_t>{0, 30, 61}));
  EXPECT_EQ(back.expert_map->at("slots").size(), 4U);
  EXPECT_EQ(back.job, (Hash128{0x1122334455667788, 0x99AABBCCDDEEFF00}));
  EXPECT_TRUE(back.ranks.empty());
  ASSERT_TRUE(back.rank.has_value());
  EXPECT_EQ(back.rank->rank, 6U);
  EXPECT_EQ(back.rank->ep_rank, 2U);
  EXPECT_EQ(back.rank->end_layer, 62U);
  EXPECT_FALSE(back.rank->has_embedding);
  EXPECT_EQ(back.rank->experts[0].slots, (std::vector<std::uint32_t>{5, 2, 5}));
  EXPECT_EQ(back.rank->whole_config->at("vocab_size"), 129280);
}

TEST(SlicingRecord, AllRanksRoundTrip) {
  const Json json = slicing_record_json(example_top());
  const SlicingRecord back = parse_slicing_record(json, "ingot.json");
  EXPECT_EQ(slicing_record_json(back), json);
  EXPECT_FALSE(back.rank.has_value());
  ASSERT_EQ(back.ranks.size(), 8U);
  EXPECT_EQ(back.ranks[3].directory, "rank-00003-of-00008");
  EXPECT_EQ(back.ranks[3].manifest_hash, (Hash128{3, 7}));
}

TEST(SlicingRecord, IsSpelledAsDocumented) {
  SlicingRecord slicing = example_rank();
  slicing.rank->experts = {{Experts::kEveryLayer, {4, 5}, {4, 5}}};
  slicing.rank->whole_config = Json();
  slicing.expert_map = Json();
  EXPECT_EQ(slicing_record_json(slicing).dump(),
            R"({"tp":2,"ep":4,"etp":1,"pp":2,"n_ranks":8,"shared_experts":"tp",)"
            R"("tp_fit":"retile","stage_layers":[0,30,61],"expert_map":null,)"
            R"("job":"112233445566778899aabbccddeeff00","rank":{"rank":6,"stage":1,"tp_rank":0,)"
            R"("ep_rank":2,"etp_rank":0,"first_layer":30,"end_layer":62,"has_embedding":false,)"
            R"("has_head":true,"experts":[{"held":[4,5],"slots":[4,5]}]}})");
}

TEST(SlicingRecord, ReadsTheDocumentedSpellingOfAllRanks) {
  const SlicingRecord slicing = parse_slicing_record(
      Json::parse(R"({"tp":1,"ep":1,"etp":1,"pp":1,"n_ranks":1,"shared_experts":"replicated",
                      "tp_fit":"pad","stage_layers":[0,4],"expert_map":null,
                      "job":"00000000000000000000000000000001",
                      "ranks":[{"directory":"rank-00000-of-00001",
                                "manifest_hash":"000000000000000a000000000000000b"}]})"),
      "ingot.json");
  EXPECT_EQ(slicing.shared_experts, "replicated");
  EXPECT_EQ(slicing.job, (Hash128{0, 1}));
  ASSERT_EQ(slicing.ranks.size(), 1U);
  EXPECT_EQ(slicing.ranks[0].manifest_hash, (Hash128{10, 11}));
}

TEST(SlicingRecord, FindsTheExpertsOfALayer) {
  RankRecord rank = *example_rank().rank;
  EXPECT_THAT(*rank.experts_in(30), ::testing::ElementsAre(2, 5));
  EXPECT_THAT(*rank.experts_in(31), ::testing::ElementsAre(1));
  EXPECT_EQ(rank.experts_in(32), nullptr);
  rank.experts = {{Experts::kEveryLayer, {3}, {3}}};
  EXPECT_THAT(*rank.experts_in(0), ::testing::ElementsAre(3));
  EXPECT_THAT(*rank.experts_in(60), ::testing::ElementsAre(3));
  rank.experts.clear();
  EXPECT_EQ(rank.experts_in(0), nullptr);
}

TEST(SlicingRecord, RefusesWhatIsMissingWrongOrUnknown) {
  const std::vector<std::string> edits =
      listed(R"( []; /tp; /tp 0; /tp -2; /tp 2.0; /tp 4294967296; /ep 4294967295; /etp 4294967295;
      /n_ranks "8"; /shared_experts 1; /expert_map; /job "12"; /stage_layers 61;
      /stage_layers [0, 30, -1]; /stage_layers [1, 30, 61]; /stage_layers [0, 61, 61]; /extra 1;
      /ranks []; /rank 6; /rank/ep_rank; /rank/has_head 1; /rank/more 1;
      /rank/whole_config "{}"; /rank/experts {}; /rank/experts/0/held [5, 2];
      /rank/experts/0/held [2, 2, 5]; /rank/experts/0/held [2, 5, 6];
      /rank/experts/0/slots [2, 5, 9]; /rank/experts/0/slots; /rank/experts/1/layer 30;
      /rank/experts/1/layer; /rank/experts/0/layer "30")");
  for (const std::string& edit : edits) {
    const Json json = edited(slicing_record_json(example_rank()), {edit});
    SCOPED_TRACE(json.dump());
    expect_error(ErrorCode::kCorrupt, {"ingot.json"},
                 [&] { parse_slicing_record(json, "ingot.json"); });
  }
}

TEST(SlicingRecord, RefusesATopologyThatContradictsItselfNamingBoth) {
  struct Case {
    JsonEdit edit;
    std::string fact, other;
  };
  const std::vector<Case> cases = {
      {{"/n_ranks", 16}, "n_ranks is 16", "2 stages"},
      {{"/tp", 3}, "n_ranks is 8", "lcm(3, 4 x 1) = 12"},
      {{"/stage_layers", {0, 61}}, "has 2 numbers", "2 stages have 3"},
      {{"/rank/rank", 8}, "rank is 8", "n_ranks is 8"},
      {{"/rank/stage", 0}, "stage is 0", "of rank 6 it is 1"},
      {{"/rank/tp_rank", 1}, "tp_rank is 1", "of rank 6 it is 0"},
      {{"/rank/ep_rank", 3}, "ep_rank is 3", "of rank 6 it is 2"},
      {{"/rank/etp_rank", 1}, "etp_rank is 1", "of rank 6 it is 0"},
      {{"/rank/first_layer", 29}, "first_layer is 29", "it is 30"},
      {{"/rank/end_layer", 60}, "end_layer is 60", "it is 61"},
      {{"/rank/has_head", false}, "has_head is false", "1 of 2"},
  };
  for (const Case& bad : cases) {
    const Json json = edited(slicing_record_json(example_rank()), {bad.edit});
    SCOPED_TRACE(json.dump());
    expect_error(ErrorCode::kMismatch, {bad.fact, bad.other},
                 [&] { parse_slicing_record(json, "ingot.json"); });
  }
  expect_error(ErrorCode::kMismatch, {"7 directories", "n_ranks is 8"}, [] {
    parse_slicing_record(edited(slicing_record_json(example_top()), {{"/ranks/7"}}), "ingot.json");
  });
}

TEST(SlicingRecord, AcceptsEveryRankOfUnevenTopologies) {
  // Issue's table: --tp 8 --ep 16 is 16 ranks in two groups of TP 8; --tp 4 --ep 2 --etp 3 is 12.
  struct Case {
    std::uint32_t tp, ep, etp, n;
  };
  for (const Case& c : {Case{8, 16, 1, 16}, Case{4, 2, 3, 12}, Case{8, 1, 8, 8}}) {
    for (std::uint32_t r = 0; r < c.n; ++r) {
      SlicingRecord slicing = example_rank();
      slicing.tp = c.tp;
      slicing.ep = c.ep;
      slicing.etp = c.etp;
      slicing.n_ranks = 2 * c.n;
      RankRecord& rank = *slicing.rank;
      rank.rank = c.n + r;
      rank.tp_rank = r % c.tp;
      rank.etp_rank = r % c.etp;
      rank.ep_rank = (r / c.etp) % c.ep;
      EXPECT_NO_THROW(parse_slicing_record(slicing_record_json(slicing), "m"));
      rank.tp_rank = (rank.tp_rank + 1) % c.tp;
      EXPECT_THROW(parse_slicing_record(slicing_record_json(slicing), "m"), Error);
    }
  }
}

TEST(SlicingRecord, RefusesDirectoriesThatAreNotBesideIt) {
  for (const char* name : {"", "..", "/tmp", "a/b", "."}) {
    SCOPED_TRACE(name);
    expect_error(ErrorCode::kCorrupt, {"ingot.json"}, [&] {
      parse_slicing_record(
          edited(slicing_record_json(example_top()), {{"/ranks/2/directory", name}}), "ingot.json");
    });
  }
  expect_error(ErrorCode::kDuplicate, {"rank-00001-of-00008"}, [&] {
    parse_slicing_record(
        edited(slicing_record_json(example_top()), {{"/ranks/2/directory", "rank-00001-of-00008"}}),
        "ingot.json");
  });
}

TEST(SliceRecord, RoundTripsAndLeavesOutWhatIsUsual) {
  EXPECT_EQ(slice_record_json(example_slice()).dump(),
            R"({"axis":1,"offset":64,"whole":[8,256,512],"sections":2,"experts":[1,4,7],)"
            R"("original":[8,128,500],"repeat":[2,1]})");
  EXPECT_EQ(parse_slice_record(slice_record_json(example_slice()), "r"), example_slice());

  SliceRecord cut;
  cut.axis = 0;
  cut.whole = {4};
  EXPECT_EQ(slice_record_json(cut).dump(), R"({"axis":0,"offset":0,"whole":[4]})");
  EXPECT_EQ(parse_slice_record(slice_record_json(cut), "r"), cut);

  SliceRecord zeroed;
  zeroed.whole = {4};
  zeroed.is_zeroed = true;
  EXPECT_EQ(slice_record_json(zeroed).dump(), R"({"whole":[4],"zeroed":true})");
  EXPECT_EQ(parse_slice_record(slice_record_json(zeroed), "r"), zeroed);
}

TEST(SliceRecord, RefusesMissingWrongOrOutsideValues) {
  const std::vector<std::string> edits =
      listed(R"( 3; /whole; /offset; /axis; /more 1; /axis -1; /axis 3; /axis 4294967296;
      /axis 4294967295; /axis 0; /offset 128; /offset 18446744073709551615; /sections 0;
      /sections 3; /sections 65; /sections "2"; /sections []; /sections [1, 2];
      /sections [1, 0]; /sections [1, -1]; /sections [1, 3]; /whole [8, 256, "x"];
      /whole [8, 256, 1152921504606846976]; /experts [1, 1]; /experts [4, 1]; /experts [8];
      /zeroed "yes"; /zeroed true; /original [8, 128]; /original [7, 128, 500];
      /original [8, 128, 513]; /original [8, 129, 500]; /repeat [2]; /repeat [0, 1];
      /repeat [18446744073709551615, 1])");
  for (const std::string& edit : edits) {
    const Json json = edited(slice_record_json(example_slice()), {edit});
    SCOPED_TRACE(json.dump());
    expect_error(ErrorCode::kCorrupt, {"line 9"}, [&] { parse_slice_record(json, "line 9"); });
  }
  expect_error(ErrorCode::kCorrupt, {"r"}, [] {
    parse_slice_record(Json::parse(R"({"whole":[4],"original":[2],"repeat":[1,2]})"), "r");
  });
}

TEST(SlicedManifest, CarriesTheSlicing) {
  Manifest manifest;
  manifest.layout = "ranks";
  manifest.slicing = example_rank();
  const Manifest back = parse_manifest(manifest_text(manifest), "ingot.json");
  ASSERT_TRUE(back.slicing.has_value());
  EXPECT_EQ(slicing_record_json(*back.slicing), slicing_record_json(example_rank()));
  EXPECT_EQ(manifest_text(back), manifest_text(manifest));

  manifest.slicing.reset();
  EXPECT_THAT(manifest_text(manifest), ::testing::Not(::testing::HasSubstr("slicing")));
  EXPECT_FALSE(parse_manifest(manifest_text(manifest), "ingot.json").slicing.has_value());
}

TEST(SlicedManifest, RecordsCarrySlicesAndTheirWholeFile) {
  TensorRecord record;
  record.name = "model.norm.weight";
  record.role = "final-norm";
  record.action = "copy";
  record.home_file = "model-00001-of-00163.safetensors";
  record.output = {{"model.norm.weight", "all-00001.safetensors", "BF16", {8}, Hash128{1, 2}}};
  record.output.push_back(record.output[0]);
  record.output[1].slice = example_slice();
  const std::string line = tensor_record_line(record);
  const TensorRecord back = parse_tensor_record(line, "line 1");
  EXPECT_EQ(back.home_file, "model-00001-of-00163.safetensors");
  EXPECT_FALSE(back.output[0].slice.has_value());
  EXPECT_EQ(back.output[1].slice, example_slice());
  EXPECT_EQ(tensor_record_line(back), line);

  record.home_file.clear();
  record.output.pop_back();
  EXPECT_THAT(tensor_record_line(record), ::testing::Not(::testing::HasSubstr("home_file")));
  EXPECT_THAT(tensor_record_line(record), ::testing::Not(::testing::HasSubstr("slice")));
  EXPECT_EQ(parse_tensor_record(tensor_record_line(record), "line 1").home_file, "");
}

TEST(SlicedManifest, RefusesABadSliceByLineAndTensor) {
  TensorRecord record;
  record.action = "copy";
  record.output = {{"x", "a.safetensors", "BF16", {8}, Hash128{1, 2}}};
  record.output[0].slice = example_slice();
  Json json = Json::parse(tensor_record_line(record));
  json["output"][0]["slice"]["axis"] = 7;
  expect_error(ErrorCode::kCorrupt, {"line 4", "output[0].slice", "axis 7"},
               [&] { parse_tensor_record(json.dump(), "line 4"); });
  json = Json::parse(tensor_record_line(record));
  json["home_file"] = "../model.safetensors";
  expect_error(ErrorCode::kCorrupt, {"line 4", "home_file"},
               [&] { parse_tensor_record(json.dump(), "line 4"); });
}

}  // namespace
}  // namespace ingot::formats
