#include <cstddef>
#include <cstdint>
#include <span>

#include "tests/fuzz/target.h"

/// Called by libFuzzer, which takes any exception or signal for a finding.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  ingot::fuzz::accepts(std::as_bytes(std::span(data, size)));
  return 0;
}
