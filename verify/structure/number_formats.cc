#include <algorithm>

#include <fmt/format.h>

#include "formats/config/config_meaning.h"
#include "formats/json/json.h"
#include "formats/storage/block_scales.h"
#include "verify/structure/structure_comparisons.h"

namespace ingot::verify {

using formats::Checkpoint;
using formats::config_member;
using formats::config_text;
using formats::Json;
using formats::LogicalTensor;
using formats::SchemeId;

namespace {

constexpr std::string_view kRule = "structure.config";

const Json& dtype_of(const Json& config) {
  const Json& dtype = config_member(config, "dtype");
  return dtype.is_null() ? config_member(config, "torch_dtype") : dtype;
}

// As config.json calls it.
std::string_view dtype_word(SchemeId scheme) {
  switch (scheme) {
    case SchemeId::kBf16:
      return "bfloat16";
    case SchemeId::kF16:
      return "float16";
    case SchemeId::kF32:
      return "float32";
    default:
      return {};
  }
}

class Comparison {
 public:
  Comparison(const Checkpoint& source, const Checkpoint& output, const OutputConfig& config,
             StructureFindings& found)
      : source_(source), output_(output), config_(config), found_(found) {}

  void run() {
    dtype();
    cache();
    scale_format();
  }

 private:
  [[nodiscard]] Error fact(std::string message) const {
    return Error(ErrorCode::kMismatch, std::move(message)).in_file(config_.file);
  }

  // Engines compute in it. It is the source's, or that of the plain weights where these were cast.
  void dtype() {
    const Json& before = dtype_of(source_.config().raw);
    const Json& after = dtype_of(config_.config);
    if (before == after) return;
    const std::string message =
        fmt::format("dtype is {}, in the source {}", config_text(after), config_text(before));
    after.is_null() || is_dtype_of_plain_weights(after) ? found_.warning(kRule, fact(message))
                                                        : found_.error(kRule, fact(message));
  }

  [[nodiscard]] bool is_dtype_of_plain_weights(const Json& dtype) const {
    const auto tensors = output_.tensors();
    return std::any_of(tensors.begin(), tensors.end(), [&](const LogicalTensor& tensor) {
      return tensor.shape.size() > 1 && dtype == dtype_word(tensor.encoding.scheme);
    });
  }

  void cache() {
    const auto words = [](const Json& config, const Json& description) {
      std::string found = formats::cache_words(config_member(config, "quantization_config"));
      return found.empty() ? formats::cache_words(description) : found;
    };
    const std::string before = words(source_.config().raw, source_.description());
    const std::string after = words(config_.config, output_.description());
    if (after.empty() || before == after) return;
    found_.error(kRule, fact(fmt::format("{}, in the source {}: the cache of keys and values would "
                                         "be quantized otherwise",
                                         after, before.empty() ? "nothing of the kind" : before)));
  }

  // Scales that are powers of two were made so, and engines then quantize activations likewise.
  void scale_format() {
    constexpr const char* kKey = "scale_fmt";
    const auto is_said = [&](const Json& config) {
      return !config_member(config_member(config, "quantization_config"), kKey).is_null();
    };
    if (output_.dialect().name != "deepseek" || is_said(config_.config)) return;
    if (!formats::all_scales_are_powers_of_two(output_)) return;
    const bool was_unsaid = source_.dialect().name == "deepseek" && source_.config().quantization &&
                            !is_said(source_.config().raw);
    if (was_unsaid) return;
    found_.error(kRule, fact("quantization_config has no scale_fmt, but every scale is a power of "
                             "two (\"ue8m0\")"));
  }

  const Checkpoint& source_;
  const Checkpoint& output_;
  const OutputConfig& config_;
  StructureFindings& found_;
};

}  // namespace

void compare_number_formats(const Checkpoint& source, const Checkpoint& output,
                            const OutputConfig& config, StructureFindings& found) {
  if (!source.config().raw->is_object() || !config.config.is_object()) return;
  Comparison(source, output, config, found).run();
}

}  // namespace ingot::verify
