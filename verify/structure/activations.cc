#include <map>
#include <unordered_map>

#include <fmt/format.h>

#include "formats/dialect/dialect.h"
#include "formats/storage/stored_names.h"
#include "verify/structure/structure_comparisons.h"

namespace ingot::verify {

using formats::Checkpoint;
using formats::LogicalTensor;

namespace {

formats::SourceActivations activations_of(const Checkpoint& model) {
  return {model.config(), model.dialect(), model.description()};
}

// Weights whose activations became something else, in the same way.
struct Change {
  const LogicalTensor* first = nullptr;
  std::size_t tensors = 0;
};

}  // namespace

void compare_activations(const Checkpoint& source, const Checkpoint& output, const Wanted& wanted,
                         check::Findings& found) {
  const formats::SourceActivations before = activations_of(source), after = activations_of(output);
  std::unordered_map<std::string_view, const LogicalTensor*> partners;
  for (const LogicalTensor& tensor : output.tensors()) partners.emplace(tensor.name, &tensor);
  std::map<std::pair<std::string, std::string>, Change> changes;
  for (const LogicalTensor& tensor : source.tensors()) {
    const auto partner = partners.find(tensor.name);
    if (partner == partners.end() || !is_quantized(tensor)) continue;
    const formats::Encoding& encoding = partner->second->encoding;
    if (encoding.scheme != tensor.encoding.scheme) continue;
    const std::string_view now = activations_name(after.of(tensor.name, encoding));
    if (now == wanted.activations) continue;
    std::string was = before.text(tensor.name, tensor.encoding);
    std::string is = after.text(tensor.name, encoding);
    if (was == is) continue;
    Change& change = changes[{std::move(was), std::move(is)}];
    if (change.first == nullptr) change.first = &tensor;
    ++change.tensors;
  }
  // Another dialect may lack the source's activations, and engines then use its own; a repair names
  // what it changes.
  const bool is_fault = &source.dialect() == &output.dialect() && !wanted.is_repair;
  for (const auto& [words, change] : changes) {
    Error fact(
        ErrorCode::kMismatch, "has input_activations {}, in the source {}{}", words.second,
        words.first,
        change.tensors > 1 ? fmt::format(" (so have {} more weights)", change.tensors - 1) : "");
    found.tell(is_fault ? check::Severity::kError : check::Severity::kWarning,
               "structure.activations", fact.in_tensor(change.first->name));
  }
}

}  // namespace ingot::verify
