#pragma once

#include <any>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "inference/base/matrix.h"
#include "inference/base/profile.h"
#include "inference/cache/kv_cache.h"
#include "inference/parallel/rank_view.h"

// A kind of mixer is one file: its mathematics, and next to it how its numbers are read from
// config.json, what it caches and how much memory it takes. Its row is in mixer_kinds.h.

namespace ingot::inference {

class BlockWeights;
class Parameters;
struct DecoderSpec;
struct LayerStep;
struct StepContext;

/// The part of a layer that mixes tokens, with its weights.
class Mixer {
 public:
  Mixer() = default;
  Mixer(const Mixer&) = default;
  Mixer(Mixer&&) = default;
  Mixer& operator=(const Mixer&) = default;
  Mixer& operator=(Mixer&&) = default;
  virtual ~Mixer() = default;

  /// FP32 sums of the output projection's columns for normalized input `x` [rows, hidden]: the
  /// whole once reduced over the tensor group. Caches the rows first.
  [[nodiscard]] virtual Matrix partial(const LayerStep& step, const Matrix& x) const = 0;
  /// True if every rank of a tensor group computes all of it, so that partial() is the whole.
  [[nodiscard]] virtual bool is_whole() const { return false; }
};

/// Facts that a mixer's streams in a cache depend on, besides its numbers.
struct CacheForm {
  const RankView& rank;
  Profile profile = Profile::kF32;
  KvFormat format = KvFormat::kF32;      ///< format of keys and values
  const StaticScales* scales = nullptr;  ///< scales of the layer for kFp8Static, of all heads
};

/// Values in F32 that are alive at once.
struct MixerMemory {
  std::uint64_t per_row = 0;    ///< per row of a step
  std::uint64_t per_token = 0;  ///< per cached token of the longest sequence
  std::uint64_t fixed = 0;      ///< per block
};

/// A row of the table of kinds. `numbers` is a value of the kind's own type, as read() returns it.
struct MixerKind {
  std::string_view name;  ///< name in families' files
  /// The numbers of a layer. Throws as Parameters does, and for numbers that make no such mixer.
  std::any (*read)(const DecoderSpec& model, Parameters& parameters, std::uint32_t layer);
  std::unique_ptr<Mixer> (*load)(const BlockWeights& weights, const StepContext& context,
                                 const std::any& numbers);
  std::vector<CacheStream> (*streams)(const std::any& numbers, const CacheForm& form);
  MixerMemory (*memory)(const std::any& numbers, std::size_t threads, std::uint64_t longest);
  bool (*are_equal)(const std::any& numbers, const std::any& others);
};

/// The row of the kind that the mixer `Of` computes. `Of` has the type of its numbers, Spec, a
/// constructor (weights, context, spec), and static functions read(), streams() and memory() as in
/// MixerKind, with a Spec in place of `numbers`.
template <typename Of>
constexpr MixerKind mixer_kind(std::string_view name) {
  using Spec = typename Of::Spec;
  return {
      .name = name,
      .read = [](const DecoderSpec& model, Parameters& parameters,
                 std::uint32_t layer) -> std::any { return Of::read(model, parameters, layer); },
      .load = [](const BlockWeights& weights, const StepContext& context,
                 const std::any& numbers) -> std::unique_ptr<Mixer> {
        return std::make_unique<Of>(weights, context, std::any_cast<const Spec&>(numbers));
      },
      .streams = [](const std::any& numbers, const CacheForm& form) -> std::vector<CacheStream> {
        return Of::streams(std::any_cast<const Spec&>(numbers), form);
      },
      .memory = [](const std::any& numbers, std::size_t threads,
                   std::uint64_t longest) -> MixerMemory {
        return Of::memory(std::any_cast<const Spec&>(numbers), threads, longest);
      },
      .are_equal =
          [](const std::any& numbers, const std::any& others) {
            return std::any_cast<const Spec&>(numbers) == std::any_cast<const Spec&>(others);
          }};
}

/// A mixer of a layer: its kind and its numbers.
class MixerSpec {
 public:
  /// `numbers` is what the kind reads; `kind` must outlive this.
  MixerSpec(const MixerKind& kind, std::any numbers) : kind_(&kind), numbers_(std::move(numbers)) {}

  /// The numbers of a kind; null where it is another one.
  template <typename Spec>
  [[nodiscard]] const Spec* as() const {
    return std::any_cast<Spec>(&numbers_);
  }
  [[nodiscard]] std::unique_ptr<Mixer> load(const BlockWeights& weights,
                                            const StepContext& context) const {
    return kind_->load(weights, context, numbers_);
  }
  [[nodiscard]] std::vector<CacheStream> streams(const CacheForm& form) const {
    return kind_->streams(numbers_, form);
  }
  /// `longest`: cached tokens of the longest sequence.
  [[nodiscard]] MixerMemory memory(std::size_t threads, std::uint64_t longest) const {
    return kind_->memory(numbers_, threads, longest);
  }
  bool operator==(const MixerSpec& other) const {
    return kind_ == other.kind_ && kind_->are_equal(numbers_, other.numbers_);
  }

 private:
  const MixerKind* kind_;
  std::any numbers_;
};

}  // namespace ingot::inference
