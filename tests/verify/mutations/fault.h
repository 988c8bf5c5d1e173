#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/edited_weights.h"
#include "tests/verify/mutations/good_conversions.h"

namespace ingot::testing {

/// A way to spoil a conversion, and the name that must be in the finding.
struct Fault {
  std::string_view name;
  Good good;
  std::function<void(const Pair& pair)> apply;
  std::string_view names;  ///< a tensor, file or key
};

/// The name of a part of a module: `X.weight_scale`.
inline std::string part(std::string_view module, const char* name) {
  return std::string(module) + "." + name;
}

/// A fault in one part of a module (of the name itself where `suffix` is empty), to be named.
inline Fault in_tensor(std::string_view name, Good good, std::string_view module,
                       const char* suffix, const std::function<void(EditedTensor&)>& change) {
  const std::string tensor = *suffix == '\0' ? std::string(module) : part(module, suffix);
  return {name, good, [=](const Pair& pair) { edit_tensor(pair.output, tensor, change); }, module};
}

/// The same where every number changes.
inline Fault in_floats(std::string_view name, Good good, std::string_view module,
                       const char* suffix, const std::function<float(float)>& change) {
  return in_tensor(name, good, module, suffix,
                   [=](EditedTensor& tensor) { tensor.map<float>(change); });
}

/// The same where some bits of one number are flipped.
template <typename T>
Fault flipped(std::string_view name, Good good, std::string_view module, const char* suffix,
              std::size_t i, unsigned mask) {
  return in_tensor(name, good, module, suffix, [=](EditedTensor& tensor) {
    tensor.set<T>(i, static_cast<T>(tensor.get<T>(i) ^ mask));
  });
}

/// A fault in a JSON file.
inline Fault in_json(std::string_view name, Good good, const char* file, std::string_view names,
                     const std::function<void(formats::Json&)>& change) {
  return {name, good, [=](const Pair& pair) { edit_json(pair.output / file, change); }, names};
}
inline Fault in_json(std::string_view name, Good good, const char* file, std::string_view names,
                     const std::vector<JsonEdit>& edits) {
  return {name, good, [=](const Pair& pair) { edit_json(pair.output / file, edits); }, names};
}

// A table per kind of fault.
std::vector<Fault> scale_faults();
std::vector<Fault> code_faults();
std::vector<Fault> module_faults();  ///< weights in the place of others
std::vector<Fault> model_faults();   ///< many weights at once
std::vector<Fault> slice_faults();
std::vector<Fault> file_faults();
std::vector<Fault> config_faults();

}  // namespace ingot::testing
