#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "engines/row/engine.h"

// The loaders of engines, by the bytes that they read of a checkpoint.

namespace ingot::engines {

/// The bytes that one rank's loader reads from storage.
enum class LoadUnit : std::uint8_t {
  kPages,      ///< pages of a memory map around the bytes that the rank copies
  kTensors,    ///< whole tensors, but for experts of other ranks
  kFiles,      ///< every file whole
  kFileShare,  ///< each Nth file whole, for all N ranks
  kByteShare,  ///< an Nth of all bytes, for all N ranks
  kOwnFiles,   ///< files of the rank, which are written for it
};

/// A loader of an engine.
struct Loader {
  Engine engine{};
  std::string_view name;    ///< "lazy", in the engine's words
  std::string_view option;  ///< options that choose it; empty: the default
  LoadUnit unit{};
  /// True if tensors of single experts that other ranks hold are not asked for.
  bool skips_experts = false;
  /// True if a file is left out of which no tensor is used, as that of layers for drafts.
  bool skips_files = true;
  /// True if bytes that one rank reads go to the others over their interconnect.
  bool broadcasts = false;
  /// Layout of the rank files that it reads; empty: the whole checkpoint.
  std::string_view layout = {};
  std::string_view source;  ///< place in the engine's source that tells it
};

/// All loaders that were read: vLLM 0.33 and SGLang 0.5.23, defaults first.
std::span<const Loader> loaders();

/// Bytes that Linux reads around a page of a memory map that is not in memory yet: its default
/// read-ahead. Gaps that are smaller are read as well.
inline constexpr std::uint64_t kReadAround = std::uint64_t{128} << 10;

}  // namespace ingot::engines
