#include "formats/modules/module_patterns.h"

#include <regex>

#include "formats/dialect/config_groups.h"
#include "formats/family/families.h"
#include "formats/family/family.h"
#include "formats/json/json.h"
#include "formats/modules/mtp_names.h"
#include "tests/support/test.h"

namespace ingot::formats {
namespace {

using Strings = std::vector<std::string>;
using ingot::testing::expect_error;
using testing::expect_error;

constexpr std::uint32_t kLayers = 12;  // 0 dense, 11 the MTP layer behind 11 main ones
constexpr std::uint64_t kMainLayers = 11;

std::vector<ClassedModule> model(const std::function<std::uint32_t(const std::string&)>& cls_of) {
  std::vector<ClassedModule> modules;
  const auto add = [&](const std::string& name) { modules.push_back({name, cls_of(name)}); };
  add("model.embed_tokens");
  add("lm_head");
  for (std::uint32_t l = 0; l < kLayers; ++l) {
    const std::string layer = fmt::format("model.layers.{}.", l);
    for (const char* leaf : {"q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj",
                             "indexer.wk", "indexer.weights_proj"})
      add(layer + "self_attn." + leaf);
    Strings parents = {"mlp."};
    if (l > 0) {
      add(layer + "mlp.gate");
      parents = {"mlp.experts.0.", "mlp.experts.1.", "mlp.experts.10.", "mlp.shared_experts."};
    }
    for (const std::string& parent : parents) {
      for (const char* leaf : {"gate_proj", "up_proj", "down_proj"}) add(layer + parent + leaf);
    }
    if (l >= kMainLayers) {
      add(layer + "eh_proj");
      add(layer + "embed_tokens");
      add(layer + "shared_head.head");
    }
  }
  return modules;
}

bool has(const std::string& name, std::string_view part) {
  return name.find(part) != std::string::npos;
}
bool is_mtp(const std::string& name) {
  return has(name, "layers.11.");
}
bool is_release_plain(const std::string& name) {
  return has(name, "embed_tokens") || has(name, "head") || name.ends_with("mlp.gate") ||
         has(name, "eh_proj") || has(name, "weights_proj");
}

/// Python's re.match, by another engine than the product's.
bool ct_covers(const Strings& list, const std::string& module) {
  for (const std::string& entry : list) {
    if (!entry.starts_with("re:")) {
      if (entry == module) return true;
    } else if (std::regex_search(module, std::regex(entry.substr(3)),
                                 std::regex_constants::match_continuous)) {
      return true;
    }
  }
  return false;
}

std::string regex_of_glob(const std::string& glob) {
  std::string text;
  for (const char c : glob) text += c == '*' ? ".*" : c == '.' ? "\\." : std::string(1, c);
  return text;
}
/// SGLang: `*` is anything, `.` is a dot, the whole name.
bool sglang_covers(const Strings& list, const std::string& module) {
  return std::any_of(list.begin(), list.end(), [&](const std::string& entry) {
    return std::regex_match(module, std::regex(regex_of_glob(entry)));
  });
}
/// vLLM: a name, part of a name, or a glob; and `x*` also as `x` and `x.*`.
bool vllm_covers(const Strings& list, const std::string& module) {
  return sglang_covers(list, module) ||
         std::any_of(list.begin(), list.end(), [&](const std::string& entry) {
           if (has(module, entry)) return true;
           return entry.ends_with('*') && !entry.ends_with(".*") &&
                  has(module, entry.substr(0, entry.size() - 1));
         });
}

/// The name that vLLM gives a module of the MTP layer's decoder.
std::string engine_name(const std::string& module) {
  if (!is_mtp(module)) return module;
  for (const char* part : {"self_attn", "mlp"}) {
    const std::size_t at = module.find(part);
    if (at != std::string::npos) return std::string(module).insert(at, "mtp_block.");
  }
  return module;
}

/// The name that SGLang gives it.
std::string sglang_name(const std::string& module) {
  const std::string layer = "model.layers.11.";
  const bool is_in_decoder =
      module.starts_with(layer + "self_attn.") || module.starts_with(layer + "mlp.");
  return is_in_decoder ? fmt::format("model.decoder.{}", module.substr(layer.size())) : module;
}

Strings ct_list(const std::vector<ClassedModule>& modules, std::uint32_t cls) {
  const Strings list = module_patterns(modules, cls, kMainLayers, PatternSyntax::kRegex);
  for (const ClassedModule& module : modules) {
    EXPECT_EQ(ct_covers(list, module.name), module.cls == cls) << module.name;
    EXPECT_EQ(ct_covers(list, engine_name(module.name)), module.cls == cls) << "as an engine";
    EXPECT_EQ(ct_covers(list, sglang_name(module.name)), module.cls == cls) << "as a draft";
  }
  return list;
}

Strings glob_list(const std::vector<ClassedModule>& modules) {
  const Strings list = module_patterns(modules, 0, kMainLayers, PatternSyntax::kGlob);
  for (const ClassedModule& module : modules) {
    const bool is_plain = module.cls == 0;
    EXPECT_EQ(sglang_covers(list, module.name), is_plain) << module.name;
    EXPECT_EQ(sglang_covers(list, sglang_name(module.name)), is_plain) << module.name;
    EXPECT_EQ(vllm_covers(list, module.name), is_plain) << module.name;
    EXPECT_EQ(vllm_covers(list, engine_name(module.name)), is_plain) << engine_name(module.name);
  }
  return list;
}

std::uint32_t nvfp4_default(const std::string& name) {
  return has(name, "self_attn") || is_mtp(name) || is_release_plain(name) ? 0U : 1U;
}

Strings list_starts(const Strings& list, std::string_view start) {
  Strings found;
  std::ranges::copy_if(list, std::back_inserter(found),
                       [&](const std::string& entry) { return entry.starts_with(start); });
  return found;
}

TEST(ModulePatterns, NameKindsForTheNvfp4Default) {
  EXPECT_EQ(ct_list(model(nvfp4_default), 0),
            (Strings{"lm_head", "model.layers.11.head",
                     R"(re:(.*layers\.11|.*model\.decoder)\.(.*\.)?mlp.*)", R"(re:.*\.eh_proj$)",
                     R"(re:.*\.embed_tokens$)", R"(re:.*\.mlp\.gate$)", R"(re:.*\.self_attn.*)",
                     R"(re:.*\.shared_head\.head$)"}));
}

TEST(ModulePatterns, NameEachLayerToModelOpt) {
  const Strings list = glob_list(model(nvfp4_default));
  EXPECT_EQ(list_starts(list, "model.layers.10."),
            (Strings{"model.layers.10.mlp.gate", "model.layers.10.self_attn*"}));
  EXPECT_EQ(list_starts(list, "model.layers.11."),
            (Strings{"model.layers.11.eh_proj", "model.layers.11.embed_tokens",
                     "model.layers.11.head", "model.layers.11.mlp*", "model.layers.11.mtp_block*",
                     "model.layers.11.self_attn*", "model.layers.11.shared_head.head"}));
  EXPECT_EQ(list_starts(list, "model.decoder"),
            (Strings{"model.decoder.mlp*", "model.decoder.self_attn*"}));
}

TEST(ModulePatterns, MatchThoseOfARelease) {
  const auto modules =
      model([](const std::string& name) { return is_release_plain(name) ? 0 : 1; });
  EXPECT_EQ(ct_list(modules, 0), (Strings{"lm_head", "model.layers.11.head", R"(re:.*\.eh_proj$)",
                                          R"(re:.*\.embed_tokens$)", R"(re:.*\.mlp\.gate$)",
                                          R"(re:.*\.self_attn\.indexer\.weights_proj$)",
                                          R"(re:.*\.shared_head\.head$)"}));
  glob_list(modules);
}

TEST(ModulePatterns, TellThreeClassesApart) {
  const auto modules = model([](const std::string& name) -> std::uint32_t {
    if (is_release_plain(name)) return 0;
    return has(name, "self_attn") || is_mtp(name) ? 1 : 2;
  });
  EXPECT_EQ(ct_list(modules, 0).size(), 7U);
  EXPECT_EQ(ct_list(modules, 1).size(), 8U);
  EXPECT_EQ(ct_list(modules, 2).size(), 3U);
}

TEST(ModulePatterns, NameSomeLayers) {
  const auto modules = model([](const std::string& name) {
    return has(name, "layers.1.mlp.experts") || has(name, "layers.3.mlp.experts") ? 0U : 1U;
  });
  EXPECT_EQ(ct_list(modules, 0), Strings{R"(re:.*layers\.(1|3)\.mlp\.experts.*)"});
  EXPECT_EQ(glob_list(modules),
            (Strings{"model.layers.1.mlp.experts*", "model.layers.3.mlp.experts*"}));
}

// Layer 1 next to layers 10 and 11.
TEST(ModulePatterns, StayWithinALayersNumber) {
  const auto modules =
      model([](const std::string& name) { return has(name, "layers.1.") ? 0U : 1U; });
  EXPECT_EQ(ct_list(modules, 0),
            (Strings{R"(re:.*layers\.1\.mlp.*)", R"(re:.*layers\.1\.self_attn.*)"}));
  EXPECT_EQ(glob_list(modules), (Strings{"model.layers.1.mlp*", "model.layers.1.self_attn*"}));
}

TEST(ModulePatterns, AreTheNameOfOneWeight) {
  const auto modules = model(
      [](const std::string& name) { return has(name, "layers.2.self_attn.o_proj") ? 0U : 1U; });
  EXPECT_EQ(ct_list(modules, 0), Strings{"model.layers.2.self_attn.o_proj"});
  EXPECT_EQ(glob_list(modules), Strings{"model.layers.2.self_attn.o_proj"});
}

// Qwen's shared expert next to its gate, which stays plain in every mixture.
TEST(ModulePatterns, EndAParentWhereItsNameGoesOn) {
  std::vector<ClassedModule> modules;
  for (int l = 0; l < 2; ++l) {
    const std::string mlp = fmt::format("model.layers.{}.mlp.", l);
    for (const char* leaf : {"gate_proj", "up_proj", "down_proj"}) {
      modules.push_back({mlp + "experts.0." + leaf, 1});
      modules.push_back({mlp + "shared_expert." + leaf, 0});
    }
    modules.push_back({mlp + "shared_expert_gate", 2});
  }
  EXPECT_EQ(ct_list(modules, 0), Strings{R"(re:.*\.mlp\.shared_expert\..*)"});
  EXPECT_EQ(ct_list(modules, 2), Strings{R"(re:.*\.mlp\.shared_expert_gate$)"});
  EXPECT_EQ(glob_list(modules),
            (Strings{"model.layers.0.mlp.shared_expert.*", "model.layers.1.mlp.shared_expert.*"}));
}

// A glob over `gate_proj` would not find vLLM's fused `gate_up_proj`, a parent and full names do.
TEST(ModulePatterns, UseNoGlobsOverFusedLeaves) {
  const auto modules = model([](const std::string& name) {
    return name.ends_with("q_a_proj") || name.ends_with("kv_a_proj_with_mqa") ? 0U : 1U;
  });
  for (const std::string& entry : glob_list(modules)) {
    const bool is_leaf_glob = entry.starts_with('*') && !entry.ends_with('*');
    EXPECT_FALSE(is_leaf_glob) << entry;
  }
  EXPECT_EQ(ct_list(modules, 0), (Strings{R"(re:.*\.self_attn\.kv_a_proj_with_mqa$)",
                                          R"(re:.*\.self_attn\.q_a_proj$)"}));
}

TEST(ModulePatterns, AreNamesForSingleExperts) {
  const auto modules = model([](const std::string& name) {
    return has(name, "layers.2.mlp.experts.1.up_proj") ? 0U : 1U;
  });
  EXPECT_EQ(ct_list(modules, 0), Strings{"model.layers.2.mlp.experts.1.up_proj"});
  ct_list(modules, 1);
  expect_error(ErrorCode::kUnsupported, {"model.layers.2.mlp.experts.#.up_proj", "one scheme"},
               [&] { static_cast<void>(module_patterns(modules, 0, 0, PatternSyntax::kGlob)); });
}

TEST(ModulePatterns, RefuseANameThatWouldTakeInAnother) {
  const std::vector<ClassedModule> modules = {{"head", 0}, {"head.proj", 1}};
  EXPECT_EQ(module_patterns(modules, 0, 0, PatternSyntax::kRegex), Strings{"head"});
  expect_error(ErrorCode::kUnsupported, {"head.proj"},
               [&] { static_cast<void>(module_patterns(modules, 0, 0, PatternSyntax::kGlob)); });
}

TEST(ModulePatterns, EscapeWhatIsNoLetter) {
  const std::vector<ClassedModule> modules = {{"h.layers.0.a+b", 0}, {"h.layers.0.aab", 1}};
  EXPECT_EQ(module_patterns(modules, 0, 0, PatternSyntax::kRegex), Strings{R"(re:.*\.a\+b$)"});
}

TEST(ModulePatterns, KeepTwoStacksApart) {
  const std::vector<ClassedModule> modules = {{"model.layers.0.o_proj", 1},
                                              {"model.layers.1.o_proj", 1},
                                              {"vision.layers.0.o_proj", 0},
                                              {"vision.layers.0.mlp", 0}};
  EXPECT_EQ(module_patterns(modules, 0, 0, PatternSyntax::kRegex),
            (Strings{"vision.layers.0.mlp", "vision.layers.0.o_proj"}));
  const Strings quantized = module_patterns(modules, 1, 0, PatternSyntax::kRegex);
  EXPECT_FALSE(ct_covers(quantized, "vision.layers.0.o_proj"));
  EXPECT_TRUE(ct_covers(quantized, "model.layers.1.o_proj"));
}

TEST(ModulePatterns, AreQuickForTheFullModel) {
  const Family& family = *find_family("deepseek_v32");
  const ModelConfig config = parse_model_config(family.reference_config, "reference");
  std::vector<ClassedModule> modules;
  for_each_expected(family, config, false, [&](const ExpectedTensor& tensor) {
    if (!tensor.name.ends_with(".weight") || tensor.name.ends_with("norm.weight")) return;
    const std::string name = tensor.name.substr(0, tensor.name.size() - 7);
    const bool is_plain =
        has(name, "self_attn") || has(name, "layers.61.") || is_release_plain(name);
    modules.push_back({name, is_plain ? 0U : 1U});
  });
  ASSERT_GT(modules.size(), 46'000U);
  for (const PatternSyntax syntax : {PatternSyntax::kRegex, PatternSyntax::kGlob}) {
    std::size_t n_bytes = 0;
    for (const std::string& entry : module_patterns(modules, 0, config.num_hidden_layers, syntax))
      n_bytes += entry.size() + 4;
    EXPECT_LT(n_bytes, 64U << 10) << "config.json of a full model grows by at most 64 KB";
  }
}

TEST(MtpNames, FollowTheEnginesSources) {
  const MtpNames head = mtp_names("model.layers.61.shared_head.head", 61);
  EXPECT_EQ(head.all(), Strings{"model.layers.61.head"});
  EXPECT_EQ(head.head, mtp_names("model.layers.61.shared_head.head", 0).head);
  const MtpNames first = mtp_names("model.layers.61.mlp.experts.7.up_proj", 61);
  EXPECT_EQ(first.block, "model.layers.61.mtp_block.mlp.experts.7.up_proj");
  EXPECT_EQ(first.draft, "model.decoder.mlp.experts.7.up_proj");
  EXPECT_EQ(mtp_names("model.layers.62.mlp.gate", 61).draft, "") << "only the first is a model";
  for (const char* other : {"model.layers.60.mlp.gate", "model.layers.61.eh_proj", "lm_head"})
    EXPECT_EQ(mtp_names(other, 61).all(), Strings{}) << other;
}

TEST(ModulePatterns, AreNoneForNothing) {
  for (const PatternSyntax syntax : {PatternSyntax::kRegex, PatternSyntax::kGlob}) {
    EXPECT_EQ(module_patterns({}, 0, 0, syntax), Strings{});
    const std::vector<ClassedModule> one = {{"w", 1}};
    EXPECT_EQ(module_patterns(one, 0, 0, syntax), Strings{});
  }
}

// Two groups, the first for every linear layer.
Json two_groups(Json first_targets, Json second_targets) {
  const Json int8 = {{"num_bits", 8}, {"type", "int"}, {"strategy", "channel"}};
  const Json fp8 = {{"num_bits", 8}, {"type", "float"}, {"strategy", "channel"}};
  return {{"config_groups",
           {{"group_0", {{"targets", std::move(first_targets)}, {"weights", int8}}},
            {"group_1", {{"targets", std::move(second_targets)}, {"weights", fp8}}}}}};
}

std::string target_name(const ConfigGroups& groups, const std::string& module) {
  const ConfigGroup* group = groups.target_of(module);
  return group == nullptr ? "" : group->name;
}

std::vector<std::string> faults_of(const Json& block) {
  std::vector<std::string> faults;
  const ConfigGroups groups(block, &faults);
  return faults;
}

TEST(ConfigGroups, PutNamesAndExpressionsBeforeClasses) {
  const Json block = two_groups({"Linear"}, {"re:.*o_proj$", "a.b"});
  const ConfigGroups groups(block);
  EXPECT_EQ(target_name(groups, "x.o_proj"), "group_1");
  EXPECT_EQ(target_name(groups, "a.b"), "group_1");
  EXPECT_EQ(target_name(groups, "x.q_proj"), "group_0");
  EXPECT_EQ(groups.group_of("x.o_proj")->scheme, SchemeId::kFp8Channel);
}

TEST(ConfigGroups, TakeTheFirstThatMatches) {
  const Json block = two_groups({"re:.*proj$"}, {"x.o_proj", "y.weights"});
  const ConfigGroups groups(block);
  EXPECT_EQ(target_name(groups, "x.o_proj"), "group_0");
  EXPECT_EQ(target_name(groups, "y.weights"), "group_1");
  EXPECT_EQ(target_name(groups, "y.weight"), "");
  const Json other = two_groups({"x.o_proj"}, {"re:.*proj$"});
  const ConfigGroups reversed(other);
  EXPECT_EQ(target_name(reversed, "x.o_proj"), "group_0");
  EXPECT_EQ(target_name(reversed, "y.o_proj"), "group_1");
}

TEST(ConfigGroups, MatchExpressionsFromTheStartOnly) {
  const Json block = two_groups({"re:model\\.a"}, {"re:b$"});
  const ConfigGroups groups(block);
  EXPECT_EQ(target_name(groups, "model.abc"), "group_0");
  EXPECT_EQ(target_name(groups, "x.model.abc"), "");
  EXPECT_EQ(target_name(groups, "x.b"), "");
  EXPECT_EQ(target_name(groups, "b"), "group_1");
}

TEST(ConfigGroups, IgnoreByNameAndExpression) {
  Json block = two_groups({"Linear"}, {"re:.*x"});
  block["ignore"] = {"lm_head", "re:.*gate$"};
  const ConfigGroups groups(block);
  EXPECT_TRUE(groups.is_ignored("lm_head"));
  EXPECT_EQ(groups.group_of("lm_head"), std::nullopt);
  EXPECT_FALSE(groups.is_ignored("model.lm_head"));
  EXPECT_TRUE(groups.is_ignored("model.layers.1.mlp.gate"));
  EXPECT_FALSE(groups.is_ignored("model.layers.1.mlp.gate_proj"));
}

TEST(ConfigGroups, CollectWhatTheyCannotRead) {
  EXPECT_EQ(faults_of(Json::object()).size(), 1U);
  Json block = two_groups(Json::array(), {"re:("});
  block["ignore"] = {1, "re:["};
  EXPECT_EQ(faults_of(block).size(), 4U);
}

TEST(ConfigGroups, RefuseListsThatAreNoneWithoutFaults) {
  EXPECT_TRUE(ConfigGroups(Json::object()).groups().empty());
  for (const char* ignore : {"1", "{}", "[1]", "[\"re:(\"]"}) {
    const Json block = {{"ignore", Json::parse(ignore)}};
    expect_error(ErrorCode::kCorrupt, {"ignore"}, [&] { ConfigGroups{block}; });
  }
  const Json no_object = {{"config_groups", 1}};
  expect_error(ErrorCode::kCorrupt, {"config_groups"}, [&] { ConfigGroups{no_object}; });
  const Json block = two_groups("Linear", {1});
  expect_error(ErrorCode::kCorrupt, {"targets"}, [&] { ConfigGroups{block}; });
}

TEST(ConfigGroups, LeaveOutExpressionsBeyondALimit) {
  Json block = two_groups({"Linear"}, {"re:.*o_proj$"});
  for (int i = 0; i < 2'000; ++i) block["ignore"].push_back(fmt::format("re:x{}$", i));
  std::vector<std::string> faults;
  const ConfigGroups judged(block, &faults);
  ASSERT_EQ(faults.size(), 1U);
  EXPECT_NE(faults[0].find("more than 2000 regular expressions"), std::string::npos);
  EXPECT_TRUE(judged.is_ignored("x1998"));
  EXPECT_FALSE(judged.is_ignored("x1999"));
  EXPECT_TRUE(ConfigGroups(block).is_ignored("x1999")) << "who writes from them knows them all";
}

TEST(ConfigGroups, KnowActivationsWithStoredScales) {
  Json block = two_groups({"Linear"}, {"a.b"});
  block["config_groups"]["group_0"]["input_activations"] = {{"dynamic", "local"}};
  block["config_groups"]["group_1"]["input_activations"] = {{"dynamic", true}};
  const ConfigGroups groups(block);
  EXPECT_EQ(groups.groups()[0].activations, Activations::kStatic);
  EXPECT_EQ(groups.groups()[1].activations, Activations::kDynamic);
}

TEST(SchemeOfArguments, FillsInWhatIsLeftOut) {
  const auto scheme = [](const char* text) { return scheme_of_arguments(Json::parse(text)); };
  EXPECT_EQ(scheme(R"({"type":"float","block_structure":[128,128]})"), SchemeId::kFp8Block);
  EXPECT_EQ(scheme(R"({"type":"float"})"), SchemeId::kFp8Tensor);
  EXPECT_EQ(scheme(R"({"group_size":-1})"), SchemeId::kInt8Channel);
  EXPECT_EQ(scheme(R"({"type":"float","group_size":32})"), SchemeId::kMxfp8);
  EXPECT_EQ(scheme(R"({"type":"float","num_bits":4,"group_size":32})"), SchemeId::kMxfp4);
  EXPECT_EQ(scheme(R"({"type":"float","num_bits":4,"strategy":"tensor_group","group_size":16})"),
            SchemeId::kNvfp4);
  EXPECT_EQ(scheme(R"({"type":"int","num_bits":4,"group_size":128})"), SchemeId::kInt4Group);
  EXPECT_EQ(scheme(R"({"strategy":"channel","symmetric":false})"), std::nullopt);
}

}  // namespace
}  // namespace ingot::formats
