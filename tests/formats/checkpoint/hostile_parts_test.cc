#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/formats/checkpoint/hostile_checkpoint.h"

// Scales and weights that are not the parts that they seem to be.

namespace ingot::formats {
namespace {

using namespace ingot::testing;
using enum ErrorCode;

TEST(HostileScale, ThatIsMissing) {
  TinyCheckpoint tiny = tiny_fp8();
  remove_tensor(tiny, kScale);
  refuse(tiny, kMissingTensor, {kUpWeight, "without a scale"});
}

TEST(HostileScale, WithoutAWeight) {
  for (const char* suffix : {".weight_scale_inv", ".weight_scale", ".scale"}) {
    TinyCheckpoint tiny = tiny_deepseek_v3();
    tiny.files["model.safetensors"].push_back(
        {std::string("model.layers.0.mlp.side_proj") + suffix, "F32", {1, 1}});
    // Parameters are called `.scale` too; this one the family does not have.
    const bool is_parameter = std::string(suffix) == ".scale";
    refuse(tiny, is_parameter ? kUnknownTensor : kMissingTensor,
           {"side_proj", is_parameter ? "does not have" : "there is no"});
    tiny = tiny_deepseek_v3();
    tiny.files["model.safetensors"].push_back({std::string(kUpStem) + suffix, "F32", {1, 1}});
    refuse(tiny, kMissingTensor, {kUpStem, "plain BF16"});
  }
}

/// One INT8 weight of Quark, with a zero point for each of its 12 rows.
TinyCheckpoint tiny_quark(const char* dtype, const std::vector<std::uint64_t>& shape) {
  TinyCheckpoint tiny = tiny_deepseek_v3();
  tensor_of(tiny, kUpWeight).dtype = "I8";
  tiny.files["model.safetensors"].push_back({std::string(kUpStem) + ".weight_scale", "BF16", {12}});
  tiny.files["model.safetensors"].push_back(
      {std::string(kUpStem) + ".weight_zero_point", dtype, shape});
  tiny.config.insert(1, R"("quantization_config": {"quant_method": "quark",
      "global_quant_config": {"weight": {"dtype": "int8", "qscheme": "per_channel",
                                         "symmetric": false}}},)");
  return tiny;
}

TEST(HostileZeroPoints, OfAnotherShapeOrDtype) {
  const std::string zeros = std::string(kUpStem) + ".weight_zero_point";
  refuse(tiny_quark("I8", {6}), kShapeMismatch, {zeros, "of shape [6]", "needs 12 numbers"});
  refuse(tiny_quark("I8", {12, 8}), kShapeMismatch, {zeros, "needs 12 numbers"});
  refuse(tiny_quark("U8", {12}), kDtypeMismatch, {zeros, "a zero point in U8", "must be I8"});
  // As many as there would be in words of four; codes in bytes have no packed zero points.
  refuse(tiny_quark("I32", {3}), kDtypeMismatch, {zeros, "a zero point in I32", "must be I8"});
  const TempDir dir;
  tiny_quark("I8", {12}).write(dir.path());
  Checkpoint::open(dir.path());
}

TEST(HostileZeroPoints, ThatAreMissing) {
  TinyCheckpoint tiny = tiny_quark("I8", {12});
  remove_tensor(tiny, std::string(kUpStem) + ".weight_zero_point");
  refuse(tiny, kMissingTensor, {kUpWeight, "asymmetric by config.json", "no weight_zero_point"});
}

/// INT8 weights of compressed-tensors in two groups, both asymmetric, without a zero point.
TinyCheckpoint tiny_lost_zero_points() {
  TinyCheckpoint tiny = tiny_deepseek_v3();
  for (const char* name : {"gate_proj", "up_proj"}) {
    const std::string stem = std::string("model.layers.0.mlp.") + name;
    TinyTensor& packed = tensor_of(tiny, stem + ".weight");
    packed = {stem + ".weight_packed", "I32", {12, 2}};
    tiny.files["model.safetensors"].push_back({stem + ".weight_scale", "BF16", {12, 1}});
    tiny.files["model.safetensors"].push_back({stem + ".weight_shape", "I32", {2}});
  }
  tensor_of(tiny, "model.layers.0.mlp.down_proj.weight").dtype = "I8";
  tiny.files["model.safetensors"].push_back(
      {"model.layers.0.mlp.down_proj.weight_scale", "F32", {8, 1}});
  tiny.config.insert(1, R"("quantization_config": {"quant_method": "compressed-tensors",
      "config_groups": {
        "packed": {"targets": ["re:.*(gate|up)_proj"], "weights": {"symmetric": false,
                   "num_bits": 8, "strategy": "channel"}},
        "plain": {"targets": ["re:.*down_proj"], "weights": {"symmetric": false, "type": "int",
                   "num_bits": 8, "strategy": "channel"}}}},)");
  return tiny;
}

TEST(HostileZeroPoints, ThatAreMissingAreOneFaultPerGroup) {
  TinyCheckpoint tiny = tiny_lost_zero_points();
  refuse(tiny, kMissingTensor,
         {"2 faults", "gate_proj", "(config_groups.packed)", "as 1 more of its weights",
          "down_proj", "(config_groups.plain) and has no weight_zero_point (a file"});
}

TEST(HostileScale, InTwoConventions) {
  TinyCheckpoint tiny = tiny_fp8();
  tiny.files["model.safetensors"].push_back(
      {std::string(kUpStem) + ".weight_scale", "F32", {1, 1}});
  refuse(tiny, kDuplicate, {kUpWeight, "weight_scale_inv", "two scales"});
}

TEST(HostileScale, WithTheWrongShape) {
  for (const std::vector<std::uint64_t>& shape :
       {std::vector<std::uint64_t>{2, 1}, {1, 2}, {1}, {}, {1, 1, 1}, {0, 1}, {12, 1}}) {
    TinyCheckpoint tiny = tiny_fp8();
    tensor_of(tiny, kScale).shape = shape;
    tiny.config.insert(tiny.config.find('{') + 1,
                       R"("quantization_config": {"quant_method": "fp8",
                          "weight_block_size": [128, 128]},)");
    refuse(tiny, kShapeMismatch, {kScale, "needs [1, 1]", "weight of shape [12, 8]"});
  }
}

TEST(HostileScale, WithTheWrongDtype) {
  for (const char* dtype : {"F16", "F64", "I32", "F8_E4M3", "U8"}) {
    TinyCheckpoint tiny = tiny_fp8();
    tensor_of(tiny, kScale).dtype = dtype;
    refuse(tiny, kDtypeMismatch, {kScale, dtype});
  }
}

TEST(HostileScale, OnAVector) {
  TinyCheckpoint tiny = tiny_deepseek_v3();
  tensor_of(tiny, "model.norm.weight").dtype = "F8_E4M3";
  tiny.files["model.safetensors"].push_back({"model.norm.weight_scale_inv", "F32", {1}});
  refuse(tiny, kShapeMismatch, {"model.norm.weight", "two dimensions"});
}

// The bytes would make a well-formed INT8 weight, and garbage.
TEST(HostileScale, BytesOfAWrongShapeAreExponents) {
  TinyCheckpoint tiny = tiny_fp8();
  remove_tensor(tiny, kScale);
  tiny.files["model.safetensors"].push_back({std::string(kUpStem) + ".weight_scale", "U8", {1, 1}});
  refuse(tiny, kShapeMismatch, {"weight_scale", "[12, 1]", "mxfp8"});
  tensor_of(tiny, kUpWeight).dtype = "I8";
  refuse(tiny, kShapeMismatch, {"weight_scale", "[12, 1]", "mxfp4"});
}

TEST(HostileWeight, PackedFourBitIsNeverInt8) {
  for (const char* suffix : {".scale", ".weight_scale", ".weight_scale_inv"}) {
    TinyCheckpoint tiny = tiny_fp8();
    remove_tensor(tiny, kScale);
    tensor_of(tiny, kUpWeight).dtype = "I8";
    tiny.files["model.safetensors"].push_back({std::string(kUpStem) + suffix, "F8_E8M0", {12, 1}});
    refuse(tiny, kShapeMismatch, {kUpWeight, "[12, 16]", "[12, 8]"});
    tensor_of(tiny, kUpStem + std::string(suffix)).shape = {1, 1};
    refuse(tiny, kShapeMismatch, {suffix, "[12, 1]", "mxfp4"});
  }
}

TEST(HostileWeight, InSchemesThatCannotBeDecoded) {
  const auto with = [](const std::string& weight_suffix, const std::string& dtype,
                       const std::string& scale_suffix, const std::string& scale_dtype) {
    TinyCheckpoint tiny = tiny_deepseek_v3();
    TinyTensor& weight = tensor_of(tiny, kUpWeight);
    weight.name = kUpStem + weight_suffix;
    weight.dtype = dtype;
    tiny.files["model.safetensors"].push_back({kUpStem + scale_suffix, scale_dtype, {12, 1}});
    return tiny;
  };
  refuse(with(".weight_packed", "I32", ".weight_scale", "BF16"), kMissingTensor, {"weight_shape"});
  refuse(with(".weight_packed", "U8", ".other", "BF16"), kUnsupported, {"unknown scheme"});
  for (const char* dtype : {"F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ"}) {
    refuse(with(".weight", dtype, ".other", "F32"), kMissingTensor, {dtype});
    refuse(with(".weight", dtype, ".weight_scale", "F64"), kDtypeMismatch, {"F64"});
    TinyCheckpoint shifted = with(".weight", dtype, ".weight_scale", "F32");
    shifted.files["model.safetensors"].push_back(
        {std::string(kUpStem) + ".weight_zero_point", "I8", {12, 1}});
    refuse(shifted, kUnsupported, {"a zero point, which a weight in fp8-"});
  }
}

TEST(HostileWeight, OnIntegersWithoutAScale) {
  TinyCheckpoint tiny = tiny_deepseek_v3();
  tensor_of(tiny, kUpWeight).dtype = "I8";
  refuse(tiny, kDtypeMismatch, {kUpWeight, "I8"});
}

TEST(HostileWeight, WithTheWrongShape) {
  TinyCheckpoint tiny = tiny_deepseek_v3();
  tensor_of(tiny, kUpWeight).shape = {8, 12};
  tensor_of(tiny, "model.norm.weight").shape = {4, 2};
  refuse(tiny, kShapeMismatch, {"2 faults", kUpWeight, "[8, 12]", "[12, 8]", "model.norm.weight"});
}

}  // namespace
}  // namespace ingot::formats
