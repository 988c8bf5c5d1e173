#include "library/converted_model.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "library/options/target_flags.h"

namespace ingot::library {

namespace {

Conversion conversion_to(std::shared_ptr<const formats::Checkpoint> source,
                         const std::string& scheme, const std::string& family,
                         std::size_t threads) {
  convert::parse_scheme_word(scheme, "--quantized");
  ConvertOptions options;
  options.input = source->directory().string();
  options.family = family;
  options.target.options["--to"] = scheme;
  return plan_conversion(options, read_target(options), std::move(source), threads);
}

}  // namespace

ConvertedModel::ConvertedModel(std::shared_ptr<const formats::Checkpoint> source,
                               const std::string& scheme, const std::string& family,
                               std::size_t threads)
    : conversion_(conversion_to(std::move(source), scheme, family, threads)),
      bytes_(conversion_.plan, threads),
      checkpoint_(convert::converted_checkpoint(conversion_.plan, bytes_, threads)) {}

bool names_scheme(const std::string& value) {
  if (std::ranges::count(offered_targets(), value) > 0) return true;
  return value.find('/') == std::string::npos && !std::filesystem::exists(value);
}

}  // namespace ingot::library
