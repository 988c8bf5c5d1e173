#include <map>
#include <utility>

#include "engines/limits.h"
#include "formats/dialect/dialect.h"
#include "formats/family/families.h"
#include "tests/support/test.h"

namespace ingot::engines {

using formats::scheme_facts;
using namespace ingot::testing;
using enum ErrorCode;

namespace {

/// Whether a run of a family without experts gave text in the scheme of a row.
bool has_generated_dense(const EngineRow& engine, const EngineLoad& load) {
  return std::ranges::any_of(engine.families, [&](const EngineFamily& row) {
    const bool has_experts = std::ranges::any_of(
        formats::find_family(row.family)->rules,
        [](const formats::TensorRule& rule) { return formats::is_routed_expert(rule.role); });
    return !has_experts && row.evidence <= Evidence::kGenerated &&
           row.schemes.contains(load.scheme);
  });
}

TEST(EngineSupport, HasEveryLoadOnceAndEveryLimit) {
  const std::vector<EngineSupport> rows = engine_support(engine_versions());
  for (const EngineRow* engine : engine_versions()) {
    for (const EngineLoad& load : engine->loads) {
      const auto n = std::ranges::count_if(rows, [&](const EngineSupport& row) {
        return row.limit == nullptr && row.engine == engine && row.dialect == load.dialect &&
               row.scheme == load.scheme && row.activations == load.activations &&
               row.evidence == engine->evidence_of(load);
      });
      EXPECT_EQ(n, 1) << engine->name << " " << formats::scheme_facts(load.scheme).name;
    }
    for (const EngineLimit& limit : engine->limits) {
      EXPECT_TRUE(std::ranges::any_of(rows, [&](const EngineSupport& row) {
        return row.limit == &limit && row.engine == engine;
      })) << limit.reason;
    }
  }
}

TEST(EngineSupport, DoesNotGuess) {
  const auto text_of = [](Engine engine, std::string_view dialect, SchemeId scheme,
                          Activations activations) {
    std::vector<std::string> texts;
    for (const EngineSupport& row : engine_support()) {
      if (row.engine->engine == engine && row.dialect == dialect && row.scheme == scheme &&
          row.activations == activations)
        texts.push_back(engine_support_text(row));
    }
    return texts;
  };
  using ::testing::ElementsAre;
  EXPECT_THAT(text_of(Engine::kVllm, "deepseek", SchemeId::kFp8Block, Activations::kDynamic),
              ElementsAre("generated text on a GPU in 0.32", "rounded"));
  EXPECT_THAT(text_of(Engine::kVllm, "modelopt", SchemeId::kFp8Tensor, Activations::kStatic),
              ElementsAre("read in its source"))
      << "its code is not that which ran";
  EXPECT_THAT(text_of(Engine::kTrtllm, "deepseek", SchemeId::kFp8Block, Activations::kDynamic),
              ElementsAre("not read"));
  EXPECT_THAT(
      text_of(Engine::kTrtllm, "compressed-tensors", SchemeId::kInt8Channel, Activations::kDynamic),
      ElementsAre("not tried"));
  EXPECT_THAT(text_of(Engine::kVllm, "deepseek", SchemeId::kInt8Block, Activations::kDynamic),
              ElementsAre("refused"));
  EXPECT_THAT(
      text_of(Engine::kSglang, "compressed-tensors", SchemeId::kInt8Channel, Activations::kDynamic),
      ElementsAre("generated text on a GPU", "with --quantization w8a8_int8"));
}

TEST(EngineLoads, NameWhatTheirDialectsCanHold) {
  for (const EngineRow* engine : engine_versions()) {
    for (const EngineLoad& row : engine->loads) {
      SCOPED_TRACE(std::string(engine->name) + " " + std::string(scheme_facts(row.scheme).name));
      EXPECT_EQ(row.dialect.empty(), !scheme_facts(row.scheme).quantized);
      EXPECT_EQ(row.source.empty(), row.evidence != Evidence::kRead)
          << "what was read has a place where it stands";
      EXPECT_EQ(row.dialect.empty(), !row.activations.has_value());
      if (row.dialect.empty()) continue;
      const Dialect* dialect = formats::find_dialect(row.dialect);
      const bool is_read_only =
          std::set<std::string_view>{"gptq", "awq", "quark", "gemma", "minimax_m3_nvfp4"}.contains(
              row.dialect);
      EXPECT_EQ(dialect == nullptr, is_read_only);
      // That of a family's own dialect may hold more.
      const formats::Family& family = *formats::find_family("deepseek_v4");
      EXPECT_TRUE(dialect == nullptr ||
                  formats::find_storage(*dialect, family, row.scheme, row.activations) != nullptr);
      for (const EngineLimit& limit : engine->limits) {
        if (is_special(limit.scope) || !limit.is_of_form()) continue;  // of some weights, or models
        const bool is_of_row = limit.dialect == row.dialect && limit.scheme == row.scheme &&
                               (!limit.activations || limit.activations == row.activations);
        EXPECT_FALSE(is_of_row && limit.scope == EngineScope::kAny && limit.is_refusal())
            << "a row that the engine never loads: " << limit.reason;
        if (!is_of_row || row.evidence > Evidence::kGenerated || !limit.is_refusal()) continue;
        EXPECT_TRUE(limit.scope == EngineScope::kExperts && has_generated_dense(*engine, row))
            << "it generated, and is refused: " << limit.reason;
      }
    }
  }
}

// A form that a dialect writes and about which no engine's row says a word would be a guess.
TEST(EngineLoads, SayOfEveryWrittenFormWhoLoadsOrRefusesIt) {
  for (const Dialect* dialect : formats::dialects()) {
    for (const formats::StorageRow& form : dialect->storage) {
      if (dialect->is_read_only || form.is_read_only) continue;
      const bool is_loaded = std::ranges::any_of(engines(), [&](const EngineRow* engine) {
        return std::ranges::any_of(engine->loads, [&](const EngineLoad& row) {
          return row.dialect == dialect->name && row.scheme == form.scheme &&
                 row.activations == form.activations;
        });
      });
      const bool is_refused = !limits_of_all(*dialect, {.name = "a.experts.0.weight",
                                                        .rule = nullptr,
                                                        .scheme = form.scheme,
                                                        .activations = form.activations})
                                   .empty();
      EXPECT_TRUE(is_loaded || is_refused) << dialect->name << " " << scheme_facts(form.scheme).name
                                           << " " << activations_name(form.activations);
    }
  }
}

// A form that one judged version takes is not refused by all, whatever others say.
TEST(EngineLimitsMet, SaysAllOnlyWhereEachVersionRefuses) {
  std::size_t n_refused = 0;
  for (const Dialect* dialect : formats::dialects()) {
    for (const formats::StorageRow& form : dialect->storage) {
      EngineLimitsMet met(*dialect);
      EXPECT_FALSE(met.is_refused_by_all()) << "of no weights";
      const EngineWeight weight = {.name = "a.experts.0.weight",
                                   .rule = nullptr,
                                   .scheme = form.scheme,
                                   .activations = form.activations,
                                   .family = "deepseek_v3"};
      met.add(weight);
      if (!met.is_refused_by_all()) continue;
      ++n_refused;
      for (const EngineRow* row : judged_versions()) {
        const EngineLimit* limit = limit_of(*row, *dialect, weight);
        EXPECT_TRUE(limit != nullptr && limit->is_refusal())
            << row->name << " " << dialect->name << " " << scheme_facts(form.scheme).name;
      }
    }
  }
  EXPECT_GT(n_refused, 0U);
}

TEST(EngineFamilies, AreFamiliesOfOurs) {
  for (const EngineRow* engine : engine_versions()) {
    for (const std::string_view family : engine->written_for)
      EXPECT_NE(formats::find_family(family), nullptr) << family;
    for (const EngineFamily& row : engine->families)
      EXPECT_NE(formats::find_family(row.family), nullptr) << row.family;
    for (const EngineLimit& limit : engine->limits) {
      if (limit.family.empty()) continue;
      EXPECT_NE(formats::find_family(limit.family), nullptr) << limit.family;
    }
  }
}

// A form is known by a run of some family, which a row says, and a run is no better than its
// form's.
TEST(EngineFamilies, HaveTheRunsOfEveryForm) {
  for (const EngineRow* engine : engine_versions()) {
    for (const EngineLoad& load : engine->loads) {
      if (engine->evidence_of(load) >= Evidence::kRead) continue;
      const bool is_of_one = std::ranges::any_of(engine->families, [&](const EngineFamily& row) {
        return engine->family_evidence(row.family, load.scheme) <= engine->evidence_of(load);
      });
      EXPECT_TRUE(is_of_one) << engine->name << " " << scheme_facts(load.scheme).name;
    }
    for (const EngineFamily& row : engine->families) {
      for (const formats::SchemeFacts& facts : formats::schemes()) {
        if (!row.schemes.contains(facts.id)) continue;
        EXPECT_TRUE(std::ranges::any_of(engine->loads,
                                        [&](const EngineLoad& load) {
                                          return load.scheme == facts.id &&
                                                 load.evidence <=
                                                     std::max(row.evidence, Evidence::kRead);
                                        }))
            << engine->name << " " << row.family << " " << facts.name;
      }
    }
  }
}

// Whatever the engine reads of other families, and whether its limits are known or not.
TEST(EngineFamilies, WithoutARowWereNotTried) {
  for (const EngineRow* engine : engine_versions()) {
    EXPECT_EQ(engine->family_evidence("dbrx", SchemeId::kFp8Channel), Evidence::kNotOfFamily)
        << engine->name;
  }
  EXPECT_EQ(kTransformersRow.family_evidence("qwen3_moe", SchemeId::kNvfp4),
            Evidence::kNotOfFamily);
  EXPECT_EQ(kTransformersRow.family_evidence("qwen3_moe", SchemeId::kF16), Evidence::kGenerated);
}

TEST(EngineVersions, AreToldApartByName) {
  std::set<std::string_view> names;
  for (const EngineRow* row : engine_versions()) {
    EXPECT_TRUE(names.insert(row->name).second) << row->name;
    EXPECT_EQ(find_engine(row->word)->engine, row->engine);
    EXPECT_EQ(find_engine(row->word), &newest(row->engine));
    EXPECT_TRUE(row->version.empty() || row->name.ends_with(row->version)) << row->name;
  }
  for (std::size_t i = 0; i < engines().size(); ++i)
    EXPECT_EQ(static_cast<std::size_t>(engines()[i]->engine), i);
}

TEST(EngineRows, HaveIdsOfTheirOwn) {
  for (const EngineRow* engine : engine_versions()) {
    std::set<std::string> ids;
    for (const EngineLoad& load : engine->loads)
      EXPECT_TRUE(ids.insert(row_id(load)).second) << engine->name << " " << row_id(load);
    for (const EngineLimit& limit : engine->limits)
      EXPECT_TRUE(ids.insert(row_id(limit)).second) << engine->name << " " << row_id(limit);
    for (const EngineFamily& family : engine->families)
      ids.insert("family." + std::string(family.family));
    for (const std::string_view id : engine->read_again)
      EXPECT_TRUE(ids.contains(std::string(id))) << engine->name << " has no row " << id;
    EXPECT_EQ(engine->tried.empty(), engine->read_again.empty()) << engine->name;
  }
  EXPECT_EQ(row_id(kVllmRow.loads[4]), "load.ct.fp8-block.dynamic");
  EXPECT_EQ(row_id(kVllmRow.limits[0]), "limit.ct.fp8-block.weight-only");
}

TEST(ChangesSince, AreTheFactsThatDiffer) {
  std::map<std::string, std::pair<std::string, std::string>> changes;
  for (const EngineChange& change : changes_since(kVllm032Row)) {
    EXPECT_NE(change.was, change.is) << change.id;
    changes[change.id] = {change.was, change.is};
  }
  EXPECT_EQ(changes.at("load.modelopt.fp8-tensor.static"),
            (std::pair<std::string, std::string>("generated text on a GPU", "read in its source")));
  EXPECT_EQ(changes.at("reader.modelopt.flat-excludes").first, "");
  EXPECT_EQ(changes.at("limit.quark.mxfp8.experts").second, "");
  EXPECT_EQ(changes.at("limit.quark.mxfp8.weight-only.experts").first, "");
  EXPECT_EQ(changes.at("family.beam").second, "read in its source: bf16");
  EXPECT_FALSE(changes.contains("load.ct.fp8-block.dynamic")) << "its code is that which ran";
  EXPECT_FALSE(changes.contains("pin.compressed-tensors"));
  EXPECT_TRUE(changes_since(kVllmRow).empty());
}

TEST(EngineOf, TakesTheVersionThatIsKnown) {
  EXPECT_EQ(&engine_of("vllm"), &newest(Engine::kVllm));
  EXPECT_EQ(&engine_of("vllm:0.33"), &kVllmRow);
  EXPECT_EQ(&engine_of("vllm:0.32"), &kVllm032Row);
  EXPECT_EQ(&engine_of("sglang:0.5.23"), &kSglangRow);
  for (const char* other : {"vllm:0.3", "vllm:2", "vllm:", "trtllm:1.0"})
    expect_error(kUnsupported, {"not version"}, [&] { engine_of(other); });
  expect_error(kInvalidArgument, {"'vlm' is no engine", "vllm-ascend"}, [] { engine_of("vlm"); });
}

}  // namespace
}  // namespace ingot::engines
