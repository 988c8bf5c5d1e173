#include "library/options/target_flags.h"

#include <algorithm>
#include <array>
#include <bit>
#include <filesystem>
#include <iterator>
#include <memory>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "convert/job/job_identity.h"
#include "convert/recipe/built_in_recipes.h"
#include "convert/recipe/composition.h"
#include "convert/recipe/kv_ranges.h"
#include "convert/recipe/statistics.h"
#include "formats/adapters/lora.h"
#include "formats/base/error.h"
#include "formats/base/fd.h"
#include "formats/text/spelling.h"
#include "library/options/settings.h"
#include "shard/join/source.h"

namespace ingot {

using convert::Recipe;

namespace {

constexpr std::uint64_t kMaxRecipeBytes = std::uint64_t{1} << 20;

// Names, and the short words for some of them.
std::string target_words() {
  std::vector<std::string> words;
  for (const formats::SchemeFacts& facts : formats::schemes()) {
    if (facts.to_word.empty()) continue;
    words.push_back(facts.to_word == facts.name
                        ? std::string(facts.name)
                        : fmt::format("{} (or {})", facts.name, facts.to_word));
  }
  return fmt::format("{}", fmt::join(words, ", "));
}

std::vector<std::string> offered_selectors() {
  std::vector<std::string> words = {"layers:", "re:"};
  for (const std::string_view role : convert::role_words())
    words.push_back(fmt::format("role:{}=", role));
  return words;
}

}  // namespace

Recipe read_recipe_file(const std::string& name, convert::Composition* composition) {
  Recipe recipe = convert::parse_recipe(read_text_file(name, kMaxRecipeBytes), name, composition);
  if (composition != nullptr) {
    for (convert::NamedDirectory& giver : composition->givers)
      giver.path = path_or_snapshot(giver.path, giver.given);
  }
  std::string& lora = recipe.choices.lora;
  if (!lora.empty()) lora = (std::filesystem::path(name).parent_path() / lora).string();
  return recipe;
}

namespace {

// The recipe of that name, or in that file.
Recipe read_recipe(const std::string& name, convert::Composition* composition) {
  if (composition != nullptr) return read_recipe_file(name, composition);
  const auto& rows = convert::kBuiltInRecipes;
  const auto* const row = std::ranges::find(rows, name, &convert::BuiltInRecipe::name);
  if (row != rows.end()) return convert::parse_recipe(row->yaml, name);
  // A word without a folder and a suffix was meant as a name.
  const std::filesystem::path file(name);
  if (!file.has_parent_path() && !file.has_extension() && !std::filesystem::exists(file))
    refuse_word("--recipe", name, rows, &convert::BuiltInRecipe::name);
  return read_recipe_file(name);
}

// Options of the command line win over the recipe's.
void read_choices(const TargetFlags& flags, Recipe& recipe) {
  convert::Choices& choices = recipe.choices;
  for (const auto& [name, word] : flags.options) {
    if (word.empty()) continue;
    convert::take_option(name, word, recipe);
    if (name == "--lora") choices.lora_line = 0;
  }
  const auto is_given = [&](const char* option, bool is) {
    if (is) recipe.given.emplace_back(option);
    return is;
  };
  if (is_given("--activation-scales", !flags.activation_scales.empty())) {
    if (choices.input_scale) {
      throw Error(ErrorCode::kInvalidArgument,
                  "--input-scale is one scale for every input, --activation-scales has one for "
                  "each (give one of them)");
    }
    choices.activation_scales = std::make_shared<const convert::ActivationScales>(
        convert::ActivationScales::read(flags.activation_scales));
  }
  is_given("--scales-from", !flags.scales_from.empty());
  if (is_given("--importance", !flags.importance.empty())) {
    choices.importance =
        std::make_shared<const convert::Importance>(convert::Importance::read(flags.importance));
  }
  if (is_given("--kv-scales", !flags.kv_scales.empty())) {
    choices.kv_scales =
        std::make_shared<const convert::KvRanges>(convert::KvRanges::read(flags.kv_scales));
  }
  if (is_given("--quantize-attention", flags.quantize_attention)) choices.quantize_attention = true;
  if (is_given("--gptq", flags.gptq)) choices.gptq = true;
  if (is_given("--zero-points", flags.zero_points)) choices.zero_points = true;
}

}  // namespace

std::vector<std::string> offered_targets() {
  std::vector<std::string> words;
  for (const formats::SchemeFacts& facts : formats::schemes()) {
    if (facts.to_word.empty()) continue;
    words.emplace_back(facts.name);
    if (facts.to_word != facts.name) words.emplace_back(facts.to_word);
  }
  return words;
}

void open_scales_from(const TargetFlags& flags, const std::string& family, std::size_t threads,
                      convert::Choices& choices) {
  if (flags.scales_from.empty()) return;
  auto release = std::make_shared<formats::Checkpoint>(
      shard::open_source(flags.scales_from, {.open = {.family = family, .threads = threads}}));
  choices.scales_from_fingerprint = convert::source_fingerprint(*release, nullptr, threads);
  choices.scales_from = std::move(release);
}

void require_own_statistics(const convert::Choices& choices, const formats::Checkpoint& source) {
  if (choices.activation_scales)
    choices.activation_scales->require_made_from(source, "--activation-scales");
  if (choices.importance) choices.importance->require_made_from(source, "--importance");
  if (choices.kv_scales) choices.kv_scales->require_made_from(source, "--kv-scales");
}

namespace {

// Opens the adapter, when all that is said about it is known; `file` has the recipe.
void open_adapter(Recipe& recipe, const std::string& file) {
  convert::Choices& choices = recipe.choices;
  if (choices.lora.empty()) {
    for (const char* option : {"--lora-scale", "--expert-b-order", "--keep-touched"}) {
      if (std::ranges::find(recipe.given, option) == recipe.given.end()) continue;
      throw Error(ErrorCode::kInvalidArgument, "{} belongs to --lora, which was not given", option);
    }
    return;
  }
  choices.lora_options.allow_residual = recipe.allow.lora_base;
  try {
    choices.editors.push_back(
        std::make_shared<const formats::LoraAdapter>(choices.lora, choices.lora_options));
  } catch (const Error& error) {
    if (choices.lora_line == 0 || error.code() == ErrorCode::kInterrupted) throw;
    throw Error(error.code(), "line {}: 'lora': {}", choices.lora_line, error.what()).in_file(file);
  }
}

}  // namespace

Recipe make_recipe(const TargetFlags& flags, convert::Composition* composition) {
  Recipe recipe;
  if (!flags.recipe_file.empty()) recipe = read_recipe(flags.recipe_file, composition);
  std::vector<convert::Rule> first;
  for (const std::string& text : flags.rules) first.push_back(convert::parse_rule(text));
  recipe.rules.insert(recipe.rules.begin(), std::make_move_iterator(first.begin()),
                      std::make_move_iterator(first.end()));
  for (const std::string& text : flags.allow) recipe.allow.add(text);
  read_choices(flags, recipe);
  open_adapter(recipe, flags.recipe_file);
  return recipe;
}

Flag choice(TargetFlags& flags, std::string_view name, std::string help,
            std::vector<std::string> words) {
  const convert::RecipeOption& option = convert::recipe_option(name);
  words.insert(words.end(), option.words.begin(), option.words.end());
  return {
      std::string(name), &flags.options[option.name], std::move(help), {.words = std::move(words)}};
}

namespace {

Flag of_kind(Flag flag, ValueKind kind) {
  flag.rule.kind = kind;
  return flag;
}

}  // namespace

std::vector<Flag> scheme_flags(TargetFlags& flags) {
  return {choice(flags, "--to",
                 fmt::format("target scheme: {}; which tensors take it: ingot list recipes "
                             "(default: keep each scheme)",
                             target_words()),
                 offered_targets()),
          choice(flags, "--for",
                 fmt::format("engine for the output, which chooses dialect and activations: {}; "
                             "forms that each loads: ingot list loads",
                             names_of(engines::engines(), &engines::EngineRow::word)),
                 words_of(engines::engines(), &engines::EngineRow::word)),
          choice(flags, "--dialect",
                 fmt::format("layout of quantized tensors: {} (default: by scheme); forms that "
                             "engines refuse: ingot list engines",
                             names_of(formats::dialects(), &formats::Dialect::name)),
                 words_of(formats::dialects(), &formats::Dialect::name))};
}

std::vector<Flag> choice_flags(TargetFlags& flags) {
  return {
      {"--rule",
       &flags.rules,
       "SELECTOR=SCHEME; may be repeated, first match wins. A selector is a glob over names, "
       "re:EXPR, role:NAME (experts, attention, mlp, linear ...: ingot list roles), "
       "layers:0-2,last, or several with & between them",
       {.words = offered_selectors(), .words_begin = true}},
      {"--recipe",
       &flags.recipe_file,
       fmt::format("YAML file of rules, which come after those of --rule; or one of {}",
                   names_of(convert::kBuiltInRecipes, &convert::BuiltInRecipe::name)),
       {.kind = ValueKind::kFile}},
      choice(flags, "--mtp",
             "MTP layers: convert as any other layer (default), bf16 (default for nvfp4, mxfp4, "
             "int4), keep (in the source's scheme), or drop"),
      {"--quantize-attention", &flags.quantize_attention,
       "nvfp4, mxfp4, int4: attention projections too"},
      choice(flags, "--activations",
             "how the engine treats activations: weight-only, dynamic or static (default: by "
             "dialect "
             "and scheme)"),
      {"--activation-scales",
       &flags.activation_scales,
       "ranges of inputs for static activations: a directory that ingot calibrate wrote, or a "
       "safetensors file with MODULE.input_amax, or .input_min and .input_max",
       {.kind = ValueKind::kPath}},
      choice(flags, "--input-scale", "one scale for every static input instead of a file, e.g. 1"),
      choice(flags, "--fp8-grid",
             "FP8 scales: amax, or ue8m0 (powers of two); default: as in the source, else amax"),
      {"--scales-from",
       &flags.scales_from,
       "take the FP8 block or INT4 scales of this release instead of computing them",
       {.kind = ValueKind::kCheckpoint}},
      choice(
          flags, "--search",
          "how scales are chosen: mse (default), the least squared error; hessian, the least error "
          "of the layer's output by the moments of --importance, among all scales of nvfp4, mxfp4 "
          "and int4, in fp8 and int8 among those of mse; or amax; nvfp4 by 4over6 too, int4 by "
          "signed (mse, and negative scales too)"),
      choice(flags, "--group-size",
             "INT4: columns that share a scale, 32, 64, 128 or row (default: the source's if it is "
             "INT4, else 128)"),
      {"--zero-points", &flags.zero_points,
       "INT4: a zero point for each group, chosen with its scale; vLLM loads them"},
      {"--importance",
       &flags.importance,
       "weight the errors of columns by the mean squares in this directory or file, which ingot "
       "calibrate writes, when scales are searched",
       {.kind = ValueKind::kPath}},
      {"--gptq", &flags.gptq,
       "int4, nvfp4, mxfp4: choose the codes of a weight column by column, so that its outputs "
       "change least (GPTQ); needs --importance with moments of inputs"},
      {"--kv-scales",
       &flags.kv_scales,
       "write scales of an FP8 cache of keys and values, largest magnitude / 448, from the ranges "
       "in this directory of ingot calibrate, or in its cache.safetensors; or the scales of a "
       "kv_cache_scales.json",
       {.kind = ValueKind::kPath}},
      choice(flags, "--via", "values pass through f32 (default), or bf16, as if cast first"),
      of_kind(choice(flags, "--lora",
                     "fold the adapter in this directory of PEFT into the weights; tensors that it "
                     "does not change stay as they are"),
              ValueKind::kFolder),
      choice(flags, "--lora-scale", "with --lora: a factor of alpha / rank, e.g. 0.5 (default: 1)"),
      choice(flags, "--expert-b-order",
             "with --lora: order of the numbers in lora_B of stacked experts: peft (default), or "
             "block, in which an unsloth before September 2026 trained them"),
      choice(flags, "--keep-touched",
             "with --lora: quantized weights that change, and those that loaders fuse with them, "
             "become bf16 or fp8 where their scheme has fewer bits")};
}

Flag allow_flag(TargetFlags& flags) {
  return {"--allow", &flags.allow,
          fmt::format("accept a fault, KIND=PATTERN of one or more tensors, KIND one of {}; "
                      "recorded in the manifest",
                      fmt::join(convert::Allowances::kinds(), ", "))};
}

namespace {

constexpr std::array kFits = {shard::TpFit::kRefuse, shard::TpFit::kRetile, shard::TpFit::kPad,
                              shard::TpFit::kBf16};
constexpr std::array kSharedExperts = {shard::SharedExperts::kTp,
                                       shard::SharedExperts::kReplicated};
constexpr std::uint64_t kMaxExpertMapBytes = std::uint64_t{64} << 20;

[[noreturn]] void refuse(const std::string& fact) {
  throw Error(ErrorCode::kInvalidArgument, fact);
}

const formats::Layout* layout_of(const SlicingFlags& flags) {
  const bool is_cut = flags.tp || flags.ep || flags.etp || flags.pp;
  if (flags.layout.empty()) return formats::find_layout(is_cut ? "ranks" : "hf");
  const formats::Layout* layout = formats::find_layout(flags.layout);
  if (layout == nullptr)
    refuse_word("--layout", flags.layout, formats::layouts(), &formats::Layout::name);
  if (!layout->is_sliced && is_cut) {
    refuse(
        fmt::format("--layout {} is one checkpoint, and --tp, --ep, --etp and --pp cut it "
                    "(--layout ranks)",
                    layout->name));
  }
  return layout;
}

// --mp N is tensor and expert parallelism over the same N ranks.
shard::Topology native_topology(const SlicingFlags& flags) {
  if (!flags.mp) refuse("--layout deepseek-mp needs the number of ranks, --mp N");
  const bool fits = flags.tp.value_or(*flags.mp) == *flags.mp &&
                    flags.ep.value_or(*flags.mp) == *flags.mp && flags.etp.value_or(1) == 1 &&
                    flags.pp.value_or(1) == 1;
  if (!fits) {
    refuse(
        fmt::format("--layout deepseek-mp --mp {0} means --tp {0} --ep {0} --etp 1 --pp 1, and "
                    "another topology was given",
                    *flags.mp));
  }
  return shard::make_topology(*flags.mp, *flags.mp, 1, 1);
}

}  // namespace

void declare_files(FlagTable& table, FileFlags& flags, std::string_view kept) {
  table.add(
      FlagGroup::kTarget,
      {{"--max-shard-size",
        &flags.max_shard_size,
        fmt::format("re-shard into files of at most this size (default: {})", kept),
        {.kind = ValueKind::kSize}},
       {"--files",
        &flags.n_files,
        "re-shard into so many files of even size, or the next multiple of them with files below 5 "
        "GB: layers in order, MTP layers and towers in files of their own behind them (readers "
        "that share files out want a multiple of the ranks)",
        {.is_positive = true, .excludes = {"--max-shard-size", "--align"}, .value_name = "N"}},
       {"--order",
        &flags.order,
        "order of the tensors in a file: dtype (default), or name, in which the default loaders of "
        "vLLM and SGLang read; data then begin at a multiple of 16",
        {.choices = {convert::kTensorOrders.begin(), convert::kTensorOrders.end()},
         .excludes = {"--align"}}},
       {"--align", &flags.align,
        "tensors whose size is a multiple of so many bytes begin at one, a weight and its scales "
        "are neighbours, and files are even (of at most 5 GB unless --max-shard-size is given): "
        "4096 for loaders that read past the page cache"}});
}

convert::ShardPolicy file_policy(const FileFlags& flags) {
  convert::ShardPolicy policy{.n_files = flags.n_files, .align = flags.align.value_or(0)};
  if (!flags.max_shard_size.empty())
    policy.max_shard_bytes = parse_size(flags.max_shard_size, "--max-shard-size");
  if (flags.align && (!std::has_single_bit(*flags.align) || *flags.align < 8))
    throw Error(ErrorCode::kInvalidArgument, "--align {} is no power of two from 8 on",
                *flags.align);
  if (flags.order == convert::kTensorOrders[1]) policy.order = convert::TensorOrder::kName;
  return policy;
}

void declare_slicing(FlagTable& table, SlicingFlags& flags) {
  const auto is_sliced = [&flags] { return layout_of(flags)->is_sliced; };
  const FlagRule of_map{
      .idle = belongs_to("--expert-map", [&flags] { return !flags.expert_map.empty(); })};
  table.add(
      FlagGroup::kSlicing,
      {{"--tp", &flags.tp, "tensor parallelism: ranks that cut attention, MLPs, vocabulary"},
       {"--ep", &flags.ep, "expert parallelism: groups that share out the experts"},
       {"--etp", &flags.etp, "ranks that cut each expert (default: --tp without --ep, else 1)"},
       {"--pp", &flags.pp, "pipeline stages"},
       {"--pp-layers",
        &flags.stages,
        "layers of each stage, e.g. 0-30,31-60 (default: balanced by bytes)",
        {.idle = belongs_to("--pp", [&flags] { return flags.pp.has_value(); })}},
       {"--layout",
        &flags.layout,
        fmt::format("{} (default: hf, or ranks when a topology is given)",
                    names_of(formats::layouts(), &formats::Layout::name)),
        {.words = words_of(formats::layouts(), &formats::Layout::name)}},
       {"--mp", &flags.mp, "ranks of layout deepseek-mp"},
       {"--tp-fit",
        &flags.fit,
        "where a cut splits a block of scales: refuse (default), retile (smaller FP8 blocks), pad "
        "(wider MLPs and vocabulary) or bf16",
        {.words = words_of(kFits, shard::tp_fit_name),
         .idle = belongs_to("a topology (--tp)", is_sliced)}},
       {"--shared-experts",
        &flags.shared,
        "tp (default): cut by --tp; replicated: whole everywhere",
        {.words = words_of(kSharedExperts, shard::shared_experts_name),
         .idle = belongs_to("a topology (--tp)", is_sliced)}},
       {"--expert-map",
        &flags.expert_map,
        "JSON: logical expert by physical slot (default: contiguous blocks)",
        {.kind = ValueKind::kFile, .idle = belongs_to("a topology (--ep)", is_sliced)}},
       {"--redundant-experts", &flags.redundant_experts,
        "let --expert-map give an expert several slots", of_map},
       {"--uneven-experts", &flags.uneven_experts,
        "let --expert-map give ranks different numbers of slots", of_map},
       {"--links",
        &flags.links,
        "yes (default): files that several ranks load are hard links to one, and files that are "
        "taken over from --base whole are hard links to its own; no: copies",
        {.choices = {"yes", "no"},
         .idle = belongs_to("a topology (--tp, --ep), or --base", [&flags, is_sliced] {
           return is_sliced() || (flags.base != nullptr && !flags.base->empty());
         })}}});
}

void read_slicing(const SlicingFlags& flags, convert::PlanOptions& options) {
  options.layout = layout_of(flags);
  options.links = flags.links.value_or("yes") == "yes";
  convert::SlicingOptions& slicing = options.slicing;
  const bool is_native = options.layout->takes_mp;
  if (flags.mp && !is_native) refuse("--mp belongs to --layout deepseek-mp (use --tp and --ep)");
  slicing.topology = is_native ? native_topology(flags)
                               : shard::make_topology(flags.tp.value_or(1), flags.ep.value_or(1),
                                                      flags.etp, flags.pp.value_or(1));
  slicing.shared = shard::parse_shared_experts(flags.shared.value_or("tp"));
  slicing.fit = shard::parse_tp_fit(flags.fit.value_or("refuse"));
  slicing.stages = flags.stages;
  slicing.redundant_experts = flags.redundant_experts;
  slicing.uneven_experts = flags.uneven_experts;
  if (flags.expert_map.empty()) return;
  slicing.expert_map = read_text_file(flags.expert_map, kMaxExpertMapBytes);
  slicing.expert_map_where = flags.expert_map;
}

}  // namespace ingot
