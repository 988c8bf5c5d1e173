#pragma once

#include <filesystem>
#include <string>

#include <gtest/gtest.h>

#include "tests/slicing/megatron_cut.h"
#include "tests/slicing/sliced.h"

namespace ingot::testing {

/// The first element that differs, in words; empty when none does. Either sign of zero is zero.
inline std::string first_unlike(const Values& is, const Values& wanted) {
  if (is.shape != wanted.shape) {
    return fmt::format("shape {}, not {}", formats::shape_text(is.shape),
                       formats::shape_text(wanted.shape));
  }
  for (std::size_t i = 0; i < is.numbers.size(); ++i) {
    if (!(is.numbers[i] == wanted.numbers[i]))
      return fmt::format("element {} is {}, not {}", i, is.numbers[i], wanted.numbers[i]);
  }
  return {};
}

/// Compares every rank of a sliced directory with what the rules cut out of the whole: the tensors
/// that it has, and all their numbers.
inline void expect_cut_from(const ValuesByName& whole, const std::filesystem::path& sliced,
                            const Cut& cut) {
  const shard::Topology topology = cut.options().slicing.topology;
  for (std::uint32_t rank = 0; rank < topology.n_ranks(); ++rank) {
    SCOPED_TRACE(cut.name() + fmt::format(", rank {}", rank));
    const std::filesystem::path directory = rank_directory(sliced, rank, cut);
    const formats::Json config = config_of(directory);
    const ValuesByName held = values_of(read_output(directory), config);
    const RankPlace at = rank_place(rank, topology.tp, topology.ep, topology.etp);
    std::size_t n_wanted = 0;
    for (const auto& [name, values] : whole) {
      const auto wanted = cut_for(at, ModelWidths(config), name, values);
      ASSERT_EQ(held.contains(name), wanted.has_value()) << name;
      if (!wanted) continue;
      ++n_wanted;
      EXPECT_EQ(first_unlike(held.at(name), *wanted), "") << name;
    }
    EXPECT_EQ(held.size(), n_wanted) << "and it has nothing else";
  }
}

/// Converts whole and in slices, in one pass each, and compares.
inline void expect_cut(Conversion conversion, const Cut& cut) {
  const TempDir directory;
  conversion.output = directory / "whole";
  conversion.run();
  conversion.output = directory / "sliced";
  conversion.plan = cut.options();
  conversion.run();
  expect_cut_from(values_of(read_output(directory / "whole"), config_of(directory / "whole")),
                  directory / "sliced", cut);
}

/// A BF16 model of a few matrices of 128 x 128 blocks and some left over, made once per process.
inline const std::filesystem::path& synth_bf16_model() {
  static const TempDir directory;
  static const std::filesystem::path path = [] {
    formats::write_synthetic_checkpoint(directory / "model",
                                        {.family = formats::find_family("deepseek_v32"),
                                         .size = formats::SynthSize::kTiny,
                                         .fp8 = false});
    return directory / "model";
  }();
  return path;
}

}  // namespace ingot::testing
