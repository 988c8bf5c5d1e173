#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "convert/recipe/recipe.h"
#include "formats/checkpoint/checkpoint.h"
#include "formats/json/json_fwd.h"
#include "formats/storage/encoding.h"

namespace ingot::convert {

/// Linear layers that get one scheme: the routed experts of a layer, weights that a loader joins,
/// or one role.
struct BudgetGroup {
  std::uint32_t layer = 0;
  std::vector<std::string> roles;  ///< words of selectors
  std::uint64_t elements = 0;
  /// By choice, Budget::schemes: stored bits, scales included, and the loss, which is infinite
  /// where the group cannot have the scheme.
  std::vector<std::uint64_t> bits;
  std::vector<double> losses;
  std::size_t chosen = 0;
};

/// Schemes that a budget chooses from, unless it is told which. Engines load them in one model.
inline constexpr std::array kBudgetSchemes = {
    formats::SchemeId::kNvfp4, formats::SchemeId::kFp8Block, formats::SchemeId::kBf16};
/// Other schemes that it may be told to choose from.
inline constexpr std::array kOtherBudgetSchemes = {
    formats::SchemeId::kInt4Group, formats::SchemeId::kMxfp4, formats::SchemeId::kInt8Channel};
/// Words of --bits-from, `nvfp4,int8,bf16`. Throws kInvalidArgument for schemes of neither list,
/// for one that is there twice, and where the first, whose default recipe says which layers are
/// counted, is not quantized. No words mean kBudgetSchemes.
std::vector<formats::SchemeId> budget_schemes(std::string_view words);

/// A choice of schemes for a number of bits.
struct Budget {
  double bits = 0;             ///< average stored bits of the quantized linears, scales included
  double least = 0, most = 0;  ///< the averages that can be had lie between them
  double loss = 0;
  std::vector<formats::SchemeId> schemes;
  std::string dialect;  ///< dialect of schemes that the source's lacks; empty: by the recipe
  std::vector<BudgetGroup> groups;
  std::string recipe;  ///< recipe in YAML, which parse_recipe() takes

  [[nodiscard]] formats::Json to_json() const;
};

/// The choice of the least loss among those whose average is at most `wanted` and at least
/// `wanted` - kBudgetSlack, else at most `wanted` + kBudgetSlack. `fixed_bits` and `fixed_elements`
/// are of quantized linears that keep their scheme. Sets `chosen` of each group. Throws
/// kInvalidArgument, naming the range, where there is none.
inline constexpr double kBudgetSlack = 0.05;
struct FixedLinears {
  std::uint64_t bits = 0, elements = 0;
};
Budget choose_within(std::vector<BudgetGroup> groups, std::vector<formats::SchemeId> schemes,
                     const FixedLinears& fixed, double wanted);
/// Writes Budget::recipe of a choice.
std::string budget_recipe(const Budget& budget);

/// Chooses one of these schemes for each group of linear layers by what each loses, and puts the
/// rules into the recipe, behind those of the user. A scheme that the dialect of the first does not
/// hold, or that does not fit a group's columns, is no choice. A tensor's loss is the squared error
/// of its outputs over their squares, inputs taken as independent with the mean squares of
/// `choices.importance`; of few rows, and of few experts of a layer, which count alike. Codes that
/// are kept and BF16 lose nothing. A group's loss is the sum over its roles: every linear layer of
/// the model counts alike. Deterministic. Throws kInvalidArgument for --to, for no statistics, or
/// none of a module, and as choose_within() does.
Budget choose_schemes(std::shared_ptr<const formats::Checkpoint> opened, Recipe& recipe,
                      const std::vector<formats::SchemeId>& schemes, double bits,
                      std::size_t threads);

}  // namespace ingot::convert
