#include "formats/adapters/reshaped_model.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "formats/adapters/layer_places.h"
#include "formats/base/error.h"
#include "formats/checkpoint/checkpoint_listing.h"
#include "formats/checkpoint/stored_facts.h"
#include "formats/config/keys.h"
#include "formats/config/nested_config.h"
#include "formats/experts/expert_view.h"
#include "formats/family/usual_spellings.h"
#include "formats/json/json.h"
#include "formats/json/json_form.h"
#include "formats/storage/encoding.h"

// Tokens that were added before training (resize_token_embeddings) are rows that the base lacks;
// where it was padded, rows are missing in the adapter. The model is seen with as many rows, and
// the adapter's numbers then take their places as any others do.

namespace ingot::formats {
namespace {

constexpr std::string_view kVocabulary = "vocab_size";
constexpr std::string_view kEmbedding = "embed_tokens.weight";

/// The adapter against the model's tensors that have a row for each token.
class Reshaping {
 public:
  Reshaping(const AdapterFile& adapter, const Checkpoint& model)
      : adapter_(adapter), model_(model), places_(model), n_tokens_(model.config().vocab_size) {}

  /// True if the model has another shape than the adapter.
  bool find() {
    for (const auto& [name, stored] : adapter_.replaced()) {
      const auto index = places_.tensor(name);
      if (!index || !has_token_rows(model_.tensors()[*index])) continue;
      const Shape &own = model_.tensors()[*index].shape, &given = adapter_.tensor(stored).shape;
      const bool fits = given.size() == own.size() &&
                        std::equal(own.begin() + 1, own.end(), given.begin() + 1, given.end());
      if (!fits) continue;  // refused with the others of another shape
      given_.emplace(*index, stored);
      sizes_.emplace(given.front(), stored);
    }
    for (const auto& [name, module] : adapter_.modules()) {
      const auto* ids = module.token_rows == kNoTensor ? nullptr : adapter_.config().ids_of(name);
      const auto place = places_.linear(name);
      if (ids == nullptr || ids->empty() || !place) continue;
      std::set<std::uint64_t>& added = added_[place->tensor];
      for (const std::uint64_t id : *ids) {
        if (id >= n_tokens_) added.insert(id);
      }
      if (!added.empty() && !given_.contains(place->tensor))
        sizes_.emplace(*added.rbegin() + 1, module.token_rows);
    }
    find_head();
    return is_resized() || head_ != nullptr;
  }

  Checkpoint view(const std::shared_ptr<const Checkpoint>& source) {
    require_one_size();
    Json document = *model_.config().raw;
    if (is_resized()) state_size(document);
    if (head_ != nullptr) untie_head(model_.config(), document);
    Draft draft = model_.draft_of_view();
    draft.config = config_of_view(model_, document);
    if (is_resized() && draft.config.vocab_size != size()) {
      throw Error(ErrorCode::kUnsupported,
                  "says the number of tokens in a way that is not known here, so that it cannot be "
                  "made {}",
                  size())
          .in_file((model_.directory() / std::string(kConfigName)).string());
    }
    draft.config_text = json_text(document, json_form_of(model_.config_text()));
    ExpertView shaped(model_);
    for (std::uint32_t i = 0; i < model_.tensors().size(); ++i) {
      const LogicalTensor& tensor = model_.tensors()[i];
      LogicalTensor made =
          is_resized() && has_token_rows(tensor) ? resized(shaped, i) : kept(shaped, tensor);
      const bool is_table = role_of(tensor) == Role::kEmbedding && !tensor.layer;
      if (head_ != nullptr && is_table) add_head(shaped, i, made);
      shaped.add(std::move(made));
    }
    faults_.throw_if_any();
    return shaped.finish(source, std::move(draft));
  }

 private:
  [[nodiscard]] bool is_resized() const { return !sizes_.empty() && size() != n_tokens_; }
  [[nodiscard]] std::uint64_t size() const { return sizes_.rbegin()->first; }

  template <typename... Args>
  void fault(std::uint32_t stored, ErrorCode code, fmt::format_string<Args...> format,
             Args&&... args) {
    faults_.add(fault_of(adapter_.numbers()->source().files(), adapter_.tensor(stored), code,
                         format, std::forward<Args>(args)...)
                    .in_directory(adapter_.directory().string()));
  }

  [[nodiscard]] bool has_token_rows(const LogicalTensor& tensor) const {
    if (tensor.shape.empty() || tensor.shape.size() > 2 || tensor.shape.front() != n_tokens_)
      return false;
    if (tensor.rule == nullptr) {
      const Role role = usual_spelling(tensor.name).role;
      return role == Role::kEmbedding || role == Role::kHead;
    }
    if (tensor.rule->any_shape) return false;
    ModelConfig more = model_.config();
    ++more.vocab_size;
    return rule_shape(*tensor.rule, more, tensor.layer).front() == n_tokens_ + 1;
  }

  // A head without a tensor that the adapter changes.
  void find_head() {
    const ModelConfig& config = model_.config();
    if (!config.tie_word_embeddings) return;
    const TensorRule* row = find_row(model_.family(), config, Role::kHead, std::nullopt);
    if (row == nullptr) return;
    head_name_ = row_name(model_.family(), config, *row, std::nullopt, std::nullopt);
    if (places_.tensor(head_name_)) return;
    for (const auto& [name, module] : adapter_.modules()) {
      if (places_.may_be(fmt::format("{}.weight", name), head_name_) &&
          (module.a != kNoTensor || module.token_rows != kNoTensor))
        head_ = row;
    }
    for (const auto& [name, stored] : adapter_.replaced()) {
      if (!places_.may_be(name, head_name_) || repeats_embedding(adapter_, stored)) continue;
      head_ = row;
      head_given_ = stored;
      const Shape& shape = adapter_.tensor(stored).shape;
      if (shape.size() == 2 && shape.back() == config.hidden_size)
        sizes_.emplace(shape.front(), stored);
    }
  }

  void require_one_size() {
    if (sizes_.size() < 2) return;
    const auto &least = *sizes_.begin(), &most = *sizes_.rbegin();
    fault(most.second, ErrorCode::kShapeMismatch,
          "is of {} tokens, and '{}' of {}: an adapter has one vocabulary", most.first,
          adapter_.tensor(least.second).name, least.first);
    faults_.throw_if_any();
  }

  // Every place that says the number of tokens of the text model.
  void state_size(Json& document) const {
    Json& text = text_section(model_.config(), document);
    for (Json* object : {&document, &text}) {
      for (const std::string& key : find_key(kVocabulary)->spellings) {
        if (json_member(*object, key.c_str()) == n_tokens_) (*object)[key] = size();
      }
    }
    text[spelling_in(text_keys(model_.config()), kVocabulary)] = size();
  }

  static LogicalTensor kept(ExpertView& view, LogicalTensor tensor, std::string_view name = {}) {
    StoredParts parts;
    tensor.encoding.stored.for_each([&](Part part, std::uint32_t stored) {
      parts.set(part, name.empty() ? view.keep(stored) : view.keep(stored, std::string(name)));
    });
    tensor.encoding.stored = parts;
    return tensor;
  }

  // True if the adapter gives every row that the model lacks.
  [[nodiscard]] bool has_new_rows(std::uint32_t index) const {
    if (size() < n_tokens_ || given_.contains(index)) return true;
    const auto added = added_.find(index);
    return added != added_.end() && added->second.size() == size() - n_tokens_;
  }

  // Says, with the remedy, why the rows of a tensor cannot be others.
  bool require_plain(const LogicalTensor& tensor) {
    if (!is_coded(tensor.encoding.scheme)) return true;
    faults_.add(Error(ErrorCode::kUnsupported,
                      "is quantized, and the adapter has another vocabulary, or a head of its own "
                      "(convert it first with --rule '{}=bf16', and fold the adapter into the "
                      "result)",
                      tensor.name)
                    .in_tensor(tensor.name));
    return false;
  }

  LogicalTensor resized(ExpertView& view, std::uint32_t index, std::string name = {}) {
    LogicalTensor tensor = model_.tensors()[index];
    if (!require_plain(tensor)) return tensor;
    if (name.empty() && !has_new_rows(index)) {
      faults_.add(Error(ErrorCode::kUnsupported,
                        "has a row for each of {} tokens, and the adapter, which has {}, does not "
                        "give its other rows (save it with modules_to_save; layers for drafts "
                        "are left out by a convert --mtp drop before this one)",
                        n_tokens_, size())
                      .in_tensor(tensor.name));
      return tensor;
    }
    const std::uint32_t stored = tensor.encoding.stored.weight();
    const StoredTensor& whole = model_.stored()[stored];
    const std::uint64_t row_bytes = whole.n_bytes / n_tokens_;
    View rows{.nest = Nest(8, {{.n = size() * row_bytes, .stride = 1}}),
              .pieces = {{.stored = stored}}};
    if (size() > n_tokens_) {
      rows.nest = Nest(8, {{.n = size(), .pieces = 1}, {.n = row_bytes, .stride = 1}});
      rows.pieces.clear();
      for (std::uint64_t row = 0; row < size(); ++row)
        rows.pieces.push_back(
            {.stored = stored, .offset = std::min(row, n_tokens_ - 1) * row_bytes});
    }
    Shape shape = whole.shape;
    shape.front() = size();
    tensor.shape.front() = size();
    if (name.empty()) name = whole.name;
    tensor.encoding.stored =
        StoredParts(view.add(std::move(name), std::move(shape), std::move(rows)));
    return tensor;
  }

  void add_head(ExpertView& view, std::uint32_t embedding, const LogicalTensor& table) {
    if (!require_plain(model_.tensors()[embedding])) return;
    // Added rows are copies until the adapter's take their places, so it has to give them.
    if (is_resized() && size() > n_tokens_ && head_given_ == kNoTensor) {
      faults_.add(Error(ErrorCode::kUnsupported,
                        "would be a head of its own with {} tokens, and the adapter does not give "
                        "its rows (save it with modules_to_save)",
                        size())
                      .in_tensor(head_name_));
      return;
    }
    LogicalTensor head = is_resized() ? resized(view, embedding, head_name_)
                                      : kept(view, model_.tensors()[embedding], head_name_);
    head.name = head_name_;
    head.rule = head_;
    head.shape = table.shape;
    view.add(std::move(head));
  }

  const AdapterFile& adapter_;
  const Checkpoint& model_;
  const LayerPlaces places_;
  const std::uint64_t n_tokens_;
  ErrorList faults_;
  std::map<std::uint32_t, std::uint32_t> given_;  // tensors of the adapter, by the model's
  std::map<std::uint32_t, std::set<std::uint64_t>> added_;  // rows behind the last, likewise
  std::map<std::uint64_t, std::uint32_t> sizes_;  // numbers of tokens, and a tensor of each
  const TensorRule* head_ = nullptr;              // of a head that is made; null: none is
  std::uint32_t head_given_ = kNoTensor;
  std::string head_name_;
};

}  // namespace

std::optional<Checkpoint> with_shape_of(const AdapterFile& adapter,
                                        const std::shared_ptr<const Checkpoint>& model) {
  if (model->config().vocab_size == 0) return std::nullopt;
  Reshaping reshaping(adapter, *model);
  if (!reshaping.find()) return std::nullopt;
  return reshaping.view(model);
}

bool repeats_embedding(const AdapterFile& adapter, std::uint32_t head) {
  return std::ranges::any_of(adapter.replaced(), [&](const auto& entry) {
    const auto& [name, stored] = entry;
    return stored != head && name.ends_with(kEmbedding) && adapter.holds_same(stored, head);
  });
}

}  // namespace ingot::formats
