#include <cmath>

#include "formats/changes/value_change.h"
#include "formats/json/json.h"
#include "tests/convert/conversion.h"
#include "tests/convert/output_tensors.h"
#include "tests/convert/program_decode.h"
#include "tests/support/bytes.h"
#include "tests/support/test.h"
#include "tests/support/tiny_checkpoint.h"

// Changes of decoded values on their way through a conversion: against values that are computed
// here, matrix by matrix, from what the source and the change decode to.

namespace ingot::convert {
namespace {

using formats::Checkpoint;
using formats::LogicalTensor;
using formats::SchemeId;
using formats::StoredMatrix;
using formats::ValueChange;
using namespace ingot::testing;

constexpr std::uint64_t kRank = 3;

std::vector<float> numbers(std::size_t n, float step, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<float> values(n);
  for (float& value : values) value = step * (static_cast<float>(random() % 129) - 64.0F);
  return values;
}

/// The side of a matrix whose lengths a change gives.
enum class Scaled { kNothing, kRows, kCols };

/// Low-rank pairs for all matrices whose names end so, all with the same numbers, and lengths on
/// request.
class PairEditor final : public formats::ValueEditor {
 public:
  PairEditor(const std::filesystem::path& directory, std::vector<std::string> endings, float step,
             Scaled scaled = Scaled::kNothing)
      : endings_(std::move(endings)), scaled_(scaled) {
    left = numbers(kMost * kRank, 1.0F / 64, 1);
    right = numbers(kMost * kRank, step, 2);
    lengths = numbers(kMost, 1.0F / 128, 3);
    const TinyCheckpoint file{.files = {{"model.safetensors",
                                         {{"left", "F32", {kMost, kRank}, bytes_of(left)},
                                          {"right", "F32", {kRank, kMost}, bytes_of(right)},
                                          {"lengths", "F32", {kMost}, bytes_of(lengths)}}}}};
    file.write(directory);
    numbers_ = std::make_shared<const formats::PlainNumbers>(
        std::make_shared<const Checkpoint>(Checkpoint::open(directory, {.family = "generic"})));
  }

  [[nodiscard]] std::string_view kind() const override { return "pairs"; }
  [[nodiscard]] formats::Json record() const override { return "pairs of the test"; }
  [[nodiscard]] std::vector<std::pair<std::filesystem::path, FileStamp>> files() const override {
    return {};
  }
  [[nodiscard]] bool changes(const LogicalTensor& tensor) const {
    return std::ranges::any_of(endings_,
                               [&](const auto& end) { return tensor.name.ends_with(end); });
  }
  void add_changes(const Checkpoint& model, formats::ValueChanges& changes, ErrorList& /*faults*/,
                   std::vector<std::string>& /*remarks*/) const override {
    for (std::uint32_t i = 0; i < model.tensors().size(); ++i) {
      const LogicalTensor& tensor = model.tensors()[i];
      if (!this->changes(tensor)) continue;
      ValueChange change{
          .tensor = i, .rows = {.n = tensor.shape[0]}, .cols = {.n = tensor.shape[1]}};
      change.low_rank = {
          .left = at("left", kRank), .right = at("right", kMost), .rank = kRank, .factor = kFactor};
      if (scaled_ != Scaled::kNothing) change.lengths = at("lengths", 1);
      change.lengths_are_of_cols = scaled_ == Scaled::kCols;
      changes[i].push_back(std::move(change));
    }
  }

  /// The values that a tensor should have, in FP32.
  [[nodiscard]] std::vector<float> wanted(const LogicalTensor& tensor,
                                          const std::vector<float>& before) const {
    const std::size_t rows = tensor.shape[0], cols = tensor.shape[1];
    std::vector<double> wide(before.size()), squares(rows + cols);
    // The lengths are those of rows, or of columns.
    const auto side = [&](std::size_t row, std::size_t col) {
      return scaled_ == Scaled::kCols ? col : row;
    };
    for (std::size_t row = 0; row < rows; ++row) {
      for (std::size_t col = 0; col < cols; ++col) {
        double sum = 0;
        for (std::size_t k = 0; k < kRank; ++k)
          sum += static_cast<double>(left[row * kRank + k]) * right[k * kMost + col];
        const double value = before[row * cols + col] + kFactor * sum;
        wide[row * cols + col] = value;
        squares[side(row, col)] += value * value;
      }
    }
    std::vector<float> values(before.size());
    for (std::size_t row = 0; row < rows; ++row) {
      for (std::size_t col = 0; col < cols; ++col) {
        const std::size_t at = side(row, col);
        const bool is_scaled = scaled_ != Scaled::kNothing && squares[at] > 0;
        const double factor = is_scaled ? lengths[at] / std::sqrt(squares[at]) : 1;
        values[row * cols + col] = static_cast<float>(wide[row * cols + col] * factor);
      }
    }
    return values;
  }

  std::vector<float> left, right, lengths;

 private:
  static constexpr std::uint64_t kMost = 8192;
  static constexpr double kFactor = 0.7;

  [[nodiscard]] StoredMatrix at(std::string_view name, std::uint64_t row_step) const {
    const auto stored = numbers_->source().stored();
    const auto found = std::ranges::find(stored, name, &formats::StoredTensor::name);
    return {.of = numbers_,
            .stored = static_cast<std::uint32_t>(found - stored.begin()),
            .row_step = row_step};
  }

  std::vector<std::string> endings_;
  Scaled scaled_;
  std::shared_ptr<const formats::PlainNumbers> numbers_;
};

const LogicalTensor& named(const Checkpoint& checkpoint, const std::string& name) {
  return *std::ranges::find(checkpoint.tensors(), name, &LogicalTensor::name);
}

class ValueChangesOfAConversion : public InTempDir {
 protected:
  std::shared_ptr<PairEditor> editor(std::vector<std::string> endings, float step = 1.0F / 1024,
                                     Scaled scaled = Scaled::kNothing) {
    const auto folder = dir_ / (scaled == Scaled::kCols ? "pairs-of-columns" : "pairs");
    return std::make_shared<PairEditor>(folder, std::move(endings), step, scaled);
  }
  static Conversion changed(const std::filesystem::path& from, const std::filesystem::path& to,
                            const std::shared_ptr<PairEditor>& editor) {
    Conversion conversion(from, to);
    conversion.recipe.to.reset();
    conversion.recipe.choices.editors = {editor};
    return conversion;
  }
  /// Two FP32 models: the source as it decodes, with what the editor should make of it.
  void expect_wanted(const PairEditor& editor, const std::filesystem::path& from) {
    Conversion plain = changed(from, dir_ / "f32", nullptr);
    plain.recipe.choices.editors = {std::shared_ptr<const PairEditor>(&editor, [](auto*) {})};
    plain.recipe.rules = {make_rule("*", "f32", RuleOrigin::kRule)};
    plain.run();
    const auto before = Checkpoint::open(from), after = Checkpoint::open(dir_ / "f32");
    std::size_t n_changed = 0;
    for (const LogicalTensor& tensor : before.tensors()) {
      if (!editor.changes(tensor)) continue;
      ++n_changed;
      EXPECT_EQ(decoded(after, named(after, tensor.name)),
                editor.wanted(tensor, decoded(before, tensor)))
          << tensor.name;
    }
    EXPECT_GT(n_changed, 2U);
  }
};

TEST_F(ValueChangesOfAConversion, RoundEachValueOnceToFp32) {
  expect_wanted(*editor({"up_proj.weight", "o_proj.weight"}), small_v32());
}

TEST_F(ValueChangesOfAConversion, ScaleRowsToTheirLengths) {
  expect_wanted(*editor({"up_proj.weight", "o_proj.weight"}, 1.0F / 1024, Scaled::kRows),
                small_v32());
}

TEST_F(ValueChangesOfAConversion, ScaleColumnsToTheirLengths) {
  expect_wanted(*editor({"up_proj.weight", "o_proj.weight"}, 1.0F / 1024, Scaled::kCols),
                small_v32());
}

TEST_F(ValueChangesOfAConversion, LeaveOtherTensorsAsTheyAre) {
  const auto pairs = editor({"gate_proj.weight"});
  changed(small_v32(), dir_ / "out", pairs).run();
  const OutputTensors before = read_output(small_v32()), after = read_output(dir_ / "out");
  ASSERT_EQ(before.size(), after.size());
  std::size_t n_changed = 0;
  for (const auto& [name, tensor] : before) {
    const bool is_changed = name.find("gate_proj") != std::string::npos;
    if (!(after.at(name) == tensor)) ++n_changed;
    if (!is_changed) {
      EXPECT_EQ(after.at(name), tensor) << name;
    }
    EXPECT_EQ(after.at(name).dtype, tensor.dtype) << name;
  }
  EXPECT_GT(n_changed, 5U);
  EXPECT_EQ(read_text_file(dir_ / "out/config.json", 1 << 20),
            read_text_file(small_v32() / "config.json", 1 << 20));
}

TEST_F(ValueChangesOfAConversion, DoNotDependOnThreadsMemoryOrParts) {
  const auto pairs = editor({"proj.weight"}, 1.0F / 1024, Scaled::kRows);
  const auto columns = editor({"proj.weight"}, 1.0F / 1024, Scaled::kCols);
  const auto run = [&](const std::string& name, const auto& prepare, const auto& by) {
    Conversion conversion = changed(small_v32(), dir_ / name, by);
    conversion.recipe.to = SchemeId::kNvfp4;
    prepare(conversion);
    conversion.run();
    return tensor_bytes(dir_ / name);
  };
  const auto on_one = [](Conversion& of) { of.execute.threads = 1; };
  const auto on_four = [](Conversion& of) { of.execute.threads = 4; };
  const auto with_little = [](Conversion& of) { of.execute.mem_limit = 64'000'000; };
  const auto one = run("one", on_one, pairs);
  EXPECT_EQ(one, run("four", on_four, pairs));
  EXPECT_EQ(one, run("little", with_little, pairs));
  const auto of_columns = run("columns", on_one, columns);
  EXPECT_NE(one, of_columns);
  EXPECT_EQ(of_columns, run("columns-four", on_four, columns));
  EXPECT_EQ(of_columns, run("columns-little", with_little, columns));
  Conversion stopped = changed(small_v32(), dir_ / "stopped", pairs);
  stopped.recipe.to = SchemeId::kNvfp4;
  ASSERT_TRUE(run_stopped(stopped, 40));
  stopped.execute.resume = true;
  stopped.run();
  EXPECT_EQ(one, tensor_bytes(dir_ / "stopped"));
}

// An NVFP4 source of which gates change, and their ups do not.
TEST_F(ValueChangesOfAConversion, KeepSharedGlobalsUnderWhichTheyFit) {
  Conversion source(small_v32(), dir_ / "nvfp4");
  source.recipe.to = SchemeId::kNvfp4;
  source.run();
  const OutputTensors before = read_output(dir_ / "nvfp4");
  for (const bool fits : {true, false}) {
    const auto output = dir_ / (fits ? "fits" : "exceeds");
    const auto pairs = editor({"gate_proj.weight"}, fits ? 1.0F / (1 << 20) : 64.0F);
    changed(dir_ / "nvfp4", output, pairs).run();
    const OutputTensors after = read_output(output);
    std::size_t n_ups = 0;
    for (const auto& [name, tensor] : before) {
      if (name.find("up_proj.weight_") == std::string::npos) continue;
      ++n_ups;
      if (fits) {
        EXPECT_EQ(after.at(name), tensor) << name;
      } else if (name.ends_with("_scale")) {
        EXPECT_NE(after.at(name).bytes, tensor.bytes) << name;
      }
      if (!name.ends_with("global_scale")) continue;
      std::string gate = name;
      gate.replace(gate.find("up_proj"), 7, "gate_proj");
      EXPECT_EQ(after.at(name), after.at(gate)) << name;
      EXPECT_EQ(after.at(name) == tensor, fits) << name;
    }
    EXPECT_GT(n_ups, 9U);
  }
}

TEST_F(ValueChangesOfAConversion, AreHeldWiderOnRequest) {
  Conversion source(small_v32(), dir_ / "nvfp4");
  source.recipe.to = SchemeId::kNvfp4;
  source.run();
  const auto pairs = editor({"gate_proj.weight"});
  Conversion conversion = changed(dir_ / "nvfp4", dir_ / "out", pairs);
  conversion.recipe.choices.keep_touched = SchemeId::kBf16;
  conversion.run();
  const auto after = Checkpoint::open(dir_ / "out");
  const auto before = Checkpoint::open(dir_ / "nvfp4");
  for (const LogicalTensor& tensor : before.tensors()) {
    const bool is_fused = tensor.name.find(".experts.") != std::string::npos ||
                          tensor.name.ends_with("gate_proj.weight") ||
                          tensor.name.ends_with("up_proj.weight");
    EXPECT_EQ(named(after, tensor.name).encoding.scheme,
              is_fused && is_quantized(tensor) ? SchemeId::kBf16 : tensor.encoding.scheme)
        << tensor.name;
  }
}

TEST_F(ValueChangesOfAConversion, RefuseNumbersThatAreNan) {
  const auto pairs = editor({"gate_proj.weight"}, std::numeric_limits<float>::quiet_NaN());
  expect_error(ErrorCode::kNonFinite, "right...NaN or infinite",
               [&] { changed(small_v32(), dir_ / "out", pairs).run(); });
}

}  // namespace
}  // namespace ingot::convert
