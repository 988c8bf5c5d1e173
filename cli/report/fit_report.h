#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "convert/plan/plan.h"
#include "formats/json/json_fwd.h"
#include "inference/cache/kv_cache.h"

namespace ingot::cli {

/// A deployment whose memory is asked for.
struct FitRequest {
  std::uint64_t device_bytes = 0;
  inference::KvFormat cache = inference::KvFormat::kBf16;
  std::optional<std::uint64_t> context;    ///< tokens of each sequence
  std::optional<std::uint64_t> sequences;  ///< sequences in each group of tensor parallelism
};

/// How many GPUs a model needs, with tensor parallelism, and that of experts, over all of them.
struct GpuNeed {
  std::string_view gpu;                ///< its name
  bool has_experts = false;            ///< the model
  std::optional<std::uint32_t> count;  ///< the smallest power of two; nullopt: none was found
  std::uint32_t too_few = 0;           ///< largest number that was too few
  std::string obstacle;  ///< reason why it cannot be cut for twice as many; empty: it can
};

/// The weights of the ranks in a plan of layout `ranks`, and whether they fit their memory.
struct Fit {
  FitRequest request;
  shard::Topology topology;
  std::uint32_t rank = 0;  ///< rank that has the least room, of which the rest tells
  std::map<std::string_view, std::uint64_t> weights;  ///< bytes by group of roles
  std::uint64_t weight_bytes = 0;
  /// Nullopt for families without a forward pass, whose caches are unknown here, and where a
  /// sequence has a state in addition to its tokens.
  std::optional<std::uint64_t> cache_per_token;
  std::uint64_t lightest_bytes = 0;  ///< weights of the rank that has least
  std::optional<GpuNeed> need = {};  ///< GPUs that are needed; nullopt: no GPU was named

  /// The part of a device's memory for weights and cache; the rest is for activations, buffers and
  /// kernels.
  [[nodiscard]] std::uint64_t usable_bytes() const;
  /// Cache of all sequences that were asked for; 0 where none were.
  [[nodiscard]] std::uint64_t cache_bytes() const;
  [[nodiscard]] bool fits() const { return weight_bytes + cache_bytes() <= usable_bytes(); }
  /// Tokens for which there is room in the cache; nullopt where that is unknown.
  [[nodiscard]] std::optional<std::uint64_t> tokens() const;
};

/// A scheme for a checkpoint, and whether it fits then.
struct SchemeFit {
  std::string_view to;        ///< its --to word
  std::string_view computed;  ///< form in which the GPU computes such weights
  std::optional<Fit> fit;     ///< nullopt: it cannot be converted or cut so
  std::string obstacle = {};  ///< reason of that
};

/// From only the plan: no file is read or written. Layers of multi-token prediction have weights
/// here and no cache.
Fit fit_of(const convert::Plan& plan, const FitRequest& request);

std::string fit_text(const Fit& fit);
formats::Json fit_json(const Fit& fit);

/// A row for each scheme.
std::string scheme_fits_text(std::span<const SchemeFit> fits);
formats::Json scheme_fits_json(std::span<const SchemeFit> fits);

}  // namespace ingot::cli
