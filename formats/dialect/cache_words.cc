#include "formats/dialect/cache_words.h"

#include <algorithm>
#include <array>
#include <string>

#include "formats/base/words.h"
#include "formats/config/config_meaning.h"
#include "formats/dialect/modelopt.h"
#include "formats/json/json.h"

namespace ingot::formats {
namespace {

constexpr const char *kCacheScheme = "kv_cache_scheme", *kCacheAlgo = "kv_cache_quant_algo";

// All keys that the serializer of compressed-tensors 0.19 writes.
void declare_compressed(Json& block, Json& /*description*/) {
  if (block.is_null()) {
    block = {{"quant_method", "compressed-tensors"},
             {"format", "dense"},
             {"quantization_status", "frozen"},
             {"config_groups", Json::object()},
             {"ignore", Json::array()}};
  }
  block[kCacheScheme] = {{"num_bits", 8},
                         {"type", "float"},
                         {"symmetric", true},
                         {"strategy", "tensor"},
                         {"dynamic", false},
                         {"group_size", nullptr},
                         {"block_structure", nullptr},
                         {"actorder", nullptr},
                         {"observer", "static_minmax"},
                         {"observer_kwargs", Json::object()},
                         {"scale_dtype", nullptr},
                         {"zp_dtype", nullptr}};
}

void declare_modelopt(Json& block, Json& description) {
  if (block.is_null()) block = {{"producer", modelopt_producer()}, {"quant_method", "modelopt"}};
  block[kCacheScheme] = {{"dynamic", false}, {"num_bits", 8}, {"type", "float"}};
  if (description.is_null()) {
    description = {{"producer", modelopt_producer()},
                   {"quantization", {{"exclude_modules", Json::array()}}}};
  }
  description["quantization"][kCacheAlgo] = "FP8";
}

constexpr std::array kCacheDialects = {
    CacheDialect{"compressed-tensors", kPlainCacheNames, declare_compressed},
    CacheDialect{"modelopt", kProjectionCacheNames, declare_modelopt},
    CacheDialect{"deepseek", kProjectionCacheNames, nullptr}};

DeclaredCache declared_by(const Json& value) {
  if (says_nothing(value) || value == std::string_view("auto")) return DeclaredCache::kNone;
  if (value.is_object()) {
    const bool is_fp8 = json_member(value, "num_bits") == 8 && text_at(value, "type") == "float" &&
                        json_member(value, "dynamic") != true &&
                        json_member(value, "symmetric") != false;
    return is_fp8 ? DeclaredCache::kFp8 : DeclaredCache::kOther;
  }
  if (!value.is_string()) return DeclaredCache::kOther;
  const std::string word = lower_case(value.get_ref<const std::string&>());
  // `static` is AutoFP8's word, of quant_method fp8.
  constexpr std::array<std::string_view, 4> kFp8Words = {"fp8", "fp8_e4m3", "float8_e4m3fn",
                                                         "static"};
  return std::ranges::find(kFp8Words, word) != kFp8Words.end() ? DeclaredCache::kFp8
                                                               : DeclaredCache::kOther;
}

}  // namespace

const CacheDialect* find_cache_dialect(std::string_view dialect) {
  const auto* found = std::ranges::find(kCacheDialects, dialect, &CacheDialect::name);
  return found == kCacheDialects.end() ? nullptr : found;
}

DeclaredCache declared_cache(const Json& object) {
  if (!object.is_object()) return DeclaredCache::kNone;
  DeclaredCache declared = declared_cache(json_member(object, "quantization"));
  for (const auto& [key, value] : object.items()) {
    if (!key.starts_with("kv_cache")) continue;
    // Layers of their own numbers, and keys of later versions.
    const DeclaredCache own = key == kCacheScheme || key == kCacheAlgo ? declared_by(value)
                              : says_nothing(value)                    ? DeclaredCache::kNone
                                                                       : DeclaredCache::kOther;
    declared = std::max(declared, own);
  }
  return declared;
}

}  // namespace ingot::formats
