#include "verify/calibrate/expert_loads.h"

#include <optional>
#include <set>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include "check/model_fingerprint.h"
#include "formats/base/error.h"
#include "formats/base/fd.h"
#include "formats/base/words.h"
#include "formats/json/json.h"
#include "formats/json/json_fields.h"
#include "formats/records/calibration.h"
#include "inference/family/model_family.h"
#include "inference/generate/memory_plan.h"
#include "inference/model/layer_stream.h"
#include "shard/cut/expert_map.h"
#include "verify/outputs/prompt_rows.h"

namespace ingot::verify {

using inference::Matrix;
using inference::Row;

namespace {

constexpr std::uint64_t kMaxJsonBytes = std::uint64_t{64} << 20;

/// Counts the choices of a layer's router.
inference::Taps counting(std::vector<std::uint64_t>& tokens) {
  return {
      .hidden = {},
      .router =
          [&tokens](std::size_t, std::span<const std::uint32_t> experts, std::span<const float>) {
            // Experts with higher ids have no tensors.
            for (const std::uint32_t expert : experts)
              if (expert < tokens.size()) ++tokens[expert];
          },
      .indexer = {}};
}

/// Returns the number in `model.layers.3`, or in `3`.
std::optional<std::uint32_t> layer_in(std::string_view text) {
  constexpr std::string_view kLayers = "layers.";
  const std::size_t at = text.rfind(kLayers);
  if (at != std::string_view::npos) text.remove_prefix(at + kLayers.size());
  return number_from(text);
}

class Reader {
 public:
  Reader(const std::filesystem::path& path, const formats::Checkpoint& source)
      : where_(path.string()),
        config_(source.config()),
        layers_(shard::layers_with_experts(source)) {}

  ExpertLoads from_statistics(const formats::CalibrationStatistics& statistics) {
    statistics.for_each(formats::kExpertTokens, [&](const std::string& name,
                                                    const formats::StatisticTensor& tensor) {
      const std::vector<std::int64_t> counts = statistics.counts(tensor);
      if (counts.size() != n_experts())
        refuse(name, fmt::format("has {} experts, not {}", counts.size(), n_experts()));
      std::vector<std::uint64_t>& tokens = layer(name);
      tokens.assign(counts.begin(), counts.end());
      for (const std::uint64_t count : tokens) require_count(count, name);
    });
    return std::move(loads_);
  }

  ExpertLoads from_json(const formats::Json& json) {
    const formats::JsonFields fields(json, where_);
    for (const auto& [name, counts] : fields.get("layers").items()) {
      if (!counts.is_array() || counts.size() != n_experts())
        refuse(name, fmt::format("is not a list of {} numbers", n_experts()));
      std::vector<std::uint64_t>& tokens = layer(name);
      for (const formats::Json& count : counts) {
        const auto number = formats::whole_number(count, kMaxTokens);
        if (!number) refuse(name, fmt::format("holds {}", count.dump()));
        tokens.push_back(*number);
      }
    }
    fields.expect_no_more();
    return std::move(loads_);
  }

 private:
  // Sums over experts stay exact in double.
  static constexpr std::uint64_t kMaxTokens = std::uint64_t{1} << 40;

  [[nodiscard]] std::uint64_t n_experts() const { return config_.n_routed_experts; }

  [[noreturn]] void refuse(std::string_view name, std::string_view fact) const {
    throw Error(ErrorCode::kMismatch, "'{}' {}", name, fact).in_file(where_);
  }
  void require_count(std::uint64_t count, std::string_view name) const {
    if (count > kMaxTokens) refuse(name, fmt::format("holds {}", static_cast<std::int64_t>(count)));
  }
  std::vector<std::uint64_t>& layer(std::string_view name) {
    const auto number = layer_in(name);
    if (!number || !layers_.contains(*number))
      refuse(name, "is no layer of the model that has experts");
    const auto [tokens, is_new] = loads_.try_emplace(*number);
    if (!is_new) refuse(name, fmt::format("gives counts of layer {} a second time", *number));
    return tokens->second;
  }

  std::string where_;
  const formats::ModelConfig& config_;
  std::set<std::uint32_t> layers_;
  ExpertLoads loads_;
};

}  // namespace

ExpertLoads count_expert_loads(const formats::Checkpoint& source, std::span<const Prompt> documents,
                               const RunOptions& options) {
  const inference::ModelSpec spec = inference::model_spec(source.family(), source.config());
  if (spec.router() == nullptr)
    throw Error(ErrorCode::kUnsupported, "has no experts to balance")
        .in_file(source.directory().string());
  if (documents.empty())
    throw Error(ErrorCode::kInvalidArgument, "there is no document to count tokens in");
  const std::vector<PromptSpan> spans = spans_of(documents, spec);
  const std::vector<Row> rows = rows_of(spans, 1);
  inference::RunMemory need = inference::stream_memory(source, inference::Profile::kF32,
                                                       lengths_of(spans), options.threads);
  // The hidden states, and the states of the MTP layer.
  need.scratch += 3 * rows.size() * spec.stream_width() * sizeof(float);
  inference::LayerStream stream(source,
                                {.profile = inference::Profile::kF32,
                                 .threads = options.threads,
                                 .weight_limit = inference::weight_limit(need, options.mem_limit)});
  ExpertLoads loads;
  const auto tokens_of = [&](std::uint32_t l) -> std::vector<std::uint64_t>& {
    return loads.try_emplace(l, spec.router()->experts, 0).first->second;
  };
  Matrix hidden = stream.embed(rows);
  const std::uint64_t n_layers = spec.n_main + (stream.has_mtp() ? 1 : 0);
  for (std::uint32_t l = 0; l < spec.n_main; ++l) {
    stream.layer(l, hidden, rows, spec.is_moe(l) ? counting(tokens_of(l)) : inference::Taps());
    if (options.progress) options.progress(l + 1, n_layers);
  }
  const std::vector<PromptSpan> next = next_token_spans(spans);
  if (stream.has_mtp() && !next.empty()) {
    const auto l = static_cast<std::uint32_t>(spec.n_main);
    const Matrix paired = states_before(stream.final_norm(hidden).view(), spans, next);
    static_cast<void>(stream.mtp(paired, rows_of(next, 1), counting(tokens_of(l))));
  }
  if (options.progress) options.progress(n_layers, n_layers);
  return loads;
}

ExpertLoads read_expert_loads(const std::filesystem::path& path,
                              const formats::Checkpoint& source) {
  try {
    Reader reader(path, source);
    const auto from_statistics = [&] {
      const auto statistics = formats::CalibrationStatistics::open(path);
      check::require_same_model(statistics, source, "--loads");
      return reader.from_statistics(statistics);
    };
    ExpertLoads loads = path.extension() == ".json"
                            ? reader.from_json(formats::parse_json(
                                  read_text_file(path, kMaxJsonBytes), path.string()))
                            : from_statistics();
    if (loads.empty())
      throw Error(ErrorCode::kCorrupt, "has no counts of tokens per expert (ingot calibrate)");
    return loads;
  } catch (Error& error) {
    error.in_file(path.string());
    throw;
  }
}

}  // namespace ingot::verify
