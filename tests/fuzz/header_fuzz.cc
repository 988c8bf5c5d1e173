#include <stdexcept>
#include <vector>

#include "formats/base/error.h"
#include "formats/container/safetensors.h"
#include "tests/fuzz/target.h"

namespace ingot::fuzz {
namespace {

void require(bool holds, const char* promise) {
  if (!holds) throw std::logic_error(promise);
}

/// The tensors fill the data exactly, each as large as its shape says.
void check_layout(const formats::SafetensorsHeader& header) {
  std::uint64_t end = header.data_start;
  for (const formats::StoredTensor& tensor : header.tensors) {
    require(tensor.offset == end, "tensors are not back to back");
    require(formats::byte_count(tensor.dtype, tensor.shape) == tensor.n_bytes,
            "size is not that of the shape");
    end += tensor.n_bytes;
  }
  require(end == header.file_bytes, "tensors do not fill the file");
}

/// A header that was read can be written and read again.
void check_round_trip(const formats::SafetensorsHeader& header) {
  std::vector<formats::TensorSpec> specs;
  for (const formats::StoredTensor& tensor : header.tensors) {
    specs.push_back({.name = tensor.name, .dtype = tensor.dtype, .shape = tensor.shape});
  }
  const std::string text = formats::safetensors_header_text(specs);
  const std::uint64_t n_data = header.file_bytes - header.data_start;
  const auto again = formats::parse_safetensors_header(std::as_bytes(std::span(text)),
                                                       text.size() + n_data, "written");
  require(again.tensors.size() == specs.size(), "a tensor was lost in writing");
  for (std::size_t i = 0; i < specs.size(); ++i) {
    require(again.tensors[i].n_bytes == header.tensors[i].n_bytes, "a size changed in writing");
  }
}

}  // namespace

/// The input is a whole file.
bool accepts(std::span<const std::byte> input) {
  formats::SafetensorsHeader header;
  try {
    header = formats::parse_safetensors_header(input, input.size(), "input");
  } catch (const Error& error) {
    require(error.code() != ErrorCode::kInternal, "an internal check failed");
    return false;
  }
  check_layout(header);
  check_round_trip(header);
  return true;
}

}  // namespace ingot::fuzz
