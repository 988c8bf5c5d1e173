#include <algorithm>
#include <bit>
#include <iterator>
#include <map>
#include <numeric>
#include <set>

#include <fmt/format.h>

#include "convert/plan/passes.h"
#include "engines/versions/sharded_state.h"
#include "formats/base/checked.h"
#include "formats/base/error.h"
#include "formats/container/bfloat16.h"
#include "formats/json/json.h"

// Layouts vllm-sharded and sglang-sharded, for `--load-format sharded_state` of these engines: a
// file per rank with the tensors that the engine's modules hold: keys that several parts make up,
// and constants. Their names are rows of engines/versions/sharded_state.cc.

namespace ingot::convert {

using formats::LogicalTensor;
using formats::SchemeId;

namespace {

using engines::StatePlace;
using Joined = PlannedFile::Joined;

const engines::StateEngine& engine_of(const Plan& plan) {
  return engines::state_engine(plan.options.layout->engine);
}

// Nothing is written in a layout that no table has: a running engine has it, for weights of any
// scheme that it loaded.
bool is_written(const Plan& plan) {
  return formats::find_layout(plan.options.layout->name) != nullptr;
}

// A part, and the key that it is a piece of.
struct Piece {
  PartRef at;
  StatePlace place;
  formats::DType dtype{};
  formats::Shape shape;
};

bool is_number(const formats::Shape& shape) {
  return formats::element_count(shape) == 1 && shape.size() < 2;
}

// One number per tensor becomes a row of them; matrices are stacked by rows.
formats::Shape fused_shape(std::span<const Piece> pieces) {
  formats::Shape shape = pieces.front().shape;
  if (is_number(shape)) return {pieces.size()};
  shape[0] = 0;
  for (const Piece& piece : pieces) shape[0] += piece.shape.at(0);
  return shape;
}

// Empty if every tensor of the key is here, once, and of one form.
std::string fault_of(std::span<const Piece> pieces) {
  const Piece& first = pieces.front();
  const std::size_t n = first.place.n_places;
  if (n != 0 ? n != pieces.size() : pieces.size() % first.place.per_expert != 0)
    return fmt::format("this key is made of more tensors than the {} found", pieces.size());
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const Piece& piece = pieces[i];
    const bool is_alike =
        piece.dtype == first.dtype && piece.shape.size() == first.shape.size() &&
        std::equal(piece.shape.begin() + (piece.shape.empty() ? 0 : 1), piece.shape.end(),
                   first.shape.begin() + (first.shape.empty() ? 0 : 1));
    if (!is_alike) return "the tensors that are fused for this key are not alike";
    if (piece.place.place != first.place.place + i)
      return "some tensors that are fused for this key are missing";
  }
  return {};
}

// The shape of a key; of tensors that cannot be joined: all their elements.
formats::Shape shape_of(std::span<const Piece> pieces) {
  const StatePlace& first = pieces.front().place;
  if (first.n_places == 1) return pieces.front().shape;
  if (!fault_of(pieces).empty()) {
    std::uint64_t n = 0;
    for (const Piece& piece : pieces) n += formats::element_count(piece.shape).value();
    return {n};
  }
  if (first.per_expert == 0) return fused_shape(pieces);
  formats::Shape shape = fused_shape(pieces.first(first.per_expert));
  if (first.per_expert == 1 && is_number(pieces.front().shape)) shape.clear();
  shape.insert(shape.begin(), pieces.size() / first.per_expert);
  return shape;
}

// A tensor that no part fills, each element of one value.
Joined constant_of(formats::TensorSpec spec, float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const bool is_half = spec.dtype == formats::DType::kBf16;
  INGOT_CHECK(is_half || spec.dtype == formats::DType::kF32);
  INGOT_CHECK(!is_half || (bits & 0xFFFF) == 0);
  // The bytes of a BF16 are the upper ones of an F32.
  const auto* first = reinterpret_cast<const char*>(&bits);
  const std::string element(first + (is_half ? 2 : 0), first + 4);
  Joined constant{.spec = std::move(spec)};
  for (auto n = formats::element_count(constant.spec.shape).value(); n > 0; --n)
    constant.bytes += element;
  return constant;
}

// The key of a part, with another part in its place: `w13_weight_packed` to `w13_weight_shape`.
std::optional<std::string> sibling(const std::string& key, std::string_view part,
                                   std::string_view other) {
  if (!key.ends_with(part)) return std::nullopt;
  return key.substr(0, key.size() - part.size()) + std::string(other);
}

// Scales of activations that experts have there, and that these files have not.
void add_idle_inputs(const Plan& plan, const Joined& joined, const std::set<std::string>& keys,
                     std::vector<Joined>& constants) {
  const engines::StateScheme* scheme =
      engines::find_state_scheme(engine_of(plan), SchemeId::kNvfp4, plan.target.dialect->name);
  if (scheme == nullptr || scheme->idle_input.empty()) return;
  for (const std::string_view prefix : {".w13_", ".w2_"}) {
    const auto input = sibling(joined.spec.name, fmt::format("{}weight_global_scale", prefix),
                               fmt::format("{}{}", prefix, scheme->idle_input));
    if (!input || keys.contains(*input)) continue;
    constants.push_back(constant_of(
        {.name = *input, .dtype = formats::DType::kF32, .shape = joined.spec.shape}, 1));
  }
}

template <typename Number>
void append(std::string& bytes, Number number) {
  bytes.append(reinterpret_cast<const char*>(&number), sizeof number);
}

// Rows and columns of INT4 weights: of the last one that is loaded, and for each expert in BF16.
void add_dimensions(const Plan& plan, const Joined& joined, std::span<const Piece> pieces,
                    std::vector<Joined>& constants) {
  const auto key = sibling(joined.spec.name, "weight_packed", "weight_shape");
  const PlannedTensor& first = plan.tensors[pieces.front().at.tensor];
  if (!key || first.to != SchemeId::kInt4Group) return;
  const auto& last = std::ranges::max(pieces, {}, [&](const Piece& piece) {
    return std::string_view(plan.tensor_of(plan.tensors[piece.at.tensor]).name);
  });
  const formats::Shape& shape = plan.tensor_of(plan.tensors[last.at.tensor]).shape;
  const std::uint32_t per_expert = last.place.per_expert;
  Joined constant{.spec = {.name = *key, .dtype = formats::DType::kI64, .shape = {2}}};
  if (per_expert == 0) {
    for (const std::uint64_t n : shape) append(constant.bytes, n);
  } else {
    const std::uint64_t n_experts = pieces.size() / per_expert;
    constant.spec.dtype = formats::DType::kBf16;
    constant.spec.shape = {n_experts, 2};
    for (std::uint64_t expert = 0; expert < n_experts; ++expert) {
      for (const std::uint64_t n : shape)
        append(constant.bytes, formats::bf16_from_float(static_cast<float>(n)));
    }
  }
  constants.push_back(std::move(constant));
}

// Adds the constants of layers of which the file holds a tensor. Some constants exist only with a
// quantization_config.
void add_layer_constants(const Plan& plan, const std::set<std::uint32_t>& layers,
                         std::vector<Joined>& constants) {
  const bool is_quantized = std::ranges::any_of(plan.tensors, [](const PlannedTensor& planned) {
    return planned.action != Action::kDrop && formats::scheme_facts(planned.to).quantized;
  });
  const std::string_view dialect = is_quantized ? plan.target.dialect->name : std::string_view();
  for (const std::uint32_t layer : layers) {
    for (engines::StateConstant& constant : engines::state_constants(
             engine_of(plan), plan.source.family().name, dialect, layer, plan.source.config()))
      constants.push_back(constant_of(std::move(constant.spec), constant.value));
  }
}

// Engines were not tried with static activations of other schemes.
void require_no_input(const Plan& plan, const PartRef& at, ErrorList& faults) {
  const PlannedTensor& planned = plan.tensors[at.tensor];
  if (!is_written(plan) || planned.parts[at.part].part != formats::Part::kInputScale ||
      planned.to == SchemeId::kNvfp4)
    return;
  faults.add(Error(ErrorCode::kUnsupported,
                   "this layout holds scales of activations only for nvfp4 (use dynamic "
                   "activations or --activations weight-only)")
                 .in_tensor(plan.part_name(planned, at.part)));
}

std::optional<StatePlace> place_of(const Plan& plan, std::string_view name) {
  return engines::state_place(engine_of(plan), name, plan.source.family().name,
                              plan.source.config());
}

// Codes of linear layers, where files have them with the inputs first.
bool is_turned(const Plan& plan, const Piece& piece) {
  const PlannedTensor& planned = plan.tensors[piece.at.tensor];
  if (!is_written(plan) || planned.parts[piece.at.part].part != formats::Part::kWeight ||
      piece.place.per_expert > 0)
    return false;
  const engines::StateScheme* scheme =
      engines::find_state_scheme(engine_of(plan), planned.to, plan.target.dialect->name);
  return scheme != nullptr && scheme->turns_linears;
}

// The tensors of a file: pieces under the keys that they make up, and constants.
void join_state_keys(const Plan& plan, PlannedFile& file) {
  std::vector<Piece> pieces;
  std::set<std::uint32_t> layers;
  std::set<std::string> keys;
  ErrorList faults;
  for (const PartRef& at : file.parts) {
    const PlannedTensor& planned = plan.tensors[at.tensor];
    require_no_input(plan, at, faults);
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
  std::vector<Joined> constants;
  add_layer_constants(plan, layers, constants);
  for (std::size_t begin = 0; begin < pieces.size();) {
    std::size_t end = begin + 1;
    while (end < pieces.size() && pieces[end].place.key == pieces[begin].place.key) ++end;
    const auto of_key = std::span(pieces).subspan(begin, end - begin);
    if (std::string fault = fault_of(of_key); is_written(plan) && !fault.empty()) {
      faults.add(
          Error(ErrorCode::kUnsupported, std::move(fault)).in_tensor(of_key.front().place.key));
    }
    for (const Piece& piece : of_key) file.parts.push_back(piece.at);
    file.joined.push_back({.spec = {.name = of_key.front().place.key,
                                    .dtype = of_key.front().dtype,
                                    .shape = shape_of(of_key)},
                           .n_parts = static_cast<std::uint32_t>(of_key.size())});
    if (is_turned(plan, of_key.front())) {
      formats::Shape& shape = file.joined.back().spec.shape;
      INGOT_CHECK(shape.size() == 2 && formats::dtype_bits(of_key.front().dtype) == 8);
      std::swap(shape[0], shape[1]);
      file.joined.back().is_turned = true;
    }
    add_idle_inputs(plan, file.joined.back(), keys, constants);
    add_dimensions(plan, file.joined.back(), of_key, constants);
    begin = end;
  }
  faults.throw_if_any();
  std::ranges::move(constants, std::back_inserter(file.joined));
  // Pieces stay in their order: it is that of the tensors that they make up.
  std::ranges::sort(file.joined, [](const Joined& a, const Joined& b) {
    return formats::writes_before(a.spec.dtype, a.spec.name, b.spec.dtype, b.spec.name);
  });
}

constexpr formats::RoleSet kOfIndexers = {formats::Role::kIndexerQ, formats::Role::kIndexerK,
                                          formats::Role::kIndexerKNorm,
                                          formats::Role::kIndexerWeights};

bool is_of_indexer(const LogicalTensor& tensor) {
  return tensor.layer && kOfIndexers.has(role_of(tensor));
}

bool builds_indexer(const Plan& plan, std::uint64_t layer) {
  const formats::Checkpoint& source = plan.source;
  return engines::builds_indexer(engine_of(plan), source.family().name, source.config(), layer)
      .value_or(true);
}

/// Indexers that a source has and the engine does not build are no key of its state.
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
                "{} builds an indexer in layer {}, which has none: it reads index_topk_freq, "
                "index_skip_topk_offset and index_topk_pattern of config.json, and {} "
                "indexer_types (give config.json these)",
                engine_of(plan).name, layer,
                engine_of(plan).word == "vllm" ? "not" : "before them");
  }
}

void refuse_options(const Plan& plan) {
  const SlicingOptions& options = plan.options.slicing;
  const shard::Topology& topology = options.topology;
  const engines::StateEngine& engine = engine_of(plan);
  const std::string_view layout = plan.options.layout->name, name = engine.name;
  const auto refuse = [&]<typename... Args>(fmt::format_string<Args...> fact, Args&&... args) {
    throw Error(ErrorCode::kUnsupported, "{}", fmt::format(fact, std::forward<Args>(args)...));
  };
  const formats::ModelConfig& config = plan.source.config();
  if (!engines::has_state_of(plan.source.family().name)) {
    refuse(
        "layout {} does not know {}'s model of family {} (use --layout hf, which {} cuts itself as "
        "it loads)",
        layout, name, plan.source.family().name, name);
  }
  if (topology.pp > 1 && !engine.has_stages) {
    refuse(
        "layout {} has no stages of a pipeline: the file names of {}'s loader do not tell them "
        "(leave out --pp)",
        layout, name);
  }
  const bool has_experts = topology.ep > 1;
  if (is_written(plan) && (topology.ep != (has_experts ? topology.tp : 1) ||
                           topology.etp != (has_experts ? 1 : topology.tp))) {
    refuse(
        "layout {} cuts experts by --tp, or deals them to as many ranks (--ep {}): other numbers "
        "need data parallelism, which its file names do not know",
        layout, topology.tp);
  }
  if (!options.expert_map.empty()) {
    refuse("layout {} deals experts in contiguous blocks, as {} does (leave out --expert-map)",
           layout, name);
  }
  if (!options.stages.empty())
    refuse("layout {} divides the layers as {} does (leave out --pp-layers)", layout, name);
  if (topology.pp > static_cast<std::uint64_t>(config.num_hidden_layers)) {
    refuse("layout {} has a layer on each stage, and --pp {} is more than {} layers", layout,
           topology.pp, config.num_hidden_layers);
  }
  if (options.shared == shard::SharedExperts::kReplicated)
    refuse("{} cuts shared experts by --tp (leave out --shared-experts)", name);
  if (options.fit == shard::TpFit::kRetile || options.fit == shard::TpFit::kPad) {
    refuse(
        "layout {} takes --tp-fit refuse or bf16: {} builds the blocks and widths that the release "
        "has",
        layout, name);
  }
  if (plan.options.shards.max_shard_bytes)
    refuse("layout {} writes a file per rank (leave out --max-shard-size)", layout);
  if (plan.options.shards.order != TensorOrder::kDtype)
    refuse("layout {} has one order of tensors (leave out --order)", layout);
  if (plan.options.shards.align > 0)
    refuse("layout {} joins tensors in {}'s order (leave out --align)", layout, name);
  // The output must not have another format than the one asked for.
  if (const auto to = plan.recipe.to; to == SchemeId::kF16 || to == SchemeId::kF32) {
    refuse(
        "layout {} holds plain tensors as BF16, and --to asks for {} (--to bf16, or --layout hf)",
        layout, formats::scheme_facts(*to).name);
  }
  if (config.tie_word_embeddings) {
    refuse(
        "layout {} does not hold models whose head is their embedding (use --layout hf, which {} "
        "cuts itself as it loads)",
        layout, name);
  }
  if (config.dtype != "bfloat16") {
    refuse(
        "layout {} holds plain tensors as BF16, and config.json says dtype '{}' (use --layout hf; "
        "or say bfloat16 there)",
        layout, config.dtype);
  }
  if (engines::kStateVocabMultiple % topology.tp != 0) {
    refuse(
        "{0} pads the vocabulary to a multiple of {1}, which --tp {2} does not divide (choose a "
        "divisor of {1}, or --layout hf)",
        name, engines::kStateVocabMultiple, topology.tp);
  }
}

// Weights that the engine holds plain are decoded or cast here, as its loader would do it.
void make_plain(Plan& plan) {
  refuse_options(plan);
  leave_out_unbuilt(plan);
  const std::string_view name = engine_of(plan).name;
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
    if (is_quantized && place->form == engines::StateForm::kPlain && is_written(plan)) {
      refusals.add(ErrorCode::kUnsupported, tensor.name,
                   "{} holds it plain, and it would be quantized (leave it plain with --rule)",
                   name);
    }
    const engines::StateScheme* scheme =
        engines::find_state_scheme(engine_of(plan), planned.to, plan.target.dialect->name);
    if (scheme != nullptr && scheme->turns_linears && is_written(plan) &&
        place->form == engines::StateForm::kSplit) {
      refusals.add(ErrorCode::kUnsupported, tensor.name,
                   "{}'s loader of these files splits it by rows when it is transposed already, as "
                   "{} is (leave it plain with --rule role:{}=bf16)",
                   name, formats::scheme_facts(planned.to).name,
                   formats::role_name(role_of(tensor)));
    }
    const SchemeId plain = place->plain == formats::DType::kF32 ? SchemeId::kF32 : SchemeId::kBf16;
    if (is_quantized || planned.to == plain) continue;
    if (planned.action == Action::kCast && !planned.is_demoted) {
      refusals.add(ErrorCode::kUnsupported, tensor.name,
                   "{} holds it in {}, and a rule asks for {} (leave it out of the "
                   "rule, or use --layout hf)",
                   name, formats::scheme_facts(plain).name, formats::scheme_facts(planned.to).name);
    }
    become_plain(tensor, planned, plain);
  }
  refusals.throw_if_any();
}

// True if a tensor belongs to the model for multi-token prediction, the draft model.
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
  if (!engine_of(plan).has_drafts) {
    refuse(fmt::format(
        "layout {} has no MTP layers: {} loads its draft model with a loader of its own, which was "
        "not tried with such files",
        plan.options.layout->name, engine_of(plan).name));
  }
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
    refusals.add(ErrorCode::kUnsupported, tensor.name, "{}", std::move(fact));
  };
  const formats::SchemeFacts& facts = formats::scheme_facts(planned.to);
  const std::string_view layout = plan.options.layout->name, engine = engine_of(plan).name;
  const engines::StateScheme* scheme =
      engines::find_state_scheme(engine_of(plan), planned.to, plan.target.dialect->name);
  if (scheme == nullptr && is_written(plan)) {
    refuse(fmt::format(
        "layout {} does not hold {} in dialect {} (use --layout hf, which {} cuts itself as it "
        "loads; ingot help slicing lists the schemes)",
        layout, facts.name, plan.target.dialect->name, engine));
    return false;
  }
  const auto place = place_of(plan, tensor.name);
  if (!place) refuse(fmt::format("layout {} has no name for it", layout));
  if (!place || place->n_places == 1 || !is_written(plan)) return true;
  const auto [first, is_new] = held.emplace(place->key, std::pair(planned.to, tensor.name));
  if (first->second.first != planned.to) {
    refuse(fmt::format("is {}, and {} fuses it with {} (choose one scheme for both)", facts.name,
                       engine, first->second.second));
  }
  return true;
}

// Scales have one dtype there, whatever the tool that wrote them chose.
void require_parts(const Plan& plan, const PlannedTensor& planned, ErrorList& refusals) {
  if (!is_written(plan)) return;
  const LogicalTensor& tensor = plan.tensor_of(planned);
  const auto& stored = tensor.encoding.stored;
  for (const formats::Part part : {formats::Part::kZeroPoint, formats::Part::kGroupOrder}) {
    if (!has_optional_part(planned, tensor, part)) continue;
    refusals.add(ErrorCode::kUnsupported, tensor.name,
                 "has zero points or an order of groups, and layout {} holds only symmetric int4 "
                 "(convert it again with --to int4{}, or use --layout hf)",
                 plan.options.layout->name,
                 planned.adds_zero_points ? " without --zero-points" : "");
  }
  if (planned.action != Action::kCopy && planned.action != Action::kRewrap) return;
  if (planned.to == SchemeId::kNvfp4 || !stored.has(formats::Part::kScale)) return;
  const formats::DType wanted =
      planned.to == SchemeId::kInt4Group ? formats::DType::kBf16 : formats::DType::kF32;
  const formats::DType dtype = plan.source.stored()[stored[formats::Part::kScale]].dtype;
  if (dtype == wanted) return;
  refusals.add(ErrorCode::kUnsupported, tensor.name,
               "has scales in {}, and {} holds them in {} (convert it to BF16 first)",
               formats::dtype_name(dtype), engine_of(plan).name, formats::dtype_name(wanted));
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
  if (topology.ranks_per_stage() != topology.tp) return fmt::format("rank-{}.safetensors", at.rank);
  if (topology.pp == 1) return fmt::format("model-rank-{}-part-0.safetensors", at.tp_rank);
  return fmt::format("model-pp-{}-tp-{}-part-0.safetensors", at.stage, at.tp_rank);
}

std::vector<std::uint32_t> stages_of(const Plan& plan, const LogicalTensor& tensor) {
  if (!tensor.layer &&
      engines::has_ends_on_every_stage(engine_of(plan), plan.source.family().name)) {
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
  for (std::uint32_t r = 0; has_draft(plan) && r < topology.ranks_per_stage(); ++r) {
    PlannedFile& file = add_file(
        plan, fmt::format("{}/{}", kDraftFolder, file_name(topology, topology.position(r))));
    file.members.front().ranks = {r};
  }
  for (PlannedTensor& planned : plan.tensors) {
    if (planned.n_parts == 0) continue;
    const std::vector<std::uint32_t> groups = ep_ranks_of(plan, planned);
    std::vector<PlannedPlace> places;
    for (const std::uint32_t stage : stages_of(plan, plan.tensor_of(planned))) {
      for (std::uint32_t r = 0; r < topology.ranks_per_stage(); ++r) {
        const std::uint32_t rank = stage * topology.ranks_per_stage() + r;
        const shard::RankPosition at = topology.position(rank);
        if (!groups.empty() && std::ranges::find(groups, at.ep_rank) == groups.end()) continue;
        places.push_back({.file = is_draft(plan, planned) ? first_draft + r : rank,
                          .first_slice = planned.cut.slice_of(at, topology)});
      }
    }
    for (std::size_t p = 0; p < planned.n_parts; ++p) set_places(plan, planned.parts[p], places);
  }
}

// Engines keep the dimensions of INT4 weights, and never look at them: they are a constant there.
bool leaves_out(formats::Part part) {
  return part == formats::Part::kDimensions;
}

void describe_engine(Plan& plan) {
  const engines::StateEngine& engine = engine_of(plan);
  if (has_draft(plan)) plan.json.config_folders = {kDraftFolder};
  std::set<std::string> kernels, constants;
  for (const PlannedTensor& planned : plan.tensors) {
    if (planned.action == Action::kDrop) continue;
    const auto* scheme = engines::find_state_scheme(engine, planned.to, plan.target.dialect->name);
    if (scheme != nullptr && !scheme->kernels.empty()) kernels.emplace(scheme->kernels);
  }
  for (const PlannedFile& file : plan.files) {
    for (const PlannedFile::Joined& joined : file.joined) {
      if (joined.is_constant()) constants.insert(joined.spec.name);
    }
  }
  plan.json.engine = formats::Json{{"name", std::string(engine.word)},
                                   {"version", std::string(engine.version)},
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
