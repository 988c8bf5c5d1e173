#include "engines/versions/sharded_state.h"

#include <algorithm>
#include <array>
#include <span>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "formats/base/words.h"
#include "formats/config/derived_keys.h"
#include "formats/config/nested_config.h"
#include "formats/json/json.h"

namespace ingot::engines {

using formats::DType;
using formats::ModelConfig;
using formats::SchemeId;
using formats::Shape;

namespace {

/// Model classes, as bits: the files deepseek_v2.py and qwen3_moe.py of both engines, and for
/// sparse attention deepseek_v32/nvidia/model.py of vLLM.
enum Model : std::uint8_t { kDense = 1, kQwen3 = 2, kSparse = 4, kLatent = 5, kEvery = 7 };

struct FamilyRow {
  std::string_view family;
  Model model;
  /// Embedding, last norm and head are built on every stage of a pipeline, as qwen3_moe.py:468 does
  /// it; else on the first, the last and the last.
  bool has_ends_on_every_stage = false;
};
// Each was loaded by vLLM 0.32 and by SGLang 0.5.23 (docs/engines.md).
constexpr std::array kFamilies = {
    FamilyRow{"deepseek_v2", kDense},   FamilyRow{"deepseek_v3", kDense},
    FamilyRow{"kimi_k2", kDense},       FamilyRow{"qwen3_moe", kQwen3, true},
    FamilyRow{"deepseek_v32", kSparse}, FamilyRow{"glm_moe_dsa", kSparse},
};

/// The models of a class that a row is for. SGLang joins the keys of an indexer with its weights if
/// its positions are rotated in pairs. Source: layers/attention/dsa/dsa_indexer.py:307, 0.5.23.
enum class Only : std::uint8_t { kAll, kLowRank, kFullRank, kPairs, kHalves };

bool is_for(Only only, const ModelConfig& config) {
  const bool has_low_rank = config.q_lora_rank > 0;
  const auto rotates_pairs = [&] {
    const formats::Json& pairs =
        formats::json_member(formats::text_keys(config), "indexer_rope_interleave");
    return pairs.is_boolean() && pairs.get<bool>();
  };
  switch (only) {
    case Only::kLowRank:
      return has_low_rank;
    case Only::kFullRank:
      return !has_low_rank;
    case Only::kPairs:
      return rotates_pairs();
    case Only::kHalves:
      return !rotates_pairs();
    default:
      return true;
  }
}

struct ModuleRow {
  std::uint8_t models;
  std::string_view hub;  ///< module of a layer; outside of layers: the whole name
  /// Module in the state dict: of several names of one tensor the first. Empty: as the hub's.
  std::string_view key = "";
  std::uint32_t place = 0, n_places = 1;
  StateForm form = StateForm::kAsStored;
  Only only = Only::kAll;
  DType plain = DType::kBf16;
};

using enum StateForm;
constexpr ModuleRow kept_plain(std::uint8_t models, std::string_view hub) {
  return {.models = models, .hub = hub, .form = kPlain};
}
// vLLM's modules have several names, since runners and attention wrappers hold them as well; the
// loader keeps the name that sorts first.
constexpr std::array kVllmRows = {
    kept_plain(kEvery, "input_layernorm"),
    kept_plain(kEvery, "post_attention_layernorm"),
    ModuleRow{kEvery, "mlp.gate_proj", "mlp.gate_up_proj", 0, 2},
    ModuleRow{kEvery, "mlp.up_proj", "mlp.gate_up_proj", 1, 2},
    ModuleRow{kEvery, "mlp.down_proj"},
    ModuleRow{kEvery, "mlp.gate", "mlp.experts.gate", 0, 1, kPlain},
    ModuleRow{kLatent, "mlp.shared_experts.gate_proj",
              "mlp.experts._shared_experts._layer.gate_up_proj", 0, 2},
    ModuleRow{kLatent, "mlp.shared_experts.up_proj",
              "mlp.experts._shared_experts._layer.gate_up_proj", 1, 2},
    ModuleRow{kLatent, "mlp.shared_experts.down_proj",
              "mlp.experts._shared_experts._layer.down_proj"},
    ModuleRow{kLatent, "self_attn.q_a_proj", "self_attn.fused_qkv_a_proj", 0, 2},
    ModuleRow{kLatent, "self_attn.kv_a_proj_with_mqa", "self_attn.fused_qkv_a_proj", 1, 2,
              kAsStored, Only::kLowRank},
    kept_plain(kLatent, "self_attn.kv_a_layernorm"),
    ModuleRow{kLatent, "self_attn.kv_b_proj"},
    ModuleRow{kDense, "self_attn.kv_a_proj_with_mqa", "self_attn.kv_a_proj_with_mqa", 0, 1,
              kAsStored, Only::kFullRank},
    ModuleRow{kDense, "self_attn.q_proj", "self_attn.mla_attn.q_proj"},
    ModuleRow{kDense, "self_attn.q_a_layernorm", "self_attn.mla_attn.q_a_layernorm", 0, 1, kPlain},
    ModuleRow{kDense, "self_attn.q_b_proj", "self_attn.mla_attn.q_b_proj"},
    ModuleRow{kDense, "self_attn.o_proj", "self_attn.mla_attn.o_proj"},
    kept_plain(kSparse, "self_attn.q_a_layernorm"),
    ModuleRow{kSparse, "self_attn.q_b_proj"},
    ModuleRow{kSparse, "self_attn.o_proj"},
    ModuleRow{kSparse, "self_attn.indexer.wq_b"},
    ModuleRow{kSparse, "self_attn.indexer.wk", "self_attn.indexer.wk_weights_proj", 0, 2, kDecoded},
    ModuleRow{kSparse, "self_attn.indexer.weights_proj", "self_attn.indexer.wk_weights_proj", 1, 2,
              kPlain},
    ModuleRow{kSparse, "self_attn.indexer.k_norm", "self_attn.indexer.k_norm", 0, 1, kPlain,
              Only::kAll, DType::kF32},
    ModuleRow{kQwen3, "self_attn.q_proj", "self_attn.qkv_proj", 0, 3},
    ModuleRow{kQwen3, "self_attn.k_proj", "self_attn.qkv_proj", 1, 3},
    ModuleRow{kQwen3, "self_attn.v_proj", "self_attn.qkv_proj", 2, 3},
    ModuleRow{kQwen3, "self_attn.o_proj"},
    kept_plain(kQwen3, "self_attn.q_norm"),
    kept_plain(kQwen3, "self_attn.k_norm"),
};
constexpr std::array kSglangRows = {
    kept_plain(kEvery, "input_layernorm"),
    kept_plain(kEvery, "post_attention_layernorm"),
    // Its class of qwen3_moe has experts in every layer, whatever the config says.
    ModuleRow{kLatent, "mlp.gate_proj", "mlp.gate_up_proj", 0, 2},
    ModuleRow{kLatent, "mlp.up_proj", "mlp.gate_up_proj", 1, 2},
    ModuleRow{kLatent, "mlp.down_proj"},
    kept_plain(kEvery, "mlp.gate"),
    ModuleRow{kLatent, "mlp.shared_experts.gate_proj", "mlp.shared_experts.gate_up_proj", 0, 2},
    ModuleRow{kLatent, "mlp.shared_experts.up_proj", "mlp.shared_experts.gate_up_proj", 1, 2},
    ModuleRow{kLatent, "mlp.shared_experts.down_proj"},
    ModuleRow{kLatent, "self_attn.q_a_proj", "self_attn.fused_qkv_a_proj_with_mqa", 0, 2},
    ModuleRow{kLatent, "self_attn.kv_a_proj_with_mqa", "self_attn.fused_qkv_a_proj_with_mqa", 1, 2,
              kAsStored, Only::kLowRank},
    ModuleRow{kLatent, "self_attn.kv_a_proj_with_mqa", "", 0, 1, kAsStored, Only::kFullRank},
    kept_plain(kLatent, "self_attn.kv_a_layernorm"),
    ModuleRow{kLatent, "self_attn.kv_b_proj", "", 0, 1, kSplit},
    ModuleRow{kLatent, "self_attn.q_proj"},
    kept_plain(kLatent, "self_attn.q_a_layernorm"),
    ModuleRow{kLatent, "self_attn.q_b_proj"},
    ModuleRow{kEvery, "self_attn.o_proj"},
    ModuleRow{kSparse, "self_attn.indexer.wq_b"},
    ModuleRow{kSparse, "self_attn.indexer.wk", "", 0, 1, kAsStored, Only::kHalves},
    ModuleRow{kSparse, "self_attn.indexer.weights_proj", "", 0, 1, kPlain, Only::kHalves},
    ModuleRow{kSparse, "self_attn.indexer.wk", "self_attn.indexer.wk_weights_proj", 0, 2, kDecoded,
              Only::kPairs},
    ModuleRow{kSparse, "self_attn.indexer.weights_proj", "self_attn.indexer.wk_weights_proj", 1, 2,
              kPlain, Only::kPairs},
    ModuleRow{kSparse, "self_attn.indexer.k_norm", "", 0, 1, kPlain, Only::kAll, DType::kF32},
    ModuleRow{kQwen3, "self_attn.q_proj", "self_attn.qkv_proj", 0, 3},
    ModuleRow{kQwen3, "self_attn.k_proj", "self_attn.qkv_proj", 1, 3},
    ModuleRow{kQwen3, "self_attn.v_proj", "self_attn.qkv_proj", 2, 3},
    kept_plain(kQwen3, "self_attn.q_norm"),
    kept_plain(kQwen3, "self_attn.k_norm"),
};
constexpr std::array kOuterRows = {kept_plain(kEvery, "model.embed_tokens"),
                                   kept_plain(kEvery, "model.norm"), kept_plain(kEvery, "lm_head")};

// The parts of a layer for multi-token prediction besides its block. Its embedding is the draft
// model's.
constexpr std::array kDraftRows = {
    kept_plain(kLatent, "enorm"), kept_plain(kLatent, "hnorm"), kept_plain(kLatent, "eh_proj"),
    kept_plain(kLatent, "shared_head.norm"), kept_plain(kLatent, "shared_head.head")};
constexpr std::string_view kEmbedding = "embed_tokens", kDraftBlock = "mtp_block.";

struct ExpertRow {
  std::string_view hub;
  std::string_view prefix;  ///< prefix of the key's last word
  std::uint32_t place, per_expert;
};
constexpr std::array kExpertRows = {
    ExpertRow{"gate_proj", "w13_", 0, 2},
    ExpertRow{"up_proj", "w13_", 1, 2},
    ExpertRow{"down_proj", "w2_", 0, 1},
};
constexpr std::string_view kExperts = "mlp.experts.";
constexpr std::string_view kLayers = "model.layers.";
constexpr std::string_view kBias = "e_score_correction_bias";

struct ConstantRow {
  std::uint8_t models;
  std::string_view dialect;  ///< dialect whose config brings it; empty: always there
  std::string_view key;      ///< text before `of` and `end`
  std::array<std::string_view, 4> of;
  std::string_view end;
  DType dtype;
  std::uint8_t rank;  ///< rank of the tensor; 0: a number, 1: one element
  float value;
};
// vLLM's own values: ones for scales that are used as they are, -1 for scales that it takes for
// absent. Source: attention.py, kv_cache.py and compressed_tensors.py of vLLM 0.32.
constexpr std::array<std::string_view, 4> kAll = {"k", "prob", "q", "v"}, kThree = {"k", "q", "v"};
constexpr std::string_view kDeepseekDialect = "deepseek", kCompressedTensors = "compressed-tensors";
constexpr std::string_view kInLatent = "self_attn.mla_attn.mla_attn._", kOfAttn = "self_attn.attn.";
constexpr std::array kConstantRows = {
    ConstantRow{kDense, "", kInLatent, kAll, "_scale", DType::kF32, 0, 1},
    ConstantRow{kSparse, "", "self_attn._", kAll, "_scale", DType::kF32, 0, 1},
    ConstantRow{kQwen3, "", "self_attn.attn._", kAll, "_scale", DType::kF32, 0, 1},
    ConstantRow{kQwen3, kDeepseekDialect, kOfAttn, kAll, "_scale", DType::kBf16, 0, -1},
    ConstantRow{kQwen3, kCompressedTensors, kOfAttn, kThree, "_scale", DType::kF32, 1, 1},
    ConstantRow{kQwen3, kCompressedTensors, kOfAttn, kThree, "_zero_point", DType::kBf16, 1, 0},
};

// SGLang's scales of a cache, in both ways in which it computes latent attention. Source:
// layers/quantization/kv_cache.py of SGLang 0.5.23.
constexpr std::array<std::string_view, 4> kTwo = {"k", "v"};
constexpr std::array kSglangConstants = {
    ConstantRow{kLatent, kDeepseekDialect, "self_attn.attn_mha.", kTwo, "_scale", DType::kF32, 0,
                1},
    ConstantRow{kLatent, kDeepseekDialect, "self_attn.attn_mqa.", kTwo, "_scale", DType::kF32, 0,
                1},
};

constexpr std::array kSchemes = {
    StateScheme{SchemeId::kBf16, "", "", ""},
    StateScheme{SchemeId::kF32, "", "", ""},
    StateScheme{SchemeId::kFp8Block, "deepseek", "triton experts", ""},
    StateScheme{SchemeId::kFp8Block, "compressed-tensors", "triton experts", ""},
    StateScheme{SchemeId::kFp8Channel, "compressed-tensors", "triton experts", ""},
    StateScheme{SchemeId::kInt8Channel, "compressed-tensors", "triton experts", ""},
    StateScheme{SchemeId::kInt4Group, "compressed-tensors", "marlin or humming experts", ""},
    StateScheme{SchemeId::kNvfp4, "compressed-tensors", "marlin or humming experts",
                "input_global_scale"},
};

// On Blackwell, SGLang encodes blocks again as it loads, and packs their scales.
constexpr std::string_view kBeforeBlackwell = "those of GPUs before Blackwell";
constexpr std::array kSglangSchemes = {
    StateScheme{SchemeId::kBf16, "", ""},
    StateScheme{SchemeId::kF32, "", ""},
    StateScheme{SchemeId::kFp8Block, kDeepseekDialect, kBeforeBlackwell},
    StateScheme{SchemeId::kFp8Block, kCompressedTensors, kBeforeBlackwell},
    StateScheme{
        .scheme = SchemeId::kFp8Channel, .dialect = kCompressedTensors, .turns_linears = true},
    StateScheme{
        .scheme = SchemeId::kInt8Channel, .dialect = kCompressedTensors, .turns_linears = true},
};

/// The rows of an engine.
struct StateTables {
  std::span<const ModuleRow> modules;
  std::string_view stack;  ///< text before the name of a stack's part, within a layer
  std::span<const ConstantRow> constants;
  std::span<const StateScheme> schemes;
  bool knows_indexer_types = false;
};

constexpr StateTables kVllmTables = {.modules = kVllmRows,
                                     .stack = "mlp.experts.routed_experts.",
                                     .constants = kConstantRows,
                                     .schemes = kSchemes};
constexpr StateTables kSglangTables = {.modules = kSglangRows,
                                       .stack = kExperts,
                                       .constants = kSglangConstants,
                                       .schemes = kSglangSchemes,
                                       .knows_indexer_types = true};
struct KnownEngine {
  StateEngine engine;
  const StateTables& tables;
};
constexpr std::array kEngines = {
    KnownEngine{{.word = "vllm",
                 .name = "vLLM",
                 .version = "0.32 or later",
                 .has_stages = true,
                 .has_drafts = true},
                kVllmTables},
    KnownEngine{{.word = "sglang", .name = "SGLang", .version = "0.5.23"}, kSglangTables}};

const KnownEngine& known(std::string_view word) {
  const auto* row =
      std::ranges::find_if(kEngines, [&](const KnownEngine& at) { return at.engine.word == word; });
  INGOT_CHECK(row != kEngines.end());
  return *row;
}

const StateTables& tables_of(const StateEngine& engine) {
  return known(engine.word).tables;
}

const FamilyRow* find_family_row(std::string_view family) {
  const auto* row = std::ranges::find(kFamilies, family, &FamilyRow::family);
  return row == kFamilies.end() ? nullptr : row;
}

std::optional<StatePlace> place_in(std::span<const ModuleRow> rows, Model model,
                                   const ModelConfig& config, std::string_view prefix,
                                   std::string_view module, std::string_view part) {
  for (const ModuleRow& row : rows) {
    if (row.hub != module || (row.models & model) == 0 || !is_for(row.only, config)) continue;
    return StatePlace{
        .key = fmt::format("{}{}.{}", prefix, row.key.empty() ? row.hub : row.key, part),
        .place = row.place,
        .n_places = row.n_places,
        .form = row.form,
        .plain = part == kBias ? DType::kF32 : row.plain};
  }
  return std::nullopt;
}

std::optional<StatePlace> draft_place(Model model, const ModelConfig& config,
                                      std::string_view prefix, std::string_view module,
                                      std::string_view part) {
  if (module != kEmbedding) return place_in(kDraftRows, model, config, prefix, module, part);
  return StatePlace{.key = fmt::format("model.{}.{}", kEmbedding, part), .form = kPlain};
}

std::optional<StatePlace> expert_place(const StateTables& tables, std::string_view prefix,
                                       std::string_view rest) {
  const auto expert = take_number(rest, ".");
  const std::size_t dot = rest.find('.');
  if (!expert || dot == std::string_view::npos) return std::nullopt;
  const auto* row = std::ranges::find(kExpertRows, rest.substr(0, dot), &ExpertRow::hub);
  if (row == kExpertRows.end()) return std::nullopt;
  return StatePlace{
      .key = fmt::format("{}{}{}{}", prefix, tables.stack, row->prefix, rest.substr(dot + 1)),
      .place = *expert * row->per_expert + row->place,
      .n_places = 0,
      .per_expert = row->per_expert};
}

}  // namespace

const StateEngine& state_engine(std::string_view word) {
  return known(word).engine;
}

std::optional<StatePlace> state_place(const StateEngine& engine, std::string_view name,
                                      std::string_view family, const ModelConfig& config) {
  const FamilyRow* row = find_family_row(family);
  const std::size_t dot = name.rfind('.');
  if (row == nullptr || dot == std::string_view::npos) return std::nullopt;
  const std::string_view part = name.substr(dot + 1);
  if (!name.starts_with(kLayers))
    return place_in(kOuterRows, row->model, config, "", name.substr(0, dot), part);
  std::string_view rest = name.substr(kLayers.size());
  const auto layer = take_number(rest, ".");
  if (!layer || rest.size() <= part.size()) return std::nullopt;
  const std::string_view module = rest.substr(0, rest.size() - part.size() - 1);
  const std::string prefix = fmt::format("{}{}.", kLayers, *layer);
  const bool is_draft = *layer >= config.num_hidden_layers;
  const std::string block = is_draft ? prefix + std::string(kDraftBlock) : prefix;
  std::optional<StatePlace> place;
  if (is_draft) place = draft_place(row->model, config, prefix, module, part);
  if (!place) {
    place = rest.starts_with(kExperts)
                ? expert_place(tables_of(engine), block, rest.substr(kExperts.size()))
                : place_in(tables_of(engine).modules, row->model, config, block, module, part);
  }
  if (place) place->is_draft = is_draft;
  return place;
}

std::optional<bool> builds_indexer(const StateEngine& engine, std::string_view family,
                                   const ModelConfig& config, std::uint64_t layer) {
  const FamilyRow* row = find_family_row(family);
  if (row == nullptr || row->model != kSparse) return std::nullopt;
  if (layer >= config.num_hidden_layers) return true;
  return formats::own_indexer(text_keys(config), layer, tables_of(engine).knows_indexer_types)
      .is_own.value_or(true);
}

bool has_state_of(std::string_view family) {
  return find_family_row(family) != nullptr;
}

bool has_ends_on_every_stage(const StateEngine& engine, std::string_view family) {
  const FamilyRow* row = find_family_row(family);
  return row != nullptr && engine.has_stages && row->has_ends_on_every_stage;
}

std::vector<StateConstant> state_constants(const StateEngine& engine, std::string_view family,
                                           std::string_view dialect, std::uint32_t layer,
                                           const ModelConfig& config) {
  std::vector<StateConstant> constants;
  const std::string_view block = layer >= config.num_hidden_layers ? kDraftBlock : "";
  const FamilyRow* known = find_family_row(family);
  for (const ConstantRow& row : tables_of(engine).constants) {
    if (known == nullptr || (row.models & known->model) == 0) continue;
    if (!row.dialect.empty() && row.dialect != dialect) continue;
    for (const std::string_view of : row.of) {
      if (of.empty()) continue;
      constants.push_back({.spec = {.name = fmt::format("{}{}.{}{}{}{}", kLayers, layer, block,
                                                        row.key, of, row.end),
                                    .dtype = row.dtype,
                                    .shape = row.rank == 0 ? Shape{} : Shape{1}},
                           .value = row.value});
    }
  }
  return constants;
}

const StateScheme* find_state_scheme(const StateEngine& engine, SchemeId scheme,
                                     std::string_view dialect) {
  const std::span<const StateScheme> rows = tables_of(engine).schemes;
  const auto row = std::ranges::find_if(rows, [&](const StateScheme& at) {
    return at.scheme == scheme && (at.dialect.empty() || at.dialect == dialect);
  });
  return row == rows.end() ? nullptr : &*row;
}

std::vector<std::uint32_t> state_stages(std::uint32_t n_layers, std::uint32_t pp) {
  std::vector<std::uint32_t> n(pp, n_layers / pp);
  for (std::uint32_t i = 0; i < n_layers % pp; ++i) ++n[pp - 2 - i];
  std::vector<std::uint32_t> first = {0};
  for (const std::uint32_t of_stage : n) first.push_back(first.back() + of_stage);
  return first;
}

}  // namespace ingot::engines
