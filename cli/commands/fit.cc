#include "cli/commands/fit.h"

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
  // An engine reads the whole checkpoint and cuts it itself, into the same slices.
  convert::choose_for_engine(recipe, source, *formats::find_layout("hf"));
  recipe.choices.engine = nullptr;
  slicing.layout = "ranks";
  convert::PlanOptions options;
  read_slicing(slicing, options);
  // The caller's outlives the plan.
  const auto seen = convert::with_experts_as_written(
      std::shared_ptr<const formats::Checkpoint>(std::shared_ptr<void>(), &source), recipe,
      options);
  return fit_of(convert::plan_conversion(*seen, std::move(recipe), options), request);
}

// Fits of ever more GPUs, up to the first that is one.
Fit counted_fit(const FitFlags& flags, const formats::Checkpoint& source) {
  constexpr std::uint32_t kMost = 128;
  SlicingFlags slicing = flags.slicing;
  slicing.tp = slicing.ep = slicing.etp = slicing.pp = std::nullopt;
  slicing.stages.clear();
  Fit fit = planned_fit(flags, slicing, source);
  const std::uint64_t all = fit.weight_bytes;
  GpuNeed need{.gpu = std::ranges::find(kGpus, lower_case(flags.gpu), &Gpu::name)->name,
               .has_experts = source.config().n_routed_experts > 0,
               .count = {},
               .too_few = 1,
               .obstacle = {}};
  for (std::uint32_t n = 2; n <= kMost && !fit.fits(); n *= 2) {
    if (all / n <= fit.usable_bytes()) {
      slicing.tp = n;
      if (need.has_experts) slicing.ep = n;
      try {
        fit = planned_fit(flags, slicing, source);
      } catch (const Error& error) {
        const auto* list = dynamic_cast<const FaultList*>(&error);
        need.obstacle = list != nullptr ? list->faults().front().what() : error.what();
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

}  // namespace

void declare_fit(FlagTable& table, FitFlags& flags) {
  table.add(
      FlagGroup::kCommon,
      {{kGpuMemory, &flags.device_memory,
        "show the memory of a rank and whether it fits into so much, e.g. 80GB; with --to and "
        "so on for a conversion that has not been made"},
       {"--gpu",
        &flags.gpu,
        "the same for the memory of this GPU, and how many of them are needed",
        {.choices = words_of(kGpus, &Gpu::name), .ignores_case = true, .excludes = {kGpuMemory}}}});
  table.add(FlagGroup::kTarget, with_memory(scheme_flags(flags.target), flags));
  table.add(FlagGroup::kTarget, with_memory(choice_flags(flags.target), flags));
  table.add(
      FlagGroup::kSlicing,
      with_memory({{"--tp", &flags.slicing.tp, "tensor parallelism"},
                   {"--ep", &flags.slicing.ep, "expert parallelism"},
                   {"--etp", &flags.slicing.etp, "ranks that cut each expert"},
                   {"--pp", &flags.slicing.pp, "pipeline stages"},
                   {"--pp-layers", &flags.slicing.stages, "layers of each stage, e.g. 0-30,31-60"},
                   {"--tp-fit", &flags.slicing.fit, "as of convert: refuse, retile, pad or bf16"},
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

Fit fit_of(const FitFlags& flags, const formats::Checkpoint& source) {
  if (flags.gpu.empty()) return planned_fit(flags, flags.slicing, source);
  const SlicingFlags& slicing = flags.slicing;
  Fit counted = counted_fit(flags, source);
  if (!slicing.tp && !slicing.ep && !slicing.etp && !slicing.pp) return counted;
  Fit fit = planned_fit(flags, slicing, source);
  fit.need = std::move(counted.need);
  return fit;
}

}  // namespace ingot::cli
