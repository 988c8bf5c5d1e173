#pragma once

#include <filesystem>
#include <string_view>

namespace ingot {
struct FlagTable;
}

namespace ingot::cli {

/// Replaces the given names of models on the hub, `ORG/NAME[@REVISION]`, which are no paths here,
/// by their snapshots in the hub's cache: that of HF_HUB_CACHE, else of HF_HOME, else of the home
/// directory. Throws kNotFound, with the command that fetches it, for one that the cache lacks.
void open_hub_names(const FlagTable& table);

/// Throws kInvalidArgument for a path in the hub's cache, however it is reached: other programs
/// share it. `deed` says what would be done there, and what to do instead. `is_whole`: so for every
/// path in the cache, not only in the models that it keeps.
void require_outside_hub_cache(const std::filesystem::path& path, bool is_whole,
                               std::string_view deed);

}  // namespace ingot::cli
