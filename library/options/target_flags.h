#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "convert/plan/plan.h"
#include "convert/recipe/recipe.h"
#include "library/options/flag_table.h"

namespace ingot {

/// The flags that decide how a conversion treats each tensor, as given.
struct TargetFlags {
  std::string recipe_file, activation_scales, importance, kv_scales, scales_from;
  std::map<std::string_view, std::string> options;  ///< values of recipe_options(), by name
  std::vector<std::string> rules, allow;
  bool quantize_attention = false, zero_points = false, gptq = false;
};

/// A flag of convert::recipe_options(); `words`: that are offered, where it does not list its own.
Flag choice(TargetFlags& flags, std::string_view name, std::string help,
            std::vector<std::string> words = {});
/// Words of --to: names of schemes, and short words for some of them.
std::vector<std::string> offered_targets();
/// --to, --for, --dialect: the flags of most conversions.
std::vector<Flag> scheme_flags(TargetFlags& flags);
/// All other flags of the target, without --allow.
std::vector<Flag> choice_flags(TargetFlags& flags);
Flag allow_flag(TargetFlags& flags);

/// The recipe in a file. Paths in it go from its folder. `composition`: the recipe is one of
/// several sources, whose words it takes, with models of the hub's cache in place of their names.
convert::Recipe read_recipe_file(const std::string& name,
                                 convert::Composition* composition = nullptr);
/// The recipe of the flags, those of the command line before the recipe's; reads the files that
/// they name, but for --scales-from. Throws kInvalidArgument for words that are not understood.
/// `composition`: as read_recipe_file() has it.
convert::Recipe make_recipe(const TargetFlags& flags, convert::Composition* composition = nullptr);
/// Opens the release whose scales are taken over, where one was given.
void open_scales_from(const TargetFlags& flags, const std::string& family, std::size_t threads,
                      convert::Choices& choices);
/// Throws kMismatch for statistics of activations that were made from another model than `source`,
/// which is seen as it was opened.
void require_own_statistics(const convert::Choices& choices, const formats::Checkpoint& source);

/// The flags that decide the files of an output and the order in them, as given.
struct FileFlags {
  std::string max_shard_size, order;
  std::optional<std::uint32_t> n_files, align;
};

/// `kept`: the files of an output without --max-shard-size.
void declare_files(FlagTable& table, FileFlags& flags, std::string_view kept);
/// Throws kInvalidArgument for a size that is none.
convert::ShardPolicy file_policy(const FileFlags& flags);

/// The flags --layout, --tp and their kin, as given.
struct SlicingFlags {
  std::string layout, expert_map, stages;
  std::optional<std::string> shared, fit, links;  ///< tp, refuse, yes
  std::optional<std::uint32_t> tp, ep, etp, pp, mp;
  bool redundant_experts = false, uneven_experts = false;
  /// --base, whose files may be linked too; null: no such flag.
  const std::filesystem::path* base = nullptr;
};

void declare_slicing(FlagTable& table, SlicingFlags& flags);

/// Puts the flags into the options. Throws kInvalidArgument for flags that contradict one another,
/// and as make_topology does.
void read_slicing(const SlicingFlags& flags, convert::PlanOptions& options);

}  // namespace ingot
