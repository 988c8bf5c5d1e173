#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace ingot::formats {

/// A file by its contents.
struct FileDigest {
  std::string name;    ///< path below the folder, with '/'
  std::string sha256;  ///< 64 lower-case hexadecimal digits
  std::uint64_t n_bytes = 0;
};

/// SHA-256 of a file, read in pieces. Asks the StopScope before each; `count` is told the bytes of
/// each piece. Throws kMismatch for a file that changes meanwhile.
std::string sha256_of_file(const std::filesystem::path& path,
                           const std::function<void(std::uint64_t)>& count = {});

/// The files of a folder that are digested.
struct DigestOptions {
  /// Paths below the folder that are left out with all that is in them.
  std::set<std::string, std::less<>> ignored;
  /// A hub's snapshot consists of links to blobs. False: a symbolic link is kUnsupported.
  bool follows_links = false;
  /// Tells files, and folders with a `/` at their end, that are left out, by path; null: none.
  std::function<bool(std::string_view)> leaves_out;
  std::size_t threads = 1;
  /// (bytes done, bytes in all); called from several threads.
  std::function<void(std::uint64_t, std::uint64_t)> progress;
};

/// The digests of all files below a folder. In the order of OpenSSF Model Signing, which decides
/// its root digest: by the parts of their paths, each by its characters. Names of one file (hard
/// links) are read once. Throws kUnsupported for what is neither file nor folder, kNotFound without
/// a folder.
std::vector<FileDigest> digest_files(const std::filesystem::path& folder,
                                     const DigestOptions& options);

}  // namespace ingot::formats
