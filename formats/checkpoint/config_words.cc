#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "formats/base/fd.h"
#include "formats/checkpoint/checkpoint_listing.h"
#include "formats/checkpoint/passes.h"
#include "formats/config/config_meaning.h"
#include "formats/config/keys.h"
#include "formats/config/nested_config.h"
#include "formats/dialect/dialect.h"
#include "formats/family/families.h"
#include "formats/family/family_yaml.h"
#include "formats/json/json.h"
#include "formats/storage/unread_codes.h"
#include "formats/text/list_text.h"
#include "formats/text/spelling.h"

// The words of config.json: the family, and the dialect that it names.

namespace ingot::formats {
namespace {

// Readers of all families ask for these, and for those that have a field of ModelConfig.
constexpr std::array<std::string_view, 17> kReadByAll = {
    "architectures",    "hidden_act",          "n_group",      "topk_group",
    "rope_theta",       "rope_parameters",     "rope_scaling", "moe_layer_freq",
    "mlp_layer_types",  "mlp_only_layers",     "bos_token_id", "eos_token_id",
    "pad_token_id",     "decoder_sparse_step", "qk_head_dim",  "first_k_dense_replace",
    "max_window_layers"};

// Parts of names that are about tokens, training, sampling, or other modalities.
constexpr std::array<std::string_view, 22> kOtherNames = {
    "token_id",  "token_index", "dropout",    "initializer", "loss",        "_coef",
    "auto_map",  "vision",      "image",      "video",       "audio",       "init_std",
    "use_cache", "version",     "max_length", "min_length",  "temperature", "do_sample",
    "beams",     "repetition",  "unsloth",    "_std"};

bool is_said(const Json& value) {
  return !says_nothing(value) && value != 1 && value != std::string_view() &&
         value != std::string_view("default");
}

bool is_one_kind(const Json& list, std::string_view kind) {
  return list.is_array() &&
         std::ranges::all_of(list, [&](const Json& entry) { return entry == kind; });
}

bool may_count(const std::string& key, const Json& value, const Json& keys) {
  const KeyRow* row = find_key(key);
  if (!is_said(value) || is_one_kind(value, "full_attention")) return false;
  if (row == nullptr) {
    return std::ranges::none_of(
        kOtherNames, [&](std::string_view part) { return key.find(part) != std::string::npos; });
  }
  if (!row->absent.empty() && value == Json::parse(row->absent)) return false;
  // A switch that turns its window off.
  if (key == "sliding_window" && json_member(keys, "use_sliding_window") == false) return false;
  const bool has_field = !std::holds_alternative<std::monostate>(row->field);
  return row->sense != KeySense::kElsewhere && (row->sense == KeySense::kFamily || !has_field) &&
         std::ranges::find(kReadByAll, row->key()) == kReadByAll.end();
}

/// Keys of the text model in config.json that say something, could change what is computed, and are
/// in no place where a model of `family` looks: neither among those that all models read nor in
/// the family's file. They are sorted. For a family that a user forces on a model of another.
std::vector<std::string> unread_keys(const Family& family, const ModelConfig& config) {
  std::vector<std::string> unread;
  const Json& keys = text_keys(config);
  for (const auto& [key, value] : keys.items()) {
    if (key != config.text.key && may_count(key, value, keys) && !names_key(family, key))
      unread.push_back(key);
  }
  std::ranges::sort(unread);
  return unread;
}

std::vector<std::string_view> family_names() {
  std::vector<std::string_view> names;
  for (const FamilyEntry& family : family_entries()) names.push_back(family.name);
  return names;
}

/// Adds a remark that names the built-in family which a family file next to the weights hides.
void remark_on_family(const Family& family, const ModelConfig& config,
                      std::vector<std::string>& remarks) {
  if (family.file_hash.empty()) return;
  const Family* hidden = family_of(config);
  remarks.push_back(
      hidden == nullptr
          ? fmt::format("read as family {} of {}, which is next to the weights", family.name,
                        kFamilyFileName)
          : fmt::format("read as family {} of {}, which is next to the weights and so comes before "
                        "the program's own family {} for model_type '{}' (--family {} takes that)",
                        family.name, kFamilyFileName, hidden->name, config.model_type,
                        hidden->name));
}

/// Adds a remark with the keys of a model of another family that the forced one does not read.
void remark_on_forced(const Family& family, const ModelConfig& config,
                      std::vector<std::string>& remarks) {
  constexpr std::size_t kShown = 8;
  const Family* own = family_of(config);
  if (family.forward == nullptr || !family.file_hash.empty() || own == &family) return;
  const std::vector<std::string> keys = unread_keys(family, config);
  if (keys.empty()) return;
  remarks.push_back(fmt::format(
      "read as family {}, which does not know {} of config.json{}: where they change the "
      "computation, generate and verify compute another model",
      family.name, list_text(keys, kShown),
      own == nullptr
          ? std::string()
          : fmt::format(" (model_type '{}' is of family {})", config.model_type, own->name)));
}

const Family& chosen_family(Draft& draft) {
  const ModelConfig& config = draft.config;
  const std::string& asked = draft.options.family;
  std::vector<std::string>& remarks = draft.remarks;
  if (asked == kAsStored) return *find_family("generic");
  const std::string beside = asked.empty() ? family_file_in(draft.directory) : std::string();
  if (!beside.empty()) {
    const Family& family = *find_family(beside);
    remark_on_family(family, config, remarks);
    return family;
  }
  const Family* family = asked.empty() ? family_of(config) : find_family(asked);
  if (family != nullptr && !asked.empty()) remark_on_forced(*family, config, remarks);
  if (family != nullptr) return *family;
  if (!asked.empty()) {
    throw Error(ErrorCode::kInvalidArgument, "there is no family '{}' (there are {}){}", asked,
                fmt::join(family_names(), ", "), did_you_mean(asked, family_names()));
  }
  const std::string fact = fmt::format(
      "model_type '{}'{}{} belongs to no known family", config.model_type,
      config.architecture.empty() ? std::string() : fmt::format(" ({})", config.architecture),
      config.text.key.empty()
          ? std::string()
          : fmt::format(", '{}' in {},", config.text.model_type, config.text.key));
  if (draft.options.unknown_as_generic) {
    remarks.push_back(
        fmt::format("{}: its tensors are shown as those of family generic, without roles and "
                    "layers (ingot family learn DIR makes a family)",
                    fact));
    return *find_family("generic");
  }
  throw Error(ErrorCode::kUnsupported,
              "{} (ingot family learn DIR makes one, and proves it; --family takes one of {}; "
              "--family-file a file that says what the family is, docs/families.md)",
              fact, fmt::join(family_names(), ", "))
      .in_file(kConfigName);
}

}  // namespace

bool read_config_words(Draft& draft) {
  return draft.attempt([&] {
    if (std::optional<std::string> text = read_config(draft.directory, draft.takes_any_names)) {
      draft.config = parse_model_config(*text, kConfigName);
      draft.config_text = std::move(*text);
    }
  });
}

bool choose_family(Draft& draft) {
  return draft.attempt([&] {
    const Family& family = chosen_family(draft);
    draft.config = config_of(family, draft.config);
    require_widths(family, draft.config);
    draft.takes_any_names = &family == find_family("generic");
    draft.family = &family;
  });
}

void choose_dialect(Draft& draft) {
  draft.attempt([&] {
    const Dialect* dialect = std::exchange(draft.dialect, &default_dialect(SchemeId::kBf16));
    if (dialect == nullptr) dialect = known_dialect(draft.config, draft.file_names);
    if (dialect != nullptr) {
      draft.dialect = dialect;
    } else if (!draft.takes_any_names) {
      draft.unread_form = unread_form(draft.config);
      return;
    } else {
      // An unknown form may be copied; conversions refuse codes that no reader here knows.
      draft.remarks.push_back(unread_form(draft.config).message());
    }
    draft.block = fp8_block_size(draft.config);
  });
}

void read_description(Draft& draft) {
  if (draft.unread_form) return;
  draft.attempt([&] {
    draft.description = read_description(draft.directory, *draft.dialect);
    std::optional<Error> form = unread_description(*draft.dialect, draft.description);
    if (form && draft.takes_any_names) {
      draft.remarks.push_back(form->message());
    } else {
      draft.unread_form = std::move(form);
    }
  });
}

}  // namespace ingot::formats
