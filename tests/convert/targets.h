#pragma once

#include "formats/dialect/dialect.h"
#include "formats/family/families.h"
#include "synth/synth.h"
#include "tests/convert/conversion.h"
#include "tests/support/test.h"

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
    // Small models are not multiples of 128 wide.
    if (formats::scheme_facts(storage->scheme).chooses_cols) recipe.choices.group_size = 32;
    if (storage->activations == formats::Activations::kStatic) recipe.choices.input_scale = 1.0F;
  }
  friend std::ostream& operator<<(std::ostream& out, const Target& target) {
    return out << target.name();
  }
};

/// Every row of every dialect that holds other weights than stacks of experts.
inline std::vector<Target> all_targets() {
  std::vector<Target> targets;
  for (const formats::Dialect* dialect : formats::dialects()) {
    for (const formats::StorageRow& storage : dialect->storage) {
      const bool is_of_stacks = storage.experts == formats::ExpertForm::kStacked;
      if (!storage.is_read_only && !is_of_stacks)
        targets.push_back({.dialect = dialect, .storage = &storage});
    }
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

/// Few rows of all_targets() that together have each scheme, dialect and kind of activations: the
/// row with most that is new, as long as one has any. Default tests make their claims of these,
/// slow ones of the rest.
inline std::vector<Target> first_targets() {
  std::set<std::string_view> seen;
  const auto words = [](const Target& target) {
    return std::set<std::string_view>{formats::scheme_facts(target.storage->scheme).name,
                                      target.dialect->name,
                                      formats::activations_name(target.storage->activations)};
  };
  const auto n_new = [&](const Target& target) {
    return std::ranges::count_if(words(target), [&](auto word) { return !seen.contains(word); });
  };
  const std::vector<Target> all = all_targets();
  std::vector<Target> targets;
  for (auto best = std::ranges::max_element(all, {}, n_new); n_new(*best) > 0;
       best = std::ranges::max_element(all, {}, n_new)) {
    targets.push_back(*best);
    seen.merge(words(*best));
  }
  return targets;
}

/// The first row of each dialect.
inline std::vector<Target> dialect_targets() {
  std::vector<Target> targets = all_targets();
  const auto same = [](const Target& a, const Target& b) { return a.dialect == b.dialect; };
  targets.erase(std::unique(targets.begin(), targets.end(), same), targets.end());
  return targets;
}

/// Every row that is not in `some`.
inline std::vector<Target> all_targets_but(const std::vector<Target>& some) {
  std::vector<Target> targets = all_targets();
  std::erase_if(targets, [&](const Target& target) {
    return std::any_of(some.begin(), some.end(), [&](const Target& one) {
      return one.dialect == target.dialect && one.storage == target.storage;
    });
  });
  return targets;
}

/// For INSTANTIATE_TEST_SUITE_P: letters, digits and underscores.
inline std::string test_name(std::string name) {
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

inline std::string target_name(const ::testing::TestParamInfo<Target>& row) {
  return test_name(row.param.name());
}

inline std::filesystem::path cast_to_bf16(const std::filesystem::path& source,
                                          const std::filesystem::path& output) {
  Conversion(source, output).run();
  return output;
}

/// The example cast to BF16 by us, made once per process.
inline const std::filesystem::path& tiny_bf16() {
  static const TempDir directory;
  static const std::filesystem::path path = cast_to_bf16(tiny_v32(), directory / "bf16");
  return path;
}

/// The same of the small one.
inline const std::filesystem::path& small_bf16() {
  static const TempDir directory;
  static const std::filesystem::path path = cast_to_bf16(small_v32(), directory / "bf16");
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

/// The usual one cast to BF16 by us, made once per process.
inline const std::filesystem::path& synth_bf16() {
  static const TempDir directory;
  static const std::filesystem::path path = [] {
    Conversion(synth_model(), directory / "bf16").run();
    return directory / "bf16";
  }();
  return path;
}

}  // namespace ingot::testing
