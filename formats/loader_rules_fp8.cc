#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include <fmt/format.h>

#include "formats/base/checked.h"
#include "formats/base/parallel.h"
#include "formats/float8.h"
#include "formats/loader_rule_bodies.h"
#include "formats/stored_names.h"

namespace ingot::formats::rule_bodies {
namespace {

constexpr std::size_t kReadBytes = std::size_t{4} << 20;

bool is_float8(DType dtype) {
  return dtype == DType::kF8E4M3 || dtype == DType::kF8E5M2 || dtype == DType::kF8E4M3Fnuz ||
         dtype == DType::kF8E5M2Fnuz;
}

bool has_fp8_weights(const Checkpoint& checkpoint) {
  const auto stored = checkpoint.stored();
  return std::any_of(stored.begin(), stored.end(),
                     [](const StoredTensor& tensor) { return is_float8(tensor.dtype); });
}

bool claims_fp8(const Checkpoint& checkpoint) {
  const auto& quantization = checkpoint.config().quantization;
  return quantization && quantization->quant_method.find("fp8") != std::string::npos;
}

bool has_key(const Checkpoint& checkpoint, const char* key) {
  const Json& raw = checkpoint.config().raw;
  const auto block = raw.find("quantization_config");
  return block != raw.end() && block->is_object() && block->contains(key) &&
         !block->at(key).is_null();
}

// An FP8 weight as stored, with the tensor that is named as its scale, if there is one.
struct Fp8Weight {
  const StoredTensor* weight = nullptr;
  const StoredTensor* scale = nullptr;
  std::uint32_t scale_index = 0;
};

// The suffixes of a dialect's scales.
std::vector<std::string_view> scale_suffixes(const Dialect& dialect) {
  std::vector<std::string_view> suffixes;
  for (const SchemeSpelling& spelling : dialect.spellings) {
    for (const PartSpelling& part : spelling.parts) {
      if (part.part == Part::kScale) suffixes.push_back(part.suffix);
    }
  }
  suffixes.emplace_back(".scale");  // DeepSeek's own names
  return suffixes;
}

// Every name under which a weight's scale may stand, in any dialect. Stacked experts have no
// `.weight` to replace.
std::vector<std::string> scale_names(std::string_view weight) {
  constexpr std::string_view kWeight = ".weight";
  std::vector<std::string> names;
  for (const Dialect* dialect : dialects()) {
    for (std::string_view suffix : scale_suffixes(*dialect)) {
      std::string_view stem = weight;
      if (weight.ends_with(kWeight)) {
        stem.remove_suffix(kWeight.size());
      } else if (suffix.starts_with(kWeight)) {
        suffix.remove_prefix(kWeight.size());
      }
      names.push_back(fmt::format("{}{}", stem, suffix));
    }
  }
  return names;
}

std::vector<Fp8Weight> fp8_weights(const Checkpoint& checkpoint) {
  const auto stored = checkpoint.stored();
  const StoredNames by_name(stored);
  // By name, not by encoding: what the checkpoint could not understand is looked at too.
  std::vector<Fp8Weight> weights;
  for (const StoredTensor& tensor : stored) {
    if (!is_float8(tensor.dtype)) continue;
    Fp8Weight weight;
    weight.weight = &tensor;
    for (const std::string& name : scale_names(tensor.name)) {
      if (const auto found = by_name.find(name)) {
        weight.scale = &stored[*found];
        weight.scale_index = *found;
        break;
      }
    }
    weights.push_back(weight);
  }
  return weights;
}

bool has_scale_dtype(const StoredTensor& scale) {
  return scale.dtype == DType::kF32 || scale.dtype == DType::kBf16 || scale.dtype == DType::kF8E8M0;
}

std::vector<float> read_scales(const Checkpoint& checkpoint, const Fp8Weight& weight) {
  std::vector<std::byte> bytes(weight.scale->n_bytes);
  checkpoint.read(weight.scale_index, 0, bytes);
  const std::size_t width = dtype_bits(weight.scale->dtype) / 8;
  std::vector<float> values(bytes.size() / width);
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, bytes.data() + i * width, width);
    switch (weight.scale->dtype) {
      case DType::kBf16:
        values[i] = std::bit_cast<float>(bits << 16);
        break;
      case DType::kF8E8M0:
        values[i] = float_from_e8m0(static_cast<std::uint8_t>(bits));
        break;
      default:
        values[i] = std::bit_cast<float>(bits);
        break;
    }
  }
  return values;
}

// Runs `look` on every weight by several threads, and reports what it found in the order of the
// source.
void report_in_order(const std::vector<Fp8Weight>& weights, std::size_t threads,
                     const Report& report,
                     const std::function<std::optional<Finding>(const Fp8Weight&)>& look) {
  std::vector<std::optional<Finding>> found(weights.size());
  parallel_for(weights.size(), threads, [&](std::size_t i) { found[i] = look(weights[i]); });
  for (std::optional<Finding>& finding : found) {
    if (finding) report(std::move(*finding));
  }
}

// Calls look(values) for every scale that can be read.
void look_at_scales(
    const Checkpoint& checkpoint, const RuleOptions& options, const Report& report,
    const std::function<std::optional<Finding>(const Fp8Weight&, std::span<const float>)>& look) {
  report_in_order(fp8_weights(checkpoint), options.threads, report,
                  [&](const Fp8Weight& weight) -> std::optional<Finding> {
                    if (weight.scale == nullptr || !has_scale_dtype(*weight.scale))
                      return std::nullopt;
                    if (!checkpoint.has_data(weight.scale->file)) return std::nullopt;
                    return look(weight, read_scales(checkpoint, weight));
                  });
}

Finding at(const Checkpoint& checkpoint, const StoredTensor& tensor, ErrorCode code,
           std::string message) {
  return violation(code, file_of(checkpoint, tensor), tensor.name, std::move(message));
}

Finding in_config(ErrorCode code, std::string message) {
  return violation(code, "config.json", "", std::move(message));
}

bool is_power_of_two(float scale) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(scale);
  // 2^-127 is the one E8M0 value that is subnormal in F32.
  return (bits & 0x7FFFFF) == 0 || bits == 0x00400000;
}

std::uint64_t count_nan_codes(std::span<const std::byte> codes) {
  std::uint64_t count = 0;
  for (const std::byte code : codes) count += (code & std::byte{0x7F}) == std::byte{0x7F} ? 1U : 0U;
  return count;
}

std::optional<Finding> find_nan_codes(const Checkpoint& checkpoint, std::uint32_t index) {
  const StoredTensor& tensor = checkpoint.stored()[index];
  std::vector<std::byte> buffer(std::min<std::uint64_t>(kReadBytes, tensor.n_bytes));
  std::uint64_t count = 0, first = 0;
  for (std::uint64_t offset = 0; offset < tensor.n_bytes; offset += buffer.size()) {
    const auto bytes = std::span(buffer).first(
        static_cast<std::size_t>(std::min<std::uint64_t>(buffer.size(), tensor.n_bytes - offset)));
    checkpoint.read(index, offset, bytes);
    const std::uint64_t here = count_nan_codes(bytes);
    if (count == 0 && here != 0) {
      const auto found = std::find_if(bytes.begin(), bytes.end(), [](std::byte code) {
        return (code & std::byte{0x7F}) == std::byte{0x7F};
      });
      first = offset + static_cast<std::uint64_t>(found - bytes.begin());
    }
    count += here;
  }
  if (count == 0) return std::nullopt;
  return at(checkpoint, tensor, ErrorCode::kNonFinite,
            fmt::format("holds {} NaN codes, the first at element {}", count, first));
}

// The modules that the config exempts, in either spelling.
std::vector<std::string> ignored_modules(const Checkpoint& checkpoint) {
  std::vector<std::string> modules;
  const Json& block = checkpoint.config().raw.at("quantization_config");
  for (const char* key : {"ignored_layers", "modules_to_not_convert"}) {
    if (!block.contains(key) || !block.at(key).is_array()) continue;
    for (const Json& entry : block.at(key)) {
      if (entry.is_string()) modules.push_back(entry.get<std::string>());
    }
  }
  return modules;
}

bool is_ignored(std::string_view weight, const std::vector<std::string>& modules) {
  return std::any_of(modules.begin(), modules.end(), [&](const std::string& module) {
    return weight.substr(0, module.size()) == module &&
           (weight.size() == module.size() || weight[module.size()] == '.');
  });
}

const StoredTensor& weight_of(const Checkpoint& checkpoint, const LogicalTensor& tensor) {
  return checkpoint.stored()[tensor.encoding.stored.weight()];
}

bool family_has_fp8(const Family& family) {
  return std::any_of(family.rules.begin(), family.rules.end(),
                     [](const TensorRule& rule) { return rule.fp8_by_default; });
}

}  // namespace

void config_present(const Checkpoint& checkpoint, const RuleOptions&, const Report& report) {
  // Without a config at all the structure has said so.
  if (!checkpoint.config().raw.is_object()) return;
  if (checkpoint.config().quantization || !has_fp8_weights(checkpoint)) return;
  report(in_config(
      ErrorCode::kNotFound,
      "has no quantization_config, but there are FP8 weights (copy it from the release)"));
}

void config_without_weights(const Checkpoint& checkpoint, const RuleOptions&,
                            const Report& report) {
  if (checkpoint.stored().empty() || !claims_fp8(checkpoint) || has_fp8_weights(checkpoint)) return;
  report(in_config(ErrorCode::kMismatch,
                   "promises FP8 weights, but no weight is FP8 (remove quantization_config)"));
}

void activation_scheme(const Checkpoint& checkpoint, const RuleOptions&, const Report& report) {
  if (!claims_fp8(checkpoint)) return;
  const std::string& scheme = checkpoint.config().quantization->activation_scheme;
  if (!has_key(checkpoint, "activation_scheme")) {
    report(in_config(ErrorCode::kNotFound,
                     "quantization_config has no activation_scheme (\"dynamic\")"));
  } else if (scheme != "dynamic" && has_key(checkpoint, "weight_block_size")) {
    report(
        in_config(ErrorCode::kUnsupported,
                  fmt::format("activation_scheme is '{}', block scales need 'dynamic'", scheme)));
  }
}

void block_size(const Checkpoint& checkpoint, const RuleOptions&, const Report& report) {
  if (!claims_fp8(checkpoint) || !has_fp8_weights(checkpoint)) return;
  const Json& block = checkpoint.config().raw.at("quantization_config");
  const auto size = block.find("weight_block_size");
  const auto is_positive = [](const Json& n) { return n.is_number_unsigned() && n != 0; };
  if (size == block.end() || !size->is_array() || size->size() != 2 ||
      !std::all_of(size->begin(), size->end(), is_positive)) {
    report(in_config(
        ErrorCode::kCorrupt,
        "quantization_config has no weight_block_size of two positive numbers ([128, 128])"));
  }
}

void weight_quantized(const Checkpoint& checkpoint, const RuleOptions&, const Report& report) {
  if (!claims_fp8(checkpoint) || !has_fp8_weights(checkpoint)) return;
  const std::vector<std::string> ignored = ignored_modules(checkpoint);
  FindingsByKind found;
  for (const LogicalTensor& tensor : checkpoint.tensors()) {
    if (tensor.rule == nullptr || !tensor.rule->fp8_by_default) continue;
    if (scheme_facts(tensor.encoding.scheme).quantized || is_ignored(tensor.name, ignored))
      continue;
    const StoredTensor& stored = weight_of(checkpoint, tensor);
    if (is_float8(stored.dtype)) continue;
    found.add(tensor.rule,
              at(checkpoint, stored, ErrorCode::kDtypeMismatch,
                 fmt::format("is {} where loaders expect FP8 and a scale (list its module in "
                             "modules_to_not_convert)",
                             dtype_name(stored.dtype))));
  }
  found.report(report);
}

void plain_module(const Checkpoint& checkpoint, const RuleOptions&, const Report& report) {
  // Other dialects name in the config what they quantize, and may name these.
  const bool other_dialect = checkpoint.config().quantization && !claims_fp8(checkpoint);
  if (other_dialect || !family_has_fp8(checkpoint.family())) return;
  FindingsByKind found;
  for (const LogicalTensor& tensor : checkpoint.tensors()) {
    if (tensor.rule == nullptr || tensor.rule->fp8_by_default) continue;
    const StoredTensor& stored = weight_of(checkpoint, tensor);
    if (!is_float8(stored.dtype)) continue;
    found.add(tensor.rule, at(checkpoint, stored, ErrorCode::kDtypeMismatch,
                              fmt::format("is {}, but loaders build this module unquantized",
                                          dtype_name(stored.dtype))));
  }
  found.report(report);
}

void weight_dtype(const Checkpoint& checkpoint, const RuleOptions&, const Report& report) {
  for (const StoredTensor& tensor : checkpoint.stored()) {
    if (!is_float8(tensor.dtype) || tensor.dtype == DType::kF8E4M3) continue;
    report(at(checkpoint, tensor, ErrorCode::kUnsupported,
              fmt::format("is {}, FP8 weights must be F8_E4M3", dtype_name(tensor.dtype))));
  }
}

void scale_present(const Checkpoint& checkpoint, const RuleOptions&, const Report& report) {
  for (const Fp8Weight& weight : fp8_weights(checkpoint)) {
    if (weight.scale != nullptr) continue;
    report(at(checkpoint, *weight.weight, ErrorCode::kMissingTensor,
              fmt::format("has no scale '{}'",
                          scale_names(weight.weight->name).front())));
  }
}

void scale_dtype(const Checkpoint& checkpoint, const RuleOptions&, const Report& report) {
  for (const Fp8Weight& weight : fp8_weights(checkpoint)) {
    if (weight.scale == nullptr || has_scale_dtype(*weight.scale)) continue;
    report(at(checkpoint, *weight.scale, ErrorCode::kDtypeMismatch,
              fmt::format("is {}, a block scale is F32, BF16 or F8_E8M0",
                          dtype_name(weight.scale->dtype))));
  }
}

void scale_shape(const Checkpoint& checkpoint, const RuleOptions&, const Report& report) {
  const auto [rows, cols] = fp8_block_size(checkpoint.config());
  for (const Fp8Weight& weight : fp8_weights(checkpoint)) {
    if (weight.scale == nullptr || weight.weight->shape.size() < 2) continue;
    const Shape wanted = block_scale_shape(weight.weight->shape, rows, cols);
    if (weight.scale->shape == wanted) continue;
    report(at(
        checkpoint, *weight.scale, ErrorCode::kShapeMismatch,
        fmt::format("has shape {}, a weight of shape {} needs {}", shape_text(weight.scale->shape),
                    shape_text(weight.weight->shape), shape_text(wanted))));
  }
}

void scale_values(const Checkpoint& checkpoint, const RuleOptions& options, const Report& report) {
  const auto is_bad = [](float scale) { return !(scale > 0 && std::isfinite(scale)); };
  look_at_scales(
      checkpoint, options, report,
      [&](const Fp8Weight& weight, std::span<const float> scales) -> std::optional<Finding> {
        const auto first = std::find_if(scales.begin(), scales.end(), is_bad);
        if (first == scales.end()) return std::nullopt;
        return at(checkpoint, *weight.scale, ErrorCode::kBadScale,
                  fmt::format("{} of {} scales are not finite and positive, the first is {} "
                              "at element {}",
                              std::count_if(first, scales.end(), is_bad), scales.size(), *first,
                              first - scales.begin()));
      });
}

void ue8m0_claim(const Checkpoint& checkpoint, const RuleOptions& options, const Report& report) {
  const auto& quantization = checkpoint.config().quantization;
  if (!quantization || quantization->scale_fmt != "ue8m0") return;
  // Zero and infinity are the business of fp8.scale-values.
  const auto is_odd = [](float scale) {
    return scale > 0 && std::isfinite(scale) && !is_power_of_two(scale);
  };
  look_at_scales(
      checkpoint, options, report,
      [&](const Fp8Weight& weight, std::span<const float> scales) -> std::optional<Finding> {
        const auto first = std::find_if(scales.begin(), scales.end(), is_odd);
        if (first == scales.end()) return std::nullopt;
        return at(checkpoint, *weight.scale, ErrorCode::kMismatch,
                  fmt::format("{} of {} scales are not powers of two, the first is {} at "
                              "element {}, but config.json says scale_fmt ue8m0 (remove it)",
                              std::count_if(first, scales.end(), is_odd), scales.size(), *first,
                              first - scales.begin()));
      });
}

void nan_code(const Checkpoint& checkpoint, const RuleOptions& options, const Report& report) {
  if (!options.deep) return;
  const StoredTensor* base = checkpoint.stored().data();
  report_in_order(fp8_weights(checkpoint), options.threads, report,
                  [&](const Fp8Weight& weight) -> std::optional<Finding> {
                    if (weight.weight->dtype != DType::kF8E4M3) return std::nullopt;
                    if (!checkpoint.has_data(weight.weight->file)) return std::nullopt;
                    return find_nan_codes(checkpoint,
                                          static_cast<std::uint32_t>(weight.weight - base));
                  });
}

void merged_partition(const Checkpoint& checkpoint, const RuleOptions&, const Report& report) {
  FindingsByKind found;
  for (const LogicalTensor& tensor : checkpoint.tensors()) {
    if (tensor.encoding.scheme != SchemeId::kFp8Block || tensor.rule == nullptr) continue;
    std::uint64_t rows = tensor.shape.size() < 2 ? 0 : tensor.shape[tensor.shape.size() - 2];
    switch (tensor.rule->role) {
      case Role::kExpertsGateUp:
        rows /= 2;
        break;
      case Role::kQaProj:
      case Role::kQProj:
      case Role::kKProj:
      case Role::kDenseGate:
      case Role::kSharedGate:
      case Role::kExpertGate:
        break;
      default:
        continue;
    }
    // Without LoRA, MLA has a q_proj that nothing is merged with.
    if (tensor.rule->role == Role::kQProj && checkpoint.config().kv_lora_rank != 0) continue;
    const std::uint64_t step = tensor.encoding.block_rows;
    if (step == 0 || rows % step == 0) continue;
    found.add(tensor.rule, at(checkpoint, weight_of(checkpoint, tensor), ErrorCode::kShapeMismatch,
                              fmt::format("gives {} rows to a merged module, not a multiple of {}",
                                          rows, step)));
  }
  found.report(report);
}

}  // namespace ingot::formats::rule_bodies
