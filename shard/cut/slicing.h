#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "formats/base/error.h"
#include "formats/container/sections.h"
#include "formats/records/layout.h"
#include "formats/storage/tensor_source.h"
#include "shard/cut/expert_map.h"
#include "shard/cut/stages.h"
#include "shard/cut/topology.h"

namespace ingot::shard {

/// The remedy when a cut would split a block that shares a scale, or does not divide a width.
enum class TpFit : std::uint8_t { kRefuse, kRetile, kPad, kBf16 };
std::string_view tp_fit_name(TpFit fit);
/// Throws kInvalidArgument, naming the choices.
TpFit parse_tp_fit(std::string_view word);

/// The place of shared experts: cut like a dense layer, or whole on every rank.
enum class SharedExperts : std::uint8_t { kTp, kReplicated };
std::string_view shared_experts_name(SharedExperts shared);
SharedExperts parse_shared_experts(std::string_view word);

/// How a model is cut for the ranks of a cluster.
struct Slicing {
  Topology topology;
  ExpertMap experts = ExpertMap::contiguous(0, 1);
  SharedExperts shared = SharedExperts::kTp;
  TpFit fit = TpFit::kRefuse;
  Stages stages;  ///< stages of the pipeline
  /// The layout, which says which options cut the model, and which blocks and widths stay.
  const formats::Layout* layout = formats::find_layout("ranks");
};

/// The side of a weight along which it is cut.
enum class Axis : std::uint8_t {
  kNone,  ///< whole on each of its ranks
  kRows,  ///< output features (column-parallel), vocabulary
  kCols,  ///< input features (row-parallel)
};

/// The coordinate of a rank that selects its slice.
enum class Owner : std::uint8_t {
  kAll,      ///< every rank of the stage
  kTp,       ///< tp_rank
  kKvHeads,  ///< tp_rank * n / tp: fewer KV heads than ranks
  kExpert,   ///< ep_rank (which experts) and etp_rank (which slice)
};

/// How one logical tensor is cut. All its slices have the same shape.
struct TensorCut {
  Axis axis = Axis::kNone;
  Owner owner = Owner::kAll;
  std::uint32_t n = 1;         ///< slices along the axis
  formats::Sections sections;  ///< sections of the cut side: stacked gate and up in halves have two

  /// The slice of a rank, 0 .. n-1.
  [[nodiscard]] std::uint32_t slice_of(const RankPosition& rank, const Topology& topology) const;
};

/// The dimension of a weight that such a cut divides. Inputs are the last one. Outputs are the one
/// before it, or one further in front where those have a length of 1: convolutions are stored as
/// [channels, 1, width]. The only dimension of a vector is that of its outputs.
std::size_t cut_dimension(const formats::Shape& weight, Axis axis);

/// Decides the cut of a tensor from its family row and the config; no sizes of blocks are looked
/// at. `faults` gets kInvalidArgument for heads that tp does not divide (KV heads may also divide
/// tp), and kShapeMismatch for sections that do not make up the tensor; widths, experts and
/// vocabulary that are not divisible are left to align_blocks. Tensors whose row says so, and those
/// outside the grammar, are replicated; of family generic, which knows none, the caller cuts
/// nothing.
TensorCut cut_of(const formats::LogicalTensor& tensor, const formats::ModelConfig& config,
                 const Slicing& slicing, ErrorList& faults);

/// Adds kUnsupported, naming two tensors, where a layer's attention, or its recurrent mixer, is whole
/// in some projections and cut in others, as its family's rows say: ranks could not compute it.
void require_one_way(const formats::TensorSource& source, ErrorList& faults);

/// Stages that hold a tensor, ascending: its layer's; the first for embeddings, the last for norm,
/// head, MTP layers, and also for the embedding where head or MTP layers share it; all for tensors
/// outside the grammar.
std::vector<std::uint32_t> stages_of(const formats::LogicalTensor& tensor,
                                     const formats::TensorSource& source, const Slicing& slicing);

}  // namespace ingot::shard
