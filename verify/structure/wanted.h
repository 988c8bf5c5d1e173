#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/checkpoint/checkpoint.h"
#include "formats/records/manifest.h"

namespace ingot::verify {

/// The search of --importance: errors count by the columns that they are in.
inline constexpr std::string_view kWeightedSearch = "weighted";

/// The requests to the conversion that made an output, by its manifest. They decide what a right
/// output is; how near the output comes to it, and whether that is enough, is never taken from
/// there.
struct Wanted {
  bool is_recorded = false;  ///< requests are in a manifest; false: all that follows is assumed
  /// "amax", "4over6", "mse", "signed", or "weighted" by --importance; empty: unknown.
  std::string search = {};
  std::string fp8_grid = {};      ///< "amax" or "ue8m0"; empty: the source's
  std::string activations = {};   ///< "weight-only", "dynamic" or "static"; empty: the source's
  bool is_repair = false;         ///< false statements about the source are mended
  bool via_bf16 = false;          ///< values are cast to BF16 before they are encoded
  bool has_given_scales = false;  ///< scales of FP8 blocks and INT4 groups are from a release
  /// The dtype that the source's config says, where weights were saved in more bits than that; not
  /// by the manifest.
  std::optional<formats::SchemeId> narrower = {};
  /// Rules that the user gave, of plain schemes: selectors and schemes.
  std::vector<std::pair<std::string, std::string>> plain_rules = {};

  /// True if a rule names the tensor or its role and asks for this plain scheme, or if the source's
  /// config says that the tensor has it.
  [[nodiscard]] bool narrows(const formats::LogicalTensor& tensor, formats::SchemeId to) const;
  /// For a report: the options that weights are judged by, or that none was known, and the
  /// assumption.
  [[nodiscard]] std::string sentence() const;
};

Wanted wanted_of(const std::optional<formats::Manifest>& manifest);

}  // namespace ingot::verify
