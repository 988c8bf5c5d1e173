#include <map>
#include <tuple>
#include <unordered_map>

#include <fmt/format.h>

#include "formats/composed.h"
#include "formats/storage/stored_names.h"
#include "verify/structure/structure_comparisons.h"

namespace ingot::verify {

using formats::Checkpoint;
using formats::LogicalTensor;

namespace {

// Weights whose activations became something else, in the same way.
struct Change {
  const LogicalTensor* first = nullptr;
  std::size_t tensors = 0;
};

}  // namespace

void compare_activations(const Checkpoint& source, const Checkpoint& output, const Wanted& wanted,
                         check::Findings& found) {
  const formats::StoredActivations before(source), after(output);
  std::unordered_map<std::string_view, const LogicalTensor*> partners;
  for (const LogicalTensor& tensor : output.tensors()) partners.emplace(tensor.name, &tensor);
  std::map<std::tuple<bool, std::string, std::string>, Change> changes;
  for (const LogicalTensor& tensor : source.tensors()) {
    const auto partner = partners.find(tensor.name);
    if (partner == partners.end() || !is_quantized(tensor)) continue;
    const formats::Encoding& encoding = partner->second->encoding;
    if (encoding.scheme != tensor.encoding.scheme) continue;
    const std::string_view now = activations_name(after.of(*partner->second));
    if (now == wanted.activations) continue;
    std::string was = before.said_of(tensor).text(tensor.name, tensor.encoding);
    std::string is = after.said_of(*partner->second).text(tensor.name, encoding);
    if (was == is) continue;
    // Another dialect may lack the source's activations, and engines then use its own; a repair
    // names what it changes.
    const bool is_fault =
        &source.giver_of(tensor).dialect() == &output.dialect() && !wanted.is_repair;
    Change& change = changes[{is_fault, std::move(was), std::move(is)}];
    if (change.first == nullptr) change.first = &tensor;
    ++change.tensors;
  }
  for (const auto& [words, change] : changes) {
    const auto& [is_fault, was, is] = words;
    Error fact(
        ErrorCode::kMismatch, "has input_activations {}, in the source {}{}", is, was,
        change.tensors > 1 ? fmt::format(" (so have {} more weights)", change.tensors - 1) : "");
    found.tell(is_fault ? check::Severity::kError : check::Severity::kWarning,
               "structure.activations", fact.in_tensor(change.first->name));
  }
}

}  // namespace ingot::verify
