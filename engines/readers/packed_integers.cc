#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>

#include "engines/readers/reader.h"
#include "formats/base/words.h"
#include "formats/dialect/dialect_words.h"
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

/// The parts of the configs that vLLM and SGLang read.
struct Packing {
  bool is_auto_round = false, is_awq = false;
  bool has_head = false;            ///< head is quantized
  const char* list = nullptr;       ///< key of `names`
  std::vector<std::string> names;   ///< parts of names: AWQ's of plain modules, else of others
  std::vector<std::string> blocks;  ///< AutoRound's modules below which all is quantized
};

/// The reading of a module.
struct Packed {
  Reading reading;           ///< reading, without a scheme where it is quantized
  InputMajorForm form = {};  ///< form in which it is quantized
};
using Layers = std::span<const LinearModule* const>;

// Tells if a module is quantized by a list. Without a list vLLM takes modules with integers in the
// files for quantized (gptq_utils.py:126), except experts.
Listed quantized_by_list(const ReaderInput& in, const Packing& packing, const BuiltModule& module,
                         Layers layers) {
  const bool is_of_experts = module.kind == BuiltModule::Kind::kExperts;
  const bool names_plain = packing.is_awq;
  const auto has = [&](std::string_view name) {
    const auto names = in.aliases(name);
    return std::ranges::any_of(packing.names, [&](const std::string& entry) {
      return std::ranges::any_of(names, [&](const std::string& called) {
        return called.find(entry) != std::string::npos;
      });
    });
  };
  const auto quantized_if = [](bool is_quantized) {
    return is_quantized ? Listed::kYes : Listed::kNo;
  };
  if (in.is_sglang()) return quantized_if(!names_plain || !has(module.name));
  if (is_of_experts && !names_plain) return Listed::kYes;
  if (packing.names.empty()) {
    if (is_of_experts) return Listed::kYes;
    const auto n = std::ranges::count_if(layers, &LinearModule::is_quantized);
    return std::cmp_equal(n, layers.size()) ? Listed::kYes : n == 0 ? Listed::kNo : Listed::kTorn;
  }
  // A joined name is looked for only among those that are left out: quant_utils.py:662.
  Listed listed = quantized_if((!module.has_known_members || names_plain) && has(module.name));
  if (listed == Listed::kNo && module.has_known_members) listed = members_listed(module, has);
  if (!names_plain || listed == Listed::kTorn) return listed;
  return quantized_if(listed == Listed::kNo);
}

// vLLM's inc/config_parser.py:70, SGLang's auto_round.py:172.
Packed auto_round_module(const ReaderInput& in, const Packing& packing, const BuiltModule& module) {
  const formats::InputMajorLayout& layout = *in.facts.packed;
  const auto own_of = [&](const std::string& name) -> const InputMajorOverride* {
    // vLLM takes the end of a name for it.
    const auto own = std::ranges::find_if(layout.overrides, [&](const InputMajorOverride& at) {
      return at.key == name || (!in.is_sglang() && name.ends_with("." + at.key));
    });
    return own != layout.overrides.end() ? &*own : layout.override_of(name);
  };
  const bool is_quantized =
      packing.blocks.empty() ? module.kind != BuiltModule::Kind::kHead
                             : std::ranges::any_of(packing.blocks, [&](const std::string& name) {
                                 const auto names = in.aliases(module.name);
                                 return std::ranges::any_of(names, [&](const std::string& called) {
                                   return called.starts_with(name);
                                 });
                               });
  const auto form_said_by = [&](const InputMajorOverride* own) -> Packed {
    Packed said = {.reading = {"", own == nullptr ? in.by_method() : own->key}, .form = layout};
    said.form.is_symmetric = json_member(in.block(), "sym") != false;
    if (!is_quantized) said.form.bits = kPlainBits;
    if (own != nullptr) {
      said.form.bits = own->bits.value_or(said.form.bits);
      if (own->group_size) said.form.group_size = own->group_size;
      said.form.is_symmetric = own->is_symmetric.value_or(said.form.is_symmetric);
    }
    if (said.form.bits >= kPlainBits) said.reading.scheme = "plain";
    return said;
  };
  const auto same_of = [&](const std::vector<const InputMajorOverride*>& all) -> Packed {
    Packed said = form_said_by(all.front());
    for (const InputMajorOverride* own : all) {
      if (!is_of_same_form(said.form, form_said_by(own).form))
        return {read_refused(fmt::format("extra_config has several forms of {}", module.name))};
    }
    return said;
  };
  if (const InputMajorOverride* own = own_of(module.name)) return form_said_by(own);
  std::vector<const InputMajorOverride*> all;
  if (module.kind == BuiltModule::Kind::kExperts) {
    for (const InputMajorOverride& own : layout.overrides) {
      if (own.key.starts_with(module.name)) all.push_back(&own);
    }
  } else {
    for (const std::string& member : module.members) all.push_back(own_of(member));
  }
  return all.empty() ? form_said_by(nullptr) : same_of(all);
}

Packed packed_module(const ReaderInput& in, const Packing& packing, const BuiltModule& module,
                     Layers layers) {
  if (packing.is_auto_round) return auto_round_module(in, packing, module);
  const bool is_head = module.kind == BuiltModule::Kind::kHead;
  const bool is_embedding = role_of(*layers.front()->tensor) == Role::kEmbedding;
  if (is_embedding || (is_head && !packing.has_head)) return {read_plain("always plain")};
  switch (quantized_by_list(in, packing, module, layers)) {
    case Listed::kTorn:
      return {read_refused(packing.names.empty()
                               ? fmt::format("some of {} are plain", module.name)
                               : fmt::format("{} has some of {}", packing.list, module.name))};
    case Listed::kNo:
      return {read_plain(packing.names.empty() ? "no integers are stored" : packing.list)};
    case Listed::kYes:
      break;
  }
  Packed said = {.reading = {"", in.by_method()}, .form = *in.facts.packed};
  // SGLang's experts ask for no module's own values: gptq.py:442.
  const bool is_alike =
      packing.is_awq || (in.is_sglang() && module.kind == BuiltModule::Kind::kExperts);
  const InputMajorOverride* own = is_alike ? nullptr : in.facts.packed->override_of(module.name);
  if (own == nullptr) return said;
  if (own->is_plain) return {read_plain(own->key)};
  said.reading.because = own->key;
  said.form = in.facts.packed->form_of(module.name);
  return said;
}

Reading reading_of(const ReaderInput& in, const Packed& module, const LinearModule& layer) {
  if (!module.reading.scheme.empty()) return module.reading;
  const std::uint64_t size = module.form.group_size.value_or(0);
  const SchemeId scheme = module.form.bits != 8 ? SchemeId::kInt4Group
                          : size == 0           ? SchemeId::kInt8Channel
                                                : SchemeId::kInt8Block;
  const std::string& because = module.reading.because;
  if (!layer.is_quantized) return read_as(scheme, because);
  const InputMajorForm stored = in.facts.packed->form_of(layer.name);
  if (stored.bits == module.form.bits && stored.group_size == module.form.group_size)
    return {stored_scheme(layer), because};
  return read_refused(fmt::format("{} by {}, and stored with {}", form_text(module.form), because,
                                  form_text(stored)));
}

}  // namespace

// Both end with an error where a key is missing that they read.
Reader read_packed_integers(const ReaderInput& in) {
  if (!in.facts.packed) return {};
  const Json& block = in.block();
  std::string refusal;
  const std::string method = text_at(block, "quant_method");
  Packing packing;
  packing.is_auto_round = formats::is_auto_round(method);
  packing.is_awq = in.facts.packed->packs_rows;
  packing.has_head = json_member(block, "lm_head") == true;
  std::vector<const char*> needed = {"bits", "group_size"};
  if (packing.is_auto_round) {
    constexpr std::array<std::string_view, 2> kPackings = {"auto_round:auto_gptq",
                                                           "auto_round:auto_awq"};
    const std::string format = text_at(block, "packing_format");
    if (method != "auto-round") refusal = "quant_method " + method;
    if (!is_in(kPackings, format)) refusal = "packing_format " + format;
    if (in.is_sglang() && !packing.is_awq && json_member(block, "desc_act") == true)
      refusal = "desc_act of AutoRound";
    if (in.is_sglang()) needed.push_back("sym");
    packing.blocks = blocks_in(block);
  } else if (packing.is_awq) {
    needed.push_back("zero_point");
    packing.list = "modules_to_not_convert";
  } else {
    needed.insert(needed.end(), {"desc_act", "sym"});
    if (!in.is_sglang()) packing.list = "modules_in_block_to_quantize";
  }
  for (const char* key : needed) {
    if (json_member(block, key).is_null()) refusal = fmt::format("no {}", key);
  }
  if (!refusal.empty()) return {.of_all = read_refused(std::move(refusal))};
  if (packing.list != nullptr) add_strings(json_member(block, packing.list), packing.names);
  std::vector<std::vector<const LinearModule*>> layers(in.built.modules().size());
  for (std::size_t i = 0; i < in.facts.modules.size(); ++i)
    layers[in.built.module_of(i)].push_back(&in.layer(i));
  std::vector<Packed> modules;  // by the number of the built module
  for (std::size_t i = 0; i < layers.size(); ++i)
    modules.push_back(packed_module(in, packing, in.built.modules()[i], layers[i]));
  return {.of =
              [&in, modules = std::move(modules)](std::size_t module) {
                return reading_of(in, modules[in.built.module_of(module)], in.layer(module));
              },
          .asks = Reader::Asks::kHeads};
}

}  // namespace ingot::engines
