#include "inference/family/kinds.h"

#include <bit>
#include <cmath>
#include <numbers>
#include <utility>

#include "formats/config/derived_keys.h"
#include "formats/json/json.h"
#include "inference/model/spec/mixer_kinds.h"

// A kind is a function from parameters to its spec. A parameter that the file does not name has the
// value of most families, so that common ones are short.

namespace ingot::inference {

using formats::ModelConfig;

namespace {

constexpr std::array kScores = {Word<GateScore>{"softmax", GateScore::kSoftmax},
                                Word<GateScore>{"sigmoid", GateScore::kSigmoid},
                                Word<GateScore>{"sqrt-softplus", GateScore::kSqrtSoftplus},
                                Word<GateScore>{"thresholds", GateScore::kThresholds}};

constexpr std::array kRouterRows = {
    ParameterRow<RouterSpec>{"selection_bias", &RouterSpec::correction_bias},
    ParameterRow<RouterSpec>{"bias_of_logits", &RouterSpec::bias_of_logits},
    ParameterRow<RouterSpec>{"ranks_logits", &RouterSpec::ranks_logits},
    ParameterRow<RouterSpec>{"keeps_left_out", &RouterSpec::keeps_left_out},
    ParameterRow<RouterSpec>{"logit_factor", &RouterSpec::logit_factor, kAnyReal},
    ParameterRow<RouterSpec>{"router_width", &RouterSpec::inner, kNoneOrFew},
    ParameterRow<RouterSpec>{"skip_experts", &RouterSpec::skip_experts, kNoneOrFew},
    ParameterRow<RouterSpec>{"scales_input", &RouterSpec::scales_input},
    ParameterRow<RouterSpec>{"normalize", &RouterSpec::normalize},
    ParameterRow<RouterSpec>{"normalize_epsilon", &RouterSpec::normalize_epsilon, {0, 1}},
    ParameterRow<RouterSpec>{"scale", &RouterSpec::scale, kAnyReal},
    ParameterRow<RouterSpec>{"identity_experts", &RouterSpec::identity_experts, kNoneOrFew},
    ParameterRow<RouterSpec>{"weighed_shared", &RouterSpec::weighed_shared, kNoneOrFew}};

// The standard deviations below which is this share of normal values.
double deviations_below(double share) {
  double low = -40, high = 40;
  for (int i = 0; i < 100; ++i) {
    const double middle = (low + high) / 2;
    (std::erfc(-middle / std::numbers::sqrt2) / 2 < share ? low : high) = middle;
  }
  return (low + high) / 2;
}

}  // namespace

BodySpec body_of(const DecoderSpec& model, Parameters& parameters, std::uint32_t layer) {
  const std::string name = parameters.kind();
  if (name == "mlp") return model.dense;
  if (name == "mixture") {
    if (!model.mixture) refuse("'n_routed_experts' is missing or 0");
    return *model.mixture;
  }
  std::vector<std::string_view> known;
  for (const MixerKind* kind : kMixerKinds) {
    if (kind->name == name) return MixerSpec(*kind, kind->read(model, parameters, layer));
    known.push_back(kind->name);
  }
  known.insert(known.end(), {"mlp", "mixture"});
  parameters.refuse(parameters.line(), fmt::format("there is no kind of mixer '{}'{}", name,
                                                   did_you_mean(name, known)));
}

void set_mixture(Parameters& parameters, DecoderSpec& model) {
  if (parameters.flag("in_all_layers", false)) {
    if (!model.mixture) refuse("'n_routed_experts' is missing or 0");
    model.is_moe.assign(model.is_moe.size(), true);
  }
  if (!model.mixture) return;
  model.n_tables = parameters.number("tables", 0);
  RouterSpec& router = model.mixture->router;
  router.score = parameters.word("score", GateScore::kSoftmax, kScores);
  parameters.set(router, kRouterRows);
  if (parameters.has("normalize_order")) {
    const auto order = parameters.real("normalize_order");
    router.normalize = order.has_value();
    router.by_length = order == 2;
    if (order && *order != 1 && *order != 2)
      refuse(ErrorCode::kUnsupported,
             fmt::format("'{}' is {}; the forward pass knows norms of order 1 and 2",
                         parameters.key("normalize_order"), *order));
  }
  if (const auto noise = parameters.real("noise", {0, 1}))
    router.near = static_cast<float>(2 * *noise);
  if (!parameters.flag("scales_normalized", true) && router.normalize) router.scale = 1;
  if (!parameters.flag("in_groups", true)) router.groups = router.topk_groups = 1;
  model.mixture->has_biases = parameters.flag("expert_biases", false);
  if (parameters.has("shared_width")) model.share(parameters.number("shared_width", 0));
  if (parameters.has("dense_width"))
    model.mixture->dense = MlpSpec{.width = parameters.count("dense_width", 0, {1, 1 << 30})};
  model.norms_mixture = parameters.flag("norms_output", false);
  model.spec.carried += router.inner;
  MixtureSpec& mixture = *model.mixture;
  if (parameters.has("blocks")) mixture.blocks = parameters.count("blocks", 0, kFew);
  if (parameters.has("pool")) mixture.pool = parameters.count("pool", 0, kFew);
  if (mixture.pool > 0 && (mixture.shared || mixture.dense || router.identity_experts > 0))
    refuse(ErrorCode::kUnsupported,
           fmt::format("has shared experts; those of a pool ('{}') are not known",
                       parameters.key("pool")));
  if (const auto eps = parameters.real("expert_norm_eps", {1e-12, 1}))
    mixture.expert_norm = {
        .eps = static_cast<float>(*eps), .adds = model.spec.norm.adds, .weighs_first = true};
}

void set_gates(Parameters& mlp, Parameters* mixture, BodySpec& feed_forward) {
  constexpr Limits kFinite = {0, 1e9};
  // Limits behind the silu are lists, with 0 or less for layers without one.
  const auto limited = [&](GateForm form, Parameters& parameters, const char* name) {
    const auto limit = parameters.real(name, form.limits_silu ? kAnyReal : kFinite);
    form.limit.reset();
    if (limit && (*limit > 0 || !form.limits_silu)) form.limit = static_cast<float>(*limit);
    return form;
  };
  constexpr std::array kForms = {
      ParameterRow<GateForm>{"limits_silu", &GateForm::limits_silu},
      ParameterRow<GateForm>{"gelu", &GateForm::is_gelu},
      ParameterRow<GateForm>{"xielu", &GateForm::is_xielu},
      ParameterRow<GateForm>{"gate_factor", &GateForm::gate_factor, kAnyReal},
      ParameterRow<GateForm>{"joins_in_f32", &GateForm::joins_in_f32},
      ParameterRow<GateForm>{"slope", &GateForm::alpha, kFinite},
      ParameterRow<GateForm>{"up_offset", &GateForm::up_offset, kAnyReal}};
  for (const char* name : {"width", "sparsity"}) static_cast<void>(mlp.has(name));
  MlpSpec form{.has_gate = mlp.flag("has_gate", true)};
  mlp.set(form.gate, kForms);
  form.gate = limited(form.gate, mlp, "limit");
  for (const auto& [name, cap] :
       {std::pair("gate_cap", &form.gate.gate_cap), std::pair("up_cap", &form.gate.up_cap)}) {
    if (const auto most = mlp.real(name, {1e-6, 1e9})) *cap = static_cast<float>(*most);
  }
  const auto give = [](MlpSpec& to, const MlpSpec& from) {
    to.gate = from.gate;
    to.has_gate = from.has_gate;
  };
  if (auto* dense = std::get_if<MlpSpec>(&feed_forward)) {
    dense->width = mlp.count("width", dense->width, {0, 1 << 30});
    give(*dense, form);
    if (const auto share = mlp.real("sparsity", {0, 0.999999}); share && *share > 0)
      dense->gate.least_deviation = static_cast<float>(deviations_below(*share));
  }
  auto* experts = std::get_if<MixtureSpec>(&feed_forward);
  if (experts == nullptr) return;
  if (experts->shared) give(*experts->shared, form);
  if (experts->dense) give(*experts->dense, form);
  if (mixture != nullptr && mixture->has("expert_limit"))
    form.gate = limited(form.gate, *mixture, "expert_limit");
  give(experts->expert, form);
}

namespace {

// Norms behind each block, which the sums take.
void set_output_norms(Parameters& parameters, DecoderSpec& model) {
  NormSpec norm = model.spec.norm;
  if (const auto own = parameters.real("output_norm_eps", {1e-12, 1}))
    norm.eps = static_cast<float>(*own);
  const bool is_plain = parameters.flag("plain_mixer_output_norm", false);
  const bool weighs_first = parameters.flag("output_norm_weighs_first", false);
  if (!parameters.flag("norms_output", false)) return;
  model.mixer_output_norm = model.feed_forward_output_norm = norm;
  if (is_plain) model.mixer_output_norm = {.eps = norm.eps, .is_plain = true};
  model.feed_forward_output_norm->weighs_first = weighs_first;
}

// Layers that are visited again: whole runs, behind the first.
void set_loop(Parameters& parameters, DecoderSpec& model) {
  if (!parameters.has("loop_first")) return;
  if (model.run == 0) parameters.refuse(parameters.line(), "a loop needs 'source_layers'");
  const auto n_layers = static_cast<double>(model.spec.n_main);
  const LoopSpec loop{.first = parameters.count("loop_first", 0, {1, n_layers}),
                      .end = parameters.count("loop_end", 0, {1, n_layers}),
                      .passes = parameters.count("loop_passes", 1, {1, 1024}),
                      .rank = parameters.count("loop_rank", 0)};
  if (loop.first >= loop.end || loop.first % model.run != 0 || loop.end % model.run != 0) {
    refuse(fmt::format("'{}' {} and '{}' {} are not the ends of runs of {} layers",
                       parameters.key("loop_first"), loop.first, parameters.key("loop_end"),
                       loop.end, model.run));
  }
  model.spec.loop = loop;
}

}  // namespace

void set_model(Parameters& parameters, DecoderSpec& model) {
  EndsSpec& ends = model.spec.ends;
  NormSpec& norm = model.spec.norm;
  float& eps = norm.eps;
  if (const auto own = parameters.real("norm_eps", {1e-12, 1})) eps = static_cast<float>(*own);
  if (!(eps > 0) || eps > 1) refuse("'rms_norm_eps' is missing or not between 0 and 1");
  norm.adds = static_cast<float>(parameters.real("norms_add").value_or(0));
  norm.is_layer = parameters.flag("layer_norms", false);
  ends.final_norm = norm;
  if (const auto own = parameters.real("final_norm_adds"))
    ends.final_norm.adds = static_cast<float>(*own);
  norm.gate_rank = parameters.count("norm_gate_rank", 0, kNoneOrFew);
  norm.gate_factor = static_cast<float>(parameters.real("norm_gate_factor").value_or(1));
  ends.final_norm.gate_rank = norm.gate_rank;
  ends.final_norm.gate_factor = norm.gate_factor;
  const bool is_root = parameters.flag("embedding_root", false);
  ends.rounds_embedding_factor = parameters.flag("rounds_root", true) && is_root;
  ends.embedding_factor =
      is_root ? static_cast<float>(std::sqrt(static_cast<double>(model.spec.hidden)))
              : static_cast<float>(parameters.real("embedding_factor").value_or(1));
  ends.logit_factor = static_cast<float>(parameters.real("logit_factor").value_or(1) /
                                         parameters.real("logits_over", {1e-9, 1e9}).value_or(1));
  model.residual_factor = static_cast<float>(parameters.real("residual_factor").value_or(1));
  if (const auto of_blocks = parameters.real("block_norm_eps", {1e-12, 1}))
    eps = static_cast<float>(*of_blocks);
  if (const auto cap = parameters.real("logit_cap", {1e-6, 1e9}))
    ends.logit_cap = static_cast<float>(*cap);
  ends.logit_divisor =
      static_cast<float>(parameters.real("logit_divisor", {1e-6, 1e6}).value_or(1));
  for (const char* name : {"image_token", "video_token", "audio_token"}) {
    if (const auto token = parameters.real(name, {0, kMaxCount}))
      ends.placeholders.push_back(static_cast<std::size_t>(*token));
  }
  ends.padding =
      parameters.count("padding_token", 0, {0, static_cast<double>(model.spec.vocab - 1)});
  if (parameters.flag("norms_embedding", false)) ends.embedding_norm = norm;
  if (parameters.flag("plain_embedding_norm", false))
    ends.embedding_norm = {.eps = norm.eps, .is_plain = true};
  model.norms_input = parameters.flag("norms_input", true);
  set_output_norms(parameters, model);
  model.is_weighed_by_depth = parameters.flag("weighed_by_depth", false);
  if (const auto temperature = parameters.real("residual_gate", {1e-6, 1e6}))
    model.gate_temperature = static_cast<float>(*temperature);
  const std::size_t stored = model.spec.stored_vocab;
  model.spec.vocab = parameters.count("vocab", stored, {1, static_cast<double>(stored)});
  if (parameters.has("short_convolution"))
    model.short_convolution = parameters.count("short_convolution", 0, {2, 1 << 16});
  model.scales_convolution = parameters.flag("scales_convolution", false);
  if (parameters.has("source_layers")) {
    model.run = parameters.count("source_layers", 0, kFew);
    model.spec.sources = (model.spec.n_main - 1) / model.run + 1;
    model.spec.carried = model.spec.sources * model.spec.hidden;
  }
  set_loop(parameters, model);
  if (parameters.count("layer_input_width", 0, kNoneOrFew) > 0) {
    model.spec.layer_inputs = {
        .width = parameters.count("layer_input_width", 0),
        .rows = parameters.count("layer_input_rows", model.spec.stored_vocab, {1, 1 << 30})};
    model.spec.carried = model.spec.n_main * model.spec.layer_inputs->width;
  }
  static_cast<void>(parameters.has("layer_input_rows"));
  model.has_ngrams = parameters.flag("ngrams", false);
  if (parameters.has("predicted_streams")) {
    const std::size_t n = parameters.count("predicted_streams", 0, {2, 64});
    model.spec.ends.hyper = {
        .streams = n,
        .active = parameters.count("active_stream", 0, {0, static_cast<double>(n - 1)}),
        .scales_active = parameters.flag("scales_active", false)};
  }
  if (parameters.number("streams", 0) == 0) return;
  model.spec.ends.hyper = hyper_spec(model.fields, model.spec.norm);
  HyperSpec& hyper = *model.spec.ends.hyper;
  hyper.streams = parameters.count("stream_count", hyper.streams);
  if (parameters.has("stream_rank")) hyper.rank = parameters.count("stream_rank", 0);
  model.spec.ends.hyper->learned_head = parameters.flag("learned_head", true);
  model.spec.ends.hyper->mixes = parameters.flag("mixes_streams", true);
  if (const auto most = parameters.real("stream_magnitude", {0, 1e6}))
    model.spec.ends.hyper->magnitude = static_cast<float>(*most);
}

}  // namespace ingot::inference
