#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "engines/modules/modules.h"
#include "engines/row/engine.h"
#include "formats/family/text_names.h"

// Engines' readings of a checkpoint's configs, module by module. A row of a table (readers.cc)
// names the function that reads the configs of a dialect as an engine does; each is in a file of
// its own dialect, and returns a closure over the facts that it took from the config.

namespace ingot::engines {

/// How an engine would build a module: a scheme (or `plain`, `unknown scheme`, or `refused` where
/// the engine raises an error), and the entry that says so.
struct Reading {
  std::string scheme, because;
  [[nodiscard]] bool is_plain() const { return scheme == "plain"; }
  [[nodiscard]] bool is_refused() const { return scheme == "refused"; }
};
Reading read_plain(std::string because);
Reading read_refused(std::string because);
/// A reading of nullopt is an unknown scheme.
Reading read_as(std::optional<SchemeId> scheme, std::string because);

/// The scheme in which a module is stored, in the words of Reading::scheme.
std::string stored_scheme(const LinearModule& module);

/// Readings of every module.
struct Reader {
  /// The modules of which the config is asked; others are always plain.
  enum class Asks : std::uint8_t {
    kQuantizable,  ///< modules that the engine may build quantized
    kHeads,        ///< quantizable modules, and heads
    kAll,          ///< every module; the closure decides about each
  };

  /// The reading of all modules alike, where the engine refuses the whole config or ignores it.
  std::optional<Reading> of_all;
  /// Returns the reading of a module by its number in the input; null where no config is there.
  std::function<Reading(std::size_t module)> of;
  Asks asks = Asks::kQuantizable;
};

/// True if it is known here how the engine reads the configs of a dialect.
bool reads_config(const Dialect& dialect, Engine engine);

/// Returns the readings of an engine for which reads_config() holds; without draft names the engine
/// is taken to call every layer as it is stored. Checkpoint and input must outlive them.
Reader reader_of(const Checkpoint& checkpoint, const EngineInput& input, const EngineRow& engine,
                 bool has_draft_names = true);

/// A checkpoint as an engine builds it, for the functions of the table. It outlives their closures.
struct ReaderInput {
  const Checkpoint& checkpoint;
  const EngineInput& facts;
  const EngineRow& row;
  bool has_draft_names = true;
  Engine engine = row.engine;
  BuiltModules built = {checkpoint, facts.modules, engine, has_draft_names};

  [[nodiscard]] bool is_sglang() const { return engine == Engine::kSglang; }
  [[nodiscard]] bool is_vllm() const { return engines::is_vllm(engine); }
  [[nodiscard]] const Json& block() const { return *facts.quantization; }
  [[nodiscard]] const LinearModule& layer(std::size_t module) const {
    return facts.modules[module];
  }
  [[nodiscard]] const BuiltModule& built_of(std::size_t module) const {
    return built.modules()[built.module_of(module)];
  }
  /// The names by which lists may call a module: formats::module_aliases().
  [[nodiscard]] std::vector<std::string> aliases(std::string_view module) const {
    return formats::module_aliases(module, checkpoint.config().text);
  }
  /// The reason of a scheme that quant_method gives.
  [[nodiscard]] std::string by_method() const;
};

/// Refuses a module of which a list has some members.
Reading read_partly_listed(const BuiltModule& module, std::string_view list);

/// True if DeepSeek's FP8 config says that routed experts are FP4.
bool has_fp4_experts(const ReaderInput& in);

Reader read_fp8(const ReaderInput& in);
Reader read_fp8_in_transformers(const ReaderInput& in);
Reader read_groups(const ReaderInput& in);
Reader read_groups_in_transformers(const ReaderInput& in);
Reader read_modelopt(const ReaderInput& in);
Reader read_modelopt_block(const ReaderInput& in);  ///< reader of engines that read all of it
Reader read_packed_integers(const ReaderInput& in);
Reader read_quark(const ReaderInput& in);

}  // namespace ingot::engines
