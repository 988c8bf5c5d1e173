#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "formats/checkpoint/checkpoint_listing.h"
#include "formats/config/config_meaning.h"
#include "formats/config/keys.h"
#include "formats/config/nested_config.h"
#include "formats/dialect/cache_words.h"
#include "formats/dialect/dialect_words.h"
#include "formats/json/json.h"
#include "formats/storage/block_scales.h"
#include "inference/family/model_family.h"
#include "verify/structure/structure_comparisons.h"

namespace ingot::verify {

using formats::Checkpoint;
using formats::config_text;
using formats::ConfigMeaning;
using formats::ConfigValue;
using formats::Json;
using formats::json_member;
using formats::kConfigName;
using formats::LogicalTensor;
using formats::SchemeId;

namespace {

// The object that holds the text model's keys, and the whole: keys may be in either.
std::vector<Json*> sections_of(Json& config) {
  std::vector<Json*> sections = {&config};
  if (Json& text = formats::text_section(config); &text != &config) sections.push_back(&text);
  return sections;
}

void take_over(const std::string& key, const Json& from, Json& to) {
  const Json& value = json_member(from, key);
  value.is_null() ? static_cast<void>(to.erase(key)) : static_cast<void>(to[key] = value);
}

// The value at a path of keys is taken out; false where there is none.
bool erase_path(Json& config, std::string_view path) {
  Json* object = &config;
  for (;;) {
    const std::size_t dot = path.find('.');
    const std::string key(path.substr(0, dot));
    if (!object->is_object() || !object->contains(key)) return false;
    if (dot == std::string_view::npos) return object->erase(key) > 0;
    object = &object->at(key);
    path.remove_prefix(dot + 1);
  }
}

}  // namespace

ForwardPass::ForwardPass(const formats::Family* family, const Json& source, const Json& output)
    : family_(family) {
  if (family == nullptr || !source.is_object() || !output.is_object()) return;
  Json from = source, to = output;
  const std::vector<Json*> ours = sections_of(from), theirs = sections_of(to);
  // The inner object first: a key that is added to the outer one moves it.
  for (std::size_t i = std::min(ours.size(), theirs.size()); i-- > 0;) {
    take_over("quantization_config", *ours[i], *theirs[i]);
    for (const std::string& key : formats::find_key("num_nextn_predict_layers")->spellings)
      take_over(key, *ours[i], *theirs[i]);
  }
  source_ = spec_of(from);
  if (source_) output_ = spec_of(to, &refusal_);
  source_config_ = std::move(from);
  output_config_ = std::move(to);
}

std::optional<inference::ModelSpec> ForwardPass::spec_of(const Json& config,
                                                         std::string* refusal) const {
  try {
    return inference::model_spec(
        *family_, formats::parse_model_config(formats::json_text(config), kConfigName));
  } catch (const Error& error) {
    if (refusal != nullptr) *refusal = error.message();
    return std::nullopt;
  }
}

bool ForwardPass::depends_on(bool of_output, std::string_view path) const {
  if (!is_known()) return false;
  Json config = of_output ? output_config_ : source_config_;
  return erase_path(config, path) && spec_of(config) != (of_output ? output_ : source_);
}

namespace {

constexpr std::string_view kRule = "structure.config";
constexpr std::array<std::string_view, 3> kPadded = {"vocab_size", "intermediate_size",
                                                     "moe_intermediate_size"};

const Json& text_of(const Json& config) {
  const std::string key = formats::text_nesting(config).key;
  return key.empty() ? config : formats::text_object(config, key);
}

// The config of the output, with the source's widths where cuts have padded them.
Json without_padding(const Json& source, Json config) {
  Json& to = formats::text_section(config);
  const Json& from = text_of(source);
  for (const std::string_view key : kPadded) {
    const Json& before = json_member(from, key);
    const Json& after = json_member(to, key);
    if (before.is_number_unsigned() && after.is_number_unsigned() &&
        after.get<std::uint64_t>() >= before.get<std::uint64_t>())
      to[std::string(key)] = before;
  }
  return config;
}

// The config of the output, with the source's word for a head that is stored and counts.
Json with_tied_head(const Json& source, Json config) {
  constexpr const char* kTied = "tie_word_embeddings";
  const auto say = [&](const Json& from, Json& to) {
    if (json_member(from, kTied) == true) to[kTied] = true;
  };
  say(source, config);
  if (Json& text = formats::text_section(config); &text != &config) say(text_of(source), text);
  return config;
}

// The main layers of a model that has no others; nullopt where MTP layers are promised.
std::optional<std::size_t> layers_without_mtp(const Json& config) {
  const Json& keys = text_of(config);
  const Json& mtp = json_member(keys, formats::mtp_layer_key(keys));
  const Json& layers = json_member(keys, "num_hidden_layers");
  if (!formats::says_nothing(mtp) || !layers.is_number_unsigned()) return std::nullopt;
  return layers.get<std::size_t>();
}

// True if a list of the source goes on over MTP layers behind the first `n_layers`, and the output
// has only the values of these, as a list or as one value for all.
bool is_cut(const Json& source, const Json& output, std::size_t n_layers) {
  if (!source.is_array() || source.size() <= n_layers) return false;
  if (output.is_array() && output.size() != n_layers) return false;
  for (std::size_t i = 0; i < n_layers; ++i) {
    if (source[i] != (output.is_array() ? output[i] : output)) return false;
  }
  return true;
}

// A side's value of a meaning; null where it has none of its own.
const ConfigValue* value_of(const ConfigMeaning::Values& side, std::string_view name) {
  const auto found = side.find(name);
  return found == side.end() ? nullptr : &found->second;
}

// Compares the model parameters of two config.json.
class ParameterComparison {
 public:
  using Severity = check::Severity;
  ParameterComparison(const Json& source, const Json& output, const OutputConfig& where,
                      check::Findings& found)
      : source_(source), output_(output), where_(where), found_(found) {}

  void meanings() {
    forward_.emplace(where_.family, source_, output_);
    layers_ = layers_without_mtp(output_);
    const ConfigMeaning before(source_), after(output_);
    compare_all(before.known(), after.known(), /*is_known=*/true);
    compare_all(before.unknown(), after.unknown(), /*is_known=*/false);
    if (!forward_->is_known() || forward_->is_same() || has_errors_) return;
    tell(Severity::kError,
         forward_->refusal().empty()
             ? "means another forward pass than the source's (generate computes something else)"
             : fmt::format("means no forward pass, as the source's does: {}", forward_->refusal()));
  }

  // DeepSeek's own config, of which every key counts.
  void keys() {
    std::set<std::string> names;
    for (const Json* side : {&source_, &output_}) {
      for (const auto& [key, value] : side->items()) names.insert(key);
    }
    for (const std::string& key : names) {
      const Json& before = json_member(source_, key);
      const Json& after = json_member(output_, key);
      if (before != after) tell(Severity::kError, differs(key, before, after));
    }
  }

 private:
  void compare_all(const ConfigMeaning::Values& from, const ConfigMeaning::Values& to,
                   bool is_known) {
    std::set<std::string_view> names;
    for (const auto* side : {&from, &to}) {
      for (const auto& [name, said] : *side) names.insert(name);
    }
    for (const std::string_view name : names)
      compare(value_of(from, name), value_of(to, name), is_known);
  }

  static std::string differs(const std::string& path, const Json& source, const Json& output) {
    return fmt::format("{} is {}, in the source {}", path, config_text(output),
                       config_text(source));
  }

  void tell(Severity severity, std::string message) {
    has_errors_ = has_errors_ || severity == Severity::kError;
    found_.tell(severity, kRule,
                Error(ErrorCode::kMismatch, std::move(message)).in_file(where_.file));
  }

  // A key that is unknown here may be new to the format, or meaningless; one that both sides have
  // with other values was changed on purpose.
  void compare(const ConfigValue* from, const ConfigValue* to, bool is_known) {
    static const Json absent = nullptr;
    const Json& before = from == nullptr ? absent : *from->value;
    const Json& after = to == nullptr ? absent : *to->value;
    if (before == after || (layers_ && is_cut(before, after, *layers_))) return;
    const std::string& path = (to == nullptr ? from : to)->path;
    // Fused projections are written apart.
    if (to == nullptr && path == formats::kProjectionLayout) return;
    const bool is_of_both = from != nullptr && to != nullptr;
    const bool is_read = !is_of_both && forward_->depends_on(/*of_output=*/from == nullptr, path);
    if (is_read && forward_->is_same()) return;  // the other side says it in another key
    std::string message = differs(path, before, after);
    if (is_of_both && from->path != to->path) message += fmt::format(" ({})", from->path);
    const bool is_change = is_known || is_of_both || is_read;
    if (!is_change) message += ": a key that this version does not know";
    tell(is_change ? Severity::kError : Severity::kWarning, std::move(message));
  }

  const Json& source_;
  const Json& output_;
  const OutputConfig& where_;
  check::Findings& found_;
  std::optional<ForwardPass> forward_;
  std::optional<std::size_t> layers_;  // of an output without MTP layers
  bool has_errors_ = false;
};

const Json& dtype_of(const Json& config) {
  const Json& dtype = json_member(config, "dtype");
  return dtype.is_null() ? json_member(config, "torch_dtype") : dtype;
}

// Returns the word of config.json for BF16, F16 or F32; empty for other schemes.
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

struct NumberFormats {
  const Checkpoint& source;
  const Checkpoint& output;
  const OutputConfig& config;
  check::Findings& found;

  [[nodiscard]] Error fact(std::string message) const {
    return Error(ErrorCode::kMismatch, std::move(message)).in_file(config.file);
  }

  // Engines compute in it. It is the source's, or that of the plain weights where these were cast.
  void dtype() {
    const Json& before = dtype_of(source.config().raw);
    const Json& after = dtype_of(config.config);
    if (before == after) return;
    const std::string message =
        fmt::format("dtype is {}, in the source {}", config_text(after), config_text(before));
    after.is_null() || is_dtype_of_plain_weights(after) ? found.warning(kRule, fact(message))
                                                        : found.error(kRule, fact(message));
  }

  [[nodiscard]] bool is_dtype_of_plain_weights(const Json& dtype) const {
    const auto tensors = output.tensors();
    return std::any_of(tensors.begin(), tensors.end(), [&](const LogicalTensor& tensor) {
      return tensor.shape.size() > 1 && dtype == dtype_word(tensor.encoding.scheme);
    });
  }

  // DeepSeek-V4 says whether its routed experts are FP4 or FP8, and engines use only this key.
  void expert_dtype() {
    const Json& before = json_member(source.config().raw, "expert_dtype");
    const Json& after = json_member(config.config, "expert_dtype");
    if (!config.is_hub || (before.is_null() && after.is_null())) return;
    const auto tensors = output.tensors();
    const std::uint64_t n_layers = output.config().num_hidden_layers;
    const auto expert = std::ranges::find_if(tensors, [&](const LogicalTensor& tensor) {
      return tensor.layer && *tensor.layer < n_layers && formats::is_routed_expert(role_of(tensor));
    });
    if (expert == tensors.end()) return;
    const SchemeId scheme = expert->encoding.scheme;
    const bool is_fp4 = formats::scheme_facts(scheme).code == formats::CodeKind::kE2m1;
    const bool is_named = is_fp4 || scheme == SchemeId::kFp8Block;
    const Json wanted = !is_named ? Json() : is_fp4 ? Json("fp4") : Json("fp8");
    if (after == wanted) return;
    const std::string message = fmt::format("expert_dtype is {}, but the routed experts are {}",
                                            config_text(after), formats::scheme_facts(scheme).name);
    is_named ? found.error(kRule, fact(message)) : found.warning(kRule, fact(message));
  }

  // Dialects have other words for the same.
  [[nodiscard]] bool have_same_cache() const {
    using formats::declared_cache;
    const auto declared = [](const Json& said, const Json& description) {
      return std::max(declared_cache(formats::quantization_block(said)),
                      declared_cache(description));
    };
    const auto before = declared(source.config().raw, source.description());
    return before == formats::DeclaredCache::kFp8 &&
           before == declared(config.config, output.description());
  }

  void cache() {
    if (config.makes_caches || have_same_cache()) return;
    const auto words = [](const Json& said, const Json& description) {
      std::string text = formats::cache_words(formats::quantization_block(said));
      return text.empty() ? formats::cache_words(description) : text;
    };
    const std::string before = words(source.config().raw, source.description());
    const std::string after = words(config.config, output.description());
    if (after.empty() || before == after) return;
    found.error(kRule, fact(fmt::format("{}, in the source {}: the cache of keys and values would "
                                        "be quantized differently",
                                        after, before.empty() ? "no such key" : before)));
  }

  // Scales that are powers of two were made so, and engines then quantize activations likewise.
  void scale_format() {
    const std::string_view key = output.dialect().scale_format_key;
    const auto is_said = [&](const Json& said) {
      return !json_member(formats::quantization_block(said), key).is_null();
    };
    if (key.empty() || is_said(config.config)) return;
    if (!formats::all_scales_are_powers_of_two(output)) return;
    const bool was_unsaid = source.dialect().scale_format_key == key &&
                            source.config().quantization && !is_said(source.config().raw);
    if (was_unsaid) return;
    found.error(kRule, fact(fmt::format("quantization_config has no {}, but every scale is a power "
                                        "of two (\"ue8m0\")",
                                        key)));
  }
};

}  // namespace

void compare_model_parameters(const Json& source, const OutputConfig& output,
                              check::Findings& found) {
  if (!source.is_object()) return;
  if (!output.config.is_object()) {
    found.error(kRule, Error(ErrorCode::kCorrupt, "is not a JSON object").in_file(output.file));
    return;
  }
  Json compared = output.may_be_padded ? without_padding(source, output.config) : output.config;
  if (output.may_untie_head) compared = with_tied_head(source, std::move(compared));
  ParameterComparison comparison(source, compared, output, found);
  output.is_hub ? comparison.meanings() : comparison.keys();
}

void compare_number_formats(const Checkpoint& source, const Checkpoint& output,
                            const OutputConfig& config, check::Findings& found) {
  if (!source.config().raw->is_object() || !config.config.is_object()) return;
  NumberFormats formats{.source = source, .output = output, .config = config, .found = found};
  formats.dtype();
  formats.expert_dtype();
  formats.cache();
  formats.scale_format();
}

}  // namespace ingot::verify
