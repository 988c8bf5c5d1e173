#include "formats/dialect/input_major.h"

#include <fmt/format.h>

#include "formats/base/error.h"
#include "formats/config/config_meaning.h"
#include "formats/config/nested_config.h"
#include "formats/dialect/dialect_table.h"
#include "formats/json/json.h"

// AWQ and GPTQ, which are read and not written. Their weights are seen as compressed-tensors stores
// them (formats/checkpoint/relaid_codes.h).

namespace ingot::formats {
namespace {

constexpr std::string_view kAwq = "awq";
constexpr std::string_view kGptq = "gptq";

Json no_block(const WrittenModel& /*model*/) {
  throw Error(ErrorCode::kUnsupported, "is in a dialect that is read and not written");
}

Error unsupported(std::string_view fact) {
  return Error(ErrorCode::kUnsupported, fmt::format("quantization_config {}", fact))
      .in_file("config.json");
}

bool is_true(const Json& block, const char* key) {
  return json_member(block, key) == true;
}

std::string lower_word(const Json& block, const char* key, std::string_view absent) {
  const Json& value = json_member(block, key);
  if (!value.is_string()) return std::string(absent);
  auto word = value.get<std::string>();
  for (char& letter : word) {
    if (letter >= 'A' && letter <= 'Z') letter = static_cast<char>(letter - 'A' + 'a');
  }
  return word;
}

}  // namespace

const Dialect kAwqDialect = {.name = kAwq,
                             .summary = "AutoAWQ, GEMM order: read as compressed-tensors",
                             .storage = kCompressedTensorsDialect.storage,
                             .is_read_only = true,
                             .quantization_config = no_block};
const Dialect kGptqDialect = {.name = kGptq,
                              .summary = "AutoGPTQ and GPTQModel: read as compressed-tensors",
                              .storage = kCompressedTensorsDialect.storage,
                              .is_read_only = true,
                              .quantization_config = no_block};

const Dialect* input_major_dialect(const ModelConfig& config) {
  const std::string method = config.quantization ? config.quantization->quant_method : "";
  if (method == kAwq) return &kAwqDialect;
  if (method == kGptq) return &kGptqDialect;
  if (method != "auto-round" && method != "intel/auto-round") return nullptr;
  const std::string packing = lower_word(quantization_block(config), "packing_format", "absent");
  if (packing == "auto_round:auto_awq") return &kAwqDialect;
  if (packing == "auto_round:auto_gptq") return &kGptqDialect;
  return nullptr;
}

std::optional<InputMajorLayout> input_major_layout(const ModelConfig& config) {
  const Dialect* dialect = input_major_dialect(config);
  if (dialect == nullptr) return std::nullopt;
  const std::string_view method = dialect->name;
  const Json& block = quantization_block(config);
  if (const Json& bits = json_member(block, "bits"); bits != 4)
    throw unsupported(
        fmt::format("has bits {}; of {} this version reads 4", config_text(bits), method));
  InputMajorLayout layout;
  if (const Json& size = json_member(block, "group_size"); size.is_number_unsigned()) {
    layout.group_size = size.get<std::uint64_t>();
  } else if (size == -1) {
    layout.group_size = 0;
  }
  if (method == kAwq) {
    const std::string version = lower_word(block, "version", "gemm");
    if (version != "gemm")
      throw unsupported(fmt::format("has version '{}'; of awq this version reads gemm", version));
    layout.packs_rows = layout.is_interleaved = true;
    return layout;
  }
  const std::string format = lower_word(block, "checkpoint_format", kGptq);
  if (format != "gptq" && format != "gptq_v2") {
    throw unsupported(
        fmt::format("has checkpoint_format '{}'; this version reads gptq and gptq_v2", format));
  }
  layout.zero_bias = format == "gptq" ? 1 : 0;
  layout.is_symmetric = is_true(block, "sym");
  layout.has_order = is_true(block, "desc_act");
  return layout;
}

}  // namespace ingot::formats
