#include <algorithm>
#include <array>
#include <memory>
#include <stdexcept>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/base/error.h"
#include "formats/checkpoint/checkpoint.h"
#include "formats/container/safetensors.h"
#include "formats/storage/block_scales.h"
#include "quantize/scheme.h"
#include "tests/fuzz/input_bytes.h"
#include "tests/fuzz/target.h"

namespace ingot::fuzz {
namespace {

/// The config.json, by the first byte of the input.
constexpr std::array<std::string_view, 5> kConfigs = {
    R"({"quantization_config":{"quant_method":"compressed-tensors"}})",
    R"({"quantization_config":{"quant_method":"awq","bits":4,"version":"gemm"}})",
    R"({"quantization_config":{"quant_method":"gptq","bits":4,"desc_act":true}})",
    R"({"quantization_config":{"quant_method":"gptq","bits":4,"sym":true,"desc_act":false}})",
    R"({"quantization_config":{"quant_method":"gptq","bits":4,"checkpoint_format":"gptq_v2"}})",
};

void decode(const formats::Checkpoint& checkpoint, const formats::LogicalTensor& tensor) {
  const std::uint32_t weight = tensor.encoding.stored.weight();
  std::vector<std::byte> codes(checkpoint.stored()[weight].n_bytes);
  checkpoint.read(weight, 0, codes);
  const formats::ScaleReader reader(checkpoint, tensor);
  const formats::ScaleReader::Range all{.first = 0, .n = reader.rows()};
  const std::vector<float> scales = reader.read(all);
  const std::vector<std::uint8_t> zeros = reader.read_zeros(all);
  const auto order = reader.group_order();
  if (std::any_of(zeros.begin(), zeros.end(), [](std::uint8_t zero) { return zero > 15; }))
    throw std::logic_error("a zero point beyond four bits");
  if (std::any_of(order.begin(), order.end(), [&](auto group) { return group >= reader.cols(); }))
    throw std::logic_error("a group that is not there");
  const std::size_t rows = tensor.shape[0], cols = tensor.shape[1];
  std::vector<float> values(rows * cols);
  quantize::decode({.scheme = tensor.encoding.scheme,
                    .codes = codes.data(),
                    .rows = rows,
                    .cols = cols,
                    .row_bytes = cols * formats::scheme_facts(tensor.encoding.scheme).code_bits / 8,
                    .scales = scales,
                    .rows_per_matrix = rows,
                    .scale_cols = reader.cols(),
                    .block_rows = tensor.encoding.block_rows,
                    .block_cols = tensor.encoding.block_cols,
                    .zeros = zeros,
                    .group_order = order},
                   {.data = values.data(), .rows = rows, .cols = cols, .stride = cols});
}

}  // namespace

/// The input is a byte that chooses the config, and a weights file.
bool accepts(std::span<const std::byte> input) {
  if (input.empty()) return false;
  const std::string_view config = kConfigs.at(std::to_integer<std::size_t>(input[0]) % 5);
  const auto file = input.subspan(1);
  try {
    auto header = formats::parse_safetensors_header(file, file.size(), "input");
    formats::Draft model;
    model.config = formats::parse_model_config(config, "config.json");
    model.config_text = config;
    model.stored = std::move(header.tensors);
    model.bytes = std::make_unique<InputBytes>(file);
    const auto checkpoint = formats::Checkpoint::assemble(std::move(model), {.family = "generic"});
    bool any = false;
    for (const formats::LogicalTensor& tensor : checkpoint.tensors()) {
      if (tensor.encoding.scheme != formats::SchemeId::kInt4Group) continue;
      any = true;
      decode(checkpoint, tensor);
    }
    return any;
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kInternal) throw std::logic_error(error.what());
    return false;
  }
}

}  // namespace ingot::fuzz
