#include "synth/synth.h"

#include <sys/stat.h>

#include "check/check.h"
#include "formats/checkpoint/checkpoint.h"
#include "formats/family/families.h"
#include "synth/synth_values.h"
#include "tests/check/editable_checkpoint.h"
#include "tests/check/findings.h"
#include "tests/support/test.h"

namespace ingot::formats {

using namespace check;

namespace {

using namespace ingot::testing;
using ::testing::IsEmpty;

SynthOptions tiny(std::string_view family = "deepseek_v32") {
  SynthOptions options;
  options.family = find_family(family);
  options.size = SynthSize::kTiny;
  return options;
}

EditableCheckpoint made(const SynthOptions& options) {
  const TempDir dir;
  write_synthetic_checkpoint(dir.path(), options);
  return EditableCheckpoint::load(dir.path());
}

// Every file of a directory, by name.
std::map<std::string, std::string> contents(const std::filesystem::path& directory) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    std::stringstream text;
    text << std::ifstream(entry.path(), std::ios::binary).rdbuf();
    files[entry.path().filename().string()] = text.str();
  }
  return files;
}

std::vector<float> scales_of(const EditableCheckpoint& checkpoint) {
  std::vector<float> scales;
  for (const auto& [name, tensor] : checkpoint.tensors) {
    if (!name.ends_with("_scale_inv")) continue;
    const std::size_t before = scales.size();
    scales.resize(before + tensor.bytes.size() / 4);
    std::memcpy(scales.data() + before, tensor.bytes.data(), tensor.bytes.size());
  }
  return scales;
}

class EveryFamily : public ::testing::TestWithParam<const Family*> {};

std::vector<const Family*> families_with_grammar() {
  std::vector<const Family*> known;
  for (const Family* family : families()) {
    if (!family->reference_config.empty()) known.push_back(family);
  }
  return known;
}

INSTANTIATE_TEST_SUITE_P(Synth, EveryFamily, ::testing::ValuesIn(families_with_grammar()),
                         [](const auto& family) { return std::string(family.param->name); });

TEST_P(EveryFamily, GivesACheckpointWithoutFindings) {
  for (const bool fp8 : {true, false}) {
    for (const std::uint64_t shards : {std::uint64_t{1}, std::uint64_t{3}}) {
      SCOPED_TRACE(std::string(fp8 ? "fp8" : "bf16") + " in " + std::to_string(shards));
      const TempDir dir;
      SynthOptions options = tiny(GetParam()->name);
      options.fp8 = fp8;
      options.shards = shards;
      write_synthetic_checkpoint(dir.path(), options);
      const CheckResult result = check_checkpoint(dir.path(), {.deep = true, .threads = 2});
      EXPECT_THAT(but_tokenizer(result.findings), IsEmpty());
      EXPECT_EQ(result.family, GetParam()->name);
      EXPECT_EQ(result.n_files, shards);
      EXPECT_GT(result.n_tensors, 20U);
    }
  }
}

TEST_P(EveryFamily, HoldsPlantedEdgeCasesWithoutFindings) {
  const TempDir dir;
  SynthOptions options = tiny(GetParam()->name);
  options.shards = 2;
  options.zero_block = options.subnormal_scales = options.split_scale = true;
  write_synthetic_checkpoint(dir.path(), options);
  EXPECT_THAT(but_tokenizer(check_checkpoint(dir.path(), {.deep = true}).findings), IsEmpty());
}

TEST_P(EveryFamily, StaysValidWithOtherCounts) {
  const TempDir dir;
  SynthOptions options = tiny(GetParam()->name);
  options.layers = 3;
  options.experts = 6;
  options.vocab = 200;
  options.heads = 6;
  options.hidden = 300;
  options.ue8m0 = true;
  write_synthetic_checkpoint(dir.path(), options);
  EXPECT_THAT(but_tokenizer(check_checkpoint(dir.path(), {}).findings), IsEmpty());
  const Checkpoint checkpoint = Checkpoint::open(dir.path());
  EXPECT_EQ(checkpoint.config().num_hidden_layers, 3U);
  EXPECT_EQ(checkpoint.config().n_routed_experts, 6U);
  EXPECT_LE(checkpoint.config().num_experts_per_tok, 6U);
}

TEST_P(EveryFamily, HasARaggedWidthWhenTiny) {
  const TempDir dir;
  write_synthetic_checkpoint(dir.path(), tiny(GetParam()->name));
  const Checkpoint checkpoint = Checkpoint::open(dir.path());
  EXPECT_TRUE(std::any_of(checkpoint.tensors().begin(), checkpoint.tensors().end(),
                          [](const LogicalTensor& tensor) {
                            return tensor.encoding.scheme == SchemeId::kFp8Block &&
                                   (tensor.shape[0] % 128 != 0 || tensor.shape[1] % 128 != 0);
                          }));
}

TEST(Synth, DependsOnSeedNotOnThreads) {
  const TempDir one, three, other;
  SynthOptions options = tiny();
  options.shards = 2;
  options.threads = 1;
  write_synthetic_checkpoint(one.path(), options);
  options.threads = 3;
  write_synthetic_checkpoint(three.path(), options);
  options.seed = 1;
  write_synthetic_checkpoint(other.path(), options);
  EXPECT_EQ(contents(one.path()), contents(three.path()));
  const auto a = contents(one.path()), b = contents(other.path());
  EXPECT_NE(a.at("model-00001-of-00002.safetensors"), b.at("model-00001-of-00002.safetensors"));
  EXPECT_EQ(a.at("config.json"), b.at("config.json"));
}

TEST(Synth, TensorsDoNotDependOnShards) {
  SynthOptions options = tiny("deepseek_v3");
  const EditableCheckpoint a = made(options);
  options.shards = 4;
  const EditableCheckpoint b = made(options);
  ASSERT_EQ(a.tensors.size(), b.tensors.size());
  for (const auto& [name, tensor] : a.tensors)
    EXPECT_EQ(tensor.bytes, b.tensors.at(name).bytes) << name;
}

TEST(Synth, BalancesFilesByBytes) {
  const TempDir dir;
  SynthOptions options = tiny("deepseek_v3");
  options.shards = 4;
  write_synthetic_checkpoint(dir.path(), options);
  std::uint64_t smallest = ~std::uint64_t{0}, largest = 0;
  for (const auto& [name, text] : contents(dir.path())) {
    if (!name.ends_with(".safetensors")) continue;
    smallest = std::min<std::uint64_t>(smallest, text.size());
    largest = std::max<std::uint64_t>(largest, text.size());
  }
  EXPECT_LT(largest, smallest + smallest / 2);
}

TEST(Synth, FillsEveryFileEvenWithOneTensorEach) {
  const TempDir probe, dir;
  SynthOptions options = tiny("deepseek_v3");
  write_synthetic_checkpoint(probe.path(), options);
  options.shards = Checkpoint::open(probe.path()).tensors().size();
  write_synthetic_checkpoint(dir.path(), options);
  EXPECT_THAT(but_tokenizer(check_checkpoint(dir.path(), {}).findings), IsEmpty());
  const TempDir more;
  ++options.shards;
  expect_error(ErrorCode::kInvalidArgument, {"--shards"},
               [&] { write_synthetic_checkpoint(more.path(), options); });
}

TEST(Synth, AmaxScalesAreArbitraryAndSmall) {
  const std::vector<float> scales = scales_of(made(tiny()));
  ASSERT_FALSE(scales.empty());
  int exponent = 0;
  EXPECT_TRUE(std::any_of(scales.begin(), scales.end(),
                          [&](float s) { return std::frexp(s, &exponent) != 0.5F; }));
  EXPECT_GE(*std::min_element(scales.begin(), scales.end()), 0x1p-13F);
  EXPECT_LT(*std::max_element(scales.begin(), scales.end()), 0x1p-11F);
}

TEST(Synth, Ue8m0ScalesArePowersOfTwo) {
  SynthOptions options = tiny();
  options.ue8m0 = true;
  const EditableCheckpoint model = made(options);
  EXPECT_EQ(model.config.at("quantization_config").at("scale_fmt"), "ue8m0");
  int exponent = 0;
  for (const float scale : scales_of(model)) EXPECT_EQ(std::frexp(scale, &exponent), 0.5F);
}

TEST(Synth, PlantsSubnormalScalesInOneTensor) {
  for (const bool ue8m0 : {false, true}) {
    SynthOptions options = tiny();
    options.subnormal_scales = true;
    options.ue8m0 = ue8m0;
    const std::vector<float> scales = scales_of(made(options));
    const auto n = std::count_if(scales.begin(), scales.end(),
                                 [](float s) { return std::fpclassify(s) == FP_SUBNORMAL; });
    EXPECT_GE(n, 1);
    EXPECT_LE(n, 8);
    EXPECT_EQ(std::count(scales.begin(), scales.end(), 0.0F), 0);
  }
}

TEST(Synth, PlantsAZeroBlock) {
  SynthOptions options = tiny();
  const EditableCheckpoint plain = made(options);
  options.zero_block = true;
  const EditableCheckpoint zero = made(options);
  std::size_t n_changed = 0;
  for (const auto& [name, tensor] : zero.tensors) {
    const auto& before = plain.tensors.at(name);
    if (tensor.bytes == before.bytes) continue;
    ++n_changed;
    ASSERT_EQ(tensor.dtype, DType::kF8E4M3) << name;
    const std::size_t cols = tensor.shape[1];
    for (std::size_t i = 0; i < tensor.bytes.size(); ++i) {
      const bool in_block = i / cols < 128 && i % cols < 128;
      ASSERT_EQ(tensor.bytes[i], in_block ? std::byte{0} : before.bytes[i]) << name << " " << i;
    }
  }
  EXPECT_EQ(n_changed, 1U);
}

TEST(Synth, PlantsAScaleInAnotherFile) {
  const TempDir dir;
  SynthOptions options = tiny();
  options.shards = 2;
  options.split_scale = true;
  write_synthetic_checkpoint(dir.path(), options);
  const Checkpoint checkpoint = Checkpoint::open(dir.path());
  const auto n_split = std::count_if(
      checkpoint.tensors().begin(), checkpoint.tensors().end(), [&](const LogicalTensor& t) {
        return t.encoding.scheme == SchemeId::kFp8Block &&
               checkpoint.stored()[t.encoding.stored.weight()].file !=
                   checkpoint.stored()[t.encoding.stored[Part::kScale]].file;
      });
  EXPECT_EQ(n_split, 1);
}

void expect_refused(const SynthOptions& options, const std::string& fact) {
  const TempDir dir;
  expect_error(ErrorCode::kInvalidArgument, {fact},
               [&] { write_synthetic_checkpoint(dir.path(), options); });
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
}

TEST(Synth, RefusesEdgeCasesThatNothingCanHold) {
  SynthOptions options = tiny();
  options.split_scale = true;
  expect_refused(options, "--shards 2");
  options.shards = 2;
  options.fp8 = false;
  expect_refused(options, "FP8");
  options.split_scale = false;
  options.ue8m0 = true;
  expect_refused(options, "FP8");
}

TEST(Synth, RefusesGenericAndImpossibleNumbers) {
  expect_refused(tiny("generic"), "generic");
  using Edit = void (*)(SynthOptions&);
  for (const Edit edit : {
           Edit([](SynthOptions& o) { o.layers = 0; }),
           Edit([](SynthOptions& o) { o.experts = 0; }),
           Edit([](SynthOptions& o) { o.hidden = 0; }),
           Edit([](SynthOptions& o) { o.heads = 0; }),
           Edit([](SynthOptions& o) { o.shards = 0; }),
           Edit([](SynthOptions& o) { o.dense_layers = 99; }),
           Edit([](SynthOptions& o) { o.shards = std::uint64_t{1} << 40; }),
       }) {
    SynthOptions options = tiny("deepseek_v3");
    edit(options);
    expect_refused(options, "");
  }
  SynthOptions options = tiny("qwen3_moe");
  options.mtp_layers = 1;
  expect_refused(options, "--mtp-layers");
}

TEST(Synth, RefusesADirectoryThatIsNotEmpty) {
  const TempDir dir;
  std::ofstream(dir / "mine.txt") << "precious";
  expect_error(ErrorCode::kExists, {"not empty"},
               [&] { write_synthetic_checkpoint(dir.path(), tiny("deepseek_v3")); });
  EXPECT_EQ(contents(dir.path()).size(), 1U);
}

// Released configs of Nemotron have such words.
TEST(Synth, ReadsAndWritesWordsOfPythonsJson) {
  SynthOptions options;
  options.family = find_family("qwen3_moe");
  options.config = R"({"model_type": "qwen3_moe", "time_step_limit": [0.0, Infinity]})";
  EXPECT_THAT(synth_config_text(options), ::testing::HasSubstr("Infinity"));
}

TEST(Synth, LayerSizeKeepsTheRealWidths) {
  SynthOptions options;
  options.family = find_family("deepseek_v32");
  const ModelConfig config = parse_model_config(synth_config_text(options), "synth");
  EXPECT_EQ(config.hidden_size, 7168U);
  EXPECT_EQ(config.moe_intermediate_size, 2048U);
  EXPECT_EQ(config.q_lora_rank, 1536U);
  EXPECT_EQ(config.kv_lora_rank, 512U);
  EXPECT_LT(config.n_routed_experts, 256U);
  EXPECT_LT(config.num_hidden_layers, 61U);
}

TEST(Synth, HeadersOfTheReleasedModelTakeNoSpace) {
  const TempDir dir;
  SynthOptions options;
  options.family = find_family("deepseek_v32");
  options.size = SynthSize::kHeaders;
  write_synthetic_checkpoint(dir.path(), options);
  std::uint64_t on_disk = 0;
  for (const auto& entry : std::filesystem::directory_iterator(dir.path())) {
    struct stat info {};
    ASSERT_EQ(::stat(entry.path().c_str(), &info), 0);
    on_disk += static_cast<std::uint64_t>(info.st_blocks) * 512;
  }
  EXPECT_LT(on_disk, 60'000'000U);
  EXPECT_TRUE(std::filesystem::exists(dir / "model-00001-of-000163.safetensors"));

  const Checkpoint checkpoint = Checkpoint::open(dir.path());
  EXPECT_EQ(checkpoint.files().size(), 163U);
  EXPECT_EQ(checkpoint.stored().size(), 92'425U);
  EXPECT_EQ(std::count_if(
                checkpoint.tensors().begin(), checkpoint.tensors().end(),
                [](const LogicalTensor& t) { return t.encoding.scheme == SchemeId::kFp8Block; }),
            45'932);
  EXPECT_EQ(checkpoint.config().quantization->scale_fmt, "ue8m0");
}

/// A config.json of a model with so many words, and so many numbers for each.
SynthOptions with_vocabulary(const char* n_words, const char* n_numbers) {
  SynthOptions options;
  options.family = find_family("qwen3_moe");
  options.config = std::string(
                       R"({"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe",
      "num_hidden_layers": 1, "num_attention_heads": 2,
      "num_key_value_heads": 1, "head_dim": 32, "num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 32,
      "intermediate_size": 64, "vocab_size": )") +
                   n_words + R"(, "hidden_size": )" + n_numbers + "}";
  return options;
}

TEST(Synth, ReservesNothingOnDisksThatAreTooSmall) {
  const TempDir dir;
  expect_error(ErrorCode::kNoSpace, {"free", "--like headers"}, [&] {
    write_synthetic_checkpoint(dir.path(), with_vocabulary("4294967296", "1048576"));
  });
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
}

TEST(Synth, HeadersOfAConfigTakeNoSpace) {
  const TempDir dir;
  SynthOptions options = with_vocabulary("4294967", "64");
  options.size = SynthSize::kHeaders;
  write_synthetic_checkpoint(dir.path(), options);
  struct stat info {};
  ASSERT_EQ(::stat((dir / "model.safetensors").c_str(), &info), 0);
  EXPECT_GT(info.st_size, 1'000'000'000);
  EXPECT_LT(info.st_blocks * 512, 1'000'000);
  EXPECT_THAT(but_tokenizer(check_checkpoint(dir.path(), {}).findings), IsEmpty());
}

TEST(SynthStream, GivesAnyPartAlone) {
  for (const SynthKind kind :
       {SynthKind::kE4m3, SynthKind::kBf16Weight, SynthKind::kF32Weight, SynthKind::kBf16Norm,
        SynthKind::kF32Norm, SynthKind::kF32Scale, SynthKind::kF32PowerScale}) {
    const SynthStream stream(7, "x", kind);
    const std::size_t width = synth_element_bytes(kind);
    std::vector<std::byte> whole(1000 * width);
    stream.fill(0, whole);
    for (const std::size_t first : {0U, 1U, 4U, 5U, 333U, 998U}) {
      for (const std::size_t count : {1U, 2U, 5U, 6U, 300U}) {
        if (first + count > 1000) continue;
        std::vector<std::byte> part(count * width);
        stream.fill(first, part);
        EXPECT_EQ(std::memcmp(part.data(), whole.data() + first * width, part.size()), 0)
            << first << "+" << count;
      }
    }
  }
}

TEST(SynthStream, NeverGivesNanAndReachesTheLargest) {
  std::vector<std::byte> codes(1'000'000);
  SynthStream(0, "x", SynthKind::kE4m3).fill(0, codes);
  std::array<std::uint64_t, 256> counts{};
  for (const std::byte code : codes) ++counts[std::to_integer<std::size_t>(code)];
  EXPECT_EQ(counts[0x7F] + counts[0xFF], 0U);
  EXPECT_GT(counts[0x7E], 0U);
  EXPECT_GT(counts[0xFE], 0U);
}

TEST(SynthStream, IsNormal) {
  std::vector<float> values(1'000'000);
  SynthStream(3, "x", SynthKind::kF32Weight).fill(0, std::as_writable_bytes(std::span(values)));
  double sum = 0, squares = 0;
  std::size_t within_one = 0;
  for (const float value : values) {
    const double z = double{value} * 64;
    sum += z;
    squares += z * z;
    within_one += std::abs(z) < 1 ? 1U : 0U;
  }
  EXPECT_NEAR(sum / 1e6, 0, 0.005);
  EXPECT_NEAR(squares / 1e6, 1, 0.01);
  EXPECT_NEAR(static_cast<double>(within_one) / 1e6, 0.6827, 0.003);
}

TEST(SynthStream, DependsOnSeedAndName) {
  const auto first_values = [](std::uint64_t seed, std::string_view name) {
    std::array<float, 4> values{};
    SynthStream(seed, name, SynthKind::kF32Scale)
        .fill(0, std::as_writable_bytes(std::span(values)));
    return values;
  };
  EXPECT_EQ(first_values(1, "a"), first_values(1, "a"));
  EXPECT_NE(first_values(1, "a"), first_values(1, "b"));
  EXPECT_NE(first_values(1, "a"), first_values(2, "a"));
}

}  // namespace
}  // namespace ingot::formats
