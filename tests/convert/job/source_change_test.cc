#include "convert/job/job_identity.h"
#include "convert/job/journal.h"
#include "convert/output/output_directory.h"
#include "convert/recipe/source_stamps.h"
#include "convert/recipe/statistics.h"
#include "tests/convert/conversion.h"
#include "tests/support/test.h"
#include "tests/support/tiny_checkpoint.h"

namespace ingot::convert {
namespace {

using namespace ingot::testing;
using enum ErrorCode;

constexpr const char* kFile = "model-00001-of-00002.safetensors";

// Changes a byte of a weight that the fingerprint does not sample.
void change_unsampled_byte(const std::filesystem::path& directory) {
  const formats::Checkpoint source = formats::Checkpoint::open(directory);
  const std::uint64_t last =
      std::filesystem::file_size(directory / kFile) - kFingerprintSampleBytes;
  for (const formats::StoredTensor& stored : source.stored()) {
    if (source.files()[stored.file].name != kFile || stored.dtype != formats::DType::kF8E4M3)
      continue;
    const std::uint64_t at = stored.offset + stored.n_bytes / 2;
    const std::uint64_t sample = at * (kFingerprintSamples - 1) / last;
    const std::uint64_t sampled = last * sample / (kFingerprintSamples - 1);
    if (at < sampled + 2 * kFingerprintSampleBytes) continue;
    const Fd file = Fd::open_for_writing(directory / kFile, 02);
    std::array<std::byte, 1> code{};
    file.read_exact(code, at);
    // A finite code, another than before.
    code[0] = code[0] == std::byte{0x31} ? std::byte{0x32} : std::byte{0x31};
    file.write_exact(code, at);
    return;
  }
  FAIL() << "every weight is sampled";
}

using SourceChange = InTempDir;

TEST_F(SourceChange, WhileItIsReadPublishesNothing) {
  Conversion conversion(copy_small(dir_ / "in"), dir_ / "out");
  conversion.execute.inspect = [&](const std::filesystem::path&) {
    change_unsampled_byte(dir_ / "in");
    return Inspection{};
  };
  expect_error(kMismatch, {kFile, "has changed while this run read it"}, [&] { conversion.run(); });
  expect_unpublished(dir_ / "out");

  // The tensors made of the old bytes are made again.
  conversion.execute.inspect = nullptr;
  conversion.execute.resume = true;
  EXPECT_GT(conversion.run().tensors_redone, 0U);
  Conversion(dir_ / "in", dir_ / "whole").run();
  EXPECT_TRUE(tree(dir_ / "out") == tree(dir_ / "whole"));
}

TEST_F(SourceChange, BetweenRunsIsReadAgain) {
  Conversion conversion(copy_small(dir_ / "in"), dir_ / "out");
  ASSERT_TRUE(run_stopped(conversion, 100));
  change_unsampled_byte(dir_ / "in");
  conversion.execute.resume = true;
  conversion.run();
  Conversion(dir_ / "in", dir_ / "whole").run();
  EXPECT_TRUE(tree(dir_ / "out") == tree(dir_ / "whole"));
}

TEST_F(SourceChange, WithTheTimePutBackIsFound) {
  Conversion conversion(copy_small(dir_ / "in"), dir_ / "out");
  const auto change = [&] {
    const auto time = std::filesystem::last_write_time(dir_ / "in" / kFile);
    change_unsampled_byte(dir_ / "in");
    std::filesystem::last_write_time(dir_ / "in" / kFile, time);
  };
  ASSERT_TRUE(run_stopped(conversion, 100));
  change();
  conversion.execute.resume = true;
  conversion.run();
  Conversion whole(dir_ / "in", dir_ / "whole");
  whole.execute.inspect = [&](const std::filesystem::path&) {
    // A further name for the file is no change.
    std::filesystem::create_hard_link(dir_ / "in" / kFile, dir_ / "link");
    return Inspection{};
  };
  whole.run();
  EXPECT_TRUE(tree(dir_ / "out") == tree(dir_ / "whole"));
  Conversion other(dir_ / "in", dir_ / "other");
  other.execute.inspect = [&](const std::filesystem::path&) {
    change();
    return Inspection{};
  };
  expect_error(kMismatch, {kFile, "written to"}, [&] { other.run(); });
}

TEST_F(SourceChange, CopyOfTheSameBytesIsAccepted) {
  Conversion conversion(copy_small(dir_ / "in"), dir_ / "out");
  ASSERT_TRUE(run_stopped(conversion, 100));
  std::filesystem::rename(dir_ / "in", dir_ / "before");
  copy_small(dir_ / "in");
  conversion.execute.resume = true;
  const ExecuteReport report = conversion.run();
  EXPECT_GT(report.tensors_resumed, 0U);
  EXPECT_EQ(report.tensors_redone, 0U);
}

TEST_F(SourceChange, NamesTheChangedFile) {
  for (const char* name : {"config.json", "tokenizer.json", "model.safetensors.index.json"}) {
    const TempDir directory;
    Conversion conversion(copy_small(directory / "in"), directory / "out");
    conversion.execute.inspect = [&](const std::filesystem::path&) {
      // The same bytes in another file.
      std::filesystem::copy_file(directory / "in" / name, directory / "copy");
      std::filesystem::rename(directory / "copy", directory / "in" / name);
      return Inspection{};
    };
    expect_error(kMismatch, {name, "another file has taken its place"}, [&] { conversion.run(); });
  }
}

TEST_F(SourceChange, IsFoundBeforeTheExecution) {
  Conversion conversion(copy_small(dir_ / "in"), dir_ / "out");
  conversion.execute.stamps.add(dir_ / "in");
  change_unsampled_byte(dir_ / "in");
  expect_error(kMismatch, {kFile, "written to"}, [&] { conversion.run(); });
}

TEST_F(SourceChange, IgnoresFilesThatAreNotRead) {
  copy_small(dir_ / "in");
  std::filesystem::create_directory(dir_ / "in" / ".cache");
  write_text_file(dir_ / "in" / ".cache" / "lock", "1");
  Conversion conversion(dir_ / "in", dir_ / "out");
  conversion.execute.inspect = [&](const std::filesystem::path&) {
    write_text_file(dir_ / "in" / ".cache" / "lock", "two");
    write_text_file(dir_ / "in" / "new.txt", "made later");
    return Inspection{};
  };
  EXPECT_NO_THROW(conversion.run());
}

// Activation statistics of every module of the example.
void write_statistics(const std::filesystem::path& path, float value) {
  const formats::Checkpoint source = formats::Checkpoint::open(small_v32());
  std::vector<TinyTensor> tensors;
  for (const formats::LogicalTensor& tensor : source.tensors()) {
    constexpr std::string_view kWeight = ".weight";
    if (!tensor.name.ends_with(kWeight) || tensor.shape.size() != 2) continue;
    const std::string module = tensor.name.substr(0, tensor.name.size() - kWeight.size());
    const auto add = [&](const char* what, std::vector<std::uint64_t> shape, std::uint64_t n) {
      const std::vector<float> values(n, value);
      std::string bytes(n * sizeof(float), '\0');
      std::memcpy(bytes.data(), values.data(), bytes.size());
      tensors.push_back({module + what, "F32", std::move(shape), bytes});
    };
    add(".input_amax", {}, 1);
    add(".input_mean_square", {tensor.shape[1]}, tensor.shape[1]);
  }
  write_bytes(path, safetensors_bytes(tensors));
}

// A conversion that reads such a file for --importance, or for --activation-scales.
struct StatisticsCase {
  const char* option;
  void (*read)(const std::filesystem::path& path, Choices& choices);
};
constexpr StatisticsCase kStatisticsCases[] = {
    {"--importance",
     [](const std::filesystem::path& path, Choices& choices) {
       choices.importance = std::make_shared<const Importance>(Importance::read(path));
     }},
    {"--activation-scales",
     [](const std::filesystem::path& path, Choices& choices) {
       choices.dialect = "modelopt";
       choices.activations = formats::Activations::kStatic;
       choices.activation_scales =
           std::make_shared<const ActivationScales>(ActivationScales::read(path));
     }},
};

TEST(OptionFileChange, WhileItIsReadPublishesNothing) {
  for (const StatisticsCase& one : kStatisticsCases) {
    SCOPED_TRACE(one.option);
    const TempDir directory;
    const auto path = directory / "statistics.safetensors";
    write_statistics(path, 1);
    Conversion conversion(small_v32(), directory / "out");
    conversion.recipe.to = formats::SchemeId::kNvfp4;
    one.read(path, conversion.recipe.choices);
    conversion.execute.inspect = [&](const std::filesystem::path&) {
      write_statistics(path, 2);
      return Inspection{};
    };
    expect_error(kMismatch,
                 {path.string(), "has changed while this run read it", "restore the old file"},
                 [&] { conversion.run(); });
    expect_unpublished(directory / "out");
  }
}

TEST(OptionFileChange, BetweenRunsIsRefusedByName) {
  for (const StatisticsCase& one : kStatisticsCases) {
    SCOPED_TRACE(one.option);
    const TempDir directory;
    const auto path = directory / "statistics.safetensors";
    write_statistics(path, 1);
    Conversion conversion(small_v32(), directory / "out");
    conversion.recipe.to = formats::SchemeId::kNvfp4;
    one.read(path, conversion.recipe.choices);
    conversion.execute.resume = true;
    const auto journal = OutputPaths(conversion.output).journal;
    for (int polls = 100; !Journal::read(journal) || Journal::read(journal)->items.empty();
         polls += 5)
      ASSERT_TRUE(run_stopped(conversion, polls));

    write_statistics(path, 2);
    one.read(path, conversion.recipe.choices);
    expect_error(kMismatch, {std::string(one.option) + " (its files have changed)", "--force"},
                 [&] { conversion.run(); });

    // Tensors made meanwhile may be of other bytes than those that are back.
    write_statistics(path, 1);
    one.read(path, conversion.recipe.choices);
    const ExecuteReport report = conversion.run();
    EXPECT_EQ(report.tensors_resumed, 0U);
    EXPECT_GT(report.tensors_redone, 0U);
    Conversion whole(small_v32(), directory / "whole");
    whole.recipe = conversion.recipe;
    whole.run();
    EXPECT_TRUE(tree(directory / "out") == tree(directory / "whole"));
  }
}

TEST(ConsumeSource, KeepsAChangedSourceFile) {
  const TempDir directory;
  Conversion conversion(copy_small(directory / "in"), directory / "out");
  conversion.execute.consume_source = true;
  conversion.execute.stamps.add(directory / "in");
  change_unsampled_byte(directory / "in");
  expect_error(kMismatch, {kFile}, [&] { conversion.run(); });
  EXPECT_TRUE(std::filesystem::exists(directory / "in" / kFile));
}

}  // namespace
}  // namespace ingot::convert
