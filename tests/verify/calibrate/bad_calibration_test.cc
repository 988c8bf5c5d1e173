#include <gtest/gtest.h>

#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_checkpoint.h"
#include "tests/verify/calibrate/calibration.h"

// Calibrations that cannot be, and what they leave behind.

namespace ingot::verify {
namespace {

using ingot::testing::expect_error;
using ingot::testing::random_documents;
using ingot::testing::run_calibration;
using ingot::testing::TempDir;
using ingot::testing::tiny_v32;

class BadCalibration : public ::testing::Test {
 protected:
  void refuse(ErrorCode code, std::initializer_list<std::string> facts,
              const std::vector<Prompt>& read, const RunOptions& options = {}) {
    expect_error(code, facts, [&] {
      run_calibration(tiny_v32(), read, directory_ / "statistics.safetensors", options);
    });
    EXPECT_TRUE(std::filesystem::is_empty(directory_.path())) << "nothing is left behind";
  }
  TempDir directory_;
};

TEST_F(BadCalibration, NeedsTokens) {
  refuse(ErrorCode::kInvalidArgument, {"no document"}, {});
  refuse(ErrorCode::kInvalidArgument, {"document 2 of 2 is empty"}, random_documents({5, 0}));
  refuse(ErrorCode::kUnsupported, {"two tokens", "MTP", "more text"}, random_documents({1, 1}));
}

TEST_F(BadCalibration, SaysHowMuchMemoryWouldBeEnough) {
  refuse(ErrorCode::kLimit, {"--mem-limit", "would be enough"}, random_documents({10}),
         {.mem_limit = 1'000'000});
}

TEST_F(BadCalibration, StopsWhenAsked) {
  int left = 3;
  refuse(ErrorCode::kInterrupted, {"stopped"}, random_documents({5}),
         {.stop_requested = [&] { return --left < 0; }});
}

TEST_F(BadCalibration, ReplacesNoFile) {
  ingot::testing::write_bytes(directory_ / "statistics.safetensors", "mine");
  expect_error(ErrorCode::kExists, {"statistics.safetensors", "remove it"}, [&] {
    run_calibration(tiny_v32(), random_documents({5}), directory_ / "statistics.safetensors");
  });
  EXPECT_EQ(read_text_file(directory_ / "statistics.safetensors", 100), "mine");
}

}  // namespace
}  // namespace ingot::verify
