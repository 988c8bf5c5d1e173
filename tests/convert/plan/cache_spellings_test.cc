#include <bit>

#include "check/check.h"
#include "formats/cache_views.h"
#include "formats/checkpoint/stored_caches.h"
#include "tests/check/findings.h"
#include "tests/convert/conversion.h"
#include "tests/convert/output_tensors.h"
#include "tests/support/cache_cases.h"

// Scales of a cache in every spelling: the bits that readers get, what is refused, and the names,
// values and words that a conversion to another dialect writes.

namespace ingot::testing {
namespace {

using formats::Json;
using formats::SchemeId;
using ::testing::Contains;
using ::testing::Field;
using ::testing::HasSubstr;

/// Hexadecimal bits, as the cases have them.
std::vector<std::string> bits_of_scales(const std::vector<float>& numbers) {
  std::vector<std::string> bits;
  for (const float number : numbers)
    bits.push_back(fmt::format("{:08X}", std::bit_cast<std::uint32_t>(number)));
  return bits;
}

Json json_of_scales(const std::map<std::string, formats::CacheScales>& read) {
  Json modules = Json::object();
  for (const auto& [module, scales] : read) {
    Json& own = modules[module] = {{"k", bits_of_scales(scales.keys)},
                                   {"v", bits_of_scales(scales.values)}};
    if (!scales.queries.empty()) own["q"] = bits_of_scales(scales.queries);
    if (!scales.probabilities.empty()) own["prob"] = bits_of_scales(scales.probabilities);
  }
  return modules;
}

/// The same whatever the order of keys.
nlohmann::json sorted_json(const Json& json) {
  return nlohmann::json::parse(json.dump());
}

class CacheSpellings : public ::testing::Test {
 protected:
  formats::Checkpoint open(const CacheCase& of, std::string family = {}) {
    const std::filesystem::path folder = directory_ / of.name;
    of.write(folder);
    // Two cases have scales and no model.
    const bool is_whole = of.json.at("config").contains("num_hidden_layers");
    if (family.empty() && !is_whole) family = "generic";
    return formats::Checkpoint::open(folder, {.family = family});
  }

  /// An output of a case in FP8, in a form that engines load.
  formats::Checkpoint converted(std::string_view name, const char* dialect) {
    const CacheCase source = cache_case(name);
    source.write(directory_ / source.name);
    Conversion job(directory_ / source.name, directory_ / "out");
    const bool is_modelopt = dialect == std::string_view("modelopt");
    job.recipe.to = is_modelopt ? SchemeId::kFp8Tensor : SchemeId::kFp8Channel;
    job.recipe.choices.dialect = dialect;
    job.recipe.choices.activations =
        is_modelopt ? formats::Activations::kStatic : formats::Activations::kDynamic;
    if (is_modelopt) job.recipe.choices.input_scale = 1;
    job.run();
    return formats::Checkpoint::open(directory_ / "out");
  }

  TempDir directory_;
};

TEST_F(CacheSpellings, GiveTheBitsThatReadersGet) {
  std::size_t n = 0;
  for (const CacheCase& one : cache_cases()) {
    if (one.is_bad()) continue;
    SCOPED_TRACE(one.name);
    EXPECT_EQ(sorted_json(json_of_scales(formats::read_cache_scales(open(one)))),
              sorted_json(one.json.at("scales")));
    ++n;
  }
  EXPECT_EQ(n, 18U);
}

TEST_F(CacheSpellings, OfFaultyCachesAreRefused) {
  const auto refused = [&](const char* name, ErrorCode code,
                           std::initializer_list<std::string> fragments) {
    SCOPED_TRACE(name);
    const formats::Checkpoint checkpoint = open(cache_case(name));
    expect_error(code, fragments, [&] { formats::read_cache_scales(checkpoint); });
    std::vector<check::Finding> errors = check::check_checkpoint(directory_ / name, {}).findings;
    std::erase_if(errors, [](const auto& f) { return f.severity != check::Severity::kError; });
    EXPECT_THAT(errors, Contains(Field(&check::Finding::rule, HasSubstr("cache-scale"))));
  };
  refused("bad-both-spellings", ErrorCode::kMismatch,
          {"layers.0.self_attn.k_scale", "layers.0.self_attn.k_proj.k_scale",
           "layers.0.self_attn.v_scale", "layers.0.self_attn.v_proj.v_scale"});
  refused("bad-only-v", ErrorCode::kMissingTensor, {"v_scale", "none of its keys"});
  refused("bad-zero", ErrorCode::kBadScale, {"layers.1", "is 0"});
  refused("bad-nan-negative", ErrorCode::kBadScale, {"layers.0", "is -1", "layers.1", "is nan"});
  refused("bad-shape", ErrorCode::kShapeMismatch, {"[3]", "one per head (2)"});
}

TEST_F(CacheSpellings, MissInALayerIsTold) {
  open(cache_case("bad-missing-layer"));
  EXPECT_THAT(check::check_checkpoint(directory_ / "bad-missing-layer", {}).findings,
              Contains(Field(&check::Finding::message, HasSubstr("runs at 1.0 there: 1"))));
}

TEST_F(CacheSpellings, WithOffsetsAreTold) {
  open(cache_case("modelopt-affine"));
  EXPECT_THAT(check::check_checkpoint(directory_ / "modelopt-affine", {}).findings,
              Contains(Field(&check::Finding::message, HasSubstr("TensorRT-LLM"))));
}

TEST_F(CacheSpellings, OfPlainNamesInLatentAttentionAreTold) {
  open(cache_case("mla-plain"));
  EXPECT_THAT(check::check_checkpoint(directory_ / "mla-plain", {}).findings,
              Contains(Field(&check::Finding::message, HasSubstr("latent attention lacks"))));
}

/// The scale that a converted checkpoint stores, in bits; empty: no tensor of F32 [1].
std::string stored_bits(const formats::Checkpoint& checkpoint, const std::string& name) {
  for (std::uint32_t i = 0; i < checkpoint.stored().size(); ++i) {
    const formats::StoredTensor& stored = checkpoint.stored()[i];
    if (stored.name != name || stored.dtype != formats::DType::kF32 ||
        stored.shape != formats::Shape{1})
      continue;
    float value = 0;
    checkpoint.read(i, 0, std::as_writable_bytes(std::span(&value, 1)));
    return bits_of_scales({value}).front();
  }
  return "";
}

TEST_F(CacheSpellings, OfModeloptBecomeThoseOfCompressedTensors) {
  const formats::Checkpoint output = converted("modelopt-fp8", "compressed-tensors");
  EXPECT_EQ(formats::cache_names_of(output).size(), 4U);
  EXPECT_EQ(stored_bits(output, "model.layers.1.self_attn.k_scale"), "3D3B6DB7");
  EXPECT_EQ(stored_bits(output, "model.layers.1.self_attn.v_scale"), "3ADB6DB7");
  const Json config = formats::read_json_file(directory_ / "out/config.json", 1 << 20);
  const Json& scheme = config.at("quantization_config").at("kv_cache_scheme");
  EXPECT_EQ(scheme.at("num_bits"), 8);
  EXPECT_EQ(scheme.at("type"), "float");
  EXPECT_EQ(scheme.at("strategy"), "tensor");
  EXPECT_EQ(scheme.at("symmetric"), true);
  EXPECT_EQ(scheme.at("dynamic"), false);
}

TEST_F(CacheSpellings, OfCompressedTensorsBecomeThoseOfModelopt) {
  const formats::Checkpoint output = converted("ct-tensor", "modelopt");
  EXPECT_EQ(formats::cache_names_of(output).size(), 4U);
  EXPECT_EQ(stored_bits(output, "model.layers.1.self_attn.k_proj.k_scale"), "3D3B0000");
  EXPECT_EQ(stored_bits(output, "model.layers.1.self_attn.v_proj.v_scale"), "3ADB0000");
  const Json config = formats::read_json_file(directory_ / "out/config.json", 1 << 20);
  const Json wanted = {{"dynamic", false}, {"num_bits", 8}, {"type", "float"}};
  EXPECT_EQ(config.at("quantization_config").at("kv_cache_scheme"), wanted);
  const Json file = formats::read_json_file(directory_ / "out/hf_quant_config.json", 1 << 20);
  EXPECT_EQ(file.at("quantization").at("kv_cache_quant_algo"), "FP8");
}

TEST_F(CacheSpellings, PerHeadBecomeTheLargest) {
  const formats::Checkpoint output = converted("ct-head", "modelopt");
  EXPECT_EQ(stored_bits(output, "model.layers.0.self_attn.k_proj.k_scale"), "3D0A0000");
  EXPECT_EQ(stored_bits(output, "model.layers.1.self_attn.v_proj.v_scale"), "3D070000");
  EXPECT_EQ(stored_bits(output, "model.layers.0.self_attn.q_scale"), "3CC70000");
}

TEST_F(CacheSpellings, OfLatentAttentionKeepTheNamesThatEnginesMap) {
  const formats::Checkpoint output = converted("mla-plain", "modelopt");
  for (const char* layer : {"0", "1", "2"}) {
    const std::string attention = fmt::format("model.layers.{}.self_attn.", layer);
    EXPECT_NE(stored_bits(output, attention + "k_proj.k_scale"), "");
    EXPECT_EQ(stored_bits(output, attention + "k_proj.k_scale"),
              stored_bits(output, attention + "v_proj.v_scale"));
  }
}

TEST_F(CacheSpellings, OfOneScaleForBothBecomeTwo) {
  const formats::Checkpoint output = converted("old-kv-scale", "compressed-tensors");
  EXPECT_EQ(stored_bits(output, "model.layers.0.self_attn.k_scale"), "3D000000");
  EXPECT_EQ(stored_bits(output, "model.layers.0.self_attn.v_scale"), "3D000000");
}

TEST_F(CacheSpellings, OfCachesInOtherNumbersAreLeftOut) {
  for (const char* name : {"modelopt-nvfp4", "modelopt-mixed", "modelopt-affine"}) {
    SCOPED_TRACE(name);
    const formats::Checkpoint output = converted(name, "compressed-tensors");
    EXPECT_TRUE(formats::cache_names_of(output).empty());
    std::filesystem::remove_all(directory_ / "out");
  }
}

TEST_F(CacheSpellings, OfASourceAreSeenAsItsOutputHasThem) {
  const formats::Checkpoint output = converted("modelopt-fp8", "compressed-tensors");
  const formats::Checkpoint seen = formats::with_caches_as_in(
      open(cache_case("modelopt-fp8")), {.names = formats::cache_names_of(output)});
  EXPECT_EQ(formats::cache_names_of(seen), formats::cache_names_of(output));
  EXPECT_EQ(stored_bits(seen, "model.layers.1.self_attn.k_scale"), "3D3B6DB7");
  EXPECT_TRUE(check::check_is_source_of(directory_ / "modelopt-fp8", directory_ / "out", 1)
                  .findings.empty());
}

TEST_F(CacheSpellings, ThatDialectsShareAreNoReasonToKeepOthers) {
  const formats::Checkpoint output = converted("ct-head", "modelopt");  // both have q_scale
  const formats::Checkpoint seen = formats::with_caches_as_in(
      open(cache_case("ct-head")), {.names = formats::cache_names_of(output)});
  EXPECT_EQ(formats::cache_names_of(seen), formats::cache_names_of(output));
}

}  // namespace
}  // namespace ingot::testing
