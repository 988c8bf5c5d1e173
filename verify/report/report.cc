#include "verify/report/report.h"

#include <algorithm>
#include <string_view>

namespace ingot::verify {

bool Report::passed() const {
  return not_run.empty() && std::all_of(gates.begin(), gates.end(),
                                        [](const GateResult& result) { return result.passed; });
}

std::optional<std::size_t> first_bad_layer(const Report& report) {
  if (!report.layers) return std::nullopt;
  const auto is_below = [&](const LayerAgreement& layer) {
    const std::string_view metric = layer.is_mtp ? "mtp.cosine" : "layers.cosine";
    return std::any_of(report.gates.begin(), report.gates.end(), [&](const GateResult& result) {
      return result.gate.metric == metric && !result.passed && result.checked > 0 &&
             !(layer.isolated.mean >= result.gate.limit);  // NaN too
    });
  };
  const auto& layers = report.layers->layers;
  const auto bad = std::find_if(layers.begin(), layers.end(), is_below);
  return bad == layers.end() ? std::nullopt : std::optional(bad->layer);
}

}  // namespace ingot::verify
