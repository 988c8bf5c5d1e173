#pragma once

#include <ostream>
#include <set>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "formats/dialect/dialect.h"
#include "synth/synth.h"
#include "tests/convert/conversion.h"
#include "tests/support/temp_dir.h"

namespace ingot::testing {

/// One way to write quantized tensors: a row of a dialect's table.
struct Target {
  const formats::Dialect* dialect = nullptr;
  const formats::StorageRow* storage = nullptr;

  [[nodiscard]] std::string name() const {
    return fmt::format("{}_{}_{}", dialect->name, formats::scheme_facts(storage->scheme).name,
                       formats::activations_name(storage->activations));
  }
  /// Sets up a conversion to it, whether engines load it or not; static inputs are scaled by 1.
  void apply(convert::Recipe& recipe) const {
    recipe.to = storage->scheme;
    recipe.choices.dialect = std::string(dialect->name);
    recipe.choices.activations = storage->activations;
    recipe.allow.add("engine-refuses=*");
    if (storage->activations == formats::Activations::kStatic) recipe.choices.input_scale = 1.0F;
  }
  friend std::ostream& operator<<(std::ostream& out, const Target& target) {
    return out << target.name();
  }
};

/// Every row of every dialect.
inline std::vector<Target> all_targets() {
  std::vector<Target> targets;
  for (const formats::Dialect* dialect : formats::dialects()) {
    for (const formats::StorageRow& storage : dialect->storage)
      targets.push_back({.dialect = dialect, .storage = &storage});
  }
  return targets;
}

/// One row per quantized scheme: of its default dialect.
inline std::vector<Target> scheme_targets() {
  std::vector<Target> targets;
  for (const formats::SchemeFacts& facts : formats::schemes()) {
    if (!facts.quantized) continue;
    const formats::Dialect& dialect = formats::default_dialect(facts.id);
    targets.push_back({.dialect = &dialect, .storage = formats::find_storage(dialect, facts.id)});
  }
  return targets;
}

/// For INSTANTIATE_TEST_SUITE_P: letters, digits and underscores.
inline std::string test_name(const std::string& name) {
  std::string text = name;
  for (char& c : text) {
    if (c == '-') c = '_';
  }
  return text;
}

/// The example cast to BF16 by us, made once per process.
inline const std::filesystem::path& tiny_bf16() {
  static const TempDir directory;
  static const std::filesystem::path path = [] {
    Conversion(tiny_v32(), directory / "bf16").run();
    return directory / "bf16";
  }();
  return path;
}

/// A random model of three megabytes with the names of a family, in two files, one scale standing
/// apart from its codes. `ue8m0`: scales are powers of two, else any F32.
inline std::filesystem::path synth_tiny(const std::filesystem::path& directory,
                                        std::string_view family = "deepseek_v32",
                                        bool ue8m0 = false) {
  formats::write_synthetic_checkpoint(directory, {.family = formats::find_family(family),
                                                  .size = formats::SynthSize::kTiny,
                                                  .ue8m0 = ue8m0,
                                                  .shards = 2,
                                                  .split_scale = true});
  return directory;
}

/// The usual one, made once per process.
inline const std::filesystem::path& synth_model() {
  static const TempDir directory;
  static const std::filesystem::path path = synth_tiny(directory / "synth");
  return path;
}

}  // namespace ingot::testing
