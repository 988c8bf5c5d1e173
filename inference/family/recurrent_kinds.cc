#include "inference/family/recurrent_kinds.h"

namespace ingot::inference {

namespace {

constexpr Limits kKernel = {1, 64};
constexpr Limits kChannels = {1, 1 << 20};

constexpr std::array kDeltaNetRows = {
    ParameterRow<DeltaNetSpec>{"key_heads", &DeltaNetSpec::key_heads},
    ParameterRow<DeltaNetSpec>{"value_heads", &DeltaNetSpec::value_heads},
    ParameterRow<DeltaNetSpec>{"key_dim", &DeltaNetSpec::key_dim},
    ParameterRow<DeltaNetSpec>{"value_dim", &DeltaNetSpec::value_dim},
    ParameterRow<DeltaNetSpec>{"kernel", &DeltaNetSpec::kernel, kKernel},
    ParameterRow<DeltaNetSpec>{"decay_per_key", &DeltaNetSpec::decay_per_key},
    ParameterRow<DeltaNetSpec>{"silu_gate", &DeltaNetSpec::silu_gate}};
constexpr std::array kStateSpaceRows = {
    ParameterRow<StateSpaceSpec>{"heads", &StateSpaceSpec::heads},
    ParameterRow<StateSpaceSpec>{"head_dim", &StateSpaceSpec::head_dim},
    ParameterRow<StateSpaceSpec>{"groups", &StateSpaceSpec::groups},
    ParameterRow<StateSpaceSpec>{"state", &StateSpaceSpec::state},
    ParameterRow<StateSpaceSpec>{"kernel", &StateSpaceSpec::kernel, kKernel},
    ParameterRow<StateSpaceSpec>{"norm_groups", &StateSpaceSpec::norm_groups, {0, kMaxCount}},
    ParameterRow<StateSpaceSpec>{"least_step", &StateSpaceSpec::least_step, {0, 1e6}},
    ParameterRow<StateSpaceSpec>{"convolution_bias", &StateSpaceSpec::convolution_bias},
    ParameterRow<StateSpaceSpec>{"projection_bias", &StateSpaceSpec::projection_bias}};
constexpr std::array kSelectiveScanRows = {
    ParameterRow<SelectiveScanSpec>{"channels", &SelectiveScanSpec::channels, kChannels},
    ParameterRow<SelectiveScanSpec>{"state", &SelectiveScanSpec::state},
    ParameterRow<SelectiveScanSpec>{"step_rank", &SelectiveScanSpec::step_rank},
    ParameterRow<SelectiveScanSpec>{"kernel", &SelectiveScanSpec::kernel, kKernel},
    ParameterRow<SelectiveScanSpec>{"inner_norms", &SelectiveScanSpec::inner_norms},
    ParameterRow<SelectiveScanSpec>{"convolution_bias", &SelectiveScanSpec::convolution_bias},
    ParameterRow<SelectiveScanSpec>{"projection_bias", &SelectiveScanSpec::projection_bias}};
constexpr std::array kLightningRows = {
    ParameterRow<LightningSpec>{"heads", &LightningSpec::heads},
    ParameterRow<LightningSpec>{"head_dim", &LightningSpec::head_dim},
    ParameterRow<LightningSpec>{"block", &LightningSpec::block, {0, 1 << 12}}};
constexpr std::array kGatedConvolutionRows = {
    ParameterRow<GatedConvolutionSpec>{"channels", &GatedConvolutionSpec::channels, kChannels},
    ParameterRow<GatedConvolutionSpec>{"kernel", &GatedConvolutionSpec::kernel, kKernel},
    ParameterRow<GatedConvolutionSpec>{"biases", &GatedConvolutionSpec::biases}};

}  // namespace

BodySpec delta_net(const DecoderSpec&, Parameters& parameters, std::uint32_t) {
  DeltaNetSpec net;
  parameters.set(net, kDeltaNetRows);
  const std::optional<double> floor = parameters.real("decay_floor", {-1e6, 0});
  if (floor && parameters.flag("has_decay_floor", true)) {
    net.decay = Decay::kSigmoid;
    net.decay_floor = static_cast<float>(*floor);
  }
  if (net.value_heads % net.key_heads != 0) {
    refuse(fmt::format("{} value heads over {} key heads make no linear attention", net.value_heads,
                       net.key_heads));
  }
  return net;
}

BodySpec state_space(const DecoderSpec&, Parameters& parameters, std::uint32_t) {
  StateSpaceSpec space;
  parameters.set(space, kStateSpaceRows);
  if (space.norm_groups != 0 && space.heads * space.head_dim % space.norm_groups != 0)
    refuse(fmt::format("{} values in {} groups make no norm", space.heads * space.head_dim,
                       space.norm_groups));
  if (space.heads % space.groups != 0) {
    refuse(fmt::format("{} heads in {} groups make no state space", space.heads, space.groups));
  }
  return space;
}

BodySpec selective_scan(const DecoderSpec&, Parameters& parameters, std::uint32_t) {
  SelectiveScanSpec scan;
  parameters.set(scan, kSelectiveScanRows);
  return scan;
}

BodySpec lightning_attention(const DecoderSpec& model, Parameters& parameters, std::uint32_t) {
  LightningSpec spec{.heads = static_cast<std::size_t>(model.config.num_attention_heads),
                     .head_dim = static_cast<std::size_t>(model.config.head_dim)};
  parameters.set(spec, kLightningRows);
  return spec;
}

BodySpec gated_convolution(const DecoderSpec& model, Parameters& parameters, std::uint32_t) {
  GatedConvolutionSpec spec{.channels = model.spec.hidden};
  parameters.set(spec, kGatedConvolutionRows);
  return spec;
}

}  // namespace ingot::inference
