#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tests/verify/mutations/good_conversions.h"

namespace ingot::testing {

/// A way to spoil a conversion, and the name that must stand in what is said of it.
struct Fault {
  std::string_view name;
  Good good;
  void (*apply)(const Pair& pair);
  std::string_view names;  ///< a tensor, file or key
};

/// The name of a part of a module: `X.weight_scale`.
inline std::string part(std::string_view module, const char* name) {
  return std::string(module) + "." + name;
}

// A table per kind of fault.
std::span<const Fault> scale_faults();
std::span<const Fault> code_faults();
std::span<const Fault> module_faults();  ///< weights in the place of others
std::span<const Fault> model_faults();   ///< many weights at once
std::span<const Fault> slice_faults();
std::span<const Fault> file_faults();
std::span<const Fault> config_faults();

/// All of them.
std::vector<Fault> faults();

}  // namespace ingot::testing
