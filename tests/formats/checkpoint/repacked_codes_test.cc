#include "formats/base/fd.h"
#include "formats/checkpoint/checkpoint.h"
#include "formats/container/safetensors.h"
#include "formats/json/json.h"
#include "formats/storage/block_scales.h"
#include "formats/storage/encoding.h"
#include "tests/support/edited_weights.h"
#include "tests/support/json_edit.h"
#include "tests/support/test.h"
#include "tests/support/tiny_checkpoint.h"

// AWQ and GPTQ, seen as compressed-tensors stores INT4.

namespace ingot::formats {
namespace {

TEST(RepackedCodes, PiecesAreThoseOfTheWhole) {
  std::mt19937 random(1);
  for (const char* name :
       {"families/qwen3_moe_awq", "families/qwen3_moe_gptq_asym_actorder", "other_tools/float8",
        "other_tools/gptq_3bit_order", "other_tools/gptq_2bit_gptq", "other_tools/gptq_8bit_order",
        "autumn_forms/fp8_mxfp4_store_dtype", "autumn_forms/gemma_qat",
        "autumn_forms/modelopt_w4a16_awq", "autumn_forms/thinking_machines"}) {
    const Checkpoint checkpoint = Checkpoint::open(
        std::filesystem::path(INGOT_SOURCE_DIR) / "tests/golden" / name,
        {.family = std::string_view(name).starts_with("families") ? "" : "generic"});
    for (std::uint32_t i = 0; i < checkpoint.stored().size(); ++i) {
      std::vector<std::byte> whole(checkpoint.stored()[i].n_bytes);
      checkpoint.read(i, 0, whole);
      for (int round = 0; round < 5; ++round) {
        const std::size_t begin = random() % whole.size();
        std::vector<std::byte> piece(1 + random() % (whole.size() - begin));
        checkpoint.read(i, begin, piece);
        ASSERT_TRUE(std::equal(piece.begin(), piece.end(),
                               whole.begin() + static_cast<std::ptrdiff_t>(begin)))
            << checkpoint.stored()[i].name << ", " << piece.size() << " bytes from " << begin;
      }
    }
  }
}

/// A form of a single maker whose config is changed, and the error that opening it gives.
TEST(MadeParts, ConfigsOfOtherWeightsAreRefused) {
  using testing::JsonEdit;
  struct Case {
    const char* folder;
    JsonEdit edit;
    ErrorCode code;
    std::string_view words;
  };
  constexpr const char *kGemma = "gemma_qat", *kMimo = "fp8_mxfp4_store_dtype";
  const std::string modules = "/quantization_config/module_quant_configs ";
  for (const Case& row : {
           Case{kGemma, "/quantization_config/num_bits 8", ErrorCode::kMismatch, "is U8...8"},
           Case{kGemma, "/quantization_config/num_bits \"4\"", ErrorCode::kMismatch, "no num_bits"},
           Case{kGemma, modules + "{}", ErrorCode::kMismatch, "is I8...num_bits 4"},
           Case{kGemma, modules + R"({"mlp(": {"num_bits": 2}})", ErrorCode::kUnsupported,
                "'mlp(', which is no expression"},
           Case{kGemma, modules + R"({")(": {"num_bits": 2}})", ErrorCode::kUnsupported,
                "which is no expression"},
           Case{kGemma, modules + R"({"^(([a-z_0-9])+.)+[A-Z]([a-z])+$": {"num_bits": 2}})",
                ErrorCode::kLimit, "backtracks too much"},
           Case{kMimo, "/num_key_value_heads 3", ErrorCode::kShapeMismatch,
                "chunks of whole heads"},
           Case{kMimo, "/v_head_dim 1048577", ErrorCode::kShapeMismatch, "chunks of whole heads"},
           Case{kMimo, "/quantization_config/weight_block_size [64, 64]", ErrorCode::kShapeMismatch,
                "scales [4, 2]"},
       }) {
    const testing::TempDir directory;
    const auto model = directory / "model";
    std::filesystem::copy(
        std::filesystem::path(INGOT_SOURCE_DIR) / "tests/golden/autumn_forms" / row.folder, model);
    const Json config = read_json_file(model / "config.json", 1 << 20);
    std::filesystem::remove(model / "config.json");
    std::ofstream(model / "config.json") << testing::edited(config, {row.edit}).dump();
    testing::expect_error(row.code, row.words,
                          [&] { Checkpoint::open(model, {.family = "generic"}); });
  }
}

// Two codes are a byte: the last column of an odd number of them is filled up, and one that is
// there may be zero as well.
TEST(MadeParts, ColumnsOfZeroStayWhereTheirNumberIsKnown) {
  const std::string layer = "model.language_model.layers.0.self_attn.";
  const testing::EditedCopy copy(std::filesystem::path(INGOT_SOURCE_DIR) /
                                 "tests/golden/autumn_forms/gemma_qat");
  const auto shape = [&] {
    const Checkpoint checkpoint = Checkpoint::open(copy.path(), {.family = "generic"});
    const auto weight =
        std::ranges::find(checkpoint.tensors(), layer + "q_proj.weight", &LogicalTensor::name);
    return weight == checkpoint.tensors().end() ? Shape{} : weight->shape;
  };
  EXPECT_EQ(shape(), (Shape{24, 37}));
  testing::edit_tensor(copy.path(), layer + "k_cache_scale", [](testing::EditedTensor& norm) {
    norm.shape = {38};
    norm.bytes.resize(38 * sizeof(float));
  });
  EXPECT_EQ(shape(), (Shape{24, 38}));
}

/// A copy of a golden checkpoint in which the group of one column is another.
class GroupOrder : public ::testing::TestWithParam<std::pair<const char*, std::int32_t>> {
 protected:
  void SetUp() override {
    std::filesystem::copy(
        std::filesystem::path(INGOT_SOURCE_DIR) / "tests/golden/families" / GetParam().first,
        directory_ / "model");
    const auto file = directory_ / "model/model.safetensors";
    for (const StoredTensor& stored : read_safetensors_header(Fd::open_for_reading(file)).tensors) {
      if (!stored.name.ends_with(".g_idx")) continue;
      std::filesystem::permissions(file, std::filesystem::perms::owner_write,
                                   std::filesystem::perm_options::add);
      std::fstream(file, std::ios::in | std::ios::out | std::ios::binary)
          .seekp(static_cast<std::streamoff>(stored.offset))
          .write(reinterpret_cast<const char*>(&GetParam().second), 4);
      return;
    }
    FAIL() << "no g_idx";
  }

  testing::TempDir directory_;
};

TEST_P(GroupOrder, NamesGroupsThatThereAre) {
  const Checkpoint checkpoint = Checkpoint::open(directory_ / "model");
  testing::expect_error(ErrorCode::kCorrupt, {"g_idx", "into group"}, [&] {
    for (const LogicalTensor& tensor : checkpoint.tensors())
      static_cast<void>(read_block_scales(checkpoint, tensor));
  });
}

INSTANTIATE_TEST_SUITE_P(Numbers, GroupOrder,
                         ::testing::Values(std::pair("qwen3_moe_gptq", -1),
                                           std::pair("qwen3_moe_gptq", 99),
                                           std::pair("qwen3_moe_gptq_actorder", -1),
                                           std::pair("qwen3_moe_gptq_actorder", 99),
                                           std::pair("qwen3_moe_gptq_asym_actorder", -1)));

// Symmetric codes whose zero points are stored as the other checkpoint_format stores an 8.
TEST(ZeroPoints, OfTheOtherFormatNameTheFormat) {
  struct Case {
    std::string format;
    std::uint32_t stored;
    std::string remedy;
  };
  for (const Case& at : {Case{"gptq", 0x88888888U, "set it to gptq_v2"},
                         Case{"gptq_v2", 0x77777777U, "set it to gptq"},
                         Case{"gptq", 0x88888878U, "sym true (correct it)"}}) {
    const testing::TempDir directory;
    const auto config = fmt::format(
        R"({{"model_type": "other", "num_hidden_layers": 1, "quantization_config": {{"quant_method":
        "gptq", "bits": 4, "group_size": 32, "sym": true, "checkpoint_format": "{}"}}}})",
        at.format);
    std::string zeros(4, '\0');
    std::memcpy(zeros.data(), &at.stored, zeros.size());
    testing::TinyCheckpoint{.config = config,
                            .files = {{"model.safetensors",
                                       {{"a.qweight", "I32", {4, 8}},
                                        {"a.qzeros", "I32", {1, 1}, zeros},
                                        {"a.scales", "F32", {1, 8}}}}},
                            .weight_map = {}}
        .write(directory / "model");
    const Checkpoint checkpoint = Checkpoint::open(directory / "model", {.family = "generic"});
    ASSERT_EQ(checkpoint.tensors().size(), 1U);
    testing::expect_error(ErrorCode::kMismatch, {"a.qzeros", at.remedy}, [&] {
      std::vector<std::byte> codes(4);
      checkpoint.read(checkpoint.tensors()[0].encoding.stored.weight(), 0, codes);
    });
  }
}

// Weights of 8 bits: two rows of words and more, two groups of 32 columns. Words are made here, by
// the descriptions of AutoGPTQ and compressed-tensors.
constexpr std::uint64_t kRows = 8, kCols = 64, kGroups = 2;

std::uint8_t code_at(std::uint64_t row, std::uint64_t col) {
  return static_cast<std::uint8_t>(row * 37 + col * 11);
}

/// Codes in words of four, down a column (GPTQ) or along a row.
std::string packed_codes(bool is_input_major) {
  std::string words;
  if (is_input_major) {
    for (std::uint64_t word = 0; word < kCols / 4; ++word) {
      for (std::uint64_t row = 0; row < kRows; ++row) {
        for (std::uint64_t i = 0; i < 4; ++i)
          words.push_back(static_cast<char>(code_at(row, word * 4 + i)));
      }
    }
    return words;
  }
  for (std::uint64_t row = 0; row < kRows; ++row) {
    for (std::uint64_t col = 0; col < kCols; ++col)
      words.push_back(static_cast<char>(code_at(row, col)));
  }
  return words;
}

/// F32: 1, 2, 3, ... over [rows, groups], transposed for GPTQ.
std::string scales_in_order(bool is_input_major) {
  std::string bytes(kRows * kGroups * 4, '\0');
  for (std::uint64_t row = 0; row < kRows; ++row) {
    for (std::uint64_t group = 0; group < kGroups; ++group) {
      const auto scale = static_cast<float>(row * kGroups + group + 1);
      const std::uint64_t at = is_input_major ? group * kRows + row : row * kGroups + group;
      std::memcpy(&bytes[at * 4], &scale, 4);
    }
  }
  return bytes;
}

std::vector<testing::TinyTensor> gptq_of_8_bits(const std::string& stem, char zero) {
  return {{stem + ".qweight", "I32", {kCols / 4, kRows}, packed_codes(true)},
          {stem + ".qzeros", "I32", {kGroups, kRows / 4}, std::string(kGroups * kRows, zero)},
          {stem + ".scales", "F32", {kGroups, kRows}, scales_in_order(true)}};
}

testing::TinyCheckpoint with_config(const std::string& block,
                                    std::vector<testing::TinyTensor> tensors) {
  return {.config = fmt::format(R"({{"model_type": "other", "num_hidden_layers": 1,
                                     "quantization_config": {{{}}}}})",
                                block),
          .files = {{"model.safetensors", std::move(tensors)}},
          .weight_map = {}};
}

constexpr const char* kDynamic = R"("quant_method": "gptq", "bits": 4, "group_size": 32,
    "sym": true, "checkpoint_format": "gptq",
    "dynamic": {"-:.*left.*": {}, "+:.*down.*": {"bits": 8}, ".*five.*": {"bits": 5}})";
constexpr const char* kPackedIn8 = R"("quant_method": "compressed-tensors",
    "format": "pack-quantized", "config_groups": {"group_0": {"targets": ["re:.*down.*"],
    "weights": {"num_bits": 8, "type": "int", "strategy": "group", "group_size": 32}},
    "odd": {"targets": ["re:.*three.*"], "weights": {"num_bits": 3, "type": "int"}}})";

std::vector<testing::TinyTensor> packed_in_8_bits() {
  std::string sides(16, '\0');
  sides[0] = kRows;
  sides[8] = kCols;
  return {{"down.weight_packed", "I32", {kRows, kCols / 4}, packed_codes(false)},
          {"down.weight_scale", "F32", {kRows, kGroups}, scales_in_order(false)},
          {"down.weight_shape", "I64", {2}, sides}};
}

void expect_int8(const Checkpoint& checkpoint) {
  ASSERT_EQ(checkpoint.tensors().size(), 1U);
  const LogicalTensor& tensor = checkpoint.tensors()[0];
  EXPECT_EQ(tensor.name, "down.weight");
  EXPECT_EQ(tensor.shape, (Shape{kRows, kCols}));
  EXPECT_EQ(tensor.encoding.scheme, SchemeId::kInt8Block);
  EXPECT_TRUE(is_packed_int8(tensor.encoding));
  EXPECT_EQ(tensor.encoding.block_rows, 1U);
  EXPECT_EQ(tensor.encoding.block_cols, 32U);
  std::vector<std::byte> codes(kRows * kCols);
  checkpoint.read(tensor.encoding.stored.weight(), 0, codes);
  for (std::uint64_t i = 0; i < codes.size(); ++i) {
    ASSERT_EQ(static_cast<std::int8_t>(codes[i]), int{code_at(i / kCols, i % kCols)} - 128) << i;
  }
  const std::vector<float> scales = read_block_scales(checkpoint, tensor);
  for (std::size_t i = 0; i < scales.size(); ++i) EXPECT_EQ(scales[i], static_cast<float>(i + 1));
}

using CodesOf8Bits = testing::InTempDir;

TEST_F(CodesOf8Bits, OfGptqsDynamicAreInt8) {
  with_config(kDynamic, gptq_of_8_bits("down", 127)).write(dir_.path());
  expect_int8(Checkpoint::open(dir_.path(), {.family = "generic"}));
}

TEST_F(CodesOf8Bits, OfCompressedTensorsAreInt8) {
  with_config(kPackedIn8, packed_in_8_bits()).write(dir_.path());
  expect_int8(Checkpoint::open(dir_.path(), {.family = "generic"}));
}

// Four rows to a word; symmetric weights may have zero points, all of the middle code.
TEST_F(CodesOf8Bits, WithOtherZeroPointsThanTheMiddleAreRefused) {
  auto tensors = packed_in_8_bits();
  std::string zeros(kRows * kGroups, '\x80');
  tensors.push_back({"down.weight_zero_point", "I32", {kRows / 4, kGroups}, zeros});
  with_config(kPackedIn8, tensors).write(dir_.path());
  expect_int8(Checkpoint::open(dir_.path(), {.family = "generic"}));
  tensors.back().data[9] = '\x7f';
  with_config(kPackedIn8, tensors).write(dir_.path());
  const Checkpoint checkpoint = Checkpoint::open(dir_.path(), {.family = "generic"});
  testing::expect_error(ErrorCode::kMismatch, {"weight_zero_point", "other than 128"}, [&] {
    static_cast<void>(read_block_scales(checkpoint, checkpoint.tensors()[0]));
    std::vector<std::byte> codes(4);
    checkpoint.read(checkpoint.tensors()[0].encoding.stored.weight(), 0, codes);
  });
}

TEST_F(CodesOf8Bits, OfOtherFormsAreRefused) {
  struct Case {
    ErrorCode code;
    std::string words;
    std::function<void(std::vector<testing::TinyTensor>&)> damage;
  };
  for (const Case& one :
       {Case{ErrorCode::kShapeMismatch,
             "weight_zero_point...I32 of shape [2, 1]...I32 of shape [2, 2]",
             [](auto& tensors) {
               tensors.push_back({"down.weight_zero_point", "I32", {2, 1}});
             }},
        Case{ErrorCode::kShapeMismatch, "weight_g_idx...[32]...[64]",
             [](auto& tensors) {
               tensors.push_back({"down.weight_g_idx", "I32", {kCols / 2}});
             }},
        Case{ErrorCode::kUnsupported, "weight_packed...[8, 16]...scales of shape [8, 4]",
             [](auto& tensors) {
               tensors[1] = {"down.weight_scale", "F32", {kRows, 4}};
             }},
        Case{ErrorCode::kDuplicate, "down.weight...is here as well as 'down.weight_packed'",
             [](auto& tensors) {
               tensors.push_back({"down.weight", "BF16", {kRows, kCols}});
             }}}) {
    auto tensors = packed_in_8_bits();
    one.damage(tensors);
    with_config(kPackedIn8, tensors).write(dir_.path());
    testing::expect_error(one.code, one.words,
                          [&] { Checkpoint::open(dir_.path(), {.family = "generic"}); });
  }
}

TEST_F(CodesOf8Bits, ThatStateOtherSidesAreRefused) {
  auto tensors = packed_in_8_bits();
  tensors[2].data[8] = kCols / 2;
  with_config(kPackedIn8, tensors).write(dir_.path());
  const Checkpoint checkpoint = Checkpoint::open(dir_.path(), {.family = "generic"});
  testing::expect_error(ErrorCode::kCorrupt, {"weight_shape", "[8, 32]", "[8, 64]"}, [&] {
    static_cast<void>(read_block_scales(checkpoint, checkpoint.tensors()[0]));
  });
  tensors.pop_back();
  with_config(kPackedIn8, tensors).write(dir_.path());
  testing::expect_error(ErrorCode::kMissingTensor, {"down.weight_packed", "weight_shape"},
                        [&] { Checkpoint::open(dir_.path(), {.family = "generic"}); });
}

constexpr const char* kOf8Bits = R"("quant_method": "gptq", "bits": 8, "group_size": 32, "sym": )";

TEST_F(CodesOf8Bits, WithZeroPointsBelieNoConfig) {
  with_config(std::string(kOf8Bits) + "true", gptq_of_8_bits("down", 100)).write(dir_.path());
  const Checkpoint checkpoint = Checkpoint::open(dir_.path(), {.family = "generic"});
  testing::expect_error(ErrorCode::kMismatch, {"down.qzeros", "other than 128", "sym true"}, [&] {
    std::vector<std::byte> codes(4);
    checkpoint.read(checkpoint.tensors()[0].encoding.stored.weight(), 0, codes);
  });
}

TEST_F(CodesOf8Bits, WithZeroPointsAreOnlyRead) {
  with_config(std::string(kOf8Bits) + "false", gptq_of_8_bits("down", 100)).write(dir_.path());
  const Checkpoint checkpoint = Checkpoint::open(dir_.path(), {.family = "generic"});
  ASSERT_EQ(checkpoint.tensors().size(), 1U);
  const LogicalTensor& tensor = checkpoint.tensors()[0];
  EXPECT_EQ(tensor.encoding.scheme, SchemeId::kInt8Group);
  EXPECT_EQ(tensor.shape, (Shape{kRows, kCols}));
  EXPECT_EQ(checkpoint.stored()[tensor.encoding.stored.weight()].dtype, DType::kI8);
  std::vector<std::int8_t> codes(kRows * kCols);
  checkpoint.read(tensor.encoding.stored.weight(), 0, std::as_writable_bytes(std::span(codes)));
  const ScaleReader reader(checkpoint, tensor);
  const std::vector<float> scales = reader.read({.first = 0, .n = kRows});
  // The last rows of a word, and the first of the next one.
  const std::vector<std::uint8_t> some = reader.read_zeros({.first = 3, .n = 2});
  const std::vector<std::uint8_t> zeros = reader.read_zeros({.first = 0, .n = kRows});
  EXPECT_TRUE(std::equal(some.begin(), some.end(), zeros.begin() + 3 * kGroups));
  for (std::uint64_t i = 0; i < codes.size(); ++i) {
    const std::uint64_t row = i / kCols, col = i % kCols, group = row * kGroups + col / 32;
    ASSERT_EQ(scales[group], static_cast<float>(group + 1));
    ASSERT_EQ(codes[i] - static_cast<std::int8_t>(zeros[group]), int{code_at(row, col)} - 101) << i;
  }
}

// The config's fault is one fault, and no form is guessed from shapes.
TEST_F(CodesOf8Bits, OtherBitsAreOneFault) {
  const auto one_fault = [&](std::initializer_list<std::string> fragments) {
    ErrorList faults;
    static_cast<void>(Checkpoint::open(dir_.path(), {.family = "generic", .faults = &faults}));
    ASSERT_EQ(faults.errors().size(), 1U);
    EXPECT_EQ(faults.errors()[0].code(), ErrorCode::kUnsupported);
    for (const std::string& fragment : fragments)
      EXPECT_NE(faults.errors()[0].message().find(fragment), std::string::npos) << fragment;
  };
  auto tensors = gptq_of_8_bits("five.a", 127);
  for (const testing::TinyTensor& tensor : gptq_of_8_bits("five.b", 127)) tensors.push_back(tensor);
  with_config(kDynamic, tensors).write(dir_.path());
  one_fault({"bits 5", "'.*five.*'"});
  with_config(R"("quant_method": "gptq", "bits": 5, "group_size": 32)", tensors).write(dir_.path());
  one_fault({"bits 5", "2, 3, 4 and 8"});
  with_config(kPackedIn8, {{"three.weight_packed", "I32", {8, 6}},
                           {"three.weight_scale", "F32", {8, 2}},
                           {"three.weight_shape", "I64", {2}}})
      .write(dir_.path());
  one_fault({"num_bits 3", "config_groups.odd"});
}

// As AutoGPTQ and AutoRound write 96 or 160 columns in groups of 64.
TEST_F(CodesOf8Bits, WithAShortLastGroupAreCalledSo) {
  for (const std::uint64_t cols : {96U, 160U}) {
    const std::uint64_t groups = (cols + 63) / 64;
    for (const bool is_awq : {false, true}) {
      const std::string method = is_awq ? "awq" : "gptq";
      with_config(fmt::format(R"("quant_method": "{}", "bits": 4, "group_size": 64)", method),
                  {{"down.qweight", "I32", is_awq ? Shape{cols, 1} : Shape{cols / 8, 8}},
                   {"down.qzeros", "I32", {groups, 1}},
                   {"down.scales", "F16", {groups, 8}}})
          .write(dir_.path());
      ErrorList faults;
      static_cast<void>(Checkpoint::open(dir_.path(), {.family = "generic", .faults = &faults}));
      ASSERT_EQ(faults.errors().size(), 1U) << method;
      EXPECT_EQ(faults.errors()[0].code(), ErrorCode::kUnsupported);
      const std::string message = faults.errors()[0].message();
      EXPECT_NE(message.find(fmt::format("the last group has 32 of the {}", cols)),
                std::string::npos)
          << message;
    }
  }
}

TEST_F(CodesOf8Bits, ThatTheConfigCallsFourAreNamedOnce) {
  auto tensors = gptq_of_8_bits("down", 127);
  for (const testing::TinyTensor& tensor : gptq_of_8_bits("up", 127)) tensors.push_back(tensor);
  with_config(R"("quant_method": "gptq", "bits": 4, "group_size": 32)", tensors).write(dir_.path());
  ErrorList faults;
  static_cast<void>(Checkpoint::open(dir_.path(), {.family = "generic", .faults = &faults}));
  ASSERT_EQ(faults.errors().size(), 1U);
  EXPECT_EQ(faults.errors()[0].code(), ErrorCode::kMismatch);
  for (const char* fragment : {"is of 8 bits by 'down.qzeros'", "bits 4"})
    EXPECT_NE(faults.errors()[0].message().find(fragment), std::string::npos) << fragment;
}

}  // namespace
}  // namespace ingot::formats
