#include "engines/row/engine.h"

#include <algorithm>

#include <fmt/format.h>

namespace ingot::engines {

std::string_view evidence_text(Evidence evidence) {
  constexpr std::array<std::string_view, 7> kTexts = {"generated text on a GPU",
                                                      "generated text",
                                                      "loaded",
                                                      "loaded, kernels replaced",
                                                      "read in its source",
                                                      "not tried for this family",
                                                      "not tried"};
  return kTexts[static_cast<std::size_t>(evidence)];
}

std::string engine_effect_text(const EngineLimit& limit) {
  switch (limit.effect) {
    case EngineEffect::kRefused:
      return limit.option.empty() ? "refused" : fmt::format("with {}", limit.option);
    case EngineEffect::kGarbage:
      return "garbage without an error";
    case EngineEffect::kGarbageWithout:
      return fmt::format("garbage without {}", limit.option);
    case EngineEffect::kRefusedOption:
      return fmt::format("refused with {}", limit.option);
    case EngineEffect::kCoarser:
      return "rounded";
    case EngineEffect::kRefusedOnCards:
      return "refused on some cards";
  }
  return {};
}

bool EngineRow::is_written_for(std::string_view family) const {
  return written_for.empty() || std::ranges::find(written_for, family) != written_for.end();
}

const EngineLoad* EngineRow::find_load(const Dialect& dialect, SchemeId scheme,
                                       Activations activations) const {
  const auto row = std::ranges::find_if(loads, [&](const EngineLoad& load) {
    return load.scheme == scheme && (load.dialect.empty() || (load.dialect == dialect.name &&
                                                              load.activations == activations));
  });
  return row == loads.end() ? nullptr : &*row;
}

Evidence EngineRow::family_evidence(std::string_view family, SchemeId scheme) const {
  // Loaders cast plain weights: one dtype is as good as another.
  if (!formats::scheme_facts(scheme).quantized) scheme = SchemeId::kBf16;
  Evidence best = Evidence::kNotOfFamily;
  for (const EngineFamily& row : families) {
    if (row.family == family && row.schemes.contains(scheme)) best = std::min(best, row.evidence);
  }
  return best;
}

}  // namespace ingot::engines
