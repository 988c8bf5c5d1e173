#include <stdexcept>
#include <string_view>

#include "formats/base/error.h"
#include "formats/config/model_config.h"
#include "formats/family/family_yaml.h"
#include "tests/fuzz/target.h"

namespace ingot::fuzz {

bool accepts(std::span<const std::byte> input) {
  using namespace formats;
  const std::string_view text(reinterpret_cast<const char*>(input.data()), input.size());
  static const ModelConfig kConfig = parse_model_config(
      R"({"num_hidden_layers": 3, "num_nextn_predict_layers": 1, "num_experts": 2,
          "hidden_size": 8, "first_k_dense_replace": 1, "layer_types": ["a", "b", "a"]})",
      "config.json");
  try {
    const auto table = parse_family(text, "input");
    const NameGrammar grammar(table->family(), kConfig);
    // A name that is promised is known, and as a row of the same name.
    for_each_expected(table->family(), kConfig, false, [&](const ExpectedTensor& tensor) {
      const auto match = grammar.match(tensor.name);
      if (!match || match->rule->pattern != tensor.rule->pattern)
        throw std::logic_error("a promised name is not known");
      if (!tensor.rule->any_shape) (void)rule_shape(*tensor.rule, kConfig, tensor.layer);
    });
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kInternal) throw std::logic_error(error.what());
    return false;
  }
  return true;
}

}  // namespace ingot::fuzz
