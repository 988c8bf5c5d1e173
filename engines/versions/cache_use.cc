#include "engines/versions/cache_use.h"

#include <algorithm>
#include <array>
#include <span>
#include <string_view>

#include <fmt/format.h>

#include "engines/versions/words.h"
#include "formats/checkpoint/stored_caches.h"
#include "formats/config/nested_config.h"
#include "formats/dialect/cache_words.h"
#include "formats/dialect/modelopt.h"
#include "formats/json/json.h"

// Read in vLLM 0.25.1 and in SGLang of mid-2026, and in threads of both until September 2026; newer
// versions may map more names. The first row that a checkpoint has the facts of tells.

namespace ingot::engines {
namespace {

/// The facts about a checkpoint by which engines differ.
struct CacheFacts {
  std::string_view dialect, family, architecture;
  bool is_latent = false;
  bool is_sparse = false;    ///< latent attention with an indexer, as of DeepSeek-V3.2 and GLM-5
  bool is_mixed = false;     ///< ModelOpt's MIXED_PRECISION
  bool is_declared = false;  ///< the config says that the cache is FP8
  bool has_heads = false;    ///< one number per head
  bool has_fused = false;    ///< names of fused projections
  bool has_plain = false;    ///< `A.k_scale`
};

bool is_class_among(std::string_view word, std::initializer_list<std::string_view> words) {
  return std::ranges::find(words, word) != words.end();
}

struct CacheRow {
  Engine engine{};
  bool (*holds)(const CacheFacts& facts);
  std::string_view note;
};
constexpr std::string_view kDropsLatent =
    "it drops the scales of the cache, which runs at 1.0: for latent attention it reads them only "
    "in a ModelOpt checkpoint of one algorithm (ingot convert --dialect modelopt)";

constexpr std::array kCacheRows = {
    CacheRow{Engine::kVllm, [](const CacheFacts& facts) { return facts.is_sparse; },
             "it does not use the scales of the cache: sparse attention has scales of its own for "
             "128 values, made as they are written"},
    CacheRow{Engine::kVllm,
             [](const CacheFacts& facts) {
               return facts.is_latent &&
                      (facts.dialect != kModelopt || facts.is_mixed || facts.has_plain);
             },
             kDropsLatent},
    CacheRow{
        Engine::kVllm, [](const CacheFacts& facts) { return facts.is_latent; },
        "it uses the scale of keys for the whole row of the cache; CUTLASS MLA refuses any but "
        "1.0"},
    CacheRow{Engine::kVllm,
             [](const CacheFacts& facts) { return facts.has_heads && facts.dialect != kCt; },
             "it refuses scales of the cache per head, which it takes only of compressed-tensors"},
    CacheRow{Engine::kVllm, [](const CacheFacts& facts) { return facts.family == "qwen3_5_moe"; },
             "it may drop the scales of the cache for this family (its issue 54623), which then "
             "runs at 1.0"},
    CacheRow{Engine::kVllm, [](const CacheFacts& facts) { return facts.is_declared; },
             "it uses the scales of the cache, which becomes FP8 as the config says"},
    CacheRow{
        Engine::kVllm, [](const CacheFacts&) { return true; },
        "it uses the scales of the cache with --kv-cache-dtype fp8; without it the cache is not "
        "quantized"},
    CacheRow{Engine::kSglang, [](const CacheFacts& facts) { return facts.has_heads; },
             "it refuses scales of the cache per head"},
    CacheRow{Engine::kSglang, [](const CacheFacts& facts) { return facts.has_fused; },
             "it does not know the scales of the cache under names of fused projections"},
    CacheRow{Engine::kSglang,
             [](const CacheFacts& facts) {
               return is_class_among(facts.architecture, {"Qwen3MoeForCausalLM", "Qwen2ForCausalLM",
                                                          "MixtralForCausalLM"});
             },
             "its loader of this class drops the scales of the cache (its issue 39942), which then "
             "runs at 1.0"},
    CacheRow{Engine::kSglang,
             [](const CacheFacts& facts) { return facts.is_latent && facts.has_plain; },
             "it drops the scales of the cache under these names, for latent attention it reads "
             ".k_proj.k_scale"},
    CacheRow{Engine::kSglang, [](const CacheFacts& facts) { return facts.is_latent; },
             "it uses the scale of keys with --kv-cache-dtype fp8_e4m3, but not in MTP layers"},
    CacheRow{Engine::kSglang, [](const CacheFacts&) { return true; },
             "it uses the scales of the cache with --kv-cache-dtype fp8_e4m3"},
    CacheRow{Engine::kTransformers, [](const CacheFacts&) { return true; },
             "it does not use the scales of the cache"},
};

bool says_fp8_cache(const formats::Checkpoint& checkpoint) {
  using formats::declared_cache;
  return std::max(declared_cache(formats::quantization_block(checkpoint.config())),
                  declared_cache(checkpoint.description())) == formats::DeclaredCache::kFp8;
}

CacheFacts cache_facts_of(const formats::Checkpoint& checkpoint,
                          const formats::StoredCaches& caches) {
  const formats::ModelConfig& config = checkpoint.config();
  const formats::Json& block = formats::quantization_block(config);
  CacheFacts facts{.dialect = checkpoint.dialect().name,
                   .family = checkpoint.family().name,
                   .architecture = config.architecture,
                   .is_latent = config.kv_lora_rank > 0,
                   .is_mixed = formats::text_at(block, "quant_algo") == "MIXED_PRECISION",
                   .is_declared = says_fp8_cache(checkpoint)};
  for (const formats::LogicalTensor& tensor : checkpoint.tensors()) {
    facts.is_sparse =
        facts.is_sparse || (facts.is_latent && role_of(tensor) == formats::Role::kIndexerK);
  }
  for (const auto& [module, scales] : caches) {
    for (const formats::StoredCacheScale& scale : scales) {
      const std::string_view spelling = scale.name.spelling;
      facts.has_heads =
          facts.has_heads || (formats::element_count(scale.stored->shape) != std::uint64_t{1} &&
                              scale.name.side != formats::CacheSide::kOffset);
      facts.has_fused = facts.has_fused || spelling.find("qkv_proj") != spelling.npos;
      facts.has_plain = facts.has_plain || spelling == formats::kPlainCacheNames.keys;
    }
  }
  return facts;
}

}  // namespace

std::optional<std::string> cache_note(const formats::Checkpoint& checkpoint,
                                      const EngineRow& engine) {
  const formats::StoredCaches caches = formats::stored_caches(checkpoint);
  if (caches.empty()) return std::nullopt;
  const CacheFacts facts = cache_facts_of(checkpoint, caches);
  for (const CacheRow& row : kCacheRows) {
    if (row.engine == engine.engine && row.holds(facts)) return std::string(row.note);
  }
  return std::nullopt;
}

}  // namespace ingot::engines
