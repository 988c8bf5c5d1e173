#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/base/error.h"
#include "formats/container/tensor.h"
#include "formats/dialect/dialect.h"
#include "formats/modules/module_list.h"

namespace ingot::formats {

/// The `quant_algo` under which modules are listed, each with its own.
inline constexpr std::string_view kModeloptMixed = "MIXED_PRECISION";

/// How a block leaves a module out: kInside by an entry that is part of the name, which only vLLM
/// takes for a match.
enum class Exclusion : std::uint8_t { kNone, kInside, kWhole };

/// The lists of modules that are left out: of hf_quant_config.json and of config.json.
inline constexpr std::array<const char*, 2> kModeloptLists = {"exclude_modules", "ignore"};

/// The producer of files that are written: vLLM knows those of this dialect by its name.
Json modelopt_producer();

/// The object under a block's key `quantization`, where it has one; else the block.
const Json& modelopt_body(const Json& block);

/// The fault of a ModelOpt checkpoint in a form that is not read: llama.cpp's blocks, or an
/// algorithm under which the same tensors have other values. `description` is hf_quant_config.json,
/// or null. Nullopt for all that is read.
std::optional<Error> unread_modelopt(const ModelConfig& config, const Json& description);

/// A ModelOpt block, from hf_quant_config.json or config.json.
class ModeloptBlock {
 public:
  /// Modules are left out by any of `lists`. Lists that are none are put into `faults` as a phrase
  /// each; without `faults`, kCorrupt is thrown.
  explicit ModeloptBlock(const Json& block, std::span<const char* const> lists = kModeloptLists,
                         std::vector<std::string>* faults = nullptr);

  [[nodiscard]] const std::string& algo_name() const { return algo_name_; }
  /// The algorithm of a module; null when it is excluded, or has an algorithm that is not ours.
  [[nodiscard]] const StorageRow* algo_of(std::string_view module) const;
  /// Under kModeloptMixed modules are listed, not left out.
  [[nodiscard]] Exclusion exclusion_of(std::string_view module) const;
  /// Names and globs, never expressions.
  [[nodiscard]] const ModuleList& excluded() const { return excluded_; }

 private:
  /// The algorithm of a module that is listed, or is below a listed one; nullopt: neither.
  [[nodiscard]] std::optional<const StorageRow*> listed(std::string_view module) const;

  std::string algo_name_;
  /// `quantized_layers`, by module.
  std::optional<std::map<std::string, const StorageRow*, std::less<>>> layers_;
  ModuleList excluded_;
};

/// One of the two places in which a checkpoint says how it is quantized, with the list that engines
/// read there.
struct ModeloptStatement {
  /// The statement of hf_quant_config.json. It does not exist if `description` lacks its section.
  static ModeloptStatement of_file(const Json& description);
  /// The block in config.json, which is flat; one that has the form of the file is read as that.
  static ModeloptStatement of_config(const Json& block);

  bool exists;
  const Json& object;               ///< object of the block; empty: there is none
  const char* file;                 ///< file that has the statement
  const char* list;                 ///< the key of modules that are left out
  std::vector<std::string> faults;  ///< faults of lists that are none, as of ModeloptBlock
  ModeloptBlock block;

  [[nodiscard]] bool is_mixed() const { return block.algo_name() == kModeloptMixed; }
  /// A mixture without its list of modules.
  [[nodiscard]] bool lacks_list() const;

 private:
  ModeloptStatement(const Json& json, const char* its_file, const char* its_list);
};

/// `quant_algo 'NVPF4', which no loader knows; did you mean NVFP4?`: the first algorithm that a
/// block says, of all or of a module that it lists, and no row has; empty where there is none.
std::string unknown_algo(const Json& body);

/// Numbers that share a scale in a row of such weights; 0: there are no groups.
std::uint64_t modelopt_group_size(const StorageRow& algo);

/// The arguments of an entry of `config_groups` that contradict the algorithm, a sentence each;
/// `where` is the entry's path.
std::vector<std::string> modelopt_group_faults(const Json& group, const StorageRow& algo,
                                               std::string_view where);

}  // namespace ingot::formats
