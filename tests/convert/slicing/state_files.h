#pragma once

#include <filesystem>
#include <map>
#include <string>

#include <fmt/format.h>

#include "formats/base/hash.h"
#include "formats/family/families.h"
#include "formats/json/json.h"
#include "synth/synth.h"
#include "tests/convert/slicing/sliced.h"
#include "tests/support/bytes.h"
#include "tests/support/test.h"

// Files of ranks as loaders of sharded_state read them, next to the state dicts that the engines'
// own loaders made of the unsliced checkpoint (tests/golden/PROVENANCE.md).

namespace ingot::testing {

/// The state of one rank: key to "F8_E4M3 [256, 256] <the first 16 digits of SHA-256>".
using State = std::map<std::string, std::string>;

/// The family, with embedding and head in each MTP layer: vLLM's draft model has its own.
inline const formats::Family* with_whole_mtp_layers(const std::string& name) {
  static std::map<std::string, formats::Family> families;
  const auto [entry, is_new] = families.try_emplace(name, *formats::find_family(name));
  if (is_new) {
    entry->second.rules =
        formats::add_family(fmt::format("family: whole_mtp\nlike: {}\nchange:\n- {{roles: "
                                        "[mtp-embedding, mtp-head], present: required}}\n",
                                        name),
                            "whole_mtp.yaml")
            .rules;
  }
  return &entry->second;
}

/// The input of `fixture` of scripts/engines/sharded_state.py and sglang_state.py.
inline std::filesystem::path model_of(const std::string& family, bool fp8,
                                      std::uint32_t mtp_layers = 0,
                                      std::uint32_t dense_layers = 1) {
  static const TempDir directory;
  const std::filesystem::path path =
      directory /
      fmt::format("{}-{}-{}-{}", family, fp8 ? "fp8" : "bf16", mtp_layers, dense_layers);
  if (std::filesystem::exists(path)) return path;
  formats::write_synthetic_checkpoint(
      path,
      {.family = mtp_layers == 0 ? formats::find_family(family) : with_whole_mtp_layers(family),
       .size = formats::SynthSize::kTiny,
       .layers = 2,
       .dense_layers = dense_layers,
       .mtp_layers = mtp_layers,
       .experts = 4,
       .hidden = 256,
       .moe_intermediate = 512,
       .intermediate = 512,
       .vocab = 500,
       .heads = 32,
       .fp8 = fp8,
       .seed = 1});
  return path;
}
inline State golden_state(const std::string& folder, const std::string& job, std::uint32_t rank) {
  static const std::map<std::string, std::string> kDtypes = {
      {"bfloat16", "BF16"}, {"float32", "F32"}, {"float8_e4m3fn", "F8_E4M3"},
      {"int8", "I8"},       {"int32", "I32"},   {"int64", "I64"}};
  const formats::Json ranks = formats::read_json_file(
      fmt::format("{}/tests/golden/{}/{}.json", INGOT_SOURCE_DIR, folder, job), 1 << 20);
  State state;
  for (const auto& [key, text] : ranks.at(rank).items()) {
    const std::string facts = text.get<std::string>();
    const std::size_t space = facts.find(' ');
    state[key] = kDtypes.at(facts.substr(0, space)) + facts.substr(space);
  }
  return state;
}

inline State state_in(const std::filesystem::path& file) {
  OutputTensors tensors;
  add_file(file, tensors);
  State state;
  for (const auto& [key, tensor] : tensors) {
    state[key] = fmt::format("{} {} {}", formats::dtype_name(tensor.dtype),
                             formats::shape_text(tensor.shape), sha256(tensor.bytes).substr(0, 16));
  }
  return state;
}

inline std::filesystem::path rank_file(const std::filesystem::path& directory, std::uint32_t rank) {
  return directory / fmt::format("model-rank-{}-part-0.safetensors", rank);
}

}  // namespace ingot::testing
