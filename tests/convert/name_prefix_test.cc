#include <iterator>

#include "check/check.h"
#include "engines/verdicts.h"
#include "formats/json/json.h"
#include "tests/convert/conversion.h"
#include "tests/convert/output_tensors.h"
#include "tests/support/test.h"

// Names with another prefix than the family has.

namespace ingot::convert {
namespace {

using formats::Json;
using formats::SchemeId;
using ingot::testing::Conversion;
using ingot::testing::fixture;
using ingot::testing::read_output;
using ingot::testing::TempDir;

formats::Checkpoint open(const std::filesystem::path& path, const std::string& family = "") {
  return formats::Checkpoint::open(path, {.family = family});
}

/// A copy of a fixture in which names that begin with `before` and hold `within` begin with
/// `after`; returns its path.
std::filesystem::path copy_renamed(const std::string& name, const std::filesystem::path& to,
                                   const std::string& before, const std::string& after,
                                   std::string_view within = "") {
  std::filesystem::copy(fixture(name), to, std::filesystem::copy_options::recursive);
  const auto is_meant = [&](const std::string& tensor) {
    return tensor.starts_with(before) && tensor.find(within) != std::string::npos;
  };
  const auto renamed = [&](const Json& by_name) {
    Json result;
    for (const auto& [tensor, entry] : by_name.items())
      result[is_meant(tensor) ? after + tensor.substr(before.size()) : tensor] = entry;
    return result;
  };
  const std::filesystem::path index_path = to / "model.safetensors.index.json";
  const bool has_index = exists(index_path);
  Json index = has_index ? formats::read_json_file(index_path, 1 << 20) : Json();
  std::set<std::string> files;
  if (has_index) {
    for (const auto& [tensor, file] : index.at("weight_map").items()) files.insert(file);
  } else {
    files.insert("model.safetensors");
  }
  for (const std::string& file : files) {
    const std::filesystem::path path = to / file;
    std::ifstream in(path, std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(in), {}};
    std::uint64_t length = 0;
    std::memcpy(&length, bytes.data(), sizeof length);
    const std::string data = bytes.substr(sizeof length + length);
    const std::string header = renamed(Json::parse(bytes.substr(sizeof length, length))).dump();
    length = header.size();
    std::string head(sizeof length, '\0');
    std::memcpy(head.data(), &length, sizeof length);
    std::ofstream(path, std::ios::binary) << head << header << data;
  }
  if (has_index) {
    index["weight_map"] = renamed(index.at("weight_map"));
    std::ofstream(index_path) << index.dump();
  }
  return to;
}

constexpr const char *kLayers = "language_model.model.layers.",
                     *kReleasedLayers = "language_model.layers.";

TEST(NamePrefixes, ThatEnginesMapAreRead) {
  const TempDir directory;
  const auto released = copy_renamed("kimi_k25", directory / "in", kLayers, kReleasedLayers);
  EXPECT_THAT(open(released).remarks(), ::testing::Contains(::testing::HasSubstr(kReleasedLayers)));
  for (const char* out : {"out", "as_usual"}) {
    Conversion conversion(out == std::string("out") ? released : fixture("kimi_k25"),
                          directory / out);
    conversion.recipe.to = SchemeId::kBf16;
    conversion.run();
  }
  EXPECT_EQ(read_output(directory / "out"), read_output(directory / "as_usual"));
}

TEST(NamePrefixes, AnAllowanceForMappedNamesIsIdle) {
  const TempDir directory;
  Conversion conversion(copy_renamed("kimi_k25", directory / "in", kLayers, kReleasedLayers),
                        directory / "out");
  conversion.recipe.to = SchemeId::kBf16;
  conversion.recipe.allow.add(std::string("unknown-tensor=") + kReleasedLayers + "*");
  ingot::testing::expect_error(ErrorCode::kInvalidArgument, {"--allow unknown-tensor"},
                               [&] { conversion.run(); });
}

// transformers 5 renames some names back to others than those of the release.
TEST(NamePrefixes, ThoseThatTransformersSavesMeanTheReleases) {
  struct Saved {
    const char *fixture, *released, *saved;
  };
  for (const Saved& row :
       {Saved{"../forward/kimi_linear/checkpoint", "model.layers.0.mlp.",
              "model.layers.0.block_sparse_moe."},
        Saved{"../forward/hy_v4/checkpoint", "model.hc_head.", "model.hc_pre.hc_head."},
        Saved{"../forward/hy_v4/checkpoint", "model.layers.1.hc_attn_layer.hc_pre.",
              "model.layers.1.hc_pre.hc_attn_layer."},
        Saved{"../forward/hy_v4/checkpoint", "model.layers.2.mlp.shared_experts.gate_proj.",
              "model.layers.2.mlp.shared_experts.linear_gate."},
        Saved{"kimi_k25", "language_model.model.layers.", "language_model.model.blocks."},
        Saved{"deepseek_v4", "layers.", "model.layers."},
        Saved{"deepseek_v4", "layers.1.attn.kv_norm.", "model.layers.1.attn.norm."},
        Saved{"deepseek_v4", "hc_head_fn", "model.hc_head.hc_fn"},
        Saved{"deepseek_v4", "embed.", "model.embed_tokens."}}) {
    SCOPED_TRACE(row.saved);
    const TempDir directory;
    const auto in = copy_renamed(row.fixture, directory / "in", row.released, row.saved);
    const formats::Checkpoint read = open(in), usual = open(fixture(row.fixture));
    EXPECT_FALSE(read.remarks().empty());
    std::set<std::string> names, usual_names;
    for (const auto& tensor : read.tensors()) names.insert(tensor.name);
    for (const auto& tensor : usual.tensors()) usual_names.insert(tensor.name);
    EXPECT_EQ(names, usual_names);
  }
}

/// The answer about an engine: "loads", "error", "silent" or "unknown".
std::string verdict_on(const formats::Checkpoint& checkpoint, engines::Engine engine) {
  const engines::EngineInput input(checkpoint);
  const engines::EngineVerdict verdict =
      engines::engine_verdict(checkpoint, input, engines::newest(engine), {});
  if (verdict.loads) return "loads";
  EXPECT_THAT(verdict.reason, ::testing::HasSubstr("ingot convert"));
  return !verdict.is_known ? "unknown" : verdict.is_silent ? "silent" : "error";
}

TEST(NamePrefixes, OfSavedModelsAreReadByFewEngines) {
  struct Saved {
    const char *fixture, *released, *saved, *in_vllm, *in_sglang, *in_transformers;
  };
  for (const Saved& row :
       {Saved{"kimi_k25", kLayers, kReleasedLayers, "loads", "loads", "unknown"},
        Saved{"kimi_k25", kLayers, "language_model.model.blocks.", "error", "error", "loads"},
        Saved{"../forward/kimi_linear/checkpoint", "model.layers.0.mlp.",
              "model.layers.0.block_sparse_moe.", "error", "error", "loads"},
        Saved{"../forward/hy_v4/checkpoint", "model.hc_head.", "model.hc_pre.hc_head.", "error",
              "silent", "loads"}}) {
    SCOPED_TRACE(row.saved);
    const TempDir directory;
    const formats::Checkpoint read =
        open(copy_renamed(row.fixture, directory / "in", row.released, row.saved));
    const formats::Checkpoint usual = open(fixture(row.fixture));
    for (const auto& [engine, expected] :
         {std::pair(engines::Engine::kVllm, row.in_vllm),
          std::pair(engines::Engine::kSglang, row.in_sglang),
          std::pair(engines::Engine::kTransformers, row.in_transformers)}) {
      EXPECT_EQ(verdict_on(usual, engine), "loads") << engines::newest(engine).name;
      EXPECT_EQ(verdict_on(read, engine), expected) << engines::newest(engine).name;
    }
  }
}

TEST(NamePrefixes, OfAFamilyFileAreKnownToNoEngine) {
  const TempDir directory;
  const auto renamed =
      copy_renamed("qwen3_5_moe", directory / "in", "model.language_model.layers.", "h.");
  const std::filesystem::path file = directory / "family.yaml";
  std::ofstream(file) << "family: renamed_qwen\nlike: qwen3_5_moe\n"
                         "aliases: {h.: model.language_model.layers.}\n";
  const formats::Checkpoint read = open(renamed, "file:" + file.string());
  EXPECT_EQ(verdict_on(open(fixture("qwen3_5_moe")), engines::Engine::kVllm), "loads");
  for (const engines::Engine engine :
       {engines::Engine::kVllm, engines::Engine::kSglang, engines::Engine::kTransformers})
    EXPECT_EQ(verdict_on(read, engine), "unknown");
}

TEST(NamePrefixes, BesideTheUsualOnesAreOneCause) {
  const TempDir directory;
  const auto mixed = copy_renamed("qwen3_5_moe", directory / "in", "model.language_model.layers.",
                                  "model.layers.", ".mlp.experts.");
  ingot::testing::expect_error(
      ErrorCode::kUnknownTensor,
      {"6 tensors have prefix 'model.' where family qwen3_5_moe has prefix 'model.language_model.'",
       "`aliases: {model.layers.: model.language_model.layers.}`"},
      [&] { open(mixed); });
  EXPECT_THAT(check::check_checkpoint(mixed, {}).findings, ::testing::SizeIs(1));
  const std::filesystem::path file = directory / "family.yaml";
  std::ofstream(file) << "family: renamed\nlike: qwen3_5_moe\n"
                         "aliases: {model.layers.: model.language_model.layers.}\n";
  const formats::Checkpoint read = open(mixed, "file:" + file.string());
  const formats::Checkpoint usual = open(fixture("qwen3_5_moe"));
  EXPECT_EQ(read.tensors().size(), usual.tensors().size());
}

}  // namespace
}  // namespace ingot::convert
