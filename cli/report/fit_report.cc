#include "cli/report/fit_report.h"

#include <algorithm>
#include <array>
#include <limits>

#include <fmt/format.h>

#include "cli/terminal/terminal.h"
#include "formats/base/error.h"
#include "formats/family/roles.h"
#include "formats/json/json.h"
#include "inference/family/model_family.h"
#include "inference/model/step/step.h"
#include "report/figures.h"
#include "report/rows.h"
#include "report/table_text.h"

namespace ingot::cli {

using convert::Plan;
using formats::Json;

namespace {

// The share of memory that engines use by default for weights and cache: all but a tenth.
constexpr double kUsable = 0.9;

constexpr std::string_view kOthers = "others";
constexpr std::array<std::string_view, 6> kGroups = {"experts",   "shared-experts", "dense-mlp",
                                                     "attention", "indexer",        kOthers};

std::string_view group_of(formats::Role role) {
  for (const std::string_view name : kGroups) {
    if (name == kOthers || formats::find_roles(name)->has(role)) return name;
  }
  return kOthers;
}

using Weights = std::map<std::string_view, std::uint64_t>;

std::uint64_t sum(const Weights& weights) {
  std::uint64_t n_bytes = 0;
  for (const auto& [unused, bytes] : weights) n_bytes += bytes;
  return n_bytes;
}

// The slices of a row of files have the same sizes, whatever their rank.
std::vector<Weights> weights_of_ranks(const Plan& plan) {
  std::vector<Weights> ranks(plan.slicing->topology.n_ranks());
  for (const convert::PlannedFile& file : plan.files) {
    Weights in_file;
    for (const convert::PartRef& at : file.parts) {
      const convert::PlannedTensor& planned = plan.tensors[at.tensor];
      const formats::TensorRule* rule = plan.tensor_of(planned).rule;
      in_file[group_of(role_of(rule))] += convert::slice_at(plan, planned, at, 0).n_bytes;
    }
    for (const convert::PlannedFile::Member& member : file.members) {
      for (const std::uint32_t rank : member.ranks) {
        for (const auto& [group, n_bytes] : in_file) ranks[rank][group] += n_bytes;
      }
    }
  }
  return ranks;
}

std::optional<inference::ModelSpec> spec_of(const formats::Checkpoint& source) {
  try {
    inference::ModelSpec spec = inference::model_spec(source.family(), source.config());
    // States of a sequence, besides its tokens, are held by each engine in its own way.
    if (spec.keeps_states()) return std::nullopt;
    return spec;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kUnsupported) throw;
    return std::nullopt;
  }
}

std::uint64_t cache_per_token(const Plan& plan, const inference::ModelSpec& spec,
                              std::uint32_t rank, inference::KvFormat format) {
  const shard::Slicing& slicing = *plan.slicing;
  const inference::RankView view = {.topology = slicing.topology, .rank = rank};
  std::vector<std::vector<inference::CacheStream>> layers;
  for (std::size_t layer = 0; layer < spec.n_main; ++layer) {
    if (slicing.stages.stage_of(static_cast<std::uint32_t>(layer)) != view.stage()) continue;
    layers.insert(layers.end(), spec.visits(layer),
                  inference::cache_streams(spec, view, inference::Profile::kNative, format, layer));
  }
  return inference::KvCache::bytes_per_token(layers);
}

// Products of numbers of the command line: as large as they get.
std::uint64_t product(std::uint64_t a, std::uint64_t b) {
  __extension__ using Wide = unsigned __int128;
  const Wide wide = static_cast<Wide>(a) * b;
  // Sums of a few of these stay within 64 bits.
  constexpr auto kMost = std::numeric_limits<std::uint64_t>::max() / 4;
  return wide > kMost ? kMost : static_cast<std::uint64_t>(wide);
}

// Stages of a pipeline differ in weights and in cached layers: the one that is full first counts.
bool has_less_room(const Fit& fit, const Fit& other) {
  const std::uint64_t room = fit.tokens().value_or(0), others = other.tokens().value_or(0);
  return room != others ? room < others : fit.weight_bytes > other.weight_bytes;
}

}  // namespace

std::uint64_t Fit::usable_bytes() const {
  return static_cast<std::uint64_t>(static_cast<double>(request.device_bytes) * kUsable);
}

std::uint64_t Fit::cache_bytes() const {
  if (!request.context || !cache_per_token) return 0;
  return product(product(*request.context, request.sequences.value_or(1)), *cache_per_token);
}

std::optional<std::uint64_t> Fit::tokens() const {
  if (!cache_per_token) return std::nullopt;
  if (*cache_per_token == 0 || weight_bytes >= usable_bytes()) return 0;
  return (usable_bytes() - weight_bytes) / *cache_per_token;
}

Fit fit_of(const Plan& plan, const FitRequest& request) {
  const std::optional<inference::ModelSpec> spec = spec_of(plan.source);
  std::optional<Fit> tightest;
  std::uint64_t lightest = std::numeric_limits<std::uint64_t>::max();
  const std::vector<Weights> ranks = weights_of_ranks(plan);
  for (std::uint32_t rank = 0; rank < ranks.size(); ++rank) {
    Fit fit{.request = request,
            .topology = plan.slicing->topology,
            .rank = rank,
            .weights = ranks[rank],
            .weight_bytes = sum(ranks[rank]),
            .cache_per_token = {}};
    lightest = std::min(lightest, fit.weight_bytes);
    if (spec) fit.cache_per_token = cache_per_token(plan, *spec, rank, request.cache);
    if (!tightest || has_less_room(fit, *tightest)) tightest = std::move(fit);
  }
  tightest->lightest_bytes = lightest;
  return *tightest;
}

namespace {

std::string need_text(const GpuNeed& need) {
  if (need.count) {
    return fmt::format("{} {} (tp {}{})", *need.count, need.gpu, need.has_experts ? "= ep = " : "",
                       *need.count);
  }
  const std::string most = fmt::format("more than {} {}", need.too_few, need.gpu);
  if (need.obstacle.empty()) return most;
  return fmt::format("{}, and for {} it cannot be cut: {}", most, 2 * need.too_few, need.obstacle);
}

}  // namespace

std::string fit_text(const Fit& fit) {
  const FitRequest& request = fit.request;
  const shard::Topology& topology = fit.topology;
  Table table{.columns = {"", number(""), ""}};
  for (const std::string_view group : kGroups) {
    const auto found = fit.weights.find(group);
    const char* what = group == kOthers ? "embedding, head, norms, router" : "";
    if (found != fit.weights.end()) table.rows.push_back({group, bytes_text(found->second), what});
  }
  table.rows.push_back(
      {"weights", bytes_text(fit.weight_bytes),
       fit.lightest_bytes == fit.weight_bytes
           ? "the same on every rank"
           : fmt::format("{} on the lightest rank", bytes_text(fit.lightest_bytes))});
  const std::string_view format = inference::kv_format_name(request.cache);
  if (!fit.cache_per_token) {
    table.rows.push_back({"cache", "?", "not known for this family"});
  } else {
    const std::string per_token =
        fmt::format("{} bytes per token in {}", count_text(*fit.cache_per_token), format);
    table.rows.push_back({"cache", bytes_text(fit.cache_bytes()),
                          request.context ? fmt::format("{} sequence(s) of {} tokens, {}",
                                                        count_text(request.sequences.value_or(1)),
                                                        count_text(*request.context), per_token)
                                          : per_token});
  }
  const std::uint64_t used = fit.weight_bytes + fit.cache_bytes();
  table.rows.push_back({"rest",
                        bytes_text(request.device_bytes - std::min(used, request.device_bytes)),
                        fmt::format("of {}; a tenth is left for activations, buffers and kernels",
                                    bytes_text(request.device_bytes))});
  std::string text = fmt::format(
      "memory of rank {}, which has the least room of {} (tp {}, ep {}, pp {})\n{}", fit.rank,
      topology.n_ranks(), topology.tp, topology.ep, topology.pp, table_text(table, report_width()));
  text += fit.fits()
              ? "fits      yes\n"
              : fmt::format("fits      no: {} too much\n", bytes_text(used - fit.usable_bytes()));
  if (const auto tokens = fit.tokens()) {
    text += fmt::format("room for  {} tokens", count_text(*tokens));
    if (request.context)
      text += fmt::format(": {} sequences of {}", count_text(*tokens / *request.context),
                          count_text(*request.context));
    text += topology.n_ranks() > topology.tp * topology.pp
                ? fmt::format(" in each of {} groups of tensor parallelism\n",
                              topology.n_ranks() / (topology.tp * topology.pp))
                : "\n";
  }
  if (fit.need) text += fmt::format("needs     {}\n", need_text(*fit.need));
  return text;
}

Json fit_json(const Fit& fit) {
  const std::optional<std::uint64_t> tokens = fit.tokens();
  Json json = {
      {"ranks", fit.topology.n_ranks()},
      {"tp", fit.topology.tp},
      {"ep", fit.topology.ep},
      {"pp", fit.topology.pp},
      {"tightest_rank", fit.rank},
      {"device_bytes", fit.request.device_bytes},
      {"usable_bytes", fit.usable_bytes()},
      {"weights", Json::object()},
      {"weight_bytes", fit.weight_bytes},
      {"lightest_weight_bytes", fit.lightest_bytes},
      {"kv_cache", inference::kv_format_name(fit.request.cache)},
      {"cache_bytes_per_token", or_null(fit.cache_per_token)},
      {"cache_bytes", fit.cache_bytes()},
      {"context", or_null(fit.request.context)},
      {"sequences", or_null(fit.request.sequences)},
      {"fits", fit.fits()},
      {"tokens_that_fit", or_null(tokens)},
      {"sequences_that_fit",
       tokens && fit.request.context ? Json(*tokens / *fit.request.context) : Json(nullptr)}};
  if (fit.need) json["gpu"] = {{"name", fit.need->gpu}, {"needed", or_null(fit.need->count)}};
  for (const auto& [group, n_bytes] : fit.weights) json["weights"][std::string(group)] = n_bytes;
  return json;
}

std::string scheme_fits_text(std::span<const SchemeFit> fits) {
  Table table{.columns = {"scheme", number("a GPU's weights"), "fits", number("tokens that fit"),
                          "computed"}};
  // One reason often holds for several schemes.
  std::vector<std::pair<std::string, std::string>> obstacles;
  for (const SchemeFit& row : fits) {
    if (!row.fit) {
      table.rows.push_back({row.to, "-", "not possible", "-", row.computed});
      if (obstacles.empty() || obstacles.back().second != row.obstacle) {
        obstacles.emplace_back(row.to, row.obstacle);
      } else {
        obstacles.back().first += fmt::format(", {}", row.to);
      }
      continue;
    }
    const Fit& fit = *row.fit;
    const std::uint64_t used = fit.weight_bytes + fit.cache_bytes();
    const auto tokens = fit.tokens();
    table.rows.push_back(
        {row.to, bytes_text(fit.weight_bytes),
         fit.fits() ? "yes" : fmt::format("no: {} too much", bytes_text(used - fit.usable_bytes())),
         tokens ? count_text(*tokens) : "?", row.computed});
  }
  std::string text = table_text(table, report_width());
  for (const auto& [schemes, obstacle] : obstacles)
    text += fmt::format("{}: {}\n", schemes, obstacle);
  return text;
}

Json scheme_fits_json(std::span<const SchemeFit> fits) {
  return formats::json_list(fits, [](const SchemeFit& row) -> Json {
    return {{"to", row.to},
            {"computed", row.computed},
            {"fit", row.fit ? fit_json(*row.fit) : Json()},
            {"obstacle", row.fit ? Json() : Json(row.obstacle)}};
  });
}

}  // namespace ingot::cli
