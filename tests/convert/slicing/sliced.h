#pragma once

#include "tests/convert/conversion.h"
#include "tests/convert/output_tensors.h"
#include "tests/convert/targets.h"
#include "tests/support/test.h"

namespace ingot::testing {

/// A cut as a user would ask for it.
struct Cut {
  std::uint32_t tp = 1, ep = 1;
  std::optional<std::uint32_t> etp;
  std::uint32_t pp = 1;
  shard::TpFit fit = shard::TpFit::kRefuse;

  [[nodiscard]] std::string name() const {
    return fmt::format("tp {} ep {} etp {} pp {} fit {}", tp, ep, etp ? std::to_string(*etp) : "-",
                       pp, shard::tp_fit_name(fit));
  }
  [[nodiscard]] convert::PlanOptions options() const {
    convert::PlanOptions options;
    options.layout = formats::find_layout("ranks");
    options.slicing.topology = shard::make_topology(tp, ep, etp, pp);
    options.slicing.fit = fit;
    return options;
  }
};

/// A conversion that changes no tensor: slices, merges or cuts again the tensors of `from`.
inline Conversion keeping(const std::filesystem::path& from, const std::filesystem::path& to) {
  Conversion conversion(from, to);
  conversion.recipe.to = std::nullopt;
  return conversion;
}

inline Conversion slicing(const std::filesystem::path& from, const std::filesystem::path& to,
                          const Cut& cut) {
  Conversion conversion = keeping(from, to);
  conversion.plan = cut.options();
  return conversion;
}

/// Leaves attention in BF16, so that heads need not fall between blocks.
inline void spare_attention(convert::Recipe& recipe) {
  recipe.rules.push_back(convert::make_rule("*.self_attn.*", "bf16", convert::RuleOrigin::kRule));
}

inline std::filesystem::path rank_directory(const std::filesystem::path& top, std::uint32_t rank,
                                            const Cut& cut) {
  return top / shard::rank_directory_name(rank, cut.options().slicing.topology.n_ranks());
}

/// Everything but manifests and records, which tell where the bytes came from.
inline std::map<std::string, std::string> payload(const std::filesystem::path& directory) {
  std::map<std::string, std::string> files = tree(directory);
  std::erase_if(files, [](const auto& entry) {
    return entry.first.ends_with(formats::kManifestName) ||
           entry.first.ends_with(formats::kRecordsName);
  });
  return files;
}

/// The same with the names of differing entries, for messages.
inline std::string first_difference(const std::map<std::string, std::string>& a,
                                    const std::map<std::string, std::string>& b) {
  for (const auto& [name, text] : a) {
    const auto found = b.find(name);
    if (found == b.end()) return name + " is in the first alone";
    if (found->second != text) return name + " differs";
  }
  for (const auto& [name, text] : b) {
    if (!a.contains(name)) return name + " is in the second alone";
  }
  return {};
}

/// The fixture of a family, BF16 with random weights.
inline std::filesystem::path arch_fixture(const std::string& family) {
  return std::filesystem::path(INGOT_SOURCE_DIR) / "tests/golden/arch" / family / "checkpoint";
}

}  // namespace ingot::testing
