#include <algorithm>
#include <array>
#include <map>

#include <fmt/format.h>

#include "check/rules/linear_modules.h"
#include "check/rules/loader_rule_values.h"
#include "formats/base/pattern.h"
#include "formats/config/config_meaning.h"
#include "formats/storage/block_scales.h"

// What JSON says that headers cannot show to be wrong by themselves: spellings that disagree, and
// words about quantization that change what is computed.

namespace ingot::formats::rule_bodies {
namespace {

constexpr std::string_view kAdapter = "adapter_config.json";

struct DialectKeys {
  std::string_view dialect;
  std::array<std::string_view, 14> keys;
};
constexpr std::array kKnownKeys = {
    DialectKeys{"deepseek",
                {"quant_method", "fmt", "activation_scheme", "weight_block_size", "scale_fmt",
                 "modules_to_not_convert", "ignored_layers", "expert_dtype", "dequantize"}},
    DialectKeys{"compressed-tensors",
                {"quant_method", "format", "config_groups", "ignore", "kv_cache_scheme",
                 "quantization_status", "global_compression_ratio", "sparsity_config",
                 "transform_config", "version"}},
    DialectKeys{
        "modelopt",
        {"quant_method", "quant_algo", "group_size", "config_groups", "ignore", "exclude_modules",
         "kv_cache_scheme", "kv_cache_quant_algo", "quantized_layers", "producer", "has_zero_point",
         "pre_quant_scale", "quantization", "moe_quant_algo"}},
};

bool has_cache_scales(const Checkpoint& checkpoint) {
  const auto stored = checkpoint.stored();
  return std::any_of(stored.begin(), stored.end(), [](const StoredTensor& tensor) {
    const std::string_view name = tensor.name;
    return name.ends_with(".k_scale") || name.ends_with(".v_scale") ||
           name.ends_with(".kv_cache_scale");
  });
}

void report_cache(const Checkpoint& checkpoint, const Report& report) {
  if (has_cache_scales(checkpoint)) return;
  const auto judge = [&](const Json& object, std::string_view file) {
    const std::string words = cache_words(object);
    if (words.empty()) return;
    report(violation(ErrorCode::kMissingTensor, file, "",
                     fmt::format("{}, but no scales of a key-value cache are stored (k_scale, "
                                 "v_scale): it would be cut to 8 bits under scale 1",
                                 words)));
  };
  if (const Json* block = config_block(checkpoint)) judge(*block, "config.json");
  judge(checkpoint.description(), checkpoint.dialect().description_file);
}

// Entries name a module, one above it or its last words; or they are expressions.
class IgnoredModules {
 public:
  explicit IgnoredModules(const Json& block) {
    for (const char* key : {"ignored_layers", "modules_to_not_convert"}) {
      for (const std::string& entry : strings_at(block, key)) {
        if (!entry.starts_with("re:")) {
          names_.push_back({.text = entry, .key = key});
        } else {
          try {
            patterns_.emplace_back(Pattern(entry), key);
          } catch (const Error&) {  // an engine finds nothing with it either
          }
        }
      }
    }
  }

  [[nodiscard]] bool empty() const { return names_.empty() && patterns_.empty(); }

  /// `modules_to_not_convert lists 'X'`, or empty.
  [[nodiscard]] std::string taking_in(std::string_view module) const {
    for (const Entry& entry : names_) {
      if (takes_in(entry.text, module)) return fmt::format("{} lists '{}'", entry.key, entry.text);
    }
    for (const auto& [pattern, key] : patterns_) {
      if (pattern.matches(module)) return fmt::format("{} lists '{}'", key, pattern.text());
    }
    return {};
  }

 private:
  struct Entry {
    std::string text;
    std::string_view key;
  };

  static bool takes_in(std::string_view entry, std::string_view module) {
    if (entry.empty() || module.size() < entry.size()) return false;
    if (module == entry) return true;
    if (module.starts_with(entry) && module[entry.size()] == '.') return true;
    return module.ends_with(entry) && module[module.size() - entry.size() - 1] == '.';
  }

  std::vector<Entry> names_;
  std::vector<std::pair<Pattern, std::string_view>> patterns_;
};

float median(std::vector<float> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

struct InputScale {
  const StoredTensor* stored = nullptr;
  float value = 0;
};

}  // namespace

void config_contradiction(const Checkpoint& checkpoint, const RuleOptions&, const Report& report) {
  const ConfigMeaning meaning(checkpoint.config().raw);
  for (const std::string& sentence : meaning.contradictions())
    report(in_config(ErrorCode::kMismatch, sentence));
}

void no_adapter(const Checkpoint& checkpoint, const RuleOptions&, const Report& report) {
  for (const SideFile& file : checkpoint.side_files()) {
    if (file.path != kAdapter) continue;
    report(violation(ErrorCode::kMismatch, file.path, "",
                     "makes readers look for another model, of which this were a change (remove "
                     "it)"));
  }
}

void quantized_known_keys(const Checkpoint& checkpoint, const RuleOptions&, const Report& report) {
  const Json* block = config_block(checkpoint);
  if (block == nullptr) return;
  const auto row = std::find_if(kKnownKeys.begin(), kKnownKeys.end(), [&](const DialectKeys& keys) {
    return keys.dialect == checkpoint.dialect().name;
  });
  // Other methods than the dialects' have keys of their own, and are refused elsewhere.
  if (row == kKnownKeys.end() || !checkpoint.config().quantization) return;
  const std::string& method = checkpoint.config().quantization->quant_method;
  const bool is_known_method = method == row->dialect || method == "fp8" ||
                               method == "blockwise_int8" || method.starts_with("modelopt");
  if (!is_known_method) return;
  for (const auto& [key, value] : block->items()) {
    if (value.is_null() || key.empty() ||
        std::find(row->keys.begin(), row->keys.end(), key) != row->keys.end())
      continue;
    report(in_config(ErrorCode::kUnsupported,
                     fmt::format("quantization_config has a key '{}' ({}) that this version does "
                                 "not know",
                                 key, config_text(value))));
  }
}

void quantized_cache_scales(const Checkpoint& checkpoint, const RuleOptions&,
                            const Report& report) {
  // ModelOpt's own checkpoints have none, and a row that says so.
  if (checkpoint.dialect().name != "modelopt") report_cache(checkpoint, report);
}

void modelopt_cache_scales(const Checkpoint& checkpoint, const RuleOptions&, const Report& report) {
  report_cache(checkpoint, report);
}

void native_ignored_quantized(const Checkpoint& checkpoint, const RuleOptions&,
                              const Report& report) {
  const Json* block = config_block(checkpoint);
  if (block == nullptr) return;
  const IgnoredModules ignored(*block);
  if (ignored.empty()) return;
  FindingsByKind found;
  for (const LinearModule& module : linear_modules(checkpoint)) {
    if (!module.is_quantized) continue;
    const std::string fault = ignored.taking_in(module.name);
    if (fault.empty()) continue;
    found.add(module.tensor->rule,
              at(checkpoint, codes_of(checkpoint, *module.tensor), ErrorCode::kMismatch,
                 fmt::format("is {}, but {}: engines that follow it take the codes for numbers",
                             scheme_facts(module.tensor->encoding.scheme).name, fault)));
  }
  found.report(report);
}

void fp8_format_words(const Checkpoint& checkpoint, const RuleOptions&, const Report& report) {
  const Json* block = config_block(checkpoint);
  if (block == nullptr || !checkpoint.config().quantization ||
      checkpoint.config().quantization->quant_method != "fp8")
    return;
  const auto require = [&](std::string_view key, std::string_view only, std::string_view or_this) {
    const Json& value = config_member(*block, key);
    if (value.is_null() || value == only || value == or_this) return;
    report(in_config(ErrorCode::kMismatch,
                     fmt::format("quantization_config.{} is {}, loaders know \"{}\" alone", key,
                                 config_text(value), only)));
  };
  require("fmt", "e4m3", "float8_e4m3fn");
  require("scale_fmt", "ue8m0", "ue8m0");
}

void fp8_ue8m0_unsaid(const Checkpoint& checkpoint, const RuleOptions&, const Report& report) {
  const auto& quantization = checkpoint.config().quantization;
  if (!quantization || !quantization->scale_fmt.empty()) return;
  const auto stored = checkpoint.stored();
  const bool can_read = std::all_of(stored.begin(), stored.end(), [&](const StoredTensor& tensor) {
    return checkpoint.has_data(tensor.file);
  });
  if (!can_read || !all_scales_are_powers_of_two(checkpoint)) return;
  report(in_config(ErrorCode::kNotFound,
                   "every scale is a power of two, but quantization_config has no scale_fmt "
                   "\"ue8m0\": engines then quantize activations under other scales"));
}

void input_scale_range(const Checkpoint& checkpoint, const RuleOptions&, const Report& report) {
  constexpr float kFar = 4096;
  std::map<const TensorRule*, std::vector<InputScale>> by_kind;
  for (const LogicalTensor& tensor : checkpoint.tensors()) {
    const StoredTensor* stored = part_of(checkpoint, tensor, Part::kInputScale);
    if (stored == nullptr || !can_read_scales(checkpoint, *stored)) continue;
    const std::optional<float> value = first_scale(checkpoint, *stored);
    if (!value) continue;
    if (is_bad_scale(*value)) {
      report(at(checkpoint, *stored, ErrorCode::kBadScale,
                fmt::format("is {}; it must be finite and above zero", *value)));
    } else {
      by_kind[tensor.rule].push_back({.stored = stored, .value = *value});
    }
  }
  for (const auto& [kind, scales] : by_kind) {
    if (scales.size() < 3) continue;
    std::vector<float> values;
    for (const InputScale& scale : scales) values.push_back(scale.value);
    const float middle = median(std::move(values));
    FindingsByKind found;
    for (const InputScale& scale : scales) {
      const float factor = scale.value / middle;
      if (factor < kFar && factor > 1 / kFar) continue;
      found.add(kind, at(checkpoint, *scale.stored, ErrorCode::kBadScale,
                         fmt::format("is {:.3g}, while the median of its {} sisters is {:.3g} "
                                     "(calibrate again)",
                                     scale.value, scales.size() - 1, middle)));
    }
    found.report(report);
  }
}

}  // namespace ingot::formats::rule_bodies
