#include "library/as_stored.h"

#include <algorithm>

#include "formats/container/safetensors.h"
#include "formats/storage/encoding.h"
#include "formats/storage/stored_names.h"

namespace ingot::library {

using formats::StoredTensor;

namespace {

// The weight that a tensor is a part of.
std::string weight_of(std::string_view name) {
  return std::string(formats::module_stem(name)) + ".weight";
}

// True if tensors are seen in another form than the files have.
bool is_relaid(const formats::Checkpoint& checkpoint) {
  return checkpoint.dialect().is_read_only ||
         std::ranges::any_of(checkpoint.tensors(), [](const formats::LogicalTensor& tensor) {
           return tensor.encoding.stored.has(formats::Part::kDimensions) &&
                  formats::scheme_facts(tensor.encoding.scheme).code_bits == 8;
         });
}

}  // namespace

AsStored::AsStored(const formats::Checkpoint& checkpoint) : checkpoint_(checkpoint) {
  if (!is_relaid(checkpoint)) return;
  const auto files = checkpoint.files();
  for (std::uint32_t f = 0; f < files.size(); ++f) {
    formats::SafetensorsHeader header = formats::parse_safetensors_header(
        checkpoint.header_bytes(f), files[f].n_bytes, files[f].name);
    for (StoredTensor& tensor : header.tensors) {
      tensor.file = f;
      original_.push_back(std::move(tensor));
    }
  }
  for (const StoredTensor& tensor : original_) {
    if (tensor.name.ends_with(".qweight") || tensor.name.ends_with(".weight_packed"))
      of_weights_[weight_of(tensor.name)] = 0;
  }
  for (const StoredTensor& tensor : original_) {
    const auto weight = of_weights_.find(weight_of(tensor.name));
    if (weight != of_weights_.end() && !tensor.name.ends_with(".bias"))
      weight->second += tensor.n_bytes;
  }
}

std::span<const StoredTensor> AsStored::tensors() const {
  return original_.empty() ? checkpoint_.stored() : std::span<const StoredTensor>(original_);
}

std::uint64_t AsStored::n_bytes(const formats::LogicalTensor& tensor) const {
  if (const auto found = of_weights_.find(tensor.name); found != of_weights_.end())
    return found->second;
  std::uint64_t n_bytes = 0;
  tensor.encoding.stored.for_each([&](formats::Part, std::uint32_t stored) {
    n_bytes += checkpoint_.stored()[stored].n_bytes;
  });
  return n_bytes;
}

}  // namespace ingot::library
