#include "tests/verify/report/sample_report.h"

#include <array>
#include <cmath>

#include <fmt/format.h>

namespace ingot::testing {

using namespace verify;

namespace {

constexpr std::size_t kRoles = 25;
constexpr std::array<std::string_view, kRoles> kRoleNames = {
    "input-norm",  "post-attention-norm", "q-a-proj",        "q-a-norm",    "q-b-proj",
    "kv-a-proj",   "kv-a-norm",           "kv-b-proj",       "o-proj",      "indexer-q",
    "indexer-k",   "indexer-k-norm",      "indexer-weights", "router",      "router-bias",
    "expert-gate", "expert-up",           "expert-down",     "shared-gate", "shared-up",
    "shared-down", "dense-gate",          "dense-up",        "dense-down",  "mtp-embedding-norm"};

bool is_expert(std::string_view role) {
  return role.starts_with("expert-");
}

// Values that look measured, from a formula: the same on every machine to more digits than are
// shown.
double wave(std::size_t i, double amplitude) {
  return 1 + amplitude * (static_cast<double>(i * 37 % 19) / 9.5 - 1);
}

TensorWeights identical_tensor(std::size_t layer, std::string_view role) {
  TensorWeights tensor{.name = fmt::format("model.layers.{}.{}.weight", layer, role),
                       .role = std::string(role),
                       .layer = static_cast<std::uint32_t>(layer),
                       .from = role.ends_with("proj") ? "fp8-block" : "bf16"};
  tensor.to = tensor.from;
  tensor.sums.elements = tensor.sums.exact = 65536;
  tensor.sums.source2 = tensor.sums.output2 = tensor.sums.product = 1000;
  return tensor;
}

// An error of this SQNR without a share in the source's direction.
void set_error(ElementSums& sums, double sqnr_db) {
  sums.elements = 65536;
  sums.exact = 900;
  sums.source2 = 1000;
  sums.error2 = sums.source2 / std::pow(10, sqnr_db / 10);
  sums.product = sums.source2;
  sums.output2 = sums.source2 + sums.error2;
  sums.max_error = 0.031;
  sums.max_relative = 1;
  sums.saturated = 12;
  sums.zeroed = 40;
  for (std::size_t bin = 0; bin < 8; ++bin) sums.step_histogram[bin] = 512 - 3 * bin;
}

TensorWeights expert_tensor(std::size_t layer, std::size_t expert, std::string_view role) {
  TensorWeights tensor{
      .name = fmt::format("model.layers.{}.mlp.experts.{}.{}.weight", layer, expert, role),
      .role = std::string(role),
      .layer = static_cast<std::uint32_t>(layer),
      .expert = static_cast<std::uint32_t>(expert),
      .from = "fp8-block",
      .to = "nvfp4",
      .relation = Relation::kQuantized};
  set_error(tensor.sums, 22.3 * wave(layer + expert, 0.02));
  return tensor;
}

CheckpointFacts side(std::string_view name, bool is_output) {
  CheckpointFacts facts{.name = std::string(name),
                        .family = "deepseek-v3.2",
                        .dialect = is_output ? "modelopt" : "fp8",
                        .layout = is_output ? "ranks" : "hf",
                        .topology = is_output ? "tp 2, ep 4" : "",
                        .made_by = is_output ? "ingot 0.1.0" : "",
                        .fingerprint = is_output ? "9b1d0c5e7f3a42186f0de2b4a7c89135"
                                                 : "17c2e0a94d5b6f8833aa10ce97d4b256",
                        .tensors = 91991,
                        .files = is_output ? 8U : 163U,
                        .bytes = is_output ? 391'000'000'000U : 689'000'000'000U,
                        .kind = is_output ? "nvfp4-experts" : "fp8"};
  if (is_output) facts.schemes.push_back({"nvfp4", 90'000, 654'000'000'000, 368'000'000'000});
  facts.schemes.push_back(
      {"fp8-block", is_output ? 1'000U : 91'000U, 17'000'000'000, 17'100'000'000});
  facts.schemes.push_back({"bf16", 991, 2'900'000'000, 5'800'000'000});
  return facts;
}

WeightsReport sample_weights(std::size_t n_layers) {
  WeightsReport weights;
  for (std::size_t layer = 0; layer < n_layers; ++layer) {
    for (const std::string_view role : kRoleNames) {
      const bool is_dense = role.starts_with("dense-");
      if ((layer == 0) != is_dense && (is_dense || role.starts_with("shared-") || is_expert(role)))
        continue;
      if (role.starts_with("mtp-") && layer + 1 < n_layers) continue;
      if (!is_expert(role)) {
        weights.tensors.push_back(identical_tensor(layer, role));
        continue;
      }
      for (std::size_t expert = 0; expert < 2; ++expert)
        weights.tensors.push_back(expert_tensor(layer, expert, role));
    }
  }
  return weights;
}

Similarity similarity(double distance) {
  return {.mean = 1 - distance,
          .median = 1 - 0.8 * distance,
          .worst = 1 - 6 * distance,
          .mean_without_first = 1 - 1.02 * distance,
          .worst_without_first = 1 - 6 * distance,
          .worst_prompt = 2,
          .worst_token = 17,
          .relative_error = std::sqrt(2 * distance),
          .max_error = 0.4};
}

LayersReport sample_layers(std::size_t n_layers) {
  LayersReport layers{
      .source_profile = "f32", .output_profile = "native", .prompts = 5, .tokens = 184};
  for (std::size_t i = 0; i < n_layers; ++i) {
    LayerAgreement layer{.layer = i,
                         .is_mtp = i + 1 == n_layers,
                         .isolated = similarity(i == 0 ? 3e-5 : 9e-4 * wave(i, 0.4)),
                         .accumulated = similarity(1e-3 * (1 + 0.15 * static_cast<double>(i))),
                         .indexer_overlap = 0.995 - 0.0002 * static_cast<double>(i)};
    if (i > 0) layer.router_overlap = 0.975 * wave(i, 0.012);
    layers.layers.push_back(layer);
  }
  layers.logits = {.tokens = 184,
                   .mean_kl = 1.7e-4,
                   .worst_kl = 0.0021,
                   .worst_prompt = 3,
                   .worst_token = 21,
                   .top1 = 0.989,
                   .top5 = 0.981,
                   .max_error = 0.42,
                   .source_nll = 2.31872,
                   .output_nll = 2.31901};
  layers.mtp_logits = layers.logits;
  for (std::size_t i = 0; i < layers.tokens; ++i) {
    const double kl = 1.7e-4 * wave(i, 0.9);
    layers.tokens_of_logits.push_back({.prompt = i * layers.prompts / layers.tokens,
                                       .token = i,
                                       .kl = kl,
                                       .same_top = i % 92 != 0,
                                       .source_nll = 2.31872,
                                       .output_nll = 2.31872 + kl});
  }
  return layers;
}

GreedyReport sample_greedy() {
  GreedyReport greedy;
  greedy.prompts.push_back({.prompt = {.text = "The capital of France is", .ids = {1, 5, 9}},
                            .source = {11, 12, 13},
                            .output = {11, 12, 13},
                            .source_text = " Paris, which lies on the Seine.",
                            .output_text = " Paris, which lies on the Seine."});
  greedy.prompts.push_back(
      {.prompt = {.text = "def gcd(a, b):\n", .ids = {1, 7}},
       .source = {21, 22, 23, 24},
       .output = {21, 22, 33, 34},
       .source_text = "    while b:\n        a, b = b, a % b\n    return a",
       .output_text = "    while b != 0:\n        a, b = b, a % b\n    return a",
       .outcome = GreedyOutcome::kInconclusive,
       .first_difference = 2,
       .gap = 0.08,
       .limit = 0.61});
  greedy.prompts.push_back({.prompt = {.text = "从前有一座山，", .ids = {1, 8, 9}},
                            .source = {41, 42},
                            .output = {41, 42},
                            .source_text = "山里有一座庙，庙里有个老和尚。",
                            .output_text = "山里有一座庙，庙里有个老和尚。"});
  greedy.equal = 2;
  greedy.inconclusive = 1;
  greedy.output_near_ties = {.router = 7, .indexer = 2, .argmax = 1};
  return greedy;
}

void judge_by_defaults(Report& report) {
  report.gates = verify::judge(report, verify::default_thresholds("mse"));
}

}  // namespace

Report passing_report(std::size_t n_layers) {
  Report report{.tool_version = "0.1.0",
                .source = side("DeepSeek-V3.2", false),
                .output = side("DeepSeek-V3.2-NVFP4-tp2-ep4", true),
                .levels = verify::parse_levels("all")};
  report.changes = {{.from = "fp8-block",
                     .to = "nvfp4",
                     .roles = {"expert-gate", "expert-up", "expert-down"},
                     .tensors = 90'000,
                     .source_bytes = 654'000'000'000,
                     .output_bytes = 368'000'000'000},
                    {.from = "fp8-block",
                     .to = "fp8-block",
                     .roles = {"o-proj", "q-b-proj", "kv-b-proj", "q-a-proj", "kv-a-proj",
                               "shared-gate", "shared-up", "shared-down"},
                     .tensors = 1'000,
                     .source_bytes = 17'100'000'000,
                     .output_bytes = 17'100'000'000}};
  report.structure = StructureReport{.tensors = 91991, .hashed = 91991, .has_manifest = true};
  report.weights = sample_weights(n_layers);
  report.layers = sample_layers(n_layers);
  report.greedy = sample_greedy();
  report.draft = verify::DraftReport{.tokens = 1000,
                                     .source_accepted = 524,
                                     .output_accepted = 500,
                                     .interval = verify::Interval{.low = 1.25, .high = 3.5}};
  report.text = TextReport{
      .source =
          Likelihood{.documents = 3,
                     .tokens = 4096,
                     .nll = 9497.2,
                     .sequences = {{2048, 4749.5}, {1024, 2373.7, 0, 1}, {1024, 2374.0, 0, 1}}},
      .output = {.documents = 3,
                 .tokens = 4096,
                 .nll = 9498.9,
                 .sequences = {{2048, 4750, 0.5},
                               {1024, 2374.1, 0.25, 1},
                               {1024, 2374.8, 0.25, 1}}},
      .documents = 2};
  judge_by_defaults(report);
  return report;
}

Report failing_report(std::size_t n_layers) {
  Report report = passing_report(n_layers);
  const std::size_t bad = n_layers / 2;
  report.output.name = "out <b>\"&'</b>";
  report.structure->findings = {
      {.severity = check::Severity::kError,
       .code = ErrorCode::kMissingTensor,
       .tensor = fmt::format("model.layers.{}.mlp.experts.201.down_proj.weight", bad),
       .message = "is in the source and not in the output",
       .rule = "structure.missing"},
      {.severity = check::Severity::kWarning,
       .code = ErrorCode::kMismatch,
       .file = "config.json",
       .message = "quantization_config ignores <lm_head> & \"model.embed\", which nobody stores",
       .rule = "modelopt.ignore"}};
  for (TensorWeights& tensor : report.weights->tensors) {
    if (tensor.layer != bad) continue;
    if (tensor.role == "expert-up") {
      set_error(tensor.sums, 13.2);
      tensor.sums.misrounded = 4410;
      for (std::size_t bin = 8; bin < kStepBins; ++bin) tensor.sums.step_histogram[bin] = 30 - bin;
    }
    if (tensor.role == "input-norm") {
      tensor.relation = Relation::kChanged;
      set_error(tensor.sums, 38);
    }
  }
  report.layers->layers[bad].isolated = similarity(0.021);
  report.layers->layers[bad].router_overlap = 0.71;
  for (std::size_t i = bad; i < n_layers; ++i)
    report.layers->layers[i].accumulated = similarity(0.026 * wave(i, 0.1));
  // A mean of no cosines.
  report.layers->layers.back().accumulated.mean = std::nan("");
  GreedyPrompt& prompt = report.greedy->prompts[2];
  prompt.output = {41, 99};
  prompt.output_text = "山里有<script>alert(1)</script>\xe5\xba";  // ends inside a character
  prompt.outcome = GreedyOutcome::kDifferent;
  prompt.first_difference = 1;
  prompt.gap = 7.25;
  prompt.limit = 0.61;
  report.greedy->equal = 1;
  report.greedy->different = 1;
  report.warnings = {"the manifest was written by a newer version, 0.2.0"};
  judge_by_defaults(report);
  return report;
}

Comparison sample_comparison(std::size_t n_layers) {
  Report a = failing_report(n_layers), b = passing_report(n_layers);
  a.output.name = "VENDOR <b>\"&'</b>";
  for (Report* side : {&a, &b}) side->gates.clear();
  for (TensorWeights& tensor : b.weights->tensors) {
    if (tensor.role == "expert-down") set_error(tensor.sums, 25);
    if (tensor.role == "expert-gate") set_error(tensor.sums, 19.5);
  }
  for (TokenDivergence& token : b.layers->tokens_of_logits) token.kl *= 1.5;
  b.layers->logits.mean_kl *= 1.5;
  b.text->output.sequences = {{2048, 4749, 0.75}, {1024, 2374, 0.375, 1}, {1024, 2374, 0.375, 1}};
  return {.a = std::move(a), .b = std::move(b)};
}

}  // namespace ingot::testing
