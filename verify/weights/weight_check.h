#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "check/stored_hashes.h"
#include "formats/checkpoint/checkpoint.h"
#include "verify/structure/compared_checkpoint.h"
#include "verify/weights/element_sums.h"
#include "verify/weights/group_reach.h"

namespace ingot::verify {

/// How a tensor of the output relates to the source's.
enum class Relation : std::uint8_t {
  kIdentical,  ///< same scheme; codes and scales are the same
  kChanged,    ///< same scheme, but not the same: a fault
  /// Into another quantized scheme, under a larger global scale (`ingot repair`), or into the same
  /// scheme under scales that were asked for.
  kQuantized,
  kWidened,  ///< into a plain dtype that holds every value of the source's grid (or rounds it once)
  kNarrowed,  ///< a plain tensor that is not a linear's weight lost bits, though no option asks for
              ///< it
};
std::string_view relation_name(Relation relation);

/// The result of comparing the values of a tensor with its partner, before others are looked at.
struct ComparedValues {
  Relation relation = Relation::kIdentical;
  ElementSums sums;
  GroupReach reach;  ///< reach of groups whose codes were computed by a conversion
  friend bool operator==(const ComparedValues&, const ComparedValues&) = default;
};

/// Results of several runs, in the order of WeightsReport::tensors. Results that are there are
/// taken over, and results for tensors of the share are added.
struct WeightLedger {
  check::WorkShare share;
  std::vector<std::optional<ComparedValues>> tensors;
};

struct WeightsOptions {
  std::size_t threads = 1;
  std::uint64_t mem_limit = std::uint64_t{4} << 30;
  /// Part of every tensor's rows that is looked at, in (0, 1], spread evenly; at least one row of
  /// scale groups per tensor. Identity of bytes is then judged on those rows.
  double sample = 1;
  Wanted wanted = {};              ///< requests to the conversion that made the output
  WeightLedger* ledger = nullptr;  ///< ledger of a comparison shared with other runs, or null
  std::function<void(std::uint64_t, std::uint64_t)> progress = {};  ///< bytes of both sides
};

/// One logical tensor, compared.
struct TensorWeights {
  std::string name, role;
  std::optional<std::uint32_t> layer, expert;
  std::string from, to;  ///< schemes
  Relation relation = Relation::kIdentical;
  ElementSums sums;
  GroupReach reach;  ///< reach of groups whose codes were computed by a conversion
  /// Groups of the output that share a scale, and numbers in one; 0 without scales.
  std::uint64_t groups = 0, group_elements = 0;
  /// How far from 1 the factor that fits the output to the source may be because all values were
  /// rounded the same way: a bound that follows from plain dtypes on the way, from the dtype of
  /// scales, and from a scale that another weight's values gave; 0 without any.
  double rounding_shift = 0;
  /// Codes were rounded one by one in a conversion that carried the errors of other tensors on.
  bool is_rounded_apart = false;
  /// Why values are misrounded, of the worst tensors of which one cause explains it; else empty.
  std::string cause = {};
};

/// A factor that explains nearly all of the error, as its distance from 1; else 0. Such a factor is
/// a wrong scale: where the source's values lie on the output's grid, it moves every value and none
/// beyond half a step. Rounding by itself scatters at least as much as it shifts (measured: at most
/// 2.6 times as much shift), except as TensorWeights::rounding_shift has it. Scales that are powers
/// of two cannot be a little off.
double lone_factor(const TensorWeights& tensor);

/// Level `weights`. Tensors that only one side has are the structure level's affair, and are
/// counted here.
struct WeightsReport {
  std::vector<TensorWeights> tensors;  ///< tensors in the order of the source
  std::uint64_t unmatched = 0;         ///< tensors without a partner, or with one of another shape
  double sample = 1;
};

/// Streams both sides in row bands within `mem_limit`, decodes, and compares every pair of logical
/// tensors of one name; with a ledger, only those that are of its share and not in it. Throws as
/// reading does; kInterrupted when stopped.
WeightsReport compare_weights(const formats::Checkpoint& source, const formats::Checkpoint& output,
                              const WeightsOptions& options);

/// Sums of several tensors with their common properties.
struct WeightGroup {
  std::string from, to, role;          ///< empty where the grouping is not by it
  std::optional<std::uint32_t> layer;  ///< nullopt where the grouping is not by layer
  std::uint64_t tensors = 0, identical = 0;
  double least_cosine = 1, worst_scale = 1;  ///< values over its tensors; the scale farthest from 1
  std::string worst;                         ///< name of the tensor with the least cosine
  ElementSums sums;
};
/// By (from, to, role), in order of first appearance.
std::vector<WeightGroup> by_scheme_and_role(const WeightsReport& report);
/// By (layer, role); tensors outside the layers have none.
std::vector<WeightGroup> by_layer_and_role(const WeightsReport& report);
/// Changed, narrowed, misrounded, coarse or not finite.
bool is_fault(const TensorWeights& tensor);
/// The n tensors with the largest relative error, faults before all others.
std::vector<const TensorWeights*> worst_tensors(const WeightsReport& report, std::size_t n);

}  // namespace ingot::verify
