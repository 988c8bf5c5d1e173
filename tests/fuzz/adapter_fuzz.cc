#include <algorithm>
#include <array>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/adapters/lora.h"
#include "formats/base/error.h"
#include "formats/container/safetensors.h"
#include "formats/json/json.h"
#include "tests/fuzz/input_bytes.h"
#include "tests/fuzz/target.h"

namespace ingot::fuzz {
namespace {

using formats::Checkpoint;
using formats::ValueChange;

/// The models, by the first byte of the input: with experts one by one, in stacks of outputs by
/// inputs and the other way round, and with a head that is the embedding.
constexpr std::array<std::string_view, 4> kModels = {
    R"({"model_type":"llama","vocab_size":96,"hidden_size":32,"intermediate_size":48,
        "num_hidden_layers":2,"num_attention_heads":4,"num_key_value_heads":2,"head_dim":8,
        "attention_bias":true,"tie_word_embeddings":false})",
    R"({"model_type":"llama","vocab_size":96,"hidden_size":32,"intermediate_size":48,
        "num_hidden_layers":2,"num_attention_heads":4,"num_key_value_heads":2,"head_dim":8,
        "tie_word_embeddings":true})",
    R"({"model_type":"qwen3_moe","vocab_size":96,"hidden_size":32,"intermediate_size":48,
        "num_hidden_layers":2,"num_attention_heads":4,"num_key_value_heads":2,"head_dim":8,
        "moe_intermediate_size":24,"num_experts":4,"num_experts_per_tok":2})",
    R"({"model_type":"gpt_oss","vocab_size":96,"hidden_size":32,"intermediate_size":24,
        "num_hidden_layers":2,"num_attention_heads":4,"num_key_value_heads":2,"head_dim":8,
        "num_local_experts":3,"num_experts_per_tok":2})",
};

void require(bool holds, const char* promise) {
  if (!holds) throw std::logic_error(promise);
}

/// A model without numbers: its changes are not made.
std::shared_ptr<const Checkpoint> model_of(std::string_view config) {
  formats::Draft model;
  model.config = formats::parse_model_config(config, "config.json");
  model.config_text = config;
  model.bytes = std::make_unique<InputBytes>(std::span<const std::byte>());
  const formats::Family& family = *formats::find_family(
      formats::json_member(*model.config.raw, "model_type").get<std::string>());
  const bool is_stacked = family.name == "gpt_oss";
  formats::for_each_expected(
      family, model.config, is_stacked, [&](const formats::ExpectedTensor& tensor) {
        formats::StoredTensor stored{.name = tensor.name};
        stored.shape = formats::stored_shape(
            tensor.rule, formats::rule_shape(*tensor.rule, model.config, tensor.layer));
        stored.dtype = formats::DType::kBf16;
        stored.n_bytes = formats::byte_count(stored.dtype, stored.shape).value();
        model.stored.push_back(std::move(stored));
      });
  return std::make_shared<const Checkpoint>(Checkpoint::assemble(std::move(model)));
}

bool is_inside(const formats::Window& window, std::uint64_t side) {
  return window.n > 0 && window.step > 0 && window.first < side &&
         (window.n - 1) <= (side - 1 - window.first) / window.step;
}

/// A change lies in its tensor, and its numbers in the file.
void check_change(const formats::LogicalTensor& tensor, const ValueChange& change) {
  const std::size_t sides = tensor.shape.size();
  const std::uint64_t cols = tensor.shape.back();
  const std::uint64_t rows = sides < 2 ? 1 : tensor.shape[sides - 2];
  const std::uint64_t matrices = formats::element_count(tensor.shape).value() / rows / cols;
  require(change.matrix < matrices, "a matrix that is not there");
  require(is_inside(change.rows, rows) && is_inside(change.cols, cols), "a place outside");
  if (change.values) (void)change.values->read(0, change.rows.n, change.cols.n);
  if (const auto& pair = change.low_rank) {
    require(pair->rank > 0, "no rank");
    if (pair->left) (void)pair->left->read(0, change.rows.n, pair->rank);
    (void)pair->right.read(0, pair->rank, change.cols.n);
  }
  if (!change.lengths) return;
  const bool is_of_cols = change.lengths_are_of_cols;
  require((is_of_cols ? change.rows.n : change.cols.n) == (is_of_cols ? rows : cols),
          "lengths of a part");
  (void)change.lengths->read(0, is_of_cols ? change.cols.n : change.rows.n, 1);
}

formats::AdapterFile adapter_of(std::span<const std::byte> input) {
  const auto* const end = std::find(input.data(), input.data() + input.size(), std::byte{0});
  const auto n_text = static_cast<std::size_t>(end - input.data());
  const std::string_view text(reinterpret_cast<const char*>(input.data()), n_text);
  formats::AdapterConfig config = formats::parse_adapter_config(text, "adapter_config.json");
  const auto file = input.subspan(std::min(n_text + 1, input.size()));
  formats::Draft tensors;
  tensors.stored = formats::parse_safetensors_header(file, file.size(), "input").tensors;
  tensors.bytes = std::make_unique<InputBytes>(file);
  return formats::AdapterFile::of(
      std::move(config), std::make_shared<const Checkpoint>(Checkpoint::view(std::move(tensors))));
}

}  // namespace

/// The input is a byte that chooses the model, the text of adapter_config.json, a zero, and
/// adapter_model.safetensors.
bool accepts(std::span<const std::byte> input) {
  if (input.empty()) return false;
  static const auto kOpened = [] {
    std::vector<std::shared_ptr<const Checkpoint>> models;
    for (const std::string_view config : kModels) models.push_back(model_of(config));
    return models;
  }();
  auto model = kOpened.at(std::to_integer<std::size_t>(input[0]) % kModels.size());
  try {
    const formats::LoraAdapter adapter(adapter_of(input.subspan(1)), {});
    if (auto shaped = adapter.reshaped(model))
      model = std::make_shared<const Checkpoint>(*std::move(shaped));
    formats::ValueChanges changes;
    ErrorList faults;
    std::vector<std::string> remarks;
    adapter.add_changes(*model, changes, faults, remarks);
    faults.throw_if_any();
    for (const auto& [index, of_tensor] : changes) {
      for (const ValueChange& change : of_tensor) {
        require(change.tensor == index, "a change of another tensor");
        check_change(model->tensors()[index], change);
      }
    }
    (void)formats::json_text(adapter.record());
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kInternal) throw std::logic_error(error.what());
    return false;
  }
  return true;
}

}  // namespace ingot::fuzz
