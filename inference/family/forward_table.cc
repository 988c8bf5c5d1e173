#include "inference/family/forward_table.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "formats/family/forward.h"
#include "formats/json/json.h"
#include "formats/text/spelling.h"
#include "inference/family/spec_parts.h"

// Families without C++: a file names kinds of mixers and mixtures, and where in config.json their
// parameters are.
//
// A kind is a function from parameters to its part of the ModelSpec. A parameter
// that the file does not name has the value of most families, so that common ones are short.
// Parameters are whole numbers (expressions of config.json, as widths are; flags are 0 or 1),
// reals, or words. A parameter that no kind has asked for is a fault of the file.

namespace ingot::inference {

using formats::Forward;
using formats::ForwardParameters;
using formats::ForwardPart;
using formats::ForwardValue;
using formats::Json;
using formats::ModelConfig;

namespace {

template <typename Value>
struct Word {
  std::string_view word;
  Value value;
};

constexpr std::array kHeadNorms = {
    Word<HeadNorm>{"none", HeadNorm::kNone}, Word<HeadNorm>{"each", HeadNorm::kPerHead},
    Word<HeadNorm>{"all", HeadNorm::kAllHeads}, Word<HeadNorm>{"plain", HeadNorm::kPlain}};
constexpr std::array kScores = {Word<GateScore>{"softmax", GateScore::kSoftmax},
                                Word<GateScore>{"sigmoid", GateScore::kSigmoid},
                                Word<GateScore>{"sqrt-softplus", GateScore::kSqrtSoftplus}};

class Parameters {
 public:
  Parameters(const formats::Family& family, const ModelConfig& config, const ForwardPart& part)
      : family_(family), config_(config), part_(part) {}

  [[noreturn]] void refuse(int line, const std::string& fact) const {
    throw Error(ErrorCode::kInvalidArgument, fmt::format("line {}: {}", line, fact))
        .in_file(fmt::format("family {}", family_.name));
  }

  [[nodiscard]] bool has(std::string_view name) { return find(name) != nullptr; }
  [[nodiscard]] std::uint64_t number(std::string_view name, std::uint64_t usual) {
    const ForwardValue* value = find(name);
    if (value == nullptr) return usual;
    if (value->text == "true" || value->text == "false") return value->text == "true" ? 1 : 0;
    try {
      return formats::Width::parse(value->text, family_.widths).size(config_);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kInvalidArgument) throw;
      refuse(value->line, error.message());
    }
  }
  [[nodiscard]] bool flag(std::string_view name, bool usual) {
    return number(name, usual ? 1 : 0) != 0;
  }
  /// A number, or `KEY default NUMBER`.
  [[nodiscard]] double real(std::string_view name, double usual) {
    const ForwardValue* value = find(name);
    if (value == nullptr) return usual;
    constexpr std::string_view kDefault = " default ";
    const std::size_t at = value->text.find(kDefault);
    if (at == std::string::npos) return literal(*value, value->text);
    const std::string key = value->text.substr(0, at);
    const double otherwise = literal(*value, value->text.substr(at + kDefault.size()));
    return spec_fields(config_).optional_real(key.c_str(), -1e9, 1e9).value_or(otherwise);
  }
  template <typename Value, std::size_t N>
  [[nodiscard]] Value word(std::string_view name, Value usual,
                           const std::array<Word<Value>, N>& words) {
    const ForwardValue* value = find(name);
    if (value == nullptr) return usual;
    const auto found = std::ranges::find(words, value->text, &Word<Value>::word);
    if (found != words.end()) return found->value;
    refuse(value->line, fmt::format("there is no {} '{}'{}", name, value->text,
                                    did_you_mean(value->text, words, &Word<Value>::word)));
  }
  /// The kind that the part is of.
  [[nodiscard]] std::string kind() {
    const ForwardValue* value = find("kind");
    if (value == nullptr) refuse(part_.line, "a mixer lacks its kind");
    return value->text;
  }
  void require_all_asked() const {
    for (const auto& [name, value] : part_.parameters) {
      if (std::ranges::find(asked_, name) != asked_.end()) continue;
      refuse(value.line,
             fmt::format("there is no parameter '{}'{}", name, did_you_mean(name, asked_)));
    }
  }
  [[nodiscard]] int line() const { return part_.line; }

 private:
  const ForwardValue* find(std::string_view name) {
    if (std::ranges::find(asked_, name) == asked_.end()) asked_.push_back(name);
    const auto found =
        std::ranges::find(part_.parameters, name, &ForwardParameters::value_type::first);
    return found == part_.parameters.end() ? nullptr : &found->second;
  }
  double literal(const ForwardValue& value, std::string_view text) const {
    double number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc() || end != text.data() + text.size())
      refuse(value.line, fmt::format("'{}' is no number", text));
    return number;
  }
  const formats::Family& family_;
  const ModelConfig& config_;
  const ForwardPart& part_;
  std::vector<std::string_view> asked_;
};

BodySpec grouped(const ModelConfig& given, Parameters& parameters) {
  ModelConfig config = given;
  config.head_dim = parameters.number("head_dim", config.head_dim);
  GroupedRope rope{.interleaved = parameters.flag("interleaved", false)};
  if (parameters.has("rotated_part"))
    rope.dim = rotated_dim(config, parameters.real("rotated_part", 1));
  GroupedSpec spec = grouped_attention(config, rope);
  spec.norms = parameters.word("head_norms", HeadNorm::kPerHead, kHeadNorms);
  if (!parameters.flag("has_head_norms", true)) spec.norms = HeadNorm::kNone;
  spec.norms_after_rope = parameters.flag("norms_after_rope", false);
  spec.output_gate = parameters.flag("output_gate", false);
  spec.head_gate = parameters.flag("head_gate", false);
  spec.sinks = parameters.flag("sinks", false);
  spec.window = static_cast<std::size_t>(parameters.number("window", 0));
  if (parameters.flag("growth", false)) spec.growth = query_growth(config);
  return spec;
}

BodySpec latent(const ModelConfig& config, Parameters& parameters) {
  LatentSpec spec = latent_attention(config);
  spec.head_gate = parameters.flag("head_gate", false);
  if (parameters.flag("growth", false)) spec.growth = query_growth(config);
  return spec;
}

struct Kind {
  std::string_view name;
  BodySpec (*body)(const ModelConfig& config, Parameters& parameters);
};
constexpr std::array kKinds = {Kind{"grouped", grouped}, Kind{"latent", latent}};

BodySpec mixer_of(const ModelConfig& config, Parameters& parameters) {
  const std::string name = parameters.kind();
  const auto kind = std::ranges::find(kKinds, name, &Kind::name);
  if (kind == kKinds.end()) {
    parameters.refuse(parameters.line(), fmt::format("there is no kind of mixer '{}'{}", name,
                                                     did_you_mean(name, kKinds, &Kind::name)));
  }
  BodySpec body = kind->body(config, parameters);
  parameters.require_all_asked();
  return body;
}

void set_mixture(Parameters& parameters, Decoder& model) {
  if (!model.mixture) return;
  RouterSpec& router = model.mixture->router;
  router.score = parameters.word("score", GateScore::kSoftmax, kScores);
  router.correction_bias = parameters.flag("selection_bias", false);
  router.normalize = parameters.flag("normalize", false);
  router.scale = static_cast<float>(parameters.real("scale", 1));
  if (!parameters.flag("in_groups", true)) router.groups = router.topk_groups = 1;
  if (parameters.has("shared_width")) model.share(parameters.number("shared_width", 0));
  parameters.require_all_asked();
}

// Experts as wide as the file says, before anything asks for the config's own word for it.
ModelConfig with_expert_width(const formats::Family& family, const ModelConfig& config) {
  ModelConfig known = config;
  if (!family.forward->mixture) return known;
  ForwardPart part = *family.forward->mixture;
  Parameters parameters(family, config, part);
  known.moe_intermediate_size = parameters.number("width", config.moe_intermediate_size);
  return known;
}

bool is_value(const Json& value, const std::string& text) {
  if (text == "true" || text == "false") {
    if (value.is_number()) return (value != 0) == (text == "true");
    return value == (text == "true");
  }
  return value.is_string() ? value.get_ref<const std::string&>() == text : value.dump() == text;
}

void require_only(const formats::Family& family, const ModelConfig& config) {
  for (const auto& [key, wanted] : family.forward->only) {
    const Json& value = formats::config_value(config, key);
    if (value.is_null() || is_value(value, wanted.text)) continue;
    const std::string is =
        value.is_string() ? fmt::format("'{}'", value.get<std::string>()) : value.dump();
    refuse(ErrorCode::kUnsupported,
           fmt::format("'{}' is {}; the forward pass of family {} is for '{}'", key, is,
                       family.name, wanted.text));
  }
}

}  // namespace

ModelSpec spec_of_file(const formats::Family& family, const ModelConfig& given) {
  const Forward& forward = *family.forward;
  require_only(family, given);
  const ModelConfig config = with_expert_width(family, given);
  Decoder model(config);
  if (forward.mtp != "joined") model.leave_out_mtp();
  if (forward.mtp == "unsaid") model.spec.leaves_out_mtp = true;
  if (forward.mixture) {
    Parameters parameters(family, config, *forward.mixture);
    static_cast<void>(parameters.has("width"));
    const bool norms_output = parameters.flag("norms_output", false);
    set_mixture(parameters, model);
    if (model.mixture) model.norms_mixture = norms_output;
  } else if (model.mixture) {
    refuse(ErrorCode::kUnsupported,
           fmt::format("has {} experts; family {} has none", config.n_routed_experts, family.name));
  }
  std::vector<BodySpec> mixers;
  for (const ForwardPart& part : forward.mixers) {
    Parameters parameters(family, config, part);
    mixers.push_back(mixer_of(config, parameters));
  }
  return model.with([&](std::size_t l) {
    for (std::size_t i = 0; i < mixers.size(); ++i) {
      if (formats::is_in_layer(forward.mixers[i].where, config, static_cast<std::uint32_t>(l)))
        return mixers[i];
    }
    refuse(ErrorCode::kInvalidArgument,
           fmt::format("the forward pass of family {} has no mixer for layer {}", family.name, l));
  });
}

}  // namespace ingot::inference
