#include "convert/plan/repair.h"
#include "formats/json/json.h"
#include "synth/synth.h"
#include "tests/check/editable_checkpoint.h"
#include "tests/convert/conversion.h"
#include "tests/convert/output_tensors.h"
#include "tests/convert/targets.h"
#include "tests/support/test.h"
#include "tests/support/tiny_checkpoint.h"

// From dialect to dialect without decoding anything.

namespace ingot::convert {
namespace {

using namespace ingot::testing;
using formats::Activations;
using formats::SchemeId;

// Every tensor kept in its scheme, under the names of another dialect.
Conversion rewrap(const std::filesystem::path& from, const std::filesystem::path& to,
                  const std::string& dialect,
                  std::optional<Activations> activations = std::nullopt) {
  Conversion conversion(from, to);
  conversion.recipe.to.reset();
  conversion.recipe.choices.dialect = dialect;
  conversion.recipe.choices.activations = activations;
  return conversion;
}

// Only NVFP4: weights that NVFP4 may not be mixed with are BF16, so that either dialect can hold
// all of it.
Conversion to_nvfp4(const std::filesystem::path& to) {
  Conversion conversion(small_bf16(), to);
  conversion.recipe.to = SchemeId::kNvfp4;
  conversion.recipe.choices.search = quantize::ScaleSearch::kAmax;
  return conversion;
}

// In compressed-tensors and, from there, in modelopt; made once.
const std::filesystem::path& nvfp4_ct() {
  static const TempDir directory;
  static const std::filesystem::path path = [] {
    to_nvfp4(directory / "ct").run();
    return directory / "ct";
  }();
  return path;
}

struct Nvfp4Modelopt {
  TempDir directory;
  std::filesystem::path path = directory / "mo";
  ExecuteReport report = rewrap(nvfp4_ct(), path, "modelopt", Activations::kWeightOnly).run();
};

const Nvfp4Modelopt& nvfp4_mo() {
  static const Nvfp4Modelopt made;
  return made;
}

std::string renamed(std::string name, const std::string& from, const std::string& to) {
  if (name.ends_with(from)) name.replace(name.size() - from.size(), from.size(), to);
  return name;
}

std::size_t count_suffix(const OutputTensors& tensors, const std::string& suffix) {
  return static_cast<std::size_t>(std::count_if(
      tensors.begin(), tensors.end(), [&](const auto& t) { return t.first.ends_with(suffix); }));
}

std::size_t n_released_fp8() {
  return count_suffix(read_output(small_v32()), "_scale_inv");
}

float number(const OutputTensor& tensor) {
  return tensor.as<float>().front();
}

formats::Json config_of(const std::filesystem::path& directory) {
  return formats::read_json_file(directory / "config.json", 1 << 20);
}

using Rewrap = InTempDir;

TEST_F(Rewrap, Fp8BlocksRoundTripThroughCompressedTensors) {
  rewrap(small_v32(), dir_ / "ct", "compressed-tensors").run();
  const OutputTensors released = read_output(small_v32());
  const OutputTensors ct = read_output(dir_ / "ct");
  ASSERT_EQ(ct.size(), released.size());
  EXPECT_EQ(count_suffix(ct, ".weight_scale_inv"), 0U);
  for (const auto& [name, tensor] : released)
    EXPECT_TRUE(ct.at(renamed(name, "_scale_inv", "_scale")) == tensor) << name;

  rewrap(dir_ / "ct", dir_ / "back", "deepseek").run();
  EXPECT_TRUE(read_output(dir_ / "back") == released);
}

// E8M0 has it as code 0; as F32 it is a subnormal number.
TEST_F(Rewrap, TheLeastPowerOfTwoIsOne) {
  formats::SynthOptions options;
  options.family = formats::find_family("deepseek_v3");
  options.size = formats::SynthSize::kTiny;
  options.ue8m0 = options.subnormal_scales = true;
  formats::write_synthetic_checkpoint(dir_ / "source", options);
  Conversion conversion(dir_ / "source", dir_ / "output");
  conversion.recipe.to = SchemeId::kFp8Block;
  conversion.recipe.choices.dialect = "compressed-tensors";
  conversion.run();
  std::size_t n_least = 0;
  for (const auto& [name, tensor] : read_output(dir_ / "output")) {
    if (!name.ends_with(".weight_scale")) continue;
    for (const float scale : tensor.as<float>()) n_least += scale == 0x1p-127F ? 1 : 0;
  }
  EXPECT_GT(n_least, 0U);
}

TEST_F(Rewrap, ItIsNoQuantization) {
  const auto source = formats::Checkpoint::open(small_v32());
  Recipe recipe;
  recipe.choices.dialect = "compressed-tensors";
  const Plan plan = plan_for(source, recipe);
  EXPECT_EQ(plan.counts.rewrapped, n_released_fp8());
  EXPECT_EQ(plan.counts.quantized + plan.counts.cast + plan.counts.demoted, 0U);
  EXPECT_EQ(plan.counts.rewrapped + plan.counts.copied, plan.tensors.size());
}

TEST_F(Rewrap, Nvfp4KeepsCodesAndInvertsTheGlobal) {
  const OutputTensors ct = read_output(nvfp4_ct());
  const OutputTensors mo = read_output(nvfp4_mo().path);
  ASSERT_EQ(mo.size(), ct.size());
  std::size_t inexact = 0;
  for (const auto& [name, tensor] : ct) {
    if (name.ends_with(".weight_global_scale")) {
      const OutputTensor& global = mo.at(renamed(name, "_global_scale", "_scale_2"));
      EXPECT_EQ(number(global), 1.0F / number(tensor)) << name;
      EXPECT_TRUE(global.shape.empty()) << name;
      if (1.0F / number(global) != number(tensor)) ++inexact;
      continue;
    }
    EXPECT_TRUE(mo.at(renamed(name, ".weight_packed", ".weight")) == tensor) << name;
  }
  EXPECT_GT(inexact, 0U) << "or the next test proves nothing";
  EXPECT_EQ(nvfp4_mo().report.quality.inexact_globals, inexact);
}

TEST_F(Rewrap, ScalesOfActivationsGoAlong) {
  Conversion given = to_nvfp4(dir_ / "mo");
  given.recipe.choices.dialect = "modelopt";
  given.recipe.choices.activations = Activations::kStatic;
  given.recipe.choices.input_scale = 0.03F;
  given.run();
  rewrap(dir_ / "mo", dir_ / "ct", "compressed-tensors").run();
  const OutputTensors mo = read_output(dir_ / "mo"), ct = read_output(dir_ / "ct");
  std::size_t n_scales = 0;
  for (const auto& [name, tensor] : mo) {
    if (!name.ends_with(".input_scale")) continue;
    ++n_scales;
    // One multiplies, the other divides.
    EXPECT_EQ(number(ct.at(renamed(name, "_scale", "_global_scale"))), 1.0F / number(tensor))
        << name;
    EXPECT_EQ(number(tensor), 0.03F) << name;
  }
  EXPECT_GT(n_scales, 0U);
  EXPECT_EQ(count_suffix(ct, ".input_global_scale"), n_scales);
}

// Static activations without numbers mean the stored ones.
TEST_F(Rewrap, StaticActivationsTakeTheStoredScales) {
  Conversion given = to_nvfp4(dir_ / "ct");
  given.recipe.choices.activations = Activations::kStatic;
  given.recipe.choices.input_scale = 0.03F;
  given.run();
  Conversion static_too = rewrap(dir_ / "ct", dir_ / "mo", "modelopt", Activations::kStatic);
  static_too.run();
  const OutputTensors ct = read_output(dir_ / "ct"), mo = read_output(dir_ / "mo");
  const std::size_t n_scales = count_suffix(ct, ".input_global_scale");
  EXPECT_GT(n_scales, 0U);
  EXPECT_EQ(count_suffix(mo, ".input_scale"), n_scales);
  for (const auto& [name, tensor] : ct) {
    if (!name.ends_with(".input_global_scale")) continue;
    EXPECT_EQ(number(mo.at(renamed(name, "_global_scale", "_scale"))), 1.0F / number(tensor));
  }
  // A given scale goes before a stored one.
  static_too.output = dir_ / "other";
  static_too.recipe.choices.input_scale = 0.5F;
  static_too.run();
  for (const auto& [name, tensor] : read_output(dir_ / "other")) {
    if (name.ends_with(".input_scale")) {
      EXPECT_EQ(number(tensor), 0.5F) << name;
    }
  }
}

// One weight of static NVFP4 without its scale, as a rarely routed expert.
void missing_input_is_left_out(const std::filesystem::path& dir, const std::string& dialect,
                               const std::string& part) {
  Conversion given = to_nvfp4(dir / "given");
  given.recipe.choices.dialect = dialect;
  given.recipe.choices.activations = Activations::kStatic;
  given.recipe.choices.input_scale = 0.03F;
  given.run();
  const std::string name = "model.layers.1.mlp.experts.5.down_proj";
  EditableCheckpoint edited = EditableCheckpoint::load(dir / "given");
  const auto description = dir / "given" / "hf_quant_config.json";
  if (std::filesystem::exists(description))
    edited.descriptions["hf_quant_config.json"] = formats::read_json_file(description, 1 << 20);
  ASSERT_EQ(edited.tensors.erase(name + "." + part), 1U);
  std::filesystem::create_directory(dir / "in");
  edited.write(dir / "in");
  rewrap(dir / "in", dir / "alone", dialect, Activations::kWeightOnly).run();
  EXPECT_EQ(count_suffix(read_output(dir / "alone"), part), 0U);

  const auto source = formats::Checkpoint::open(dir / "in");
  Recipe recipe;
  recipe.choices.dialect = dialect;
  recipe.choices.repair = std::make_shared<const RepairFacts>(read_repair_facts(source));
  expect_error(
      ErrorCode::kMissingTensor,
      {name + ".weight", "has no " + part, "--activations weight-only", "--activation-scales"},
      [&] { plan_for(source, recipe); });
}

TEST_F(Rewrap, MissingInputScalesAreLeftOutWithTheOthers) {
  missing_input_is_left_out(dir_.path(), "modelopt", "input_scale");
  EXPECT_EQ(config_of(dir_ / "alone")["quantization_config"]["quant_algo"], "W4A16_NVFP4");
}

TEST_F(Rewrap, ExpertsOfOneLayerAllLackInputScales) {
  missing_input_is_left_out(dir_.path(), "compressed-tensors", "input_global_scale");
}

// FP8 blocks in ModelOpt: the scales of DeepSeek in a shape of their own.
TEST_F(Rewrap, Fp8BlocksRoundTripThroughModelopt) {
  Conversion to = rewrap(small_v32(), dir_ / "mo", "modelopt");
  to.recipe.allow.add("engine-refuses=*");
  to.run();
  const OutputTensors released = read_output(small_v32()), mo = read_output(dir_ / "mo");
  EXPECT_EQ(config_of(dir_ / "mo")["quantization_config"]["quant_algo"], "FP8_PB_WO");
  std::size_t n_scales = 0;
  for (const auto& [name, tensor] : released) {
    const OutputTensor& same = mo.at(renamed(name, "_scale_inv", "_scale"));
    EXPECT_EQ(same.bytes, tensor.bytes) << name;
    if (!name.ends_with("_scale_inv")) continue;
    ++n_scales;
    EXPECT_EQ(same.shape, (formats::Shape{tensor.shape[0], 1, tensor.shape[1], 1})) << name;
  }
  EXPECT_GT(n_scales, 0U);
  rewrap(dir_ / "mo", dir_ / "back", "deepseek").run();
  EXPECT_TRUE(read_output(dir_ / "back") == released);
}

TEST_F(Rewrap, TheManifestRestoresEveryGlobalOfNvfp4) {
  const ExecuteReport report =
      rewrap(nvfp4_mo().path, dir_ / "back", "compressed-tensors", Activations::kWeightOnly).run();
  EXPECT_TRUE(read_output(dir_ / "back") == read_output(nvfp4_ct()));
  EXPECT_EQ(report.quality.inexact_globals, 0U);
}

TEST_F(Rewrap, GlobalWithoutManifestIsWithinOneUlp) {
  std::filesystem::copy(nvfp4_mo().path, dir_ / "mo");
  std::filesystem::remove(dir_ / "mo" / "ingot.json");
  const ExecuteReport report =
      rewrap(dir_ / "mo", dir_ / "back", "compressed-tensors", Activations::kWeightOnly).run();
  const OutputTensors ct = read_output(nvfp4_ct());
  const OutputTensors mo = read_output(dir_ / "mo");
  std::size_t changed = 0, inexact = 0;
  for (const auto& [name, tensor] : read_output(dir_ / "back")) {
    if (!name.ends_with(".weight_global_scale")) {
      EXPECT_TRUE(tensor == ct.at(name)) << name;
      continue;
    }
    const float was = number(ct.at(name)), is = number(tensor);
    EXPECT_LE(std::nextafter(was, 0.0F), is) << name;
    EXPECT_GE(std::nextafter(was, 2 * was), is) << name;
    if (is != was) ++changed;
    const float multiplier = number(mo.at(renamed(name, "_global_scale", "_scale_2")));
    if (1.0F / is != multiplier) ++inexact;
  }
  EXPECT_GT(changed, 0U);
  EXPECT_EQ(report.quality.inexact_globals, inexact);
}

// A manifest that belongs to other weights must not lend its globals.
TEST_F(Rewrap, EditedGlobalIsNotTakenFromTheManifest) {
  std::filesystem::copy(nvfp4_mo().path, dir_ / "mo");
  const std::string name = "model.layers.1.mlp.experts.5.down_proj";
  const float edited = 0x1p-10F;
  for (const auto& entry : std::filesystem::directory_iterator(dir_ / "mo")) {
    if (entry.path().extension() != ".safetensors") continue;
    for (const auto& stored :
         formats::read_safetensors_header(Fd::open_for_reading(entry.path())).tensors) {
      if (stored.name != name + ".weight_scale_2") continue;
      Fd::open_for_writing(entry.path(), 02)
          .write_exact(std::as_bytes(std::span(&edited, 1)), stored.offset);
    }
  }
  rewrap(dir_ / "mo", dir_ / "back", "compressed-tensors", Activations::kWeightOnly).run();
  EXPECT_EQ(number(read_output(dir_ / "back").at(name + ".weight_global_scale")), 0x1p10F);
}

TEST_F(Rewrap, Int8RowsRoundTripThroughAscend) {
  Conversion first(small_bf16(), dir_ / "ct");
  first.recipe.to = SchemeId::kInt8Channel;
  first.run();
  const OutputTensors ct = read_output(dir_ / "ct");
  rewrap(dir_ / "ct", dir_ / "ms", "modelslim").run();
  const OutputTensors ms = read_output(dir_ / "ms");
  const std::size_t n_quantized = count_suffix(ct, ".weight_scale");
  EXPECT_GT(n_quantized, 70U);
  EXPECT_EQ(ms.size(), ct.size() + n_quantized);
  for (const auto& [name, tensor] : ct) EXPECT_TRUE(ms.at(name) == tensor) << name;
  for (const auto& [name, tensor] : ms) {
    if (!name.ends_with(".weight_offset")) continue;
    EXPECT_TRUE(
        std::all_of(tensor.bytes.begin(), tensor.bytes.end(), [](char c) { return c == 0; }));
    EXPECT_EQ(tensor.shape, ms.at(renamed(name, "_offset", "_scale")).shape) << name;
  }
  rewrap(dir_ / "ms", dir_ / "back", "compressed-tensors").run();
  EXPECT_TRUE(read_output(dir_ / "back") == ct);
}

// A rewrap is no copy: its parts are written, and nothing that is written may be NaN.
TEST_F(Rewrap, NanCodeIsRefusedUnlessAllowed) {
  copy_small(dir_ / "in");
  const std::string weight = "model.layers.2.mlp.experts.4.up_proj.weight";
  const auto file = dir_ / "in" / read_output(small_v32()).at(weight).file;
  for (const auto& stored : formats::read_safetensors_header(Fd::open_for_reading(file)).tensors) {
    if (stored.name != weight) continue;
    const auto nan = std::byte{0xFF};
    Fd::open_for_writing(file, 02).write_exact({&nan, 1}, stored.offset + 5 * 256 + 9);
  }
  Conversion conversion = rewrap(dir_ / "in", dir_ / "ct", "compressed-tensors");
  expect_error(ErrorCode::kNonFinite, {weight, "row 5", "column 9", "nan-code"},
               [&] { conversion.run(); });
  conversion.output = dir_ / "allowed";
  conversion.recipe.allow.add("nan-code=" + weight);
  conversion.run();
}

// The tools of compressed-tensors write scales in BF16.
TEST_F(Rewrap, NarrowScalesAreWidenedExactly) {
  TinyCheckpoint checkpoint;
  checkpoint.config = R"({"quantization_config": {"quant_method": "compressed-tensors",
    "format": "int-quantized", "config_groups": {"group_0": {"targets": ["Linear"], "weights":
      {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": true, "dynamic": false},
      "input_activations": {"num_bits": 8, "type": "int", "strategy": "token", "symmetric": true,
      "dynamic": true}}}, "ignore": [], "quantization_status": "compressed"}})";
  const std::vector<std::uint16_t> words = {0x3F80, 0x3C01, 0x0001};
  checkpoint.files["model.safetensors"] = {
      {"a.weight_scale",
       "BF16",
       {3, 1},
       std::string(reinterpret_cast<const char*>(words.data()), 6)},
      {"a.weight", "I8", {3, 2}, "\x7f\x81\x01\x02\x03\x04"}};
  checkpoint.write(dir_ / "in");
  Conversion conversion = rewrap(dir_ / "in", dir_ / "out", "modelslim");
  conversion.family = "generic";
  conversion.run();
  const OutputTensors output = read_output(dir_ / "out");
  EXPECT_EQ(output.at("a.weight").bytes, "\x7f\x81\x01\x02\x03\x04");
  EXPECT_EQ(output.at("a.weight_scale").as<std::uint32_t>(),
            (std::vector<std::uint32_t>{0x3F800000, 0x3C010000, 0x00010000}));
}

TEST_F(Rewrap, DialectWithoutTheSchemeGetsBf16) {
  const auto source = formats::Checkpoint::open(small_v32());
  for (const char* dialect : {"modelslim"}) {
    Recipe recipe;
    recipe.choices.dialect = dialect;
    const Plan plan = plan_for(source, recipe);
    EXPECT_EQ(plan.counts.demoted, n_released_fp8()) << dialect;
    EXPECT_EQ(plan.counts.rewrapped, 0U) << dialect;
  }
}

}  // namespace
}  // namespace ingot::convert
