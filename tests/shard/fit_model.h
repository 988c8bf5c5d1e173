#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "shard/align/align_blocks.h"
#include "tests/shard/model_tensors.h"

namespace ingot::testing {

/// Chooses the scheme of a tensor.
using SchemeChoice = std::function<formats::SchemeId(const formats::LogicalTensor&)>;

/// `scheme` for what a release quantizes, BF16 for the rest.
inline SchemeChoice released_as(formats::SchemeId scheme) {
  return [scheme](const formats::LogicalTensor& tensor) {
    return tensor.rule->fp8_by_default ? scheme : formats::SchemeId::kBf16;
  };
}

/// A model as align_blocks sees it, in blocks of 128 x 128.
inline std::vector<shard::TensorToAlign> to_fit(const ModelTensors& model,
                                                const shard::Slicing& slicing,
                                                const SchemeChoice& scheme_of) {
  std::vector<shard::TensorToAlign> tensors;
  ErrorList faults;
  for (const formats::LogicalTensor& tensor : model.tensors()) {
    const formats::SchemeId scheme = scheme_of(tensor);
    tensors.push_back({.tensor = &tensor,
                       .scheme = scheme,
                       .group = formats::scheme_facts(scheme).quantized
                                    ? formats::scale_group(scheme, tensor.shape)
                                    : std::array<std::uint64_t, 2>{0, 0},
                       .cut = shard::cut_of(tensor, model.config(), slicing, faults)});
  }
  faults.throw_if_any();
  return tensors;
}

/// What align_blocks says, by name.
struct FitsByName {
  shard::Alignments fits;
  std::map<std::string, shard::Alignment> by_name;

  [[nodiscard]] const shard::Alignment& of(const std::string& name) const {
    return by_name.at(name);
  }
};

inline FitsByName fit_model(const ModelTensors& model, const shard::Slicing& slicing,
                            const SchemeChoice& scheme_of) {
  const auto tensors = to_fit(model, slicing, scheme_of);
  FitsByName result;
  result.fits = shard::align_blocks(tensors, model.config(), slicing);
  for (std::size_t i = 0; i < tensors.size(); ++i)
    result.by_name.emplace(tensors[i].tensor->name, result.fits.tensors.at(i));
  return result;
}

inline shard::Slicing slicing_of(shard::TpFit fit, std::uint32_t tp, std::uint32_t ep = 1,
                                 std::optional<std::uint32_t> etp = {}) {
  shard::Slicing slicing;
  slicing.topology = shard::make_topology(tp, ep, etp, 1);
  slicing.experts = shard::ExpertMap::contiguous(ep, ep);
  slicing.fit = fit;
  return slicing;
}

}  // namespace ingot::testing
