#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "formats/base/error.h"
#include "formats/base/parallel.h"
#include "formats/config/derived_keys.h"
#include "formats/json/json.h"
#include "inference/family/parameters.h"
#include "inference/family/spec_parts.h"
#include "inference/kernels/vector_math.h"
#include "inference/model/attention/attention.h"
#include "inference/model/attention/block_chooser.h"
#include "inference/model/attention/expert_projections.h"
#include "inference/model/spec/mixer_kinds.h"
#include "inference/model/step/norm.h"
#include "inference/model/step/short_convolution.h"
#include "inference/model/step/step.h"
#include "inference/parallel/comm.h"

namespace ingot::inference {

using formats::FineRole;
using formats::JsonFields;
using formats::ModelConfig;
using formats::Role;

namespace {

constexpr std::array kHeadNorms = {
    Word<HeadNorm>{"none", HeadNorm::kNone}, Word<HeadNorm>{"each", HeadNorm::kPerHead},
    Word<HeadNorm>{"all", HeadNorm::kAllHeads}, Word<HeadNorm>{"plain", HeadNorm::kPlain},
    Word<HeadNorm>{"layer", HeadNorm::kLayer}};

constexpr std::array kGroupedRows = {
    ParameterRow<GroupedSpec>{"norms_after_rope", &GroupedSpec::norms_after_rope},
    ParameterRow<GroupedSpec>{"output_gate", &GroupedSpec::output_gate},
    ParameterRow<GroupedSpec>{"head_gate", &GroupedSpec::head_gate},
    ParameterRow<GroupedSpec>{"value_gate", &GroupedSpec::value_gate},
    ParameterRow<GroupedSpec>{"softplus_gate", &GroupedSpec::softplus_gate},
    ParameterRow<GroupedSpec>{"norms_attended", &GroupedSpec::norms_attended},
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

// Grouped-query attention (model reference, 13.2), with what the layer's spec says of it. A rank
// has its share of the heads and the key heads that they read; for norms over all heads at once
// the ranks add up their squares.
class GqaAttention final : public Mixer {
 public:
  using Spec = GroupedSpec;
  GqaAttention(const BlockWeights& weights, const StepContext& context, const Spec& spec);

  [[nodiscard]] Matrix partial(const LayerStep& step, const Matrix& x) const override;
  static Spec read(const DecoderSpec& model, Parameters& parameters, std::uint32_t layer);
  static std::vector<CacheStream> streams(const Spec& spec, const CacheForm& form);
  static MixerMemory memory(const Spec& spec, std::size_t threads, std::uint64_t longest);

 private:
  void load_norms(const BlockWeights& weights, const StepContext& context);
  /// Biases of queries, keys and values that are one tensor.
  void load_joined_bias(const BlockWeights& weights, const BlockWeights::Rows& q,
                        const BlockWeights::Rows& k, const BlockWeights::Rows& v);
  /// Normalizes and rotates the heads of one projection.
  void finish_heads(const LayerStep& step, const HiddenNorm& norm, const RopeAngles& angles,
                    Matrix& heads) const;
  void split_gates(Matrix& queries, Matrix& gates) const;
  /// Bounds values of queries, keys or values.
  void clip(Matrix& made) const;
  /// Norms each head of values, without weights.
  void norm_each(const StepContext& context, Matrix& heads) const;
  /// Caches keys and values of the rows.
  void cache_rows(const LayerStep& step, const Matrix& x, const RopeAngles& angles) const;
  /// `distances`: what each head makes logits by distance of; empty without any.
  void attend_run(const LayerStep& step, const SequenceRun& run, const Matrix& queries,
                  const Matrix& distances, const BlockChooser::Chosen& chosen,
                  Matrix& attended) const;

  Spec spec_;
  std::size_t first_head_ = 0, heads_ = 0, kv_heads_ = 0;
  std::optional<BlockChooser> blocks_;
  std::optional<Indexer> indexer_;
  std::optional<ExpertProjections> experts_;
  Linear q_, k_, v_, o_, gate_, distances_;
  std::vector<float> distance_table_;  ///< [values, extent]
  ShortConvolution key_convolution_, value_convolution_;
  std::vector<float> q_bias_, k_bias_, v_bias_, o_bias_;
  std::vector<float> sinks_, gate_bias_;
  HiddenNorm q_norm_, k_norm_;
};

// `alpha` of dynamic rope stretches its base once, whatever the length. Without it the base grows
// behind the last position that the config has, which no context reaches.
void stretch_by_alpha(ModelConfig& config, bool has_alpha) {
  const auto scaling = rope_fields(config);
  const double alpha = scaling ? scaling->optional_real("alpha", 0, 1e9).value_or(0) : 0;
  if (config.rope.type != "dynamic" || (alpha <= 0 && config.max_position_embeddings == 0)) return;
  if (alpha > 0 && !has_alpha) return;
  if (alpha <= 0) {
    config.rope.type = "default";
    return;
  }
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

// Rows read tokens that index heads chose, in pools whose keys are averaged, or pooled by softmax
// (`indexer_groups`: one choice for each key head).
void set_indexer(const DecoderSpec& model, const ModelConfig& config, Parameters& parameters,
                 GroupedSpec& spec) {
  if (!parameters.has("indexer_heads")) return;
  const std::size_t groups = parameters.count("indexer_groups", 0, kNoneOrFew);
  IndexerSpec indexer{.rope = spec.rope, .averages = groups == 0};
  parameters.set(indexer, kIndexerRows);
  if (groups > 0) {
    indexer.by_group = true;
    indexer.groups = groups;
    indexer.norm_eps = model.spec.norm.eps;
    indexer.rope = rope_spec(config.rope, parameters.count("indexer_rotated", 0), false,
                             rope_bands(config, true));
    if (groups != spec.kv_heads || indexer.heads % groups != 0)
      refuse(ErrorCode::kUnsupported, fmt::format("{} index heads in {} groups for {} key heads",
                                                  indexer.heads, groups, spec.kv_heads));
  }
  if (indexer.head_dim < indexer.rope.dim || indexer.topk % indexer.pool != 0) {
    refuse(
        fmt::format("index heads of {} values, of which {} are rotated, that choose {} tokens "
                    "in pools of {} make no indexer",
                    indexer.head_dim, indexer.rope.dim, indexer.topk, indexer.pool));
  }
  spec.indexer = indexer;
}

// The first values of a head that are rotated: `rotary_dim`, or what `partial_rotary_factor`, else
// `if_missing`, makes of head_dim.
std::size_t rotated_dim(const ModelConfig& config, double if_missing) {
  const JsonFields fields = spec_fields(config);
  if (const auto dim = fields.optional_number("rotary_dim", config.head_dim))
    return static_cast<std::size_t>(*dim);
  const auto rope = rope_fields(config);
  const JsonFields& place = rope && rope->find("partial_rotary_factor") != nullptr ? *rope : fields;
  const double part = place.optional_real("partial_rotary_factor", 0, 1).value_or(if_missing);
  return static_cast<std::size_t>(part * static_cast<double>(config.head_dim));
}

// The values of a head that rope turns.
std::optional<std::size_t> rotated_values(const ModelConfig& config, Parameters& parameters) {
  // Layers without positions may have such a part too.
  const auto part = parameters.real("rotated");
  if (!parameters.is_set("positions", true)) return 0;
  if (part) {
    if (!(*part > 0) || *part > 1) refuse("a part of a head that is rotated is not above 0 or 1");
    return required(static_cast<std::uint64_t>(*part * static_cast<double>(config.head_dim)),
                    "rotated values of a head");
  }
  if (!parameters.has("rotated_part")) return std::nullopt;
  return rotated_dim(config, parameters.real("rotated_part").value_or(1));
}

// The last earlier layer of its type with keys of its own, of the same shape.
std::size_t shared_keys(const DecoderSpec& model, const GroupedSpec& spec, std::uint32_t layer) {
  const formats::Json& types = value_of(model.config, "layer_types");
  for (std::size_t l = layer; l-- > 0;) {
    const auto* source = model.spec.layers[l].find<GroupedSpec>();
    if (source == nullptr || source->keys_of ||
        formats::entry_of(types, l) != formats::entry_of(types, layer))
      continue;
    if (source->kv_heads == spec.kv_heads && source->head_dim == spec.head_dim &&
        source->value_dim == spec.value_dim)
      return l;
    break;
  }
  refuse(
      fmt::format("layer {} shares keys, but no earlier layer of its type in 'layer_types' has "
                  "keys like its own",
                  layer));
}

// How many of a head's values are rotated, and how they are paired.
struct GroupedRope {
  std::optional<std::size_t> dim = {};  ///< the first so many; without: all
  bool interleaved = false;
  bool may_be_long = true;  ///< longrope has the long factors for long contexts
};

// Grouped-query attention with a norm per head; values are as wide as keys.
GroupedSpec grouped_attention(const ModelConfig& config, const GroupedRope& form) {
  GroupedSpec spec;
  spec.heads = static_cast<std::size_t>(config.num_attention_heads);
  spec.kv_heads = static_cast<std::size_t>(config.num_key_value_heads);
  spec.head_dim = static_cast<std::size_t>(config.head_dim);
  constexpr std::size_t kMost = std::size_t{1} << 16;  // so that no product wraps around
  if (spec.heads == 0 || spec.kv_heads == 0 || spec.head_dim == 0 || spec.heads > kMost ||
      spec.head_dim > kMost || spec.heads % spec.kv_heads != 0) {
    refuse(ErrorCode::kCorrupt,
           fmt::format("{} heads of {} over {} key heads make no attention ('num_attention_heads', "
                       "'head_dim' and 'num_key_value_heads', or those of such layers)",
                       spec.heads, spec.head_dim, spec.kv_heads));
  }
  spec.value_dim = spec.head_dim;
  spec.biases = config.attention_bias;
  const std::size_t rotated = form.dim.value_or(spec.head_dim);
  if (rotated > 0)
    spec.rope =
        rope_spec(config.rope, rotated, form.interleaved, rope_bands(config, form.may_be_long));
  spec.softmax_scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(spec.head_dim)));
  return spec;
}

GroupedSpec GqaAttention::read(const DecoderSpec& model, Parameters& parameters,
                               std::uint32_t layer) {
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
  stretch_by_alpha(config, parameters.flag("rope_alpha", false));
  GroupedSpec spec =
      grouped_attention(config, {.dim = rotated_values(config, parameters),
                                 .interleaved = parameters.flag("interleaved", false),
                                 .may_be_long = parameters.flag("long_rope", true)});
  // The pairs of a narrower head are the first of each half of the head.
  if (const std::size_t narrow = parameters.count("rotated_pairs_of", 0, kNoneOrFew);
      narrow > 0 && narrow < spec.head_dim) {
    spec.rope = rope_spec(config.rope, narrow, spec.rope.interleaved, rope_bands(config, true));
    spec.rope.dim = spec.head_dim;
    spec.rope.freqs.resize(spec.head_dim / 2);
  }
  spec.norms = parameters.word("head_norms", HeadNorm::kPerHead, kHeadNorms);
  if (!parameters.flag("has_head_norms", true)) spec.norms = HeadNorm::kNone;
  parameters.set(spec, kGroupedRows);
  if (parameters.flag("scaled_by_width", false))
    spec.softmax_scale = 1.0F / static_cast<float>(spec.head_dim);
  if (const auto width = parameters.real("scaled_by_root_of", {1e-9, 1e9}))
    spec.softmax_scale = static_cast<float>(1 / std::sqrt(*width));
  if (const auto factor = parameters.real("query_factor", {1e-9, 1e9}))
    spec.softmax_scale *= static_cast<float>(*factor);
  if (const auto cap = parameters.real("score_cap", {1e-6, 1e9}))
    spec.score_cap = static_cast<float>(*cap);
  if (const auto most = parameters.real("clip", {1e-6, 1e9})) spec.clip = static_cast<float>(*most);
  if (parameters.has("distance_values")) {
    spec.distances = {.values = parameters.count("distance_values", 0),
                      .extent = parameters.count("distance_extent", 0, {1, kMaxCount})};
  }
  spec.growth = growth_of(config, parameters);
  set_blocks(parameters, spec, layer);
  set_indexer(model, config, parameters, spec);
  if (parameters.is_set("shares_keys", false)) {
    if (spec.blocks || spec.indexer || spec.experts > 0)
      parameters.refuse(parameters.line(), "layers that share keys choose no tokens or experts");
    spec.keys_of = shared_keys(model, spec, layer);
  }
  return spec;
}

std::vector<CacheStream> GqaAttention::streams(const Spec& spec, const CacheForm& form) {
  if (spec.keys_of) return {};
  const Range heads = key_head_part(form.rank, spec.kv_heads);
  const auto per_head = [&](std::size_t width, std::vector<float> StaticScales::*side) {
    CacheStream stream{.width = heads.count * width, .format = form.format, .group = width};
    if (form.scales == nullptr) return stream;
    const std::vector<float>& scales = form.scales->*side;
    if (scales.size() != 1 && scales.size() != spec.kv_heads) return stream;
    for (std::size_t head = heads.first; head < heads.first + heads.count; ++head)
      stream.fixed.push_back(scales.size() == 1 ? scales.front() : scales.at(head));
    return stream;
  };
  std::vector<CacheStream> streams = {per_head(spec.head_dim, &StaticScales::keys),
                                      per_head(spec.value_dim, &StaticScales::values)};
  if (spec.blocks) {
    const std::size_t width = spec.blocks->head_dim;
    streams.push_back({.width = width, .format = unquantized(form.format), .group = width});
  }
  if (spec.indexer) add_index_streams(*spec.indexer, form, streams);
  return streams;
}

MixerMemory GqaAttention::memory(const Spec& spec, std::size_t threads, std::uint64_t) {
  // Layers that choose blocks: index heads, and which tokens each of them chose.
  const BlockIndexSpec blocks = spec.blocks.value_or(BlockIndexSpec());
  // Logits by distance of the heads that are computed at once.
  const DistanceSpec distances = spec.distances.value_or(DistanceSpec());
  const IndexerSpec indexer = spec.indexer.value_or(IndexerSpec());
  return {.per_row = 2 * (spec.heads + spec.kv_heads) * std::max(spec.head_dim, spec.value_dim) +
                     blocks.heads * (blocks.head_dim + blocks.topk * blocks.size) +
                     indexer.heads * indexer.head_dim + indexer.groups * indexer.topk +
                     spec.heads * distances.values +
                     std::min(threads, spec.heads) * distances.extent,
          .per_token = spec.kv_heads * (spec.head_dim + spec.value_dim) + 1 +
                       (spec.blocks ? spec.blocks->head_dim + threads : 0)};
}

GqaAttention::GqaAttention(const BlockWeights& weights, const StepContext& context,
                           const Spec& spec)
    : spec_(spec) {
  const std::size_t hidden = context.spec.hidden, width = spec_.head_dim;
  const Range heads = tensor_part(context.rank, spec_.heads, "attention heads");
  const Range kv_heads = key_head_part(context.rank, spec_.kv_heads);
  first_head_ = heads.first;
  heads_ = heads.count;
  kv_heads_ = kv_heads.count;
  const auto rows_of = [](const Range& range, std::size_t per_head) {
    return Range{range.first * per_head, range.count * per_head};
  };
  const Range all{0, hidden};
  const std::size_t per_query = (spec_.output_gate ? 2 : 1) * width;
  const BlockWeights::Rows q_rows{spec_.heads * per_query, rows_of(heads, per_query)};
  const BlockWeights::Rows k_rows{spec_.kv_heads * width, rows_of(kv_heads, width)};
  const BlockWeights::Rows v_rows{spec_.kv_heads * spec_.value_dim,
                                  rows_of(kv_heads, spec_.value_dim)};
  const auto load = [&](FineRole bias_role, const BlockWeights::Rows& rows,
                        std::vector<float>& bias) {
    const bool is_joined = weights.expects(FineRole::kQkvBias);
    if ((spec_.biases && !is_joined) || weights.expects(bias_role))
      bias = weights.vector_part(bias_role, rows.count, rows.mine);
  };
  load(FineRole::kQBias, q_rows, q_bias_);
  if (!spec_.keys_of) {
    load(FineRole::kKBias, k_rows, k_bias_);
    load(FineRole::kVBias, v_rows, v_bias_);
  }
  if (weights.expects(FineRole::kQkvBias)) load_joined_bias(weights, q_rows, k_rows, v_rows);
  if (spec_.experts > 0) {
    experts_.emplace(weights, context, spec_);
    std::vector<Linear> each = weights.linears(FineRole::kKvProj, {k_rows, v_rows}, hidden);
    k_ = std::move(each[0]);
    v_ = std::move(each[1]);
  } else if (weights.expects(FineRole::kQkvProj)) {
    std::vector<Linear> each =
        weights.linears(FineRole::kQkvProj, {q_rows, k_rows, v_rows}, hidden);
    q_ = std::move(each[0]);
    k_ = std::move(each[1]);
    v_ = std::move(each[2]);
  } else {
    q_ = weights.linear(Role::kQProj, q_rows.count, hidden, q_rows.mine, all);
    if (!spec_.keys_of) k_ = weights.linear(Role::kKProj, k_rows.count, hidden, k_rows.mine, all);
    if (!spec_.keys_of && !spec_.values_of_keys)
      v_ = weights.linear(Role::kVProj, v_rows.count, hidden, v_rows.mine, all);
  }
  if (!experts_) {
    o_ = weights.linear(Role::kOProj, hidden, spec_.heads * spec_.value_dim, all,
                        rows_of(heads, spec_.value_dim));
  }
  if (spec_.head_gate || spec_.value_gate) {
    const std::size_t per_head = spec_.value_gate ? spec_.value_dim : 1;
    gate_ = weights.linear(Role::kAttentionGate, spec_.heads * per_head, hidden,
                           rows_of(heads, per_head), all);
    if (weights.expects(FineRole::kAttentionGateBias))
      gate_bias_ = weights.vector_part(FineRole::kAttentionGateBias, spec_.heads, heads);
  }
  // Only one rank adds the bias to its share of the sum.
  if (context.rank.tp_rank() == 0 && weights.expects(FineRole::kOBias))
    o_bias_ = weights.vector(FineRole::kOBias, {hidden});
  if (spec_.sinks) sinks_ = weights.vector_part(Role::kAttentionSinks, spec_.heads, heads);
  load_norms(weights, context);
  if (spec_.blocks) blocks_.emplace(weights, context, *spec_.blocks, spec_.rope);
  if (spec_.indexer) indexer_.emplace(weights, context, *spec_.indexer);
  if (spec_.distances) {
    const auto [values, extent] = *spec_.distances;
    distances_ = weights.linear(FineRole::kDistanceProj, spec_.heads * values, hidden,
                                rows_of(heads, values), all);
    distance_table_ = weights.vector(FineRole::kDistanceTable, {values, extent});
  }
  if (context.spec.layers[weights.layer()].short_convolution > 0) {
    key_convolution_ = ShortConvolution(weights, context, Convolved::kKeys);
    value_convolution_ = ShortConvolution(weights, context, Convolved::kValues);
  }
}

void GqaAttention::load_joined_bias(const BlockWeights& weights, const BlockWeights::Rows& q,
                                    const BlockWeights::Rows& k, const BlockWeights::Rows& v) {
  const std::size_t all = q.count + k.count + v.count;
  const std::size_t mine = q.mine.count + k.mine.count + v.mine.count;
  // A rank's own slice has its own parts, one behind the other.
  const bool is_slice =
      weights.store().shape_of(weights.name(FineRole::kQkvBias)) == formats::Shape{mine};
  const std::vector<float> values = weights.vector(FineRole::kQkvBias, {is_slice ? mine : all});
  auto at = values.begin();
  const auto take = [&](const BlockWeights::Rows& rows, std::vector<float>& bias) {
    const auto first = at + static_cast<std::ptrdiff_t>(is_slice ? 0 : rows.mine.first);
    bias.assign(first, first + static_cast<std::ptrdiff_t>(rows.mine.count));
    at += static_cast<std::ptrdiff_t>(is_slice ? rows.mine.count : rows.count);
  };
  take(q, q_bias_);
  take(k, k_bias_);
  take(v, v_bias_);
}

namespace {

struct HeadRows {
  std::size_t all = 0;
  Range mine;
  std::size_t width = 0;
};

// Layer norms of this rank's heads: the weights of one head for all, or of each.
HiddenNorm layer_norms_of_heads(const BlockWeights& weights, const ModelSpec& model, Role role,
                                FineRole bias, const HeadRows& heads) {
  HiddenNorm norm;
  const std::size_t width = heads.width, n = heads.mine.count;
  const std::string first = weights.name(role, 0);
  if (heads.all > 1 && first != weights.name(role, 1)) {
    for (std::size_t h = heads.mine.first; h < heads.mine.first + n; ++h) {
      const std::string name = weights.name(role, static_cast<std::uint32_t>(h));
      const std::vector<float> own = weights.store().vector(name, {width});
      norm.weight.insert(norm.weight.end(), own.begin(), own.end());
    }
  } else if (const formats::Shape shape = weights.store().shape_of(first); shape.size() == 2) {
    const bool is_slice = shape.front() == n;
    const std::vector<float> all = weights.vector(role, {is_slice ? n : heads.all, width});
    const std::size_t from = is_slice ? 0 : heads.mine.first * width;
    const auto begin = all.begin() + static_cast<std::ptrdiff_t>(from);
    norm.weight.assign(begin, begin + static_cast<std::ptrdiff_t>(n * width));
  } else {
    norm.weight = weights.vector(role, {width});
  }
  for (float& value : norm.weight) value += model.norm.adds;
  norm.bias = weights.expects(bias) ? weights.vector(bias, {width})
                                    : std::vector<float>(norm.weight.size());
  return norm;
}

}  // namespace

void GqaAttention::load_norms(const BlockWeights& weights, const StepContext& context) {
  const std::size_t width = spec_.head_dim;
  const auto load = [&](Role role, std::size_t n) {
    return norm_weights(weights, context.spec, role, n);
  };
  const Range heads{first_head_, heads_}, kv_heads = key_head_part(context.rank, spec_.kv_heads);
  switch (spec_.norms) {
    case HeadNorm::kNone:
      return;
    case HeadNorm::kPerHead:
      q_norm_.weight = load(Role::kQNorm, width);
      if (!spec_.keys_of) k_norm_.weight = load(Role::kKNorm, width);
      return;
    case HeadNorm::kAllHeads: {
      const auto load_part = [&](Role role, std::size_t n_heads, const Range& mine) {
        std::vector<float> values =
            weights.vector_part(role, n_heads * width, {mine.first * width, mine.count * width});
        for (float& value : values) value += context.spec.norm.adds;
        return values;
      };
      q_norm_.weight = load_part(Role::kQNorm, spec_.heads, heads);
      k_norm_.weight = load_part(Role::kKNorm, spec_.kv_heads, kv_heads);
      return;
    }
    case HeadNorm::kPlain:
      q_norm_.weight = k_norm_.weight = std::vector<float>(width, 1.0F);
      return;
    case HeadNorm::kLayer:
      q_norm_ = layer_norms_of_heads(weights, context.spec, Role::kQNorm, FineRole::kQNormBias,
                                     {spec_.heads, heads, width});
      k_norm_ = layer_norms_of_heads(weights, context.spec, Role::kKNorm, FineRole::kKNormBias,
                                     {spec_.kv_heads, kv_heads, width});
      return;
  }
}

void GqaAttention::finish_heads(const LayerStep& step, const HiddenNorm& own,
                                const RopeAngles& angles, Matrix& heads) const {
  const StepContext& context = step.context;
  const std::span<const float> norm(own.weight);
  const auto normalize = [&] {
    if (spec_.norms == HeadNorm::kLayer) {
      const std::size_t width = spec_.head_dim;
      for (std::size_t first = 0; first < heads.cols(); first += width) {
        const std::size_t at = norm.size() == width ? 0 : first;
        const auto part = heads.columns(first, width);
        layer_norm(context.profile, part, norm.subspan(at, width),
                   std::span(own.bias).subspan(at, width), context.spec.norm.eps, part);
      }
      return;
    }
    if (spec_.norms == HeadNorm::kAllHeads) {
      std::vector<float> squares;
      for (std::size_t r = 0; r < heads.rows(); ++r)
        squares.push_back(sum_of_squares(heads.row(r)));
      context.comm.all_reduce(
          {.group = Group::kTensor, .name = "squares of heads", .layer = step.layer}, squares);
      // Ranks that share a key head count its squares each.
      const std::size_t width = heads.cols() * context.rank.tp_size();
      rms_norm_of_part(context.profile, heads.view(), squares, width, norm, context.spec.norm.eps,
                       heads.view());
      return;
    }
    for (std::size_t first = 0; !norm.empty() && first < heads.cols(); first += norm.size()) {
      const auto part = heads.columns(first, norm.size());
      rms_norm(context.profile, part, norm, context.spec.norm.eps, part);
    }
  };
  if (!spec_.norms_after_rope) normalize();
  clip(heads);
  for (std::size_t r = 0; r < heads.rows(); ++r) {
    for (std::size_t first = 0; first < heads.cols(); first += spec_.head_dim) {
      angles.rotate(r, heads.row(r).subspan(first, spec_.rope.dim));
    }
  }
  if (spec_.norms_after_rope) normalize();
}

// A head's gate stands behind its query.
void GqaAttention::split_gates(Matrix& queries, Matrix& gates) const {
  if (!spec_.output_gate) return;
  const std::size_t width = spec_.head_dim;
  const Matrix both = std::move(queries);
  queries = Matrix(both.rows(), heads_ * width);
  gates = Matrix(both.rows(), heads_ * width);
  for (std::size_t r = 0; r < both.rows(); ++r) {
    for (std::size_t h = 0; h < heads_; ++h) {
      const auto pair = both.row(r).subspan(2 * h * width, 2 * width);
      std::ranges::copy(pair.first(width), queries.row(r).subspan(h * width).begin());
      std::ranges::copy(pair.last(width), gates.row(r).subspan(h * width).begin());
    }
  }
}

void GqaAttention::attend_run(const LayerStep& step, const SequenceRun& run, const Matrix& queries,
                              const Matrix& distances, const BlockChooser::Chosen& chosen,
                              Matrix& attended) const {
  const StepContext& context = step.context;
  const std::size_t width = spec_.head_dim, value_width = spec_.value_dim;
  const std::size_t shared_by = heads_ / kv_heads_;
  // Tokens that no row of the run sees are not read.
  const std::size_t low = spec_.first_seen(run.first_position);
  std::vector<std::uint32_t> positions;
  for (std::size_t t = low; t < run.total(); ++t)
    positions.push_back(static_cast<std::uint32_t>(t));
  const auto cached = [&](std::size_t stream) {
    return spec_.keys_of ? step.cached_keys(context.profile, run.sequence, stream, positions)
                         : step.cached(context.profile, run.sequence, stream, positions);
  };
  const Matrix keys = cached(kKeyStream), values = cached(kValueStream);
  parallel_for(heads_, context.threads, [&](std::size_t head) {
    AttentionNumbers numbers{context.profile, spec_.softmax_scale, 1, spec_.score_cap};
    const std::vector<float> sinks(sinks_.empty() ? 0 : run.count,
                                   sinks_.empty() ? 0.0F : sinks_[head]);
    if (spec_.window > 0 || spec_.chunk > 0) {
      numbers.from = [&](std::size_t row) {
        return spec_.first_seen(run.first_position + row) - low;
      };
    }
    Matrix by_distance;
    if (spec_.distances) {
      const std::size_t n = spec_.distances->values;
      by_distance = logits_by_distance(context.profile, distance_table_, *spec_.distances,
                                       distances.block(run.first_row, run.count, head * n, n));
    }
    const auto own_keys = keys.columns(head / shared_by * width, width);
    const auto own_values = values.columns(head / shared_by * value_width, value_width);
    const auto query = [&](std::size_t row, std::size_t n) {
      return queries.block(run.first_row + row, n, head * width, width);
    };
    const auto result = [&](std::size_t row, std::size_t n) {
      return attended.block(run.first_row + row, n, head * value_width, value_width);
    };
    // Rows that read all that they see come first.
    const auto chosen_of = [&](std::size_t row) -> std::span<const std::uint32_t> {
      if (chosen.empty() || row >= run.count) return {};
      const std::size_t n = spec_.blocks    ? spec_.blocks->heads
                            : spec_.indexer ? spec_.indexer->groups
                                            : 1;
      return chosen[(run.first_row + row) * n + (first_head_ + head) * n / spec_.heads];
    };
    std::size_t n_dense = 0;
    while (n_dense < run.count && chosen_of(n_dense).empty()) ++n_dense;
    if (n_dense > 0) {
      numbers.sinks = std::span(sinks).first(sinks.empty() ? 0 : n_dense);
      if (spec_.distances) numbers.by_distance = by_distance.view();
      const ScorePart parts[] = {{query(0, n_dense), own_keys}};
      attend(
          numbers, parts, own_values,
          [&](std::size_t row) { return run.first_position + row + 1 - low; }, result(0, n_dense));
    }
    for (std::size_t row = n_dense; row < run.count; ++row) {
      const auto some = chosen_of(row);
      const Matrix some_keys = gathered(own_keys, some), some_values = gathered(own_values, some);
      const ScorePart parts[] = {{query(row, 1), some_keys.view()}};
      numbers.sinks = std::span(sinks).first(sinks.empty() ? 0 : 1);
      attend(
          numbers, parts, some_values.view(), [&](std::size_t) { return some.size(); },
          result(row, 1));
    }
  });
}

void GqaAttention::clip(Matrix& made) const {
  if (!spec_.clip) return;
  for (float& value : made.values()) value = std::clamp(value, -*spec_.clip, *spec_.clip);
}

void GqaAttention::norm_each(const StepContext& context, Matrix& heads) const {
  const std::vector<float> ones(spec_.value_dim, 1.0F);
  for (std::size_t first = 0; first < heads.cols(); first += ones.size()) {
    const auto head = heads.columns(first, ones.size());
    rms_norm(context.profile, head, ones, context.spec.norm.eps, head);
  }
}

void GqaAttention::cache_rows(const LayerStep& step, const Matrix& x,
                              const RopeAngles& angles) const {
  const StepContext& context = step.context;
  Matrix new_keys = rounded_product(context, k_, x, k_bias_);
  Matrix new_values = spec_.values_of_keys ? new_keys : rounded_product(context, v_, x, v_bias_);
  clip(new_values);
  key_convolution_.apply(step, new_keys);
  finish_heads(step, k_norm_, angles, new_keys);
  if (spec_.norms_values) norm_each(context, new_values);
  value_convolution_.apply(step, new_values);
  scale_rounded(context.profile, spec_.value_scale, new_values);
  require_finite(new_keys, step.layer, "the key");
  require_finite(new_values, step.layer, "the value");
  step.write(kKeyStream, new_keys.view());
  step.write(kValueStream, new_values.view());
}

Matrix GqaAttention::partial(const LayerStep& step, const Matrix& x) const {
  const StepContext& context = step.context;
  const RopeAngles angles(context.profile, spec_.rope, step.rows.positions);
  const Routing routing = experts_ ? experts_->choose(context, x) : Routing();
  Matrix queries =
      experts_ ? experts_->queries(context, x, routing) : rounded_product(context, q_, x, q_bias_);
  Matrix gates;
  split_gates(queries, gates);
  finish_heads(step, q_norm_, angles, queries);
  grow_queries(context.profile, spec_.growth, step.rows.positions, queries);
  Matrix distances;
  if (spec_.distances) {
    distances = rounded_product(context, distances_, x);
    grow_queries(context.profile, spec_.growth, step.rows.positions, distances);
  }
  if (!spec_.keys_of) cache_rows(step, x, angles);
  Matrix attended(x.rows(), heads_ * spec_.value_dim);
  auto chosen = blocks_ ? blocks_->choose(step, x) : BlockChooser::Chosen();
  if (indexer_) {
    indexer_->select(step, x, Matrix());
    // One choice for each row can be handed on, and shown.
    if (spec_.indexer->by_group) {
      chosen = std::exchange(step.selection, {});
    } else {
      chosen = step.selection;
      step.show(chosen);
    }
  }
  for (const SequenceRun& run : step.rows.runs)
    attend_run(step, run, queries, distances, chosen, attended);
  if (spec_.norms_attended) norm_each(context, attended);
  for (std::size_t i = 0; i < gates.values().size(); ++i) {
    attended.values()[i] *= sigmoid_f32(gates.values()[i]);
  }
  if (spec_.output_gate) round_between(context.profile, attended.values());
  if (!gate_.empty()) {
    gate_heads(context, gate_, x, spec_.value_gate ? 1 : spec_.value_dim, attended,
               spec_.softplus_gate, gate_bias_);
  }
  require_finite(attended, step.layer, "attention");
  if (experts_) return experts_->outputs(context, attended, routing);
  Matrix out = product(context, o_, attended);
  add_bias(o_bias_, out);
  return out;
}

}  // namespace

constinit const MixerKind kGroupedAttention = mixer_kind<GqaAttention>("grouped");

}  // namespace ingot::inference
