#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "formats/family/family.h"
#include "formats/json/json_fwd.h"
#include "inference/model/step/step.h"

namespace ingot::verify {

/// The meaning of two config.json to the runtime: the numbers of the forward pass that it reads
/// from each, whatever the keys are called. Every key that it reads has its effect there, and
/// nowhere else. The choices of a conversion are left out: the quantization and the number of MTP
/// layers.
class ForwardPass {
 public:
  /// `family` must outlive this; null: it is unknown.
  ForwardPass(const formats::Family* family, const formats::Json& source,
              const formats::Json& output);

  /// True if the runtime has a forward pass for the source; without one, all else is false.
  [[nodiscard]] bool is_known() const { return source_.has_value(); }
  [[nodiscard]] bool is_same() const { return is_known() && source_ == output_; }
  /// The reason why the output has no forward pass, where the source has one; else empty.
  [[nodiscard]] const std::string& refusal() const { return refusal_; }
  /// True if the forward pass of that side would be another one, or none, without the value at
  /// `path` (`rope_parameters.factor`) of its config.
  [[nodiscard]] bool depends_on(bool of_output, std::string_view path) const;

 private:
  [[nodiscard]] std::optional<inference::ModelSpec> spec_of(const formats::Json& config,
                                                            std::string* refusal = nullptr) const;

  const formats::Family* family_;
  formats::JsonValue source_config_, output_config_;
  std::string refusal_;
  std::optional<inference::ModelSpec> source_, output_;
};

}  // namespace ingot::verify
