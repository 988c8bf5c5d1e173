#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

// Texts that a user names: prompts, documents, lists of tokens. Files of a checkpoint are read by
// read_text_file, which refuses pipes: they could keep it waiting.

namespace ingot {

/// The standard input as a path, which messages name.
inline constexpr const char* kStandardInput = "/dev/stdin";

/// The whole text, refused with kLimit beyond `max_bytes`. Standard input and pipes
/// (`/dev/fd/63`, a FIFO) are read to their end.
std::string read_text_input(const std::filesystem::path& path, std::uint64_t max_bytes);

/// True for the path of an open file (`/dev/stdin`, `/dev/fd/63`), whose name does not tell its
/// kind.
bool is_nameless_input(const std::filesystem::path& path);

}  // namespace ingot
