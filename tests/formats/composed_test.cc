#include "formats/composed.h"

#include "formats/edited_tensors.h"
#include "formats/family/cache_scales.h"
#include "formats/json/json.h"
#include "formats/overlay.h"
#include "tests/support/test.h"
#include "tests/support/tiny_checkpoint.h"

// One model of the tensors of several checkpoints, of a few stored tensors over others, and of
// values that are edited: views, by headers only.

namespace ingot::formats {
namespace {

using namespace ingot::testing;
using enum ErrorCode;

constexpr const char* kUpScale = "model.layers.0.mlp.up_proj.weight_scale_inv";
constexpr const char* kHead = "lm_head.weight";
constexpr const char* kCacheScale = "model.layers.0.self_attn.k_proj.k_scale";

std::uint32_t index_of(const Checkpoint& model, std::string_view name) {
  for (std::uint32_t i = 0; i < model.tensors().size(); ++i) {
    if (model.tensors()[i].name == name) return i;
  }
  throw std::runtime_error("no logical tensor " + std::string(name));
}

const LogicalTensor& tensor_named(const Checkpoint& model, std::string_view name) {
  return model.tensors()[index_of(model, name)];
}

std::string bytes_of_part(const Checkpoint& model, std::string_view name, Part part) {
  const std::uint32_t stored = tensor_named(model, name).encoding.stored[part];
  std::string bytes(model.stored()[stored].n_bytes, '\0');
  model.read(stored, 0, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

std::string name_of_file(const Checkpoint& model, std::string_view name) {
  return model.files()[model.stored()[tensor_named(model, name).encoding.stored.weight()].file]
      .name;
}

std::shared_ptr<const Checkpoint> opened(const std::filesystem::path& directory) {
  return std::make_shared<const Checkpoint>(Checkpoint::open(directory));
}

/// Every tensor of the base, and of the second giver those of these names in their place.
std::vector<TakenTensor> taken_of(const Checkpoint& base, const Checkpoint& second,
                                  const std::vector<std::string>& names) {
  std::vector<TakenTensor> taken;
  for (std::uint32_t i = 0; i < base.tensors().size(); ++i) {
    const std::string& name = base.tensors()[i].name;
    if (std::ranges::find(names, name) == names.end()) taken.push_back({.tensor = i});
  }
  for (const std::string& name : names)
    taken.push_back({.giver = 1, .tensor = index_of(second, name)});
  return taken;
}

class ComposedModels : public InTempDir {
 protected:
  ComposedModels() {
    tensor_of(base_, kUpWeight).data = std::string(192, 'b');
    make_fp8(own_, kUpWeight, kUpScale);
    own_.config.insert(own_.config.rfind('}'), R"(, "quantization_config": {"quant_method": "fp8",
        "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]})");
    tensor_of(own_, kUpWeight).data = std::string(96, 'o');
  }

  [[nodiscard]] Checkpoint composed_model(const std::vector<std::string>& taken) const {
    base_.write(dir_ / "base");
    own_.write(dir_ / "own");
    const auto base = opened(dir_ / "base"), own = opened(dir_ / "own");
    return composed({{std::string(kBaseGiver), base}, {"own", own}}, taken_of(*base, *own, taken));
  }

  TinyCheckpoint base_ = tiny_deepseek_v3(), own_ = tiny_deepseek_v3();
};

TEST_F(ComposedModels, HaveEachTensorAsItsGiverHasIt) {
  const Checkpoint model = composed_model({kUpWeight});
  EXPECT_EQ(tensor_named(model, kUpWeight).encoding.scheme, SchemeId::kFp8Block);
  EXPECT_EQ(bytes_of_part(model, kUpWeight, Part::kWeight), std::string(96, 'o'));
  EXPECT_EQ(bytes_of_part(model, kUpWeight, Part::kScale), std::string(4, '\0'));
  EXPECT_EQ(name_of_file(model, kUpWeight), "own/model.safetensors");
  EXPECT_EQ(name_of_file(model, kHead), "model.safetensors");
  EXPECT_TRUE(is_taken(tensor_named(model, kUpWeight)));
  EXPECT_EQ(model.tensors().size(), model.givers()[0].model->tensors().size());
}

TEST_F(ComposedModels, ReadEachTensorByTheWordsOfItsGiver) {
  const Checkpoint model = composed_model({kUpWeight, kHead});
  const StoredActivations said(model);
  EXPECT_EQ(said.of(tensor_named(model, kUpWeight)), Activations::kDynamic);
  EXPECT_TRUE(model.giver_of(tensor_named(model, kUpWeight)).config().quantization.has_value());
  EXPECT_FALSE(
      model.giver_of(tensor_named(model, "model.norm.weight")).config().quantization.has_value());
}

TEST_F(ComposedModels, PutNewTensorsIntoFilesOfTheirGiver) {
  const auto split = [](TinyCheckpoint& tiny) {
    auto& all = tiny.files["model.safetensors"];
    tiny.files["model-00001-of-00002.safetensors"] = {all.begin(), all.begin() + 3};
    tiny.files["model-00002-of-00002.safetensors"] = {all.begin() + 3, all.end()};
    tiny.files.erase("model.safetensors");
    tiny.index_files();
  };
  split(base_);
  split(own_);
  std::erase_if(base_.files["model-00001-of-00002.safetensors"],
                [](const TinyTensor& tensor) { return tensor.name == kHead; });
  base_.weight_map.erase(kHead);
  base_.config.insert(base_.config.rfind('}'), R"(, "tie_word_embeddings": true)");
  const Checkpoint model = composed_model({kHead, kUpWeight});
  const auto home = [&](const char* name) {
    return model.home_file(tensor_named(model, name).encoding.stored.weight());
  };
  EXPECT_EQ(home(kHead), "model-own-00001-of-00002.safetensors");
  EXPECT_EQ(home(kUpWeight), "model-00002-of-00002.safetensors");
}

class Overlays : public InTempDir {
 protected:
  [[nodiscard]] Checkpoint overlaid() const {
    base_.write(dir_ / "base");
    TinyCheckpoint{.config = {}, .files = {{"some.safetensors", tensors_}}, .weight_map = {}}.write(
        dir_ / "few");
    return with_overlay(
        opened(dir_ / "base"),
        {.name = "few",
         .model = std::make_shared<const Checkpoint>(open_loose_tensors(dir_ / "few", 1))},
        1);
  }

  TinyCheckpoint base_ = tiny_deepseek_v3();
  std::vector<TinyTensor> tensors_ = {{kHead, "BF16", {16, 8}, std::string(256, 'h')}};
};

TEST_F(Overlays, TakeThePlaceOfTensorsOfTheirNames) {
  tensor_of(base_, kUpWeight).data = std::string(192, 'b');
  const Checkpoint model = overlaid();
  EXPECT_EQ(bytes_of_part(model, kHead, Part::kWeight), std::string(256, 'h'));
  EXPECT_EQ(name_of_file(model, kHead), "few/some.safetensors");
  EXPECT_EQ(model.home_file(tensor_named(model, kHead).encoding.stored.weight()),
            "model.safetensors");
  EXPECT_EQ(bytes_of_part(model, kUpWeight, Part::kWeight), std::string(192, 'b'));
  EXPECT_EQ(model.stored().size(), base_.files.begin()->second.size());
}

TEST_F(Overlays, AddScalesOfACacheNextToTheirModule) {
  tensors_ = {{kCacheScale, "F32", {1}, std::string("\0\0\200\77", 4)}};
  const Checkpoint model = overlaid();
  EXPECT_TRUE(is_cache_scale(tensor_named(model, kCacheScale).rule));
  EXPECT_EQ(model.stored().size(), base_.files.begin()->second.size() + 1);
  EXPECT_EQ(model.home_file(tensor_named(model, kCacheScale).encoding.stored.weight()),
            "model.safetensors");
}

TEST_F(Overlays, ChangeTheEncodingOfWeightsByTheirParts) {
  make_fp8(base_, kUpWeight, "model.layers.0.mlp.up_proj.weight_scale");
  tensors_ = {{"model.layers.0.mlp.up_proj.input_scale", "F32", {1}}};
  EXPECT_TRUE(tensor_named(overlaid(), kUpWeight).encoding.stored.has(Part::kInputScale));
}

TEST_F(Overlays, OfOtherShapesOrNamesAreRefused) {
  tensors_[0].shape = {8, 16};
  expect_error(kShapeMismatch, "few...lm_head.weight...[8, 16]...[16, 8]...`edits`",
               [&] { (void)overlaid(); });
  tensors_ = {{"lm_hed.weight", "BF16", {16, 8}}};
  expect_error(kUnknownTensor, "overlay 'few'...lm_hed.weight", [&] { (void)overlaid(); });
}

TEST_F(Overlays, WithoutTensorsOrWithTwoOfANameAreRefused) {
  std::filesystem::create_directories(dir_ / "none");
  expect_error(kMissingTensor, "none: holds no tensors",
               [&] { (void)open_loose_tensors(dir_ / "none", 1); });
  TinyCheckpoint{.config = {},
                 .files = {{"a.safetensors", tensors_}, {"b.safetensors", tensors_}},
                 .weight_map = {}}
      .write(dir_ / "twice");
  expect_error(kDuplicate, "b.safetensors...lm_head.weight...is in a.safetensors too",
               [&] { (void)open_loose_tensors(dir_ / "twice", 1); });
}

class Edits : public InTempDir {
 protected:
  [[nodiscard]] EditedTensors written(std::vector<TinyTensor> tensors) const {
    TinyCheckpoint{
        .config = {}, .files = {{"edits.safetensors", std::move(tensors)}}, .weight_map = {}}
        .write(dir_ / "edits");
    return EditedTensors(dir_ / "edits", 1);
  }
  [[nodiscard]] ValueChanges changes(std::vector<TinyTensor> tensors) const {
    tiny_deepseek_v3().write(dir_ / "base");
    const Checkpoint model = Checkpoint::open(dir_ / "base");
    ValueChanges changes;
    ErrorList faults;
    std::vector<std::string> remarks;
    written(std::move(tensors)).add_changes(model, changes, faults, remarks);
    faults.throw_if_any();
    EXPECT_EQ(changes.size(), 1U);
    EXPECT_EQ(changes.begin()->first, index_of(model, kUpWeight));
    return changes;
  }

  const TinyTensor values_{.name = kUpWeight, .dtype = "F32", .shape = {12, 8}},
      right_{.name = "model.layers.0.mlp.up_proj.lora_A.weight", .dtype = "BF16", .shape = {2, 8}},
      left_{.name = "model.layers.0.mlp.up_proj.lora_B.weight", .dtype = "BF16", .shape = {12, 2}};
};

TEST_F(Edits, AddAPairToNewValues) {
  const ValueChanges found = changes({values_, right_, left_});
  ASSERT_EQ(found.begin()->second.size(), 1U);
  const ValueChange& change = found.begin()->second.front();
  EXPECT_TRUE(change.values.has_value());
  ASSERT_TRUE(change.low_rank.has_value());
  EXPECT_EQ(change.low_rank->rank, 2U);
  EXPECT_EQ(change.rows.n, 12U);
  EXPECT_EQ(change.cols.n, 8U);
}

TEST_F(Edits, OfPairsKeepTheDecodedValues) {
  const ValueChanges found = changes({right_, left_});
  EXPECT_FALSE(found.begin()->second.front().values.has_value());
}

TEST_F(Edits, AreRecordedByTheirBytes) {
  TinyTensor other = values_;
  const Json before = written({values_}).record();
  EXPECT_EQ(written({values_}).record(), before);
  other.data = std::string(384, '\1');
  EXPECT_NE(written({other}).record(), before);
}

TEST_F(Edits, ThatFitNoTensorAreRefused) {
  TinyTensor wrong = values_;
  wrong.shape = {8, 12};
  expect_error(kShapeMismatch, "edits.safetensors...has shape [8, 12]...[12, 8]",
               [&] { (void)changes({wrong}); });
  wrong = values_;
  wrong.name = "model.layers.9.mlp.up_proj.weight";
  expect_error(kMissingTensor, "layers.9...which the model does not have",
               [&] { (void)changes({wrong}); });
  wrong = values_;
  wrong.dtype = "I32";
  expect_error(kDtypeMismatch, "is I32: edits are values", [&] { (void)changes({wrong}); });
  expect_error(kMissingTensor, "is half of a low-rank pair: 'lora_B.weight'",
               [&] { (void)changes({right_}); });
  wrong = left_;
  wrong.shape = {12, 3};
  expect_error(kShapeMismatch, "lora_A [2, 8]", [&] { (void)changes({right_, wrong}); });
  wrong = left_;
  wrong.shape = {12, 0};
  TinyTensor none = right_;
  none.shape = {0, 8};
  expect_error(kShapeMismatch, "has shape [12, 0]", [&] { (void)changes({none, wrong}); });
}

}  // namespace
}  // namespace ingot::formats
