#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "formats/family/family.h"
#include "formats/family/proposal/config_widths.h"
#include "formats/family/proposal/family_proposal.h"
#include "formats/family/proposal/neighbours.h"
#include "formats/family/usual_spellings.h"

// Tensors of an unknown model whose names differ in numbers only, and what stacks of experts among
// them say of their order.

namespace ingot::formats {

/// A row before it is written.
struct Judged {
  UsualSpelling spelling;
  UsualRow usual;
  const NeighbourRow* neighbour = nullptr;  // the row that it takes
  StackOrder order = StackOrder::kNone;
  GateUpOrder gate_up = GateUpOrder::kHalves;
  bool stacks = false;
  bool is_stored_turned = false;      // coded with sides in another order than its row says
  bool is_of_stack = false;           // biases of a stack
  bool is_turned = false;             // inputs before outputs
  bool is_whole = false;              // ranks share it, as all of an attention with unknown parts
  bool is_odd_joint = false;          // name says several matrices, the shape says one
  std::optional<FineRole> fine = {};  // of several matrices in one
  std::string traits = {};            // of its cut, as a row has them
  std::string reason;
};

/// Names that differ only in numbers.
struct Kind {
  ShapesByLayer layers;                                  // shape of such a tensor in each layer
  std::map<std::uint32_t, const UnknownWeight*> firsts;  // a weight of each layer
  const UnknownWeight* first = nullptr;
  std::vector<NeighbourRow> neighbours;
  Judged judged;
  bool is_quantized = false;
  bool has_one_shape = true;
  bool is_of_tower = false;
  std::uint64_t n_bytes = 0;
};

/// Kinds by the pattern of their names; several of one pattern have a shape each.
using Kinds = std::multimap<std::string, Kind>;

/// True for a stack of experts.
bool is_stack(const std::string& pattern, const Kind& kind);
/// Orientation of the last two sides: the order that the shape fits, if it fits just one.
StackOrder order_by_shape(const Kind& kind, const UsualRow& usual, const ConfigWidths& widths);
/// Orientation of a stack, by what it and the stacks of its module say: shapes, values that share a
/// scale, which are of one output, and biases, one for each output. kNone where nothing tells, or
/// two disagree.
StackOrder order_of_stack(const std::string& pattern, const Kinds& kinds,
                          const ConfigWidths& widths);
/// True for tensors of attention whose cut side is as many equal parts as there are heads.
bool has_whole_heads(const Kind& kind, const ModelConfig& config);
/// Makes the row of several matrices in one cut: one after the other, or in turn by heads, where it
/// is cut if they are of attention.
void set_joined(Kind& kind, bool is_in_parts, const ConfigWidths& widths);

/// Layers in which the names are.
std::set<std::uint32_t> layers_in(const Kind& kind);
/// Says that a row is that of its family, and of which others that have one that fits.
std::string reason_of(const Kind& kind, const NeighbourRow& row);
/// The text before the names of an attention's own tensors; empty: it is of none.
std::string_view attention_of(std::string_view pattern);
/// True for names in a module that is usually an attention, a mixer or a convolution.
bool usual_place_is_attention(const std::string& pattern);
/// True for tensors that no scheme changes: their role is unknown, or the order of their stack.
bool is_only_copied(const Kind& kind);
/// True for biases of a stack whose gates and ups are interleaved.
bool is_interleaved_bias(const Kind& kind);

}  // namespace ingot::formats
