
#include "tests/verify/mutations/edited_weights.h"
#include "tests/verify/mutations/fault.h"

namespace ingot::testing {
namespace {

constexpr std::string_view kExperts = "model.layers.2.mlp.experts.";

// Parts of modules below two prefixes, one by one.
template <typename Pairwise>
void for_each_twin(const Pair& pair, const std::string& a, const std::string& b,
                   const Pairwise& pairwise) {
  EditedWeights weights(pair.output);
  for (const std::string& name : weights.names(a))
    pairwise(weights, name, b + name.substr(a.size()));
  weights.save();
}

void exchange(const Pair& pair, const std::string& a, const std::string& b) {
  for_each_twin(pair, a, b, [](EditedWeights& weights, const auto& first, const auto& second) {
    weights.exchange(first, second);
  });
}

std::string expert(int number, const char* projection = "") {
  return std::string(kExperts) + std::to_string(number) + "." + projection;
}

void exchange_gate_and_up(const Pair& pair) {
  exchange(pair, expert(3, "gate_proj."), expert(3, "up_proj."));
}

void exchange_experts(const Pair& pair) {
  exchange(pair, expert(3), expert(9));
}

void copy_expert(const Pair& pair) {
  for_each_twin(pair, expert(9), expert(3),
                [](EditedWeights& weights, const auto& from, const auto& to) {
                  weights.at(to).bytes = weights.read(from).bytes;
                });
}

void exchange_layers(const Pair& pair) {
  exchange(pair, "model.layers.2.", "model.layers.3.");
}

void replace_norm(const Pair& pair) {
  EditedWeights weights(pair.output);
  weights.at("model.layers.2.input_layernorm.weight").bytes =
      weights.read("model.layers.3.input_layernorm.weight").bytes;
  weights.save();
}

// Rows of query head 5, of 32 + 16 values.
void zero_head(const Pair& pair) {
  constexpr std::size_t kHeadRows = 48;
  EditedWeights weights(pair.output);
  EditedTensor& query = weights.at("model.layers.2.self_attn.q_b_proj.weight");
  const std::size_t head_bytes = query.bytes.size() / query.shape[0] * kHeadRows;
  query.bytes.replace(5 * head_bytes, head_bytes, head_bytes, '\0');
  weights.save();
}

}  // namespace

std::vector<Fault> module_faults() {
  return {
      {"gate_and_up_swapped", Good::kInt8, exchange_gate_and_up, kExperts},
      {"gate_and_up_swapped_in_nvfp4", Good::kNvfp4Modelopt, exchange_gate_and_up, kExperts},
      {"experts_weights_under_anothers_name", Good::kInt8, copy_expert, kExperts},
      {"experts_weights_under_anothers_name_in_nvfp4", Good::kNvfp4Ct, copy_expert, kExperts},
      {"two_experts_swapped", Good::kInt8, exchange_experts, kExperts},
      {"two_experts_swapped_in_mxfp4", Good::kMxfp4, exchange_experts, kExperts},
      {"a_layers_norm_replaced", Good::kNvfp4Modelopt, replace_norm,
       "model.layers.2.input_layernorm.weight"},
      {"one_attention_head_zeroed", Good::kBf16, zero_head, "model.layers.2.self_attn.q_b_proj"},
      {"one_attention_head_zeroed_in_int8", Good::kInt8, zero_head,
       "model.layers.2.self_attn.q_b_proj"},
      {"two_layers_exchanged", Good::kInt8, exchange_layers, "model.layers.2."},
      {"two_layers_exchanged_in_nvfp4", Good::kNvfp4Ct, exchange_layers, "model.layers.2."}};
}

}  // namespace ingot::testing
