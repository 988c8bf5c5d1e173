// The same weights in every scheme, dialect and layout give the same FP32 logits.

#include "tests/convert/slicing/sliced.h"
#include "tests/convert/targets.h"
#include "tests/inference/model/golden_file.h"
#include "tests/inference/model/runner.h"
#include "tests/support/test.h"

namespace ingot::testing {
namespace {

namespace fs = std::filesystem;

using formats::SchemeId;
using inference::Matrix;
using inference::Row;
using shard::TpFit;

/// Logits of two prompts, of the main model and of the MTP layer. The second one is so long that
/// the indexer has to choose, unless that takes thousands of tokens.
std::vector<float> logits_of(const fs::path& directory) {
  const OpenedModel opened(directory);
  const inference::Model& model = opened.model;
  EXPECT_TRUE(model.has_mtp());
  const std::size_t topk = model.spec().indexer()->topk;
  std::vector<float> all;
  const auto add = [&](const Matrix& values) {
    all.insert(all.end(), values.values().begin(), values.values().end());
  };
  for (const std::int32_t seed : {5, 77}) {
    const auto n = static_cast<std::uint32_t>(seed == 77 && topk < 100 ? topk + 4 : 6);
    inference::ModelCache cache = model.make_cache(inference::KvFormat::kF32, n);
    const inference::SequenceId sequence = cache.add();
    std::vector<Row> rows;
    for (std::uint32_t i = 0; i < n; ++i) {
      const auto vocab = static_cast<std::int32_t>(model.spec().vocab);
      const std::int32_t token = (seed * 31 + static_cast<std::int32_t>(i) * 97) % vocab;
      rows.push_back({.sequence = sequence, .position = i, .token = token, .logits = true});
    }
    Matrix normed;
    add(model.step(rows, cache, {}, &normed));
    add(model.head(model.mtp(normed, rows, cache)));
  }
  return all;
}

/// The random model without FP8 in it: tensors that no rule selects are the same in every dialect.
const fs::path& plain_synth() {
  static const TempDir directory;
  static const fs::path path = [] {
    Conversion(synth_model(), directory / "bf16").run();
    return directory / "bf16";
  }();
  return path;
}

/// The example as it was before it became FP8, so that no two schemes hold it alike.
const fs::path& master() {
  static const fs::path path(INGOT_SOURCE_DIR "/tests/golden/tiny-v32/bf16");
  return path;
}

enum class Attention : std::uint8_t { kAsUsual, kSpared };

void convert_to(const Target& target, const fs::path& from, const fs::path& to,
                Attention attention = Attention::kAsUsual) {
  Conversion conversion(from, to);
  target.apply(conversion.recipe);
  conversion.recipe.choices.search = quantize::ScaleSearch::kAmax;
  if (attention == Attention::kSpared) spare_attention(conversion.recipe);
  conversion.run();
}

/// Runs a conversion; false when it refuses.
bool runs(Conversion conversion) {
  try {
    conversion.run();
    return true;
  } catch (const Error& error) {
    EXPECT_TRUE(error.code() == ErrorCode::kUnsupported ||
                error.code() == ErrorCode::kInvalidArgument)
        << error.what();
    fs::remove_all(conversion.output);
    return false;
  }
}

/// Cuts into ranks, in another way to fit where the plain one is refused; false when all are.
bool same_in_ranks(const fs::path& directory, std::span<const float> wanted, Cut cut) {
  for (const TpFit fit : {TpFit::kRefuse, TpFit::kRetile, TpFit::kPad}) {
    cut.fit = fit;
    const TempDir ranks;
    if (!runs(slicing(directory, ranks / "ranks", cut))) continue;
    EXPECT_TRUE(same_bits(logits_of(ranks / "ranks"), wanted)) << cut.name();
    return true;
  }
  return false;
}

/// Shards under DeepSeek's own names, as many as `mp`.
bool same_in_native_layout(const fs::path& directory, std::span<const float> wanted,
                           std::uint32_t mp) {
  const TempDir shards;
  Conversion conversion = keeping(directory, shards / "shards");
  conversion.plan.layout = formats::find_layout("deepseek-mp");
  conversion.plan.slicing.topology = shard::make_topology(mp, mp, 1, 1);
  if (!runs(conversion)) return false;
  EXPECT_TRUE(same_bits(logits_of(shards / "shards"), wanted)) << "deepseek-mp " << mp;
  return true;
}

/// Every row of every dialect.
class Layouts : public ::testing::TestWithParam<Target> {
 protected:
  static void expect_same_everywhere(const fs::path& source, std::initializer_list<Cut> cuts) {
    const TempDir directory;
    convert_to(GetParam(), source, directory / "hf");
    const std::vector<float> wanted = logits_of(directory / "hf");
    std::vector<Cut> refused;
    for (const Cut& cut : cuts) {
      if (!same_in_ranks(directory / "hf", wanted, cut)) refused.push_back(cut);
    }
    // Heads that fall between blocks cannot be cut; in BF16 they can.
    if (!refused.empty()) {
      convert_to(GetParam(), source, directory / "spared", Attention::kSpared);
      const std::vector<float> spared = logits_of(directory / "spared");
      // Scales of blocks as ModelOpt spreads them are cut only between blocks: such cuts are
      // refused.
      const bool is_cut = GetParam().dialect->name != "modelopt" ||
                          GetParam().storage->scheme != SchemeId::kFp8Block;
      for (const Cut& cut : refused) {
        EXPECT_EQ(same_in_ranks(directory / "spared", spared, cut), is_cut) << cut.name();
      }
    }
    if (GetParam().dialect->name != "deepseek") return;
    // DeepSeek's code loads FP8 and BF16; blocks of this small model fit only one shard.
    EXPECT_EQ(same_in_native_layout(directory / "hf", wanted, 1),
              GetParam().storage->scheme == SchemeId::kFp8Block);
  }
};

TEST_P(Layouts, HaveTheSameLogits) {
  expect_same_everywhere(plain_synth(), {{.tp = 2, .ep = 4}});
}

TEST_P(Layouts, ExampleHasTheSameLogitsSlow) {
  expect_same_everywhere(master(), {{.tp = 2, .ep = 4}, {.tp = 4}, {.tp = 2, .pp = 2}});
}

// BF16 itself, in as many shards as there are experts.
TEST(PlainLayouts, HaveTheSameLogits) {
  const std::vector<float> wanted = logits_of(plain_synth());
  for (const Cut& cut : {Cut{.tp = 2, .ep = 4}, Cut{.tp = 4}, Cut{.tp = 2, .ep = 2, .etp = 2}}) {
    EXPECT_TRUE(same_in_ranks(plain_synth(), wanted, cut)) << cut.name();
  }
  for (const std::uint32_t mp : {1U, 2U, 4U}) {
    EXPECT_TRUE(same_in_native_layout(plain_synth(), wanted, mp)) << mp;
  }
}

INSTANTIATE_TEST_SUITE_P(Dialects, Layouts, ::testing::ValuesIn(first_targets()), target_name);
INSTANTIATE_TEST_SUITE_P(SlowDialects, Layouts,
                         ::testing::ValuesIn(all_targets_but(first_targets())), target_name);

/// One choice of tensors for all dialects, whose defaults differ: every MLP and expert, no
/// attention.
void convert_mlps_to(const Target& target, const fs::path& from, const fs::path& to) {
  Conversion conversion(from, to);
  target.apply(conversion.recipe);
  conversion.recipe.choices.search = quantize::ScaleSearch::kAmax;
  spare_attention(conversion.recipe);
  conversion.recipe.rules.push_back(
      convert::make_rule("*.mlp.*_proj.weight", formats::scheme_facts(target.storage->scheme).name,
                         convert::RuleOrigin::kRule));
  conversion.run();
}

/// The same codes under the names of another dialect.
void rewrap(const Target& target, const fs::path& from, const fs::path& to) {
  Conversion conversion = keeping(from, to);
  conversion.recipe.choices.dialect = std::string(target.dialect->name);
  conversion.recipe.choices.activations = target.storage->activations;
  conversion.recipe.allow.add("engine-refuses=*");
  if (target.storage->activations == formats::Activations::kStatic) {
    conversion.recipe.choices.input_scale = 1.0F;
  }
  conversion.run();
}

void expect_dialects_agree(const fs::path& source) {
  const TempDir directory;
  std::map<SchemeId, std::pair<std::string, std::vector<float>>> first;
  std::size_t n_compared = 0;
  for (const Target& target : all_targets()) {
    const SchemeId scheme = target.storage->scheme;
    const auto found = first.find(scheme);
    if (found == first.end()) {
      convert_mlps_to(target, source, directory / target.name());
      first.emplace(scheme, std::pair(target.name(), logits_of(directory / target.name())));
      continue;
    }
    ++n_compared;
    const auto& [name, wanted] = found->second;
    const TempDir other;
    if (scheme != SchemeId::kNvfp4) {
      convert_mlps_to(target, source, other / "hf");
      EXPECT_TRUE(same_bits(logits_of(other / "hf"), wanted)) << target << " and " << name;
      continue;
    }
    // Its global scale is stored as itself or as its inverse. Either is rounded, and quantizing
    // again follows it, so that values between two codes may go either way: the codes are kept
    // here.
    rewrap(target, directory / name, other / "hf");
    EXPECT_LE(relative_error(logits_of(other / "hf"), wanted), 1e-5) << target << " and " << name;
  }
  EXPECT_EQ(n_compared + first.size(), all_targets().size());
  EXPECT_EQ(first.size(), 9U);
  for (const auto& [scheme, a] : first) {
    for (const auto& [other, b] : first) {
      if (scheme < other) {
        EXPECT_FALSE(same_bits(a.second, b.second)) << a.first << " and " << b.first;
      }
    }
  }
}

TEST(Dialects, SameSchemeHasTheSameLogits) {
  expect_dialects_agree(plain_synth());
}

TEST(Dialects, ExampleInOneSchemeHasSameLogitsSlow) {
  expect_dialects_agree(master());
}

}  // namespace
}  // namespace ingot::testing
