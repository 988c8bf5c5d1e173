#include <algorithm>
#include <array>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "check/rules/loader_rules.h"
#include "formats/base/error.h"
#include "formats/checkpoint/checkpoint.h"
#include "formats/container/safetensors.h"
#include "formats/family/family.h"
#include "tests/fuzz/target.h"

namespace ingot::fuzz {
namespace {

using formats::DType;

/// A weights file of zeros, with a weight in each kind of quantization, plain ones, and one as GPTQ
/// stores it.
class Zeros final : public formats::StoredBytes {
 public:
  Zeros() : header_(formats::safetensors_header_text(tensors())) {
    std::uint64_t n_bytes = header_.size();
    for (const formats::TensorSpec& tensor : tensors())
      n_bytes += formats::byte_count(tensor.dtype, tensor.shape).value();
    files_[0] = {.name = "model.safetensors", .n_bytes = n_bytes, .data_start = header_.size()};
  }
  [[nodiscard]] std::vector<formats::StoredTensor> stored() const {
    return formats::parse_safetensors_header(header_bytes(0), files_[0].n_bytes, files_[0].name)
        .tensors;
  }

  [[nodiscard]] std::span<const formats::SourceFile> files() const override { return files_; }
  void read(std::uint32_t /*index*/, const formats::StoredTensor& tensor, std::uint64_t offset,
            std::span<std::byte> out) const override {
    if (offset > tensor.n_bytes || out.size() > tensor.n_bytes - offset)
      throw std::logic_error("a read beyond the tensor");
    std::ranges::fill(out, std::byte{0});
  }
  [[nodiscard]] std::vector<std::byte> header_bytes(std::uint32_t /*file*/) const override {
    const auto bytes = std::as_bytes(std::span(header_));
    return {bytes.begin(), bytes.end()};
  }
  [[nodiscard]] bool has_data(std::uint32_t /*file*/) const override { return true; }
  void read_file(std::uint32_t /*file*/, std::uint64_t /*offset*/,
                 std::span<std::byte> out) const override {
    std::ranges::fill(out, std::byte{0});
  }
  void close_file(std::uint32_t /*file*/) const override {}

 private:
  static std::vector<formats::TensorSpec> tensors() {
    const std::string experts = "model.layers.0.mlp.experts.0.";
    const std::string attention = "model.layers.0.self_attn.";
    return {
        {"lm_head.weight", DType::kBf16, {32, 64}},
        {"model.embed_tokens.weight", DType::kBf16, {32, 64}},
        {"model.layers.0.input_layernorm.weight", DType::kBf16, {64}},
        {"model.layers.0.mlp.gate.weight", DType::kBf16, {4, 64}},
        {experts + "down_proj.g_idx", DType::kI32, {64}},
        {experts + "down_proj.qweight", DType::kI32, {8, 64}},
        {experts + "down_proj.qzeros", DType::kI32, {2, 8}},
        {experts + "down_proj.scales", DType::kF16, {2, 64}},
        {experts + "up_proj.weight_packed", DType::kI32, {64, 8}},
        {experts + "up_proj.weight_scale", DType::kBf16, {64, 2}},
        {experts + "up_proj.weight_shape", DType::kI32, {2}},
        {experts + "up_proj.weight_zero_point", DType::kI32, {8, 2}},
        {attention + "k_proj.weight", DType::kI8, {64, 64}},
        {attention + "k_proj.weight_scale", DType::kF32, {64, 1}},
        {attention + "o_proj.weight_global_scale", DType::kF32, {1}},
        {attention + "o_proj.weight_packed", DType::kU8, {64, 32}},
        {attention + "o_proj.weight_scale", DType::kF8E4M3, {64, 4}},
        {attention + "q_proj.weight", DType::kF8E4M3, {64, 64}},
        {attention + "q_proj.weight_scale_inv", DType::kF32, {1, 1}},
        {attention + "v_proj.weight", DType::kBf16, {64, 64}},
    };
  }

  std::string header_;
  std::array<formats::SourceFile, 1> files_;
};

}  // namespace

/// The input is a config.json, which the loader rules compare with weights of every kind.
bool accepts(std::span<const std::byte> input) {
  const std::string_view text(reinterpret_cast<const char*>(input.data()), input.size());
  try {
    formats::Draft model;
    model.file_names = {"config.json", "model.safetensors"};
    model.config = formats::parse_model_config(text, "config.json");
    model.config_text = text;
    auto zeros = std::make_unique<Zeros>();
    model.stored = zeros->stored();
    model.bytes = std::move(zeros);
    const bool is_known = formats::family_of(model.config) != nullptr;
    ErrorList faults;
    const auto checkpoint = formats::Checkpoint::assemble(
        std::move(model), {.family = is_known ? "" : "generic", .faults = &faults});
    for (const Error& fault : faults.errors()) {
      if (fault.code() == ErrorCode::kInternal) throw std::logic_error(fault.what());
    }
    for (const check::Finding& finding : check::run_loader_rules(checkpoint, {.threads = 1})) {
      if (finding.message.empty() || check::find_loader_rule(finding.rule) == nullptr)
        throw std::logic_error("a finding of no rule");
    }
    return true;
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kInternal) throw std::logic_error(error.what());
    return false;
  }
}

}  // namespace ingot::fuzz
