#pragma once

#include <array>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/dialect/dialect.h"

// The rows that dialects.cc lists, one per file of this folder, and what their functions have in
// common.

namespace ingot::formats {

extern const Dialect kDeepseekDialect;
extern const Dialect kCompressedTensorsDialect;
extern const Dialect kModeloptDialect;
extern const Dialect kModelslimDialect;

/// `quantization_config` of the source if it is in this dialect and an object, else null.
const Json* source_block(const ModelConfig& source, const Dialect& dialect);

/// Modules that are plain here and that engines of the dialect would quantize by silence, sorted.
std::vector<std::string> silent_modules(std::span<const WrittenTensor> written,
                                        const Dialect& dialect);

bool any_quantized(std::span<const WrittenTensor> written);

/// The strings of a list in `block`, or none when it has no such list. Throws kCorrupt when it is
/// something else.
std::vector<std::string> string_list(const Json& block, const char* key);

/// `key` becomes the union of what it holds and `modules`, sorted.
void merge_into_list(Json& block, const char* key, const std::vector<std::string>& modules);

}  // namespace ingot::formats
