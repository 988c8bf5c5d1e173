#pragma once

#include <cmath>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "shard/join/source.h"
#include "tests/convert/conversion.h"
#include "tests/convert/output_tensors.h"
#include "verify/calibrate/calibrate.h"

namespace ingot::testing {

/// Documents of these lengths, of token ids below `vocab`.
inline std::vector<verify::Prompt> random_documents(const std::vector<std::size_t>& lengths,
                                                    std::uint32_t vocab = 2048,
                                                    std::uint32_t seed = 11) {
  std::mt19937 random(seed);
  std::vector<verify::Prompt> documents;
  for (const std::size_t length : lengths) {
    verify::Prompt& document = documents.emplace_back();
    for (std::size_t i = 0; i < length; ++i)
      document.ids.push_back(static_cast<std::int32_t>(random() % vocab));
  }
  return documents;
}

/// Calibrates a checkpoint directory.
inline verify::CalibrationReport run_calibration(const std::filesystem::path& model,
                                                 const std::vector<verify::Prompt>& documents,
                                                 const std::filesystem::path& out,
                                                 const verify::RunOptions& options = {}) {
  return verify::calibrate(shard::open_source(model), documents, out, options);
}

/// Every statistic of a file.
inline OutputTensors read_statistics(const std::filesystem::path& file) {
  OutputTensors tensors;
  add_file(file, tensors);
  return tensors;
}

/// The definition of the statistics, in double, over rows of equal length.
struct NaiveStatistics {
  double min = 0, max = 0;
  std::vector<double> mean_square;

  explicit NaiveStatistics(const std::vector<std::vector<float>>& rows) {
    mean_square.resize(rows.at(0).size());
    for (const auto& row : rows) {
      for (std::size_t c = 0; c < row.size(); ++c) {
        const double x = row[c];
        min = std::min(min, x);
        max = std::max(max, x);
        mean_square[c] += x * x / static_cast<double>(rows.size());
      }
    }
  }

  /// Within the differences of FP32 sums in another order.
  void expect_equal(const OutputTensors& statistics, const std::string& module) const {
    const auto number = [&](const char* suffix) {
      return double{statistics.at(module + suffix).as<float>().at(0)};
    };
    const double largest = std::max(max, -min);
    EXPECT_NEAR(number(".input_min"), min, 1e-5 * largest) << module;
    EXPECT_NEAR(number(".input_max"), max, 1e-5 * largest) << module;
    EXPECT_NEAR(number(".input_amax"), largest, 1e-5 * largest) << module;
    const auto squares = statistics.at(module + ".input_mean_square").as<float>();
    ASSERT_EQ(squares.size(), mean_square.size()) << module;
    for (std::size_t c = 0; c < squares.size(); ++c)
      EXPECT_NEAR(double{squares[c]}, mean_square[c], 1e-4 * mean_square[c]) << module << " " << c;
  }
};

}  // namespace ingot::testing
