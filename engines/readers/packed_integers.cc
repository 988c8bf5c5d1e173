#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>

#include "engines/readers/config_reader.h"
#include "formats/base/words.h"
#include "formats/dialect/other_tools.h"
#include "formats/family/text_names.h"
#include "formats/json/json.h"
#include "formats/text/spelling.h"

// Configs of GPTQ, AWQ and AutoRound's packed integers as vLLM 0.32 (layers/quantization/
// auto_gptq.py, auto_awq.py, inc/) and SGLang 0.5.23 (gptq/, awq/, auto_round.py) read them. Which
// bits, groups and zero points they take is in their limits.

namespace ingot::engines {

using formats::InputMajorForm;
using formats::InputMajorOverride;
using formats::json_member;
using formats::strings_at;
using formats::text_at;

namespace {

constexpr std::uint64_t kPlainBits = 16;  // AutoRound's word for a layer that it leaves out

Belief plain(std::string because) {
  return {"plain", std::move(because)};
}

Belief refused(std::string because) {
  return {"refused", std::move(because)};
}

/// The strings of a list, also of lists in it.
void add_strings(const Json& list, std::vector<std::string>& strings) {
  if (list.is_string()) strings.push_back(list.get<std::string>());
  if (!list.is_array()) return;
  for (const Json& item : list) add_strings(item, strings);
}

/// Blocks by name: a list, or one text with commas.
std::vector<std::string> blocks_in(const Json& block) {
  const Json& said = json_member(block, "block_name_to_quantize").is_null()
                         ? json_member(block, "to_quant_block_names")
                         : json_member(block, "block_name_to_quantize");
  std::vector<std::string> blocks;
  add_strings(said, blocks);
  if (!said.is_string()) return blocks;
  std::string text = std::exchange(blocks, {}).front();
  for (std::size_t begin = 0, comma = 0; comma != std::string::npos; begin = comma + 1) {
    comma = text.find(',', begin);
    blocks.push_back(text.substr(begin, comma - begin));
  }
  return blocks;
}

bool is_of_same_form(const InputMajorForm& a, const InputMajorForm& b) {
  return a.bits == b.bits && a.group_size == b.group_size && a.is_symmetric == b.is_symmetric;
}

std::string form_text(const InputMajorForm& form) {
  const std::uint64_t size = form.group_size.value_or(0);
  return fmt::format("bits {}, group_size {}", form.bits, size == 0 ? "-1" : std::to_string(size));
}

}  // namespace

bool reads_config(const Dialect& dialect, Engine engine) {
  const bool is_packed = dialect.name == "gptq" || dialect.name == "awq";
  const bool is_known = engine == Engine::kVllm || engine == Engine::kSglang;
  return !dialect.is_read_only || (is_packed && is_known);
}

// Both end with an error where a key is missing that they read.
void ConfigReader::read_packed() {
  const Json& block = *facts_.quantization;
  const std::string method = text_at(block, "quant_method");
  PackedFacts& facts = packed_.emplace();
  facts.is_auto_round = formats::is_auto_round(method);
  facts.is_awq = checkpoint_.dialect().name == "awq";
  facts.has_head = json_member(block, "lm_head") == true;
  std::vector<const char*> needed = {"bits", "group_size"};
  if (facts.is_auto_round) {
    constexpr std::array<std::string_view, 2> kPackings = {"auto_round:auto_gptq",
                                                           "auto_round:auto_awq"};
    const std::string packing = text_at(block, "packing_format");
    if (method != "auto-round") refusal_ = "quant_method " + method;
    if (!is_in(kPackings, packing)) refusal_ = "packing_format " + packing;
    if (is_sglang() && !facts.is_awq && json_member(block, "desc_act") == true)
      refusal_ = "desc_act of AutoRound";
    if (is_sglang()) needed.push_back("sym");
    facts.blocks = blocks_in(block);
  } else if (facts.is_awq) {
    needed.push_back("zero_point");
    facts.list = "modules_to_not_convert";
  } else {
    needed.insert(needed.end(), {"desc_act", "sym"});
    if (!is_sglang()) facts.list = "modules_in_block_to_quantize";
  }
  for (const char* key : needed) {
    if (json_member(block, key).is_null()) refusal_ = fmt::format("no {}", key);
  }
  if (!refusal_.empty()) return;
  if (facts.list != nullptr) add_strings(json_member(block, facts.list), facts.names);
  std::vector<std::vector<const LinearModule*>> parts(built_.modules().size());
  for (std::size_t i = 0; i < facts_.modules.size(); ++i)
    parts[built_.module_of(i)].push_back(&facts_.modules[i]);
  for (std::size_t i = 0; i < parts.size(); ++i)
    facts.modules.push_back(packed_module(built_.modules()[i], parts[i]));
}

ConfigReader::PackedModule ConfigReader::packed_module(
    const BuiltModule& module, std::span<const LinearModule* const> parts) const {
  if (packed_->is_auto_round) return auto_round_module(module);
  const bool is_head = module.kind == BuiltModule::Kind::kHead;
  const bool is_embedding = role_of(*parts.front()->tensor) == Role::kEmbedding;
  if (is_embedding || (is_head && !packed_->has_head))
    return {.belief = plain("always plain"), .form = {}};
  switch (listed_in_packed(module, parts)) {
    case Listed::kTorn:
      return {.belief = refused(packed_->names.empty()
                                    ? fmt::format("some of {} are plain", module.name)
                                    : fmt::format("{} has some of {}", packed_->list, module.name)),
              .form = {}};
    case Listed::kNo:
      return {.belief = plain(packed_->names.empty() ? "no integers are stored" : packed_->list),
              .form = {}};
    case Listed::kYes:
      break;
  }
  PackedModule said = {.belief = {"", because_}, .form = *facts_.packed};
  // SGLang's experts ask for no module's own values: gptq.py:442.
  const bool is_alike =
      packed_->is_awq || (is_sglang() && module.kind == BuiltModule::Kind::kExperts);
  const InputMajorOverride* own = is_alike ? nullptr : facts_.packed->override_of(module.name);
  if (own == nullptr) return said;
  if (own->is_plain) return {.belief = plain(own->key), .form = {}};
  said.belief.because = own->key;
  said.form = facts_.packed->form_of(module.name);
  return said;
}

// Tells if a module is quantized by a list. Without a list vLLM takes modules with integers in the
// files for quantized (gptq_utils.py:126), except experts.
Listed ConfigReader::listed_in_packed(const BuiltModule& module,
                                      std::span<const LinearModule* const> parts) const {
  const bool is_of_experts = module.kind == BuiltModule::Kind::kExperts;
  const bool names_plain = packed_->is_awq;
  const auto has = [&](std::string_view name) {
    const auto names = formats::module_aliases(name, checkpoint_.config().text);
    return std::ranges::any_of(packed_->names, [&](const std::string& entry) {
      return std::ranges::any_of(names, [&](const std::string& called) {
        return called.find(entry) != std::string::npos;
      });
    });
  };
  const auto quantized_if = [](bool is_quantized) {
    return is_quantized ? Listed::kYes : Listed::kNo;
  };
  if (is_sglang()) return quantized_if(!names_plain || !has(module.name));
  if (is_of_experts && !names_plain) return Listed::kYes;
  if (packed_->names.empty()) {
    if (is_of_experts) return Listed::kYes;
    const auto n = std::ranges::count_if(parts, &LinearModule::is_quantized);
    return std::cmp_equal(n, parts.size()) ? Listed::kYes : n == 0 ? Listed::kNo : Listed::kTorn;
  }
  // A joined name is looked for only among those that are left out: quant_utils.py:662.
  Listed listed = quantized_if((!module.has_known_members || names_plain) && has(module.name));
  if (listed == Listed::kNo && module.has_known_members) listed = members_listed(module, has);
  if (!names_plain || listed == Listed::kTorn) return listed;
  return quantized_if(listed == Listed::kNo);
}

// vLLM's inc/config_parser.py:70, SGLang's auto_round.py:172.
ConfigReader::PackedModule ConfigReader::auto_round_module(const BuiltModule& module) const {
  const formats::InputMajorLayout& layout = *facts_.packed;
  const auto own_of = [&](const std::string& name) -> const InputMajorOverride* {
    // vLLM takes the end of a name for it.
    const auto own = std::ranges::find_if(layout.overrides, [&](const InputMajorOverride& at) {
      return at.key == name || (!is_sglang() && name.ends_with("." + at.key));
    });
    return own != layout.overrides.end() ? &*own : layout.override_of(name);
  };
  const bool is_quantized =
      packed_->blocks.empty()
          ? module.kind != BuiltModule::Kind::kHead
          : std::ranges::any_of(packed_->blocks, [&](const std::string& name) {
              const auto names = formats::module_aliases(module.name, checkpoint_.config().text);
              return std::ranges::any_of(
                  names, [&](const std::string& called) { return called.starts_with(name); });
            });
  const auto said_of = [&](const InputMajorOverride* own) -> PackedModule {
    PackedModule said = {.belief = {"", own == nullptr ? because_ : own->key}, .form = layout};
    said.form.is_symmetric = json_member(*facts_.quantization, "sym") != false;
    if (!is_quantized) said.form.bits = kPlainBits;
    if (own != nullptr) {
      said.form.bits = own->bits.value_or(said.form.bits);
      if (own->group_size) said.form.group_size = own->group_size;
      said.form.is_symmetric = own->is_symmetric.value_or(said.form.is_symmetric);
    }
    if (said.form.bits >= kPlainBits) said.belief.scheme = "plain";
    return said;
  };
  const auto same_of = [&](const std::vector<const InputMajorOverride*>& all) -> PackedModule {
    PackedModule said = said_of(all.front());
    for (const InputMajorOverride* own : all) {
      if (!is_of_same_form(said.form, said_of(own).form))
        return {.belief = refused(fmt::format("extra_config has several forms of {}", module.name)),
                .form = {}};
    }
    return said;
  };
  if (const InputMajorOverride* own = own_of(module.name)) return said_of(own);
  std::vector<const InputMajorOverride*> all;
  if (module.kind == BuiltModule::Kind::kExperts) {
    for (const InputMajorOverride& own : layout.overrides) {
      if (own.key.starts_with(module.name)) all.push_back(&own);
    }
  } else {
    for (const std::string& member : module.members) all.push_back(own_of(member));
  }
  return all.empty() ? said_of(nullptr) : same_of(all);
}

Belief ConfigReader::by_packed(std::size_t number) const {
  const LinearModule& layer = facts_.modules[number];
  const PackedModule& module = packed_->modules[built_.module_of(number)];
  if (!module.belief.scheme.empty()) return module.belief;
  const std::uint64_t size = module.form.group_size.value_or(0);
  const SchemeId scheme = module.form.bits != 8 ? SchemeId::kInt4Group
                          : size == 0           ? SchemeId::kInt8Channel
                                                : SchemeId::kInt8Block;
  const std::string& because = module.belief.because;
  if (!layer.is_quantized) return {std::string(scheme_facts(scheme).name), because};
  const InputMajorForm stored = facts_.packed->form_of(layer.name);
  if (stored.bits == module.form.bits && stored.group_size == module.form.group_size)
    return {stored_scheme(layer), because};
  return refused(fmt::format("{} by {}, and stored with {}", form_text(module.form), because,
                             form_text(stored)));
}

}  // namespace ingot::engines
