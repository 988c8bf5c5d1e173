#pragma once

#include <filesystem>
#include <string_view>

namespace ingot {

/// Throws kInvalidArgument where a file of this path would lie in the folder of a model, or in a
/// folder below one: it would be taken for a file of the model. Links are followed.
void require_outside_models(const std::filesystem::path& file);

/// Throws where a file that must be absent cannot be made: kExists when something is there,
/// kNotFound without a folder for it, and as require_outside_models().
void require_absent_file(const std::filesystem::path& file);

/// Makes such a file, and never touches one that is there; a failure leaves none.
void write_absent_file(const std::filesystem::path& file, std::string_view text);

/// Replaces a file, or makes it: it has the old text or the new one, whatever happens. Links are
/// followed; a device or a pipe gets the text.
void replace_file(const std::filesystem::path& file, std::string_view text);

}  // namespace ingot
