#include <array>

#include "verify/gates/gate.h"

namespace ingot::verify {
namespace {

struct Row {
  std::string_view metric, group;
  double limit;
};

// Faults: none is ever part of a data-free conversion. Half a step and a ten-thousandth is where
// rounding ends, and a scale off by one percent is beyond it for the first of a hundred values.
constexpr std::array kFaults{
    Row{"structure.errors", "", 0},       Row{"weights.misrounded", "", 0},
    Row{"weights.coarse", "", 0},         Row{"weights.changed", "", 0},
    Row{"weights.narrowed", "", 0},       Row{"weights.nonfinite", "", 0},
    Row{"weights.scale_error", "", 0.05}, Row{"weights.lone_factor", "", 1e-5},
    Row{"layers.nonfinite", "", 0},
};

// Cosines that rounding to the grid cannot go below on weights that are spread like a trained
// model's; docs/verify.md has what was measured. Tensors that keep their scheme have 1 exactly.
constexpr std::array kCosines{
    Row{"weights.cosine", "bf16", 0.99999},
    Row{"weights.cosine", "f16", 0.99999},
    Row{"weights.cosine", "f32", 0.99999},
    Row{"weights.cosine", "int8", 0.9995},
    Row{"weights.cosine", "fp8", 0.9995},
    Row{"weights.cosine", "mxfp8", 0.9995},
    Row{"weights.cosine", "mxfp4", 0.991},
    Row{"layers.cosine", "plain", 0.9995},
    Row{"layers.cosine", "int8", 0.999},
    Row{"layers.cosine", "fp8", 0.999},
    Row{"layers.cosine", "nvfp4-experts", 0.997},
    Row{"layers.cosine", "fp4", 0.994},
    // A scale that must do for every token leaves most of them few codes.
    Row{"layers.cosine", "int8-static", 0.996},
};

// No residual stream passes through an MTP layer: one expert that is chosen differently costs a
// token as much as ten do elsewhere.
constexpr std::array kMtpCosines{
    Row{"mtp.cosine", "plain", 0.9995}, Row{"mtp.cosine", "int8", 0.998},
    Row{"mtp.cosine", "fp8", 0.998},    Row{"mtp.cosine", "nvfp4-experts", 0.985},
    Row{"mtp.cosine", "fp4", 0.985},    Row{"mtp.cosine", "int8-static", 0.99},
};

// What four bits answer is reported only.
constexpr std::array<std::string_view, 3> kGreedyKinds = {"plain", "int8", "fp8"};

double nvfp4_cosine(std::string_view search) {
  if (search == "mse") return 0.9965;
  if (search == "4over6") return 0.9955;
  // Columns that matter less are given up on purpose.
  if (search == "weighted") return 0.992;
  return 0.995;
}

}  // namespace

Thresholds default_thresholds(std::string_view nvfp4_search) {
  Thresholds thresholds;
  const auto add = [&](const Row& row) {
    thresholds.gates.push_back({.metric = std::string(row.metric),
                                .group = std::string(row.group),
                                .bound = find_metric(row.metric)->bound,
                                .limit = row.limit,
                                .origin = "default"});
  };
  for (const Row& row : kFaults) add(row);
  for (const Row& row : kCosines) add(row);
  for (const Row& row : kMtpCosines) add(row);
  add({"weights.cosine", "nvfp4", nvfp4_cosine(nvfp4_search)});
  for (const std::string_view kind : kGreedyKinds) {
    add({"greedy.different", kind, 0});
    add({"greedy.inconclusive", kind, 0.5});
  }
  return thresholds;
}

}  // namespace ingot::verify
