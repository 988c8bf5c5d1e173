#include "inference/model/mtp_layer.h"

#include <algorithm>
#include <string>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "inference/model/step/norm.h"

namespace ingot::inference {
namespace {

std::string prefix_of(const StepContext& context) {
  return fmt::format("model.layers.{}.", context.spec.layers);
}

}  // namespace

bool MtpLayer::is_in(const WeightStore& weights, const ModelSpec& spec) {
  const auto tensors = weights.source().tensors();
  return spec.mtp_layers > 0 &&
         std::any_of(tensors.begin(), tensors.end(), [&](const formats::LogicalTensor& tensor) {
           return tensor.layer && *tensor.layer >= spec.layers;
         });
}

MtpLayer::MtpLayer(const WeightStore& weights, const StepContext& context, ExpertStore* experts)
    : embedding_norm_(weights.vector(prefix_of(context) + "enorm.weight", {context.spec.hidden})),
      hidden_norm_(weights.vector(prefix_of(context) + "hnorm.weight", {context.spec.hidden})),
      head_norm_(
          weights.vector(prefix_of(context) + "shared_head.norm.weight", {context.spec.hidden})),
      project_(weights.linear(prefix_of(context) + "eh_proj.weight", context.spec.hidden,
                              2 * context.spec.hidden, {0, context.spec.hidden},
                              {0, 2 * context.spec.hidden})),
      layer_(weights, context, static_cast<std::uint32_t>(context.spec.layers), 0, experts) {}

Matrix MtpLayer::forward(const StepContext& context, const Matrix& embedded, const Matrix& normed,
                         const StepRows& rows, KvCache& cache, Selection& selection,
                         const Taps& taps) const {
  INGOT_CHECK(normed.rows() == embedded.rows());
  const Profile profile = context.profile;
  const std::size_t width = context.spec.hidden;
  Matrix joined(normed.rows(), 2 * width), hidden(normed.rows(), width);
  rms_norm(profile, embedded.view(), embedding_norm_, context.spec.norm_eps,
           joined.columns(0, width));
  rms_norm(profile, normed.view(), hidden_norm_, context.spec.norm_eps,
           joined.columns(width, width));
  project_.apply(joined.view(), hidden.view(), context.threads);
  round_between(profile, hidden.values());
  layer_.forward(context, hidden, rows, cache, selection, taps);
  if (taps.hidden) taps.hidden(context.spec.layers + 1, hidden);
  rms_norm(profile, hidden.view(), head_norm_, context.spec.norm_eps, hidden.view());
  return hidden;
}

}  // namespace ingot::inference
