#pragma once

#include <string_view>

#include "engines/row/engine.h"

// The words of rows, for the files of this folder only.

namespace ingot::engines {

using enum formats::Activations;
using enum formats::SchemeId;
using enum EngineEffect;
using enum EngineScope;
using enum Evidence;

inline constexpr std::string_view kAnyDialect = "";
inline constexpr std::string_view kCt = "compressed-tensors";
inline constexpr std::string_view kModelopt = "modelopt";
inline constexpr std::string_view kModelslim = "modelslim";
inline constexpr std::string_view kDeepseek = "deepseek";
inline constexpr std::string_view kMxfp4Stacks = "mxfp4";
inline constexpr std::string_view kGptq = "gptq";
inline constexpr std::string_view kAwq = "awq";
inline constexpr std::string_view kQuark = "quark";
inline constexpr std::string_view kGemma = "gemma";
inline constexpr std::string_view kMinimax = "minimax_m3_nvfp4";

// Limits that vLLM and SGLang share.
inline constexpr std::string_view kDynamicInstead = "--activations dynamic";
inline constexpr std::string_view kNoInputs =
    "it reads the number of bits of activations, and has none";
inline constexpr std::string_view kNoBlocksOfModelopt =
    "fp8 in dialect deepseek or compressed-tensors";
inline constexpr std::string_view kNamesOfOthers =
    "it registers weight_scale and input_scale, and renames those of transformers only for "
    "Mistral";
inline constexpr std::string_view kWholeBlocks =
    "it joins weights, and the rows of all but the last must be a multiple of the block's";
inline constexpr std::string_view kOtherBlocks = "fp8-channel or int8, which have no blocks";
inline constexpr std::string_view kInputsOfQuark =
    "it has no scheme of Quark's for such weights without quantized activations";
inline constexpr std::string_view kNoMethodGemma = "it does not know quant_method gemma";
inline constexpr std::string_view kNoInt4OfModelopt =
    "it does not know quant_algo W4A16_AWQ, nor INT4 of ModelOpt by another name";
inline constexpr std::string_view kQuarkInstead = "ingot convert --dialect compressed-tensors";
inline constexpr std::string_view kPackedInstead = "--to int4 in dialect compressed-tensors";
inline constexpr std::string_view kOrderedInstead =
    "INT4 of another --group-size, which is encoded again";
inline constexpr std::string_view kOddGroupsInstead =
    "--to int4 --group-size 32, 64 or 128, which is encoded again";
inline constexpr std::string_view kMarlinGroups =
    "its kernels for GPTQ take groups of 32, 64 or 128 columns, or rows";
inline constexpr std::string_view kGroupOnRanks =
    "a group of columns, which has one scale, would be on two ranks";
inline constexpr std::string_view kFewerRanks = "fewer ranks of tensor parallelism";
inline constexpr std::string_view kOneOrder =
    "its loaders take stacks in the order of the family's releases";
inline constexpr std::string_view kUsualOrder =
    "stacks in that order, as ingot convert writes them";
inline constexpr std::string_view kReleasedNames =
    "names of releases, as ingot convert writes them";
inline constexpr std::string_view kReleasedExperts = "what ingot convert writes, without these";
inline constexpr std::string_view kSingleExperts =
    "single experts, as ingot convert --experts separate writes them";
/// Returns the limit of a family whose tensors are not stored in the form of its releases:
/// kOtherNames or kStacks.
constexpr EngineLimit unlike_release(EngineScope scope, std::string_view family,
                                     EngineEffect effect, std::string_view reason) {
  return {.dialect = kAnyDialect,
          .scheme = std::nullopt,
          .scope = scope,
          .reason = reason,
          .instead = scope == kStacks ? kSingleExperts : kReleasedNames,
          .family = family,
          .effect = effect};
}
inline constexpr std::string_view kNoSmallerGroups =
    "it makes smaller groups of those that ranks cut, but none of less than 32 columns";
inline constexpr std::string_view kRowsOfAwq =
    "it divides by a group_size of -1 there (negative dimension)";
inline constexpr std::string_view kPlainEmbedding = "--rule role:embedding=bf16";
/// Quark's FP8 on older cards: read in QuarkW8A8Fp8.get_min_capability() of both.
constexpr EngineLimit quark_fp8_on_cards(SchemeId scheme) {
  return {.dialect = kQuark,
          .scheme = scheme,
          .scope = kAny,
          .reason = "on cards below compute capability 8.9 it refuses Quark's FP8",
          .instead = kQuarkInstead,
          .is_foreign = true,
          .effect = kRefusedOnCards};
}
inline constexpr SchemeSet kSix = {kBf16, kFp8Block, kFp8Channel, kInt8Channel, kNvfp4, kInt4Group};

}  // namespace ingot::engines
