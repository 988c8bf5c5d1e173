#pragma once

#include <atomic>
#include <filesystem>
#include <map>
#include <string>

#include "convert/convert.h"
#include "convert/output/output_directory.h"
#include "convert/recipe/default_recipes.h"
#include "formats/base/fd.h"
#include "formats/base/stop_scope.h"
#include "formats/checkpoint/checkpoint.h"
#include "formats/checkpoint/stored_facts.h"
#include "formats/container/safetensors.h"
#include "shard/join/source.h"

namespace ingot::testing {

/// Adds the default rules for a source, as the command line does.
inline void resolve(convert::Recipe& recipe, const formats::Checkpoint& source) {
  convert::add_default_rules(recipe, source.family(), source.config(),
                             convert::target_dialect(recipe, source),
                             formats::narrower_dtype(source), formats::has_plain_only(source));
}

/// The plan of a resolved recipe, in the dialect that it asks for.
inline convert::Plan plan_for(const formats::Checkpoint& source, const convert::Recipe& recipe,
                              const convert::PlanOptions& options = {}) {
  return convert::make_plan(source, recipe, options, convert::read_source_facts(source));
}

/// One conversion as the command line would run it.
struct Conversion {
  std::filesystem::path input, output;
  std::string family;
  convert::Recipe recipe;
  convert::PlanOptions plan;
  convert::ExecuteOptions execute;
  std::function<bool()> stop_requested = {};  ///< ends the execution; empty: never

  /// Everything that is needed for `--to bf16`, on one thread.
  Conversion(std::filesystem::path from, std::filesystem::path to)
      : input(std::move(from)), output(std::move(to)) {
    recipe.to = formats::SchemeId::kBf16;
  }

  convert::ExecuteReport run() {
    convert::Recipe resolved = recipe;
    formats::Checkpoint opened = shard::open_source(
        input, {.open = {.family = family,
                         .allow_unknown = &resolved.allow.unknown_tensor,
                         .consumed_headers = execute.resume ? convert::consumed_headers_of(output)
                                                            : std::filesystem::path()},
                .compare_replicas = true});
    const auto seen = convert::as_written(
        std::make_shared<const formats::Checkpoint>(std::move(opened)), resolved, plan);
    resolve(resolved, *seen);
    const StopScope stop(stop_requested, convert::kStoppable);
    return convert::execute(plan_for(*seen, resolved, plan), output, execute);
  }
};

/// Stops a conversion after so many polls from its first byte on; true when it was stopped before
/// the end.
inline bool run_stopped(Conversion conversion, int polls) {
  std::atomic<bool> has_begun = false;
  std::atomic<int> left = polls;
  conversion.execute.accepted = [&] { has_begun = true; };
  conversion.stop_requested = [&] { return has_begun && --left < 0; };
  try {
    conversion.run();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInterrupted) << error.what();
    return true;
  }
  return false;
}

/// Every regular file below a directory, relative name to content.
inline std::map<std::string, std::string> tree(const std::filesystem::path& directory) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory)) {
    if (!entry.is_regular_file()) continue;
    files[entry.path().lexically_relative(directory).string()] =
        read_text_file(entry.path(), std::uint64_t{1} << 32);
  }
  return files;
}

/// Names of a directory's entries; empty when there is none.
inline std::vector<std::string> top_level(const std::filesystem::path& directory) {
  std::vector<std::string> names;
  if (!std::filesystem::exists(directory)) return names;
  for (const auto& entry : std::filesystem::directory_iterator(directory))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

/// Expects that a conversion has begun there and nothing has a final name.
inline void expect_unpublished(const std::filesystem::path& output) {
  EXPECT_EQ(top_level(output), std::vector<std::string>{std::string(formats::kPartialName)});
}

/// Stops a conversion, and stages in place of its files those that another has finished, so that
/// only publishing them and the journal's entry remain.
inline convert::OutputPaths stage_finished(const Conversion& conversion,
                                           const std::filesystem::path& finished) {
  EXPECT_TRUE(run_stopped(conversion, 100));
  convert::OutputPaths paths(conversion.output);
  std::filesystem::remove_all(paths.staged);
  std::filesystem::copy(finished, paths.staged, std::filesystem::copy_options::recursive);
  return paths;
}

/// Every tensor of every weights file of a checkpoint directory, name to bytes.
inline std::map<std::string, std::string> tensor_bytes(const std::filesystem::path& directory) {
  std::map<std::string, std::string> tensors;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    if (entry.path().extension() != ".safetensors") continue;
    const Fd file = Fd::open_for_reading(entry.path());
    for (const formats::StoredTensor& tensor : formats::read_safetensors_header(file).tensors) {
      std::string bytes(tensor.n_bytes, '\0');
      file.read_exact(std::as_writable_bytes(std::span(bytes)), tensor.offset);
      EXPECT_TRUE(tensors.emplace(tensor.name, std::move(bytes)).second)
          << tensor.name << " is there twice";
    }
  }
  return tensors;
}

/// A small checkpoint of a released family (tests/golden/PROVENANCE.md).
inline std::filesystem::path fixture(const std::string& name) {
  return std::filesystem::path(INGOT_SOURCE_DIR) / "tests/golden/families" / name;
}

inline std::filesystem::path tiny_v32() {
  return std::filesystem::path(INGOT_SOURCE_DIR) / "examples/tiny-v32";
}

/// A copy of the example in which a test may change bytes; returns its path.
inline const std::filesystem::path& copy_example(const std::filesystem::path& to) {
  std::filesystem::copy(tiny_v32(), to, std::filesystem::copy_options::recursive);
  return to;
}

/// A quarter of it, with layers 0 and 1, and 2 for multi-token prediction, of 8 experts
/// (tests/support/small_example.py).
inline std::filesystem::path small_v32() {
  return std::filesystem::path(INGOT_BINARY_DIR) / "tests/small-v32";
}

/// A copy of that.
inline const std::filesystem::path& copy_small(const std::filesystem::path& to) {
  std::filesystem::copy(small_v32(), to, std::filesystem::copy_options::recursive);
  return to;
}

}  // namespace ingot::testing
