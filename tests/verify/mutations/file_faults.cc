#include <fstream>

#include "tests/verify/mutations/edited_weights.h"
#include "tests/verify/mutations/fault.h"

namespace ingot::testing {

namespace fs = std::filesystem;

namespace {

constexpr const char* kFirst = "model-00001-of-00002.safetensors";
constexpr const char* kSecond = "model-00002-of-00002.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";
constexpr std::string_view kUp = "model.layers.2.mlp.experts.3.up_proj.weight";

void truncate_file(const Pair& pair) {
  fs::resize_file(pair.output / kSecond, fs::file_size(pair.output / kSecond) - 100);
}

// A row less, and a header that says so.
void truncate_tensor(const Pair& pair) {
  EditedWeights weights(pair.output);
  for (const std::string& name : {std::string(kUp), std::string(kUp) + "_scale"}) {
    EditedTensor& tensor = weights.at(name);
    tensor.bytes.resize(tensor.bytes.size() / tensor.shape[0] * (tensor.shape[0] - 1));
    --tensor.shape[0];
  }
  weights.save();
}

void name_other_file_in_index(const Pair& pair) {
  edit_json(pair.output / kIndex, [](formats::Json& index) {
    formats::Json& file = index.at("weight_map").at(std::string(kUp));
    file = file == kFirst ? kSecond : kFirst;
  });
}

void name_absent_tensor_in_index(const Pair& pair) {
  edit_json(pair.output / kIndex, [](formats::Json& index) {
    index.at("weight_map")["model.layers.2.mlp.experts.16.up_proj.weight"] = kFirst;
  });
}

void drop_name_from_index(const Pair& pair) {
  edit_json(pair.output / kIndex,
            [](formats::Json& index) { index.at("weight_map").erase(std::string(kUp)); });
}

void leave_old_shard(const Pair& pair) {
  fs::copy_file(pair.output / kFirst, pair.output / "model-00003-of-00003.safetensors");
}

void exchange_two_ids(const Pair& pair) {
  edit_json(pair.output / "tokenizer.json", [](formats::Json& tokenizer) {
    formats::Json& words = tokenizer.at("model").at("vocab");
    std::swap(words.at("Ġthe"), words.at("in"));
  });
}

void add_file(const Pair& pair, const char* name, std::string_view text) {
  std::ofstream(pair.output / name) << text;
}

}  // namespace

std::vector<Fault> file_faults() {
  return {
      {"chat_template_added", Good::kInt8,
       [](const Pair& pair) { add_file(pair, "chat_template.jinja", "{{ messages[0].content }}"); },
       "chat_template.jinja"},
      {"added_tokens_added", Good::kBf16,
       [](const Pair& pair) { add_file(pair, "added_tokens.json", R"({"<x>": 5})"); },
       "added_tokens.json"},
      {"special_tokens_map_added", Good::kNvfp4Ct,
       [](const Pair& pair) {
         add_file(pair, "special_tokens_map.json", R"({"eos_token": "the"})");
       },
       "special_tokens_map.json"},
      {"adapter_added", Good::kFp8,
       [](const Pair& pair) { add_file(pair, "adapter_config.json", R"({"r": 8})"); },
       "adapter_config.json"},
      {"file_truncated", Good::kInt8, truncate_file, kSecond},
      {"tensor_truncated", Good::kInt8, truncate_tensor, kUp},
      {"stale_index_names_another_file", Good::kInt8, name_other_file_in_index, kUp},
      {"stale_index_names_an_absent_tensor", Good::kBf16, name_absent_tensor_in_index,
       "model.layers.2.mlp.experts.16.up_proj.weight"},
      {"stale_index_lacks_a_tensor", Good::kNvfp4Modelopt, drop_name_from_index, kUp},
      {"stray_old_shard", Good::kInt8, leave_old_shard, "model-00003-of-00003.safetensors"},
      {"tokenizer_of_another_model", Good::kInt8, exchange_two_ids, "tokenizer.json"},
      {"tokenizer_missing", Good::kNvfp4Ct,
       [](const Pair& pair) { fs::remove(pair.output / "tokenizer.json"); }, "tokenizer.json"},
      in_json("generation_config_changed", Good::kBf16, "generation_config.json",
              "generation_config.json", [](auto& config) { config["temperature"] = 0.123; })};
}

}  // namespace ingot::testing
