#include "formats/checkpoint/checkpoint.h"
#include "formats/storage/block_scales.h"
#include "formats/storage/encoding.h"
#include "tests/support/test.h"
#include "tests/support/tiny_checkpoint.h"

// Every scheme in every dialect, written by hand and read back. The tables give the cases; their
// form on disk is written here a second time.

namespace ingot::formats {
namespace {

using namespace ingot::testing;

constexpr const char* kStem = "model.layers.0.mlp.up_proj";
constexpr std::uint64_t kUpRows = 160, kUpCols = 192;

std::vector<std::uint64_t> shape_of(SchemeId scheme, PartShape shape) {
  const bool is_packed = scheme == SchemeId::kNvfp4 || scheme == SchemeId::kMxfp4;
  switch (shape) {
    case PartShape::kCodes:
      if (scheme == SchemeId::kInt4Group) return {160, 24};
      return {160, is_packed ? 96U : 192U};
    case PartShape::kGrid:
      if (scheme == SchemeId::kNvfp4) return {160, 12};
      if (scheme == SchemeId::kMxfp4 || scheme == SchemeId::kMxfp8) return {160, 6};
      if (scheme == SchemeId::kInt4Group) return {160, 6};
      return {2, 2};
    case PartShape::kSpread:
      return {2, 1, 2, 1};
    case PartShape::kScalar:
      return {};
    case PartShape::kOne:
      return {1};
    case PartShape::kPerRow:
      return {160};
    case PartShape::kColumn:
      return {160, 1};
    case PartShape::kZeros:
      return {20, 6};
    case PartShape::kPerCol:
      return {192};
    case PartShape::kTwo:
      return {2};
    case PartShape::kBlocks:
      return {160, 6, 16};
  }
  return {};
}

struct Row {
  const Dialect* dialect;
  const StorageRow* storage;
  [[nodiscard]] std::string text() const {
    return std::string(dialect->name) + " " + std::string(scheme_facts(storage->scheme).name) +
           " " + std::string(activations_name(storage->activations));
  }
};

/// All but those of stacks, which tests/convert/expert_views_test.cc reads.
std::vector<Row> all_rows() {
  std::vector<Row> rows;
  for (const Dialect* dialect : dialects()) {
    for (const StorageRow& storage : dialect->storage) {
      if (storage.experts != ExpertForm::kStacked) rows.push_back({dialect, &storage});
    }
  }
  return rows;
}

TinyCheckpoint tiny(const Row& row) {
  TinyCheckpoint checkpoint;
  checkpoint.config = R"({"model_type": "any"})";
  auto& tensors = checkpoint.files["model.safetensors"];
  for (const PartRow& part : row.storage->parts) {
    tensors.push_back({kStem + std::string(part.suffix), std::string(dtype_name(part.dtype)),
                       shape_of(row.storage->scheme, part.shape)});
  }
  tensors.push_back({"model.norm.weight", "BF16", {192}});
  return checkpoint;
}

TinyTensor& part_of(TinyCheckpoint& checkpoint, const PartRow& part) {
  return ingot::testing::tensor_of(checkpoint, kStem + std::string(part.suffix));
}

Checkpoint open(const TinyCheckpoint& checkpoint, const TempDir& dir) {
  checkpoint.write(dir.path());
  return Checkpoint::open(dir.path(), {.family = "generic"});
}

void refuse(const TinyCheckpoint& checkpoint, ErrorCode code, const std::string& what) {
  SCOPED_TRACE(what);
  TempDir dir;
  expect_error(code, {}, [&] { open(checkpoint, dir); });
}

SchemeId scheme_of(const TinyCheckpoint& checkpoint) {
  TempDir dir;
  return open(checkpoint, dir).tensors().front().encoding.scheme;
}

TEST(SchemeRecognition, ReadsEverySchemeOfEveryDialect) {
  for (const Row& row : all_rows()) {
    SCOPED_TRACE(row.text());
    TempDir dir;
    const Checkpoint model = open(tiny(row), dir);
    ASSERT_EQ(model.tensors().size(), 2U);
    const LogicalTensor& tensor = model.tensors().front();
    EXPECT_EQ(tensor.name, "model.layers.0.mlp.up_proj.weight");
    EXPECT_EQ(tensor.shape, (Shape{kUpRows, kUpCols}));
    EXPECT_EQ(scheme_facts(tensor.encoding.scheme).name, scheme_facts(row.storage->scheme).name);
    EXPECT_EQ(tensor.encoding.global_divides,
              row.dialect->name == "compressed-tensors" && row.storage->scheme == SchemeId::kNvfp4);
    std::size_t n_parts = 0;
    tensor.encoding.stored.for_each([&](Part, std::uint32_t) { ++n_parts; });
    EXPECT_EQ(n_parts, row.storage->parts.size());
    for (const PartRow& part : row.storage->parts) {
      ASSERT_TRUE(tensor.encoding.stored.has(part.part)) << part.suffix;
      EXPECT_EQ(model.stored()[tensor.encoding.stored[part.part]].name,
                kStem + std::string(part.suffix));
    }
  }
}

TEST(SchemeRecognition, KnowsWhatSharesAScale) {
  using Block = std::array<std::uint64_t, 2>;
  for (const Row& row : all_rows()) {
    TempDir dir;
    const Encoding encoding = open(tiny(row), dir).tensors().front().encoding;
    Block expected = {1, kUpCols};
    switch (row.storage->scheme) {
      case SchemeId::kFp8Block:
      case SchemeId::kInt8Block:
        expected = {128, 128};
        break;
      case SchemeId::kFp8Tensor:
        expected = {kUpRows, kUpCols};
        break;
      case SchemeId::kNvfp4:
        expected = {1, 16};
        break;
      case SchemeId::kMxfp4:
      case SchemeId::kMxfp8:
      case SchemeId::kInt4Group:
        expected = {1, 32};
        break;
      default:
        break;
    }
    EXPECT_EQ((Block{encoding.block_rows, encoding.block_cols}), expected) << row.text();
  }
}

TEST(SchemeRecognition, BlocksOfTheConfigGoBeforeMxGroups) {
  TinyCheckpoint checkpoint;
  checkpoint.files["model.safetensors"] = {
      {kStem + std::string(".weight"), "F8_E4M3", {kUpRows, kUpCols}},
      {kStem + std::string(".weight_scale_inv"), "F8_E8M0", {kUpRows, kUpCols / 32}}};
  checkpoint.config = R"({"model_type": "any"})";
  EXPECT_EQ(scheme_of(checkpoint), SchemeId::kMxfp8);
  checkpoint.config = R"({"model_type": "any", "quantization_config": {
      "quant_method": "fp8", "weight_block_size": [1, 32]}})";
  EXPECT_EQ(scheme_of(checkpoint), SchemeId::kFp8Block);
}

bool is_needed(const Row& row, Part part) {
  // Ascend's static weights decode by deq_scale / input_scale.
  const bool by_deq_scale = row.storage->parts.back().part == Part::kDeqScale;
  return part == Part::kScale || part == Part::kGlobal || part == Part::kDimensions ||
         part == Part::kWeight ||
         (by_deq_scale && (part == Part::kDeqScale || part == Part::kInputScale));
}

TEST(SchemeRecognition, MissesEveryPartThatDecodingNeeds) {
  for (const Row& row : all_rows()) {
    for (const PartRow& part : row.storage->parts) {
      TinyCheckpoint checkpoint = tiny(row);
      std::erase_if(checkpoint.files["model.safetensors"], [&](const TinyTensor& tensor) {
        return tensor.name == kStem + std::string(part.suffix);
      });
      const std::string what = row.text() + " without " + std::string(part.suffix);
      // Bytes by themselves may be anything; the family's grammar decides about a name in their
      // place.
      const bool is_alone = row.storage->parts.size() == 2 && part.part != Part::kWeight;
      const std::string& left = checkpoint.files["model.safetensors"].front().dtype;
      if (is_alone && left == "I8") {
        EXPECT_EQ(scheme_of(checkpoint), SchemeId::kRaw) << what;
      } else if (is_alone && left == "U8") {
        refuse(checkpoint, ErrorCode::kUnsupported, what);
      } else if (is_needed(row, part.part)) {
        refuse(checkpoint, ErrorCode::kMissingTensor, what);
      } else {
        TempDir dir;
        EXPECT_NO_THROW(open(checkpoint, dir)) << what;
      }
    }
  }
}

TEST(SchemeRecognition, RefusesPartsOfTheWrongShapeOrDtype) {
  for (const Row& row : all_rows()) {
    for (const PartRow& part : row.storage->parts) {
      if (part.part == Part::kWeight) continue;
      const std::string what = row.text() + " " + std::string(part.suffix);
      for (const std::vector<std::uint64_t>& shape :
           {std::vector<std::uint64_t>{3, 7}, {2}, {0}, {1, 1, 1}, {2, 1}, {161, 1}}) {
        if (part.shape == PartShape::kTwo && shape == std::vector<std::uint64_t>{2}) continue;
        TinyCheckpoint checkpoint = tiny(row);
        part_of(checkpoint, part).shape = shape;
        refuse(checkpoint, ErrorCode::kShapeMismatch, what);
      }
      for (const char* dtype : {"F64", "BOOL", "F8_E5M2"}) {
        TinyCheckpoint checkpoint = tiny(row);
        part_of(checkpoint, part).dtype = dtype;
        refuse(checkpoint, ErrorCode::kDtypeMismatch, what + " " + dtype);
      }
    }
  }
}

TEST(SchemeRecognition, RefusesCodesThatDoNotFitTheirScales) {
  for (const Row& row : all_rows()) {
    for (const std::vector<std::uint64_t>& shape :
         {std::vector<std::uint64_t>{192}, {}, {400, 1000}, {2, 160, 192}}) {
      TinyCheckpoint checkpoint = tiny(row);
      checkpoint.files["model.safetensors"].front().shape = shape;
      // One scale for the whole matrix fits a matrix of any size.
      if (row.storage->scheme == SchemeId::kFp8Tensor && shape.size() == 2) continue;
      refuse(checkpoint, ErrorCode::kShapeMismatch, row.text());
    }
  }
}

// A weight that was cast to BF16 by a tool that forgot its parts.
TEST(SchemeRecognition, RefusesPartsBesideAPlainWeight) {
  for (const Row& row : all_rows()) {
    for (const PartRow& part : row.storage->parts) {
      if (part.part == Part::kWeight) continue;
      TinyCheckpoint checkpoint;
      checkpoint.files["model.safetensors"] = {
          {kStem + std::string(".weight"), "BF16", {160, 192}},
          {kStem + std::string(part.suffix), std::string(dtype_name(part.dtype)), {1}}};
      SCOPED_TRACE(row.text());
      TempDir dir;
      expect_error(ErrorCode::kMissingTensor, {std::string(part.suffix), "plain BF16"},
                   [&] { open(checkpoint, dir); });
    }
  }
}

TinyCheckpoint of(std::vector<TinyTensor> tensors) {
  TinyCheckpoint checkpoint;
  for (TinyTensor& tensor : tensors) tensor.name = kStem + tensor.name;
  checkpoint.files["model.safetensors"] = std::move(tensors);
  return checkpoint;
}

TinyCheckpoint of(const std::string& tensors) {
  return of(tensors_of(tensors));
}

TEST(SchemeRecognition, RefusesTwoOfAKind) {
  refuse(of(".weight BF16 160,192; .weight_packed U8 160,96; .weight_scale U8 160,6"),
         ErrorCode::kDuplicate, "codes beside a plain weight");
  refuse(of(".weight U8 160,96; .weight_scale F8_E4M3 160,12; .weight_scale_2 F32; "
            ".weight_global_scale F32 1"),
         ErrorCode::kDuplicate, "a global that multiplies and one that divides");
  refuse(of(".weight I8 160,192; .weight_scale F32 160,1; .weight_scale_inv F32 2,2"),
         ErrorCode::kDuplicate, "scales of rows and of blocks");
}

TEST(SchemeRecognition, RefusesPartsOfAnotherScheme) {
  refuse(of(".weight F8_E4M3 160,192; .weight_scale F32 160,1; .weight_scale_2 F32"),
         ErrorCode::kUnsupported, "FP8 with a global");
  refuse(of(".weight F8_E4M3 160,192; .weight_scale F32 160,1; .weight_offset F32 160,1"),
         ErrorCode::kUnsupported, "FP8 with an offset");
}

// Names tell blocks from rows where shapes cannot.
TEST(SchemeRecognition, TakesOtherSpellingsOfTheSameThing) {
  for (const char* dtype : {"F32", "BF16", "F16"}) {
    EXPECT_EQ(scheme_of(of({{".weight", "I8", {160, 192}}, {".weight_scale", dtype, {160}}})),
              SchemeId::kInt8Channel);
    EXPECT_EQ(scheme_of(of({{".weight", "F8_E4M3", {160, 192}}, {".weight_scale", dtype, {160}}})),
              SchemeId::kFp8Channel);
    EXPECT_EQ(scheme_of(of({{".weight", "F8_E4M3", {160, 192}}, {".weight_scale", dtype, {}}})),
              SchemeId::kFp8Tensor);
  }
  for (const char* dtype : {"U8", "F8_E8M0"}) {
    for (const char* codes : {"U8", "I8"}) {
      EXPECT_EQ(scheme_of(of({{".weight", codes, {160, 96}}, {".scale", dtype, {160, 6}}})),
                SchemeId::kMxfp4);
    }
    EXPECT_EQ(scheme_of(of({{".weight", "F8_E4M3", {160, 192}}, {".scale", dtype, {160, 6}}})),
              SchemeId::kMxfp8);
  }
  EXPECT_EQ(scheme_of(of(".weight F8_E4M3 160,192; .scale F8_E8M0 2,2")), SchemeId::kFp8Block);
  EXPECT_EQ(scheme_of(of(".weight I8 160,192; .weight_scale F32 2,2")), SchemeId::kInt8Block);
  EXPECT_EQ(scheme_of(of(".weight I8 1,64; .weight_scale F32 1,1")), SchemeId::kInt8Channel);
  EXPECT_EQ(scheme_of(of(".weight I8 1,64; .weight_scale_inv F32 1,1")), SchemeId::kInt8Block);
  EXPECT_EQ(scheme_of(of(".weight F8_E4M3 1,64; .weight_scale F32 1")), SchemeId::kFp8Channel);
  TinyCheckpoint number = of(".weight F8_E4M3 160,192; .weight_scale_inv F32 1");
  EXPECT_EQ(scheme_of(number), SchemeId::kFp8Tensor);
  EXPECT_EQ(
      scheme_of(of(".weight F8_E4M3 160,192; .weight_scale_inv BF16; .activation_scale BF16")),
      SchemeId::kFp8Tensor);
  number.config = R"({"model_type": "any", "quantization_config": {
      "quant_method": "fp8", "weight_block_size": [128, 128]}})";
  refuse(number, ErrorCode::kShapeMismatch, "under a claim of blocks a scale is never one value");
}

// V0 of Ascend's tool writes the weight's own scale in addition to the product of both.
TEST(SchemeRecognition, TakesAscendsUnionOfParts) {
  TempDir dir;
  const Checkpoint model =
      open(of(".weight I8 160,192; .weight_scale F32 160,1; .weight_offset F32 160,1; .input_scale "
              "BF16 1; .input_offset I8 1; .quant_bias I32 160; .deq_scale I64 160"),
           dir);
  ASSERT_EQ(model.tensors().size(), 1U);
  EXPECT_EQ(model.tensors().front().encoding.scheme, SchemeId::kInt8Channel);
  std::size_t n_parts = 0;
  model.tensors().front().encoding.stored.for_each([&](Part, std::uint32_t) { ++n_parts; });
  EXPECT_EQ(n_parts, 7U);
}

TEST(SchemeRecognition, StackedExpertsNeedAScaleEach) {
  const auto stacked = [](const char* dtype, std::vector<std::uint64_t> codes,
                          const char* scale_dtype, std::vector<std::uint64_t> scale) {
    TinyCheckpoint checkpoint;
    checkpoint.files["model.safetensors"] = {
        {"experts.down_proj", dtype, std::move(codes)},
        {"experts.down_proj_scale", scale_dtype, std::move(scale)}};
    return checkpoint;
  };
  EXPECT_EQ(scheme_of(stacked("F8_E4M3", {4, 160, 192}, "F32", {4, 2, 2})), SchemeId::kFp8Block);
  EXPECT_EQ(scheme_of(stacked("F8_E4M3", {4, 160, 192}, "F32", {4, 160, 1})),
            SchemeId::kFp8Channel);
  EXPECT_EQ(scheme_of(stacked("F8_E4M3", {4, 160, 192}, "F32", {4, 1, 1})), SchemeId::kFp8Tensor);
  EXPECT_EQ(scheme_of(stacked("U8", {4, 160, 96}, "U8", {4, 160, 6})), SchemeId::kMxfp4);
  refuse(stacked("F8_E4M3", {4, 160, 192}, "F32", {1}), ErrorCode::kShapeMismatch, "one for all");
}

std::string floats(const std::vector<float>& values) {
  std::string bytes(values.size() * sizeof(float), '\0');
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

// As ModelOpt 0.47 exports the experts of transformers 5: names of parts behind that of the stack.
TEST(SchemeRecognition, ReadsModeloptsNvfp4Stacks) {
  TinyCheckpoint checkpoint;
  checkpoint.config = R"({"model_type": "any"})";
  checkpoint.files["model.safetensors"] = {
      {"experts.gate_up_proj", "U8", {4, 64, 32}},
      {"experts.gate_up_proj_input_scale", "F32", {4}},
      {"experts.gate_up_proj_weight_scale", "F8_E4M3", {4, 64, 4}, std::string(1024, '\x40')},
      {"experts.gate_up_proj_weight_scale_2", "F32", {4}, floats({1, 2, 3, 4})}};
  TempDir dir;
  const Checkpoint model = open(checkpoint, dir);
  ASSERT_EQ(model.tensors().size(), 1U);
  const LogicalTensor& stack = model.tensors()[0];
  EXPECT_EQ(stack.name, "experts.gate_up_proj");
  EXPECT_EQ(stack.shape, (Shape{4, 64, 64}));
  EXPECT_EQ(stack.encoding.scheme, SchemeId::kNvfp4);
  for (const Part part : {Part::kScale, Part::kGlobal, Part::kInputScale})
    EXPECT_TRUE(stack.encoding.stored.has(part));
  // The E4M3 code 0x40 is 2; each expert has its own global scale.
  const ScaleReader reader(model, stack);
  const std::vector<float> scales = reader.read({.first = 63, .n = 130});
  for (std::size_t i = 0; i < scales.size(); ++i)
    EXPECT_EQ(scales[i], 2 * static_cast<float>((63 + i / 4) / 64 + 1)) << i;
  expect_error(ErrorCode::kUnsupported, {"gate_up_proj_weight_scale_2", "--experts separate"},
               [&] { static_cast<void>(reader.global()); });
}

TEST(SchemeRecognition, LeavesParametersThatOnlySoundLikeParts) {
  TinyCheckpoint checkpoint;
  checkpoint.files["model.safetensors"] = {{"layers.0.hc_attn_scale", "F32", {3}},
                                           {"layers.0.attn.k_proj.k_scale", "F32", {1}},
                                           {"layers.0.rel_offset", "F32", {4}},
                                           {"codes", "U8", {4}}};
  TempDir dir;
  EXPECT_EQ(open(checkpoint, dir).tensors().size(), 4U);
}

TEST(BlockScales, HalfPrecisionIsWidenedExactly) {
  TempDir dir;
  // 1.5 and -2^-24 x 3 as IEEE halves.
  TinyCheckpoint checkpoint =
      of({{".weight", "I8", {2, 4}},
          {".weight_scale", "F16", {2, 1}, std::string("\x00\x3e\x03\x00", 4)}});
  const Checkpoint model = open(checkpoint, dir);
  EXPECT_EQ(read_block_scales(model, model.tensors().front()),
            (std::vector<float>{1.5F, 3 * 0x1p-24F}));
}

TEST(Schemes, AreFoundByNameAndWordOnly) {
  for (const SchemeFacts& row : schemes()) {
    EXPECT_EQ(find_scheme(row.name), row.id);
    EXPECT_EQ(&scheme_facts(row.id), &row);
    if (row.to_word.empty()) continue;
    EXPECT_EQ(find_scheme(row.to_word), row.id);
  }
  EXPECT_EQ(find_scheme("fp8"), SchemeId::kFp8Block);
  EXPECT_EQ(find_scheme("fp8-block"), SchemeId::kFp8Block);
  EXPECT_EQ(find_scheme(""), std::nullopt);
  EXPECT_EQ(find_scheme("FP8"), std::nullopt);
  EXPECT_EQ(find_scheme("nvfp4"), SchemeId::kNvfp4);
  EXPECT_EQ(find_scheme("int4"), SchemeId::kInt4Group);
  EXPECT_EQ(find_scheme("int3"), std::nullopt);
}

TEST(Schemes, NoWordMeansTwoSchemes) {
  std::set<std::string_view> words;
  for (const SchemeFacts& row : schemes()) {
    EXPECT_TRUE(words.insert(row.name).second) << row.name;
    if (row.to_word == row.name || row.to_word.empty()) continue;
    EXPECT_TRUE(words.insert(row.to_word).second) << row.to_word;
  }
}

TEST(Schemes, PlainDtypesAreTheirOwnInverse) {
  for (const SchemeId id : {SchemeId::kBf16, SchemeId::kF16, SchemeId::kF32}) {
    EXPECT_EQ(plain_scheme(plain_dtype(id)), id);
    EXPECT_FALSE(scheme_facts(id).quantized);
  }
  EXPECT_EQ(plain_scheme(DType::kF8E4M3), SchemeId::kRaw);
  EXPECT_EQ(plain_scheme(DType::kI64), SchemeId::kRaw);
}

TEST(BlockScaleShape, RoundsUpToWholeBlocks) {
  EXPECT_EQ(block_scale_shape({7168, 2048}, 128, 128), (Shape{56, 16}));
  EXPECT_EQ(block_scale_shape({576, 7168}, 128, 128), (Shape{5, 56}));
  EXPECT_EQ(block_scale_shape({1, 129}, 128, 128), (Shape{1, 2}));
  EXPECT_EQ(block_scale_shape({100, 100}, 64, 128), (Shape{2, 1}));
}

TEST(BlockScaleShape, GivesEveryStackedMatrixItsOwnGrid) {
  EXPECT_EQ(block_scale_shape({256, 4096, 7168}, 128, 128), (Shape{256, 32, 56}));
}

TEST(BlockScaleShape, IsEmptyForAnEmptyMatrix) {
  EXPECT_EQ(block_scale_shape({0, 256}, 128, 128), (Shape{0, 2}));
}

}  // namespace
}  // namespace ingot::formats
