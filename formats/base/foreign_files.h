#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

// Files in a checkpoint's folder that do not belong to it: weights in formats that are not read,
// Git LFS pointers and web pages, pictures. And licences, which always do.

namespace ingot::formats {

/// Throws kUnsupported, with the remedy, for a directory that has weights, but none in safetensors
/// files, and for one of an adapter (LoRA); kInvalidArgument for the hub's cache itself.
void require_own_format(const std::filesystem::path& directory);

/// The fact about a file that begins so (at least 8 bytes) and is another than its name says: a Git
/// LFS pointer, which a clone has in place of a large file; a web page; weights in another format.
/// Empty where nothing is known.
std::string_view foreign_start(std::string_view start);

/// A file or folder next to the weights that is no part of the checkpoint.
struct LeftOut {
  std::string path;         ///< relative; of a folder with a `/` at its end
  std::string_view reason;  ///< text behind `left out: `
};
inline constexpr std::string_view kUnlistedWeights = "weights that the checkpoint does not use";

/// Why a side file is left out: weights in another format, pictures, the folder `original/`, the
/// config of an adapter; empty for one that belongs to the checkpoint.
std::string_view left_out_reason(std::string_view path);

/// True if a file tells what may be done with the model: LICENSE, NOTICE, COPYING, USE_POLICY and
/// the like, in any case and folder. Such a file goes with every copy of the weights.
bool is_licence(std::string_view path);

/// Bare names of a folder's entries, sorted; none where there is no such folder.
std::vector<std::string> names_in(const std::filesystem::path& directory);
/// The first names, and how many more there are.
std::string first_names(std::vector<std::string> names);

/// One remark for each reason, naming the first files.
std::vector<std::string> left_out_remarks(std::span<const LeftOut> files);

}  // namespace ingot::formats
