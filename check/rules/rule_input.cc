#include "check/rules/rule_input.h"

#include <cmath>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "engines/verdicts.h"
#include "formats/base/chunks.h"
#include "formats/base/fd.h"
#include "formats/json/json.h"
#include "formats/storage/block_scales.h"

namespace ingot::check {

RuleFacts::RuleFacts(const Checkpoint& checkpoint, std::uint64_t ranks)
    : EngineInput(checkpoint), checkpoint_(checkpoint), ranks_(ranks) {}

const EngineLimitsMet& RuleFacts::engine_limits() const {
  if (!engine_limits_) {
    const std::vector<engines::EngineWeight> weights =
        engines::engine_weights(checkpoint_, *this, {.tensor_parallel = ranks_});
    engine_limits_.emplace(checkpoint_.dialect());
    for (const engines::EngineWeight& weight : weights) engine_limits_->add(weight);
  }
  return *engine_limits_;
}

const formats::MissingTensors& RuleFacts::missing() const {
  if (!missing_) missing_.emplace(checkpoint_);
  return *missing_;
}

const Vocabulary& RuleFacts::vocabulary() const {
  if (!vocabulary_)
    vocabulary_ = read_vocabulary(checkpoint_.directory() / "tokenizer.json", "tokenizer.json");
  return *vocabulary_;
}

const StoredTensor* RuleInput::part_of(const LogicalTensor& tensor, Part part) const {
  const formats::StoredParts& parts = tensor.encoding.stored;
  return parts.has(part) ? &checkpoint.stored()[parts[part]] : nullptr;
}

std::vector<const StoredTensor*> RuleInput::parts_of_weights(
    std::initializer_list<Part> parts) const {
  std::vector<const StoredTensor*> found;
  for (const LogicalTensor& tensor : weights()) {
    if (!is_about(tensor.encoding.scheme)) continue;
    for (const Part part : parts) {
      if (const StoredTensor* stored = part_of(tensor, part)) found.push_back(stored);
    }
  }
  return found;
}

bool RuleInput::may_read(const StoredTensor& tensor) const {
  if (!checkpoint.has_data(tensor.file)) return false;
  if (tensor.n_bytes <= options.most_bytes) return true;
  facts.unread.insert(&tensor);
  return false;
}

bool may_hide_codes(const Checkpoint& checkpoint) {
  const formats::SlicingRecord* slicing = checkpoint.slicing();
  return (slicing != nullptr && (slicing->pp > 1 || slicing->ep > 1)) ||
         std::ranges::any_of(checkpoint.tensors(), [](const LogicalTensor& tensor) {
           return is_read_only(tensor.encoding.scheme);
         });
}

namespace {

// Whole numbers of any dtype in a piece.
static_assert(kPieceBytes % 8 == 0 && kHashChunkBytes % kPieceBytes == 0);

std::uint32_t index_of(const Checkpoint& checkpoint, const StoredTensor& tensor) {
  return static_cast<std::uint32_t>(&tensor - checkpoint.stored().data());
}

void widen(DType dtype, std::span<const std::byte> bytes, std::vector<float>& values) {
  values.resize(bytes.size() / (dtype_bits(dtype) / 8));
  formats::widen_scales(dtype, bytes, std::nullopt, values);
}

// True if the numbers of a stored tensor can be read as scales: a dtype that widen_scales knows
// (I64 too: Ascend's F32 bits), and data that are here.
bool can_read_scales(const Checkpoint& checkpoint, const StoredTensor& tensor) {
  switch (tensor.dtype) {
    case DType::kF32:
    case DType::kBf16:
    case DType::kF16:
    case DType::kF8E4M3:
    case DType::kF8E8M0:
    case DType::kU8:
    case DType::kI64:
      return checkpoint.has_data(tensor.file);
    default:
      return false;
  }
}

// Adds the values of a piece that follows.
void append(OddValues& odd, const OddValues& next) {
  if (odd.n == 0 && next.n != 0) {
    odd.first = odd.total + next.first;
    odd.value = next.value;
  }
  odd.n += next.n;
  odd.total += next.total;
}

}  // namespace

std::vector<std::pair<const StoredTensor*, OddValues>> find_odd(
    const OddSearch& search, std::span<const StoredTensor* const> tensors, const Look& look) {
  std::vector<std::uint64_t> sizes;
  std::vector<std::vector<OddValues>> chunks;
  for (const StoredTensor* tensor : tensors) {
    sizes.push_back(tensor->n_bytes);
    chunks.emplace_back(count_chunks(tensor->n_bytes));
  }
  const auto look_at = [&](const Chunk& chunk, std::span<std::byte> memory) {
    const StoredTensor& tensor = *tensors[chunk.run];
    OddValues& odd = chunks[chunk.run][chunk.index()];
    for_each_piece(
        chunk, memory,
        [&](std::uint64_t offset, std::span<std::byte> out) {
          search.checkpoint.read(index_of(search.checkpoint, tensor), offset, out);
        },
        [&](std::span<const std::byte> bytes, std::uint64_t) { append(odd, look(tensor, bytes)); });
  };
  for_each_chunk(sizes, search.threads, look_at);
  std::vector<std::pair<const StoredTensor*, OddValues>> found;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    OddValues odd;
    for (const OddValues& chunk : chunks[i]) append(odd, chunk);
    if (odd.n != 0) found.emplace_back(tensors[i], odd);
  }
  return found;
}

std::vector<std::pair<const StoredTensor*, OddValues>> find_odd_scales(
    const OddSearch& search, std::span<const StoredTensor* const> scales, bool (*is_odd)(float)) {
  std::vector<const StoredTensor*> readable;
  for (const StoredTensor* scale : scales) {
    if (can_read_scales(search.checkpoint, *scale)) readable.push_back(scale);
  }
  return find_odd(search, readable,
                  [is_odd](const StoredTensor& tensor, std::span<const std::byte> bytes) {
                    OddValues odd;
                    std::vector<float> values;
                    widen(tensor.dtype, bytes, values);
                    odd.total = values.size();
                    for (std::size_t i = 0; i < values.size(); ++i) {
                      if (!is_odd(values[i]) || odd.n++ != 0) continue;
                      odd.first = i;
                      odd.value = values[i];
                    }
                    return odd;
                  });
}

std::optional<float> first_scale(const Checkpoint& checkpoint, const StoredTensor& tensor) {
  if (!can_read_scales(checkpoint, tensor) || tensor.n_bytes == 0) return std::nullopt;
  std::vector<std::byte> bytes(dtype_bits(tensor.dtype) / 8);
  checkpoint.read(index_of(checkpoint, tensor), 0, bytes);
  std::vector<float> value;
  widen(tensor.dtype, bytes, value);
  return value.front();
}

bool is_bad_scale(float scale) {
  return !(scale > 0 && std::isfinite(scale));
}

namespace {

constexpr std::uint64_t kMaxTokenizerBytes = std::uint64_t{256} << 20;

class VocabularySearch final : public formats::JsonEvents {
 public:
  explicit VocabularySearch(Vocabulary& found) : found_(found) {}

  void begin_object() override { open(true); }
  void begin_array() override { open(false); }
  void end() override { keys_.pop_back(); }
  void key(std::string_view name) override {
    note();
    keys_.back() = name;
  }
  void value(formats::Json&& scalar) override {
    note();
    if (keys_.size() == 3 && keys_[0] == "added_tokens" && keys_[2] == "id" &&
        scalar.is_number_unsigned())
      found_.added_ids.push_back(scalar.get<std::uint64_t>());
  }

 private:
  void open(bool is_object) {
    note();
    if (keys_.size() == 1 && keys_[0] == "model") found_.has_model = is_object;
    keys_.emplace_back();
  }
  // Something is inside of model.vocab.
  void note() {
    found_.has_entries =
        found_.has_entries || (keys_.size() == 3 && keys_[0] == "model" && keys_[1] == "vocab");
  }

  Vocabulary& found_;
  std::vector<std::string> keys_;  // last key of each open object; empty for a list
};

}  // namespace

Vocabulary read_vocabulary(const std::filesystem::path& path, std::string_view bare) {
  Vocabulary found;
  try {
    VocabularySearch search(found);
    formats::parse_json_events(read_text_file(path, kMaxTokenizerBytes), bare, search);
  } catch (const Error& error) {
    found.fault = error;
  }
  return found;
}

}  // namespace ingot::check
