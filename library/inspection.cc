#include "library/inspection.h"

#include <mutex>
#include <span>

#include <fmt/format.h>

#include "convert/recipe/selector.h"
#include "formats/base/error.h"
#include "formats/base/printable.h"
#include "formats/storage/meant_tensor.h"
#include "library/decoded_bands.h"
#include "library/summary.h"
#include "report/rows.h"

namespace ingot::library {

using formats::Checkpoint;
using formats::Json;
using formats::LogicalTensor;
using quantize::TensorStatistics;

namespace {

std::optional<convert::Selector> selector_of(const Checkpoint& checkpoint,
                                             const std::string& text) {
  std::optional<convert::Selector> selector;
  if (!text.empty()) selector.emplace(text).set_layers(checkpoint.config().num_hidden_layers);
  return selector;
}

}  // namespace

std::string excess_of(const Checkpoint& checkpoint, const std::string& text) {
  const std::optional<convert::Selector> selector = selector_of(checkpoint, text);
  const std::string excess = selector ? selector->excess(checkpoint.tensors()) : "";
  return excess.empty() ? "" : fmt::format("pattern '{}' {}", printable(text), excess);
}

std::vector<std::size_t> matching_tensors(const Checkpoint& checkpoint, const std::string& text) {
  std::vector<std::size_t> found;
  const auto tensors = checkpoint.tensors();
  const std::optional<convert::Selector> selector = selector_of(checkpoint, text);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!selector || selector->matches(tensors[i])) found.push_back(i);
  }
  if (selector && found.empty()) {
    throw Error(
        ErrorCode::kNotFound,
        "no tensor matches '{}' (a glob covers the whole name; see ingot inspect --tensors){}",
        text, formats::meant_tensor(text, tensors))
        .in_file(checkpoint.directory().string());
  }
  return found;
}

std::optional<TensorStatistics> tensor_statistics(const formats::TensorSource& source,
                                                  const LogicalTensor& tensor,
                                                  std::size_t threads) {
  TensorStatistics all;
  std::mutex mutex;
  const bool is_decoded = library::decode_bands(
      source, tensor, threads, [&](const verify::WeightBand&, std::span<const float> values) {
        TensorStatistics here;
        here.accumulate(values);
        const std::lock_guard lock(mutex);
        all.merge(here);
      });
  return is_decoded ? std::optional(all) : std::nullopt;
}

Json histogram_rows(const TensorStatistics& statistics) {
  Json rows = Json::array();
  for (std::size_t e = TensorStatistics::kExponents; e-- > 0;) {
    if (const std::uint64_t n = statistics.in_exponent(e); n > 0)
      rows.push_back(
          {{"exponent", e == 0 ? Json(nullptr) : Json(static_cast<int>(e) - 127)}, {"count", n}});
  }
  return rows;
}

Json statistics_json(const std::optional<TensorStatistics>& statistics) {
  if (!statistics) return nullptr;
  return {{"count", statistics->count()}, {"zeros", statistics->zeros()},
          {"nans", statistics->nans()},   {"infinities", statistics->infinities()},
          {"min", statistics->min()},     {"max", statistics->max()},
          {"amax", statistics->amax()},   {"mean", statistics->mean()},
          {"rms", statistics->rms()},     {"histogram", histogram_rows(*statistics)}};
}

Json tensor_json(const Checkpoint& checkpoint, const LogicalTensor& tensor) {
  Json json = {{"name", tensor.name},
               {"role", formats::role_name(role_of(tensor))},
               {"layer", or_null(tensor.layer)},
               {"expert", or_null(tensor.expert)},
               {"shape", tensor.shape},
               {"scheme", scheme_name(tensor.encoding.scheme)},
               {"parts", Json::array()}};
  tensor.encoding.stored.for_each([&](formats::Part, std::uint32_t index) {
    const formats::StoredTensor& stored = checkpoint.stored()[index];
    json["parts"].push_back({{"name", stored.name},
                             {"dtype", formats::dtype_name(stored.dtype)},
                             {"shape", stored.shape},
                             {"file", checkpoint.files()[stored.file].name},
                             {"offset", stored.offset},
                             {"bytes", stored.n_bytes}});
  });
  return json;
}

Json inspect_json(const Checkpoint& checkpoint, const std::string& selector, bool lists,
                  std::size_t threads) {
  if (!lists && selector.empty()) return summary_json(checkpoint);
  const std::vector<std::size_t> which = matching_tensors(checkpoint, selector);
  if (which.size() == 1 && !lists) {
    const LogicalTensor& tensor = checkpoint.tensors()[which[0]];
    Json json = tensor_json(checkpoint, tensor);
    json["statistics"] = statistics_json(tensor_statistics(checkpoint, tensor, threads));
    return {{"tensor", std::move(json)}};
  }
  return {{"tensors", formats::json_list(which, [&](std::size_t i) {
             return tensor_json(checkpoint, checkpoint.tensors()[i]);
           })}};
}

}  // namespace ingot::library
