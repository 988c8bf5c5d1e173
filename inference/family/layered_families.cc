#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "formats/json/json.h"
#include "formats/json/json_fields.h"
#include "inference/family/spec_parts.h"

// Families whose layers have attention of different kinds.

namespace ingot::inference {

using formats::JsonFields;
using formats::ModelConfig;

namespace {

constexpr std::uint64_t kMaxWindow = std::uint64_t{1} << 30;

// Whether each layer's attention slides: `layer_types`, which may go on over MTP layers.
std::vector<bool> sliding_layers(const JsonFields& fields, std::size_t n_layers) {
  const formats::Json& types = fields.array("layer_types");
  if (types.size() < n_layers) {
    refuse(fmt::format("'layer_types' is not a list for {} layers", n_layers));
  }
  std::vector<bool> slides;
  for (std::size_t l = 0; l < n_layers; ++l) {
    const std::string word = types[l].is_string() ? types[l].get<std::string>() : std::string();
    if (word != "sliding_attention" && word != "full_attention") {
      refuse(ErrorCode::kUnsupported,
             fmt::format("'layer_types' has '{}' for layer {}; this family's layers have "
                         "sliding_attention or full_attention",
                         word, l));
    }
    slides.push_back(word == "sliding_attention");
  }
  return slides;
}

// The numbers of a list with an entry per layer, null as 0; empty where it is no list.
std::vector<double> per_layer(const JsonFields& fields, const char* key, std::size_t n_layers) {
  std::vector<double> numbers;
  const formats::Json* list = fields.find(key);
  if (list == nullptr || !list->is_array()) return numbers;
  for (const formats::Json& entry : *list) {
    if (!entry.is_null() && !entry.is_number()) refuse(fmt::format("'{}' has no numbers", key));
    numbers.push_back(entry.is_null() ? 0.0 : entry.get<double>());
  }
  if (numbers.size() < n_layers) {
    refuse(fmt::format("'{}' is not a list for {} layers", key, n_layers));
  }
  return numbers;
}

std::size_t part_of(double factor, std::size_t width) {
  if (!(factor > 0) || factor > 1) refuse("a part of a head that is rotated is not above 0 or 1");
  return static_cast<std::size_t>(factor * static_cast<double>(width));
}

// Gates with a limit and a slope, ups with an offset.
GateForm sloped_gate(const JsonFields& fields) {
  const auto number = [&](const char* key, double usual) {
    return static_cast<float>(fields.optional_real(key, 0, 1e9).value_or(usual));
  };
  return {
      .limit = number("swiglu_limit", 7.0), .alpha = number("swiglu_alpha", 1.702), .up_offset = 1};
}

}  // namespace

// gpt-oss: windows in some layers, a sink in every head, biases everywhere; gates with a slope, and
// ups with an offset.
ModelSpec gpt_oss(const ModelConfig& config) {
  Decoder model(config);
  model.leave_out_mtp();
  GroupedSpec full = grouped_attention(config);
  full.norms = HeadNorm::kNone;
  full.sinks = true;
  GroupedSpec sliding = full;
  sliding.window = needed(model.fields, "sliding_window", kMaxWindow);
  const std::vector<bool> slides = sliding_layers(model.fields, model.spec.n_main);
  RouterSpec& router = model.router("num_local_experts");
  router.score = GateScore::kSoftmax;
  router.normalize = true;  // as a softmax over the chosen logits only
  router.bias_of_logits = true;
  model.mixture->has_biases = true;
  model.gate(sloped_gate(model.fields));
  return model.with([&](std::size_t l) { return slides[l] ? sliding : full; });
}

// MiMo-V2-Flash: sliding layers have heads, a base of rope and sinks of their own; a row sees the
// tokens of the window and itself. Values are narrower than keys, and scaled.
ModelSpec mimo_v2_flash(const ModelConfig& config) {
  Decoder model(config);
  model.leave_out_mtp();
  model.spec.leaves_out_mtp = true;  // the names tell, not the config
  const JsonFields& fields = model.fields;
  const std::size_t n_layers = model.spec.n_main;
  const double part = fields.optional_real("partial_rotary_factor", 0, 1).value_or(1);
  const std::size_t head_dim = of_heads(config.head_dim, "head_dim");
  GroupedSpec full = grouped_attention(config, {.dim = part_of(part, head_dim)});
  full.norms = HeadNorm::kNone;
  full.value_dim = of_heads(config.v_head_dim, "v_head_dim");
  full.value_scale =
      static_cast<float>(fields.optional_real("attention_value_scale", -1e6, 1e6).value_or(1));
  full.sinks = fields.boolean("add_full_attention_sink_bias", false);

  GroupedSpec sliding = full;
  const auto own = [&](const char* key, std::size_t usual) {
    return of_heads(fields.optional_number(key, kMaxCount).value_or(usual), key);
  };
  sliding.heads = own("swa_num_attention_heads", full.heads);
  sliding.kv_heads = own("swa_num_key_value_heads", full.kv_heads);
  sliding.head_dim = own("swa_head_dim", full.head_dim);
  sliding.value_dim = own("swa_v_head_dim", full.value_dim);
  sliding.sinks = fields.boolean("add_swa_attention_sink_bias", false);
  sliding.softmax_scale =
      static_cast<float>(1.0 / std::sqrt(static_cast<double>(sliding.head_dim)));
  formats::RopeConfig rope = config.rope;
  rope.theta = fields.optional_real("swa_rope_theta", 0, 1e12).value_or(10000);
  sliding.rope = rope_spec(rope, part_of(part, sliding.head_dim), /*interleaved=*/false);
  const auto before = fields.optional_number("sliding_window_size", kMaxWindow);
  sliding.window = before ? required(*before, "sliding_window_size") + 1
                          : needed(fields, "sliding_window", kMaxWindow);
  require_shared_keys(sliding);
  const std::vector<std::uint64_t> pattern = fields.numbers("hybrid_layer_pattern");
  if (pattern.size() < n_layers) {
    refuse(fmt::format("'hybrid_layer_pattern' is not a list for {} layers", n_layers));
  }
  set_sigmoid_router(model);
  return model.with([&](std::size_t l) {
    if (pattern[l] > 1) refuse(fmt::format("'hybrid_layer_pattern' has {}", pattern[l]));
    return pattern[l] == 1 ? sliding : full;
  });
}

// Llama 4: layers with rope see the tokens of their chunk and normalize rotated values; layers
// without see all, and their queries may grow. Experts take their input times the gate.
ModelSpec llama4(const ModelConfig& config) {
  Decoder model(config);
  model.leave_out_mtp();
  const JsonFields& fields = model.fields;
  GroupedSpec chunked = grouped_attention(config, {.interleaved = true});
  chunked.norms = fields.boolean("use_qk_norm", true) ? HeadNorm::kPlain : HeadNorm::kNone;
  chunked.norms_after_rope = true;
  GroupedSpec whole = chunked;
  chunked.chunk = static_cast<std::size_t>(
      fields.optional_number("attention_chunk_size", kMaxWindow).value_or(8192));
  whole.norms = HeadNorm::kNone;
  whole.rope = {};
  // A flag in some configs, a number in others.
  const formats::Json* tuned = fields.find("attn_temperature_tuning");
  if (tuned == nullptr || (*tuned != false && *tuned != 0 && !tuned->is_null())) {
    whole.growth = GrowthSpec{
        .beta = static_cast<float>(fields.optional_real("attn_scale", 0, 1e6).value_or(0.1)),
        .length = static_cast<float>(required(
            fields.optional_number("floor_scale", kMaxWindow).value_or(8192), "floor_scale")),
        .offset = 1};
  }
  const std::vector<bool> has_rope = rope_layers(fields, model.spec.n_main);
  RouterSpec& router = model.router("num_local_experts");
  router.score = GateScore::kSigmoid;
  router.scales_input = true;
  model.share(model.mixture->expert.width);
  return model.with([&](std::size_t l) { return has_rope[l] ? chunked : whole; });
}

// MiniMax M3: in listed layers rows read some blocks of tokens, chosen by an index head for each
// key head. Norms add one to their weights; gates have a slope, ups an offset.
ModelSpec minimax_m3_vl(const ModelConfig& config) {
  Decoder model(config, "swigluoai");
  model.leave_out_mtp();
  const JsonFields& fields = model.fields;
  const std::size_t n_layers = model.spec.n_main;
  require_text(fields, "scoring_func", "sigmoid");
  require_text(fields, "qk_norm_type", "per_head");
  GroupedSpec attention = grouped_attention(config, {.dim = rotated_dim(config)});
  if (!fields.boolean("use_qk_norm", true)) attention.norms = HeadNorm::kNone;
  model.spec.norm.adds = 1;
  set_biased_router(model, "norm_topk_prob");
  model.router().correction_bias = fields.boolean("use_routing_bias", true);
  model.share(config.shared_intermediate_size);
  model.gate(sloped_gate(fields));

  const auto sparse = fields.optional_child("sparse_attention_config");
  if (!sparse || !sparse->boolean("use_sparse_attention", true)) return model.with(attention);
  BlockIndexSpec blocks;
  blocks.heads = of_heads(needed(*sparse, "sparse_num_index_heads"), "sparse_num_index_heads");
  blocks.head_dim = of_heads(needed(*sparse, "sparse_index_dim"), "sparse_index_dim");
  blocks.size = needed(*sparse, "sparse_block_size");
  blocks.topk = needed(*sparse, "sparse_topk_blocks");
  blocks.local = static_cast<std::size_t>(
      sparse->optional_number("sparse_local_block", kMaxCount).value_or(0));
  require_text(*sparse, "sparse_score_type", "max");
  if (blocks.heads != attention.kv_heads || blocks.head_dim < attention.rope.dim ||
      blocks.local > blocks.topk) {
    refuse(ErrorCode::kUnsupported,
           fmt::format("{} index heads of {} for {} key heads, of which {} values are rotated, and "
                       "{} of {} blocks that are always read, make no indexer of this family",
                       blocks.heads, blocks.head_dim, attention.kv_heads, attention.rope.dim,
                       blocks.local, blocks.topk));
  }
  if (sparse->optional_number("sparse_init_block", kMaxCount).value_or(0) != 0) {
    refuse(ErrorCode::kUnsupported,
           "'sparse_init_block' is not 0; first blocks that are always read are not known");
  }
  const std::vector<std::uint64_t> is_sparse = sparse->numbers("sparse_attention_freq");
  const std::vector<std::uint64_t> no_values =
      sparse->optional_numbers("sparse_disable_index_value");
  return model.with([&](std::size_t l) {
    if (l >= is_sparse.size()) {
      refuse(fmt::format("'sparse_attention_freq' is not a list for {} layers", n_layers));
    }
    GroupedSpec own = attention;
    if (is_sparse[l] == 0) return own;
    own.blocks = blocks;
    if (!no_values.empty() && (l >= no_values.size() || no_values[l] == 0)) {
      refuse(ErrorCode::kUnsupported,
             fmt::format("'sparse_disable_index_value' has no 1 for layer {}; index values are not "
                         "known",
                         l));
    }
    return own;
  });
}

// Step 3.5 and 3.7: sliding layers have heads of their own; rope by layer; every head has a gate.
// Norms add one to their weights, and some layers limit their gates behind the silu.
ModelSpec step3p7(const ModelConfig& config) {
  Decoder model(config);
  model.leave_out_mtp();
  const JsonFields& fields = model.fields;
  const std::size_t n_layers = model.spec.n_main;
  GroupedSpec full = grouped_attention(config);
  model.spec.norm.adds = 1;
  full.norms = fields.boolean("use_qk_norm", true) ? HeadNorm::kPerHead : HeadNorm::kNone;
  full.head_gate = fields.boolean("use_head_wise_attn_gate", false);
  GroupedSpec sliding = full;
  if (const auto other = fields.optional_child("attention_other_setting")) {
    const auto own = [&](const char* key, std::size_t usual) {
      return of_heads(other->optional_number(key, kMaxCount).value_or(usual), key);
    };
    sliding.heads = own("num_attention_heads", full.heads);
    sliding.kv_heads = own("num_attention_groups", full.kv_heads);
    sliding.head_dim = sliding.value_dim = own("head_dim", full.head_dim);
    sliding.softmax_scale =
        static_cast<float>(1.0 / std::sqrt(static_cast<double>(sliding.head_dim)));
    require_shared_keys(sliding);
  }
  sliding.window = needed(fields, "sliding_window", kMaxWindow);
  const std::vector<bool> slides = sliding_layers(fields, n_layers);
  const std::vector<double> bases = per_layer(fields, "rope_theta", n_layers);
  const std::vector<double> parts = per_layer(fields, "partial_rotary_factors", n_layers);
  const std::vector<double> limits = per_layer(fields, "swiglu_limits", n_layers);
  const std::vector<double> shared_limits = per_layer(fields, "swiglu_limits_shared", n_layers);
  const auto gate_at = [](const std::vector<double>& all, std::size_t l) {
    GateForm form{.limits_silu = true};
    if (!all.empty() && all[l] > 0) form.limit = static_cast<float>(all[l]);
    return form;
  };
  require_text(fields, "moe_router_activation", "sigmoid");
  set_biased_router(model, "norm_expert_weight");
  model.router().correction_bias = fields.boolean("use_moe_router_bias", true);
  model.router().scale =
      static_cast<float>(fields.optional_real("moe_router_scaling_factor", -1e9, 1e9).value_or(1));
  model.share(config.shared_intermediate_size);
  const auto mixer = [&](std::size_t l) {
    GroupedSpec own = slides[l] ? sliding : full;
    // Windows need no scaled rope.
    formats::RopeConfig rope = slides[l] ? formats::RopeConfig() : config.rope;
    rope.theta = bases.empty() ? config.rope.theta : bases[l];
    own.rope = rope_spec(rope, part_of(parts.empty() ? 1 : parts[l], own.head_dim),
                         /*interleaved=*/false, rope_bands(config));
    return own;
  };
  ModelSpec spec = model.with(mixer);
  for (std::size_t l = 0; l < n_layers; ++l) {
    BodySpec& feed_forward = spec.layers[l].blocks.back().body;
    if (auto* mlp = std::get_if<MlpSpec>(&feed_forward)) mlp->gate = gate_at(shared_limits, l);
    auto* mixture = std::get_if<MixtureSpec>(&feed_forward);
    if (mixture == nullptr) continue;
    mixture->expert.gate = gate_at(limits, l);
    if (mixture->shared) mixture->shared->gate = gate_at(shared_limits, l);
  }
  return spec;
}

// Inkling: logits by distance in place of rope, short convolutions over keys, values and outputs;
// local layers have heads of their own. The router weighs shared experts too.
ModelSpec inkling(const ModelConfig& config) {
  Decoder model(config);
  model.leave_out_mtp();
  const JsonFields& fields = model.fields;
  model.spec.ends.norms_embedding = true;
  model.spec.ends.logit_divisor = static_cast<float>(
      fields.optional_real("logits_mup_width_multiplier", 1e-6, 1e6).value_or(24));
  if (const auto unpadded = fields.optional_number("unpadded_vocab_size", model.spec.stored_vocab))
    model.spec.vocab = required(*unpadded, "unpadded_vocab_size");
  const bool is_saved = fields.find("conv_kernel_size") != nullptr;
  const std::size_t kernel = of_heads(
      fields.optional_number(is_saved ? "conv_kernel_size" : "sconv_kernel_size", kMaxCount)
          .value_or(4),
      "sconv_kernel_size");
  if (kernel < 2) refuse("'sconv_kernel_size' is 1, which convolves nothing");

  GroupedSpec whole = grouped_attention(config, {.dim = 0});
  const auto own = [&](const char* key, std::size_t usual) {
    return of_heads(fields.optional_number(key, kMaxCount).value_or(usual), key);
  };
  const auto scale = [](GroupedSpec& spec) {
    spec.softmax_scale = 1.0F / static_cast<float>(spec.head_dim);
  };
  const std::size_t values = of_heads(needed(fields, "d_rel"), "d_rel");
  GroupedSpec local = whole;
  local.heads = own("swa_num_attention_heads", whole.heads);
  local.kv_heads = own("swa_num_key_value_heads", whole.kv_heads);
  local.head_dim = local.value_dim = own("swa_head_dim", whole.head_dim);
  require_shared_keys(local);
  local.window = needed(fields, "sliding_window_size", kMaxCount);
  local.distances = {.values = values, .extent = local.window};
  scale(local);
  whole.distances = {.values = values, .extent = needed(fields, "rel_extent")};
  scale(whole);
  if (const auto floor = fields.optional_number("log_scaling_n_floor", kMaxWindow)) {
    whole.growth = GrowthSpec{
        .beta =
            static_cast<float>(fields.optional_real("log_scaling_alpha", -1e6, 1e6).value_or(0.1)),
        .length = static_cast<float>(required(*floor, "log_scaling_n_floor")),
        .offset = 1,
        .is_smooth = true};
  }
  const std::vector<std::uint64_t> locals = fields.numbers("local_layer_ids");
  if (model.mixture) {
    if (!fields.boolean("shared_expert_sink", true)) {
      refuse(ErrorCode::kUnsupported,
             "'shared_expert_sink' is false; the router of this family weighs shared experts");
    }
    RouterSpec& router = model.router();
    router.score = GateScore::kSigmoid;
    router.correction_bias = true;
    router.normalize = true;
    router.scale = static_cast<float>(fields.optional_real("route_scale", -1e9, 1e9).value_or(8));
    router.weighed_shared = static_cast<std::size_t>(config.n_shared_experts);
  }
  ModelSpec spec =
      model.with([&](std::size_t l) { return std::ranges::count(locals, l) > 0 ? local : whole; });
  for (LayerSpec& layer : spec.layers) layer.short_convolution = kernel;
  return spec;
}

// Mistral Large 4: latent attention without a query latent, whose queries grow by head. Layers
// without rope widen the other part of a head; some layers read the keys of an earlier one. Rope's
// frequencies are learned factors of YaRN's, and logits have a soft cap.
ModelSpec mistral_large4(const ModelConfig& given) {
  const bool says_rope = rope_fields(given).has_value();
  ModelConfig config = given;
  if (!says_rope) {
    // The defaults of transformers.
    config.rope.type = "yarn";
    config.rope.factor = 2048;
    config.rope.original_max_position_embeddings = 512;
  }
  Decoder model(config);
  model.leave_out_mtp();
  const JsonFields& fields = model.fields;
  const std::size_t n_layers = model.spec.n_main;
  LatentSpec attention = latent_attention(config);
  if (!says_rope) attention.rope.magnitude = 1.0F;
  attention.rope.is_learned = true;
  attention.latent_norm_eps = model.spec.norm.eps;
  attention.heads_grow = true;
  if (attention.q_lora > 0) {
    refuse(ErrorCode::kUnsupported,
           fmt::format("'q_lora_rank' is {}; this family has no query latent", attention.q_lora));
  }
  const IndexerSpec indexer =
      lightning_indexer(config, attention, /*interleaved=*/true, /*from_input=*/true);

  LatentSpec without_rope = attention;
  without_rope.nope += without_rope.rope_dim;
  without_rope.rope_dim = 0;
  const std::vector<bool> has_rope = rope_layers(fields, n_layers);
  const std::vector<std::uint64_t> sources = fields.optional_numbers("kv_source_layers");
  if (!sources.empty() && sources.size() != n_layers) {
    refuse(fmt::format("'kv_source_layers' is not a list for {} layers", n_layers));
  }
  const auto mixer = [&](std::size_t l) {
    LatentSpec own = with_indexer(config, has_rope[l] ? attention : without_rope, indexer, l);
    if (sources.empty() || sources[l] == l) return own;
    if (sources[l] > l || sources[sources[l]] != sources[l] ||
        has_rope[sources[l]] != has_rope[l]) {
      refuse(
          fmt::format("'kv_source_layers' has {} for layer {}, which is no earlier layer of its "
                      "kind with keys of its own",
                      sources[l], l));
    }
    own.keys_of = static_cast<std::size_t>(sources[l]);
    return own;
  };
  model.spec.ends.logit_cap =
      static_cast<float>(fields.optional_real("final_logit_softcapping", 1e-6, 1e9).value_or(30));
  if (!model.mixture) return model.with(mixer);
  set_softmax_router(model);
  require_one_group(model);
  model.router().scale = routed_scale(fields);
  return model.with(mixer);
}

}  // namespace ingot::inference
