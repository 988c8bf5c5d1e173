#include "formats/experts/expert_views.h"

#include "check/check.h"
#include "convert/convert.h"
#include "engines/verdicts.h"
#include "formats/base/fd.h"
#include "formats/family/families.h"
#include "formats/json/json.h"
#include "synth/synth.h"
#include "tests/convert/conversion.h"
#include "tests/convert/output_tensors.h"
#include "tests/convert/slicing/sliced.h"
#include "tests/convert/targets.h"
#include "tests/support/bytes.h"
#include "tests/support/test.h"
#include "tests/support/tiny_checkpoint.h"

// Routed experts one by one, stacked and turned (tests/golden/PROVENANCE.md has the fixtures).

namespace ingot::convert {
namespace {

using formats::Checkpoint;
using formats::SchemeId;
using formats::Shape;
using namespace ingot::testing;

constexpr std::size_t kExperts = 6;

/// Converts as the command line does.
OutputTensors converted(const std::filesystem::path& input, const std::filesystem::path& output,
                        std::optional<SchemeId> to,
                        std::optional<ExpertChoice> experts = std::nullopt,
                        const std::string& dialect = "") {
  Conversion conversion(input, output);
  conversion.recipe.to = to;
  conversion.recipe.choices.experts = experts;
  conversion.recipe.choices.dialect = dialect;
  conversion.run();
  return read_output(output);
}

void expect_no_errors(const std::filesystem::path& directory) {
  for (const check::Finding& finding : check::check_checkpoint(directory, {}).findings)
    EXPECT_EQ(finding.severity, check::Severity::kWarning)
        << directory << " " << finding.tensor << " " << finding.message;
}

// The config of this fixture promises an MTP layer that was not saved with it.
TEST(StackedExperts, KeepNoPromiseOfMissingMtp) {
  const TempDir directory;
  const std::filesystem::path source = INGOT_SOURCE_DIR "/tests/golden/arch/deepseek_v3/checkpoint";
  for (const ExpertChoice experts : {ExpertChoice::kKeep, ExpertChoice::kStacked}) {
    const auto output = directory / std::to_string(static_cast<int>(experts));
    converted(source, output, SchemeId::kInt8Channel, experts);
    EXPECT_EQ(formats::read_json_file(output / "config.json", 1 << 20)["num_nextn_predict_layers"],
              0);
  }
}

/// How a family stacks, written a second time to check its row.
struct Stacks {
  const char* fixture;
  bool is_input_major, is_interleaved;
};
constexpr std::array kStacked = {Stacks{"qwen3_5_moe", false, false}, Stacks{"llama4", true, false},
                                 Stacks{"gpt_oss_bf16", true, true}};

/// The rows of an expert's projection in a plain stack of numbers of two bytes.
std::string rows_in_stack(const Stacks& stacks, const OutputTensor& stack, std::size_t expert,
                          std::size_t member, std::size_t n_members) {
  const bool is_bias = stack.shape.size() == 2;
  const bool is_turned = is_bias || stacks.is_input_major;
  const std::size_t outputs = is_turned ? stack.shape.back() : stack.shape[1];
  const std::size_t inputs = is_bias ? 1 : stack.shape[is_turned ? 1 : 2];
  const std::size_t own = outputs / n_members;
  std::string bytes;
  for (std::size_t row = 0; row < own; ++row) {
    const std::size_t output =
        stacks.is_interleaved ? row * n_members + member : member * own + row;
    for (std::size_t input = 0; input < inputs; ++input) {
      const std::size_t at = is_turned ? (expert * inputs + input) * outputs + output
                                       : (expert * outputs + output) * inputs + input;
      bytes += stack.bytes.substr(at * 2, 2);
    }
  }
  return bytes;
}

/// Compares outputs with stacks and with experts one by one.
void expect_rows_of_stacks(const Stacks& stacks, const OutputTensors& before,
                           const OutputTensors& after) {
  std::size_t n_single = 0, n_stacks = 0;
  for (const auto& [name, tensor] : before) {
    if (name.find(".experts.") == name.npos) {
      EXPECT_EQ(after.at(name), tensor) << name;
      continue;
    }
    EXPECT_FALSE(after.contains(name));
    ++n_stacks;
    const std::string base = name.substr(0, name.rfind('.') + 1);
    const std::string tail = name.ends_with("_bias") ? ".bias" : ".weight";
    const std::vector<std::string> members = name.find("gate_up") == name.npos
                                                 ? std::vector<std::string>{"down_proj"}
                                                 : std::vector<std::string>{"gate_proj", "up_proj"};
    for (std::size_t expert = 0; expert < tensor.shape[0]; ++expert) {
      for (std::size_t m = 0; m < members.size(); ++m, ++n_single) {
        const std::string single = base + std::to_string(expert) + "." + members[m] + tail;
        ASSERT_TRUE(after.contains(single)) << single;
        EXPECT_EQ(after.at(single).bytes, rows_in_stack(stacks, tensor, expert, m, members.size()))
            << single;
      }
    }
  }
  EXPECT_EQ(after.size(), before.size() - n_stacks + n_single);
}

TEST(SeparatedExperts, AreTheRowsOfTheirStack) {
  for (const Stacks& stacks : kStacked) {
    const TempDir directory;
    const OutputTensors before = read_output(fixture(stacks.fixture));
    const OutputTensors after = converted(fixture(stacks.fixture), directory / "out", std::nullopt,
                                          ExpertChoice::kSeparate);
    expect_rows_of_stacks(stacks, before, after);
    expect_no_errors(directory / "out");
    const OutputTensors again =
        converted(directory / "out", directory / "again", std::nullopt, ExpertChoice::kStacked);
    EXPECT_EQ(again, before) << stacks.fixture;
    const check::CheckResult made =
        check::check_is_source_of(directory / "out", directory / "again");
    EXPECT_TRUE(made.findings.empty());
  }
}

/// A model with stacks as the small checkpoint's config says, of a family whose stacks have names
/// of their own.
std::filesystem::path synthetic(const std::string& name, const std::filesystem::path& directory) {
  const std::string config = "headers/" + name + ".config.json";
  formats::write_synthetic_checkpoint(
      directory, {.family = formats::find_family(name),
                  .config = read_text_file(fixture(config), std::uint64_t{1} << 20),
                  .stacked = true});
  return directory;
}

// Inkling calls them w13_weight and w2_weight, Step has one for each projection next to `experts`.
TEST(SeparatedExperts, HaveTheNamesOfTheirFamily) {
  struct Stack {
    const char* name;
    std::vector<std::string> members;
  };
  struct Model {
    const char* family;
    bool is_interleaved;
    const char* singles;
    std::vector<Stack> stacks;
  };
  for (const Model& model :
       {Model{"step3p7",
              false,
              "model.layers.1.moe.experts.",
              {{"model.layers.1.moe.gate_proj.weight", {"gate_proj"}},
               {"model.layers.1.moe.up_proj.weight", {"up_proj"}},
               {"model.layers.1.moe.down_proj.weight", {"down_proj"}}}},
        Model{"inkling",
              true,
              "model.llm.layers.1.mlp.experts.",
              {{"model.llm.layers.1.mlp.experts.w13_weight", {"gate_proj", "up_proj"}},
               {"model.llm.layers.1.mlp.experts.w2_weight", {"down_proj"}}}}}) {
    const TempDir directory;
    const auto input = synthetic(model.family, directory / "in");
    const OutputTensors before = read_output(input);
    const OutputTensors after =
        converted(input, directory / "out", std::nullopt, ExpertChoice::kSeparate);
    for (const Stack& stack : model.stacks) {
      const OutputTensor& whole = before.at(stack.name);
      EXPECT_FALSE(after.contains(stack.name));
      for (std::size_t expert = 0; expert < whole.shape[0]; ++expert) {
        for (std::size_t m = 0; m < stack.members.size(); ++m) {
          const std::string single =
              model.singles + std::to_string(expert) + "." + stack.members[m] + ".weight";
          ASSERT_TRUE(after.contains(single)) << single;
          EXPECT_EQ(after.at(single).bytes,
                    rows_in_stack({model.family, false, model.is_interleaved}, whole, expert, m,
                                  stack.members.size()))
              << single;
        }
      }
    }
    expect_no_errors(directory / "out");
    EXPECT_EQ(
        converted(directory / "out", directory / "again", std::nullopt, ExpertChoice::kStacked),
        before);
    // A scheme that no stack can hold is written one by one.
    const OutputTensors int8 = converted(input, directory / "int8", SchemeId::kInt8Channel);
    EXPECT_EQ(int8.at(std::string(model.singles) + "0.down_proj.weight").dtype,
              formats::DType::kI8);
    expect_no_errors(directory / "int8");
  }
}

TEST(SeparatedExperts, AreQuantizedAsAnyOther) {
  for (const Stacks& stacks : kStacked) {
    const bool has_wide_rows = std::string(stacks.fixture) == "gpt_oss_bf16";
    for (const formats::SchemeFacts& scheme : formats::schemes()) {
      if (!scheme.quantized || scheme.id == SchemeId::kInt8Block) continue;
      if (scheme.group_cols > 1 && scheme.group_rows == 1 && !has_wide_rows) continue;
      const TempDir directory;
      Conversion conversion(fixture(stacks.fixture), directory / "out");
      conversion.recipe.to = scheme.id;
      conversion.recipe.choices.experts = ExpertChoice::kSeparate;
      if (scheme.chooses_cols) conversion.recipe.choices.group_size = 32;
      conversion.run();
      expect_no_errors(directory / "out");
      const Checkpoint output = Checkpoint::open(directory / "out");
      for (const formats::LogicalTensor& tensor : output.tensors()) {
        if (tensor.rule == nullptr || !is_routed_expert(tensor.rule->role)) continue;
        EXPECT_EQ(tensor.encoding.scheme, scheme.id) << tensor.name;
      }
      EXPECT_TRUE(
          check::check_is_source_of(fixture(stacks.fixture), directory / "out").findings.empty());
    }
  }
}

TEST(SeparatedExperts, OfMxfp4KeepTheirCodes) {
  const TempDir directory;
  const OutputTensors before = read_output(fixture("gpt_oss"));
  const OutputTensors after =
      converted(fixture("gpt_oss"), directory / "out", std::nullopt, ExpertChoice::kSeparate);
  const std::string layer = "model.layers.1.mlp.experts.";
  const OutputTensor &codes = before.at(layer + "gate_up_proj_blocks"),
                     &up = after.at(layer + "4.up_proj.weight_packed");
  EXPECT_EQ(up.shape, (Shape{64, 48}));
  for (std::size_t row = 0; row < 64; ++row)
    EXPECT_EQ(up.bytes.substr(row * 48, 48), codes.bytes.substr((4 * 128 + 2 * row + 1) * 48, 48));
  const OutputTensor &scales = before.at(layer + "gate_up_proj_scales"),
                     &of_up = after.at(layer + "4.up_proj.weight_scale");
  for (std::size_t row = 0; row < 64; ++row)
    EXPECT_EQ(of_up.bytes.substr(row * 3, 3), scales.bytes.substr((4 * 128 + 2 * row + 1) * 3, 3));
  expect_no_errors(directory / "out");
}

TEST(SeparatedExperts, DecodeAsTheirStack) {
  const formats::Json golden = formats::read_json_file(fixture("gpt_oss.decoded.json"), 1 << 20);
  const TempDir directory;
  const OutputTensors single =
      converted(fixture("gpt_oss"), directory / "out", SchemeId::kF32, ExpertChoice::kSeparate);
  for (const auto& [name, facts] : golden.items()) {
    const std::string base = name.substr(0, name.rfind('.') + 1);
    const bool is_down = name.ends_with("down_proj");
    std::string bytes;
    for (std::size_t expert = 0; expert < kExperts; ++expert) {
      const std::string module = base + std::to_string(expert);
      const std::string& first =
          single.at(module + (is_down ? ".down_proj.weight" : ".gate_proj.weight")).bytes;
      if (is_down) {
        bytes += first;
        continue;
      }
      const std::string& up = single.at(module + ".up_proj.weight").bytes;
      constexpr std::size_t kRow = 96 * sizeof(float);
      for (std::size_t at = 0; at < up.size(); at += kRow)
        bytes += first.substr(at, kRow) + up.substr(at, kRow);
    }
    EXPECT_EQ(sha256(bytes), facts.at("f32_sha256_out_major").get<std::string>()) << name;
  }
}

// Gate and up have 32 rows each, a block has 128.
TEST(SeparatedExperts, MayShareABlockOfTheirStack) {
  const TempDir directory;
  const OutputTensors stacked =
      converted(fixture("qwen3_5_moe"), directory / "stacked", SchemeId::kFp8Block);
  const std::string layer = "model.language_model.layers.0.mlp.experts.";
  const OutputTensor& codes = stacked.at(layer + "gate_up_proj");
  ASSERT_EQ(codes.dtype, formats::DType::kF8E4M3);
  const OutputTensors single =
      converted(directory / "stacked", directory / "single", std::nullopt, ExpertChoice::kSeparate);
  constexpr std::size_t kOne = 32 * 72;
  EXPECT_EQ(single.at(layer + "3.up_proj.weight").bytes, codes.bytes.substr(kOne * 7, kOne));
  for (const char* member : {"3.gate_proj", "3.up_proj"}) {
    EXPECT_EQ(single.at(layer + member + ".weight_scale_inv").bytes,
              stacked.at(layer + "gate_up_proj_scale_inv").bytes.substr(3 * 4, 4));
  }
  expect_no_errors(directory / "single");
}

// Its experts are named as those of DeepSeek V3.
TEST(SeparatedExperts, TakeTheNumbersOfTheirMatrix) {
  const TempDir directory;
  Conversion conversion(fixture("mistral4_fp8"), directory / "out");
  conversion.family = "deepseek_v3";
  conversion.recipe.to = std::nullopt;
  conversion.recipe.choices.experts = ExpertChoice::kSeparate;
  conversion.run();
  const OutputTensors before = read_output(fixture("mistral4_fp8"));
  const OutputTensors after = read_output(directory / "out");
  const std::string layer = "language_model.model.layers.1.mlp.experts.";
  for (std::size_t expert = 0; expert < kExperts; ++expert) {
    for (const char* member : {"gate_proj", "up_proj", "down_proj"}) {
      const std::string stack =
          layer + (std::string(member) == "down_proj" ? "down_proj" : "gate_up_proj");
      const std::string single = layer + std::to_string(expert) + "." + member;
      for (const auto& [suffix, of_stack] : {std::pair{".weight_scale_inv", "_scale_inv"},
                                             std::pair{".activation_scale", "_activation_scale"}}) {
        EXPECT_EQ(after.at(single + suffix).shape, Shape());
        EXPECT_EQ(after.at(single + suffix).bytes,
                  before.at(stack + of_stack).bytes.substr(expert * 2, 2));
      }
    }
  }
}

TEST(StackedExperts, AreTheBytesOfTheSingleOnes) {
  const TempDir directory;
  for (const SchemeId scheme : {SchemeId::kFp8Channel, SchemeId::kInt8Channel}) {
    const std::filesystem::path base = directory / std::string(scheme_facts(scheme).name);
    std::filesystem::create_directory(base);
    const OutputTensors single = converted(fixture("qwen3_5_moe"), base / "single", scheme);
    const OutputTensors stacked =
        converted(base / "single", base / "stacked", std::nullopt, ExpertChoice::kStacked);
    const std::string layer = "model.language_model.layers.1.mlp.experts.";
    EXPECT_EQ(stacked.at(layer + "gate_up_proj").shape, (Shape{kExperts, 64, 72}));
    EXPECT_EQ(stacked.at(layer + "gate_up_proj_scale").shape, (Shape{kExperts, 64, 1}));
    EXPECT_EQ(converted(base / "stacked", base / "again", std::nullopt, ExpertChoice::kSeparate),
              single);
  }
}

TEST(StackedExperts, OfEveryFormPassTheirCheck) {
  std::size_t n_stacked = 0;
  for (const ingot::testing::Target& target : ingot::testing::all_targets()) {
    SCOPED_TRACE(target.name());
    const TempDir directory;
    Conversion single(fixture("qwen3_5_moe"), directory / "single");
    target.apply(single.recipe);
    Conversion stacked(directory / "single", directory / "stacked");
    stacked.recipe.to = std::nullopt;
    stacked.recipe.choices.experts = ExpertChoice::kStacked;
    stacked.recipe.allow = single.recipe.allow;
    try {
      single.run();
      stacked.run();
    } catch (const Error&) {
      continue;  // refused: only written outputs count here
    }
    expect_no_errors(directory / "stacked");
    ++n_stacked;
  }
  EXPECT_GE(n_stacked, 3U);
}

TEST(StackedExperts, AreDecodedUnderScalesOfTheirOwn) {
  const TempDir directory;
  const OutputTensors single =
      converted(fixture("qwen3_5_moe_fp8"), directory / "single", SchemeId::kBf16);
  const OutputTensors stacked = converted(fixture("qwen3_5_moe_fp8"), directory / "stacked",
                                          SchemeId::kBf16, ExpertChoice::kStacked);
  const std::string layer = "model.language_model.layers.2.mlp.experts.";
  std::string bytes;
  for (std::size_t expert = 0; expert < kExperts; ++expert) {
    const std::string module = layer + std::to_string(expert);
    bytes += single.at(module + ".gate_proj.weight").bytes;
    bytes += single.at(module + ".up_proj.weight").bytes;
  }
  EXPECT_EQ(stacked.at(layer + "gate_up_proj").bytes, bytes);
  expect_no_errors(directory / "stacked");
}

/// A copy of a fixture whose codes are those of E5M2.
void copy_as_e5m2(const std::string& name, const std::filesystem::path& to) {
  std::filesystem::copy(fixture(name), to);
  for (const auto& entry : std::filesystem::directory_iterator(to)) {
    if (entry.path().extension() != ".safetensors") continue;
    std::string bytes = read_text_file(entry.path(), 1 << 24);
    const std::string from = "F8_E4M3", kind = "F8_E5M2";
    for (std::size_t at = bytes.find(from); at != bytes.npos; at = bytes.find(from, at))
      bytes.replace(at, from.size(), kind);
    std::filesystem::permissions(entry.path(), std::filesystem::perms::owner_all);
    write_text_file(entry.path(), bytes);
  }
}

// One scale for an expert, and blocks of matrices that are turned.
TEST(SeparatedExperts, OfSchemesOnlyReadAreTheRowsOfTheirStack) {
  for (const Stacks& stacks :
       {Stacks{"mistral4_fp8", false, false}, Stacks{"qwen3_vl_moe_fp8", true, false}}) {
    const TempDir directory;
    copy_as_e5m2(stacks.fixture, directory / "in");
    std::map<ExpertChoice, OutputTensors> outputs;
    for (const ExpertChoice experts : {ExpertChoice::kKeep, ExpertChoice::kSeparate}) {
      const auto output = directory / std::to_string(static_cast<int>(experts));
      Conversion conversion(directory / "in", output);
      conversion.recipe.to = SchemeId::kBf16;
      conversion.recipe.choices.experts = experts;
      conversion.recipe.allow.nan_code = {Pattern("*")};
      conversion.run();
      outputs[experts] = read_output(output);
    }
    expect_rows_of_stacks(stacks, outputs[ExpertChoice::kKeep], outputs[ExpertChoice::kSeparate]);
  }
}

// Codes of E5M2 are never written, in stacks neither.
TEST(StackedExperts, OfFormsOnlyReadAreRefused) {
  const TempDir directory;
  copy_as_e5m2("qwen3_5_moe_fp8", directory / "in");
  EXPECT_NE(formats::stacking_fault(Checkpoint::open(directory / "in")), "");
  expect_error(ErrorCode::kUnsupported, {"_proj", "only read", "bf16 first"}, [&] {
    converted(directory / "in", directory / "out", SchemeId::kBf16, ExpertChoice::kStacked);
  });
}

TEST(StackedExperts, OfMxfp4ReturnFromBf16) {
  const TempDir directory;
  const OutputTensors plain = converted(fixture("gpt_oss"), directory / "bf16", SchemeId::kBf16);
  const OutputTensors coded =
      converted(directory / "bf16", directory / "mxfp4", SchemeId::kMxfp4, std::nullopt, "mxfp4");
  const OutputTensors release = read_output(fixture("gpt_oss"));
  for (const auto& [name, tensor] : release) EXPECT_EQ(coded.at(name).shape, tensor.shape) << name;
  EXPECT_EQ(coded.size(), release.size());
  expect_no_errors(directory / "mxfp4");
  const OutputTensors again = converted(directory / "mxfp4", directory / "again", SchemeId::kBf16);
  for (const auto& [name, tensor] : plain) {
    const auto before = tensor.as<std::uint16_t>(), after = again.at(name).as<std::uint16_t>();
    // The encoder has no minus zero.
    for (std::size_t i = 0; i < before.size(); ++i)
      ASSERT_TRUE(before[i] == after[i] || (before[i] == 0x8000 && after[i] == 0)) << name;
  }
}

TEST(StackedExperts, OfMxfp4StayWhereMxfp4IsAskedFor) {
  const TempDir directory;
  EXPECT_EQ(converted(fixture("gpt_oss"), directory / "out", SchemeId::kMxfp4),
            read_output(fixture("gpt_oss")));
}

TEST(StackedExperts, AreCutAndMergedToTheByte) {
  using ingot::testing::Cut;
  for (const auto& [name, cut] :
       {std::pair{"gpt_oss", Cut{.ep = 3}}, std::pair{"gpt_oss", Cut{.tp = 2}},
        std::pair{"gpt_oss", Cut{.tp = 2, .ep = 2}}, std::pair{"gpt_oss_bf16", Cut{.tp = 2}},
        std::pair{"gpt_oss_bf16", Cut{.tp = 2, .ep = 2}}, std::pair{"llama4", Cut{.tp = 2}},
        std::pair{"llama4", Cut{.tp = 2, .ep = 2}}, std::pair{"mistral4_fp8", Cut{.ep = 2}}}) {
    const TempDir directory;
    ingot::testing::slicing(fixture(name), directory / "ranks", cut).run();
    ingot::testing::keeping(directory / "ranks", directory / "merged").run();
    EXPECT_EQ(read_output(directory / "merged"), read_output(fixture(name)))
        << name << " " << cut.name();
  }
}

// Square blocks leave a stack in the order of its family.
TEST(Stacks, InSquareBlocksAreOfTheirSource) {
  const TempDir directory;
  converted(fixture("llama4"), directory / "out", SchemeId::kFp8Block, ExpertChoice::kKeep);
  EXPECT_TRUE(check::check_is_source_of(fixture("llama4"), directory / "out").findings.empty());
}

constexpr const char* kLongCat = INGOT_SOURCE_DIR "/tests/golden/forward/longcat_flash/checkpoint";

/// A model of LongCat-Flash as transformers 5.24 saves it: experts without tensors have gates and
/// ups, which nothing reads.
OutputTensors saved_by_transformers(OutputTensors model, bool is_stacked) {
  constexpr std::size_t kAll = kExperts + 4;
  for (const char* layer : {"model.layers.0.", "model.layers.1."}) {
    const std::string begin = std::string(layer) + "mlp.experts.";
    const auto name = [&](std::size_t expert, const char* projection) {
      return begin + std::to_string(expert) + projection;
    };
    OutputTensor unread = model.at(name(0, ".gate_proj.weight"));
    std::ranges::fill(unread.bytes, '\xff');
    for (std::size_t expert = kExperts; expert < kAll; ++expert) {
      for (const char* projection : {".gate_proj.weight", ".up_proj.weight"})
        model[name(expert, projection)] = unread;
    }
    if (!is_stacked) continue;
    OutputTensor gate_up{unread.dtype, {kAll, 2 * unread.shape[0], unread.shape[1]}, {}, {}};
    OutputTensor down{unread.dtype, {kExperts, unread.shape[1], unread.shape[0]}, {}, {}};
    for (std::size_t expert = 0; expert < kAll; ++expert) {
      for (const char* projection : {".gate_proj.weight", ".up_proj.weight"})
        gate_up.bytes += model.extract(name(expert, projection)).mapped().bytes;
      if (expert < kExperts)
        down.bytes += model.extract(name(expert, ".down_proj.weight")).mapped().bytes;
    }
    model[begin + "gate_up_proj"] = gate_up;
    model[begin + "down_proj"] = down;
  }
  return model;
}

void write_long_cat(const OutputTensors& model, const std::filesystem::path& to) {
  std::vector<TinyTensor> tensors;
  for (const auto& [name, tensor] : model)
    tensors.push_back(
        {name, std::string(formats::dtype_name(tensor.dtype)), tensor.shape, tensor.bytes});
  write_bytes(to / "model.safetensors", safetensors_bytes(tensors));
  std::filesystem::copy(std::filesystem::path(kLongCat) / "config.json", to);
}

TEST(IdentityExperts, LoseWhatTransformersSavesOfThem) {
  const TempDir directory;
  for (const bool is_stacked : {false, true}) {
    SCOPED_TRACE(is_stacked);
    const std::filesystem::path saved = directory / (is_stacked ? "stacks" : "singles");
    write_long_cat(saved_by_transformers(read_output(kLongCat), is_stacked), saved);
    EXPECT_THAT(Checkpoint::open(saved).remarks(),
                ::testing::Contains(::testing::HasSubstr("experts 6 to 9")));
    expect_no_errors(saved);
    const ExpertChoice experts = is_stacked ? ExpertChoice::kSeparate : ExpertChoice::kKeep;
    for (const auto to : {std::optional<SchemeId>(), std::optional(SchemeId::kInt8Channel)}) {
      const TempDir outputs;
      EXPECT_EQ(converted(saved, outputs / "of_saved", to, experts),
                converted(kLongCat, outputs / "of_release", to));
      for (const check::Finding& finding :
           check::check_is_source_of(saved, outputs / "of_saved").findings)
        EXPECT_EQ(finding.severity, check::Severity::kWarning) << finding.message;
    }
  }
}

/// The words that `check --engine` has for a reason: "loads", "error" or "silent".
std::string verdict_on(const std::filesystem::path& model, engines::Engine engine) {
  const Checkpoint checkpoint = Checkpoint::open(model);
  const engines::EngineInput input(checkpoint);
  const engines::EngineVerdict verdict =
      engines::engine_verdict(checkpoint, input, engines::newest(engine), {});
  return verdict.loads ? "loads" : verdict.is_silent ? "silent" : "error";
}

// vLLM's loader has no parameters for them; SGLang's passes over names that it does not know, also
// over those of stacks.
TEST(IdentityExperts, AreLoadedBySGLangAsSingleOnesOnly) {
  const TempDir directory;
  for (const bool is_stacked : {false, true}) {
    SCOPED_TRACE(is_stacked);
    const std::filesystem::path saved = directory / (is_stacked ? "stacks" : "singles");
    write_long_cat(saved_by_transformers(read_output(kLongCat), is_stacked), saved);
    EXPECT_EQ(verdict_on(saved, engines::Engine::kVllm), "error");
    EXPECT_EQ(verdict_on(saved, engines::Engine::kSglang), is_stacked ? "silent" : "loads");
    std::set<std::string_view> rules;
    for (const check::Finding& finding : check::check_checkpoint(saved, {}).findings)
      rules.emplace(finding.rule);
    EXPECT_TRUE(rules.contains("engine.refused-by-vllm"));
    EXPECT_EQ(rules.contains("engine.refused-by-sglang"), is_stacked);
  }
  EXPECT_EQ(verdict_on(kLongCat, engines::Engine::kVllm), "loads");
}

TEST(StackedExperts, AreSeparatedForAnEngineThatKnowsNoStacks) {
  const TempDir directory;
  formats::SynthOptions options;
  options.family = formats::find_family("deepseek_v3");
  options.size = formats::SynthSize::kTiny;
  options.fp8 = false;
  options.stacked = true;
  write_synthetic_checkpoint(directory / "in", options);
  EXPECT_EQ(verdict_on(directory / "in", engines::Engine::kVllm), "error");
  EXPECT_EQ(verdict_on(directory / "in", engines::Engine::kSglang), "loads");
  for (const engines::Engine engine : {engines::Engine::kVllm, engines::Engine::kSglang}) {
    Conversion conversion(directory / "in", directory / std::string(engines::newest(engine).word));
    conversion.recipe.choices.engine = &engines::newest(engine);
    conversion.recipe.to.reset();
    conversion.run();
    EXPECT_EQ(verdict_on(conversion.output, engine), "loads");
    const OutputTensors output = read_output(conversion.output);
    const bool has_stacks = std::ranges::any_of(
        output, [](const auto& tensor) { return tensor.first.ends_with(".experts.gate_up_proj"); });
    EXPECT_EQ(has_stacks, engine == engines::Engine::kSglang);
  }
}

TEST(StackedExperts, AreSeparatedWhereRanksSkipThoseOfOthers) {
  const TempDir directory;
  const auto has_stacks_for = [&](const char* source, engines::Engine engine) {
    const std::string name = fmt::format("{}-{}", source, engines::newest(engine).word);
    Conversion conversion(fixture(source), directory / name);
    conversion.recipe.choices.engine = &engines::newest(engine);
    conversion.recipe.to.reset();
    conversion.run();
    return formats::holds_stacks(Checkpoint::open(conversion.output));
  };
  EXPECT_FALSE(has_stacks_for("qwen3_5_moe", engines::Engine::kVllm));
  EXPECT_FALSE(has_stacks_for("llama4", engines::Engine::kVllm));
  EXPECT_TRUE(has_stacks_for("qwen3_5_moe", engines::Engine::kSglang));
  EXPECT_TRUE(has_stacks_for("gpt_oss", engines::Engine::kVllm)) << "it loads only stacks";
}

TEST(IdentityExperts, AreNoneOfThePrunedOnes) {
  const TempDir directory;
  OutputTensors model = read_output(kLongCat);
  const std::string layer = "model.layers.1.mlp.";
  std::erase_if(model,
                [&](const auto& tensor) { return tensor.first.starts_with(layer + "experts.5."); });
  for (const char* name : {"router.classifier.weight", "router.e_score_correction_bias"}) {
    OutputTensor& rows = model.at(layer + name);
    rows.bytes.resize(rows.bytes.size() / rows.shape[0] * 9);
    rows.shape[0] = 9;
  }
  write_long_cat(model, directory.path());
  expect_error(ErrorCode::kShapeMismatch, {"layer 1 has 5 experts, config.json says 6"},
               [&] { (void)Checkpoint::open(directory.path()); });
}

TEST(SeparatedExperts, AreRefusedWhereNoneAreStacked) {
  const TempDir directory;
  Conversion conversion(fixture("qwen3_5_moe_fp8"), directory / "out");
  conversion.recipe.choices.experts = ExpertChoice::kSeparate;
  ingot::testing::expect_error(ErrorCode::kInvalidArgument, {"--experts separate", "no effect"},
                               [&] { conversion.run(); });
}

}  // namespace
}  // namespace ingot::convert
