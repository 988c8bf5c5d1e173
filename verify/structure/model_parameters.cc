#include "verify/structure/model_parameters.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

namespace ingot::verify {

using formats::Json;

namespace {

constexpr std::string_view kRule = "structure.config";
constexpr std::size_t kShownBytes = 200;

constexpr std::array<std::string_view, 5> kDerived = {"quantization_config", "compression_config",
                                                      "num_nextn_predict_layers",
                                                      // Who saved the file, and with what.
                                                      "transformers_version", "_name_or_path"};
constexpr std::array<std::string_view, 2> kDtypes = {"dtype", "torch_dtype"};
constexpr std::array<std::string_view, 3> kRope = {"rope_parameters", "rope_scaling", "rope_theta"};
constexpr std::array<std::string_view, 3> kPadded = {"vocab_size", "intermediate_size",
                                                     "moe_intermediate_size"};

template <std::size_t N>
bool is_one_of(const std::array<std::string_view, N>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

const Json& member(const Json& object, std::string_view key) {
  static const Json absent = nullptr;
  if (!object.is_object()) return absent;
  const auto found = object.find(std::string(key));
  return found == object.end() ? absent : *found;
}

std::string shown(const Json& value) {
  if (value.is_null()) return "absent";
  std::string text = value.dump();
  if (text.size() <= kShownBytes) return text;
  text.resize(kShownBytes);
  return text + "...";
}

// Either spelling as one object: the keys of rope_parameters, with rope_theta among them.
Json rope_of(const Json& config) {
  const Json& parameters = member(config, "rope_parameters");
  Json rope = parameters.is_object() ? parameters : member(config, "rope_scaling");
  if (!rope.is_object()) rope = Json::object();
  if (!rope.contains("rope_theta")) rope["rope_theta"] = member(config, "rope_theta");
  const Json& type = member(rope, "rope_type");
  const Json& old_type = member(rope, "type");
  const Json name = !type.is_null() ? type : !old_type.is_null() ? old_type : Json("default");
  rope.erase("type");
  rope["rope_type"] = name;
  return rope;
}

class Comparison {
 public:
  Comparison(const OutputConfig& output, StructureFindings& found)
      : output_(output), found_(found) {}

  void run(const Json& source) {
    const Json& output = output_.config;
    if (!output_.is_hub) return compare(source, output, "");
    const bool one_spelling = member(source, "rope_parameters").is_object() ==
                              member(output, "rope_parameters").is_object();
    for_each_key(source, output, [&](const std::string& key) {
      if (is_one_of(kDerived, key) || is_one_of(kDtypes, key)) return;
      if (!one_spelling && is_one_of(kRope, key)) return;
      if (output_.may_be_padded && is_padded(member(source, key), member(output, key), key)) return;
      compare(member(source, key), member(output, key), key);
    });
    if (!one_spelling) compare(rope_of(source), rope_of(output), "rope_parameters");
    dtypes(source);
  }

 private:
  template <typename Take>
  static void for_each_key(const Json& source, const Json& output, const Take& take) {
    for (const auto& [key, value] : source.items()) take(key);
    for (const auto& [key, value] : output.items()) {
      if (!source.contains(key)) take(key);
    }
  }

  static bool is_padded(const Json& source, const Json& output, std::string_view key) {
    return is_one_of(kPadded, key) && source.is_number_unsigned() && output.is_number_unsigned() &&
           output.get<std::uint64_t>() >= source.get<std::uint64_t>();
  }

  void compare(const Json& source, const Json& output, const std::string& path) {
    if (source.is_object() && output.is_object()) {
      for_each_key(source, output, [&](const std::string& key) {
        compare(member(source, key), member(output, key), path.empty() ? key : path + "." + key);
      });
      return;
    }
    if (source == output) return;
    found_.error(kRule, Error(ErrorCode::kMismatch, fmt::format("{} is {}, in the source {}", path,
                                                                shown(output), shown(source)))
                            .in_file(output_.file));
  }

  // Old and new name of the same.
  void dtypes(const Json& source) {
    const auto dtype_of = [](const Json& config) -> const Json& {
      const Json& dtype = member(config, "dtype");
      return dtype.is_null() ? member(config, "torch_dtype") : dtype;
    };
    const Json& before = dtype_of(source);
    const Json& after = dtype_of(output_.config);
    if (before == after) return;
    found_.warning(kRule, Error(ErrorCode::kMismatch, fmt::format("dtype is {}, in the source {}",
                                                                  shown(after), shown(before)))
                              .in_file(output_.file));
  }

  const OutputConfig& output_;
  StructureFindings& found_;
};

}  // namespace

void compare_model_parameters(const Json& source, const OutputConfig& output,
                              StructureFindings& found) {
  if (!source.is_object()) return;
  if (!output.config.is_object()) {
    found.error(kRule, Error(ErrorCode::kCorrupt, "is not a JSON object").in_file(output.file));
    return;
  }
  Comparison(output, found).run(source);
}

}  // namespace ingot::verify
