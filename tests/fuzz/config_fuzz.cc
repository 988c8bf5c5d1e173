#include <stdexcept>
#include <string_view>

#include "formats/base/error.h"
#include "formats/config/model_config.h"
#include "formats/json/json.h"
#include "tests/fuzz/target.h"

namespace ingot::fuzz {

bool accepts(std::span<const std::byte> input) {
  const std::string_view text(reinterpret_cast<const char*>(input.data()), input.size());
  formats::ModelConfig config;
  try {
    config = formats::parse_model_config(text, "input");
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kInternal) throw std::logic_error(error.what());
    return false;
  }
  if (config.layer_is_moe.size() < config.num_hidden_layers)
    throw std::logic_error("a layer has no kind");
  // The document goes back to disk; the new text must be readable and mean the same.
  const auto again = formats::parse_model_config(formats::json_text(config.raw), "written");
  if (*again.raw != *config.raw) throw std::logic_error("the document changed in writing");
  return true;
}

}  // namespace ingot::fuzz
