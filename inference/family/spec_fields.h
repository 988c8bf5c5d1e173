#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "formats/config/model_config.h"

namespace ingot::inference {

/// Keys of config.json that only the forward pass needs. All throw kCorrupt naming the key.
class SpecFields {
 public:
  /// `config` must outlive this.
  explicit SpecFields(const formats::ModelConfig& config) : config_(config) {}

  [[nodiscard]] double real(std::string_view key, double missing) const;
  [[nodiscard]] bool boolean(std::string_view key, bool missing) const;
  [[nodiscard]] std::size_t count(std::string_view key, std::size_t missing) const;
  [[nodiscard]] std::string text(std::string_view key, std::string_view missing) const;
  /// kUnsupported naming the key unless its value is `only` (or it is missing).
  void require_text(std::string_view key, std::string_view only) const;

 private:
  const formats::ModelConfig& config_;
};

}  // namespace ingot::inference
