#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "convert/plan/plan.h"
#include "engines/versions/loaders.h"
#include "formats/json/json_fwd.h"

namespace ingot::cli {

/// Bytes that one loader takes of a checkpoint on each rank.
struct LoaderBytes {
  const engines::Loader* loader = nullptr;
  std::vector<std::uint64_t> asked;  ///< by rank: bytes of the tensors or files that it asks for
  std::vector<std::uint64_t> read;   ///< by rank: bytes that come from storage or the page cache
};

/// The load of a checkpoint, by loader, and the ways to make it less.
struct Loading {
  shard::Topology topology;
  std::uint64_t n_bytes = 0;       ///< of all tensors
  std::uint64_t unused_bytes = 0;  ///< of tensors that only a draft model uses
  std::size_t n_files = 0;
  std::vector<LoaderBytes> loaders;  ///< in the order of engines::loaders()
  std::vector<std::string> advice;   ///< sentences, the largest gain first
};

/// Counts from a plan of layout `ranks` that copies a whole checkpoint: no tensor is read. Engines
/// cut as that layout does. Layers for drafts are not loaded, as by default.
Loading loading_of(const convert::Plan& plan);

std::string loading_text(const Loading& loading);
formats::Json loading_json(const Loading& loading);

}  // namespace ingot::cli
