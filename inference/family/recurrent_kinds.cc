#include "inference/family/recurrent_kinds.h"

namespace ingot::inference {

namespace {

constexpr Limits kKernel = {1, 64};
constexpr Limits kChannels = {1, 1 << 20};

constexpr std::array kDeltaNetRows = {
    Row<DeltaNetSpec>{"key_heads", &DeltaNetSpec::key_heads},
    Row<DeltaNetSpec>{"value_heads", &DeltaNetSpec::value_heads},
    Row<DeltaNetSpec>{"key_dim", &DeltaNetSpec::key_dim},
    Row<DeltaNetSpec>{"value_dim", &DeltaNetSpec::value_dim},
    Row<DeltaNetSpec>{"kernel", &DeltaNetSpec::kernel, kKernel},
    Row<DeltaNetSpec>{"decay_per_key", &DeltaNetSpec::decay_per_key},
    Row<DeltaNetSpec>{"silu_gate", &DeltaNetSpec::silu_gate}};
constexpr std::array kStateSpaceRows = {
    Row<StateSpaceSpec>{"heads", &StateSpaceSpec::heads},
    Row<StateSpaceSpec>{"head_dim", &StateSpaceSpec::head_dim},
    Row<StateSpaceSpec>{"groups", &StateSpaceSpec::groups},
    Row<StateSpaceSpec>{"state", &StateSpaceSpec::state},
    Row<StateSpaceSpec>{"kernel", &StateSpaceSpec::kernel, kKernel},
    Row<StateSpaceSpec>{"norm_groups", &StateSpaceSpec::norm_groups, {0, kMaxCount}},
    Row<StateSpaceSpec>{"least_step", &StateSpaceSpec::least_step, {0, 1e6}},
    Row<StateSpaceSpec>{"convolution_bias", &StateSpaceSpec::convolution_bias},
    Row<StateSpaceSpec>{"projection_bias", &StateSpaceSpec::projection_bias}};
constexpr std::array kSelectiveScanRows = {
    Row<SelectiveScanSpec>{"channels", &SelectiveScanSpec::channels, kChannels},
    Row<SelectiveScanSpec>{"state", &SelectiveScanSpec::state},
    Row<SelectiveScanSpec>{"step_rank", &SelectiveScanSpec::step_rank},
    Row<SelectiveScanSpec>{"kernel", &SelectiveScanSpec::kernel, kKernel},
    Row<SelectiveScanSpec>{"inner_norms", &SelectiveScanSpec::inner_norms},
    Row<SelectiveScanSpec>{"convolution_bias", &SelectiveScanSpec::convolution_bias},
    Row<SelectiveScanSpec>{"projection_bias", &SelectiveScanSpec::projection_bias}};
constexpr std::array kLightningRows = {
    Row<LightningSpec>{"heads", &LightningSpec::heads},
    Row<LightningSpec>{"head_dim", &LightningSpec::head_dim},
    Row<LightningSpec>{"block", &LightningSpec::block, {0, 1 << 12}}};
constexpr std::array kGatedConvolutionRows = {
    Row<GatedConvolutionSpec>{"channels", &GatedConvolutionSpec::channels, kChannels},
    Row<GatedConvolutionSpec>{"kernel", &GatedConvolutionSpec::kernel, kKernel},
    Row<GatedConvolutionSpec>{"biases", &GatedConvolutionSpec::biases}};

}  // namespace

BodySpec delta_net(const Decoder&, Parameters& parameters, std::uint32_t) {
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

BodySpec state_space(const Decoder&, Parameters& parameters, std::uint32_t) {
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

BodySpec selective_scan(const Decoder&, Parameters& parameters, std::uint32_t) {
  SelectiveScanSpec scan;
  parameters.set(scan, kSelectiveScanRows);
  return scan;
}

BodySpec lightning_attention(const Decoder& model, Parameters& parameters, std::uint32_t) {
  LightningSpec spec{.heads = static_cast<std::size_t>(model.config.num_attention_heads),
                     .head_dim = static_cast<std::size_t>(model.config.head_dim)};
  parameters.set(spec, kLightningRows);
  return spec;
}

BodySpec gated_convolution(const Decoder& model, Parameters& parameters, std::uint32_t) {
  GatedConvolutionSpec spec{.channels = model.spec.hidden};
  parameters.set(spec, kGatedConvolutionRows);
  return spec;
}

}  // namespace ingot::inference
