#include <vector>

#include <fmt/format.h>

#include "formats/base/checked.h"
#include "formats/base/error.h"
#include "formats/family/family.h"
#include "formats/family/rule_scope.h"

namespace ingot::formats {
namespace {

// Forty times the largest released model: beyond it a config is hostile, and a caller's list would
// not fit.
constexpr std::uint64_t kMaxExpected = std::uint64_t{1} << 22;

constexpr std::string_view kLayerMark = "{layer}";
constexpr std::string_view kMtpMark = "{mtp}";
constexpr std::string_view kExpertMark = "{expert}";

void replace(std::string& text, std::string_view mark, std::optional<std::uint32_t> number) {
  const std::size_t at = text.find(mark);
  if (at != std::string::npos && number) text.replace(at, mark.size(), std::to_string(*number));
}

bool is_per_expert(const TensorRule& rule) {
  return rule.pattern.find(kExpertMark) != std::string_view::npos;
}

class Walk {
 public:
  Walk(const Family& family, const ModelConfig& config, bool stacked,
       const std::function<void(const ExpectedTensor&)>& visit)
      : family_(family), config_(config), stacked_(stacked), visit_(visit) {}

  void level(std::optional<std::uint32_t> layer) {
    std::vector<const TensorRule*> of_experts;
    for (const TensorRule& rule : family_.rules) {
      if (!is_expected(rule, layer)) continue;
      if (is_per_expert(rule)) {
        of_experts.push_back(&rule);
      } else {
        send(rule, layer, std::nullopt);
      }
    }
    if (of_experts.empty()) return;
    const auto n_experts = narrow<std::uint32_t>(config_.n_routed_experts, "the number of experts");
    for (std::uint32_t expert = 0; expert < n_experts; ++expert) {
      for (const TensorRule* rule : of_experts) send(*rule, layer, expert);
    }
  }

 private:
  [[nodiscard]] bool is_expected(const TensorRule& rule, std::optional<std::uint32_t> layer) const {
    if (!scope_holds(rule.scope, config_, layer)) return false;
    if (rule.presence == Presence::kStacked) return stacked_;
    if (rule.presence == Presence::kPerExpert) return !stacked_;
    return promise_of(rule.presence, config_, layer) == Promise::kRequired;
  }

  void send(const TensorRule& rule, std::optional<std::uint32_t> layer,
            std::optional<std::uint32_t> expert) {
    if (++n_sent_ > kMaxExpected) {
      throw Error(ErrorCode::kLimit, fmt::format("promises more than {} tensors", kMaxExpected))
          .in_file("config.json");
    }
    ExpectedTensor tensor{
        .name = std::string(rule.pattern), .rule = &rule, .layer = layer, .expert = expert};
    replace(tensor.name, kLayerMark, layer);
    if (layer && *layer >= config_.num_hidden_layers) {
      replace(tensor.name, kMtpMark,
              static_cast<std::uint32_t>(*layer - config_.num_hidden_layers));
    }
    replace(tensor.name, kExpertMark, expert);
    visit_(tensor);
  }

  const Family& family_;
  const ModelConfig& config_;
  bool stacked_;
  const std::function<void(const ExpectedTensor&)>& visit_;
  std::uint64_t n_sent_ = 0;
};

}  // namespace

void for_each_expected(const Family& family, const ModelConfig& config, bool stacked,
                       const std::function<void(const ExpectedTensor&)>& visit) {
  Walk walk(family, config, stacked, visit);
  walk.level(std::nullopt);
  const auto n_layers = narrow<std::uint32_t>(layer_count(config), "the number of layers");
  for (std::uint32_t layer = 0; layer < n_layers; ++layer) walk.level(layer);
}

}  // namespace ingot::formats
