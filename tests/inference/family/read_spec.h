#pragma once

#include <filesystem>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "formats/family/families.h"
#include "formats/json/json.h"
#include "inference/family/model_family.h"
#include "tests/support/expect_error.h"
#include "tests/support/json_edit.h"

// Specs of configs in the tree, edited, and the parts that tests look at.

namespace ingot::testing {

using formats::Json;
using formats::ModelConfig;
using namespace inference;

using Edits = std::vector<JsonEdit>;

/// The first block of a kind in a layer.
template <typename Kind>
const Kind& body(const ModelSpec& spec, std::size_t layer = 0) {
  const Kind* found = spec.layers.at(layer).find<Kind>();
  if (found == nullptr) throw std::runtime_error("no such block");
  return *found;
}

/// Which layers have an indexer of their own; the others take an earlier one's choice.
inline std::vector<bool> indexers(const ModelSpec& spec) {
  std::vector<bool> own;
  for (std::size_t l = 0; l < spec.layers.size(); ++l) {
    own.push_back(body<LatentSpec>(spec, l).indexer.has_value());
    EXPECT_EQ(body<LatentSpec>(spec, l).takes_earlier_choice, !own.back());
  }
  return own;
}

/// A config of the tree, edited.
inline ModelConfig config_of(const std::string& path, const Edits& edits = {}) {
  const std::filesystem::path directory = std::filesystem::path(INGOT_SOURCE_DIR) / path;
  const Json json = formats::read_json_file(directory / "config.json", 1 << 20);
  return formats::parse_model_config(edited(json, edits).dump(), "config.json");
}

inline ModelSpec spec_of(const std::string& path, const Edits& edits = {}) {
  const ModelConfig config = config_of(path, edits);
  return model_spec(*formats::family_of(config), config);
}

/// A model of tests/golden/forward.
inline ModelSpec forward_spec(const std::string& name, const Edits& edits = {}) {
  return spec_of("tests/golden/forward/" + name + "/checkpoint", edits);
}

inline void expect_forward_refused(const std::string& name, ErrorCode code,
                                   std::initializer_list<std::string> fragments,
                                   const Edits& edits) {
  expect_error(code, fragments, [&] { forward_spec(name, edits); });
}

}  // namespace ingot::testing
