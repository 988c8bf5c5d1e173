#include "formats/checkpoint/unread_keys.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <string_view>

#include "formats/config/config_meaning.h"
#include "formats/config/keys.h"
#include "formats/config/nested_config.h"
#include "formats/family/families.h"
#include "formats/json/json.h"

namespace ingot::formats {
namespace {

// Readers of all families ask for these, and for those that have a field of ModelConfig.
constexpr std::array<std::string_view, 17> kReadByAll = {
    "architectures",    "hidden_act",          "n_group",      "topk_group",
    "rope_theta",       "rope_parameters",     "rope_scaling", "moe_layer_freq",
    "mlp_layer_types",  "mlp_only_layers",     "bos_token_id", "eos_token_id",
    "pad_token_id",     "decoder_sparse_step", "qk_head_dim",  "first_k_dense_replace",
    "max_window_layers"};

// Parts of names that are about tokens, training, sampling, or other modalities.
constexpr std::array<std::string_view, 22> kOtherNames = {
    "token_id",  "token_index", "dropout",    "initializer", "loss",        "_coef",
    "auto_map",  "vision",      "image",      "video",       "audio",       "init_std",
    "use_cache", "version",     "max_length", "min_length",  "temperature", "do_sample",
    "beams",     "repetition",  "unsloth",    "_std"};

bool is_said(const Json& value) {
  return !says_nothing(value) && value != 1 && value != "" && value != "default";
}

bool is_one_kind(const Json& list, std::string_view kind) {
  return list.is_array() &&
         std::ranges::all_of(list, [&](const Json& entry) { return entry == kind; });
}

bool may_count(const std::string& key, const Json& value, const Json& keys) {
  const KeyRow* row = find_key(key);
  if (!is_said(value) || is_one_kind(value, "full_attention")) return false;
  if (row == nullptr) {
    return std::ranges::none_of(
        kOtherNames, [&](std::string_view part) { return key.find(part) != std::string::npos; });
  }
  if (!row->absent.empty() && value == Json::parse(row->absent)) return false;
  // A switch that turns its window off.
  if (key == "sliding_window" && json_member(keys, "use_sliding_window") == false) return false;
  const bool has_field = !std::holds_alternative<std::monostate>(row->field);
  return row->sense != KeySense::kElsewhere && (row->sense == KeySense::kFamily || !has_field) &&
         std::ranges::find(kReadByAll, row->key()) == kReadByAll.end();
}

}  // namespace

std::vector<std::string> unread_keys(const Family& family, const ModelConfig& config) {
  std::vector<std::string> unread;
  const Json& keys = text_keys(config);
  for (const auto& [key, value] : keys.items()) {
    if (key != config.text.key && may_count(key, value, keys) && !names_key(family, key))
      unread.push_back(key);
  }
  std::ranges::sort(unread);
  return unread;
}

}  // namespace ingot::formats
