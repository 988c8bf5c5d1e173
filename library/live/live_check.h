#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engines/live/live_answer.h"
#include "engines/live/live_forms.h"
#include "formats/json/json_fwd.h"

// Running engines against checkpoints: what they tell of their weights, and what follows from the
// files.

namespace ingot::library {

enum class LiveState : std::uint8_t {
  kEqual,          ///< digest of the bytes, in a form that the engine makes of them
  kLearned,        ///< digest of a trusted start, of a parameter that files do not tell
  kDiffers,        ///< digest of other bytes
  kNotComparable,  ///< packed by a kernel, as far as is known
  kMissing,        ///< no digest by a rank that should have it
  kUnexpected,     ///< told, and not of the checkpoint
};
inline constexpr std::size_t kLiveStates = 6;
std::string_view live_state_name(LiveState state);

/// A parameter of a rank.
struct LiveRow {
  engines::LivePlace place;
  std::string name;  ///< name in the engine
  LiveState state{};
  std::string fact;           ///< form, kernel, or what is known of a difference
  std::uint64_t n_bytes = 0;  ///< bytes by the files; unexpected ones: 0
};

struct LiveReport {
  engines::Engine engine{};
  std::uint32_t dp = 1, pp = 1, tp = 1, ep = 1;
  std::uint64_t n_drafts = 0;  ///< parameters of drafts, which are not compared
  std::vector<LiveRow> rows;   ///< parameters by rank and name
  [[nodiscard]] std::uint64_t count(LiveState state) const;
  [[nodiscard]] std::uint64_t bytes(LiveState state) const;
  [[nodiscard]] bool passed() const {
    return count(LiveState::kDiffers) == 0 && count(LiveState::kMissing) == 0;
  }
};

struct LiveOptions {
  std::string directory, family;
  std::optional<std::uint32_t> ep;             ///< nullopt: none, else all ranks, by what fits
  std::optional<engines::LiveCard> card;       ///< nullopt: what is right for any
  std::optional<engines::LiveAnswer> trusted;  ///< an answer of a trusted start
  std::size_t threads = 1;
  std::function<void(std::uint64_t, std::uint64_t)> progress;  ///< bytes of the checkpoint
};

/// Compares an answer with the files of a checkpoint, or its rank slices. Throws kUnsupported for
/// families and layouts whose parameters are not known (layout `vllm-sharded`), kMismatch for a
/// trusted start of other ranks, and as opening does. Schemes that kernels pack are no refusal.
LiveReport compare_live(const engines::LiveAnswer& answer, const LiveOptions& options);

/// The digests of a trusted start as a file holds them, and back. Throws kCorrupt for another text.
std::string learned_text(const engines::LiveAnswer& answer);
engines::LiveAnswer parse_learned(std::string_view text, std::string_view where);

}  // namespace ingot::library
