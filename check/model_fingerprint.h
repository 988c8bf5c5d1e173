#pragma once

#include <filesystem>
#include <optional>

#include "formats/base/hash.h"
#include "formats/checkpoint/checkpoint.h"
#include "formats/records/calibration.h"

namespace ingot::check {

/// Tells models apart that have the same shapes, without reading them whole: the hash of the names,
/// shapes and schemes of all logical tensors, and of the first 4 KiB of every part of a weight, of
/// routed experts of every 32nd. The same for a model and its slices, whatever its files; another
/// for another encoding of the same weights. Nullopt where some of these bytes are not at hand: a
/// program gives the tensors one by one, or files were consumed. docs/formats.md has the bytes.
std::optional<Hash128> model_fingerprint(const formats::Checkpoint& model);

/// Throws kMismatch, naming the statistics and `option` where they were made from another model.
/// Statistics without a record, and models without a fingerprint, are taken.
void require_same_model(const formats::CalibrationStatistics& statistics,
                        const formats::Checkpoint& model, std::string_view option);

}  // namespace ingot::check
