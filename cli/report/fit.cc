#include "cli/report/fit.h"

#include <algorithm>
#include <charconv>

#include <fmt/format.h>

#include "cli/flags/gpus.h"
#include "convert/convert.h"
#include "convert/recipe/engine_choice.h"
#include "formats/base/error.h"
#include "formats/base/fault_lines.h"
#include "formats/base/parallel.h"
#include "formats/base/words.h"
#include "formats/text/spelling.h"
#include "library/options/flag_table.h"

namespace ingot::cli {
namespace {

constexpr const char* kGpuMemory = "--gpu-memory";

// `131072`, `128k`, `1M`: as people count tokens, by 1024.
std::uint64_t parse_tokens(std::string_view text, std::string_view option) {
  constexpr std::uint64_t kMost = std::uint64_t{1} << 32;
  std::uint64_t number = 0;
  const char* end = text.data() + text.size();
  const auto [stop, fault] = std::from_chars(text.data(), end, number);
  const std::string_view unit(stop, static_cast<std::size_t>(end - stop));
  const std::uint64_t factor = unit.empty()                 ? 1
                               : unit == "k" || unit == "K" ? std::uint64_t{1} << 10
                               : unit == "m" || unit == "M" ? std::uint64_t{1} << 20
                                                            : 0;
  if (fault == std::errc() && factor != 0 && number >= 1 && number <= kMost / factor)
    return number * factor;
  throw Error(ErrorCode::kInvalidArgument,
              "{} '{}' is no number of tokens (as 131072, 128k or 1M, at most 2^32)", option, text);
}

inference::KvFormat cache_format(const FitFlags& flags) {
  if (flags.kv_cache.empty()) return inference::KvFormat::kBf16;
  if (const auto format = inference::find_kv_format(flags.kv_cache)) return *format;
  refuse_word("--kv-cache", flags.kv_cache, inference::kv_formats(), inference::kv_format_name);
}

FitRequest request_of(const FitFlags& flags) {
  const auto gpu = std::ranges::find(kGpus, lower_case(flags.gpu), &Gpu::name);
  FitRequest request{.device_bytes = gpu != kGpus.end()
                                         ? gpu->memory_mib << 20
                                         : parse_size(flags.device_memory, kGpuMemory),
                     .cache = cache_format(flags),
                     .context = {},
                     .sequences = flags.sequences};
  if (!flags.context.empty()) request.context = parse_tokens(flags.context, "--context");
  return request;
}

Fit planned_fit(const FitFlags& flags, SlicingFlags slicing, const formats::Checkpoint& source) {
  const FitRequest request = request_of(flags);
  convert::Recipe recipe = make_recipe(flags.target);
  open_scales_from(flags.target, std::string(source.family().name), available_processors(),
                   recipe.choices);
  require_own_statistics(recipe.choices, source);
  // An engine reads the whole checkpoint and cuts it itself, into the same slices.
  convert::choose_for_engine(recipe, source, *formats::find_layout("hf"));
  recipe.choices.engine = nullptr;
  slicing.layout = "ranks";
  convert::PlanOptions options;
  read_slicing(slicing, options);
  // The caller's outlives the plan.
  const auto seen = convert::as_written(
      std::shared_ptr<const formats::Checkpoint>(std::shared_ptr<void>(), &source), recipe,
      options);
  return fit_of(convert::plan_conversion(*seen, std::move(recipe), options), request);
}

const Gpu& gpu_of(const FitFlags& flags) {
  return *std::ranges::find(kGpus, lower_case(flags.gpu), &Gpu::name);
}

bool has_experts(const formats::Checkpoint& source) {
  return source.config().n_routed_experts > 0;
}

// Cut for so many GPUs, as engines cut.
SlicingFlags cut_for(const FitFlags& flags, const formats::Checkpoint& source,
                     std::uint32_t count) {
  SlicingFlags slicing = flags.slicing;
  slicing.tp = count;
  if (has_experts(source)) slicing.ep = count;
  return slicing;
}

// The first fault is the reason.
std::string obstacle_of(const Error& error) {
  const auto* list = dynamic_cast<const FaultList*>(&error);
  return list != nullptr ? list->faults().front().what() : error.what();
}

// Fits of ever more GPUs, up to the first that is one.
Fit counted_fit(const FitFlags& flags, const formats::Checkpoint& source) {
  constexpr std::uint32_t kMost = 128;
  SlicingFlags slicing = flags.slicing;
  slicing.tp = slicing.ep = slicing.etp = slicing.pp = std::nullopt;
  slicing.stages.clear();
  Fit fit = planned_fit(flags, slicing, source);
  const std::uint64_t all = fit.weight_bytes;
  GpuNeed need{.gpu = gpu_of(flags).name,
               .has_experts = has_experts(source),
               .count = {},
               .too_few = 1,
               .obstacle = {}};
  for (std::uint32_t n = 2; n <= kMost && !fit.fits(); n *= 2) {
    if (all / n <= fit.usable_bytes()) {
      try {
        fit = planned_fit(flags, cut_for(flags, source, n), source);
      } catch (const Error& error) {
        need.obstacle = obstacle_of(error);
        break;
      }
    }
    if (!fit.fits()) need.too_few = n;
  }
  if (fit.fits()) need.count = fit.topology.n_ranks();
  fit.need = std::move(need);
  return fit;
}

// They belong to a memory.
std::vector<Flag> with_memory(std::vector<Flag> fit_flags, const FitFlags& flags) {
  for (Flag& flag : fit_flags) {
    if (flag.rule.needs.empty())
      flag.rule.idle = belongs_to("--gpu-memory and --gpu", [&flags] { return flags.is_asked(); });
  }
  return fit_flags;
}

// They belong to a memory, or to loaders.
std::vector<Flag> with_ranks(std::vector<Flag> rank_flags, const FitFlags& flags) {
  for (Flag& flag : rank_flags) {
    flag.rule.idle = belongs_to("--gpu-memory, --gpu and --loading",
                                [&flags] { return flags.is_asked() || flags.loading; });
  }
  return rank_flags;
}

}  // namespace

void declare_fit(FlagTable& table, FitFlags& flags) {
  table.add(
      FlagGroup::kCommon,
      {{kGpuMemory,
        &flags.device_memory,
        "show the memory of a rank and whether it fits into so much, e.g. 80GB; with --to and "
        "so on for a conversion that has not been made",
        {.kind = ValueKind::kSize}},
       {"--gpu",
        &flags.gpu,
        "the same for the memory of this GPU, and how many of them are needed",
        {.choices = words_of(kGpus, &Gpu::name), .ignores_case = true, .excludes = {kGpuMemory}}},
       {"--count",
        &flags.count,
        "whether it fits this many of these GPUs (--tp, and --ep of experts, of so many): without "
        "--to in each of some schemes, and which of them the GPU computes natively",
        {.is_positive = true,
         .needs = "--gpu",
         .excludes = {"--tp", "--ep", "--etp", "--pp", "--pp-layers"}}},
       {"--loading",
        &flags.loading,
        "the bytes that each rank reads while an engine loads the checkpoint, by loader, and the "
        "ways to make them fewer",
        {.excludes = {kGpuMemory, "--gpu"}}}});
  table.add(FlagGroup::kTarget, with_memory(scheme_flags(flags.target), flags));
  table.add(FlagGroup::kTarget, with_memory(choice_flags(flags.target), flags));
  table.add(
      FlagGroup::kSlicing,
      with_ranks({{"--tp", &flags.slicing.tp, "tensor parallelism"},
                  {"--ep", &flags.slicing.ep, "expert parallelism"},
                  {"--etp", &flags.slicing.etp, "ranks that cut each expert"},
                  {"--pp", &flags.slicing.pp, "pipeline stages"},
                  {"--pp-layers", &flags.slicing.stages, "layers of each stage, e.g. 0-30,31-60"}},
                 flags));
  table.add(
      FlagGroup::kSlicing,
      with_memory({{"--tp-fit", &flags.slicing.fit, "as of convert: refuse, retile, pad or bf16"},
                   {"--kv-cache",
                    &flags.kv_cache,
                    fmt::format("numbers of the cache of keys and values: {} (default bf16)",
                                names_of(inference::kv_formats(), inference::kv_format_name)),
                    {.words = words_of(inference::kv_formats(), inference::kv_format_name)}},
                   {"--context", &flags.context, "tokens of each sequence, e.g. 128k"},
                   {"--sequences",
                    &flags.sequences,
                    "sequences at once in each group of tensor parallelism",
                    {.is_positive = true, .needs = "--context"}}},
                  flags));
}

bool asks_for_schemes(const FitFlags& flags) {
  return flags.count && flags.target.options.find("--to") != flags.target.options.end() &&
         flags.target.options.at("--to").empty() && flags.target.rules.empty() &&
         flags.target.recipe_file.empty();
}

std::vector<SchemeFit> fits_of_schemes(const FitFlags& flags, const formats::Checkpoint& source) {
  const Gpu& gpu = gpu_of(flags);
  const auto has = [](std::string_view list, std::string_view word) {
    return fmt::format(", {},", list).find(fmt::format(" {},", word)) != std::string::npos;
  };
  std::vector<SchemeFit> fits;
  for (const std::string_view to : {"bf16", "fp8", "int8", "int4", "nvfp4"}) {
    SchemeFit& row = fits.emplace_back(
        SchemeFit{.to = to,
                  .computed = has(gpu.native, to)        ? "natively"
                              : has(gpu.weight_only, to) ? "in BF16, from decoded weights"
                              : has(gpu.refused, to)     ? "refused by vLLM"
                                                         : "not tried",
                  .fit = {}});
    FitFlags asked = flags;
    asked.target.options["--to"] = to;
    try {
      row.fit = planned_fit(asked, cut_for(flags, source, *flags.count), source);
    } catch (const Error& error) {
      row.obstacle = obstacle_of(error);
    }
  }
  return fits;
}

Fit fit_of(const FitFlags& flags, const formats::Checkpoint& source) {
  if (flags.count) return planned_fit(flags, cut_for(flags, source, *flags.count), source);
  if (flags.gpu.empty()) return planned_fit(flags, flags.slicing, source);
  const SlicingFlags& slicing = flags.slicing;
  Fit counted = counted_fit(flags, source);
  if (!slicing.tp && !slicing.ep && !slicing.etp && !slicing.pp) return counted;
  Fit fit = planned_fit(flags, slicing, source);
  fit.need = std::move(counted.need);
  return fit;
}

Loading loading_of(const FitFlags& flags, const formats::Checkpoint& source) {
  if (source.slicing() != nullptr) {
    throw Error(ErrorCode::kInvalidArgument,
                "--loading is about a whole checkpoint, and this has one rank's slices, of which "
                "the rank reads all (give the directory of all ranks, or leave out --loading)");
  }
  SlicingFlags slicing = flags.slicing;
  slicing.layout = "ranks";
  convert::PlanOptions options;
  read_slicing(slicing, options);
  // Engines cut between the blocks of scales in their own ways: where that matters, a cut that
  // convert refuses is refused here too.
  return loading_of(convert::plan_conversion(source, convert::Recipe(), options));
}

}  // namespace ingot::cli
