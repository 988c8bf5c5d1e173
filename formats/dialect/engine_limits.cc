#include "formats/dialect/engine_limits.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "formats/dialect/dialect_table.h"

namespace ingot::formats {
namespace {

using enum Activations;
using enum Engine;
using enum EngineEffect;
using enum EngineScope;
using enum SchemeId;

constexpr std::string_view kAnyDialect = "";
constexpr std::string_view kCt = "compressed-tensors";
constexpr std::string_view kModelopt = "modelopt";
constexpr std::string_view kModelslim = "modelslim";
constexpr std::string_view kDeepseek = "deepseek";

constexpr std::string_view kNoInputs = "it reads the number of bits of activations, and has none";
constexpr std::string_view kDynamicInstead = "--activations dynamic";

constexpr std::string_view kWholeBlocks =
    "it joins weights, and the rows of all but the last must be a multiple of the block's";
constexpr std::string_view kOtherBlocks = "fp8-channel or int8, which have no blocks";

constexpr std::string_view kStackedFrom =
    "it makes stacks of experts out of FP8 with a scale per row or tensor, and of packed codes "
    "without a global scale, alone";
constexpr std::string_view kStackedInstead = "fp8-channel, mxfp4 or int4";
constexpr std::string_view kSkipped =
    "it skips a quant_method that it does not know, and takes codes for weights";

constexpr std::string_view kNamesOfOthers =
    "it registers weight_scale and input_scale, and renames those of transformers for Mistral "
    "alone";
constexpr std::string_view kNoBlocksOfModelopt = "fp8 in dialect deepseek or compressed-tensors";

// Read in vLLM 0.32.0 and SGLang 0.5.23, and tried there: docs/formats.md, "Engines".
constexpr std::array kLimits = {
    EngineLimit{kTransformers, kCt, kFp8Block, std::nullopt, kExperts, kStackedFrom,
                kStackedInstead, ""},
    EngineLimit{kTransformers, kCt, kInt8Channel, std::nullopt, kExperts, kStackedFrom,
                kStackedInstead, ""},
    EngineLimit{kTransformers, kCt, kMxfp8, std::nullopt, kExperts, kStackedFrom, kStackedInstead,
                ""},
    EngineLimit{kTransformers, kCt, kNvfp4, std::nullopt, kExperts, kStackedFrom, kStackedInstead,
                ""},
    EngineLimit{kTransformers, kModelopt, std::nullopt, std::nullopt, kAny, kSkipped,
                "fp8, or dialect compressed-tensors", "", "", true},
    EngineLimit{kTransformers, kDeepseek, kInt8Block, std::nullopt, kAny, kSkipped,
                "fp8, or dialect compressed-tensors", "", "", true},
    // Its compressed_tensors_w8a16_fp8.py, process_weights_after_loading.
    EngineLimit{kVllm, kCt, kFp8Block, kWeightOnly, kAny,
                "it asserts after loading, where the config has no activations", kDynamicInstead,
                ""},
    EngineLimit{kSglang, kCt, kFp8Block, kWeightOnly, kAny, kNoInputs, kDynamicInstead, ""},
    EngineLimit{kVllm, kCt, kFp8Channel, kWeightOnly, kExperts,
                "of weight-only experts it knows the format pack-quantized alone", kDynamicInstead,
                ""},
    EngineLimit{kSglang, kCt, kFp8Channel, kWeightOnly, kExperts, kNoInputs, kDynamicInstead, ""},
    EngineLimit{kVllm, kCt, kFp8Tensor, kDynamic, kExperts,
                "scales of weights per tensor go with scales of activations per tensor",
                "dialect deepseek, or --activations static", ""},
    EngineLimit{kSglang, kCt, kFp8Tensor, kDynamic, kExperts,
                "scales of weights per tensor go with scales of activations per tensor",
                "dialect deepseek, or --activations static", ""},
    EngineLimit{kVllm, kCt, kFp8Tensor, kWeightOnly, kExperts, kNoInputs,
                "dialect deepseek, or --activations static", ""},
    EngineLimit{kSglang, kCt, kFp8Tensor, kWeightOnly, kExperts, kNoInputs,
                "dialect deepseek, or --activations static", ""},
    EngineLimit{kSglang, kCt, kInt8Channel, kDynamic, kExperts,
                "its scheme of experts for compressed-tensors is for NPUs",
                "the same files with an option", "--quantization w8a8_int8"},
    EngineLimit{kVllm, kCt, kInt8Channel, kWeightOnly, kAny,
                "of int-quantized it takes no weights without activations", kDynamicInstead, ""},
    EngineLimit{kSglang, kCt, kInt8Channel, kWeightOnly, kAny,
                "of weight-only INT8 it knows the format pack-quantized alone", kDynamicInstead,
                ""},
    EngineLimit{kVllm, kCt, kInt8Channel, kStatic, kExperts,
                "INT8 experts have activations per token", kDynamicInstead, ""},
    EngineLimit{kSglang, kCt, kInt8Channel, kStatic, kAny,
                "it makes room for one input scale where it joins weights", kDynamicInstead, ""},
    EngineLimit{kVllm, kModelslim, kInt8Channel, std::nullopt, kAny,
                "it does not know weight_offset (KeyError)", "dialect compressed-tensors", "", "",
                true},
    EngineLimit{kSglang, kCt, kMxfp4, std::nullopt, kLinears,
                "it has MXFP4 for experts alone, and of these for Kimi-K3", "nvfp4", ""},
    EngineLimit{kSglang, kCt, kMxfp4, std::nullopt, kExpertsButK3,
                "its loaders drop weight_packed, which MXFP4 experts call weight there", "nvfp4",
                ""},
    EngineLimit{kSglang, kCt, kMxfp8, std::nullopt, kAny, "it has no scheme for MXFP8 here", "fp8",
                ""},
    EngineLimit{kVllm, kModelopt, kFp8Channel, std::nullopt, kExperts,
                "it loads one scale per expert", "dialect compressed-tensors", ""},
    EngineLimit{kSglang, kModelopt, kFp8Channel, std::nullopt, kAny,
                "it does not know quant_algo FP8_PER_CHANNEL_PER_TOKEN",
                "dialect compressed-tensors", ""},
    // Its modelopt.py:477, of other names in mixtures :1859.
    EngineLimit{kVllm, kModelopt, kFp8Block, std::nullopt, kPlainNameExperts,
                "its experts under FP8_PB_WO have a scale per tensor", kNoBlocksOfModelopt, ""},
    // Its modelopt_quant.py:510.
    EngineLimit{kSglang, kModelopt, kFp8Block, std::nullopt, kPlainNames,
                "it does not know quant_algo FP8_PB_WO, but for weight_scale_inv in mixtures",
                kNoBlocksOfModelopt, ""},
    EngineLimit{kVllm, kCt, kInt4Group, std::nullopt, kOrdered,
                "it no longer takes weights with an order of groups (actorder)",
                "INT4 of another --group-size, which is encoded anew", ""},
    EngineLimit{kVllm, kCt, kInt4Group, std::nullopt, kRowScaledExperts,
                "its default backend of experts on GPUs takes groups alone",
                "--group-size 32, 64 or 128", "--moe-backend marlin"},
    EngineLimit{kSglang, kCt, kInt4Group, std::nullopt, kAsymmetricExperts,
                "it loads zero points of experts turned over, which compressed-tensors does not",
                "INT4 of another --group-size, which is encoded anew", ""},
    EngineLimit{kSglang, kCt, kInt4Group, std::nullopt, kJoinedLatents,
                "it joins them with their weight_shape, which has two numbers then",
                "these layers plain", ""},
    EngineLimit{kVllm, kDeepseek, kInt8Block, std::nullopt, kAny,
                "it does not know quant_method blockwise_int8", "int8 of compressed-tensors", ""},
    // Its models/mistral3.py:432.
    EngineLimit{kVllm, kDeepseek, kFp8Tensor, kStatic, kInverseNames, kNamesOfOthers,
                "dialect compressed-tensors", "", "", true},
    // Its models/llama.py:721.
    EngineLimit{kSglang, kDeepseek, kFp8Tensor, kStatic, kInverseNames, kNamesOfOthers,
                "dialect compressed-tensors", "", "", true},

    // Widths.
    EngineLimit{kVllm, kAnyDialect, kFp8Block, std::nullopt, kCutBlocks, kWholeBlocks, kOtherBlocks,
                ""},
    EngineLimit{kSglang, kAnyDialect, kFp8Block, std::nullopt, kCutBlocks, kWholeBlocks,
                kOtherBlocks, ""},
    // Its oracle/int_wna16.py:686 permutes scales of groups as those of rows there.
    EngineLimit{.engine = kVllm,
                .dialect = kCt,
                .scheme = kInt4Group,
                .scope = kWideGroups,
                .reason = "experts of Marlin, which 0.25 takes by default, mix up the scales of "
                          "groups: noise where some are negative, a loss where none is",
                .instead = "a --group-size of 32 or 64 that is less, and the default of 0.32",
                .option = "--moe-backend marlin",
                .effect = kGarbageOption},
    // Its compressed_tensors_moe_w4a4_mxfp4.py pads nothing; Marlin's tiles have 64 columns.
    EngineLimit{.engine = kVllm,
                .dialect = kCt,
                .scheme = kMxfp4,
                .scope = kUnevenExperts,
                .reason = "Marlin has no kernel for experts of such a width (Invalid thread "
                          "config), and pads none of this dialect",
                .instead = "fewer ranks or --enable-expert-parallel, or nvfp4"},

    // Its linears run in DeepGEMM there, unless VLLM_USE_DEEP_GEMM=0.
    EngineLimit{.engine = kVllm,
                .dialect = kAnyDialect,
                .scheme = kFp8Block,
                .scope = kFreeScaledLinears,
                .reason = "on Hopper it encodes linears in FP8 blocks anew, under scales that are "
                          "powers of two, which more than doubles the error where they were none",
                .instead = "--fp8-grid ue8m0 stores what it computes with; "
                           "VLLM_USE_DEEP_GEMM_E8M0=0 keeps the scales",
                .effect = kCoarser},

    // Loaders of families.
    EngineLimit{.engine = kVllm,
                .dialect = kAnyDialect,
                .scheme = kBf16,
                .scope = kForeignExperts,
                .reason = "its loader of gpt-oss counts single experts as loaded and fills none of "
                          "them",
                .instead = "--to mxfp4, or these stacks plain",
                .family = "gpt_oss",
                .effect = kGarbage},
    EngineLimit{kVllm, kAnyDialect, std::nullopt, std::nullopt, kForeignExperts,
                "its loader of gpt-oss knows experts as stacks, plain or in MXFP4 as released",
                "--to mxfp4, or these stacks plain", "", "gpt_oss"},
    EngineLimit{kVllm, kAnyDialect, std::nullopt, std::nullopt, kForeignExperts,
                "its loader of Inkling knows experts as stacks, plain or in NVFP4 as released",
                "these stacks plain", "", "inkling"},
    EngineLimit{kVllm, kDeepseek, kFp8Block, std::nullopt, kAny,
                "its loader renames weight_scale_inv, since releases have one number a tensor",
                "dialect compressed-tensors", "", "ministral3"},
    EngineLimit{kSglang, kDeepseek, kFp8Block, std::nullopt, kAny,
                "its loader renames weight_scale_inv, since releases have one number a tensor",
                "fp8-channel", "", "ministral3"},
    EngineLimit{kSglang, kAnyDialect, kNvfp4, std::nullopt, kAny,
                "it builds joined layers of the vision tower quantized, whatever the list says",
                "fp8-channel", "", "ministral3"},
    EngineLimit{kVllm, kCt, kFp8Block, std::nullopt, kRotated,
                "its loader takes scales of blocks for scales of rows where it turns q and k",
                "dialect deepseek", "", "llama4"},
    EngineLimit{kVllm, kCt, std::nullopt, std::nullopt, kAny,
                "it calls layers of the vision tower otherwise than the ignore list",
                "dialect deepseek, or bf16", "", "minimax_m3_vl"},
    EngineLimit{kSglang, kCt, kNvfp4, std::nullopt, kLinears,
                "its class asks shared experts for a part weight, which is weight_packed here",
                "dialect modelopt", "", "glm4_moe"},
    EngineLimit{kSglang, kCt, kInt4Group, std::nullopt, kExperts,
                "its class builds shared_mlp quantized whatever the ignore list says",
                "nvfp4, or int8 or fp8-channel", "", "hunyuan_v1_moe"},
};

// Adds a form, and what the engine refuses of it.
void add_form(EngineSupport form, std::vector<EngineSupport>& rows) {
  std::vector<EngineSupport> refused;
  for (const EngineLimit& limit : kLimits) {
    const bool is_of_it = limit.engine == form.engine && limit.is_of_form() &&
                          (limit.dialect.empty() || limit.dialect == form.dialect) &&
                          (!limit.scheme || limit.scheme == form.scheme) &&
                          (!limit.activations || limit.activations == form.activations);
    if (!is_of_it) continue;
    refused.push_back(form);
    refused.back().limit = &limit;
    if (limit.scope != kAny || !limit.is_refusal()) continue;
    rows.push_back(refused.back());
    return;
  }
  rows.push_back(form);
  rows.insert(rows.end(), refused.begin(), refused.end());
}

void add_forms(EngineSupport form, std::vector<EngineSupport>& rows) {
  const auto add = [&] {
    const auto loads = engine_loads();
    const auto load = std::find_if(loads.begin(), loads.end(), [&](const EngineLoad& row) {
      return row.engine == form.engine && row.dialect == form.dialect &&
             row.scheme == form.scheme && row.activations == form.activations;
    });
    form.evidence = load == loads.end() ? Evidence::kNotTried : load->evidence;
    form.source = load == loads.end() ? std::string_view() : load->source;
    add_form(form, rows);
  };
  if (!scheme_facts(*form.scheme).quantized) return add();
  for (const Dialect* dialect : dialects()) {
    for (const StorageRow& row : dialect->storage) {
      if (row.scheme != form.scheme || find_storage(*dialect, row.scheme, row.activations) != &row)
        continue;
      form.dialect = dialect->name;
      form.activations = row.activations;
      // Nobody is asked to load what nothing writes.
      if (row.is_kept_only &&
          find_load(form.engine, *dialect, row.scheme, row.activations) == nullptr)
        continue;
      add();
    }
  }
  for (const StorageRow& row : native_storage()) {
    // FP8 has the same form under native names as under others.
    if (row.scheme != form.scheme || find_storage(kDeepseekDialect, row.scheme) != nullptr)
      continue;
    form.dialect = kDeepseek;
    form.activations = row.activations;
    add();
  }
}

}  // namespace

std::span<const EngineLimit> engine_limits() {
  return kLimits;
}

std::vector<const EngineLimit*> limits_of(const Dialect& dialect, const EngineWeight& weight) {
  std::vector<const EngineLimit*> limits;
  const SchemeId scheme = scheme_facts(weight.scheme).quantized ? weight.scheme : kBf16;
  for (const EngineLimit& limit : kLimits) {
    if (!limit.dialect.empty() && limit.dialect != dialect.name) continue;
    if (!limit.family.empty() && limit.family != weight.family) continue;
    if (limit.scheme && *limit.scheme != scheme) continue;
    if (limit.activations && *limit.activations != weight.activations) continue;
    const bool is_said = std::any_of(limits.begin(), limits.end(), [&](const EngineLimit* other) {
      return other->engine == limit.engine && other->family == limit.family &&
             other->scope == limit.scope;
    });
    if (!is_said && is_in(limit.scope, dialect, weight)) limits.push_back(&limit);
  }
  return limits;
}

const EngineLimit* limit_of(Engine engine, const Dialect& dialect, const EngineWeight& weight) {
  const EngineLimit* with_option = nullptr;
  for (const EngineLimit* limit : limits_of(dialect, weight)) {
    if (limit->engine != engine) continue;
    if (limit->is_refusal()) return limit;
    if (with_option == nullptr && !limit->needed_option().empty()) with_option = limit;
  }
  return with_option;
}

std::vector<EngineSupport> engine_support() {
  std::vector<EngineSupport> rows;
  for (const EngineFacts& facts : engines()) {
    for (const SchemeFacts& scheme : schemes()) {
      if (scheme.id != SchemeId::kRaw)
        add_forms({.engine = facts.engine, .scheme = scheme.id}, rows);
    }
    for (const EngineLimit& limit : kLimits) {
      if (limit.engine == facts.engine && !limit.is_of_form())
        rows.push_back({limit.engine, limit.dialect, limit.scheme, limit.activations,
                        Evidence::kRead, &limit});
    }
  }
  return rows;
}

std::string engine_effect_text(const EngineLimit& limit) {
  switch (limit.effect) {
    case kRefused:
      return limit.option.empty() ? "refused" : fmt::format("with {}", limit.option);
    case kGarbage:
      return "garbage without an error";
    case kGarbageOption:
      return fmt::format("garbage with {}", limit.option);
    case kCoarser:
      return "rounded";
  }
  return {};
}

std::string engine_support_text(const EngineSupport& support) {
  return support.limit == nullptr ? std::string(evidence_text(support.evidence))
                                  : engine_effect_text(*support.limit);
}

void EngineLimitsMet::add(const EngineWeight& weight) {
  for (const EngineLimit* limit : limits_of(*dialect_, weight)) {
    if (limit->is_foreign) continue;
    const auto known =
        std::find_if(met_.begin(), met_.end(), [&](const Met& met) { return met.limit == limit; });
    if (known != met_.end()) {
      ++known->count;
    } else {
      met_.push_back(
          {.limit = limit, .first = std::string(weight.name), .scheme = weight.scheme, .count = 1});
    }
  }
}

bool EngineLimitsMet::is_refused_by_all() const {
  const auto all = engines();
  return std::all_of(all.begin(), all.end(), [&](const EngineFacts& facts) {
    return !facts.is_judged || std::any_of(met_.begin(), met_.end(), [&](const Met& met) {
      return met.limit->engine == facts.engine && met.limit->is_refusal() &&
             met.limit->is_of_form();
    });
  });
}

}  // namespace ingot::formats
