#include "tests/convert/conversion.h"
#include "tests/convert/output_tensors.h"
#include "tests/convert/program_decode.h"
#include "tests/support/test.h"

// Weights that a loader fuses share one global scale: that of the largest magnitude of all.

namespace ingot::convert {
namespace {

using formats::SchemeId;
using namespace ingot::testing;

// The other member of a fused pair, or empty for a tensor without one.
std::string partner_of(const std::string& weight) {
  const std::pair<std::string, std::string> pairs[] = {
      {"gate_proj.weight", "up_proj.weight"}, {"q_a_proj.weight", "kv_a_proj_with_mqa.weight"}};
  for (const auto& [a, b] : pairs) {
    if (weight.ends_with("." + a)) return weight.substr(0, weight.size() - a.size()) + b;
    if (weight.ends_with("." + b)) return weight.substr(0, weight.size() - b.size()) + a;
  }
  return "";
}

// Largest magnitude of a weight of the example, decoded once per process.
float amax_of(const std::string& weight) {
  static const auto source = formats::Checkpoint::open(small_v32());
  static std::map<std::string, float> known;
  const auto [at, is_new] = known.try_emplace(weight);
  if (!is_new) return at->second;
  const auto tensor = std::ranges::find(source.tensors(), weight, &formats::LogicalTensor::name);
  for (const float value : decoded(source, *tensor))
    at->second = std::max(at->second, std::abs(value));
  return at->second;
}

// Largest magnitude of a weight and of the weights fused with it.
float group_amax(const std::string& weight) {
  const std::string partner = partner_of(weight);
  return partner.empty() ? amax_of(weight) : std::max(amax_of(weight), amax_of(partner));
}

// Every global scale of an output, by weight.
std::map<std::string, float> globals(const OutputTensors& output, const std::string& suffix) {
  std::map<std::string, float> found;
  for (const auto& [name, tensor] : output) {
    if (name.ends_with(suffix) && tensor.bytes.size() == sizeof(float))
      found[name.substr(0, name.size() - suffix.size()) + ".weight"] = tensor.as<float>().front();
  }
  return found;
}

Conversion to_nvfp4(const std::filesystem::path& from, const std::filesystem::path& to) {
  Conversion conversion(from, to);
  conversion.recipe.to = SchemeId::kNvfp4;
  conversion.recipe.choices.search = quantize::ScaleSearch::kAmax;
  conversion.recipe.choices.quantize_attention = true;
  return conversion;
}

// A source in which the members of most pairs are in different files.
std::filesystem::path many_files(const TempDir& directory) {
  Conversion conversion(small_v32(), directory / "many");
  conversion.recipe.to.reset();
  conversion.plan.shards.max_shard_bytes = 230'000;
  conversion.run();
  return directory / "many";
}

std::size_t pairs_in_two_files(const OutputTensors& tensors) {
  std::size_t n = 0;
  for (const auto& [name, tensor] : tensors) {
    const std::string partner = partner_of(name);
    if (!partner.empty() && tensors.at(partner).file != tensor.file) ++n;
  }
  return n / 2;
}

using FusedGroup = InTempDir;

TEST_F(FusedGroup, Nvfp4GlobalComesFromTheLargestTensor) {
  const struct {
    const char* dialect;
    const char* suffix;
    std::optional<formats::Activations> activations;
  } rows[] = {{"compressed-tensors", ".weight_global_scale", {}},
              {"modelopt", ".weight_scale_2", formats::Activations::kWeightOnly}};
  for (const auto& row : rows) {
    const TempDir directory;
    Conversion conversion = to_nvfp4(small_v32(), directory / "out");
    conversion.recipe.choices.dialect = row.dialect;
    conversion.recipe.choices.activations = row.activations;
    conversion.run();
    const auto found = globals(read_output(directory / "out"), row.suffix);
    // Layers 0 and 1: 8 routed experts and a shared one, 1 dense MLP, and 4 projections each.
    EXPECT_EQ(found.size(), 3U * (8 + 1 + 1) + 2U * 4);
    std::size_t pairs = 0, unequal = 0;
    for (const auto& [weight, global] : found) {
      const float amax = group_amax(weight);
      const bool divides = std::string_view(row.dialect) == "compressed-tensors";
      EXPECT_EQ(global, divides ? 2688.0F / amax : amax / 2688.0F) << weight;
      const std::string partner = partner_of(weight);
      if (partner.empty()) continue;
      ++pairs;
      EXPECT_EQ(found.at(partner), global) << weight;
      if (amax_of(weight) != amax) ++unequal;
    }
    EXPECT_EQ(pairs, 2U * (8 + 1 + 1 + 2));
    EXPECT_GT(unequal, 5U) << "members of one magnitude would prove nothing";
  }
}

TEST_F(FusedGroup, SmallerSearchRangesShareTheirGlobal) {
  Conversion conversion = to_nvfp4(small_v32(), dir_ / "out");
  conversion.recipe.choices.search = quantize::ScaleSearch::kFourOverSix;
  conversion.run();
  for (const auto& [weight, global] : globals(read_output(dir_ / "out"), ".weight_global_scale"))
    EXPECT_EQ(global, 1536.0F / group_amax(weight)) << weight;
}

TEST_F(FusedGroup, Fp8TensorScaleComesFromTheLargestTensor) {
  for (const bool is_power : {false, true}) {
    const TempDir directory;
    Conversion conversion(small_v32(), directory / "out");
    conversion.recipe.to = SchemeId::kFp8Tensor;
    conversion.recipe.choices.fp8_grid =
        is_power ? quantize::Fp8Grid::kUe8m0 : quantize::Fp8Grid::kAmax;
    conversion.run();
    const auto found = globals(read_output(directory / "out"), ".weight_scale");
    std::size_t pairs = 0;
    for (const auto& [weight, scale] : found) {
      const float exact = group_amax(weight) / 448.0F;
      EXPECT_EQ(scale, is_power ? std::exp2(std::ceil(std::log2(exact))) : exact) << weight;
      if (partner_of(weight).empty()) continue;
      ++pairs;
      EXPECT_EQ(found.at(partner_of(weight)), scale) << weight;
    }
    EXPECT_EQ(pairs, 2U * (16 + 2 + 1 + 3)) << "the MTP layer is converted as any other";
  }
}

TEST_F(FusedGroup, MembersInDifferentFilesGiveTheSameBytes) {
  const std::filesystem::path many = many_files(dir_);
  EXPECT_GT(pairs_in_two_files(read_output(many)), 5U);
  EXPECT_EQ(pairs_in_two_files(read_output(small_v32())), 1U) << "expert 6 of layer 1";
  for (const SchemeId scheme : {SchemeId::kNvfp4, SchemeId::kFp8Tensor}) {
    const std::string name(formats::scheme_facts(scheme).name);
    Conversion together = to_nvfp4(small_v32(), dir_ / ("together-" + name));
    Conversion apart = to_nvfp4(many, dir_ / ("apart-" + name));
    together.recipe.to = apart.recipe.to = scheme;
    apart.execute.threads = 2;
    together.run();
    apart.run();
    EXPECT_TRUE(read_output(together.output) == read_output(apart.output)) << name;
  }
}

TEST_F(FusedGroup, ZeroTensorTakesTheGlobalOfItsPartner) {
  copy_small(dir_ / "in");
  const std::string zeroed = "model.layers.1.mlp.experts.3.up_proj.weight";
  const OutputTensors source = read_output(dir_ / "in");
  const auto file = dir_ / "in" / source.at(zeroed).file;
  for (const auto& stored : formats::read_safetensors_header(Fd::open_for_reading(file)).tensors) {
    if (stored.name != zeroed) continue;
    const std::vector<std::byte> zeros(stored.n_bytes);
    Fd::open_for_writing(file, 02).write_exact(zeros, stored.offset);
  }
  to_nvfp4(dir_ / "in", dir_ / "out").run();
  const OutputTensors output = read_output(dir_ / "out");
  const std::string module = module_of(zeroed);
  const float amax = amax_of(partner_of(zeroed));
  EXPECT_EQ(output.at(module + ".weight_global_scale").as<float>().front(), 2688.0F / amax);
  for (const char code : output.at(module + ".weight_packed").bytes) ASSERT_EQ(code & 0x77, 0);
  for (const auto code : output.at(module + ".weight_scale").as<std::uint8_t>()) {
    ASSERT_NE(code & 0x7F, 0);
    ASSERT_NE(code & 0x7F, 0x7F);
  }
}

TEST_F(FusedGroup, RefusesRulesThatSplitAPair) {
  const struct {
    const char* rule;
    const char* member;
    const char* partner;
  } rows[] = {
      {"model.layers.1.mlp.experts.7.gate_proj.weight=nvfp4",
       "model.layers.1.mlp.experts.7.gate_proj", "model.layers.1.mlp.experts.7.up_proj"},
      {"model.layers.2.mlp.shared_experts.up_proj.weight=bf16",
       "model.layers.2.mlp.shared_experts.up_proj", "model.layers.2.mlp.shared_experts.gate_proj"},
      {"model.layers.0.self_attn.q_a_proj.weight=fp8-tensor", "model.layers.0.self_attn.q_a_proj",
       "model.layers.0.self_attn.kv_a_proj_with_mqa"},
      {"model.layers.0.mlp.up_proj.weight=int8", "model.layers.0.mlp.up_proj",
       "model.layers.0.mlp.gate_proj"}};
  for (const auto& row : rows) {
    Conversion conversion(small_v32(), dir_ / "out");
    conversion.recipe.to.reset();
    conversion.recipe.choices.dialect = "compressed-tensors";
    conversion.recipe.rules = {parse_rule(row.rule)};
    expect_error(ErrorCode::kInvalidArgument, {row.member, row.partner, "fuse"},
                 [&] { conversion.run(); });
  }
  EXPECT_FALSE(std::filesystem::exists(dir_ / "out"));
}

TEST_F(FusedGroup, RulesThatTakeBothMembersAreNotRefused) {
  Conversion conversion(small_v32(), dir_ / "out");
  conversion.recipe.to.reset();
  conversion.recipe.choices.dialect = "compressed-tensors";
  conversion.recipe.rules = {parse_rule("re:model.layers.0.mlp.(gate|up)_proj=nvfp4")};
  conversion.run();
  EXPECT_EQ(globals(read_output(dir_ / "out"), ".weight_global_scale").size(), 2U);
}

}  // namespace
}  // namespace ingot::convert
