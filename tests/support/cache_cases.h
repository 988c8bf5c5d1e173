#pragma once

#include <algorithm>

#include "formats/json/json.h"
#include "tests/support/test.h"
#include "tests/support/tiny_checkpoint.h"

namespace ingot::testing {

/// A checkpoint with scales of a cache, and the numbers that readers get of it
/// (tests/golden/PROVENANCE.md, `kv_scales`).
struct CacheCase {
  std::string name;
  formats::Json json;  ///< `config`, `scales`, `report`, `files`
  TinyCheckpoint checkpoint;

  void write(const std::filesystem::path& directory) const {
    checkpoint.write(directory);
    for (const char* file : {"hf_quant_config.json", "kv_cache_scales.json"}) {
      if (json.contains(file)) write_bytes(directory / file, formats::json_text(json.at(file)));
    }
  }
  [[nodiscard]] bool is_bad() const { return name.starts_with("bad-"); }
};

inline std::string bytes_of_hex(const std::string& hex) {
  std::string bytes;
  for (std::size_t i = 0; i < hex.size(); i += 2)
    bytes.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  return bytes;
}

inline void add_tensors(const formats::Json& rows, std::vector<TinyTensor>& tensors) {
  for (const formats::Json& row : rows) {
    tensors.push_back({.name = row[0].get<std::string>(),
                       .dtype = row[1].get<std::string>(),
                       .shape = row[2].get<std::vector<std::uint64_t>>(),
                       .data = row.size() > 3 ? bytes_of_hex(row[3].get<std::string>()) : ""});
  }
}

inline std::vector<CacheCase> cache_cases() {
  const formats::Json all = formats::read_json_file(
      std::filesystem::path(INGOT_SOURCE_DIR) / "tests/golden/kv_scales/cases.json", 1 << 20);
  std::vector<CacheCase> cases;
  for (const formats::Json& json : all.at("cases")) {
    CacheCase& one = cases.emplace_back();
    one.name = json.at("case").get<std::string>();
    one.json = json;
    one.checkpoint.config = formats::json_text(json.at("config"));
    for (const auto& [file, contents] : json.at("files").items()) {
      std::vector<TinyTensor>& tensors = one.checkpoint.files[file];
      if (!contents.at("weights").is_null())
        add_tensors(all.at("weights")[contents.at("weights").get<std::size_t>()], tensors);
      add_tensors(contents.at("scales"), tensors);
    }
    if (one.checkpoint.files.size() > 1) one.checkpoint.index_files();
  }
  return cases;
}

inline CacheCase cache_case(std::string_view name) {
  std::vector<CacheCase> cases = cache_cases();
  return *std::ranges::find(cases, name, &CacheCase::name);
}

}  // namespace ingot::testing
