#pragma once

#include <filesystem>

#include "formats/base/fd.h"
#include "formats/base/hash.h"
#include "formats/files/folder.h"

namespace ingot::delta {

/// The tensor hash of a file's bytes.
Hash128 hash_of_file(const std::filesystem::path& path);

/// Shares all blocks of a file with another, where the file system can (a reflink). `to` has the
/// mode of `from` then, as it has without.
bool clone_file(const Fd& from, const Fd& to);

/// Copies a file to one that is made at `name` in a folder, with its mode, on disk when this
/// returns. Blocks are shared where the file system can. Returns the tensor hash of its bytes.
Hash128 copy_into(const std::filesystem::path& from, const Folder& folder,
                  const std::filesystem::path& name);

}  // namespace ingot::delta
