#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/base/error.h"

namespace ingot {

/// Thrown by ErrorList when it holds several faults: one text for people, and the list for
/// programs.
class FaultList final : public Error {
 public:
  FaultList(ErrorCode code, std::string message, std::vector<Error> faults)
      : Error(code, std::move(message)), faults_(std::move(faults)) {}
  [[nodiscard]] const std::vector<Error>& faults() const { return faults_; }

 private:
  std::vector<Error> faults_;
};

/// A fault in a list: `before` (as "error: "), file and tensor where they are known, message,
/// `after`.
struct ListedFault {
  std::string before, file, tensor, message, after;
};

/// Lines for people. More than five faults that differ only by their tensor take one line with the
/// first five names. If more than five lines differ only by names and numbers, the first five
/// are kept, and a sixth says how many more there are, in which files or of which kind of tensor.
/// Printable.
std::vector<std::string> fault_lines(std::span<const ListedFault> faults);

/// The pattern of names of one kind: every run of digits as `*`, as in
/// `model.layers.*.mlp.experts.*.up_proj.weight` and `model-*-of-*.safetensors`.
std::string name_kind(std::string_view name);

}  // namespace ingot
