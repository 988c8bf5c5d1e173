#pragma once

#include <filesystem>

namespace ingot {

struct FlagTable;

/// The folder in which programs of the hub keep what they fetched: HF_HUB_CACHE, else that of
/// HF_HOME, else of the home directory; empty where nothing tells.
std::filesystem::path hub_cache();

/// Replaces the given names of models on the hub, `ORG/NAME[@REVISION]`, which are no paths here,
/// by their snapshots in the hub's cache. Throws kNotFound, with the command that fetches it, for
/// one that the cache lacks.
void open_hub_names(const FlagTable& table);

}  // namespace ingot
