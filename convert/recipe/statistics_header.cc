#include "convert/recipe/statistics_header.h"

#include <array>
#include <string_view>

#include <fmt/format.h>

#include "formats/container/safetensors.h"
#include "formats/records/activation_statistics.h"

namespace ingot::convert {
namespace {

using formats::DType;
using formats::StoredTensor;

struct Statistic {
  std::string_view suffix;
  std::optional<StatisticPlace> ModuleStatistics::*place;
  bool is_one;  // else one per column
};
constexpr std::array kStatistics = {
    Statistic{formats::kInputMin, &ModuleStatistics::min, true},
    Statistic{formats::kInputMax, &ModuleStatistics::max, true},
    Statistic{formats::kInputAmax, &ModuleStatistics::amax, true},
    Statistic{formats::kInputMeanSquare, &ModuleStatistics::mean_square, false}};

Error corrupt(const StoredTensor& tensor, std::string_view must) {
  return Error(ErrorCode::kCorrupt,
               fmt::format("is {} {}, must be {}", formats::dtype_name(tensor.dtype),
                           formats::shape_text(tensor.shape), must))
      .in_tensor(tensor.name);
}

// What stands before the suffix.
std::string owner_of(const StoredTensor& tensor, std::string_view suffix) {
  return tensor.name.substr(0, tensor.name.size() - suffix.size());
}

bool has_suffix(const StoredTensor& tensor, std::string_view suffix) {
  return tensor.name.size() > suffix.size() && tensor.name.ends_with(suffix);
}

void add_statistic(const StoredTensor& tensor, const Statistic& statistic,
                   StatisticsHeader& header) {
  if (tensor.dtype != DType::kF32 || (statistic.is_one && tensor.n_bytes != sizeof(float)))
    throw corrupt(tensor, statistic.is_one ? "one F32" : "F32 [K]");
  if (!statistic.is_one && (tensor.shape.size() != 1 || tensor.n_bytes == 0))
    throw corrupt(tensor, "F32 [K]");
  header.modules[owner_of(tensor, statistic.suffix)].*
      statistic.place = {.offset = tensor.offset, .count = tensor.n_bytes / sizeof(float)};
}

void add_expert_tokens(const Fd& file, const StoredTensor& tensor, StatisticsHeader& header) {
  if (tensor.dtype != DType::kI64 || tensor.shape.size() != 1) throw corrupt(tensor, "I64 [E]");
  std::vector<std::int64_t> tokens(tensor.n_bytes / sizeof(std::int64_t));
  file.read_exact(std::as_writable_bytes(std::span(tokens)), tensor.offset);
  std::vector<std::uint64_t> filled;
  for (std::size_t expert = 0; expert < tokens.size(); ++expert) {
    if (tokens[expert] < 0) {
      throw Error(ErrorCode::kCorrupt,
                  fmt::format("says that expert {} saw {} tokens", expert, tokens[expert]))
          .in_tensor(tensor.name);
    }
    if (tokens[expert] == 0) filled.push_back(expert);
  }
  if (!filled.empty())
    header.filled.emplace(owner_of(tensor, formats::kExpertTokens), std::move(filled));
}

void add_tensor(const Fd& file, const StoredTensor& tensor, StatisticsHeader& header) {
  for (const Statistic& statistic : kStatistics) {
    if (has_suffix(tensor, statistic.suffix)) return add_statistic(tensor, statistic, header);
  }
  if (has_suffix(tensor, formats::kExpertTokens)) return add_expert_tokens(file, tensor, header);
  throw Error(ErrorCode::kCorrupt,
              "is none of MODULE.input_min, MODULE.input_max, MODULE.input_amax, "
              "MODULE.input_mean_square, LAYER.expert_tokens")
      .in_tensor(tensor.name);
}

}  // namespace

StatisticsHeader read_statistics_header(const Fd& file, ErrorList& errors) {
  StatisticsHeader header;
  for (const StoredTensor& tensor : formats::read_safetensors_header(file).tensors) {
    try {
      add_tensor(file, tensor, header);
    } catch (const Error& error) {
      errors.add(error);
    }
  }
  return header;
}

std::vector<float> read_statistics(const Fd& file, const StatisticPlace& place) {
  std::vector<float> values(place.count);
  file.read_exact(std::as_writable_bytes(std::span(values)), place.offset);
  return values;
}

}  // namespace ingot::convert
