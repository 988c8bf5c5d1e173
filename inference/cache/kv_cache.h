#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "formats/checkpoint/checkpoint.h"
#include "inference/weights/held_bytes.h"

namespace ingot::inference {

/// The number format of cached values (`--kv-cache`).
enum class KvFormat : std::uint8_t { kF32, kBf16, kFp8, kInt8, kFp8Static };
std::span<const KvFormat> kv_formats();
std::string_view kv_format_name(KvFormat format);
std::optional<KvFormat> find_kv_format(std::string_view name);

/// One vector that every cached token, or every few of them, has in a layer: the latent, its rope
/// key, an index key, the keys or values of a GQA layer.
struct CacheStream {
  std::size_t width = 0;  ///< values per token; 0: nothing is held
  KvFormat format = KvFormat::kF32;
  /// Values that share a scale, of the quantized formats: a last group may be shorter; 0: all.
  /// Codes and scales are those of quantize_activations: FP8 E4M3 with scale max(amax, 1e-4) *
  /// fp32(1/448), INT8 with scale amax / 127. A scale is held as FP32.
  std::size_t group = 0;
  bool power_of_two = false;  ///< FP8 scales rounded up to a power of two
  /// kFp8Static: the scale of each group, for all vectors: code = e4m3(value / scale), saturating
  /// at 448. No scale is held with them.
  std::vector<float> fixed = {};
  /// Tokens that share a vector. Vectors are numbered by themselves: number e is of tokens
  /// [e * every, (e + 1) * every), and there is room for it where there is for all of them.
  std::size_t every = 1;
  /// One vector per sequence instead, in FP32, that the layer's mixer carries from token to token:
  /// state(). At most one stream of a layer.
  bool is_state = false;
};

/// Scales of a layer's cache that its checkpoint stores: one number, or one per head of keys and
/// values.
struct StaticScales {
  std::vector<float> keys, values;
};
/// The scales of every layer, MTP layers included, for kFp8Static. A config that declares a cache
/// without storing scales means 1. Throws kMissingTensor for a checkpoint without any, and for main
/// layers with keys that have none; kUnsupported for scales with a bias next to them; and as
/// formats::read_cache_scales() does.
std::vector<StaticScales> read_static_scales(const formats::Checkpoint& source);

/// Number of a sequence in a cache; never reused while the sequence lives.
using SequenceId = std::uint32_t;

/// Cached tokens of many sequences in pages of kPageTokens tokens. A page holds one stream of one
/// layer; the pages of the same tokens in all layers are taken and given back together. Values are
/// quantized when they are written, so that they are never read unquantized. Different (sequence,
/// layer) pairs may be written and read at once, but not during add, reserve, truncate or free.
class KvCache {
 public:
  static constexpr std::size_t kPageTokens = 64;

  /// `layers[l]` are the streams of layer l. `capacity` tokens over all sequences, rounded up to
  /// whole pages and counted in whole pages per sequence; memory is taken as pages are reserved,
  /// and kept for other sequences when they are free again. Throws kUnsupported for streams in
  /// kFp8Static that have no scale for each group: caches of that kind have none.
  KvCache(std::vector<std::vector<CacheStream>> layers, std::size_t capacity);
  /// Bytes that a token takes over all layers.
  static std::uint64_t bytes_per_token(const std::vector<std::vector<CacheStream>>& layers);
  /// Bytes that a sequence takes in addition: its states.
  static std::uint64_t bytes_per_sequence(const std::vector<std::vector<CacheStream>>& layers);

  /// Adds a sequence without tokens. Numbers of freed sequences are given again, the last freed
  /// first.
  SequenceId add();
  /// Makes room for tokens [0, n); never less than there was. Throws kLimit with the figures, and
  /// changes nothing, when the capacity does not suffice.
  void reserve(SequenceId sequence, std::size_t n);
  /// Forgets tokens from n on; their pages are free again.
  void truncate(SequenceId sequence, std::size_t n);
  void free(SequenceId sequence);
  /// Tokens for which there is room, by the last reserve or truncate.
  [[nodiscard]] std::size_t length(SequenceId sequence) const { return living(sequence).length; }
  [[nodiscard]] std::size_t n_layers() const { return layers_.size(); }
  [[nodiscard]] const std::vector<CacheStream>& streams(std::size_t layer) const {
    return layers_.at(layer);
  }

  /// Writes one vector (width of the stream) at a reserved position, in any order and again. Here
  /// and in gather() positions of a stream count its vectors.
  void write(SequenceId sequence, std::size_t layer, std::size_t stream, std::size_t position,
             std::span<const float> values);
  /// Returns the decoded values of tokens [page * kPageTokens, + n) of a stream with a vector per
  /// token, row-major: a pointer into the cache where it holds FP32, else into `scratch` (n x
  /// width), which it fills.
  const float* page(SequenceId sequence, std::size_t layer, std::size_t stream, std::size_t page,
                    std::size_t n, std::span<float> scratch) const;
  /// Decodes the vectors at `positions` into `out`, row-major: the bits that page() gives.
  void gather(SequenceId sequence, std::size_t layer, std::size_t stream,
              std::span<const std::uint32_t> positions, std::span<float> out) const;

  /// Returns the state of a layer, which has seen tokens [0, from) of the sequence and is about to
  /// see those up to `to`; zeros where from is 0. Throws kUnsupported where it has seen other
  /// tokens: a state does not go back, the sequence begins again.
  std::span<float> state(SequenceId sequence, std::size_t layer, std::size_t from, std::size_t to);

 private:
  struct Sequence {
    bool lives = false;
    std::size_t length = 0;
    std::vector<std::size_t> slabs;  ///< number p holds tokens [p * kPageTokens, ...)
    HeldBytes states;  ///< states of all layers; kept for the next sequence of this number
    std::vector<std::size_t> seen;  ///< tokens, per layer
  };

  [[nodiscard]] std::size_t slabs_used() const { return slabs_.size() - free_slabs_.size(); }
  [[nodiscard]] const Sequence& living(SequenceId id) const;
  Sequence& living(SequenceId id);
  std::size_t take_slab();
  void shrink(Sequence& sequence, std::size_t n_slabs);
  [[nodiscard]] std::byte* bytes_of(SequenceId id, std::size_t layer, std::size_t stream,
                                    std::size_t number) const;

  // A slab is the memory of kPageTokens tokens of one sequence: a page of every stream of every
  // layer.
  std::vector<std::vector<CacheStream>> layers_;
  std::vector<std::vector<std::size_t>> offsets_;  // offsets in a slab, per layer and stream
  std::vector<std::size_t> state_offsets_;         // per layer, in values, and the end
  std::size_t slab_bytes_ = 0, max_slabs_ = 0;
  std::vector<HeldBytes> slabs_;  // taken so far, in use or free
  std::vector<std::size_t> free_slabs_;
  std::vector<Sequence> sequences_;
  std::vector<SequenceId> free_ids_;
};

}  // namespace ingot::inference
