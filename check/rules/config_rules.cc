#include "check/rules/rule_input.h"
#include "engines/modules/modules.h"
#include "formats/config/nested_config.h"
#include "formats/container/safetensors.h"
#include "formats/dialect/dialect.h"
#include "formats/dialect/dialect_words.h"
#include "formats/dialect/modelopt.h"

// Files and JSON in any dialect: what loaders open first, spellings that disagree, and words about
// quantization that change what is computed.

namespace ingot::check {
namespace {

// Keys that have no effect if their value is false.
constexpr std::array<std::string_view, 2> kIdleWhenFalse = {"act_per_tensor", "weight_per_tensor"};

/// A dialect with words in config.json, the description file of which is there too; null: none.
const formats::Dialect* described_dialect(const RuleInput& input) {
  const auto rows = formats::dialects();
  const auto row = std::ranges::find_if(rows, [&](const formats::Dialect* dialect) {
    return !dialect->methods.front().empty() && !dialect->description_file.empty() &&
           input.checkpoint.has_file(dialect->description_file);
  });
  return row == rows.end() ? nullptr : *row;
}

void metadata_format(const RuleInput& input) {
  constexpr std::string_view kRemedy = "write the file again with {\"format\":\"pt\"}";
  constexpr std::array<std::string_view, 4> kFormats = {"pt", "tf", "flax", "mlx"};
  const Checkpoint& checkpoint = input.checkpoint;
  for (std::uint32_t i = 0; i < checkpoint.files().size(); ++i) {
    const formats::SourceFile& file = checkpoint.files()[i];
    // No header to be read, as the structure has said; or one that is planned, and so is ours.
    if (file.data_start == 0 || !checkpoint.has_data(i)) continue;
    const formats::SafetensorsHeader header =
        formats::parse_safetensors_header(checkpoint.header_bytes(i), file.n_bytes, file.name);
    const auto format = std::ranges::find(
        header.metadata, "format", [](const auto& entry) -> auto& { return entry.first; });
    if (format == header.metadata.end()) {
      input.report_file(file.name, kNotFound, "__metadata__ has no format ({})", kRemedy);
    } else if (!is_in(kFormats, format->second)) {
      input.report_file(file.name, kUnsupported, "__metadata__.format is '{}' ({})", format->second,
                        kRemedy);
    }
  }
}

void entry_point(const RuleInput& input) {
  constexpr const char* kIndex = "model.safetensors.index.json";
  // An index that cannot be read is there all the same.
  if (input.checkpoint.has_index() || input.checkpoint.has_file(kIndex)) return;
  if (input.checkpoint.files().size() == 1 && input.checkpoint.has_file("model.safetensors"))
    return;
  input.report_file(kIndex, kNotFound,
                    "is missing, and there is no single model.safetensors instead");
}

void no_adapter(const RuleInput& input) {
  constexpr std::string_view kAdapter = "adapter_config.json";
  if (input.checkpoint.has_file(kAdapter))
    input.report_file(
        kAdapter, kMismatch,
        "makes readers look for another model, of which this were a change (remove it)");
}

void contradiction(const RuleInput& input) {
  const formats::ConfigMeaning meaning(input.config().raw);
  for (const std::string& sentence : meaning.contradictions())
    input.report_config(kMismatch, "{}", sentence);
}

void one_block(const RuleInput& input) {
  const std::vector<std::string> places = formats::quantization_blocks(*input.config().raw);
  if (places.size() > 1)
    input.report_config(kDuplicate,
                        "describes the quantization {} times ({}): engines read {}, other readers "
                        "another (ingot repair leaves one)",
                        places.size(), fmt::join(places, ", "),
                        formats::json_member(*input.config().raw, "quantization_config").is_null()
                            ? "the text model's"
                            : "quantization_config");
  // DeepSeek-V4's NVFP4 experts are in a block of FP8, and ModelOpt, which makes them, writes both.
  const formats::Dialect* described = described_dialect(input);
  if (described != nullptr && &input.dialect() != described && input.said() != nullptr &&
      !input.said()->quant_method.empty() && !input.block().contains("moe_quant_algo"))
    input.report_file(described->description_file, kDuplicate,
                      "describes the quantization next to config.json, whose quant_method is {}: "
                      "TensorRT-LLM reads this file first (ingot repair leaves it out)",
                      input.said()->quant_method);
}

// SGLang, configs/model_config.py's _parse_quant_hf_config, and transformers ask the whole config
// only. Classes of some models lift the block of their text model.
void block_on_top(const RuleInput& input) {
  const formats::TextNesting& nesting = input.config().text;
  // Without a block at the top SGLang reads ModelOpt's file.
  if (nesting.key.empty() || nesting.holds_quantization || described_dialect(input) != nullptr)
    return;
  const Json& raw = *input.config().raw;
  if (formats::json_member(raw, "quantization_config").is_null() &&
      formats::json_member(raw, "compression_config").is_null() &&
      !formats::json_member(formats::text_object(raw, nesting.key), "quantization_config")
           .is_null())
    input.report_config(kMismatch,
                        "has quantization_config in {}, where vLLM looks and others do not "
                        "(ingot repair puts it at the top)",
                        nesting.key);
}

void known_keys(const RuleInput& input) {
  const formats::Dialect& dialect = input.dialect();
  // Other methods than the dialects' have keys of their own, and are refused elsewhere.
  if (dialect.known_keys.front().empty() || input.said() == nullptr ||
      input.said()->quant_method.empty() || formats::known_dialect(input.config()) != &dialect)
    return;
  for (const auto& [key, value] : input.block().items()) {
    // Words about the cache have rules of their own.
    if (value.is_null() || key.empty() || is_in(dialect.known_keys, key) ||
        key.starts_with("kv_cache"))
      continue;
    const bool is_native = formats::is_native(dialect, input.checkpoint.family());
    if (is_native && is_in(dialect.native_keys, key)) continue;
    if (value == false && is_in(kIdleWhenFalse, key)) continue;
    input.report_config(kUnsupported,
                        "quantization_config has a key '{}' ({}) that this version does not know",
                        key, config_text(value));
  }
}

void input_scale_range(const RuleInput& input) {
  constexpr float kFar = 4096;
  struct Scale {
    const LogicalTensor* tensor;
    const StoredTensor* stored;
    float value;
  };
  std::vector<Scale> scales;
  std::unordered_map<const TensorRule*, std::vector<float>> by_kind;
  for (const LogicalTensor& tensor : input.weights()) {
    const StoredTensor* stored = input.part_of(tensor, Part::kInputScale);
    const auto value = stored == nullptr ? std::nullopt : input.first_number(*stored);
    if (!value) continue;
    if (is_bad_scale(*value)) {
      input.report_at(*stored, kBadScale, "is {}; it must be finite and above zero", *value);
      continue;
    }
    scales.push_back({&tensor, stored, *value});
    by_kind[tensor.rule].push_back(*value);
  }
  for (auto& [kind, values] : by_kind) std::ranges::sort(values);
  for (const auto& [tensor, stored, value] : scales) {
    const std::vector<float>& sisters = by_kind.at(tensor->rule);
    const float median = sisters[sisters.size() / 2];
    if (sisters.size() > 2 && (value / median >= kFar || value / median <= 1 / kFar))
      input.report_kind(*tensor, *stored, kBadScale,
                        "is {:.3g}, while the median of its {} sisters is {:.3g} (calibrate again)",
                        value, sisters.size() - 1, median);
  }
}

void list_names_nothing(const RuleInput& input) {
  if (input.checkpoint.slicing() != nullptr) return;
  std::optional<engines::ListableNames> modules;
  for (const char* key :
       {"ignore", "modules_to_not_convert", "ignored_layers", "exclude_modules"}) {
    const std::vector<std::string> entries = strings_at(input.block(), key);
    if (entries.empty()) continue;
    if (!modules) modules.emplace(input.checkpoint, input.facts.modules);
    const auto is_idle = [&](const std::string& entry) {
      return !modules->has_any(entry) && !input.checkpoint.may_have_lost(entry);
    };
    const auto first = std::ranges::find_if(entries, is_idle);
    if (first == entries.end()) continue;
    const auto n_idle = std::count_if(first, entries.end(), is_idle);
    const std::string which = std::cmp_equal(n_idle, entries.size())
                                  ? fmt::format("quantization_config.{} names", key)
                                  : fmt::format("{} of {} entries of quantization_config.{} name",
                                                n_idle, entries.size(), key);
    input.report_config(kMismatch,
                        "{} no module that is here, '{}' for one (misspelled, of another "
                        "checkpoint, or without this one's prefix?)",
                        which, *first);
  }
}

void config_without_weights(const RuleInput& input) {
  if (!has_no_codes(input.checkpoint)) return;
  if (input.said() != nullptr && !input.said()->quant_method.empty()) {
    if (text_at(input.block(), "format") == "dense") return;
    return input.report_config(
        kMismatch,
        "promises weights quantized by method {}, but none is (remove quantization_config)",
        input.said()->quant_method);
  }
  const std::string algo =
      formats::text_at(formats::modelopt_body(input.checkpoint.description()), "quant_algo");
  if (!algo.empty())
    input.report_file(input.dialect().description_file, kMismatch,
                      "promises weights quantized as {}, but none is (remove the file)", algo);
}

// Without words in config.json servers read none of these files, tools of quantization do.
void leftover_description(const RuleInput& input) {
  if (!has_no_codes(input.checkpoint)) return;
  for (const formats::SideFile& file : input.checkpoint.side_files()) {
    // A description of msmodelslim is one of a dialect, with rules of its own.
    if (formats::is_tool_description(file.path) && input.dialect().description_file != file.path)
      input.report_file(file.path, kMismatch,
                        "has the settings of a quantization, but no weight is quantized (remove "
                        "the file)");
  }
}

constexpr LoaderRule kConfigRows[] = {
    {"container.metadata-format", "", "transformers 4", kWarning,
     "__metadata__.format of every file is pt, tf, flax or mlx", metadata_format},
    {"container.entry-point", "", "all", kError,
     "there is an index, or one file named model.safetensors", entry_point},
    {"container.no-adapter", "", "transformers", kError, "a whole model has no adapter_config.json",
     no_adapter},
    {"config.contradiction", "", "one reader or another", kError,
     "spellings of one thing agree, and derived keys agree with their origin", contradiction},
    {"quantized.one-block", "", "one reader or another", kWarning,
     "files and keys describe the quantization once", one_block},
    {"quantized.block-on-top", "", "SGLang, transformers", kWarning,
     "quantization_config is in the whole config, unless the model's class looks in the text "
     "model's",
     block_on_top, kAnyScheme, false, kIsAllowable},
    {"quantized.known-keys", "", "one reader or another", kWarning,
     "quantization_config has known keys only", known_keys},
    {"quantized.list-names-nothing", "", "all", kWarning,
     "every entry of a list of plain modules names one of the checkpoint", list_names_nothing},
    {"quantized.input-scale-range", "", "all", kError,
     "input scales are above zero, and within 2^12 of the median of their kind", input_scale_range,
     kAnyScheme, kReadsValues},
    {"quantized.config-without-weights", "", "all", kError,
     "a checkpoint whose JSON describes a quantization has quantized weights",
     config_without_weights, kAnyScheme, false, false, std::nullopt, /*except=*/"deepseek"},
    {"quantized.leftover-file", "", "one reader or another", kWarning,
     "next to plain weights only there is no file with settings of a quantization",
     leftover_description},
};

}  // namespace

bool has_no_codes(const Checkpoint& checkpoint) {
  // By dtype: codes that could not be understood are no sign of a cast.
  return !checkpoint.tensors().empty() && !may_hide_codes(checkpoint) &&
         std::ranges::none_of(checkpoint.stored(), [](const StoredTensor& tensor) {
           const bool is_narrow = dtype_bits(tensor.dtype) <= 8 && tensor.dtype != DType::kBool;
           return tensor.shape.size() > 1 && (is_narrow || tensor.dtype == DType::kI32);
         });
}

const RuleTable kConfigRules = kConfigRows;

}  // namespace ingot::check
