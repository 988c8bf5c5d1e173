#include "verify/layers/recorded_activations.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <span>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "formats/container/dtype.h"
#include "formats/container/safetensors.h"

namespace ingot::verify {

using formats::DType;
using formats::StoredTensor;
using inference::Matrix;

namespace {

constexpr std::string_view kIds = "input_ids", kHidden = "hidden.", kLogits = "logits",
                           kLast = "logits_last", kGreedy = "greedy";

[[noreturn]] void wrong(ErrorCode code, const StoredTensor& tensor, std::string message) {
  throw Error(code, std::move(message)).in_tensor(tensor.name);
}

std::string_view after_prefix(std::string_view name) {
  // "prompt0.hidden.3": a prefix ends where a known name begins.
  for (const std::string_view known : {kIds, kHidden, kLast, kLogits, kGreedy}) {
    const std::size_t at = name.rfind(known);
    if (at == std::string_view::npos || (at > 0 && name[at - 1] != '.')) continue;
    const std::string_view rest = name.substr(at);
    if (known == kHidden || rest == known) return rest;
  }
  return {};
}

std::optional<std::size_t> hidden_index(std::string_view name) {
  if (!name.starts_with(kHidden)) return std::nullopt;
  const std::string_view digits = name.substr(kHidden.size());
  std::size_t index = 0;
  const auto [end, failure] = std::from_chars(digits.data(), digits.data() + digits.size(), index);
  if (failure != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  return index;
}

void require_shape(const StoredTensor& tensor, const formats::Shape& shape, const char* why) {
  if (tensor.dtype != DType::kF32) {
    wrong(ErrorCode::kCorrupt, tensor,
          fmt::format("is {}, but activations are recorded as F32",
                      formats::dtype_name(tensor.dtype)));
  }
  if (tensor.shape == shape) return;
  wrong(ErrorCode::kShapeMismatch, tensor,
        fmt::format("is {}, but must be {} ({})", formats::shape_text(tensor.shape),
                    formats::shape_text(shape), why));
}

}  // namespace

RecordedActivations::RecordedActivations(const std::filesystem::path& path,
                                         const inference::ModelSpec& spec)
    : file_(Fd::open_for_reading(path)), spec_(spec) {
  try {
    const formats::SafetensorsHeader header = formats::read_safetensors_header(file_);
    for (const auto& [key, value] : header.metadata) {
      if (key == "source" && !value.empty()) recorded_by_ = value;
    }
    std::map<std::string, std::vector<const StoredTensor*>> by_prefix;
    for (const StoredTensor& tensor : header.tensors) {
      const std::string_view known = after_prefix(tensor.name);
      if (known.empty()) continue;
      by_prefix[tensor.name.substr(0, tensor.name.size() - known.size())].push_back(&tensor);
    }
    for (const auto& [prefix, tensors] : by_prefix) {
      const auto first = std::find_if(
          tensors.begin(), tensors.end(),
          [&](const StoredTensor* tensor) { return after_prefix(tensor->name) == kIds; });
      if (first == tensors.end()) {
        wrong(ErrorCode::kCorrupt, *tensors.front(),
              fmt::format("is here without '{}{}'", prefix, kIds));
      }
      RecordedPrompt& prompt = prompts_.emplace_back();
      prompt.prefix = prefix;
      prompt.ids = ids(**first);
      if (prompt.ids.empty()) wrong(ErrorCode::kCorrupt, **first, "holds no token");
      for (const StoredTensor* tensor : tensors) {
        take(prompt, std::string_view(tensor->name).substr(prefix.size()), *tensor);
      }
    }
    // prompt2 before prompt10.
    std::sort(prompts_.begin(), prompts_.end(), [](const auto& a, const auto& b) {
      return std::pair(a.prefix.size(), a.prefix) < std::pair(b.prefix.size(), b.prefix);
    });
    if (prompts_.empty()) {
      throw Error(ErrorCode::kCorrupt, fmt::format("holds no '{}', so no activations", kIds));
    }
  } catch (Error& error) {
    error.in_file(path.filename().string());
    throw;
  }
}

void RecordedActivations::take(RecordedPrompt& prompt, std::string_view name,
                               const StoredTensor& tensor) {
  const std::uint64_t n_tokens = prompt.ids.size();
  if (const auto index = hidden_index(name)) {
    if (*index > spec_.layers) {
      wrong(ErrorCode::kShapeMismatch, tensor,
            fmt::format("is beyond the {} layers of the model", spec_.layers));
    }
    require_shape(tensor, {n_tokens, spec_.hidden}, "tokens of input_ids, hidden size");
    prompt.hidden[*index] = tensor;
  } else if (name == kLogits) {
    require_shape(tensor, {n_tokens, spec_.vocab}, "tokens of input_ids, vocabulary");
    prompt.logits = tensor;
  } else if (name == kLast) {
    require_shape(tensor, {spec_.vocab}, "vocabulary");
    prompt.logits_last = tensor;
  } else if (name == kGreedy) {
    prompt.greedy = ids(tensor);
  }
}

std::vector<std::int32_t> RecordedActivations::ids(const StoredTensor& tensor) const {
  const bool is_wide = tensor.dtype == DType::kI64;
  if (tensor.shape.size() != 1 || (!is_wide && tensor.dtype != DType::kI32)) {
    wrong(ErrorCode::kCorrupt, tensor, "is not a list of I64 or I32 token ids");
  }
  std::vector<std::int64_t> values(tensor.shape[0]);
  if (is_wide) {
    file_.read_exact(std::as_writable_bytes(std::span(values)), tensor.offset);
  } else {
    std::vector<std::int32_t> narrow(values.size());
    file_.read_exact(std::as_writable_bytes(std::span(narrow)), tensor.offset);
    std::copy(narrow.begin(), narrow.end(), values.begin());
  }
  std::vector<std::int32_t> ids;
  for (const std::int64_t value : values) {
    if (value < 0 || static_cast<std::uint64_t>(value) >= spec_.vocab) {
      wrong(ErrorCode::kCorrupt, tensor,
            fmt::format("token id {} is not within the vocabulary of {}", value, spec_.vocab));
    }
    ids.push_back(static_cast<std::int32_t>(value));
  }
  return ids;
}

Matrix RecordedActivations::rows(const StoredTensor& tensor, std::size_t first,
                                 std::size_t count) const {
  const std::size_t cols = static_cast<std::size_t>(tensor.shape.back());
  Matrix rows(count, cols);
  file_.read_exact(std::as_writable_bytes(rows.values()),
                   tensor.offset + first * cols * sizeof(float));
  const auto values = rows.values();
  if (!std::all_of(values.begin(), values.end(),
                   [](float value) { return std::isfinite(value); })) {
    throw Error(ErrorCode::kNonFinite, "holds NaN or infinite values")
        .in_file(std::filesystem::path(file_.path()).filename().string())
        .in_tensor(tensor.name);
  }
  return rows;
}

}  // namespace ingot::verify
