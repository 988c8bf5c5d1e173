#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "inference/base/profile.h"
#include "inference/cache/kv_cache.h"
#include "inference/model/step/step.h"
#include "inference/parallel/comm.h"

namespace ingot::inference {

/// Streams of a latent-attention layer in a KvCache, in this order.
inline constexpr std::size_t kLatentStream = 0;
inline constexpr std::size_t kRopeKeyStream = 1;
inline constexpr std::size_t kIndexKeyStream = 2;  ///< of layers with an indexer of their own
/// Streams of a grouped-query layer.
inline constexpr std::size_t kKeyStream = 0;
inline constexpr std::size_t kValueStream = 1;

/// What a layer caches per token. FP8 and INT8 quantize the latent (E4M3 per 128 values, INT8 per
/// token) and leave the rope key in BF16; of grouped-query attention every head of keys and values
/// has its scale. Index keys are FP8 where the indexer scores with FP8 in this profile, else F32 or
/// BF16.
std::vector<CacheStream> cache_streams(const ModelSpec& spec, const RankView& rank, Profile profile,
                                       KvFormat format, std::size_t layer);

/// Keys and values of the sequences in flight: of the main layers, and of the MTP layers, whose
/// sequences have lengths of their own. A SequenceId means the same in both.
class ModelCache {
 public:
  ModelCache(KvCache main, KvCache mtp) : main_(std::move(main)), mtp_(std::move(mtp)) {}

  SequenceId add();
  void free(SequenceId sequence);
  [[nodiscard]] KvCache& main() { return main_; }
  [[nodiscard]] KvCache& mtp() { return mtp_; }
  [[nodiscard]] Selection& selection() { return selection_; }

 private:
  KvCache main_, mtp_;
  Selection selection_;
};

}  // namespace ingot::inference
