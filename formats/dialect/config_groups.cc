#include "formats/dialect/config_groups.h"

#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "formats/base/words.h"
#include "formats/config/config_meaning.h"
#include "formats/dialect/dialect_table.h"
#include "formats/json/json.h"
#include "formats/modules/module_list.h"
#include "formats/text/spelling.h"

namespace ingot::formats {
namespace {

constexpr std::string_view kRegexMark = "re:";
// Each is tried on every module of the model: a microsecond and more.
constexpr std::size_t kMaxPatterns = 2'000;
constexpr std::uint64_t kMaxBlockSide = std::uint64_t{1} << 32;

constexpr std::array<std::string_view, 5> kGroupKeys = {"targets", "weights", "input_activations",
                                                        "output_activations", "format"};
constexpr std::array<std::string_view, 12> kArgumentKeys = {
    "actorder",        "block_structure", "dynamic",  "group_size", "num_bits", "observer",
    "observer_kwargs", "scale_dtype",     "strategy", "symmetric",  "type",     "zp_dtype"};

/// The form of a scheme in compressed-tensors.
struct GroupForm {
  SchemeId scheme{};
  std::string_view type;
  std::uint32_t num_bits = 8;
  std::string_view strategy;
  std::string_view at_run_time;       ///< strategy of activations with kDynamic
  std::string_view beforehand = "";   ///< strategy of activations with kStatic
  std::uint32_t group_size = 0;       ///< 0: the strategy has none, or a checkpoint chooses
  std::string_view scale_dtype = "";  ///< dtype of scales that are neither F32 nor BF16
  /// Strategy of whole rows, where columns are chosen; for INT8 that of whole matrices, whose scale
  /// is viewed once for each row (Encoding::rows_of_scales).
  std::string_view row_strategy = "";
  /// Type and bits of activations, where they are other numbers than the weights' codes.
  std::string_view input_type = "";
  std::uint32_t input_bits = 0;
};

constexpr std::array kForms = {
    GroupForm{SchemeId::kFp8Block, "float", 8, "block", "group"},
    GroupForm{SchemeId::kFp8Channel, "float", 8, "channel", "token", "tensor"},
    GroupForm{SchemeId::kFp8Tensor, "float", 8, "tensor", "token", "tensor"},
    GroupForm{SchemeId::kInt8Channel, "int", 8, "channel", "token", "tensor", 0, "", "tensor"},
    GroupForm{SchemeId::kNvfp4, "float", 4, "tensor_group", "", "tensor_group", 16,
              "torch.float8_e4m3fn"},
    GroupForm{SchemeId::kMxfp4, "float", 4, "group", "group", "", 32, "torch.uint8"},
    GroupForm{SchemeId::kMxfp8, "float", 8, "group", "group", "", 32, "torch.uint8"},
    GroupForm{SchemeId::kInt4Group, "int", 4, "group", "token", "", 0, "", "channel", "float", 8},
};

const GroupForm& form_of(SchemeId scheme) {
  const auto* const form = std::ranges::find(kForms, scheme, &GroupForm::scheme);
  if (form != kForms.end()) return *form;
  throw Error(ErrorCode::kUnsupported, "compressed-tensors has no form for {}",
              scheme_facts(scheme).name);
}

bool chooses_cols(const GroupForm& form) {
  return scheme_facts(form.scheme).chooses_cols;
}

bool has_group_size(const Json& strategy) {
  return strategy == std::string_view("group") || strategy == std::string_view("tensor_group");
}

Json weight_args(const GroupForm& form, const QuantizationGroup& group) {
  const bool has_rows = chooses_cols(form) && group.block[1] == 0;
  Json args = {{"num_bits", form.num_bits},
               {"type", form.type},
               {"strategy", has_rows ? form.row_strategy : form.strategy}};
  if (form.group_size != 0) args["group_size"] = form.group_size;
  if (chooses_cols(form)) {
    if (!has_rows) args["group_size"] = group.block[1];
  } else if (group.block[0] != 0) {
    args["block_structure"] = {group.block[0], group.block[1]};
  }
  args["symmetric"] = !group.has_zero_points;
  args["dynamic"] = false;
  if (group.has_group_order && !has_rows) args["actorder"] = "group";
  if (!form.scale_dtype.empty()) args["scale_dtype"] = form.scale_dtype;
  return args;
}

/// Null for weight-only groups. Throws kUnsupported for activations that the scheme does not go
/// with.
Json activation_args(const GroupForm& form, const QuantizationGroup& group) {
  if (group.activations == Activations::kWeightOnly) return nullptr;
  const bool is_dynamic = group.activations == Activations::kDynamic;
  const std::string_view strategy = is_dynamic ? form.at_run_time : form.beforehand;
  if (strategy.empty()) {
    throw Error(ErrorCode::kUnsupported, "compressed-tensors has no {} activations for {}",
                activations_name(group.activations), scheme_facts(group.scheme).name);
  }
  const bool is_as_weights = form.input_bits == 0;
  Json args = {{"num_bits", is_as_weights ? form.num_bits : form.input_bits},
               {"type", is_as_weights ? form.type : form.input_type},
               {"strategy", strategy}};
  // A group of activations is as long as the block or group of weights that it meets.
  const std::uint64_t size = form.group_size != 0 ? form.group_size : group.block[1];
  if (has_group_size(strategy)) args["group_size"] = size;
  args["symmetric"] = true;
  args["dynamic"] = is_dynamic;
  // Only the global scale of NVFP4 activations is known beforehand.
  if (strategy == "tensor_group") args["dynamic"] = "local";
  if (!form.scale_dtype.empty()) args["scale_dtype"] = form.scale_dtype;
  return args;
}

// A strategy that is not named follows from the other keys.
std::string strategy_of(const Json& weights) {
  if (std::string named = text_at(weights, "strategy"); !named.empty()) return named;
  if (!json_member(weights, "block_structure").is_null()) return "block";
  const Json& size = json_member(weights, "group_size");
  if (size.is_null()) return "tensor";
  return size.is_number_unsigned() && size != 0 ? "group" : "channel";
}

/// An order of columns that a table of them tells; others are the writer's affair.
bool has_order_table(const Json& weights) {
  const std::string order = text_at(weights, "actorder");
  return order == "group" || order == "dynamic" || json_member(weights, "actorder") == true;
}

/// {0, 0} where it has no two numbers.
std::array<std::uint64_t, 2> block_structure(const Json& weights) {
  const Json& sides = json_member(weights, "block_structure");
  if (!sides.is_array() || sides.size() != 2 || !sides[0].is_number_unsigned() ||
      !sides[1].is_number_unsigned())
    return {0, 0};
  return {sides[0].get<std::uint64_t>(), sides[1].get<std::uint64_t>()};
}

/// Reads the arguments of a group of a known scheme.
void read_group(const Json& weights, ConfigGroup& group) {
  const SchemeFacts& facts = scheme_facts(group.scheme.value());
  if (facts.group_rows > 1) group.block = block_structure(weights);
  if (!facts.chooses_cols) return;
  const Json& size = json_member(weights, "group_size");
  const bool has_size = strategy_of(weights) == "group" && size.is_number_unsigned();
  group.block = {1, has_size ? size.get<std::uint64_t>() : 0};
  group.has_zero_points = json_member(weights, "symmetric") == false;
  group.has_group_order = has_order_table(weights);
}

std::optional<Activations> activations_of(const Json& group) {
  const Json& args = json_member(group, "input_activations");
  if (args.is_null()) return Activations::kWeightOnly;
  if (!args.is_object()) return std::nullopt;
  // "local": scales of groups are found at run time, the global one is stored.
  return json_member(args, "dynamic") == true ? Activations::kDynamic : Activations::kStatic;
}

Error corrupt_groups(std::string_view fact) {
  return Error(ErrorCode::kCorrupt, "quantization_config {}", fact).in_file("config.json");
}

/// Arguments of activations with the defaults that compressed-tensors gives to absent ones.
Json args_with_defaults(const Json& given) {
  const auto or_else = [&](const char* key, Json absent) {
    const Json& value = json_member(given, key);
    return value.is_null() ? std::move(absent) : value;
  };
  const Json strategy = or_else("strategy", "tensor");
  return {{"num_bits", or_else("num_bits", 8)},
          {"type", or_else("type", "int")},
          {"strategy", strategy},
          {"group_size", has_group_size(strategy) ? or_else("group_size", nullptr) : Json()},
          {"symmetric", or_else("symmetric", true)},
          {"dynamic", or_else("dynamic", false)}};
}

/// The activations that loaders of a group's weights can compute with.
std::vector<Json> known_activations(const QuantizationGroup& group) {
  const GroupForm& form = form_of(group.scheme);
  std::vector<Json> known;
  const auto add = [&](Activations activations) {
    QuantizationGroup with = group;
    with.activations = activations;
    known.push_back(args_with_defaults(activation_args(form, with)));
  };
  if (!form.at_run_time.empty()) add(Activations::kDynamic);
  if (!form.beforehand.empty()) add(Activations::kStatic);
  // Loaders of FP8 compute dynamic scales in their own way, whatever the strategy says.
  if (form.type == "float" && form.scale_dtype.empty()) {
    for (const char* strategy : {"token", "tensor"}) {
      Json other = known.front();
      other["strategy"] = strategy;
      other["group_size"] = nullptr;
      known.push_back(std::move(other));
    }
  }
  return known;
}

// True if `said` is the dtype of the form's scales, with or without its module: torch.uint8.
bool is_scale_dtype(const Json& said, const GroupForm& form) {
  constexpr std::string_view kModule = "torch.";
  if (!said.is_string()) return false;
  std::string_view word = said.get_ref<const std::string&>();
  if (word.starts_with(kModule)) word.remove_prefix(kModule.size());
  if (form.scale_dtype.empty()) return word.starts_with("float") || word == "bfloat16";
  const std::string_view wanted = form.scale_dtype.substr(kModule.size());
  return word == wanted || (wanted == "uint8" && word == "float8_e8m0fnu");
}

/// A linear layer, and the module of vLLM and SGLang that it is a part of.
struct Fusion {
  std::string_view part, whole;
};
constexpr std::array kFusions = {
    Fusion{"q_proj", "qkv_proj"},
    Fusion{"k_proj", "qkv_proj"},
    Fusion{"v_proj", "qkv_proj"},
    Fusion{"gate_proj", "gate_up_proj"},
    Fusion{"up_proj", "gate_up_proj"},
    Fusion{"q_a_proj", "fused_qkv_a_proj"},
    Fusion{"kv_a_proj_with_mqa", "fused_qkv_a_proj"},
    Fusion{"q_a_proj", "fused_qkv_a_proj_with_mqa"},
    Fusion{"kv_a_proj_with_mqa", "fused_qkv_a_proj_with_mqa"},
    Fusion{"in_proj_qkv", "in_proj_qkvz"},
    Fusion{"in_proj_z", "in_proj_qkvz"},
    Fusion{"in_proj_b", "in_proj_ba"},
    Fusion{"in_proj_a", "in_proj_ba"},
};

/// The engines' modules of which a linear layer is a part: routed experts are one for a layer.
std::vector<std::string> fused_modules(std::string_view module) {
  std::vector<std::string> fused;
  if (const std::string_view experts = experts_of(module); !experts.empty()) {
    fused.emplace_back(experts);
    return fused;
  }
  const std::size_t leaf = module.rfind('.') + 1;
  for (const Fusion& fusion : kFusions) {
    if (module.substr(leaf) == fusion.part)
      fused.push_back(std::string(module.substr(0, leaf)).append(fusion.whole));
  }
  return fused;
}

}  // namespace

Json config_group(const QuantizationGroup& group, const std::vector<std::string>& targets) {
  const GroupForm& form = form_of(group.scheme);
  return {{"format", find_storage(kCompressedTensorsDialect, group.scheme)->config_name},
          {"targets", targets},
          {"weights", weight_args(form, group)},
          {"input_activations", activation_args(form, group)},
          {"output_activations", nullptr}};
}

std::optional<std::array<std::uint64_t, 2>> compressed_tensors_block_size(const Json& block) {
  const Json& groups = json_member(block, "config_groups");
  if (groups.is_null()) return std::nullopt;
  if (!groups.is_object()) throw corrupt_groups("has config_groups that are no object");
  std::optional<std::array<std::uint64_t, 2>> found;
  for (const auto& [name, group] : groups.items()) {
    const Json& weights = json_member(group, "weights");
    // Other strategies need no numbers: the sizes of a row, a tensor and a group of 16 or 32 are
    // fixed.
    if (!weights.is_object() || strategy_of(weights) != "block") continue;
    const std::array<std::uint64_t, 2> size = block_structure(weights);
    for (const std::uint64_t side : size) {
      if (side != 0 && side <= kMaxBlockSide) continue;
      throw corrupt_groups(fmt::format("has a block_structure of {} in config_groups.{}",
                                       config_text(json_member(weights, "block_structure")), name));
    }
    if (found && *found != size) {
      throw Error(ErrorCode::kUnsupported, "config_groups has weights in blocks of several sizes")
          .in_file("config.json");
    }
    found = size;
  }
  return found;
}

std::optional<SchemeId> scheme_of_arguments(const Json& weights) {
  const bool has_zero_points = json_member(weights, "symmetric") == false;
  const std::string type =
      json_member(weights, "type").is_null() ? "int" : text_at(weights, "type");
  const std::string strategy = strategy_of(weights);
  const Json& config_bits = json_member(weights, "num_bits");
  const std::uint64_t bits =
      config_bits.is_number_unsigned() ? config_bits.get<std::uint64_t>() : 8;
  for (const GroupForm& form : kForms) {
    if (type != form.type || bits != form.num_bits) continue;
    if (strategy != form.strategy && strategy != form.row_strategy) continue;
    if (has_zero_points && !chooses_cols(form)) continue;
    if (form.group_size == 0 || json_member(weights, "group_size") == form.group_size)
      return form.scheme;
  }
  return std::nullopt;
}

/// Takes faults: puts them into a list, or throws those after which the config has no meaning.
class ConfigGroups::Faults {
 public:
  explicit Faults(std::vector<std::string>* list) : list_(list) {}
  void add(std::string fact) {
    if (list_ != nullptr) list_->push_back(std::move(fact));
  }
  void refuse(std::string fact) {
    if (list_ == nullptr) throw corrupt_groups(fact);
    add(std::move(fact));
  }
  /// True if one more expression may be read. Without a list of faults there is no limit.
  bool takes_pattern() {
    if (list_ == nullptr || ++n_patterns_ <= kMaxPatterns) return true;
    if (n_patterns_ == kMaxPatterns + 1) {
      add(
          fmt::format("holds more than {} regular expressions: the others are left out (name the "
                      "modules instead)",
                      kMaxPatterns));
    }
    return false;
  }

 private:
  std::vector<std::string>* list_;
  std::size_t n_patterns_ = 0;
};

ConfigGroups::ConfigGroups(const Json& block, std::vector<std::string>* fault_list) {
  Faults faults(fault_list);
  const Json& ignore = json_member(block, "ignore");
  const Json& groups = json_member(block, "config_groups");
  if (groups.is_null()) {
    faults.add("has no config_groups");
  } else if (!groups.is_object()) {
    faults.refuse("has config_groups that are no object");
  } else {
    for (const auto& [name, group] : groups.items()) {
      if (!group.is_object()) {
        // A preset's name with its targets; readers that know presets are not asked here.
        faults.add(fmt::format("config_groups.{} is not an object", name));
        continue;
      }
      ConfigGroup& known = groups_.emplace_back();
      known.name = name;
      known.json = &group;
      known.format = text_at(group, "format");
      known.activations = activations_of(group);
      const Json& weights = json_member(group, "weights");
      known.has_weights = weights.is_object();
      if (known.has_weights) known.scheme = scheme_of_arguments(weights);
      if (known.scheme) read_group(weights, known);
      add_targets(group, faults);
    }
  }
  if (!ignore.is_null() && !ignore.is_array()) faults.refuse("has an ignore that is no list");
  if (!ignore.is_array()) return;
  for (const Json& entry : ignore) {
    if (entry.is_string()) {
      ignored_.add(entry.get<std::string>(), 0, "ignore", faults);
    } else {
      faults.refuse("has an entry of ignore that is no string");
    }
  }
}

void ConfigGroups::add_targets(const Json& group, Faults& faults) {
  const std::string where = fmt::format("config_groups.{}", groups_.back().name);
  const Json& targets = json_member(group, "targets");
  if (!targets.is_null() && !targets.is_array())
    faults.refuse(fmt::format("{} has targets that are no list", where));
  if (targets.is_null() || (targets.is_array() && targets.empty()))
    faults.add(fmt::format("{} has no targets", where));
  if (!targets.is_array()) return;
  const std::size_t index = groups_.size() - 1;
  for (const Json& target : targets) {
    if (!target.is_string()) {
      faults.refuse(fmt::format("{} has a target that is no string", where));
    } else {
      const auto text = target.get<std::string>();
      // Module names have dots, classes have none.
      if (target != kLinear && !text.starts_with(kRegexMark) && text.find('.') == std::string::npos)
        has_unknown_classes_ = true;
      targets_.add(text, index, where + ".targets", faults);
    }
  }
}

void ConfigGroups::Entries::add(const std::string& text, std::size_t group,
                                const std::string& where, Faults& faults) {
  const bool is_expression = text.starts_with(kRegexMark);
  if (const auto known = places.find(text); known != places.end()) {
    groups[known->second] = group;
    return;
  }
  if (is_expression && !faults.takes_pattern()) return;
  try {
    if (is_expression) patterns.emplace_back(Pattern(text), groups.size());
  } catch (const Error& error) {
    faults.refuse(fmt::format("holds '{}' in {}: {}", text, where, error.message()));
    return;
  }
  places.emplace(text, groups.size());
  texts.push_back(text);
  groups.push_back(group);
}

std::vector<std::pair<std::string, std::string>> unknown_keys(const ConfigGroup& group) {
  std::vector<std::pair<std::string, std::string>> unknown;
  const auto find = [&](const Json& object, std::span<const std::string_view> known,
                        const std::string& where) {
    if (!object.is_object()) return;
    for (const auto& [key, value] : object.items())
      if (!is_in(known, key)) unknown.emplace_back(where, key);
  };
  const std::string where = fmt::format("config_groups.{}", group.name);
  find(*group.json, kGroupKeys, where);
  for (const char* key : {"weights", "input_activations", "output_activations"})
    find(json_member(*group.json, key), kArgumentKeys, fmt::format("{}.{}", where, key));
  return unknown;
}

std::vector<std::string> argument_faults(const ConfigGroup& group) {
  const GroupForm& form = form_of(group.scheme.value());
  const Json& weights = json_member(*group.json, "weights");
  std::vector<std::string> faults;
  const auto refuse_if = [&](bool is_wrong, std::string_view path, const Json& value) {
    if (is_wrong)
      faults.push_back(fmt::format("{} is {}, with which no loader reads {}", path,
                                   config_text(value), scheme_facts(form.scheme).name));
  };
  const Json& dynamic = json_member(weights, "dynamic");
  refuse_if(!says_nothing(dynamic), "weights.dynamic", dynamic);
  refuse_if(has_order_table(weights) && !chooses_cols(form), "weights.actorder",
            json_member(weights, "actorder"));
  const Json& size = json_member(weights, "group_size");
  const bool is_row = size == -1 && chooses_cols(form);
  refuse_if(!has_group_size(json_member(weights, "strategy")) && !says_nothing(size) && !is_row,
            "weights.group_size", size);
  const Json& sides = json_member(weights, "block_structure");
  refuse_if(form.strategy != "block" && !says_nothing(sides), "weights.block_structure", sides);
  const Json& dtype = json_member(weights, "scale_dtype");
  refuse_if(!dtype.is_null() && !is_scale_dtype(dtype, form), "weights.scale_dtype", dtype);
  const Json& outputs = json_member(*group.json, "output_activations");
  refuse_if(!says_nothing(outputs), "output_activations", outputs);
  return faults;
}

std::string activations_text(const ConfigGroup& group) {
  const Json& given = json_member(*group.json, "input_activations");
  if (!given.is_object() || !group.activations) return {};
  const Json args = args_with_defaults(given);
  return fmt::format("{} in {} bits of type {}{}", activations_name(*group.activations),
                     args.at("num_bits").dump(), text_at(args, "type"),
                     args.at("symmetric") == false ? ", asymmetric" : "");
}

std::string activations_fault(const ConfigGroup& group) {
  const Json& given = json_member(*group.json, "input_activations");
  if (!given.is_object()) return {};
  const Json wanted = args_with_defaults(given);
  const std::vector<Json> known =
      known_activations({.scheme = group.scheme.value(), .block = group.block});
  if (std::find(known.begin(), known.end(), wanted) != known.end()) return {};
  std::string differs;
  for (const auto& [key, value] : wanted.items()) {
    const bool is_usual =
        std::any_of(known.begin(), known.end(),
                    [&key = key, &value = value](const Json& one) { return one.at(key) == value; });
    if (!is_usual)
      differs += fmt::format("{}{} {}", differs.empty() ? "" : " ", key, config_text(value));
  }
  return differs.empty() ? wanted.dump() : differs;
}

// The group that a module falls to.

struct ConfigGroups::Entries::Found {
  /// A module that was asked for, and its answers.
  struct Row {
    std::string name;
    std::size_t place = kNone;              ///< answer of find()
    std::optional<std::size_t> whole = {};  ///< answer of find_whole(), once that was called
  };
  std::mutex mutex;
  std::deque<Row> rows;  ///< modules in the order in which they were first asked for
  std::unordered_map<std::string_view, std::size_t> numbers;
  std::size_t last = 0;  ///< number of the row that was asked for last

  /// Rules ask for all modules in one order: the next row is nearly always meant, and no name is
  /// hashed.
  Row& row_of(std::string_view module, const Entries& entries) {
    for (const std::size_t number : {last, last + 1}) {
      if (number < rows.size() && rows[number].name == module) return rows[last = number];
    }
    if (const auto known = numbers.find(module); known != numbers.end())
      return rows[last = known->second];
    std::string name(module);
    const std::size_t place = entries.match(name);
    last = rows.size();
    Row& row = rows.emplace_back(Row{.name = std::move(name), .place = place});
    numbers.emplace(row.name, last);
    return row;
  }
};

ConfigGroups::Entries::Entries() : found(std::make_shared<Found>()) {}

std::size_t ConfigGroups::Entries::match(const std::string& module) const {
  const auto name = places.find(module);
  const std::size_t named = name == places.end() ? kNone : name->second;
  for (const auto& [pattern, place] : patterns) {
    if (place >= named) break;
    if (pattern.matches(module)) return place;
  }
  return named;
}

std::size_t ConfigGroups::Entries::find(std::string_view module) const {
  if (texts.empty()) return kNone;
  // Only expressions take longer than a look into what was found.
  if (patterns.empty()) return match(std::string(module));
  const std::scoped_lock lock(found->mutex);
  return found->row_of(module, *this).place;
}

std::size_t ConfigGroups::Entries::find_whole(std::string_view module) const {
  if (texts.empty()) return kNone;
  const auto of_whole = [&](std::size_t place, const auto& place_of) {
    if (place != kNone) return place;
    for (const std::string& fused : fused_modules(module)) place = std::min(place, place_of(fused));
    return place;
  };
  if (patterns.empty())
    return of_whole(match(std::string(module)),
                    [&](const std::string& name) { return match(name); });
  const std::scoped_lock lock(found->mutex);
  Found::Row& row = found->row_of(module, *this);
  if (!row.whole) {
    row.whole = of_whole(row.place,
                         [&](const std::string& name) { return found->row_of(name, *this).place; });
  }
  return *row.whole;
}

const ConfigGroup* ConfigGroups::named_target(std::string_view module) const {
  const std::size_t place = targets_.find(module);
  return place == kNone ? nullptr : &groups_[targets_.groups[place]];
}

const ConfigGroup* ConfigGroups::target_of(std::string_view module) const {
  const std::size_t place = targets_.find_whole(module);
  return place == kNone ? exact_target(kLinear) : &groups_[targets_.groups[place]];
}

const ConfigGroup* ConfigGroups::class_target(std::string_view name) const {
  const auto is_same = [](char a, char b) { return lower_case(a) == lower_case(b); };
  for (std::size_t place = 0; place < targets_.texts.size(); ++place) {
    const std::string& text = targets_.texts[place];
    if (text.starts_with("re:")) continue;
    if (std::search(name.begin(), name.end(), text.begin(), text.end(), is_same) != name.end() ||
        text.empty())
      return &groups_[targets_.groups[place]];
  }
  return nullptr;
}

const ConfigGroup* ConfigGroups::exact_target(std::string_view text) const {
  const auto place = targets_.places.find(std::string(text));
  return place == targets_.places.end() ? nullptr : &groups_[targets_.groups[place->second]];
}

std::vector<ClassedModule> joined_modules(std::span<const ClassedModule> modules) {
  std::map<std::string, std::set<std::uint32_t>> classes_of;
  for (const ClassedModule& module : modules) {
    if (!experts_of(module.name).empty()) continue;
    for (std::string& whole : fused_modules(module.name))
      classes_of[std::move(whole)].insert(module.cls);
  }
  std::vector<ClassedModule> joined;
  for (const auto& [name, classes] : classes_of) {
    if (classes.size() == 1) joined.push_back({.name = name, .cls = *classes.begin()});
  }
  return joined;
}

std::optional<QuantizationGroup> ConfigGroups::group_of(std::string_view module) const {
  const ConfigGroup* group = stored_group(module);
  if (group == nullptr || !group->scheme || !group->activations) return std::nullopt;
  if (scheme_facts(*group->scheme).group_rows > 1 && group->block[0] == 0) return std::nullopt;
  return QuantizationGroup{.scheme = *group->scheme,
                           .activations = *group->activations,
                           .block = group->block,
                           .has_zero_points = group->has_zero_points,
                           .has_group_order = group->has_group_order};
}

}  // namespace ingot::formats
