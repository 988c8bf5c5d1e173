#include <algorithm>
#include <bit>
#include <cmath>

#include "formats/base/error.h"
#include "formats/base/parallel.h"
#include "formats/config/derived_keys.h"
#include "formats/family/rule_scope.h"
#include "formats/json/json.h"
#include "inference/family/parameters.h"
#include "inference/family/spec_parts.h"
#include "inference/kernels/vector_math.h"
#include "inference/model/attention/attention.h"
#include "inference/model/spec/mixer_kinds.h"
#include "inference/model/step/norm.h"
#include "inference/model/step/step.h"
#include "inference/parallel/comm.h"

namespace ingot::inference {

using formats::FineRole;
using formats::MatrixView;
using formats::ModelConfig;
using formats::Role;

namespace {

// Expanded keys and values of some heads take about this many values.
constexpr std::size_t kExpandedValues = std::size_t{16} << 20U;

// The norm of a latent, whose product is scaled.
HiddenNorm latent_norm(const BlockWeights& weights, std::size_t width, NormSpec form, float scale,
                       const NormRoles& roles) {
  form.gate_factor *= scale;
  HiddenNorm norm = hidden_norm(weights, width, form, roles);
  for (float& weight : norm.weight) weight *= norm.down.empty() ? scale : 1.0F;
  return norm;
}

Matrix side_by_side(const Matrix& left, const Matrix& right) {
  Matrix both(left.rows(), left.cols() + right.cols());
  for (std::size_t r = 0; r < both.rows(); ++r) {
    std::ranges::copy(left.row(r), both.row(r).begin());
    std::ranges::copy(right.row(r), both.row(r).last(right.cols()).begin());
  }
  return both;
}

bool has_own_indexer(const ModelConfig& config, std::size_t layer) {
  const auto [key, is_own] = formats::own_indexer(config, layer);
  if (is_own) return *is_own;
  refuse(fmt::format("'{}' does not say of layer {}, of {} layers, whether it has an indexer", key,
                     layer, config.num_hidden_layers));
}

// Latent attention; rope is interleaved unless `rope_interleave` says otherwise. Without positions
// the slice that would be rotated is not, and may be empty.
LatentSpec latent_attention(const ModelConfig& config, bool has_positions) {
  if (config.attention_bias) {
    refuse(ErrorCode::kUnsupported,
           "'attention_bias' is true; the forward pass knows none in latent attention");
  }
  LatentSpec spec;
  spec.heads = of_heads(config.num_attention_heads, "num_attention_heads");
  spec.q_lora = static_cast<std::size_t>(config.q_lora_rank);
  spec.kv_lora = required(config.kv_lora_rank, "kv_lora_rank");
  spec.nope = of_heads(config.qk_nope_head_dim, "qk_nope_head_dim");
  if (has_positions || config.qk_rope_head_dim != 0)
    spec.rope_dim = of_heads(config.qk_rope_head_dim, "qk_rope_head_dim");
  spec.v = of_heads(config.v_head_dim, "v_head_dim");
  if (has_positions) {
    spec.rope = rope_spec(config.rope, spec.rope_dim,
                          spec_fields(config).boolean("rope_interleave", true), rope_bands(config));
  }
  spec.softmax_scale = static_cast<float>(
      yarn_softmax_factor(config.rope) / std::sqrt(static_cast<double>(spec.nope + spec.rope_dim)));
  return spec;
}

// `interleaved` is its rope layout where the config does not say; `from_input` as in IndexerSpec.
IndexerSpec lightning_indexer(const ModelConfig& config, const LatentSpec& latent, bool interleaved,
                              bool from_input) {
  IndexerSpec indexer;
  indexer.heads = of_heads(config.index_n_heads, "index_n_heads");
  indexer.head_dim = of_heads(config.index_head_dim, "index_head_dim");
  indexer.topk = required(config.index_topk, "index_topk");
  if (indexer.head_dim < latent.rope.dim) {
    refuse(fmt::format("'index_head_dim' is {}, less than the {} values that are rotated",
                       indexer.head_dim, latent.rope.dim));
  }
  indexer.from_input = from_input;
  if (latent.q_lora == 0 && !from_input) refuse("an indexer needs 'q_lora_rank'");
  indexer.rope = latent.rope;
  indexer.rope.interleaved = spec_fields(config).boolean("indexer_rope_interleave", interleaved);
  if (!has_own_indexer(config, 0))
    refuse("the first layer shares an indexer, but none is before it");
  indexer.power_of_two_keys = config.quantization && config.quantization->scale_fmt == "ue8m0";
  return indexer;
}

// Latent attention of a layer: with the indexer where that is the layer's own.
LatentSpec with_indexer(const ModelConfig& config, LatentSpec latent, const IndexerSpec& indexer,
                        std::size_t layer) {
  latent.takes_earlier_choice = !has_own_indexer(config, layer);
  if (!latent.takes_earlier_choice) latent.indexer = indexer;
  return latent;
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

}  // namespace

LatentSpec MlaAttention::read(const DecoderSpec& model, Parameters& parameters,
                              std::uint32_t layer) {
  // An object for the layers of a type says all of their rope.
  const std::string type = formats::entry_of(value_of(model.config, "layer_types"), layer);
  const bool has_own_rope =
      value_of(model.config, fmt::format("rope_parameters.{}", type)).is_object();
  ModelConfig config = has_own_rope ? formats::config_of_layers(model.config, type) : model.config;
  const auto theta = parameters.real("theta", {0, 1e12});
  if (!has_own_rope) config.rope.theta = theta.value_or(config.rope.theta);
  config.num_attention_heads = parameters.number("heads", config.num_attention_heads);
  config.q_lora_rank = parameters.number("query_rank", config.q_lora_rank);
  config.kv_lora_rank = parameters.number("key_rank", config.kv_lora_rank);
  config.qk_nope_head_dim = parameters.number("plain_dim", config.qk_nope_head_dim);
  config.qk_rope_head_dim = parameters.number("rotated_dim", config.qk_rope_head_dim);
  config.v_head_dim = parameters.number("value_dim", config.v_head_dim);
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
  spec.gates_queries = parameters.flag("gates_queries", false);
  if (spec.gates_queries) required(spec.q_lora, "q_lora_rank");
  spec.norms_rope_key = parameters.flag("norms_rope_key", false);
  spec.window = parameters.count("window", 0, kWindow);
  spec.sinks = parameters.flag("sinks", false);
  spec.heads_grow = parameters.flag("heads_grow", false);
  spec.growth = growth_of(model.config, parameters);
  if (parameters.flag("own_norm_eps", false)) spec.latent_norm.eps = model.spec.norm.eps;
  if (parameters.flag("own_norms", false)) spec.latent_norm = model.spec.norm;
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

std::vector<CacheStream> MlaAttention::streams(const Spec& spec, const CacheForm& form) {
  const bool has_keys = !spec.keys_of;
  // One row serves as key and as value.
  std::vector<float> fixed;
  if (form.scales != nullptr && !form.scales->keys.empty())
    fixed.assign(1, form.scales->keys.front());
  const bool is_static = form.format == KvFormat::kFp8Static;
  std::vector<CacheStream> streams = {
      {.width = has_keys ? spec.kv_lora : 0,
       .format = form.format,
       .group = form.format == KvFormat::kFp8 ? std::size_t{128} : spec.kv_lora,
       .fixed = fixed},
      {.width = has_keys ? spec.rope_dim : 0,
       .format = is_static ? form.format : unquantized(form.format),
       .group = spec.rope_dim,
       .fixed = fixed}};
  if (spec.indexer) add_index_streams(*spec.indexer, form, streams);
  return streams;
}

MixerMemory MlaAttention::memory(const Spec& spec, std::size_t threads, std::uint64_t longest) {
  const IndexerSpec indexer = spec.indexer.value_or(IndexerSpec());
  // Keys and values of as many heads as are expanded at once.
  const std::uint64_t per_head = spec.nope + spec.v;
  const std::uint64_t at_once = std::min(longest * spec.heads, kExpandedValues / per_head);
  const std::uint64_t per_query = spec.nope + spec.rope_dim + (spec.gates_queries ? spec.v : 0);
  return {.per_row = spec.heads * (per_query + spec.v + 2 * spec.kv_lora) +
                     indexer.heads * indexer.head_dim,
          .per_token = (spec.indexer ? indexer.head_dim + threads * (indexer.heads + 1) : 0) +
                       2 * (spec.kv_lora + spec.rope_dim) +
                       threads * (spec.nope + spec.rope_dim + spec.v),
          .fixed = std::max(at_once, longest) * per_head};
}

struct MlaAttention::Queries {
  Matrix latent;  ///< normalized; empty without low rank
  Matrix heads;   ///< [rows, heads x (nope + rope)], rotated
  Matrix gates;   ///< [rows, heads x v]; empty without
};

MlaAttention::MlaAttention(const BlockWeights& weights, const StepContext& context,
                           const Spec& spec)
    : spec_(spec) {
  const std::size_t hidden = context.spec.hidden;
  const std::size_t per_query = spec_.nope + spec_.rope_dim + (spec_.gates_queries ? spec_.v : 0);
  const std::size_t per_latent = spec_.nope + spec_.v;
  const Range heads = tensor_part(context.rank, spec_.heads, "attention heads");
  heads_ = heads.count;
  const auto rows_of = [&](std::size_t per_head) {
    return Range{heads.first * per_head, heads.count * per_head};
  };
  if (spec_.rope_dim > 0) rope_ = with_learned_frequencies(weights.store(), spec_.rope);
  if (spec_.q_lora > 0) {
    q_a_ = weights.linear(Role::kQaProj, spec_.q_lora, hidden);
    q_norm_ = latent_norm(weights, spec_.q_lora, spec_.latent_norm, spec_.query_latent_scale,
                          {.weight = Role::kQaNorm,
                           .down = FineRole::kQaNormDown,
                           .up = FineRole::kQaNormUp});
    const std::size_t n_inputs = (spec_.gates_queries ? 2 : 1) * spec_.q_lora;
    q_b_ = weights.linear(Role::kQbProj, spec_.heads * per_query, n_inputs, rows_of(per_query),
                          {0, n_inputs});
  } else {
    q_ = weights.linear(Role::kQProj, spec_.heads * per_query, hidden, rows_of(per_query),
                        {0, hidden});
  }
  if (!spec_.keys_of) {
    kv_a_ = weights.linear(Role::kKvaProj, spec_.kv_lora + spec_.rope_dim, hidden);
    kv_norm_ = latent_norm(weights, spec_.kv_lora, spec_.latent_norm, spec_.key_latent_scale,
                           {.weight = Role::kKvaNorm,
                            .down = FineRole::kKvaNormDown,
                            .up = FineRole::kKvaNormUp});
    if (spec_.norms_rope_key)
      rope_key_norm_ = weights.vector(FineRole::kRopeKeyNorm, {spec_.rope_dim});
  }
  kv_b_ = weights.linear(Role::kKvbProj, spec_.heads * per_latent, spec_.kv_lora,
                         rows_of(per_latent), {0, spec_.kv_lora});
  o_ = weights.linear(Role::kOProj, hidden, spec_.heads * spec_.v, {0, hidden}, rows_of(spec_.v));
  if (spec_.head_gate)
    gate_ = weights.linear(FineRole::kLatentGate, spec_.heads, hidden, heads, {0, hidden});
  if (spec_.value_gate) {
    gate_ = weights.linear(Role::kAttentionGate, spec_.heads * spec_.v, hidden, rows_of(spec_.v),
                           {0, hidden});
  }
  if (spec_.sinks) sinks_ = weights.vector_part(Role::kAttentionSinks, spec_.heads, heads);
  if (spec_.heads_grow) {
    growth_ =
        HeadGrowth(weights, FineRole::kQueryGrowth, FineRole::kQueryGrowthBias, spec_.heads, heads);
  }
  if (spec_.indexer) indexer_.emplace(weights, context, spec_);
}

// A head's gate is behind its query.
void MlaAttention::split_gates(const Matrix& both, Queries& queries) const {
  const std::size_t width = spec_.nope + spec_.rope_dim;
  queries.heads = Matrix(both.rows(), heads_ * width);
  queries.gates = Matrix(both.rows(), heads_ * spec_.v);
  for (std::size_t r = 0; r < both.rows(); ++r) {
    for (std::size_t h = 0; h < heads_; ++h) {
      const auto head = both.row(r).subspan(h * (width + spec_.v), width + spec_.v);
      std::ranges::copy(head.first(width), queries.heads.row(r).subspan(h * width).begin());
      std::ranges::copy(head.last(spec_.v), queries.gates.row(r).subspan(h * spec_.v).begin());
    }
  }
}

MlaAttention::Queries MlaAttention::project_queries(const StepContext& context, const Matrix& x,
                                                    const RopeAngles& angles) const {
  const std::size_t width = spec_.nope + spec_.rope_dim;
  Queries queries;
  if (spec_.q_lora > 0) {
    const Matrix plain = rounded_product(context, q_a_, x);
    queries.latent = normed(context, plain, q_norm_);
    if (spec_.gates_queries) {
      split_gates(rounded_product(context, q_b_, side_by_side(queries.latent, plain)), queries);
    } else {
      queries.heads = rounded_product(context, q_b_, queries.latent);
    }
  } else {
    queries.heads = rounded_product(context, q_, x);
  }
  for (std::size_t r = 0; r < x.rows(); ++r) {
    for (std::size_t h = 0; h < heads_; ++h) {
      angles.rotate(r, queries.heads.row(r).subspan(h * width + spec_.nope, rope_.dim));
    }
  }
  return queries;
}

void MlaAttention::cache_rows(const LayerStep& step, const Matrix& x,
                              const RopeAngles& angles) const {
  if (spec_.keys_of) return;
  Matrix latents = rounded_product(step.context, kv_a_, x);
  Matrix plain(latents.rows(), spec_.kv_lora);
  for (std::size_t r = 0; r < latents.rows(); ++r)
    std::ranges::copy(latents.row(r).first(spec_.kv_lora), plain.row(r).begin());
  plain = normed(step.context, plain, kv_norm_);
  for (std::size_t r = 0; r < latents.rows(); ++r)
    std::ranges::copy(plain.row(r), latents.row(r).begin());
  if (!rope_key_norm_.empty()) {
    const auto keys = latents.columns(spec_.kv_lora, spec_.rope_dim);
    rms_norm(step.context.profile, keys, rope_key_norm_, spec_.latent_norm.eps, keys);
  }
  for (std::size_t r = 0; r < x.rows(); ++r) {
    angles.rotate(r, latents.row(r).subspan(spec_.kv_lora, rope_.dim));
  }
  require_finite(latents, step.layer, "the latent");
  step.write(kLatentStream, latents.columns(0, spec_.kv_lora));
  step.write(kRopeKeyStream, latents.columns(spec_.kv_lora, spec_.rope_dim));
}

Matrix MlaAttention::partial(const LayerStep& step, const Matrix& x) const {
  const StepContext& context = step.context;
  const RopeAngles angles(context.profile, rope_, step.rows.positions);
  Queries queries = project_queries(context, x, angles);
  grow_queries(context.profile, spec_.growth, step.rows.positions, queries.heads);
  growth_.apply(context.profile, step.rows.positions, queries.heads);
  cache_rows(step, x, angles);
  if (indexer_) {
    indexer_->select(step, x, queries.latent);
  } else if (!spec_.takes_earlier_choice) {
    step.selection.assign(x.rows(), {});
  }
  INGOT_CHECK(step.selection.size() == x.rows());
  step.show(step.selection);

  Matrix attended(x.rows(), heads_ * spec_.v);
  for (const SequenceRun& run : step.rows.runs) {
    const bool is_absorbed = context.form == AttentionForm::kAbsorbed ||
                             (context.form == AttentionForm::kAuto && run.is_answer);
    if (is_absorbed) {
      absorbed(step, queries.heads, run, attended);
    } else {
      naive(step, queries.heads, run, attended);
    }
  }
  if (!gate_.empty()) gate_heads(context, gate_, x, spec_.value_gate ? 1 : spec_.v, attended);
  for (std::size_t i = 0; i < queries.gates.values().size(); ++i)
    attended.values()[i] *= sigmoid_f32(queries.gates.values()[i]);
  if (spec_.gates_queries) round_between(context.profile, attended.values());
  require_finite(attended, step.layer, "attention");
  return product(context, o_, attended);
}

// Latent attention with keys and values expanded from the latent (model reference, 4.2): few heads
// at a time, so that memory grows with the length and not with its square.

void MlaAttention::naive(const LayerStep& step, const Matrix& queries, const SequenceRun& run,
                         Matrix& out) const {
  const StepContext& context = step.context;
  const std::size_t per_query = spec_.nope + spec_.rope_dim, per_latent = spec_.nope + spec_.v;
  const std::vector<std::uint32_t> everything = first_positions(run.total());
  const Matrix latents = step.cached_keys(context.profile, run.sequence, kLatentStream, everything);
  const Matrix rope_keys =
      step.cached_keys(context.profile, run.sequence, kRopeKeyStream, everything);
  // Later rows see more tokens, so the rows that see all of theirs come first.
  std::size_t n_dense = 0;
  while (n_dense < run.count && step.selection[run.first_row + n_dense].empty()) ++n_dense;

  const std::size_t at_once =
      std::clamp<std::size_t>(kExpandedValues / (run.total() * per_latent), 1, heads_);
  const auto scored = [&](std::span<const ScorePart, 2> parts) {
    return std::span<const ScorePart>(parts).first(spec_.rope_dim > 0 ? 2 : 1);
  };
  for (std::size_t first = 0; first < heads_; first += at_once) {
    const std::size_t n = std::min(at_once, heads_ - first);
    const Matrix expanded =
        rounded_product(context, kv_b_.row_range(first * per_latent, n * per_latent), latents);
    parallel_for(n, context.threads, [&](std::size_t i) {
      const std::size_t head = first + i;
      const auto all_keys = expanded.columns(i * per_latent, spec_.nope);
      const auto all_values = expanded.columns(i * per_latent + spec_.nope, spec_.v);
      AttentionNumbers numbers{context.profile, spec_.softmax_scale, 1};
      const std::vector<float> sinks(sinks_.empty() ? 0 : run.count,
                                     sinks_.empty() ? 0.0F : sinks_[head]);
      const auto query = [&](std::size_t row, std::size_t rows, std::size_t offset,
                             std::size_t width) {
        return queries.block(run.first_row + row, rows, head * per_query + offset, width);
      };
      const auto result = [&](std::size_t row, std::size_t rows) {
        return out.block(run.first_row + row, rows, head * spec_.v, spec_.v);
      };
      if (n_dense > 0) {
        numbers.sinks = std::span(sinks).first(sinks.empty() ? 0 : n_dense);
        if (spec_.window > 0) {
          numbers.from = [&](std::size_t row) {
            return spec_.first_seen(run.first_position + row);
          };
        }
        const ScorePart parts[] = {
            {query(0, n_dense, 0, spec_.nope), all_keys},
            {query(0, n_dense, spec_.nope, spec_.rope_dim), rope_keys.view()}};
        attend(
            numbers, scored(parts), all_values,
            [&](std::size_t row) { return run.first_position + row + 1; }, result(0, n_dense));
      }
      for (std::size_t row = n_dense; row < run.count; ++row) {
        const auto& chosen = step.selection[run.first_row + row];
        const Matrix keys = gathered(all_keys, chosen), values = gathered(all_values, chosen);
        const Matrix rotated = gathered(rope_keys.view(), chosen);
        numbers.from = {};
        const ScorePart parts[] = {{query(row, 1, 0, spec_.nope), keys.view()},
                                   {query(row, 1, spec_.nope, spec_.rope_dim), rotated.view()}};
        numbers.sinks = std::span(sinks).first(sinks.empty() ? 0 : 1);
        attend(
            numbers, scored(parts), values.view(), [&](std::size_t) { return chosen.size(); },
            result(row, 1));
      }
    });
  }
}

// Latent attention with queries taken into the latent space (model reference, 4.3): nothing is
// expanded, every head reads the same latents.

void MlaAttention::absorbed(const LayerStep& step, const Matrix& queries, const SequenceRun& run,
                            Matrix& out) const {
  const StepContext& context = step.context;
  const std::size_t per_query = spec_.nope + spec_.rope_dim, per_latent = spec_.nope + spec_.v;
  AttentionNumbers numbers{context.profile, spec_.softmax_scale, context.threads};
  numbers.sinks = sinks_;

  // [rows, heads x latent]: every head's query, times the transposed key rows of kv_b_proj.
  Matrix absorbed_queries(run.count, heads_ * spec_.kv_lora);
  parallel_for(heads_, context.threads, [&](std::size_t head) {
    const CodedMatrix key_rows = kv_b_.weight().row_range(head * per_latent, spec_.nope);
    matmul_transposed(queries.block(run.first_row, run.count, head * per_query, spec_.nope),
                      key_rows, kv_b_.rounding(),
                      absorbed_queries.columns(head * spec_.kv_lora, spec_.kv_lora), 1);
  });
  round_between(context.profile, absorbed_queries.values());

  const auto scored = [&](std::span<const ScorePart, 2> parts) {
    return std::span<const ScorePart>(parts).first(spec_.rope_dim > 0 ? 2 : 1);
  };
  Matrix latents, rope_keys;
  const auto fetch = [&](std::span<const std::uint32_t> positions) {
    latents = step.cached_keys(context.profile, run.sequence, kLatentStream, positions);
    rope_keys = step.cached_keys(context.profile, run.sequence, kRopeKeyStream, positions);
  };
  Matrix in_latent(run.count, heads_ * spec_.kv_lora);
  for (std::size_t i = 0; i < run.count; ++i) {
    const auto& chosen = step.selection[run.first_row + i];
    // Rows that see everything come first and read one copy.
    if (!chosen.empty()) {
      fetch(chosen);
    } else if (i == 0) {
      fetch(first_positions(run.total()));
    }
    const std::size_t seen = chosen.empty() ? run.first_position + i + 1 : chosen.size();
    const std::size_t from = chosen.empty() ? spec_.first_seen(run.first_position + i) : 0;
    numbers.from = [from](std::size_t) { return from; };
    const float* rotated = queries.row(run.first_row + i).data() + spec_.nope;
    const ScorePart parts[] = {
        {{absorbed_queries.row(i).data(), heads_, spec_.kv_lora, spec_.kv_lora}, latents.view()},
        {{rotated, heads_, spec_.rope_dim, per_query}, rope_keys.view()}};
    attend(numbers, scored(parts), latents.view(), [&](std::size_t) { return seen; },
           {in_latent.row(i).data(), heads_, spec_.kv_lora, spec_.kv_lora});
  }

  parallel_for(heads_, context.threads, [&](std::size_t head) {
    const CodedMatrix value_rows =
        kv_b_.weight().row_range(head * per_latent + spec_.nope, spec_.v);
    const MatrixView<float> mine = out.block(run.first_row, run.count, head * spec_.v, spec_.v);
    matmul(in_latent.columns(head * spec_.kv_lora, spec_.kv_lora), value_rows, kv_b_.rounding(),
           mine, 1);
    for (std::size_t i = 0; i < run.count; ++i) {
      round_between(context.profile, std::span(mine.row(i), spec_.v));
    }
  });
}

constinit const MixerKind kLatentAttention = mixer_kind<MlaAttention>("latent");

}  // namespace ingot::inference
