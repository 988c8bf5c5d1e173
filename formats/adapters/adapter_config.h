#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/base/error.h"
#include "formats/base/pattern.h"
#include "formats/json/json_fwd.h"

namespace ingot::formats {

inline constexpr std::string_view kAdapterConfigName = "adapter_config.json";

/// The order of the numbers of a stacked lora_B, [outputs, rank x experts]: PEFT's, in which those
/// of an expert are `experts` apart, or blocks of an expert's ranks.
enum class ExpertOrder : std::uint8_t { kPeft, kBlock };
inline constexpr std::array<std::string_view, 2> kExpertOrders = {"peft", "block"};

struct LoraOptions {
  double scale = 1;  ///< factor of alpha / rank
  std::optional<ExpertOrder> expert_order = {};
  /// Tensors that may change although the adapter says that its base was a residual.
  std::vector<Pattern> allow_residual = {};
};

/// The text of a config, which knows the lines of its keys.
class ConfigText {
 public:
  ConfigText(std::string_view text, std::string_view where) : text_(text), where_(where) {}

  /// Calls a reader of the value of `key`, and adds the file and the key's line to its errors.
  template <typename Body>
  decltype(auto) at(std::string_view key, const Body& body) const {
    try {
      return body();
    } catch (const Error& error) {
      // The innermost key is the nearest.
      if (!error.file().empty()) throw;
      throw placed(key, error);
    }
  }
  /// The error with the file, and with the first line that has this key.
  [[nodiscard]] Error placed(std::string_view key, const Error& error) const;

 private:
  std::string text_, where_;
};

/// The values of an adapter by module: a global one, and those of patterns, the first of which
/// wins.
class AdapterValues {
 public:
  AdapterValues() = default;
  /// `patterns`: an object from expressions to numbers, or null. `key` names it in errors. Throws
  /// kCorrupt for other values, kLimit for more than 10,000 expressions, kInvalidArgument for an
  /// expression with a fault in its syntax.
  AdapterValues(double all, const Json& patterns, std::string_view key,
                std::shared_ptr<const ConfigText> text);
  /// The value of a module: that of the first expression K for which `(.*\.)?(K)$` matches its
  /// name, else the global one. Throws kLimit for an expression that takes too long.
  [[nodiscard]] double of(std::string_view module) const;

 private:
  struct Entry {
    std::vector<Pattern> expression;  // none: the entry is the end of names
    double value = 0;
    std::string words = {};  // of an expression, as in the file
  };
  double all_ = 0;
  std::shared_ptr<const ConfigText> text_;
  std::vector<Entry> entries_;
  std::map<std::string, std::size_t, std::less<>> by_end_;  // ends of names without expressions
};

/// adapter_config.json of PEFT, with the keys that decide what an adapter adds.
struct AdapterConfig {
  AdapterValues rank, alpha;
  bool is_rank_stabilized = false;
  bool has_lengths = false;     ///< `use_dora`
  bool is_input_major = false;  ///< `fan_in_fan_out`: base weights are [inputs, outputs]
  std::vector<std::string> target_parameters;
  /// Rows of embeddings that are replaced, by the last words of their modules; no words: of any.
  std::map<std::string, std::vector<std::uint64_t>> token_rows;
  std::string base_model;    ///< `base_model_name_or_path`; empty: not said
  std::string residual_of;   ///< the initialization that left a residual base; empty: none
  bool residual_adds_up = true;  ///< residual and first adapter are the base: PEFT can convert it
  std::string peft_version;  ///< empty: not said

  /// alpha / rank, or alpha / sqrt(rank).
  [[nodiscard]] double scale_of(std::string_view module, std::uint64_t rank_of_it) const;
  /// The ids of a module's replaced rows; null: it has none.
  [[nodiscard]] const std::vector<std::uint64_t>* ids_of(std::string_view module) const;
};

/// Parses the config. Throws kUnsupported, naming key and value, for a `peft_type` other than LORA,
/// for options whose arithmetic is another, and for keys of later versions that are set; kCorrupt
/// for values of another kind, and for rank 0.
AdapterConfig parse_adapter_config(std::string_view text, std::string_view where);

}  // namespace ingot::formats
