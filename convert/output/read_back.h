#pragma once

#include <cstddef>
#include <vector>

#include "convert/output/output_directory.h"
#include "convert/output/tensor_records.h"
#include "convert/plan/plan.h"

namespace ingot::convert {

/// Reads all staged files again, from the disk and not from the page cache as far as the file
/// system lets us, and compares them with the hashes of the intended bytes: `hashes` by item, and
/// `manifest`, that of the top manifest. Throws kMismatch, naming file and tensor.
void read_back(const Plan& plan, const OutputPaths& paths, const std::vector<TensorResult>& hashes,
               const Hash128& manifest, std::size_t threads);

/// Reads back the weights files of a part of a job, as read_back() does.
void read_back_part(const Plan& plan, const OutputPaths& paths,
                    const std::vector<TensorResult>& hashes, std::size_t threads);

/// Reads back, as read_back() does, only the files next to the weights files, which parts have read
/// back themselves.
void read_back_joined(const Plan& plan, const OutputPaths& paths,
                      const std::vector<TensorResult>& hashes, const Hash128& manifest,
                      std::size_t threads);

}  // namespace ingot::convert
