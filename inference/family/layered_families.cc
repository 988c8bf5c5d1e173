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

void require_shared_keys(const GqaSpec& gqa) {
  if (gqa.heads % gqa.kv_heads != 0) {
    refuse(fmt::format("{} heads over {} key heads make no attention", gqa.heads, gqa.kv_heads));
  }
}

}  // namespace

// gpt-oss: windows in some layers, a sink in every head, biases everywhere; gates with a slope, and
// ups with an offset.
ModelSpec gpt_oss(const ModelConfig& config) {
  ModelSpec spec = decoder_spec(config);
  leave_out_mtp(spec);
  const JsonFields fields = spec_fields(config);
  add_grouped_attention(config, spec);
  spec.gqa->norms = HeadNorm::kNone;
  spec.gqa->sinks = true;
  const std::size_t window = needed(fields, "sliding_window", kMaxWindow);
  for (const bool slides : sliding_layers(fields, spec.layers)) {
    spec.gqa_by_layer.push_back(*spec.gqa);
    if (slides) spec.gqa_by_layer.back().window = window;
  }
  if (!spec.router) refuse("'num_local_experts' is missing or 0");
  spec.router->score = GateScore::kSoftmax;
  spec.router->normalize = true;  // as a softmax over only the chosen logits
  spec.router->bias_of_logits = true;
  spec.expert_biases = true;
  const auto number = [&](const char* key, double usual) {
    return static_cast<float>(fields.optional_real(key, 0, 1e9).value_or(usual));
  };
  spec.gate = {
      .limit = number("swiglu_limit", 7.0), .alpha = number("swiglu_alpha", 1.702), .up_offset = 1};
  return spec;
}

// MiMo-V2-Flash: sliding layers have heads, a base of rope and sinks of their own; a row sees the
// tokens of the window and itself. Values are narrower than keys, and scaled.
ModelSpec mimo_v2_flash(const ModelConfig& config) {
  ModelSpec spec = decoder_spec(config);
  leave_out_mtp(spec);
  spec.leaves_out_mtp = true;  // the names tell, not the config
  const JsonFields fields = spec_fields(config);
  const double part = fields.optional_real("partial_rotary_factor", 0, 1).value_or(1);
  const std::size_t head_dim = of_heads(config.head_dim, "head_dim");
  add_grouped_attention(config, spec, {.dim = part_of(part, head_dim)});
  GqaSpec& full = *spec.gqa;
  full.norms = HeadNorm::kNone;
  full.value_dim = of_heads(config.v_head_dim, "v_head_dim");
  full.value_scale =
      static_cast<float>(fields.optional_real("attention_value_scale", -1e6, 1e6).value_or(1));
  full.sinks = fields.boolean("add_full_attention_sink_bias", false);

  GqaSpec sliding = full;
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
  if (pattern.size() < spec.layers) {
    refuse(fmt::format("'hybrid_layer_pattern' is not a list for {} layers", spec.layers));
  }
  for (std::size_t l = 0; l < spec.layers; ++l) {
    if (pattern[l] > 1) refuse(fmt::format("'hybrid_layer_pattern' has {}", pattern[l]));
    spec.gqa_by_layer.push_back(pattern[l] == 1 ? sliding : full);
  }
  set_sigmoid_router(config, spec);
  return spec;
}

// Llama 4: layers with rope see the tokens of their chunk and normalize rotated values; layers
// without see all, and their queries may grow. Experts take their input times the gate.
ModelSpec llama4(const ModelConfig& config) {
  ModelSpec spec = decoder_spec(config);
  leave_out_mtp(spec);
  const JsonFields fields = spec_fields(config);
  add_grouped_attention(config, spec, {.interleaved = true});
  GqaSpec& chunked = *spec.gqa;
  chunked.norms = fields.boolean("use_qk_norm", true) ? HeadNorm::kPlain : HeadNorm::kNone;
  chunked.norms_after_rope = true;
  GqaSpec whole = chunked;
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
  for (const bool has_rope : rope_layers(fields, spec.layers)) {
    spec.gqa_by_layer.push_back(has_rope ? chunked : whole);
  }
  if (!spec.router) refuse("'num_local_experts' is missing or 0");
  spec.router->score = GateScore::kSigmoid;
  spec.router->scales_input = true;
  spec.shared_intermediate = spec.moe_intermediate;
  return spec;
}

// MiniMax M3: in listed layers rows read some blocks of tokens, chosen by an index head for each
// key head. Norms add one to their weights; gates have a slope, ups an offset.
ModelSpec minimax_m3_vl(const ModelConfig& config) {
  ModelSpec spec = decoder_spec(config, "swigluoai");
  leave_out_mtp(spec);
  const JsonFields fields = spec_fields(config);
  require_text(fields, "scoring_func", "sigmoid");
  require_text(fields, "qk_norm_type", "per_head");
  add_grouped_attention(config, spec, {.dim = rotated_dim(config)});
  if (!fields.boolean("use_qk_norm", true)) spec.gqa->norms = HeadNorm::kNone;
  spec.norm_offset = 1;
  const auto number = [&](const char* key, double usual) {
    return static_cast<float>(fields.optional_real(key, 0, 1e9).value_or(usual));
  };
  spec.gate = {
      .limit = number("swiglu_limit", 7.0), .alpha = number("swiglu_alpha", 1.702), .up_offset = 1};
  set_biased_router(spec, fields, "norm_topk_prob");
  spec.router->correction_bias = fields.boolean("use_routing_bias", true);
  spec.shared_intermediate = static_cast<std::size_t>(config.shared_intermediate_size);

  const auto sparse = fields.optional_child("sparse_attention_config");
  if (!sparse || !sparse->boolean("use_sparse_attention", true)) return spec;
  BlockIndexSpec blocks;
  blocks.heads = of_heads(needed(*sparse, "sparse_num_index_heads"), "sparse_num_index_heads");
  blocks.head_dim = of_heads(needed(*sparse, "sparse_index_dim"), "sparse_index_dim");
  blocks.size = needed(*sparse, "sparse_block_size");
  blocks.topk = needed(*sparse, "sparse_topk_blocks");
  blocks.local = static_cast<std::size_t>(
      sparse->optional_number("sparse_local_block", kMaxCount).value_or(0));
  require_text(*sparse, "sparse_score_type", "max");
  if (blocks.heads != spec.gqa->kv_heads || blocks.head_dim < spec.gqa->rope.dim ||
      blocks.local > blocks.topk) {
    refuse(ErrorCode::kUnsupported,
           fmt::format("{} index heads of {} for {} key heads, of which {} values are rotated, and "
                       "{} of {} blocks that are always read, make no indexer of this family",
                       blocks.heads, blocks.head_dim, spec.gqa->kv_heads, spec.gqa->rope.dim,
                       blocks.local, blocks.topk));
  }
  if (sparse->optional_number("sparse_init_block", kMaxCount).value_or(0) != 0) {
    refuse(ErrorCode::kUnsupported,
           "'sparse_init_block' is not 0; first blocks that are always read are not known");
  }
  const std::vector<std::uint64_t> is_sparse = sparse->numbers("sparse_attention_freq");
  const std::vector<std::uint64_t> no_values =
      sparse->optional_numbers("sparse_disable_index_value");
  for (std::size_t l = 0; l < spec.layers; ++l) {
    if (l >= is_sparse.size()) {
      refuse(fmt::format("'sparse_attention_freq' is not a list for {} layers", spec.layers));
    }
    spec.gqa_by_layer.push_back(*spec.gqa);
    if (is_sparse[l] == 0) continue;
    spec.gqa_by_layer.back().blocks = blocks;
    if (!no_values.empty() && (l >= no_values.size() || no_values[l] == 0)) {
      refuse(ErrorCode::kUnsupported,
             fmt::format("'sparse_disable_index_value' has no 1 for layer {}; index values are not "
                         "known",
                         l));
    }
  }
  return spec;
}

// Step 3.5 and 3.7: sliding layers have heads of their own; rope by layer; every head has a gate.
// Norms add one to their weights, and some layers limit their gates behind the silu.
ModelSpec step3p7(const ModelConfig& config) {
  ModelSpec spec = decoder_spec(config);
  leave_out_mtp(spec);
  const JsonFields fields = spec_fields(config);
  add_grouped_attention(config, spec);
  spec.norm_offset = 1;
  GqaSpec& full = *spec.gqa;
  full.norms = fields.boolean("use_qk_norm", true) ? HeadNorm::kPerHead : HeadNorm::kNone;
  full.head_gate = fields.boolean("use_head_wise_attn_gate", false);
  GqaSpec sliding = full;
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
  const std::vector<bool> slides = sliding_layers(fields, spec.layers);
  const std::vector<double> bases = per_layer(fields, "rope_theta", spec.layers);
  const std::vector<double> parts = per_layer(fields, "partial_rotary_factors", spec.layers);
  const std::vector<double> limits = per_layer(fields, "swiglu_limits", spec.layers);
  const std::vector<double> shared_limits = per_layer(fields, "swiglu_limits_shared", spec.layers);
  const auto gate_at = [](const std::vector<double>& all, std::size_t l) {
    GateForm form{.limits_silu = true};
    if (!all.empty() && all[l] > 0) form.limit = static_cast<float>(all[l]);
    return form;
  };
  for (std::size_t l = 0; l < spec.layers; ++l) {
    GqaSpec& own = spec.gqa_by_layer.emplace_back(slides[l] ? sliding : full);
    // Windows need no scaled rope.
    formats::RopeConfig rope = slides[l] ? formats::RopeConfig() : config.rope;
    rope.theta = bases.empty() ? config.rope.theta : bases[l];
    own.rope = rope_spec(rope, part_of(parts.empty() ? 1 : parts[l], own.head_dim),
                         /*interleaved=*/false, rope_bands(config));
    spec.expert_gates.push_back(gate_at(limits, l));
    spec.mlp_gates.push_back(gate_at(shared_limits, l));
  }
  require_text(fields, "moe_router_activation", "sigmoid");
  set_biased_router(spec, fields, "norm_expert_weight");
  spec.router->correction_bias = fields.boolean("use_moe_router_bias", true);
  spec.router->scale =
      static_cast<float>(fields.optional_real("moe_router_scaling_factor", -1e9, 1e9).value_or(1));
  spec.shared_intermediate = static_cast<std::size_t>(config.shared_intermediate_size);
  return spec;
}

// Inkling: logits by distance in place of rope, short convolutions over keys, values and outputs;
// local layers have heads of their own. The router weighs shared experts too.
ModelSpec inkling(const ModelConfig& config) {
  ModelSpec spec = decoder_spec(config);
  leave_out_mtp(spec);
  const JsonFields fields = spec_fields(config);
  spec.norms_embedding = true;
  spec.logit_divisor = static_cast<float>(
      fields.optional_real("logits_mup_width_multiplier", 1e-6, 1e6).value_or(24));
  if (const auto unpadded = fields.optional_number("unpadded_vocab_size", spec.stored_vocab))
    spec.vocab = required(*unpadded, "unpadded_vocab_size");
  const bool is_saved = fields.find("conv_kernel_size") != nullptr;
  spec.short_convolution = of_heads(
      fields.optional_number(is_saved ? "conv_kernel_size" : "sconv_kernel_size", kMaxCount)
          .value_or(4),
      "sconv_kernel_size");
  if (spec.short_convolution < 2) refuse("'sconv_kernel_size' is 1, which convolves nothing");

  add_grouped_attention(config, spec, {.dim = 0});
  GqaSpec& whole = *spec.gqa;
  const auto own = [&](const char* key, std::size_t usual) {
    return of_heads(fields.optional_number(key, kMaxCount).value_or(usual), key);
  };
  const auto scale = [](GqaSpec& gqa) {
    gqa.softmax_scale = 1.0F / static_cast<float>(gqa.head_dim);
  };
  const std::size_t values = of_heads(needed(fields, "d_rel"), "d_rel");
  GqaSpec local = whole;
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
  for (std::size_t l = 0; l < spec.layers; ++l) {
    spec.gqa_by_layer.push_back(std::ranges::count(locals, l) > 0 ? local : whole);
  }

  if (!spec.router) return spec;
  if (!fields.boolean("shared_expert_sink", true)) {
    refuse(ErrorCode::kUnsupported,
           "'shared_expert_sink' is false; the router of this family weighs shared experts");
  }
  spec.router->score = GateScore::kSigmoid;
  spec.router->correction_bias = true;
  spec.router->normalize = true;
  spec.router->scale =
      static_cast<float>(fields.optional_real("route_scale", -1e9, 1e9).value_or(8));
  spec.router->weighed_shared = static_cast<std::size_t>(config.n_shared_experts);
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
  ModelSpec spec = decoder_spec(config);
  leave_out_mtp(spec);
  const JsonFields fields = spec_fields(config);
  add_latent_attention(config, spec);
  if (!says_rope) spec.rope.magnitude = 1.0F;
  spec.rope.is_learned = true;
  spec.mla->latent_norm_eps = spec.norm_eps;
  spec.mla->heads_grow = true;
  if (spec.mla->q_lora > 0) {
    refuse(ErrorCode::kUnsupported,
           fmt::format("'q_lora_rank' is {}; this family has no query latent", spec.mla->q_lora));
  }
  add_indexer(config, /*interleaved=*/true, spec, /*from_input=*/true);

  MlaSpec without_rope = *spec.mla;
  without_rope.nope += without_rope.rope_dim;
  without_rope.rope_dim = 0;
  const std::vector<bool> has_rope = rope_layers(fields, spec.layers);
  const std::vector<std::uint64_t> sources = fields.optional_numbers("kv_source_layers");
  if (!sources.empty() && sources.size() != spec.layers) {
    refuse(fmt::format("'kv_source_layers' is not a list for {} layers", spec.layers));
  }
  for (std::size_t l = 0; l < spec.layers; ++l) {
    MlaSpec& own = spec.mla_by_layer.emplace_back(has_rope[l] ? *spec.mla : without_rope);
    if (sources.empty() || sources[l] == l) continue;
    if (sources[l] > l || sources[sources[l]] != sources[l] ||
        has_rope[sources[l]] != has_rope[l]) {
      refuse(
          fmt::format("'kv_source_layers' has {} for layer {}, which is no earlier layer of its "
                      "kind with keys of its own",
                      sources[l], l));
    }
    own.keys_of = static_cast<std::size_t>(sources[l]);
  }
  spec.logit_cap =
      static_cast<float>(fields.optional_real("final_logit_softcapping", 1e-6, 1e9).value_or(30));
  if (!spec.router) return spec;
  set_softmax_router(spec);
  require_one_group(spec);
  spec.router->scale = routed_scale(fields);
  return spec;
}

}  // namespace ingot::inference
