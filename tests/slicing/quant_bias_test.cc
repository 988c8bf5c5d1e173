#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "convert/recipe/statistics.h"
#include "tests/check/editable_checkpoint.h"
#include "tests/slicing/expect_cut.h"

// Static W8A8: the dequantization of a layer adds quant_bias to a sum over ranks, once.

namespace ingot::testing {
namespace {

using Biases = std::vector<std::int32_t>;

constexpr Cut kCut = {.tp = 4, .ep = 2, .etp = 2};

// Ranges of inputs that are not symmetric: another one for each matrix.
std::shared_ptr<const convert::ActivationScales> input_ranges(const std::filesystem::path& to) {
  EditableCheckpoint ranges;
  for (const auto& [name, tensor] : read_output(synth_bf16_model())) {
    if (tensor.shape.size() != 2) continue;
    const auto salt = static_cast<float>(ranges.tensors.size());
    ranges.put_floats(module_of(name) + ".input_min", {1}, -1 - salt / 700);
    ranges.put_floats(module_of(name) + ".input_max", {1}, 2 + salt / 300);
  }
  std::filesystem::create_directory(to);
  ranges.write(to);
  return std::make_shared<convert::ActivationScales>(
      convert::ActivationScales::read(to / ranges.file_name));
}

bool is_routed(const std::string& name) {
  return name.find(".experts.") != name.npos;
}
bool is_row_parallel(const std::string& name) {
  return name.find("o_proj") != name.npos || name.find("down_proj") != name.npos;
}

// The weights of the whole and of each rank, made once per process.
struct Written {
  OutputTensors whole;
  std::vector<OutputTensors> ranks;
};

const Written& written() {
  static const Written tensors = [] {
    const TempDir directory;
    Conversion conversion(synth_bf16_model(), directory / "whole");
    conversion.recipe.to = formats::SchemeId::kInt8Channel;
    conversion.recipe.choices.dialect = "modelslim";
    conversion.recipe.choices.activations = formats::Activations::kStatic;
    conversion.recipe.choices.activation_scales = input_ranges(directory / "ranges");
    conversion.recipe.choices.quantize_attention = true;
    conversion.run();
    Written made{.whole = read_output(conversion.output), .ranks = {}};
    conversion.output = directory / "sliced";
    conversion.plan = kCut.options();
    conversion.run();
    for (std::uint32_t rank = 0; rank < 4; ++rank)
      made.ranks.push_back(read_output(rank_directory(conversion.output, rank, kCut)));
    return made;
  }();
  return tensors;
}

using ByRank = std::map<std::size_t, Biases>;

// Calls visit(name, the whole, by rank) for every quant_bias that is wanted; returns how many.
std::size_t for_each_bias(
    bool row_parallel,
    const std::function<void(const std::string&, const Biases&, const ByRank&)>& visit) {
  std::size_t n = 0;
  for (const auto& [name, tensor] : written().whole) {
    if (!name.ends_with(".quant_bias") || is_row_parallel(name) != row_parallel) continue;
    ByRank by_rank;
    for (std::size_t rank = 0; rank < 4; ++rank) {
      const auto found = written().ranks[rank].find(name);
      if (found != written().ranks[rank].end()) by_rank[rank] = found->second.as<std::int32_t>();
    }
    EXPECT_EQ(by_rank.size(), is_routed(name) ? 2U : 4U) << name;
    visit(name, tensor.as<std::int32_t>(), by_rank);
    ++n;
  }
  return n;
}

TEST(QuantBias, IsOnFirstSliceOnly) {
  const auto n =
      for_each_bias(true, [](const std::string& name, const Biases& whole, const ByRank& by_rank) {
        EXPECT_THAT(whole, ::testing::Contains(::testing::Ne(0))) << name;
        Biases sum(whole.size());
        for (const auto& [rank, part] : by_rank) {
          ASSERT_EQ(part.size(), whole.size()) << name;
          for (std::size_t i = 0; i < part.size(); ++i) sum[i] += part[i];
          // Each expert is cut in two, everything else in four.
          const bool is_first = is_routed(name) ? rank % 2 == 0 : rank == 0;
          EXPECT_EQ(part, is_first ? whole : Biases(whole.size())) << name << " of rank " << rank;
        }
        EXPECT_EQ(sum, whole) << name;
      });
  // Attention, and one dense or shared and four routed experts, of the layers that are quantized.
  EXPECT_GE(n, 2U + 6);
}

TEST(QuantBias, IsCutWithColumnParallelRows) {
  const auto n =
      for_each_bias(false, [](const std::string& name, const Biases& whole, const ByRank& by_rank) {
        EXPECT_THAT(whole, ::testing::Contains(::testing::Ne(0))) << name;
        Biases joined;
        for (const auto& [rank, part] : by_rank)
          joined.insert(joined.end(), part.begin(), part.end());
        const bool is_replicated =
            name.find("_a_proj") != name.npos || name.find("indexer") != name.npos;
        if (!is_replicated) {
          EXPECT_EQ(joined, whole) << name;
          return;
        }
        for (const auto& [rank, part] : by_rank) EXPECT_EQ(part, whole) << name;
      });
  EXPECT_GE(n, 2U * (2 + 6));
}

}  // namespace
}  // namespace ingot::testing
