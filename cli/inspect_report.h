#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "cli/inspect_summary.h"
#include "formats/checkpoint/checkpoint.h"
#include "formats/json/json_fwd.h"

namespace ingot::cli {

/// The tables of `ingot inspect`, under the name of the directory that was asked for.
std::string summary_text(std::string_view directory, const formats::Checkpoint& checkpoint,
                         const Summary& summary);
formats::Json summary_json(const formats::Checkpoint& checkpoint, const Summary& summary);

/// The tensors of these indices into checkpoint.tensors().
std::string tensors_text(const formats::Checkpoint& checkpoint, std::span<const std::size_t> which);
formats::Json tensors_json(const formats::Checkpoint& checkpoint,
                           std::span<const std::size_t> which);
formats::Json tensor_json(const formats::Checkpoint& checkpoint,
                          const formats::LogicalTensor& tensor);

}  // namespace ingot::cli
