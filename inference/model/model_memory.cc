#include "inference/model/model_memory.h"

#include <algorithm>

#include "formats/base/error.h"
#include "inference/model/model_ends.h"
#include "inference/parallel/rank_view.h"

namespace ingot::inference {
namespace {

// Experts are counted apart, and rows of a table are read when they are looked up.
bool is_resident(const formats::LogicalTensor& tensor) {
  const formats::Role role = role_of(tensor);
  return !formats::is_routed_expert(role) && role != formats::Role::kLookupTable;
}

// Copies of embedding and head in the MTP layer are not read, except an embedding that is the only
// one here.
bool is_read(const formats::LogicalTensor& tensor, const ModelSpec& spec, bool with_mtp,
             bool has_embedding) {
  using formats::Role;
  if (tensor.rule == nullptr) return false;
  if (tensor.rule->role == Role::kMtpEmbedding && has_embedding) return false;
  if (tensor.rule->role == Role::kMtpHead) return false;
  return !tensor.layer || *tensor.layer < spec.n_main || with_mtp;
}

// The bytes of the tensors for which `counts` is true, and of the experts.
template <typename Counts>
WeightNeed need_of(const WeightStore& weights, const ExpertShape& experts, const Counts& counts) {
  WeightNeed need;
  const formats::Checkpoint& source = weights.source();
  for (const formats::LogicalTensor& tensor : source.tensors()) {
    if (!is_resident(tensor) || !counts(tensor)) continue;
    tensor.encoding.stored.for_each([&](formats::Part, std::uint32_t stored) {
      need.resident += source.stored()[stored].n_bytes;
    });
  }
  if (experts.experts.empty()) return need;
  const ExpertStore::Need routed = ExpertStore::need(weights, experts);
  need.experts = routed.all;
  need.two_experts = std::min(routed.all, 2 * routed.largest);
  return need;
}

}  // namespace

ExpertShape expert_shape(const ModelSpec& spec, const RankView& rank, bool with_mtp) {
  ExpertShape shape{.experts = {}, .n_experts = 0, .hidden = spec.hidden, .inner = {}};
  const auto* mixture = spec.find<MixtureSpec>();
  if (mixture == nullptr) return shape;
  if (mixture->pool > 0) shape.hidden = mixture->pool;
  shape.intermediate = mixture->expert.width;
  shape.has_gate = mixture->expert.has_gate;
  shape.has_biases = mixture->has_biases;
  const auto experts_in = [&](const LayerSpec& layer) {
    const auto* own = layer.find<MixtureSpec>();
    return own != nullptr ? own->router.experts : 0;
  };
  for (const LayerSpec& layer : spec.layers)
    shape.n_experts = std::max(shape.n_experts, experts_in(layer));
  shape.inner = expert_part(rank, shape.intermediate);
  const shard::ExpertMap places = expert_places(rank, shape.n_experts);
  const Range stage = stage_part(rank, spec.n_main);
  const std::size_t end = stage.first + stage.count + (with_mtp && rank.is_last_stage() ? 1 : 0);
  for (std::size_t l = stage.first; l < std::min(end, spec.layers.size()); ++l) {
    if (!spec.is_moe(l)) continue;
    const auto layer = static_cast<std::uint32_t>(l);
    if (mixture->home(layer) != layer) continue;
    const std::size_t n = experts_in(spec.layers[l]);
    if (n < shape.n_experts) shape.fewer.emplace(layer, n);
    for (const std::uint32_t expert : places.experts_of(layer, rank.at().ep_rank)) {
      // The number behind the last routed expert is the shared expert's.
      if (expert < n) shape.experts.push_back({.layer = layer, .expert = expert});
    }
  }
  return shape;
}

WeightNeed need_of_weights(const WeightStore& weights, const ExpertShape& experts, bool with_mtp,
                           const ModelSpec& spec) {
  const bool has_embedding = weights.has({.role = formats::Role::kEmbedding});
  return need_of(weights, experts, [&](const formats::LogicalTensor& tensor) {
    return is_read(tensor, spec, with_mtp, has_embedding);
  });
}

WeightNeed need_of_layer(const WeightStore& weights, const ExpertShape& experts,
                         std::uint32_t layer) {
  return need_of(weights, experts,
                 [&](const formats::LogicalTensor& tensor) { return tensor.layer == layer; });
}

std::uint64_t expert_budget(const WeightNeed& need, std::uint64_t limit) {
  if (limit == 0) return need.experts;
  const std::uint64_t least = need.resident + need.two_experts;
  if (limit < least) {
    throw Error(ErrorCode::kLimit,
                "{} bytes of memory are left for weights, but {} stay resident and two experts "
                "take {}: {} would be enough, {} for all experts",
                limit, need.resident, need.two_experts, least, need.resident + need.experts);
  }
  return std::min(need.experts, limit - need.resident);
}

void reserve_rows(const StepRows& rows, KvCache& cache) {
  for (std::size_t i = 0; i < rows.runs.size(); ++i) {
    const SequenceRun& run = rows.runs[i];
    if (i > 0 && rows.runs[i - 1].sequence == run.sequence) continue;  // the sequence is done
    if (run.first_position > cache.length(run.sequence)) {
      throw Error(ErrorCode::kInvalidArgument,
                  "a row at position {} of a sequence of which {} tokens are cached",
                  run.first_position, cache.length(run.sequence));
    }
  }
  const auto truncate_all = [&] {
    for (const SequenceRun& run : rows.runs) cache.truncate(run.sequence, run.first_position);
  };
  truncate_all();
  try {
    for (const SequenceRun& run : rows.runs) cache.reserve(run.sequence, run.total());
  } catch (...) {
    truncate_all();  // frees the rows reserved for earlier sequences
    throw;
  }
}

}  // namespace ingot::inference
