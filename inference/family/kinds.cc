#include "inference/family/kinds.h"

#include <bit>
#include <cmath>
#include <utility>

#include "formats/config/derived_keys.h"
#include "formats/json/json.h"
#include "inference/family/recurrent_kinds.h"

// A kind is a function from parameters to its spec. A parameter that the file does not name has the
// value of most families, so that common ones are short.

namespace ingot::inference {

using formats::ModelConfig;

namespace {

constexpr std::array kHeadNorms = {
    Word<HeadNorm>{"none", HeadNorm::kNone}, Word<HeadNorm>{"each", HeadNorm::kPerHead},
    Word<HeadNorm>{"all", HeadNorm::kAllHeads}, Word<HeadNorm>{"plain", HeadNorm::kPlain}};
constexpr std::array kScores = {Word<GateScore>{"softmax", GateScore::kSoftmax},
                                Word<GateScore>{"sigmoid", GateScore::kSigmoid},
                                Word<GateScore>{"sqrt-softplus", GateScore::kSqrtSoftplus},
                                Word<GateScore>{"thresholds", GateScore::kThresholds}};

constexpr Limits kWindow = {0, 1 << 30};
constexpr Limits kFew = {1, kMaxCount};
constexpr Limits kNoneOrFew = {0, kMaxCount};

constexpr std::array kGroupedRows = {
    ParameterRow<GroupedSpec>{"norms_after_rope", &GroupedSpec::norms_after_rope},
    ParameterRow<GroupedSpec>{"output_gate", &GroupedSpec::output_gate},
    ParameterRow<GroupedSpec>{"head_gate", &GroupedSpec::head_gate},
    ParameterRow<GroupedSpec>{"value_gate", &GroupedSpec::value_gate},
    ParameterRow<GroupedSpec>{"softplus_gate", &GroupedSpec::softplus_gate},
    ParameterRow<GroupedSpec>{"sinks", &GroupedSpec::sinks},
    ParameterRow<GroupedSpec>{"value_dim", &GroupedSpec::value_dim},
    ParameterRow<GroupedSpec>{"values_of_keys", &GroupedSpec::values_of_keys},
    ParameterRow<GroupedSpec>{"norms_values", &GroupedSpec::norms_values},
    ParameterRow<GroupedSpec>{"experts", &GroupedSpec::experts, kNoneOrFew},
    ParameterRow<GroupedSpec>{"softmax_scale", &GroupedSpec::softmax_scale, {1e-9, 1e9}},
    ParameterRow<GroupedSpec>{"value_scale", &GroupedSpec::value_scale, {-1e6, 1e6}},
    ParameterRow<GroupedSpec>{"window", &GroupedSpec::window, kWindow},
    ParameterRow<GroupedSpec>{"chunk", &GroupedSpec::chunk, kWindow}};
constexpr std::array kBlockIndexRows = {
    ParameterRow<BlockIndexSpec>{"index_heads", &BlockIndexSpec::heads},
    ParameterRow<BlockIndexSpec>{"index_head_dim", &BlockIndexSpec::head_dim},
    ParameterRow<BlockIndexSpec>{"index_block", &BlockIndexSpec::size, kFew},
    ParameterRow<BlockIndexSpec>{"index_topk", &BlockIndexSpec::topk, kFew},
    ParameterRow<BlockIndexSpec>{"index_local", &BlockIndexSpec::local, kNoneOrFew}};
constexpr std::array kIndexerRows = {
    ParameterRow<IndexerSpec>{"indexer_heads", &IndexerSpec::heads},
    ParameterRow<IndexerSpec>{"indexer_head_dim", &IndexerSpec::head_dim},
    ParameterRow<IndexerSpec>{"indexer_topk", &IndexerSpec::topk, {1, kMaxCount}},
    ParameterRow<IndexerSpec>{"indexer_pool", &IndexerSpec::pool}};
constexpr std::array kCompressedRows = {
    ParameterRow<CompressedSpec>{"out_groups", &CompressedSpec::out_groups},
    ParameterRow<CompressedSpec>{"out_lora", &CompressedSpec::out_lora, kFew},
    ParameterRow<CompressedSpec>{"window", &CompressedSpec::window, kFew}};
constexpr std::array kRouterRows = {
    ParameterRow<RouterSpec>{"selection_bias", &RouterSpec::correction_bias},
    ParameterRow<RouterSpec>{"bias_of_logits", &RouterSpec::bias_of_logits},
    ParameterRow<RouterSpec>{"scales_input", &RouterSpec::scales_input},
    ParameterRow<RouterSpec>{"normalize", &RouterSpec::normalize},
    ParameterRow<RouterSpec>{"normalize_epsilon", &RouterSpec::normalize_epsilon, {0, 1}},
    ParameterRow<RouterSpec>{"scale", &RouterSpec::scale, kAnyReal},
    ParameterRow<RouterSpec>{"identity_experts", &RouterSpec::identity_experts, kNoneOrFew},
    ParameterRow<RouterSpec>{"weighed_shared", &RouterSpec::weighed_shared, kNoneOrFew}};

// `alpha` of dynamic rope stretches its base once, whatever the length.
void stretch_by_alpha(ModelConfig& config) {
  const auto scaling = rope_fields(config);
  const double alpha = scaling ? scaling->optional_real("alpha", 0, 1e9).value_or(0) : 0;
  if (config.rope.type != "dynamic" || alpha <= 0) return;
  const auto width = static_cast<double>(of_heads(config.head_dim, "head_dim"));
  if (width <= 2) refuse("'head_dim' is too small for 'alpha' of rope");
  config.rope.type = "default";
  config.rope.theta *= std::pow(alpha, width / (width - 2));
}

// Rows read some blocks of tokens, chosen by an index head for each key head.
void set_blocks(Parameters& parameters, GroupedSpec& spec, std::uint32_t layer) {
  if (!parameters.has("index_heads")) return;
  BlockIndexSpec blocks;
  parameters.set(blocks, kBlockIndexRows);
  if (blocks.heads != spec.kv_heads || blocks.head_dim < spec.rope.dim ||
      blocks.local > blocks.topk) {
    refuse(ErrorCode::kUnsupported,
           fmt::format("{} index heads of {} for {} key heads, of which {} values are rotated, and "
                       "{} of {} blocks that are always read, make no indexer",
                       blocks.heads, blocks.head_dim, spec.kv_heads, spec.rope.dim, blocks.local,
                       blocks.topk));
  }
  if (parameters.flag("index_values", false))
    refuse(ErrorCode::kUnsupported,
           fmt::format("layer {} has index values, which are not known", layer));
  spec.blocks = blocks;
}

// Rows read tokens that index heads chose, in pools whose keys are averaged.
void set_indexer(Parameters& parameters, GroupedSpec& spec) {
  if (!parameters.has("indexer_heads")) return;
  IndexerSpec indexer{.rope = spec.rope, .averages = true};
  parameters.set(indexer, kIndexerRows);
  if (indexer.head_dim < spec.rope.dim || indexer.topk % indexer.pool != 0) {
    refuse(
        fmt::format("index heads of {} values, of which {} are rotated, that choose {} tokens "
                    "in pools of {} make no indexer",
                    indexer.head_dim, spec.rope.dim, indexer.topk, indexer.pool));
  }
  spec.indexer = indexer;
}

// Queries grow with their positions: as rope's parameters say, or by numbers of the file.
std::optional<GrowthSpec> growth_of(const ModelConfig& config, Parameters& parameters) {
  if (parameters.flag("growth", false)) return query_growth(config);
  if (!parameters.has("growth_length")) return std::nullopt;
  GrowthSpec own{.offset = 1, .is_smooth = parameters.flag("growth_smooth", false)};
  static_cast<void>(parameters.has("growth_beta"));
  if (!parameters.is_set("grows", true)) return std::nullopt;
  own.beta = static_cast<float>(parameters.real("growth_beta", {-1e6, 1e6}).value_or(0));
  own.length = static_cast<float>(parameters.count("growth_length", 0, {1, kWindow.most}));
  return own;
}

// The values of a head that rope turns.
std::optional<std::size_t> rotated_values(const ModelConfig& config, Parameters& parameters) {
  if (!parameters.is_set("positions", true)) return 0;
  if (const auto part = parameters.real("rotated")) {
    if (!(*part > 0) || *part > 1) refuse("a part of a head that is rotated is not above 0 or 1");
    return required(static_cast<std::uint64_t>(*part * static_cast<double>(config.head_dim)),
                    "rotated values of a head");
  }
  if (!parameters.has("rotated_part")) return std::nullopt;
  return rotated_dim(config, parameters.real("rotated_part").value_or(1));
}

BodySpec grouped(const DecoderSpec& model, Parameters& parameters, std::uint32_t layer) {
  const std::string type = parameters.has("rope")
                               ? parameters.key("rope")
                               : formats::entry_of(value_of(model.config, "layer_types"), layer);
  const bool has_own_rope =
      value_of(model.config, fmt::format("rope_parameters.{}", type)).is_object();
  ModelConfig config = has_own_rope ? formats::config_of_layers(model.config, type) : model.config;
  config.num_attention_heads = parameters.number("heads", config.num_attention_heads);
  config.num_key_value_heads = parameters.number("kv_heads", config.num_key_value_heads);
  config.head_dim = parameters.count("head_dim", config.head_dim);
  // An object for the layers of a type says all of their rope.
  const bool is_scaled = parameters.flag("scaled_rope", true);
  const auto theta = parameters.real("theta", {0, 1e12});
  if (!has_own_rope) {
    if (!is_scaled) config.rope = {.theta = config.rope.theta};
    config.rope.theta = theta.value_or(config.rope.theta);
  }
  if (parameters.flag("rope_alpha", false)) stretch_by_alpha(config);
  GroupedSpec spec =
      grouped_attention(config, {.dim = rotated_values(config, parameters),
                                 .interleaved = parameters.flag("interleaved", false),
                                 .may_be_long = parameters.flag("long_rope", true)});
  spec.norms = parameters.word("head_norms", HeadNorm::kPerHead, kHeadNorms);
  if (!parameters.flag("has_head_norms", true)) spec.norms = HeadNorm::kNone;
  parameters.set(spec, kGroupedRows);
  if (parameters.flag("scaled_by_width", false))
    spec.softmax_scale = 1.0F / static_cast<float>(spec.head_dim);
  if (const auto width = parameters.real("scaled_by_root_of", {1e-9, 1e9}))
    spec.softmax_scale = static_cast<float>(1 / std::sqrt(*width));
  if (const auto cap = parameters.real("score_cap", {1e-6, 1e9}))
    spec.score_cap = static_cast<float>(*cap);
  if (const auto most = parameters.real("clip", {1e-6, 1e9})) spec.clip = static_cast<float>(*most);
  if (parameters.has("distance_values")) {
    spec.distances = {.values = parameters.count("distance_values", 0),
                      .extent = parameters.count("distance_extent", 0, {1, kMaxCount})};
  }
  spec.growth = growth_of(config, parameters);
  set_blocks(parameters, spec, layer);
  set_indexer(parameters, spec);
  return spec;
}

void set_indexer(const DecoderSpec& model, Parameters& parameters, LatentSpec& spec,
                 std::uint32_t layer) {
  IndexerSpec indexer =
      lightning_indexer(model.config, spec, parameters.flag("indexer_interleaved", true),
                        parameters.flag("indexer_from_input", false));
  indexer.hadamard_fp8 = parameters.flag("indexer_hadamard", false);
  if (indexer.hadamard_fp8 && !std::has_single_bit(indexer.head_dim)) {
    refuse(ErrorCode::kUnsupported,
           "'index_head_dim' is no power of two, as the Hadamard transform needs");
  }
  indexer.rotates_last = parameters.flag("indexer_rotates_last", false);
  if (parameters.flag("indexer_own_norm_eps", false)) indexer.norm_eps = model.spec.norm.eps;
  indexer.pool = parameters.count("indexer_pool", indexer.pool);
  if (indexer.topk % indexer.pool != 0) {
    refuse(fmt::format("'index_topk' is {}, no multiple of the {} tokens of a pool", indexer.topk,
                       indexer.pool));
  }
  spec = with_indexer(model.config, spec, indexer, layer);
}

// An earlier layer of its kind, with keys of its own, whose keys the layer reads.
void set_source(const DecoderSpec& model, Parameters& parameters, LatentSpec& spec,
                std::uint32_t layer) {
  const std::optional<double> said = parameters.real("keys_of", {0, kMaxCount});
  if (!said || *said == layer) return;
  spec.keys_of = static_cast<std::size_t>(*said);
  const bool is_earlier = *said < layer && *said == std::floor(*said);
  const LatentSpec* source =
      is_earlier ? model.spec.layers[*spec.keys_of].find<LatentSpec>() : nullptr;
  if (source == nullptr || source->keys_of || source->rope_dim != spec.rope_dim) {
    refuse(
        fmt::format("'{}' has {} for layer {}, which is no earlier layer of its kind with keys "
                    "of its own",
                    parameters.key("keys_of"), *said, layer));
  }
}

BodySpec latent(const DecoderSpec& model, Parameters& parameters, std::uint32_t layer) {
  ModelConfig config = model.config;
  const bool is_stretched = parameters.flag("stretched", false) && !rope_fields(config);
  if (is_stretched) {
    // The defaults of transformers.
    config.rope.type = "yarn";
    config.rope.factor = 2048;
    config.rope.original_max_position_embeddings = 512;
  }
  LatentSpec spec = latent_attention(config, parameters.flag("positions", true));
  if (is_stretched) spec.rope.magnitude = 1.0F;
  spec.rope.is_learned = parameters.flag("learned_rope", false);
  spec.rope.interleaved = parameters.flag("interleaved", spec.rope.interleaved);
  spec.head_gate = parameters.flag("head_gate", false);
  spec.value_gate = parameters.flag("value_gate", false);
  spec.sinks = parameters.flag("sinks", false);
  spec.heads_grow = parameters.flag("heads_grow", false);
  spec.growth = growth_of(model.config, parameters);
  if (parameters.flag("own_norm_eps", false)) spec.latent_norm_eps = model.spec.norm.eps;
  const auto latent_scale = [&](const char* flag, std::size_t width) {
    if (!parameters.flag(flag, false) || width == 0) return 1.0F;
    return static_cast<float>(
        std::sqrt(static_cast<double>(model.spec.hidden) / static_cast<double>(width)));
  };
  spec.query_latent_scale = latent_scale("scales_queries", spec.q_lora);
  spec.key_latent_scale = latent_scale("scales_keys", spec.kv_lora);
  if (parameters.flag("indexer", false)) set_indexer(model, parameters, spec, layer);
  // The indexer has positions in all layers.
  if (!parameters.flag("has_rope", true)) spec.nope += std::exchange(spec.rope_dim, 0);
  set_source(model, parameters, spec, layer);
  return spec;
}

// Every layer has a sliding window and a compressed cache, of which a row sees all, or the choice
// of an indexer. Layers with a compressor have other, stretched frequencies, without an effect on
// magnitudes; short windows of it overlap and have an indexer, long ones neither.
BodySpec compressed(const DecoderSpec& model, Parameters& parameters, std::uint32_t layer) {
  constexpr std::uint64_t kShort = 4, kLong = 128;
  const ModelConfig& config = model.config;
  CompressedSpec spec{.heads = of_heads(config.num_attention_heads, "num_attention_heads"),
                      .head_dim = of_heads(config.head_dim, "head_dim"),
                      .rope_dim = of_heads(config.qk_rope_head_dim, "qk_rope_head_dim"),
                      .q_lora = required(config.q_lora_rank, "q_lora_rank")};
  parameters.set(spec, kCompressedRows);
  if (spec.rope_dim >= spec.head_dim || spec.heads % spec.out_groups != 0) {
    refuse(
        fmt::format("{} heads of {} values, of which {} are rotated, in {} groups make no "
                    "attention",
                    spec.heads, spec.head_dim, spec.rope_dim, spec.out_groups));
  }
  const std::string key = parameters.key("ratio");
  const formats::Json& ratios = value_of(config, key);
  const auto ratio = ratios.is_array() && layer < ratios.size()
                         ? formats::whole_number(ratios[layer], kMaxCount)
                         : std::nullopt;
  if (!ratio) refuse(fmt::format("'{}' has no whole number for layer {}", key, layer));
  if (*ratio != 0 && *ratio != kShort && *ratio != kLong) {
    refuse(ErrorCode::kUnsupported,
           fmt::format("'{}' has {} for layer {}; the forward pass knows 0, {} and {}", key, *ratio,
                       layer, kShort, kLong));
  }
  formats::RopeConfig stretched = config.rope;
  stretched.theta = parameters.real("compressed_theta", {0, 1e12}).value_or(config.rope.theta);
  const RopeSpec far = rope_spec(stretched, spec.rope_dim, /*interleaved=*/true);
  spec.rope = rope_spec({.theta = config.rope.theta}, spec.rope_dim, /*interleaved=*/true);
  if (*ratio == 0) return spec;
  spec.rope = far;
  spec.rope.magnitude = 1.0F;
  spec.compressor = {static_cast<std::size_t>(*ratio), *ratio == kShort};
  if (*ratio != kShort) return spec;
  spec.topk = required(config.index_topk, "index_topk");
  spec.index_heads = of_heads(config.index_n_heads, "index_n_heads");
  spec.index_head_dim = of_heads(config.index_head_dim, "index_head_dim");
  if (spec.index_head_dim < spec.rope_dim) {
    refuse(fmt::format("'index_head_dim' is {}, less than the {} values that are rotated",
                       spec.index_head_dim, spec.rope_dim));
  }
  return spec;
}

BodySpec dense(const DecoderSpec& model, Parameters&, std::uint32_t) {
  return model.dense;
}

BodySpec mixture(const DecoderSpec& model, Parameters&, std::uint32_t) {
  if (!model.mixture) refuse("'n_routed_experts' is missing or 0");
  return *model.mixture;
}

struct KindRow {
  std::string_view name;
  BodySpec (*body)(const DecoderSpec& model, Parameters& parameters, std::uint32_t layer);
};
constexpr std::array kKinds = {KindRow{"grouped", grouped},
                               KindRow{"latent", latent},
                               KindRow{"compressed", compressed},
                               KindRow{"delta-net", delta_net},
                               KindRow{"state-space", state_space},
                               KindRow{"selective-scan", selective_scan},
                               KindRow{"lightning", lightning_attention},
                               KindRow{"gated-convolution", gated_convolution},
                               KindRow{"mlp", dense},
                               KindRow{"mixture", mixture}};

}  // namespace

BodySpec body_of(const DecoderSpec& model, Parameters& parameters, std::uint32_t layer) {
  const std::string name = parameters.kind();
  const auto kind = std::ranges::find(kKinds, name, &KindRow::name);
  if (kind == kKinds.end()) {
    parameters.refuse(parameters.line(), fmt::format("there is no kind of mixer '{}'{}", name,
                                                     did_you_mean(name, kKinds, &KindRow::name)));
  }
  return kind->body(model, parameters, layer);
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
      ParameterRow<GateForm>{"slope", &GateForm::alpha, kFinite},
      ParameterRow<GateForm>{"up_offset", &GateForm::up_offset, kAnyReal}};
  static_cast<void>(mlp.has("width"));
  MlpSpec form{.has_gate = mlp.flag("has_gate", true)};
  mlp.set(form.gate, kForms);
  form.gate = limited(form.gate, mlp, "limit");
  const auto give = [](MlpSpec& to, const MlpSpec& from) {
    to.gate = from.gate;
    to.has_gate = from.has_gate;
  };
  if (auto* dense = std::get_if<MlpSpec>(&feed_forward)) {
    dense->width = mlp.count("width", dense->width, {0, 1 << 30});
    give(*dense, form);
  }
  auto* experts = std::get_if<MixtureSpec>(&feed_forward);
  if (experts == nullptr) return;
  if (experts->shared) give(*experts->shared, form);
  if (experts->dense) give(*experts->dense, form);
  if (mixture != nullptr && mixture->has("expert_limit"))
    form.gate = limited(form.gate, *mixture, "expert_limit");
  give(experts->expert, form);
}

void set_model(Parameters& parameters, DecoderSpec& model) {
  EndsSpec& ends = model.spec.ends;
  float& eps = model.spec.norm.eps;
  if (const auto own = parameters.real("norm_eps", {1e-12, 1})) eps = static_cast<float>(*own);
  if (!(eps > 0) || eps > 1) refuse("'rms_norm_eps' is missing or not between 0 and 1");
  model.spec.norm.adds = static_cast<float>(parameters.real("norms_add").value_or(0));
  model.spec.norm.is_layer = parameters.flag("layer_norms", false);
  const bool is_root = parameters.flag("embedding_root", false);
  ends.rounds_embedding_factor = parameters.flag("rounds_root", true) && is_root;
  ends.embedding_factor =
      is_root ? static_cast<float>(std::sqrt(static_cast<double>(model.spec.hidden)))
              : static_cast<float>(parameters.real("embedding_factor").value_or(1));
  ends.logit_factor = static_cast<float>(parameters.real("logit_factor").value_or(1) /
                                         parameters.real("logits_over", {1e-9, 1e9}).value_or(1));
  model.residual_factor = static_cast<float>(parameters.real("residual_factor").value_or(1));
  if (const auto of_blocks = parameters.real("block_norm_eps", {1e-12, 1})) {
    ends.norm_eps = eps;
    eps = static_cast<float>(*of_blocks);
  }
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
  ends.norms_embedding = parameters.flag("norms_embedding", false);
  model.norms_input = parameters.flag("norms_input", true);
  model.norms_output = parameters.flag("norms_output", false);
  const std::size_t stored = model.spec.stored_vocab;
  model.spec.vocab = parameters.count("vocab", stored, {1, static_cast<double>(stored)});
  if (parameters.has("short_convolution"))
    model.short_convolution = parameters.count("short_convolution", 0, {2, 1 << 16});
  model.has_ngrams = parameters.flag("ngrams", false);
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
