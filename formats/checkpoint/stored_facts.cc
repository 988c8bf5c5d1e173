#include "formats/checkpoint/stored_facts.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "formats/base/stop_scope.h"
#include "formats/checkpoint/passes.h"
#include "formats/config/config_meaning.h"
#include "formats/config/keys.h"
#include "formats/config/nested_config.h"
#include "formats/family/cache_scales.h"
#include "formats/family/usual_spellings.h"
#include "formats/json/json.h"

namespace ingot::formats {
namespace {

constexpr const char* kTied = "tie_word_embeddings";
constexpr std::size_t kHeadPieceBytes = std::size_t{1} << 20;

bool says_tied(const ModelConfig& config) {
  return config.tie_word_embeddings || json_member(*config.raw, kTied) == true;
}

// Modules of layers are called `output` and `head` too.
Role role_or_usual(const LogicalTensor& tensor) {
  if (tensor.rule != nullptr) return tensor.rule->role;
  const bool is_in_layer =
      std::ranges::any_of(tensor.name, [](char c) { return '0' <= c && c <= '9'; });
  return is_in_layer ? Role::kOther : usual_spelling(tensor.name).role;
}

}  // namespace

std::optional<TiedHead> tied_head(const TensorSource& source) {
  if (!says_tied(source.config())) return std::nullopt;
  TiedHead tied;
  for (const LogicalTensor& tensor : source.tensors()) {
    const Role role = role_or_usual(tensor);
    if (role == Role::kHead && tied.head == nullptr) tied.head = &tensor;
    if (role == Role::kEmbedding && tied.embedding == nullptr) tied.embedding = &tensor;
  }
  if (tied.head == nullptr || tied.embedding == nullptr) return std::nullopt;
  // Loaders refuse a head of another shape, and rules say so.
  if (tied.head->shape != tied.embedding->shape) return std::nullopt;
  return tied;
}

bool is_apart(const Checkpoint& source, const TiedHead& tied, std::uint64_t most_bytes) {
  const StoredParts &head = tied.head->encoding.stored, &other = tied.embedding->encoding.stored;
  const auto stored = source.stored();
  bool is_here = true, is_same_form = tied.head->encoding.scheme == tied.embedding->encoding.scheme;
  for (const StoredParts* parts : {&head, &other}) {
    const StoredParts& others = parts == &head ? other : head;
    parts->for_each([&](Part part, std::uint32_t index) {
      is_here = is_here && source.has_data(stored[index].file);
      is_same_form = is_same_form && others.has(part) &&
                     stored[index].dtype == stored[others[part]].dtype &&
                     stored[index].n_bytes == stored[others[part]].n_bytes;
    });
  }
  if (!is_here || !is_same_form) return is_here;
  bool differs = false;
  std::vector<std::byte> mine(kHeadPieceBytes), theirs(kHeadPieceBytes);
  head.for_each([&](Part part, std::uint32_t index) {
    const std::uint64_t n_bytes = std::min(stored[index].n_bytes, most_bytes);
    for (std::uint64_t offset = 0; offset < n_bytes && !differs; offset += kHeadPieceBytes) {
      StopScope::check();
      const auto n =
          static_cast<std::size_t>(std::min<std::uint64_t>(kHeadPieceBytes, n_bytes - offset));
      source.read(index, offset, std::span(mine).first(n));
      source.read(other[part], offset, std::span(theirs).first(n));
      differs = std::memcmp(mine.data(), theirs.data(), n) != 0;
    }
  });
  return differs;
}

bool has_head_apart(const Checkpoint& source) {
  const std::optional<TiedHead> tied = tied_head(source);
  return tied && is_apart(source, *tied);
}

void untie_head(const ModelConfig& config, Json& document) {
  Json& text = text_section(config, document);
  for (Json* object : {&document, &text}) {
    for (const std::string& key : find_key(kTied)->spellings) {
      if (json_member(*object, key) == true) (*object)[key] = false;
    }
  }
  // A model type may tie them where config.json says nothing.
  if (config.tie_word_embeddings) text[kTied] = false;
}

void name_tied_table(Draft& draft) {
  const Family& family = *draft.family;
  const ModelConfig& config = draft.config;
  const TensorRule* head = find_row(family, config, Role::kHead, std::nullopt);
  const TensorRule* table = find_row(family, config, Role::kEmbedding, std::nullopt);
  if (!config.tie_word_embeddings || head == nullptr || table == nullptr) return;
  const auto begin_of = [&](const TensorRule& rule) {
    const std::string name = row_name(family, config, rule, std::nullopt, std::nullopt);
    return std::string(module_name(name)) + ".";
  };
  const std::string of_head = begin_of(*head), of_table = begin_of(*table);
  const auto has = [&](const std::string& begin) {
    return std::ranges::any_of(
        draft.stored, [&](const StoredTensor& tensor) { return tensor.name.starts_with(begin); });
  };
  if (!has(of_head) || has(of_table)) return;
  draft.forget_names();
  for (StoredTensor& tensor : draft.stored) {
    if (tensor.name.starts_with(of_head)) tensor.name.replace(0, of_head.size(), of_table);
  }
  draft.table_called_head = of_head + "weight";
}

std::optional<SchemeId> narrower_dtype(const TensorSource& source) {
  const std::string& dtype = source.config().dtype;
  const std::optional<SchemeId> said = dtype == "bfloat16"  ? std::optional(SchemeId::kBf16)
                                       : dtype == "float16" ? std::optional(SchemeId::kF16)
                                                            : std::nullopt;
  if (!said) return std::nullopt;
  const bool is_wider = std::ranges::any_of(source.tensors(), [&](const LogicalTensor& tensor) {
    return tensor.rule != nullptr && tensor.rule->fp8_by_default && is_saved_wider(tensor, *said);
  });
  return is_wider ? said : std::nullopt;
}

bool is_saved_wider(const LogicalTensor& tensor, SchemeId to) {
  const SchemeFacts& from = scheme_facts(tensor.encoding.scheme);
  if (is_coded(from.id) || from.id == SchemeId::kRaw || tensor.rule == nullptr ||
      is_cache_scale(tensor.rule) || role_of(tensor) == Role::kUnknown)
    return false;
  const std::uint64_t bits = scheme_facts(to).code_bits;
  return from.code_bits > bits && dtype_bits(tensor.rule->synth_dtype) <= bits;
}

bool has_plain_only(const TensorSource& source) {
  return std::ranges::none_of(source.tensors(), [](const LogicalTensor& tensor) {
    return is_coded(tensor.encoding.scheme);
  });
}

std::string cache_words(const Checkpoint& checkpoint) {
  std::string words = cache_words(quantization_block(checkpoint.config()));
  return words.empty() ? cache_words(checkpoint.description()) : words;
}

}  // namespace ingot::formats
