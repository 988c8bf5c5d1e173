#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include <fmt/format.h>

#include "convert/plan/passes.h"
#include "engines/versions/sharded_state.h"
#include "formats/base/checked.h"
#include "formats/base/error.h"
#include "formats/json/json.h"

// Layout vllm-sharded, for `vllm serve DIR --load-format sharded_state`: a file per rank with the
// tensors that vLLM's modules hold. Their names are rows of engines/versions/sharded_state.cc.

namespace ingot::convert {

using formats::LogicalTensor;
using formats::SchemeId;

namespace {

std::optional<engines::StatePlace> place_of(const Plan& plan, std::string_view name) {
  return engines::state_place(name, plan.source.family().name, plan.source.config());
}

constexpr formats::RoleSet kOfIndexers = {formats::Role::kIndexerQ, formats::Role::kIndexerK,
                                          formats::Role::kIndexerKNorm,
                                          formats::Role::kIndexerWeights};

bool is_of_indexer(const LogicalTensor& tensor) {
  return tensor.layer && kOfIndexers.has(role_of(tensor));
}

bool builds_indexer(const Plan& plan, std::uint64_t layer) {
  const formats::Checkpoint& source = plan.source;
  return engines::builds_indexer(source.family().name, source.config(), layer).value_or(true);
}

/// Indexers that a source has and vLLM does not build are no key of its state.
void leave_out_unbuilt(Plan& plan) {
  for (PlannedTensor& planned : plan.tensors) {
    const LogicalTensor& tensor = plan.tensor_of(planned);
    if (is_of_indexer(tensor) && !builds_indexer(plan, *tensor.layer))
      planned.action = Action::kDrop;
  }
}

void require_indexers(const Plan& plan) {
  std::set<std::uint32_t> layers;
  for (const PlannedTensor& planned : plan.tensors) {
    const LogicalTensor& tensor = plan.tensor_of(planned);
    if (is_of_indexer(tensor)) layers.insert(*tensor.layer);
  }
  const std::uint64_t n_layers = plan.source.config().num_hidden_layers;
  for (std::uint32_t layer = 0; !layers.empty() && layer < n_layers; ++layer) {
    if (layers.contains(layer) || !builds_indexer(plan, layer)) continue;
    throw Error(ErrorCode::kUnsupported,
                "vLLM builds an indexer in layer {}, which has none: it reads index_topk_freq, "
                "index_skip_topk_offset and index_topk_pattern of config.json, and not "
                "indexer_types (give config.json these)",
                layer);
  }
}

void refuse_options(const Plan& plan) {
  const SlicingOptions& options = plan.options.slicing;
  const shard::Topology& topology = options.topology;
  const auto refuse = [](const std::string& fact) { throw Error(ErrorCode::kUnsupported, fact); };
  const formats::ModelConfig& config = plan.source.config();
  if (!engines::has_state_of(plan.source.family().name)) {
    refuse(
        fmt::format("layout vllm-sharded does not know vLLM's model of family {} (use --layout "
                    "hf, which vLLM cuts itself as it loads)",
                    plan.source.family().name));
  }
  const bool has_experts = topology.ep > 1;
  if (topology.ep != (has_experts ? topology.tp : 1) ||
      topology.etp != (has_experts ? 1 : topology.tp)) {
    refuse(
        fmt::format("layout vllm-sharded cuts experts by --tp, or deals them to as many ranks "
                    "(--ep {0}): other numbers need data parallelism, which its file names do "
                    "not know",
                    topology.tp));
  }
  if (!options.expert_map.empty())
    refuse(
        "layout vllm-sharded deals experts in contiguous blocks, as vLLM does (leave out "
        "--expert-map)");
  if (!options.stages.empty())
    refuse("layout vllm-sharded divides the layers as vLLM does (leave out --pp-layers)");
  if (topology.pp > static_cast<std::uint64_t>(config.num_hidden_layers)) {
    refuse(
        fmt::format("layout vllm-sharded has a layer on each stage, and --pp {} is more than {} "
                    "layers",
                    topology.pp, config.num_hidden_layers));
  }
  if (options.shared == shard::SharedExperts::kReplicated)
    refuse("vLLM cuts shared experts by --tp (leave out --shared-experts)");
  if (options.fit == shard::TpFit::kRetile || options.fit == shard::TpFit::kPad)
    refuse(
        "layout vllm-sharded takes --tp-fit refuse or bf16: vLLM builds the blocks and widths "
        "that the release has");
  if (plan.options.shards.max_shard_bytes)
    refuse("layout vllm-sharded writes a file per rank (leave out --max-shard-size)");
  if (plan.options.shards.align > 0)
    refuse("layout vllm-sharded joins tensors in vLLM's order (leave out --align)");
  // The output must not have another format than the one asked for.
  if (const auto to = plan.recipe.to; to == SchemeId::kF16 || to == SchemeId::kF32)
    refuse(
        fmt::format("layout vllm-sharded holds plain tensors as BF16, and --to asks for {} (--to "
                    "bf16, or --layout hf)",
                    formats::scheme_facts(*to).name));
  if (config.tie_word_embeddings)
    refuse(
        "layout vllm-sharded does not hold models whose head is their embedding (use --layout "
        "hf, which vLLM cuts itself as it loads)");
  if (config.dtype != "bfloat16") {
    refuse(
        fmt::format("layout vllm-sharded holds plain tensors as BF16, and config.json says "
                    "dtype '{}' (use --layout hf; or say bfloat16 there)",
                    config.dtype));
  }
  if (engines::kStateVocabMultiple % topology.tp != 0)
    refuse(
        fmt::format("vLLM pads the vocabulary to a multiple of {0}, which --tp {1} does not "
                    "divide (choose a divisor of {0}, or --layout hf)",
                    engines::kStateVocabMultiple, topology.tp));
}

// Weights that vLLM holds plain are decoded or cast here, as its loader would do it.
void make_plain(Plan& plan) {
  refuse_options(plan);
  leave_out_unbuilt(plan);
  ErrorList refusals;
  for (PlannedTensor& planned : plan.tensors) {
    const LogicalTensor& tensor = plan.tensor_of(planned);
    const auto place = place_of(plan, tensor.name);
    if (planned.action == Action::kDrop || !place) continue;
    bool is_quantized = formats::scheme_facts(planned.to).quantized;
    if (is_quantized && place->form == engines::StateForm::kDecoded) {
      planned.is_demoted = true;
      is_quantized = false;
    }
    if (is_quantized && place->form == engines::StateForm::kPlain) {
      refusals.add(ErrorCode::kUnsupported,
                   "vLLM holds it plain, and it would be quantized (leave it plain with --rule)",
                   tensor.name);
    }
    const SchemeId plain = place->plain == formats::DType::kF32 ? SchemeId::kF32 : SchemeId::kBf16;
    if (is_quantized || planned.to == plain) continue;
    if (planned.action == Action::kCast && !planned.is_demoted) {
      refusals.add(
          ErrorCode::kUnsupported,
          fmt::format("vLLM holds it in {}, and a rule asks for {} (leave it out of the "
                      "rule, or use --layout hf)",
                      formats::scheme_facts(plain).name, formats::scheme_facts(planned.to).name),
          tensor.name);
    }
    become_plain(tensor, planned, plain);
  }
  refusals.throw_if_any();
}

// True if a tensor belongs to the model for multi-token prediction, which vLLM calls the draft
// model.
bool is_draft(const Plan& plan, const PlannedTensor& planned) {
  const auto& layer = plan.tensor_of(planned).layer;
  return layer && *layer >= plan.source.config().num_hidden_layers;
}

bool has_draft(const Plan& plan) {
  return std::ranges::any_of(plan.tensors, [&](const PlannedTensor& planned) {
    return planned.action != Action::kDrop && is_draft(plan, planned);
  });
}

void require_draft(const Plan& plan) {
  if (!has_draft(plan)) return;
  const auto refuse = [](const std::string& fact) {
    throw Error(ErrorCode::kUnsupported, fact + " (add --mtp drop)");
  };
  if (plan.options.slicing.topology.pp > 1) {
    refuse(
        "layout vllm-sharded has MTP layers on only one stage, and it is not known how vLLM loads "
        "its draft model with --pp");
  }
  if (const auto n = plan.source.config().num_nextn_predict_layers; n > 1) {
    refuse(
        fmt::format("layout vllm-sharded has one MTP layer, and the model has {} with an "
                    "embedding each",
                    n));
  }
  for (const formats::Role role : {formats::Role::kMtpEmbedding, formats::Role::kMtpHead}) {
    const bool is_here = std::ranges::any_of(plan.tensors, [&](const PlannedTensor& planned) {
      return role_of(plan.tensor_of(planned)) == role;
    });
    if (is_here) continue;
    refuse(
        fmt::format("vLLM's draft model has an embedding and a head of its own, and the MTP layer "
                    "has no {}",
                    formats::role_name(role)));
  }
}

// The first tensor of each key that several tensors make up decides how the others are held.
using Held = std::map<std::string, std::pair<SchemeId, std::string_view>>;

// Returns false, and adds a refusal, if the layout does not hold the tensor's scheme.
bool require_tensor(const Plan& plan, const PlannedTensor& planned, Held& held,
                    ErrorList& refusals) {
  const LogicalTensor& tensor = plan.tensor_of(planned);
  const auto refuse = [&](std::string fact) {
    refusals.add(ErrorCode::kUnsupported, std::move(fact), tensor.name);
  };
  const formats::SchemeFacts& facts = formats::scheme_facts(planned.to);
  const engines::StateScheme* scheme =
      engines::find_state_scheme(planned.to, plan.target.dialect->name);
  if (scheme == nullptr) {
    refuse(fmt::format(
        "layout vllm-sharded does not hold {} in dialect {} (use --layout hf, which vLLM cuts "
        "itself as it loads; ingot help slicing lists the schemes)",
        facts.name, plan.target.dialect->name));
    return false;
  }
  const auto place = place_of(plan, tensor.name);
  if (!place) refuse("layout vllm-sharded has no name for it");
  if (!place || place->n_places == 1) return true;
  const auto [first, is_new] = held.emplace(place->key, std::pair(planned.to, tensor.name));
  if (first->second.first != planned.to) {
    refuse(fmt::format("is {}, and vLLM fuses it with {} (choose one scheme for both)", facts.name,
                       first->second.second));
  }
  return true;
}

// Scales have one dtype there, whatever the tool that wrote them chose.
void require_parts(const Plan& plan, const PlannedTensor& planned, ErrorList& refusals) {
  if (planned.action != Action::kCopy && planned.action != Action::kRewrap) return;
  const LogicalTensor& tensor = plan.tensor_of(planned);
  const auto& stored = tensor.encoding.stored;
  for (const formats::Part part : {formats::Part::kZeroPoint, formats::Part::kGroupOrder}) {
    if (!stored.has(part)) continue;
    refusals.add(ErrorCode::kUnsupported,
                 "has zero points or an order of groups, and layout vllm-sharded holds only "
                 "symmetric int4 (convert it again with --to int4, or use --layout hf)",
                 tensor.name);
  }
  if (planned.to == SchemeId::kNvfp4 || !stored.has(formats::Part::kScale)) return;
  const formats::DType wanted =
      planned.to == SchemeId::kInt4Group ? formats::DType::kBf16 : formats::DType::kF32;
  const formats::DType dtype = plan.source.stored()[stored[formats::Part::kScale]].dtype;
  if (dtype == wanted) return;
  refusals.add(ErrorCode::kUnsupported,
               fmt::format("has scales in {}, and vLLM holds them in {} (convert it to BF16 first)",
                           formats::dtype_name(dtype), formats::dtype_name(wanted)),
               tensor.name);
}

void require_holdable(const Plan& plan) {
  require_draft(plan);
  require_indexers(plan);
  ErrorList refusals;
  Held held;
  for (const PlannedTensor& planned : plan.tensors) {
    if (planned.action == Action::kDrop) continue;
    if (require_tensor(plan, planned, held, refusals)) require_parts(plan, planned, refusals);
  }
  refusals.throw_if_any();
}

std::uint64_t padded_rows(const Plan& plan, const PlannedTensor& planned) {
  const LogicalTensor& tensor = plan.tensor_of(planned);
  constexpr formats::RoleSet kOfVocabulary = {formats::Role::kEmbedding, formats::Role::kHead,
                                              formats::Role::kMtpEmbedding,
                                              formats::Role::kMtpHead};
  if (!kOfVocabulary.has(role_of(tensor))) return 0;
  const std::uint64_t padded = round_up(tensor.shape.at(0), engines::kStateVocabMultiple);
  return padded == tensor.shape.at(0) ? 0 : padded;
}

// The folder of the draft model: --speculative-config names it.
constexpr const char* kDraftFolder = "mtp";

std::string file_name(const shard::Topology& topology, const shard::RankPosition& at) {
  if (topology.pp == 1) return fmt::format("model-rank-{}-part-0.safetensors", at.tp_rank);
  return fmt::format("model-pp-{}-tp-{}-part-0.safetensors", at.stage, at.tp_rank);
}

std::vector<std::uint32_t> stages_of(const Plan& plan, const LogicalTensor& tensor) {
  if (!tensor.layer && engines::has_ends_on_every_stage(plan.source.family().name)) {
    std::vector<std::uint32_t> all(plan.slicing->topology.pp);
    std::iota(all.begin(), all.end(), 0U);
    return all;
  }
  // Where MTP layers are left out, nothing behind the first stage shares the embedding.
  if (role_of(tensor) == formats::Role::kEmbedding) return {0};
  return shard::stages_of(tensor, plan.source, *plan.slicing);
}

void assign_by_rank(Plan& plan) {
  const shard::Topology& topology = plan.slicing->topology;
  for (std::uint32_t rank = 0; rank < topology.n_ranks(); ++rank) {
    PlannedFile& file = add_file(plan, file_name(topology, topology.position(rank)));
    file.members.front().ranks = {rank};
  }
  const auto first_draft = static_cast<std::uint32_t>(plan.files.size());
  for (std::uint32_t r = 0; has_draft(plan) && r < topology.tp; ++r) {
    PlannedFile& file = add_file(
        plan, fmt::format("{}/{}", kDraftFolder, file_name(topology, topology.position(r))));
    file.members.front().ranks = {r};
  }
  for (PlannedTensor& planned : plan.tensors) {
    if (planned.n_parts == 0) continue;
    std::vector<std::uint32_t> ranks = ep_ranks_of(plan, planned);
    if (ranks.empty()) {
      for (std::uint32_t r = 0; r < topology.tp; ++r) ranks.push_back(r);
    }
    std::vector<PlannedPlace> places;
    for (const std::uint32_t stage : stages_of(plan, plan.tensor_of(planned))) {
      for (const std::uint32_t r : ranks) {
        const std::uint32_t rank = stage * topology.tp + r;
        places.push_back({.file = is_draft(plan, planned) ? first_draft + r : rank,
                          .first_slice = planned.cut.slice_of(topology.position(rank), topology)});
      }
    }
    for (std::size_t p = 0; p < planned.n_parts; ++p) set_places(plan, planned.parts[p], places);
  }
}

// vLLM keeps the dimensions of INT4 weights, and never looks at them: they are a constant there.
bool leaves_out(formats::Part part) {
  return part == formats::Part::kDimensions;
}

void describe_engine(Plan& plan) {
  if (has_draft(plan)) plan.json.config_folders = {kDraftFolder};
  std::set<std::string> kernels, constants;
  for (const PlannedTensor& planned : plan.tensors) {
    if (planned.action == Action::kDrop) continue;
    const auto* scheme = engines::find_state_scheme(planned.to, plan.target.dialect->name);
    if (scheme != nullptr && !scheme->kernels.empty()) kernels.emplace(scheme->kernels);
  }
  for (const PlannedFile& file : plan.files) {
    for (const PlannedFile::Joined& joined : file.joined) {
      if (joined.is_constant()) constants.insert(joined.spec.name);
    }
  }
  plan.json.engine = formats::Json{{"name", "vllm"},
                                   {"version", std::string(engines::kStateVersion)},
                                   {"platform", "cuda"},
                                   {"kernels", kernels},
                                   {"constants", constants}};
}

}  // namespace

constexpr LayoutFunctions kShardedStateLayout{.make_plain = make_plain,
                                              .require_holdable = require_holdable,
                                              .padded_rows = padded_rows,
                                              .stages = engines::state_stages,
                                              .leaves_out = leaves_out,
                                              .assign_files = assign_by_rank,
                                              .join_parts = join_state_keys,
                                              .derive_json = describe_engine};

}  // namespace ingot::convert
