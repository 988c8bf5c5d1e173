#include "formats/dialect/input_major.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "formats/base/words.h"
#include "formats/config/config_meaning.h"
#include "formats/config/nested_config.h"
#include "formats/dialect/dialect_table.h"
#include "formats/dialect/dialect_words.h"
#include "formats/json/json.h"

// AWQ and GPTQ, which are read and not written. Their weights are seen as compressed-tensors stores
// them (formats/checkpoint/repacked_codes.cc).

namespace ingot::formats {
namespace {

constexpr std::string_view kAwq = "awq";
constexpr std::string_view kGptq = "gptq";

Error unsupported(std::string_view fact) {
  return Error(ErrorCode::kUnsupported, "quantization_config {}", fact).in_file("config.json");
}

std::string lower_word(const Json& block, const char* key, std::string_view absent) {
  const Json& value = json_member(block, key);
  return value.is_string() ? lower_case(value.get_ref<const std::string&>()) : std::string(absent);
}

// 0: for whole rows.
std::optional<std::uint64_t> group_size_in(const Json& owner) {
  const Json& size = json_member(owner, "group_size");
  if (size.is_number_unsigned()) return size.get<std::uint64_t>();
  return size == -1 ? std::optional<std::uint64_t>(0) : std::nullopt;
}

std::optional<bool> flag_in(const Json& owner, const char* key) {
  const Json& value = json_member(owner, key);
  return value.is_boolean() ? std::optional(value.get<bool>()) : std::nullopt;
}

void add_override(const std::string& key, const std::string& expression, const Json& said,
                  std::vector<InputMajorOverride>& overrides) {
  try {
    InputMajorOverride& added = overrides.emplace_back(InputMajorOverride{
        .key = key, .is_plain = key.starts_with("-:"), .modules = Pattern("re:" + expression)});
    const Json& bits = json_member(said, "bits");
    if (bits.is_number_unsigned()) added.bits = bits.get<std::uint64_t>();
    added.group_size = group_size_in(said);
    added.is_symmetric = flag_in(said, "sym");
    added.has_order = flag_in(said, "desc_act");
  } catch (const Error& error) {
    throw unsupported(fmt::format("has '{}', which is no expression: {}", key, error.message()));
  }
}

// GPTQModel: `+:EXPR` or EXPR has values of its own, `-:EXPR` leaves modules plain. AutoRound: a
// module's whole name, or an expression for it.
std::vector<InputMajorOverride> overrides_in(const Json& block) {
  std::vector<InputMajorOverride> overrides;
  const auto of_sign = [](const std::string& key) {
    return key.starts_with("+:") || key.starts_with("-:") ? key.substr(2) : key;
  };
  if (const Json& dynamic = json_member(block, "dynamic"); dynamic.is_object()) {
    for (const auto& [key, said] : dynamic.items())
      add_override(key, of_sign(key), said, overrides);
  }
  if (const Json& extra = json_member(block, "extra_config"); extra.is_object()) {
    for (const auto& [key, said] : extra.items())
      add_override(key, fmt::format("(?:{})$", key), said, overrides);
  }
  return overrides;
}

}  // namespace

const InputMajorOverride* InputMajorLayout::override_of(std::string_view module) const {
  const auto found = std::ranges::find_if(
      overrides, [&](const InputMajorOverride& at) { return at.modules.matches(module); });
  return found == overrides.end() ? nullptr : &*found;
}

InputMajorForm InputMajorLayout::form_of(std::string_view module) const {
  InputMajorForm form = *this;
  const InputMajorOverride* own = override_of(module);
  if (own == nullptr) return form;
  form.bits = own->bits.value_or(bits);
  if (own->group_size) form.group_size = own->group_size;
  form.is_symmetric = own->is_symmetric.value_or(is_symmetric);
  form.has_order = own->has_order.value_or(has_order);
  return form;
}

const Dialect kAwqDialect = read_only(
    kAwq, "AutoAWQ, GEMM order: read as compressed-tensors",
    [](const ModelConfig& config) { return input_major_dialect(config) == &kAwqDialect; });
const Dialect kGptqDialect = read_only(
    kGptq, "AutoGPTQ and GPTQModel: read as compressed-tensors",
    [](const ModelConfig& config) { return input_major_dialect(config) == &kGptqDialect; });

namespace {

/// The `packing_format` of AutoRound's integers.
struct AutoRoundPacking {
  std::string_view format;
  const Dialect* dialect;
  bool is_gptq_v2 = false;  ///< true: zero points are stored without the offset of 1
};
constexpr std::array kAutoRoundPackings = {
    AutoRoundPacking{"auto_round:auto_awq", &kAwqDialect},
    AutoRoundPacking{"auto_round:awq", &kAwqDialect},
    AutoRoundPacking{"auto_round:auto_gptq", &kGptqDialect},
    AutoRoundPacking{"auto_round:gptq", &kGptqDialect},
    AutoRoundPacking{"auto_round:gptqmodel", &kGptqDialect, true},
    AutoRoundPacking{"auto_round", &kGptqDialect, true},
};

}  // namespace

const Dialect* input_major_dialect(const ModelConfig& config) {
  const std::string method = method_of(config);
  if (method == kAwq) return &kAwqDialect;
  if (method == kGptq) return &kGptqDialect;
  if (!is_auto_round(method)) return nullptr;
  const std::string packing = lower_word(quantization_block(config), "packing_format", "absent");
  const auto* const row = std::ranges::find(kAutoRoundPackings, packing, &AutoRoundPacking::format);
  const std::string type = lower_word(quantization_block(config), "data_type", "int");
  return row == kAutoRoundPackings.end() || type != "int" ? nullptr : row->dialect;
}

std::optional<InputMajorLayout> input_major_layout(const ModelConfig& config) {
  const Dialect* dialect = input_major_dialect(config);
  if (dialect == nullptr) return std::nullopt;
  const std::string_view method = dialect->name;
  const Json& block = quantization_block(config);
  const Json& bits = json_member(block, "bits");
  const bool is_low_or_wide = bits == 2 || bits == 3 || bits == 8;
  if (bits != 4 && (!is_low_or_wide || method != kGptq)) {
    throw unsupported(
        fmt::format("has bits {}: {} weights of {} bits, and of {} this version "
                    "reads {} (take the release that it was made from)",
                    config_text(bits), method, config_text(bits), method,
                    method == kGptq ? "2, 3, 4 and 8" : "4"));
  }
  InputMajorLayout layout;
  layout.bits = bits.get<std::uint64_t>();
  layout.group_size = group_size_in(block);
  layout.overrides = overrides_in(block);
  if (method == kAwq) {
    const std::string version = lower_word(block, "version", "gemm");
    if (version != "gemm")
      throw unsupported(fmt::format("has version '{}'; of awq this version reads gemm", version));
    layout.packs_rows = layout.is_interleaved = true;
    return layout;
  }
  const std::string packing = lower_word(block, "packing_format", "");
  const bool is_v2 = std::ranges::any_of(kAutoRoundPackings, [&](const AutoRoundPacking& row) {
    return row.format == packing && row.is_gptq_v2;
  });
  const Json& said = json_member(block, "checkpoint_format");
  const std::string format = said.is_null()
                                 ? std::string(is_v2 ? "gptq_v2" : kGptq)
                                 : lower_word(block, "checkpoint_format", config_text(said));
  if (format != "gptq" && format != "gptq_v2") {
    throw unsupported(
        fmt::format("has checkpoint_format '{}'; this version reads gptq and gptq_v2", format));
  }
  layout.zero_bias = format == "gptq" ? 1 : 0;
  layout.is_symmetric = json_member(block, "sym") == true;
  layout.has_order = json_member(block, "desc_act") == true;
  return layout;
}

}  // namespace ingot::formats
