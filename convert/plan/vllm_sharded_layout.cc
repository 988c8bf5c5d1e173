#include <algorithm>
#include <array>
#include <map>
#include <set>

#include <fmt/format.h>

#include "convert/plan/passes.h"
#include "formats/base/checked.h"
#include "formats/base/error.h"
#include "formats/config/nested_config.h"
#include "formats/json/json.h"
#include "formats/records/vllm_state.h"

// Layout vllm-sharded: what `vllm serve DIR --load-format sharded_state` loads, a file per rank
// with the tensors that vLLM's modules hold. Their names are rows of formats/records/vllm_state.cc.

namespace ingot::convert {

using formats::LogicalTensor;
using formats::SchemeId;
using formats::VllmPlace;

namespace {

std::optional<VllmPlace> place_of(const Plan& plan, std::string_view name) {
  return formats::vllm_place(name, plan.source.family().name, plan.source.config());
}

// What vLLM holds plain is decoded or cast here, as its loader would do it.
void make_plain(Plan& plan) {
  Refusals refusals;
  for (PlannedTensor& planned : plan.tensors) {
    const LogicalTensor& tensor = plan.tensor_of(planned);
    const auto place = place_of(plan, tensor.name);
    if (planned.action == Action::kDrop || !place) continue;
    bool is_quantized = formats::scheme_facts(planned.to).quantized;
    if (is_quantized && place->form == formats::VllmForm::kDecoded) {
      planned.is_demoted = true;
      is_quantized = false;
    }
    if (is_quantized && place->form == formats::VllmForm::kPlain) {
      refusals.add(ErrorCode::kUnsupported,
                   "vLLM holds it plain, and it would be quantized (leave it plain with --rule)",
                   tensor.name);
    }
    const SchemeId plain = place->plain == formats::DType::kF32 ? SchemeId::kF32 : SchemeId::kBf16;
    if (!is_quantized && planned.to != plain) become_plain(tensor, planned, plain);
  }
  refusals.throw_if_any();
}

// Whether a layer computes with the indices that an earlier one has chosen.
bool shares_indexers(const formats::Checkpoint& source) {
  const formats::Json& raw = formats::text_keys(source.config());
  if (!raw.is_object()) return false;
  const auto types = raw.find("indexer_types");
  const bool some_share =
      types != raw.end() && types->is_array() &&
      !std::ranges::all_of(*types, [](const formats::Json& type) { return type == "full"; });
  const auto every = raw.find("index_topk_freq");
  const auto pattern = raw.find("index_topk_pattern");
  return some_share || (every != raw.end() && !every->is_null() && *every != 1) ||
         (pattern != raw.end() && !pattern->is_null());
}

void refuse_options(const Plan& plan) {
  const SlicingOptions& options = plan.options.slicing;
  const shard::Topology& topology = options.topology;
  const auto refuse = [](const std::string& fact) { throw Error(ErrorCode::kUnsupported, fact); };
  const formats::ModelConfig& config = plan.source.config();
  if (!formats::has_vllm_model(plan.source.family().name)) {
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
  if (shares_indexers(plan.source)) {
    refuse(
        "config.json says that layers share the indexer of an earlier one, and layout "
        "vllm-sharded does not know of which vLLM builds none (use --layout hf)");
  }
  if (options.shared == shard::SharedExperts::kReplicated)
    refuse("vLLM cuts shared experts by --tp (leave out --shared-experts)");
  if (options.fit == shard::TpFit::kRetile || options.fit == shard::TpFit::kPad)
    refuse(
        "layout vllm-sharded takes --tp-fit refuse or bf16: vLLM builds the blocks and widths "
        "that the release has");
  if (plan.options.shards.max_shard_bytes)
    refuse("layout vllm-sharded writes a file per rank (leave out --max-shard-size)");
  if (config.tie_word_embeddings)
    refuse("layout vllm-sharded does not hold models whose head is their embedding");
  if (config.dtype != "bfloat16") {
    refuse(
        fmt::format("layout vllm-sharded holds plain tensors as BF16, and config.json says "
                    "dtype '{}'",
                    config.dtype));
  }
  if (formats::kVllmVocabMultiple % topology.tp != 0)
    refuse(
        fmt::format("vLLM pads the vocabulary to a multiple of {}, which --tp {} does not "
                    "divide",
                    formats::kVllmVocabMultiple, topology.tp));
}

// Those of the model for multi-token prediction, which vLLM calls the draft model.
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
        "layout vllm-sharded has MTP layers on one stage alone, and nothing says how vLLM loads "
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
      const LogicalTensor& tensor = plan.tensor_of(planned);
      return tensor.rule != nullptr && tensor.rule->role == role;
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

void require_tensor(const Plan& plan, const PlannedTensor& planned, Held& held,
                    Refusals& refusals) {
  const LogicalTensor& tensor = plan.tensor_of(planned);
  const auto refuse = [&](std::string fact) {
    refusals.add(ErrorCode::kUnsupported, std::move(fact), tensor.name);
  };
  const formats::SchemeFacts& facts = formats::scheme_facts(planned.to);
  const formats::VllmScheme* scheme =
      formats::find_vllm_scheme(planned.to, plan.target.dialect->name);
  if (scheme == nullptr) {
    return refuse(fmt::format("layout vllm-sharded does not hold {} in dialect {}", facts.name,
                              plan.target.dialect->name));
  }
  const auto place = place_of(plan, tensor.name);
  if (!place) return refuse("layout vllm-sharded has no name for it");
  if (place->n_places == 1) return;
  const auto [first, is_new] = held.emplace(place->key, std::pair(planned.to, tensor.name));
  if (first->second.first != planned.to) {
    refuse(fmt::format("is {}, and vLLM fuses it with {} (choose one scheme for both)", facts.name,
                       first->second.second));
  }
}

// Scales are F32 there, whatever the tool that wrote them chose.
void require_parts(const Plan& plan, const PlannedTensor& planned, Refusals& refusals) {
  if (planned.action != Action::kCopy && planned.action != Action::kRepackage) return;
  const LogicalTensor& tensor = plan.tensor_of(planned);
  if (planned.to == SchemeId::kNvfp4) return;
  const auto& stored = tensor.encoding.stored;
  if (!stored.has(formats::Part::kScale)) return;
  const formats::DType dtype = plan.source.stored()[stored[formats::Part::kScale]].dtype;
  if (dtype == formats::DType::kF32) return;
  refusals.add(ErrorCode::kUnsupported,
               fmt::format("has scales in {}, and vLLM holds them in F32 (convert it to BF16 "
                           "first)",
                           formats::dtype_name(dtype)),
               tensor.name);
}

void require_holdable(const Plan& plan) {
  refuse_options(plan);
  require_draft(plan);
  Refusals refusals;
  Held held;
  for (const PlannedTensor& planned : plan.tensors) {
    if (planned.action == Action::kDrop) continue;
    require_tensor(plan, planned, held, refusals);
    require_parts(plan, planned, refusals);
  }
  refusals.throw_if_any();
}

std::uint64_t padded_rows(const Plan& plan, const PlannedTensor& planned) {
  const LogicalTensor& tensor = plan.tensor_of(planned);
  if (tensor.rule == nullptr) return 0;
  const formats::Role role = tensor.rule->role;
  constexpr std::array kOfVocabulary = {formats::Role::kEmbedding, formats::Role::kHead,
                                        formats::Role::kMtpEmbedding, formats::Role::kMtpHead};
  if (std::ranges::find(kOfVocabulary, role) == kOfVocabulary.end()) return 0;
  const std::uint64_t padded = round_up(tensor.shape.at(0), formats::kVllmVocabMultiple);
  return padded == tensor.shape.at(0) ? 0 : padded;
}

// Where the draft model stands: --speculative-config names it.
constexpr const char* kDraftFolder = "mtp";

std::string file_name(const shard::Topology& topology, const shard::RankPosition& at) {
  if (topology.pp == 1) return fmt::format("model-rank-{}-part-0.safetensors", at.tp_rank);
  return fmt::format("model-pp-{}-tp-{}-part-0.safetensors", at.stage, at.tp_rank);
}

std::vector<std::uint32_t> stages_of(const Plan& plan, const LogicalTensor& tensor) {
  // Where MTP layers are left out, nothing behind the first stage shares the embedding.
  if (tensor.rule != nullptr && tensor.rule->role == formats::Role::kEmbedding) return {0};
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

// A part, and the key that it is a piece of.
struct Piece {
  PartRef at;
  VllmPlace place;
  formats::DType dtype{};
  formats::Shape shape;
};

bool is_number(const formats::Shape& shape) {
  return formats::element_count(shape) == 1 && shape.size() < 2;
}

// One number per tensor becomes a row of them; matrices stand one under another.
formats::Shape fused_shape(std::span<const Piece> pieces) {
  formats::Shape shape = pieces.front().shape;
  if (is_number(shape)) return {pieces.size()};
  shape[0] = 0;
  for (const Piece& piece : pieces) shape[0] += piece.shape.at(0);
  return shape;
}

formats::Shape shape_of(std::span<const Piece> pieces) {
  const VllmPlace& first = pieces.front().place;
  if (first.n_places == 1) return pieces.front().shape;
  if (first.per_expert == 0) return fused_shape(pieces);
  formats::Shape shape = fused_shape(pieces.first(first.per_expert));
  if (first.per_expert == 1 && is_number(pieces.front().shape)) shape.clear();
  shape.insert(shape.begin(), pieces.size() / first.per_expert);
  return shape;
}

// Every tensor of the key is here, once, and of one form.
void require_whole(std::span<const Piece> pieces, ErrorList& faults) {
  const Piece& first = pieces.front();
  const auto refuse = [&](std::string fact) {
    faults.add(Error(ErrorCode::kUnsupported, std::move(fact)).in_tensor(first.place.key));
  };
  const std::size_t n = first.place.n_places;
  if (n != 0 ? n != pieces.size() : pieces.size() % first.place.per_expert != 0)
    return refuse(
        fmt::format("vLLM fuses it of more tensors than the {} that are here", pieces.size()));
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const Piece& piece = pieces[i];
    const bool is_alike =
        piece.dtype == first.dtype && piece.shape.size() == first.shape.size() &&
        std::equal(piece.shape.begin() + (piece.shape.empty() ? 0 : 1), piece.shape.end(),
                   first.shape.begin() + (first.shape.empty() ? 0 : 1));
    if (!is_alike) return refuse("vLLM fuses it of tensors that are not alike");
    if (piece.place.place != first.place.place + i)
      return refuse("vLLM fuses it of tensors of which some are missing");
  }
}

// Scales of activations that experts have there, and that these files have not.
void add_idle_inputs(const Plan& plan, const PlannedFile::Joined& joined,
                     const std::set<std::string>& keys,
                     std::vector<PlannedFile::Joined>& constants) {
  for (const char* prefix : {"w13_", "w2_"}) {
    const std::size_t at = joined.spec.name.rfind('.') + 1;
    if (!std::string_view(joined.spec.name).substr(at).starts_with(prefix)) continue;
    const formats::VllmScheme* scheme =
        formats::find_vllm_scheme(SchemeId::kNvfp4, plan.target.dialect->name);
    if (scheme == nullptr || scheme->idle_input.empty()) continue;
    const std::string codes = joined.spec.name.substr(0, at) + prefix + "weight_global_scale";
    const std::string input =
        joined.spec.name.substr(0, at) + prefix + std::string(scheme->idle_input);
    if (joined.spec.name != codes || keys.contains(input)) continue;
    constants.push_back(
        {.spec = {.name = input, .dtype = formats::DType::kF32, .shape = joined.spec.shape},
         .value = 1});
  }
}

// Of the quantization_config that the output has; empty: it has none.
std::string_view quantized_dialect(const Plan& plan) {
  const bool is_quantized = std::ranges::any_of(plan.tensors, [](const PlannedTensor& planned) {
    return planned.action != Action::kDrop && formats::scheme_facts(planned.to).quantized;
  });
  return is_quantized ? plan.target.dialect->name : std::string_view();
}

void join_parts(const Plan& plan, PlannedFile& file) {
  std::vector<Piece> pieces;
  std::vector<PartRef> inputs;
  std::set<std::uint32_t> layers;
  std::set<std::string> keys;
  for (const PartRef& at : file.parts) {
    const PlannedTensor& planned = plan.tensors[at.tensor];
    if (planned.parts[at.part].part == formats::Part::kInputScale && planned.to != SchemeId::kNvfp4)
      inputs.push_back(at);
    auto place = place_of(plan, plan.part_name(planned, at.part));
    INGOT_CHECK(place.has_value());
    if (const auto layer = plan.tensor_of(planned).layer) layers.insert(*layer);
    keys.insert(place->key);
    pieces.push_back({.at = at,
                      .place = std::move(*place),
                      .dtype = planned.parts[at.part].dtype,
                      .shape = plan.part_cut(planned, at.part).slice_shape()});
  }
  std::sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) {
    if (a.place.key == b.place.key) return a.place.place < b.place.place;
    return formats::writes_before(a.dtype, a.place.key, b.dtype, b.place.key);
  });
  file.parts.clear();
  std::vector<PlannedFile::Joined> constants;
  for (const std::uint32_t layer : layers) {
    for (formats::VllmConstant& constant : formats::vllm_constants(
             plan.source.family().name, quantized_dialect(plan), layer, plan.source.config()))
      constants.push_back({.spec = std::move(constant.spec), .value = constant.value});
  }
  ErrorList faults;
  for (const PartRef& at : inputs) {
    faults.add(Error(ErrorCode::kUnsupported,
                     "layout vllm-sharded does not hold scales of activations, which vLLM was not "
                     "tried with (use dynamic activations or --activations weight-only)")
                   .in_tensor(plan.part_name(plan.tensors[at.tensor], at.part)));
  }
  for (std::size_t begin = 0; begin < pieces.size();) {
    std::size_t end = begin + 1;
    while (end < pieces.size() && pieces[end].place.key == pieces[begin].place.key) ++end;
    const auto of_key = std::span(pieces).subspan(begin, end - begin);
    require_whole(of_key, faults);
    for (const Piece& piece : of_key) file.parts.push_back(piece.at);
    file.joined.push_back({.spec = {.name = of_key.front().place.key,
                                    .dtype = of_key.front().dtype,
                                    .shape = shape_of(of_key)},
                           .n_parts = static_cast<std::uint32_t>(of_key.size())});
    add_idle_inputs(plan, file.joined.back(), keys, constants);
    begin = end;
  }
  faults.throw_if_any();
  std::ranges::move(constants, std::back_inserter(file.joined));
  // Pieces stay in their order: it is that of the tensors that they make up.
  std::ranges::sort(file.joined, [](const PlannedFile::Joined& a, const PlannedFile::Joined& b) {
    return formats::writes_before(a.spec.dtype, a.spec.name, b.spec.dtype, b.spec.name);
  });
}

void describe_engine(Plan& plan) {
  if (has_draft(plan)) plan.json.config_folders = {kDraftFolder};
  std::set<std::string> kernels, constants;
  for (const PlannedTensor& planned : plan.tensors) {
    if (planned.action == Action::kDrop) continue;
    const auto* scheme = formats::find_vllm_scheme(planned.to, plan.target.dialect->name);
    if (scheme != nullptr && !scheme->kernels.empty()) kernels.emplace(scheme->kernels);
  }
  for (const PlannedFile& file : plan.files) {
    for (const PlannedFile::Joined& joined : file.joined) {
      if (joined.is_constant()) constants.insert(joined.spec.name);
    }
  }
  plan.json.engine = formats::Json{{"name", "vllm"},
                                   {"version", std::string(formats::kVllmVersion)},
                                   {"platform", "cuda"},
                                   {"kernels", kernels},
                                   {"constants", constants}};
}

}  // namespace

constexpr LayoutFunctions kVllmShardedLayout{.make_plain = make_plain,
                                             .require_holdable = require_holdable,
                                             .padded_rows = padded_rows,
                                             .stages = formats::vllm_stages,
                                             .assign_files = assign_by_rank,
                                             .join_parts = join_parts,
                                             .derive_json = describe_engine};

}  // namespace ingot::convert
