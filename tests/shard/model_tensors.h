#pragma once

#include "formats/family/families.h"
#include "formats/family/family.h"
#include "formats/json/json.h"
#include "formats/storage/tensor_source.h"
#include "tests/support/test.h"

namespace ingot::testing {

/// The logical tensors that a family's config promises, without bytes. The config is the family's
/// reference, if it has one, with some keys changed.
class ModelTensors : public formats::TensorSource {
 public:
  ModelTensors(std::string_view family, const formats::Json& changes, bool stacked = false)
      : family_(*formats::find_family(family)), config_(changed_config(family_, changes)) {
    formats::for_each_expected(
        family_, config_, stacked, [&](const formats::ExpectedTensor& expected) {
          tensors_.push_back({.name = expected.name,
                              .shape = formats::rule_shape(*expected.rule, config_, expected.layer),
                              .encoding = {},
                              .rule = expected.rule,
                              .layer = expected.layer,
                              .expert = expected.expert});
        });
  }

  /// Adds a tensor that the config allows and does not promise.
  void add(const std::string& name) {
    const auto match = formats::NameGrammar(family_, config_).match(name);
    if (!match) throw std::invalid_argument("not of this family: " + name);
    tensors_.push_back({.name = name,
                        .shape = formats::rule_shape(*match->rule, config_, match->layer),
                        .encoding = {},
                        .rule = match->rule,
                        .layer = match->layer,
                        .expert = match->expert});
  }
  /// Adds one outside the grammar.
  void add_unknown(const std::string& name, formats::Shape shape) {
    tensors_.push_back({.name = name, .shape = std::move(shape), .encoding = {}});
  }
  void remove(formats::Role role) {
    std::erase_if(tensors_, [&](const formats::LogicalTensor& tensor) {
      return tensor.rule != nullptr && tensor.rule->role == role;
    });
  }

  [[nodiscard]] const formats::LogicalTensor& named(std::string_view name) const {
    for (const formats::LogicalTensor& tensor : tensors_) {
      if (tensor.name == name) return tensor;
    }
    throw std::invalid_argument("no tensor " + std::string(name));
  }

  [[nodiscard]] const formats::ModelConfig& config() const override { return config_; }
  [[nodiscard]] const formats::Family& family() const override { return family_; }
  [[nodiscard]] std::span<const formats::LogicalTensor> tensors() const override {
    return tensors_;
  }
  [[nodiscard]] std::span<const formats::StoredTensor> stored() const override { return {}; }
  [[nodiscard]] std::span<const formats::SourceFile> files() const override { return {}; }
  void read(std::uint32_t, std::uint64_t, std::span<std::byte>) const override {
    throw std::logic_error("has no bytes");
  }

 private:
  static formats::ModelConfig changed_config(const formats::Family& family,
                                             const formats::Json& changes) {
    formats::Json config = formats::parse_json(
        family.reference_config.empty() ? "{}" : family.reference_config, "reference");
    for (const auto& [key, value] : changes.items()) config[key] = value;
    return formats::parse_model_config(config.dump(), "changed");
  }

  const formats::Family& family_;
  formats::ModelConfig config_;
  std::vector<formats::LogicalTensor> tensors_;
};

}  // namespace ingot::testing
