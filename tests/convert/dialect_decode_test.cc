#include <bit>
#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/convert/conversion.h"
#include "tests/convert/plain_decode.h"
#include "tests/convert/program_decode.h"
#include "tests/convert/targets.h"
#include "tests/support/temp_dir.h"

// The output decoded by the formula of its dialect, as docs/formats.md has it, is what the program
// decodes, bit for bit, and close to what was there before.

namespace ingot::convert {
namespace {

using formats::Activations;
using formats::SchemeId;
using namespace ingot::testing;
using ingot::testing::Target;

// What a loader of the dialect makes of it.
std::vector<float> by_formula(const OutputTensors& output, const Target& target,
                              const std::string& module, const formats::Shape& shape) {
  const std::size_t n = shape[0], k = shape[1];
  const auto numbers = [&](const char* suffix) { return scale_values(output.at(module + suffix)); };
  switch (target.storage->scheme) {
    case SchemeId::kFp8Block:
    case SchemeId::kInt8Block: {
      const bool is_deepseek_mp = target.dialect->name == "deepseek";
      return scaled_values(code_values(output.at(module + ".weight")),
                           numbers(is_deepseek_mp ? ".weight_scale_inv" : ".weight_scale"), k, 128,
                           128);
    }
    case SchemeId::kFp8Tensor:
      return scaled_values(code_values(output.at(module + ".weight")), numbers(".weight_scale"), k,
                           n, k);
    case SchemeId::kInt8Channel:
      if (target.dialect->name == "modelslim" &&
          target.storage->activations == Activations::kStatic) {
        // y = (sum of x_q q_w + ...) x deq_scale, with x = x_q input_scale.
        std::vector<float> scales = numbers(".deq_scale");
        const float input_scale = numbers(".input_scale").front();
        for (float& scale : scales) scale /= input_scale;
        return scaled_values(code_values(output.at(module + ".weight")), scales, k, 1, k);
      }
      if (target.dialect->name == "modelslim") {
        std::vector<float> codes = code_values(output.at(module + ".weight"));
        const std::vector<float> offsets = numbers(".weight_offset");
        for (std::size_t i = 0; i < codes.size(); ++i) codes[i] -= offsets[i / k];
        return scaled_values(codes, numbers(".weight_scale"), k, 1, k);
      }
      [[fallthrough]];
    case SchemeId::kFp8Channel:
      return scaled_values(code_values(output.at(module + ".weight")), numbers(".weight_scale"), k,
                           1, k);
    case SchemeId::kNvfp4: {
      const bool is_modelopt = target.dialect->name == "modelopt";
      std::vector<float> scales = numbers(".weight_scale");
      const float global =
          numbers(is_modelopt ? ".weight_scale_2" : ".weight_global_scale").front();
      for (float& scale : scales) scale = is_modelopt ? scale * global : scale / global;
      return scaled_values(
          code_values(output.at(module + (is_modelopt ? ".weight" : ".weight_packed"))), scales, k,
          1, 16);
    }
    case SchemeId::kMxfp4:
      return scaled_values(code_values(output.at(module + ".weight_packed")),
                           numbers(".weight_scale"), k, 1, 32);
    case SchemeId::kMxfp8:
      return scaled_values(code_values(output.at(module + ".weight")), numbers(".weight_scale"), k,
                           1, 32);
    default:
      ADD_FAILURE() << "no formula for " << target.name();
      return {};
  }
}

std::uint32_t bits(float value) {
  return std::bit_cast<std::uint32_t>(value);
}

double relative_error(const std::vector<float>& was, const std::vector<float>& is) {
  double error = 0, reference = 0;
  for (std::size_t i = 0; i < was.size(); ++i) {
    error += std::pow(double{was[i]} - double{is[i]}, 2);
    reference += std::pow(double{was[i]}, 2);
  }
  return std::sqrt(error / reference);
}

class DialectDecode : public ::testing::TestWithParam<Target> {};

INSTANTIATE_TEST_SUITE_P(Dialects, DialectDecode, ::testing::ValuesIn(all_targets()),
                         [](const auto& row) { return test_name(row.param.name()); });

TEST_P(DialectDecode, FormulaOfTheDialectGivesDecodedValues) {
  const TempDir directory;
  Conversion conversion(synth_model(), directory / "out");
  GetParam().apply(conversion.recipe);
  if (conversion.recipe.choices.input_scale) conversion.recipe.choices.input_scale = 0.0123F;
  conversion.recipe.choices.quantize_attention = true;
  conversion.recipe.choices.nvfp4_search = quantize::Nvfp4Search::kAmax;
  conversion.run();
  const OutputTensors before = read_output(synth_model());
  const OutputTensors output = read_output(directory / "out");
  const formats::Checkpoint checkpoint = formats::Checkpoint::open(directory / "out");
  std::size_t n_compared = 0;
  for (const formats::LogicalTensor& tensor : checkpoint.tensors()) {
    if (tensor.encoding.scheme != GetParam().storage->scheme) continue;
    const std::vector<float> ours = decoded(checkpoint, tensor);
    const std::vector<float> theirs =
        by_formula(output, GetParam(), module_of(tensor.name), tensor.shape);
    ASSERT_EQ(ours.size(), theirs.size());
    std::size_t first = 0;
    // Either sign of zero is zero.
    while (first < ours.size() &&
           ((ours[first] == 0 && theirs[first] == 0) || bits(ours[first]) == bits(theirs[first])))
      ++first;
    EXPECT_EQ(first, ours.size()) << tensor.name << " differs in element " << first;
    EXPECT_LT(relative_error(released_values(before, tensor.name), theirs),
              formats::scheme_facts(tensor.encoding.scheme).code_bits == 4 ? 0.15 : 0.04)
        << tensor.name;
    ++n_compared;
  }
  EXPECT_GT(n_compared, 20U);
}

}  // namespace
}  // namespace ingot::convert
