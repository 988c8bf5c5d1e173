#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/base/hash.h"
#include "formats/container/sections.h"
#include "formats/container/tensor.h"
#include "formats/json/json_fwd.h"

namespace ingot::formats {

/// The part of a whole stored tensor that a stored tensor of a rank is; `slice` of an output in the
/// per-tensor records. Absent: the whole.
struct SliceRecord {
  int axis = -1;             ///< dimension that is cut, from the front; -1: none is
  std::uint64_t offset = 0;  ///< first element along the axis, within its first section
  Shape whole;               ///< shape of the whole as it was cut (retiled, padded)
  Sections sections;         ///< sections of the axis
  /// Stacks under expert parallelism: the experts (indices into the first dimension of the whole)
  /// that the slice holds, ascending. Empty: all.
  std::vector<std::uint32_t> experts;
  /// quant_bias of a row-parallel weight: slice 0 (offset 0) is the whole, this is one of the
  /// others, all zero. `axis` is -1.
  bool is_zeroed = false;
  /// Shape before retiling or padding; empty: `whole`. Element (r, c) of it is at (r * repeat[0], c
  /// * repeat[1]) of the whole; the rest is padding, at the end of each section.
  Shape original;
  std::array<std::uint64_t, 2> repeat = {1, 1};
  bool operator==(const SliceRecord&) const = default;
};

Json slice_record_json(const SliceRecord& slice);
/// Throws kCorrupt naming `where`: an axis, offset, experts or original outside of the whole.
SliceRecord parse_slice_record(const Json& json, std::string_view where);

/// A rank's directory as the top manifest knows it.
struct RankEntry {
  std::string directory;  ///< `rank-00003-of-00016`
  Hash128 manifest_hash;  ///< tensor hash of its ingot.json
};

/// The contents of a rank, for readers that have only its directory.
struct RankRecord {
  std::uint32_t rank = 0, stage = 0, tp_rank = 0, ep_rank = 0, etp_rank = 0;
  std::uint32_t first_layer = 0, end_layer = 0;  ///< layers of its stage, MTP layers included
  bool has_embedding = true, has_head = true;    ///< model.embed_tokens; model.norm and lm_head
  /// Logical experts, ascending (the shared one, if it is in a slot, as n_routed_experts), by
  /// layer; one entry with layer ~0 when all layers have the same.
  struct Experts {
    static constexpr std::uint32_t kEveryLayer = ~std::uint32_t{0};
    std::uint32_t layer = kEveryLayer;
    std::vector<std::uint32_t> held;   ///< ascending, unique
    std::vector<std::uint32_t> slots;  ///< logical expert by physical slot of this rank
  };
  std::vector<Experts> experts;
  /// config.json of the unsliced checkpoint where this rank's says something else (retiled blocks,
  /// padded widths); null otherwise.
  JsonValue whole_config;

  /// Experts held in a layer; null: all of them (families without experts).
  [[nodiscard]] const std::vector<std::uint32_t>* experts_in(std::uint32_t layer) const;
};

/// `slicing` of ingot.json: in the top manifest of a sliced checkpoint (with `ranks`), and in that
/// of each rank directory (with `rank`).
struct SlicingRecord {
  std::uint32_t tp = 1, ep = 1, etp = 1, pp = 1;
  std::uint32_t n_ranks = 1;
  std::string shared_experts;               ///< "tp" or "replicated"
  std::string tp_fit;                       ///< "refuse", "retile", "pad" or "bf16"
  std::vector<std::uint32_t> stage_layers;  ///< first layer of each stage, then their number
  JsonValue expert_map;                     ///< null: contiguous blocks
  Hash128 job;  ///< hash that the directories of one conversion share, and no others
  std::optional<RankRecord> rank;
  std::vector<RankEntry> ranks;
};

Json slicing_record_json(const SlicingRecord& slicing);
/// Throws kCorrupt naming `where`, and kMismatch for a topology that contradicts itself: ranks,
/// stages or the place of the rank do not follow from tp, ep, etp and pp.
SlicingRecord parse_slicing_record(const Json& json, std::string_view where);

}  // namespace ingot::formats
