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
  std::vector<std::uint64_t> asked;  ///< bytes of the tensors or files that it asks for, by rank
  std::vector<std::uint64_t> read;   ///< bytes that come from storage or the page cache, by rank
};

/// The load of a checkpoint, by loader, and the ways to make it less.
struct Loading {
  shard::Topology topology;
  std::uint64_t n_bytes = 0;       ///< bytes of all tensors
  std::uint64_t unused_bytes = 0;  ///< bytes of tensors that only a draft model uses
  std::size_t n_files = 0;
  std::vector<LoaderBytes> loaders;  ///< rows in the order of engines::loaders()
  std::vector<std::string> advice;   ///< sentences, the largest gain first
};

/// Counts from a plan of layout `ranks` that copies a whole checkpoint: no tensor is read. Engines
/// cut as that layout does. Layers for drafts are not loaded, as by default.
Loading loading_of(const convert::Plan& plan);

std::string loading_text(const Loading& loading);
formats::Json loading_json(const Loading& loading);

}  // namespace ingot::cli
