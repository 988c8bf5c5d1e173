#pragma once

#include <string>
#include <string_view>

#include "formats/dialect/dialect.h"

namespace ingot::formats {

/// The treatment of activations for each weight of a source, by its files; kept weights keep it.
class SourceActivations {
 public:
  /// `description` is the dialect's file, or null; `config` and `description` must outlive this.
  /// Throws kCorrupt when the config's lists are none.
  SourceActivations(const ModelConfig& config, const Dialect& dialect, const Json& description);

  /// The block's activations for the module; where it has none, static if scales of activations are
  /// stored, else the dialect's default; FP4 that the dialect itself does not write is weight-only.
  /// `name` is the weight's.
  [[nodiscard]] Activations of(std::string_view name, const Encoding& encoding) const;
  /// SaidForm::leaves_inputs of a weight that is in the form that is said.
  [[nodiscard]] bool leaves_inputs(std::string_view name, const Encoding& encoding) const {
    const SaidForm said = forms_(name);
    return said.leaves_inputs && said.scheme == encoding.scheme;
  }
  /// SaidForm::has_row_scales.
  [[nodiscard]] bool has_row_scales(std::string_view name) const {
    return forms_(name).has_row_scales;
  }

  /// The activations of a weight in words, with the numbers that activations become ("dynamic in 8
  /// bits of type float"), alike in all dialects.
  [[nodiscard]] std::string text(std::string_view name, const Encoding& encoding) const;

 private:
  const Dialect* dialect_;
  SaidForms forms_;
};

}  // namespace ingot::formats
