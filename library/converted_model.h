#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "convert/run/memory/converted_bytes.h"
#include "formats/checkpoint/checkpoint.h"
#include "library/conversion.h"

namespace ingot::library {

/// A model as `convert --to SCHEME` would make it, read without being written.
class ConvertedModel {
 public:
  /// Plans the conversion with its default options. Throws kInvalidArgument for a `scheme`, the
  /// value of --quantized, that is none, and as planning does.
  ConvertedModel(std::shared_ptr<const formats::Checkpoint> source, const std::string& scheme,
                 const std::string& family, std::size_t threads);
  ConvertedModel(const ConvertedModel&) = delete;
  ConvertedModel& operator=(const ConvertedModel&) = delete;

  [[nodiscard]] const formats::Checkpoint& checkpoint() const { return checkpoint_; }
  /// Memory that reading it takes, in bytes.
  [[nodiscard]] std::uint64_t memory() const { return bytes_.memory(); }

 private:
  Conversion conversion_;
  convert::ConvertedBytes bytes_;
  formats::Checkpoint checkpoint_;
};

/// True if a value is meant as a word of --to, not as a directory: it is such a word, or no file of
/// this name is there and no slash is in it.
bool names_scheme(const std::string& value);

}  // namespace ingot::library
