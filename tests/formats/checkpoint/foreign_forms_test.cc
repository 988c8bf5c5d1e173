#include "formats/checkpoint/checkpoint.h"
#include "tests/support/test.h"
#include "tests/support/tiny_checkpoint.h"

// Checkpoints in forms that are not read: each is told by one cause, not by the faults of names and
// shapes that follow from it.

namespace ingot::formats {
namespace {

namespace fs = std::filesystem;
using namespace ingot::testing;
using ingot::testing::expect_error;

class ForeignForms : public InTempDir {
 protected:
  /// One fault in all, with these words; family generic opens it with the same words as a remark.
  void expect_cause(ErrorCode code, std::initializer_list<std::string> words) const {
    expect_error(code, words, [&] { Checkpoint::open(dir_ / "m"); });
    ErrorList faults;
    (void)Checkpoint::open(dir_ / "m", {.faults = &faults});
    EXPECT_EQ(faults.errors().size(), 1U);
    const Checkpoint any = Checkpoint::open(dir_ / "m", {.family = "generic"});
    EXPECT_TRUE(std::ranges::any_of(any.remarks(), [&](const std::string& remark) {
      return std::ranges::all_of(
          words, [&](const std::string& word) { return remark.find(word) != std::string::npos; });
    })) << ::testing::PrintToString(any.remarks());
  }
  /// Replaces the weight of each dense projection by these parts, called X.PART.
  void replace_dense(const std::string& parts) {
    auto& tensors = tiny_.files.at("model.safetensors");
    std::vector<TinyTensor> kept;
    for (const TinyTensor& tensor : tensors) {
      const std::string module = tensor.name.substr(0, tensor.name.rfind('.'));
      if (module.find("layers.0.mlp.") == std::string::npos) {
        kept.push_back(tensor);
        continue;
      }
      for (TinyTensor part : tensors_of(parts)) {
        part.name = module + "." + part.name;
        kept.push_back(std::move(part));
      }
    }
    tensors = std::move(kept);
    tiny_.write(dir_ / "m");
  }

  TinyCheckpoint tiny_ = tiny_deepseek_v3();
};

TEST_F(ForeignForms, BitsandbytesIsToldByItsParts) {
  replace_dense("weight I8 8,8; SCB F32 8; weight_format U8");
  expect_cause(ErrorCode::kUnsupported, {"SCB' and 2 more", "bitsandbytes' INT8", "dequantize()"});
  tiny_ = tiny_deepseek_v3();
  replace_dense(
      "weight U8 32,1; weight.absmax U8 1; weight.quant_map F32 16; "
      "weight.quant_state.bitsandbytes__nf4 U8 4");
  expect_cause(ErrorCode::kUnsupported, {"bitsandbytes' NF4 or FP4"});
}

TEST_F(ForeignForms, SparseWeightsAreToldByTheirBits) {
  replace_dense("compressed BF16 8,4; bitmask U8 8,1; shape I64 2");
  expect_cause(ErrorCode::kUnsupported, {"bitmask' and 2 more", "2:4 sparse weights"});
  tiny_ = tiny_deepseek_v3();
  replace_dense("weight_packed I32 8,4; meta F16 8,1; scale_packed BF16 8,1");
  expect_cause(ErrorCode::kUnsupported, {"meta' and 2 more", "2:4 sparse codes", "Marlin"});
  tiny_ = tiny_deepseek_v3();
  replace_dense("compressed BF16 8,4; bitmask U8 8,1; row_offsets I64 8,1; shape I64 2");
  expect_cause(ErrorCode::kUnsupported, {"row_offsets' and 2 more", "tensors' sparse weights"});
}

TEST_F(ForeignForms, ToolsAreToldByTheirPartsWithoutABlock) {
  const std::vector<std::pair<std::string, std::string>> forms = {
      {"HQQ's", "W_q U8 4,8; scale F16 1,8; zero F16 1,8"},
      {"EETQ's", "weight I8 8,8; weight_scales F16 8"},
      {"EETQ's", "qweight I8 8,8; weight_scales F16 8"},
      {"MLX's", "weight U8 8,4; scales BF16 8,1; biases BF16 8,1"},
      {"TorchAO's", "_weight_qdata F8_E4M3 8,8; _weight_scale F32 8,1"},
      {"VPTQ's", "centroids.weight F16 1,8; indices I32 1,8,8; weight_scale F16 8"},
      {"SpQR's", "dense_weights I64 8; row_offsets I32 9"},
      {"FP-Quant's", "qweight U8 8,4; forward_hadamard_matrix BF16 8,8"},
      {"QuIP#'s", "Qidxs I64 8,1; SU F16 8"},
  };
  for (const auto& [tool, parts] : forms) {
    SCOPED_TRACE(tool);
    tiny_ = tiny_deepseek_v3();
    replace_dense(parts);
    expect_cause(ErrorCode::kUnsupported, {tool, "and 2 more"});
  }
}

TEST_F(ForeignForms, PartsOfSparseCodesAreCopiedEachByItself) {
  const auto open_generic = [&] { return Checkpoint::open(dir_ / "m", {.family = "generic"}); };
  // Their names are those of parts of packed codes, and a scale without its weight.
  replace_dense("weight_packed I32 8,4; meta F16 8,1; weight_scale BF16 8,1");
  const Checkpoint packed = open_generic();
  EXPECT_EQ(packed.tensors().size(), packed.stored().size());
  tiny_ = tiny_deepseek_v3();
  replace_dense("compressed F8_E4M3 8,4; bitmask U8 8,1; shape I64 2; weight_scale BF16 8,1");
  const Checkpoint masked = open_generic();
  EXPECT_EQ(masked.tensors().size(), masked.stored().size());
  for (const Checkpoint* checkpoint : {&packed, &masked}) {
    for (const LogicalTensor& tensor : checkpoint->tensors())
      EXPECT_EQ(tensor.name, checkpoint->stored()[tensor.encoding.stored.weight()].name);
  }
}

TEST_F(ForeignForms, BlocksOfLlamaCppAreToldByTheConfig) {
  tiny_.config.insert(1, R"("quantization_config": {"quant_method": "modelopt",
      "quant_algo": "MIXED_PRECISION", "quantized_layers": {
      "model.layers.0.mlp.up_proj": {"quant_algo": "Q8_0", "packing": "ggml", "group_size": 32},
      "model.layers.0.mlp.down_proj": {"quant_algo": "IQ2_XS", "packing": "ggml"}}},)");
  replace_dense("weight U8 8,1,34");
  expect_cause(ErrorCode::kUnsupported, {"ggml of 2 modules", "llama.cpp's blocks (IQ2_XS, Q8_0)"});
}

TEST_F(ForeignForms, AlgosOfOtherActivationsAreNoNvfp4) {
  for (const char* algo :
       {"W4A8_AWQ", "W4A8_NVFP4_FP8", "W4A8_MXFP4_FP8", "NVFP4_SVD", "NVFP4_SVDQUANT"}) {
    tiny_ = tiny_deepseek_v3();
    tiny_.config.insert(
        1,
        fmt::format(R"("quantization_config": {{"quant_method": "modelopt", "quant_algo": "{}"}},)",
                    algo));
    replace_dense("weight U8 8,8; weight_scale F8_E4M3 8,1; weight_scale_2 F32; input_scale F32");
    expect_cause(ErrorCode::kUnsupported, {algo, "ModelOpt's"});
  }
}

TEST_F(ForeignForms, W4AFp8IsNamed) {
  tiny_.config.insert(1, R"("quantization_config": {"quant_method": "w4afp8"},)");
  replace_dense("weight I8 8,8; weight_scale_inv F32 8,1; input_scale F32");
  expect_error(ErrorCode::kUnsupported, {"w4afp8", "SGLang loads it"},
               [&] { Checkpoint::open(dir_ / "m"); });
}

TEST_F(ForeignForms, EmptyWeightsWereNotGathered) {
  replace_dense("weight BF16 0");
  expect_cause(ErrorCode::kShapeMismatch, {"and 2 more are of shape [0], empty", "ZeRO 3"});
}

TEST_F(ForeignForms, MistralsOwnFilesAreNamed) {
  tiny_.config.clear();
  tiny_.write(dir_ / "m");
  expect_error(ErrorCode::kNotFound, {"config.json", "is missing"},
               [&] { Checkpoint::open(dir_ / "m"); });
  write_bytes(dir_ / "m/params.json", "{\"dim\": 8}");
  fs::rename(dir_ / "m/model.safetensors", dir_ / "m/consolidated.safetensors");
  expect_error(ErrorCode::kUnsupported,
               {"params.json and consolidated*.safetensors", "config.json"},
               [&] { Checkpoint::open(dir_ / "m"); });
  EXPECT_FALSE(Checkpoint::open(dir_ / "m", {.family = "generic"}).tensors().empty());
}

TEST_F(ForeignForms, LinksToNothingAreOneFault) {
  tiny_.write(dir_ / "m");
  for (const char* name : {"config.json", "model.safetensors"}) {
    fs::rename(dir_ / "m" / name, dir_ / name);
    fs::create_symlink(dir_ / name, dir_ / "m" / name);
  }
  EXPECT_FALSE(Checkpoint::open(dir_ / "m").tensors().empty());
  fs::create_symlink("../../blobs/0123", dir_ / "m/tokenizer.json");
  expect_error(ErrorCode::kNotFound, {"tokenizer.json", "../../blobs/0123", "cp -rL"},
               [&] { Checkpoint::open(dir_ / "m"); });
  fs::remove(dir_ / "config.json");
  fs::remove(dir_ / "model.safetensors");
  expect_error(ErrorCode::kNotFound, {"config.json", "2 more files"},
               [&] { Checkpoint::open(dir_ / "m"); });
}

}  // namespace
}  // namespace ingot::formats
