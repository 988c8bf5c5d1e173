#include <vector>

#include "inference/base/matrix.h"
#include "inference/family/parameters.h"
#include "inference/family/spec_parts.h"
#include "inference/model/recurrent/whole_layer.h"
#include "inference/model/spec/mixer_kinds.h"
#include "inference/model/step/short_convolution.h"
#include "inference/model/step/step.h"
#include "inference/weights/block_weights.h"
#include "inference/weights/linear.h"

namespace ingot::inference {

using formats::FineRole;

namespace {

// A convolution over the last tokens between two gates, all made of the layer's input.
struct GatedConvolutionSpec {
  std::size_t channels = 0;
  std::size_t kernel = 0;  ///< tokens of the convolution
  bool biases = false;     ///< biases of both projections and of the convolution
  bool operator==(const GatedConvolutionSpec&) const = default;
};

constexpr std::array kGatedConvolutionRows = {
    ParameterRow<GatedConvolutionSpec>{"channels", &GatedConvolutionSpec::channels, kChannels},
    ParameterRow<GatedConvolutionSpec>{"kernel", &GatedConvolutionSpec::kernel, kKernel},
    ParameterRow<GatedConvolutionSpec>{"biases", &GatedConvolutionSpec::biases}};

// A short convolution between gates (transformers 5.24, lfm2). One product gives B, C and v:
//   y = out [C x convolve(B x v)]
// The state of a sequence is the last inputs of the convolution, in FP32. Unless the profile is
// kF32, the product, B x v, the convolution and the gated output are each rounded to BF16.
class GatedConvolution final : public Mixer {
 public:
  using Spec = GatedConvolutionSpec;
  /// Throws kUnsupported on more than one rank of a tensor group.
  GatedConvolution(const BlockWeights& weights, const StepContext& context, const Spec& spec);

  [[nodiscard]] Matrix partial(const LayerStep& step, const Matrix& x) const override;
  static Spec read(const DecoderSpec& model, Parameters& parameters, std::uint32_t layer);
  static std::vector<CacheStream> streams(const Spec& spec, const CacheForm&) {
    return {state_stream((spec.kernel - 1) * spec.channels)};
  }
  static MixerMemory memory(const Spec& spec, std::size_t, std::uint64_t) {
    return {.per_row = 6 * spec.channels};
  }

 private:
  Spec spec_;
  Linear in_, out_;
  std::vector<float> in_bias_, out_bias_, convolution_bias_;  ///< biases; may be empty
  std::vector<float> convolution_;                            ///< [channels, kernel]
};

GatedConvolutionSpec GatedConvolution::read(const DecoderSpec& model, Parameters& parameters,
                                            std::uint32_t) {
  GatedConvolutionSpec spec{.channels = model.spec.hidden};
  parameters.set(spec, kGatedConvolutionRows);
  return spec;
}

GatedConvolution::GatedConvolution(const BlockWeights& weights, const StepContext& context,
                                   const Spec& spec)
    : spec_(spec) {
  require_one_tensor_rank(context.rank, weights.layer());
  const std::size_t hidden = context.spec.hidden, width = spec.channels;
  in_ = weights.linear(FineRole::kLinearIn, 3 * width, hidden);
  in_bias_ = bias_of(weights, spec.biases, FineRole::kLinearInBias, 3 * width);
  convolution_ = weights.vector(FineRole::kLinearConvolution, {width, 1, spec.kernel});
  convolution_bias_ = bias_of(weights, spec.biases, FineRole::kLinearConvolutionBias, width);
  out_ = weights.linear(formats::Role::kLinearAttentionOut, hidden, width);
  out_bias_ = bias_of(weights, spec.biases, FineRole::kLinearOutBias, hidden);
}

Matrix GatedConvolution::partial(const LayerStep& step, const Matrix& x) const {
  const StepContext& context = step.context;
  const std::size_t width = spec_.channels;
  const Matrix projected = rounded_product(context, in_, x, in_bias_);
  require_finite(projected, step.layer, "the convolution's projection");
  Matrix values(x.rows(), width);
  for (std::size_t r = 0; r < x.rows(); ++r) {
    const auto row = projected.row(r);
    for (std::size_t c = 0; c < width; ++c) values.row(r)[c] = row[c] * row[2 * width + c];
  }
  round_between(context.profile, values.values());
  const MatrixView<const float> weights{convolution_.data(), width, spec_.kernel, spec_.kernel};
  for (const SequenceRun& run : step.rows.runs) {
    const auto mine = values.block(run.first_row, run.count, 0, width);
    const Matrix mixed =
        convolved(context.profile, run, weights, convolution_bias_, mine, step.state(run));
    for (std::size_t i = 0; i < run.count; ++i) {
      const auto gate = projected.row(run.first_row + i).subspan(width, width);
      for (std::size_t c = 0; c < width; ++c) mine.row(i)[c] = gate[c] * mixed.row(i)[c];
    }
  }
  round_between(context.profile, values.values());
  Matrix y = product(context, out_, values);
  add_bias(out_bias_, y);
  return y;
}

}  // namespace

constinit const MixerKind kGatedConvolution = mixer_kind<GatedConvolution>("gated-convolution");

}  // namespace ingot::inference
