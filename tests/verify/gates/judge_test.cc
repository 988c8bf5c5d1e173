#include "tests/support/test.h"
#include "verify/gates/gate.h"
#include "verify/gates/report.h"

namespace ingot::verify {
namespace {

using ::testing::HasSubstr;

Gate gate(std::string metric, std::string group, double limit, std::string origin = "--require") {
  return {.metric = metric,
          .group = std::move(group),
          .bound = find_metric(metric)->bound,
          .limit = limit,
          .origin = std::move(origin)};
}

TensorWeights tensor(std::string name, std::string to, double product) {
  return {.name = std::move(name),
          .from = "bf16",
          .to = std::move(to),
          .relation = Relation::kQuantized,
          .sums = {.elements = 4, .error2 = 1e-3, .source2 = 1, .output2 = 1, .product = product}};
}

// One value of every metric, without a fault.
Report whole_report() {
  Report report;
  report.source.emplace();
  report.output.kind = "int8";
  report.structure.emplace();
  report.weights = WeightsReport{.tensors = {tensor("a", "int8-channel", 0.9999)}};
  report.weights->tensors[0].relation = Relation::kQuantized;
  LayerAgreement layer{.layer = 7};
  layer.router_overlap = layer.indexer_overlap = 1;
  layer.cache = {{.of = "keys", .values = 200, .stored = {.clipped = 1}}};
  report.layers = LayersReport{.layers = {layer, {.layer = 8, .is_mtp = true}}};
  report.layers->logits.tokens = 9;
  report.layers->mtp_logits.emplace();
  report.greedy = GreedyReport{.prompts = std::vector<GreedyPrompt>(4), .equal = 4};
  report.draft = DraftReport{.tokens = 100, .source_accepted = 94, .output_accepted = 93};
  return report;
}

std::vector<double> values_of(const Metric& metric, const Report& report) {
  std::vector<double> values;
  metric.values(
      report, [&](double value, std::string_view, const std::string&) { values.push_back(value); });
  return values;
}

TEST(Judge, MetricsHoldAtTheirLimits) {
  Report report = whole_report();
  report.text =
      TextReport{.source = Likelihood{.sequences = {{4, 8}}}, .output = {.sequences = {{4, 9, 2}}}};
  for (const Metric& metric : metrics()) {
    const std::vector<double> values = values_of(metric, report);
    ASSERT_FALSE(values.empty()) << metric.name;
    const double beyond = metric.bound == Bound::kAtLeast
                              ? std::nextafter(values[0], std::numeric_limits<double>::max())
                              : std::nextafter(values[0], std::numeric_limits<double>::lowest());
    EXPECT_TRUE(judge(report, {{gate(std::string(metric.name), "", values[0])}})[0].passed)
        << metric.name;
    EXPECT_FALSE(judge(report, {{gate(std::string(metric.name), "", beyond)}})[0].passed)
        << metric.name;
  }
}

TEST(Judge, SaysNothingOfLevelsThatDidNotRun) {
  for (const Metric& metric : metrics()) EXPECT_TRUE(values_of(metric, Report{}).empty());
  EXPECT_TRUE(judge(Report{}, default_thresholds("")).empty());
}

TEST(Judge, CountsWhatFailsAndNamesTheWorst) {
  Report report = whole_report();
  report.weights->tensors = {tensor("a", "nvfp4", 0.99), tensor("b", "nvfp4", 0.98),
                             tensor("c", "nvfp4", 0.999), tensor("d", "mxfp4", 0.5)};
  const auto results = judge(report, {{gate("weights.cosine", "nvfp4", 0.995)}});
  ASSERT_EQ(results.size(), 1U);
  EXPECT_FALSE(results[0].passed);
  EXPECT_EQ(results[0].checked, 3U);
  EXPECT_EQ(results[0].failed, 2U);
  EXPECT_EQ(results[0].worst, 0.98);
  EXPECT_EQ(results[0].subject, "b");
}

// A scale that is 1% off where every value of the source is a code of the output: no value is
// misrounded, the cosine is 1.
TEST(Judge, FactorExplainingAllErrorIsAFault) {
  const auto passes = [](double factor, double scatter, double rounding_shift = 0) {
    Report report = whole_report();
    TensorWeights& tensor = report.weights->tensors[0];
    tensor.to = "fp8-channel";
    tensor.rounding_shift = rounding_shift;
    tensor.sums = {.elements = 4,
                   .error2 = (factor - 1) * (factor - 1) + scatter * scatter,
                   .source2 = 1,
                   .output2 = factor * factor + scatter * scatter,
                   .product = factor};
    Thresholds thresholds = default_thresholds("");
    std::erase_if(thresholds.gates,
                  [](const Gate& g) { return g.metric != "weights.lone_factor"; });
    return judge(report, thresholds)[0].passed;
  };
  EXPECT_FALSE(passes(1.01, 0));
  EXPECT_FALSE(passes(1.0001, 1e-6));
  EXPECT_TRUE(passes(1, 0));
  EXPECT_TRUE(passes(1, 0.03));
  EXPECT_TRUE(passes(1.01, 0.03));
  EXPECT_TRUE(passes(1.003, 0, 0.004));
  EXPECT_FALSE(passes(1.005, 0, 0.004));
}

// A value that a search by importance cut off says nothing of the scale; all others do.
TEST(Judge, ScaleErrorIsThatOfValuesWithinReach) {
  const auto passes = [](double product_within, double cut_product) {
    Report report = whole_report();
    report.weights->tensors = {tensor("a", "int4-group", 0)};
    report.weights->tensors[0].sums = {.elements = 4,
                                       .error2 = 0.02,
                                       .source2 = 1,
                                       .output2 = 1,
                                       .product = product_within + cut_product,
                                       .cut_source2 = 0.25,
                                       .cut_product = cut_product};
    Thresholds thresholds = default_thresholds("weighted");
    std::erase_if(thresholds.gates,
                  [](const Gate& g) { return g.metric != "weights.scale_error"; });
    return judge(report, thresholds)[0].passed;
  };
  EXPECT_TRUE(passes(0.75 * 0.99, 0.25 * 0.5));
  EXPECT_FALSE(passes(0.75 * 0.94, 0.25 * 0.5));
  EXPECT_FALSE(passes(0.75 * 0.94, 0.25 * 1.2));  // 1.005 over all
}

// The mean error of 96 blocks scatters, that of a million does not; docs/verify.md has both floors.
TEST(Judge, FewGroupsHaveALowerFloor) {
  const auto result = [](std::uint64_t groups, double cosine, const char* demand = nullptr) {
    Report report = whole_report();
    report.weights->tensors = {tensor("a", "nvfp4", cosine)};
    report.weights->tensors[0].groups = groups;
    report.weights->tensors[0].group_elements = 16;
    Thresholds thresholds = default_thresholds("mse");
    if (demand != nullptr) add_requirement(demand, thresholds);
    for (const GateResult& found : judge(report, thresholds)) {
      const bool is_own = demand == nullptr || found.gate.origin == "--require";
      if (found.gate.metric == "weights.cosine" && is_own) return found;
    }
    return GateResult{};
  };
  EXPECT_TRUE(result(96, 0.9948).passed);
  EXPECT_EQ(result(96, 0.9948).limit, 0.98915);
  EXPECT_FALSE(result(96, 0.98).passed);
  EXPECT_FALSE(result(1'000'000, 0.9948).passed);
  EXPECT_EQ(result(1'000'000, 0.9948).limit, 0.99644);
  EXPECT_FALSE(result(96, 0.9948, "weights.cosine[nvfp4]>=0.9965").passed);
}

TEST(Judge, GroupGatesOverrideGeneralOnes) {
  Report report = whole_report();
  report.weights->tensors = {tensor("a", "int8-channel", 0.99), tensor("b", "int8-block", 0.98),
                             tensor("c", "bf16", 0.9)};
  const auto results =
      judge(report, {{gate("weights.cosine", "int8", 0.97), gate("weights.cosine", "", 0.9),
                      gate("weights.cosine", "int8-block", 0.99)}});
  ASSERT_EQ(results.size(), 3U);
  EXPECT_EQ(results[0].subject, "a");
  EXPECT_EQ(results[0].checked, 1U);
  EXPECT_EQ(results[1].subject, "c");
  EXPECT_EQ(results[1].checked, 1U);
  EXPECT_EQ(results[2].subject, "b");
  EXPECT_FALSE(results[2].passed);
}

TEST(Judge, LaterOriginsReplaceEarlierOnes) {
  Report report = whole_report();
  report.layers->layers[0].isolated.mean = 0.9985;
  Thresholds thresholds = default_thresholds("");
  ASSERT_FALSE(judge(report, thresholds).empty());
  const auto layer_gates = [&] {
    std::vector<GateResult> results = judge(report, thresholds);
    std::erase_if(results, [](const GateResult& r) { return r.gate.metric != "layers.cosine"; });
    return results;
  };
  ASSERT_EQ(layer_gates().size(), 1U);
  EXPECT_FALSE(layer_gates()[0].passed);
  thresholds.gates.push_back(gate("layers.cosine", "", 0.998, "gates.yaml"));
  ASSERT_EQ(layer_gates().size(), 1U);
  EXPECT_EQ(layer_gates()[0].gate.origin, "gates.yaml");
  EXPECT_TRUE(layer_gates()[0].passed);
  add_requirement("layers.cosine>=0.9999", thresholds);
  ASSERT_EQ(layer_gates().size(), 1U);
  EXPECT_EQ(layer_gates()[0].gate.origin, "--require");
  EXPECT_FALSE(layer_gates()[0].passed);
}

TEST(Judge, ADemandThatMeetsNothingFails) {
  Report report = whole_report();
  report.layers.reset();
  const auto results = judge(report, {{gate("outputs.kl", "", 0.1)}});
  ASSERT_EQ(results.size(), 1U);
  EXPECT_FALSE(results[0].passed);
  EXPECT_EQ(results[0].checked, 0U);
  EXPECT_FALSE(judge(whole_report(), {{gate("weights.cosine", "nvfp4", 0.9)}})[0].passed);
}

TEST(Judge, AFileMayHaveLimitsForOtherKinds) {
  const std::vector<Gate> by_kind = {gate("outputs.kl", "int8", 0.1, "gates.yaml"),
                                     gate("outputs.kl", "4-bit", 0.1, "gates.yaml")};
  const auto results = judge(whole_report(), {by_kind});
  ASSERT_EQ(results.size(), 1U);
  EXPECT_EQ(results[0].gate.group, "int8");
  Report plain = whole_report();
  plain.output.kind = "plain";
  ASSERT_EQ(judge(plain, {by_kind}).size(), 2U);
  EXPECT_FALSE(judge(plain, {by_kind})[0].passed);
}

TEST(Judge, WhatIsNoNumberFailsOnEitherSide) {
  Report report = whole_report();
  report.layers->layers[0].isolated.mean = std::nan("");
  EXPECT_FALSE(judge(report, {{gate("layers.cosine", "", -1)}})[0].passed);
  report.layers->logits.mean_kl = -std::numeric_limits<double>::infinity();
  EXPECT_FALSE(judge(report, {{gate("outputs.kl", "", 1)}})[0].passed);
  report.layers->layers[0].isolated.mean = 1;
  report.layers->layers[0].accumulated.max_error = std::numeric_limits<double>::infinity();
  report.layers->logits.mean_kl = 0;
  const auto results = judge(report, {{gate("layers.nonfinite", "", 0)}});
  EXPECT_FALSE(results[0].passed);
  EXPECT_EQ(results[0].subject, "layer 7");
}

TEST(Judge, TheFirstErrorOfTheStructureIsNamed) {
  Report report = whole_report();
  report.structure->findings = {
      {.severity = check::Severity::kError, .tensor = "x", .message = "is missing"},
      {.severity = check::Severity::kError, .file = "f", .message = "is stray"},
      {.severity = check::Severity::kWarning, .message = "is odd"}};
  const auto results = judge(report, default_thresholds(""));
  EXPECT_FALSE(results[0].passed);
  EXPECT_EQ(results[0].worst, 2);
  EXPECT_EQ(results[0].subject, "x: is missing");
  report.structure->findings.erase(report.structure->findings.begin(),
                                   report.structure->findings.begin() + 2);
  EXPECT_TRUE(judge(report, default_thresholds(""))[0].passed);
}

TEST(Judge, EqualValuesHaveCosineOne) {
  Report report = whole_report();
  report.weights->tensors[0].sums = {
      .elements = 3, .source2 = 0.3, .output2 = 0.3, .product = 0.29999999999};
  EXPECT_TRUE(judge(report, {{gate("weights.cosine", "", 1)}})[0].passed);
  report.weights->tensors[0].sums = {};  // all zero on both sides
  EXPECT_TRUE(judge(report, {{gate("weights.cosine", "", 1)}})[0].passed);
}

TEST(Judge, PerplexityIsComparedByItsLogarithmEitherWay) {
  Report report = whole_report();
  report.layers->logits.source_nll = 2.0;
  report.layers->logits.output_nll = 1.5;
  EXPECT_EQ(values_of(*find_metric("outputs.perplexity"), report)[0], 0.5);
  report.text = TextReport{.source = Likelihood{.tokens = 4, .nll = 8, .sequences = {{4, 8}}},
                           .output = {.tokens = 4, .nll = 9, .sequences = {{4, 9, 2}}}};
  EXPECT_EQ(values_of(*find_metric("outputs.perplexity"), report)[0], 0.25);
  EXPECT_EQ(values_of(*find_metric("text.kl"), report)[0], 0.5);
}

TEST(Judge, ADemandOnLogitsThatNobodyRecordedFails) {
  Report report = whole_report();
  report.layers->logits.tokens = 0;
  const auto results = judge(report, {{gate("outputs.kl", "", 1)}});
  EXPECT_FALSE(results[0].passed);
  EXPECT_EQ(results[0].checked, 0U);
}

TEST(InconclusiveWarning, ComesAboveAThird) {
  Report report = whole_report();
  report.greedy->prompts.resize(6);
  report.greedy->inconclusive = 2;
  EXPECT_FALSE(inconclusive_warning(report));
  report.greedy->inconclusive = 3;
  ASSERT_TRUE(inconclusive_warning(report));
  EXPECT_THAT(*inconclusive_warning(report), HasSubstr("3 of 6 prompts"));
}

}  // namespace

using namespace ingot::testing;

namespace {

Thresholds read(std::string_view yaml) {
  const TempDir directory;
  const auto path = directory / "gates.yaml";
  std::ofstream(path) << yaml;
  Thresholds thresholds;
  read_thresholds(path, thresholds);
  return thresholds;
}

TEST(ThresholdsYaml, HasLimitsBoundsGroupsAndTheGap) {
  const Thresholds thresholds = read(
      "# what we ship\n"
      "weights.cosine: {int8: 0.9999, nvfp4: 0.996}\n"
      "layers.cosine: \">= 0.999\"\n"
      "outputs.kl:\n"
      "  int8: 5e-5\n"
      "  nvfp4-experts: <= 5e-4\n"
      "greedy.gap: 0.5\n");
  const std::vector<Gate> expected = {
      {"weights.cosine", "int8", Bound::kAtLeast, 0.9999, "gates.yaml"},
      {"weights.cosine", "nvfp4", Bound::kAtLeast, 0.996, "gates.yaml"},
      {"layers.cosine", "", Bound::kAtLeast, 0.999, "gates.yaml"},
      {"outputs.kl", "int8", Bound::kAtMost, 5e-5, "gates.yaml"},
      {"outputs.kl", "nvfp4-experts", Bound::kAtMost, 5e-4, "gates.yaml"}};
  EXPECT_EQ(thresholds.gates, expected);
  EXPECT_EQ(thresholds.greedy_gap, 0.5);
}

TEST(ThresholdsYaml, NamesFileLineAndKeyOfFaults) {
  const auto refused = [](std::string_view yaml, std::initializer_list<std::string> fragments) {
    expect_error(ErrorCode::kInvalidArgument, fragments, [&] { read(yaml); });
  };
  refused("\nlayer.cosine: 1", {"gates.yaml", "line 2", "'layer.cosine'"});
  refused("layers.cosine: high", {"line 1", "layers.cosine: 'high' is not a number"});
  refused("layers.cosine: \"<= 1\"", {"layers.cosine", "write >="});
  refused("layers.cosine: [1]", {"layers.cosine is not a limit"});
  refused("layers.cosine:", {"layers.cosine is not a limit"});
  refused("layers.cosine: {}", {"layers.cosine has no groups"});
  refused("a: 1\nlayers.cosine: {fp8: 1}", {"line 1", "'a'"});
  refused("layers.cosine:\n  fp8: 1\n  nvfp5: 1", {"line 3", "layers.cosine[nvfp5]"});
  refused("layers.cosine: {fp8: {x: 1}}", {"layers.cosine[fp8] is not a limit"});
  refused("layers.cosine: 1\nlayers.cosine: 1", {"line 2", "'layers.cosine' is there twice"});
  refused("layers.cosine: {fp8: 1, fp8: 1}", {"'fp8' is there twice"});
  refused("greedy.gap: -1", {"greedy.gap is negative"});
  refused("greedy.gap: x", {"greedy.gap: 'x' is not a number"});
  refused("- layers.cosine", {"is not a map"});
  refused("layers.cosine: {", {"gates.yaml", "is not YAML"});
  refused("layers.cosine: 1\n---\nlayers.cosine: 1", {"more than one YAML document"});
  refused("", {"holds no thresholds"});
  refused("layers.cosine: &a 1", {"line 1", "anchors"});
}

TEST(ThresholdsYaml, AFileThatIsNotThereIsNamed) {
  Thresholds thresholds;
  expect_error(ErrorCode::kNotFound, {"absent.yaml"},
               [&] { read_thresholds("absent.yaml", thresholds); });
}

Gate parsed(std::string_view text) {
  Thresholds thresholds;
  add_requirement(text, thresholds);
  return thresholds.gates.at(0);
}

TEST(Requirement, HasMetricGroupAndLimit) {
  EXPECT_EQ(parsed("layers.cosine>=0.999"),
            (Gate{"layers.cosine", "", Bound::kAtLeast, 0.999, "--require"}));
  EXPECT_EQ(parsed("weights.cosine[nvfp4] >= 0.996"),
            (Gate{"weights.cosine", "nvfp4", Bound::kAtLeast, 0.996, "--require"}));
  EXPECT_EQ(parsed("outputs.kl<=5e-5"),
            (Gate{"outputs.kl", "", Bound::kAtMost, 5e-5, "--require"}));
  EXPECT_EQ(parsed("weights.sqnr[int8]>=40").group, "int8");
}

TEST(Requirement, SaysWhatIsNotUnderstood) {
  const auto refused = [](std::string_view text, const std::string& fragment) {
    expect_error(ErrorCode::kInvalidArgument, {std::string(text), fragment}, [&] { parsed(text); });
  };
  refused("layers.cosine", "neither >= nor <=");
  refused("layers.cosine>0.9", "neither >= nor <=");
  refused("layers.cosine=0.9", "neither >= nor <=");
  refused("layers.cosine>=", "is not a number");
  refused("layers.cosine>=0.9x", "'0.9x' is not a number");
  refused("layers.cosine>=nan", "is not a number");
  refused("layers.cosine<=0.9", "write >=");
  refused("outputs.kl>=1", "write <=");
  refused("layer.cosine>=0.9", "metric 'layer.cosine' is none of");
  refused("weights.cosine[nvfp5]>=0.9", "'nvfp5' is not a group");
  refused("weights.cosine[4-bit]>=0.9", "'4-bit' is not a group");
  refused("layers.cosine[bf16]>=0.9", "'bf16' is not a group");
  refused("structure.errors[int8]<=0", "'int8' is not a group");
  refused("weights.cosine[]>=0.9", "empty group");
  refused("weights.cosine]>=0.9", "']' without '['");
  refused("", "neither >= nor <=");
}

// The gate of a metric that judges values of this group by default.
std::optional<double> limit_of(std::string_view metric, std::string_view group,
                               std::string_view search = "") {
  Report report;
  report.output.kind = std::string(group);
  report.weights = WeightsReport{.tensors = {{.name = "w", .to = std::string(group)}}};
  report.layers = LayersReport{.layers = {LayerAgreement{}}};
  report.greedy = GreedyReport{.prompts = std::vector<GreedyPrompt>(1)};
  for (const GateResult& result : judge(report, default_thresholds(search))) {
    if (result.gate.metric == metric) return result.gate.limit;
  }
  return std::nullopt;
}

TEST(DefaultGates, WeightsHaveTheFloorOfTheirScheme) {
  EXPECT_EQ(limit_of("weights.cosine", "bf16"), 0.99999);
  EXPECT_EQ(limit_of("weights.cosine", "int8-channel"), 0.9995);
  EXPECT_EQ(limit_of("weights.cosine", "int8-block"), 0.9995);
  EXPECT_EQ(limit_of("weights.cosine", "fp8-block"), 0.998);
  EXPECT_EQ(limit_of("weights.cosine", "fp8-tensor"), 0.998);
  EXPECT_EQ(limit_of("weights.cosine", "mxfp8"), 0.998);
  EXPECT_EQ(limit_of("weights.cosine", "mxfp4"), 0.991);
  EXPECT_EQ(limit_of("weights.scale_error", "mxfp4"), 0.2);
  EXPECT_EQ(limit_of("weights.scale_error", "nvfp4"), 0.05);
  for (const char* scheme : {"fp8-block", "fp8-channel", "fp8-tensor", "mxfp8"})
    EXPECT_EQ(limit_of("weights.scale_error", scheme), 0.0589) << "above 1/17";
  EXPECT_EQ(limit_of("weights.cosine", "raw"), std::nullopt);
}

TEST(DefaultGates, Nvfp4GateFollowsItsSearch) {
  EXPECT_EQ(limit_of("weights.cosine", "nvfp4"), 0.995);
  EXPECT_EQ(limit_of("weights.cosine", "nvfp4", "amax"), 0.995);
  EXPECT_EQ(limit_of("weights.cosine", "nvfp4", "4over6"), 0.9955);
  EXPECT_EQ(limit_of("weights.cosine", "nvfp4", "mse"), 0.9965);
  EXPECT_EQ(limit_of("weights.cosine", "nvfp4", "weighted"), 0.992);
}

TEST(DefaultGates, NoSchemeMayHaveFaults) {
  for (const char* scheme : {"bf16", "nvfp4", "raw"}) {
    EXPECT_EQ(limit_of("weights.misrounded", scheme), 0);
    EXPECT_EQ(limit_of("weights.narrowed", scheme), 0);
    EXPECT_EQ(limit_of("weights.nonfinite", scheme), 0);
    EXPECT_EQ(limit_of("weights.changed", scheme), 0);
    EXPECT_EQ(limit_of("weights.scale_error", scheme), 0.05);
  }
}

TEST(DefaultGates, LayersHaveTheFloorOfTheirKind) {
  EXPECT_EQ(limit_of("layers.cosine", "plain"), 0.9995);
  EXPECT_EQ(limit_of("layers.cosine", "int8"), 0.999);
  EXPECT_EQ(limit_of("layers.cosine", "fp8"), 0.999);
  EXPECT_EQ(limit_of("layers.cosine", "nvfp4-experts"), 0.997);
  EXPECT_EQ(limit_of("layers.cosine", "4-bit"), 0.994);
}

TEST(DefaultGates, FourBitAnswersHaveNoDefaultGate) {
  for (const char* kind : {"plain", "int8", "fp8", "nvfp4-experts", "4-bit"}) {
    EXPECT_EQ(limit_of("outputs.kl", kind), std::nullopt);
    EXPECT_EQ(limit_of("outputs.perplexity", kind), std::nullopt);
  }
  EXPECT_EQ(limit_of("greedy.different", "fp8"), 0);
  EXPECT_EQ(limit_of("greedy.inconclusive", "plain"), 0.5);
  EXPECT_EQ(limit_of("greedy.different", "4-bit"), std::nullopt);
  EXPECT_EQ(limit_of("greedy.inconclusive", "nvfp4-experts"), std::nullopt);
}

}  // namespace

}  // namespace ingot::verify
