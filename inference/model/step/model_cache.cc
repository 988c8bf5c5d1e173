#include "inference/model/step/model_cache.h"

#include "formats/base/error.h"
#include "inference/parallel/comm.h"

namespace ingot::inference {
namespace {

// Rotated keys and plain index keys are never quantized.
KvFormat unquantized(KvFormat format) {
  return format == KvFormat::kF32 ? KvFormat::kF32 : KvFormat::kBf16;
}

std::vector<CacheStream> latent_streams(const ModelSpec& spec, Profile profile, KvFormat format,
                                        std::size_t layer) {
  const MlaSpec& mla = *spec.mla;
  std::vector<CacheStream> streams = {
      {.width = mla.kv_lora,
       .format = format,
       .group = format == KvFormat::kFp8 ? std::size_t{128} : mla.kv_lora},
      {.width = mla.rope_dim, .format = unquantized(format), .group = mla.rope_dim}};
  if (spec.indexer && spec.indexer->own[layer]) {
    const IndexerSpec& indexer = *spec.indexer;
    const bool fp8 = profile == Profile::kNative && indexer.hadamard_fp8;
    streams.push_back({.width = indexer.head_dim,
                       .format = fp8 ? KvFormat::kFp8 : unquantized(format),
                       .group = indexer.head_dim,
                       .power_of_two = fp8 && indexer.power_of_two_keys});
  }
  return streams;
}

}  // namespace

std::vector<CacheStream> cache_streams(const ModelSpec& spec, const RankView& rank, Profile profile,
                                       KvFormat format, std::size_t layer) {
  if (spec.mla) return latent_streams(spec, profile, format, layer);
  const std::size_t heads = key_head_part(rank, spec.gqa->kv_heads).count;
  const CacheStream per_head = {
      .width = heads * spec.gqa->head_dim, .format = format, .group = spec.gqa->head_dim};
  return {per_head, per_head};
}

SequenceId ModelCache::add() {
  const SequenceId sequence = main_.add();
  INGOT_CHECK(mtp_.add() == sequence);
  return sequence;
}

void ModelCache::free(SequenceId sequence) {
  main_.free(sequence);
  mtp_.free(sequence);
}

}  // namespace ingot::inference
