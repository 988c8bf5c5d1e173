#pragma once

#include <span>

#include "quantize/scheme.h"

/// The rows of the registry; each file of arithmetic has its own.
namespace ingot::quantize {

extern const std::span<const Scheme> kPlainSchemes;
extern const std::span<const Scheme> kFp8Schemes;
extern const std::span<const Scheme> kInt8Schemes;
extern const std::span<const Scheme> kInt4Schemes;
extern const std::span<const Scheme> kNvfp4Schemes;
extern const std::span<const Scheme> kMxSchemes;

}  // namespace ingot::quantize
