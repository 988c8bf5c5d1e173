#include "verify/calibrate/statistics_file.h"

#include <algorithm>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>

#include "formats/base/error.h"
#include "formats/container/safetensors.h"
#include "formats/records/activation_statistics.h"

namespace ingot::verify {
namespace {

using formats::DType;
using formats::TensorSpec;

std::string owned(std::string_view owner, std::string_view suffix) {
  return fmt::format("{}{}", owner, suffix);
}

std::string layer_name(std::uint32_t layer) {
  return fmt::format("model.layers.{}", layer);
}

std::vector<TensorSpec> specs_of(std::span<const CalibratedModule> modules,
                                 std::span<const std::uint32_t> moe_layers, std::size_t n_experts) {
  std::vector<TensorSpec> specs;
  for (const CalibratedModule& module : modules) {
    for (const std::string_view one : {formats::kInputAmax, formats::kInputMin, formats::kInputMax})
      specs.push_back({.name = owned(module.name, one), .dtype = DType::kF32, .shape = {1}});
    specs.push_back({.name = owned(module.name, formats::kInputMeanSquare),
                     .dtype = DType::kF32,
                     .shape = {module.width}});
  }
  for (const std::uint32_t layer : moe_layers) {
    specs.push_back({.name = owned(layer_name(layer), formats::kExpertTokens),
                     .dtype = DType::kI64,
                     .shape = {n_experts}});
  }
  std::sort(specs.begin(), specs.end(), [](const TensorSpec& a, const TensorSpec& b) {
    return formats::writes_before(a.dtype, a.name, b.dtype, b.name);
  });
  return specs;
}

}  // namespace

StatisticsFile::StatisticsFile(std::filesystem::path path,
                               std::span<const CalibratedModule> modules,
                               std::span<const std::uint32_t> moe_layers, std::size_t n_experts,
                               std::uint64_t documents, std::uint64_t tokens)
    : path_(std::move(path)), partial_(path_) {
  if (std::filesystem::exists(std::filesystem::symlink_status(path_)))
    throw Error(ErrorCode::kExists, "is there already (remove it, or choose another name)")
        .in_file(path_.string());
  partial_ += ".partial";
  const std::vector<TensorSpec> specs = specs_of(modules, moe_layers, n_experts);
  const std::pair<std::string, std::string> metadata[] = {{"ingot_calibration", "1"},
                                                          {"documents", std::to_string(documents)},
                                                          {"tokens", std::to_string(tokens)}};
  const std::string header = formats::safetensors_header_text(specs, metadata);
  std::uint64_t offset = header.size();
  for (const TensorSpec& spec : specs) {
    offsets_.emplace(spec.name, offset);
    offset += formats::byte_count(spec.dtype, spec.shape).value();
  }
  file_ = Fd::open_for_writing(partial_, O_WRONLY | O_CREAT | O_TRUNC);
  try {
    file_.reserve(offset);
    file_.write_exact(std::as_bytes(std::span(header)), 0);
  } catch (...) {
    std::error_code unused;
    std::filesystem::remove(partial_, unused);
    throw;
  }
}

StatisticsFile::~StatisticsFile() {
  std::error_code unused;
  if (!is_published_) std::filesystem::remove(partial_, unused);
}

void StatisticsFile::put(const std::string& name, std::span<const std::byte> bytes) {
  const auto offset = offsets_.find(name);
  INGOT_CHECK(offset != offsets_.end());
  file_.write_exact(bytes, offset->second);
  offsets_.erase(offset);
}

void StatisticsFile::write(const CalibratedModule& module, const InputSummary& summary) {
  INGOT_CHECK(summary.mean_square.size() == module.width);
  const float amax = summary.amax();
  put(owned(module.name, formats::kInputAmax), std::as_bytes(std::span(&amax, 1)));
  put(owned(module.name, formats::kInputMin), std::as_bytes(std::span(&summary.min, 1)));
  put(owned(module.name, formats::kInputMax), std::as_bytes(std::span(&summary.max, 1)));
  put(owned(module.name, formats::kInputMeanSquare), std::as_bytes(std::span(summary.mean_square)));
}

void StatisticsFile::write_expert_tokens(std::uint32_t layer,
                                         std::span<const std::int64_t> tokens) {
  put(owned(layer_name(layer), formats::kExpertTokens), std::as_bytes(tokens));
}

void StatisticsFile::publish() {
  INGOT_CHECK(offsets_.empty());
  file_.sync();
  file_.close();
  rename_file(partial_, path_);
  is_published_ = true;
  sync_directory(path_.has_parent_path() ? path_.parent_path() : std::filesystem::path("."));
}

}  // namespace ingot::verify
