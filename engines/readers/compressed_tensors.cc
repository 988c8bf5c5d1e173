#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "engines/readers/reader.h"
#include "formats/base/words.h"
#include "formats/json/json.h"
#include "formats/text/spelling.h"

// compressed-tensors' config as vLLM and SGLang read it.

namespace ingot::engines {

using formats::ConfigGroup;
using formats::json_member;
using formats::text_at;

namespace {

/// True if two groups say the same of weights and activations.
bool says_the_same(const ConfigGroup* a, const ConfigGroup* b) {
  if (a == b) return true;
  if (a == nullptr || b == nullptr) return false;
  return std::ranges::all_of(
      std::array{"weights", "input_activations", "output_activations", "format"},
      [&](const char* key) { return json_member(*a->json, key) == json_member(*b->json, key); });
}

// Words of QuantizationArgs that only some versions of compressed-tensors take: packages 0.17.0 to
// 0.20.1, quantization/quant_args.py. Any other version raises an error there.
struct ArgsWord {
  std::string_view key, word;
  std::string_view since = {}, until = {};  // empty: every version that was read
};
constexpr std::string_view kFloatBits = "num_bits of type float";
constexpr std::array kArgsWords = {
    ArgsWord{"actorder", "group", "", "0.19.0"},
    ArgsWord{"actorder", "dynamic", "", "0.19.0"},
    ArgsWord{kFloatBits, "6", "0.20.0"},
};

bool is_before(std::string_view version, std::string_view other) {
  const auto numbers = [](std::string_view text) {
    std::vector<std::uint64_t> parts;
    for (const std::string_view word : name_words(text))
      parts.push_back(number_from<std::uint64_t>(word).value_or(0));
    return parts;
  };
  return numbers(version) < numbers(other);
}

/// Why a version of compressed-tensors does not take a word of QuantizationArgs; or empty.
std::string unknown_word(std::string_view key, std::string_view word, std::string_view version) {
  for (const ArgsWord& row : kArgsWords) {
    if (row.key != key || row.word != word) continue;
    if (!row.since.empty() && is_before(version, row.since))
      return fmt::format(
          "{} {}, which compressed-tensors knows since {}, and {} is what it demands", key, word,
          row.since, version);
    if (!row.until.empty() && !is_before(version, row.until))
      return fmt::format("{} {}, which compressed-tensors no longer takes from {} on", key, word,
                         row.until);
  }
  return {};
}

/// The first word of a group that the engine's version of compressed-tensors does not take; empty:
/// none, or the engine demands no version.
std::string unknown_word_of(const ConfigGroup& group, std::string_view version) {
  if (version.empty()) return {};
  for (const char* part : {"weights", "input_activations", "output_activations"}) {
    const Json& args = json_member(*group.json, part);
    const Json& order = json_member(args, "actorder");
    const bool is_true = order.is_boolean() && order.get<bool>();
    std::string fault = unknown_word(
        "actorder", is_true ? "group" : lower_case(text_at(args, "actorder")), version);
    const Json& bits = json_member(args, "num_bits");
    if (fault.empty() && bits.is_number_integer() && json_member(args, "zp_dtype").is_null() &&
        lower_case(text_at(args, "type")) == "float")
      fault = unknown_word(kFloatBits, bits.dump(), version);
    if (!fault.empty()) return fmt::format("config_groups.{}.{} has {}", group.name, part, fault);
  }
  return {};
}

Listed ignored(const ReaderInput& in, const BuiltModule& module, std::string_view name) {
  const formats::ConfigGroups& groups = *in.facts.groups;
  const bool is_whole = name == module.name;
  // Names of towers are changed in lists as in files, but for expressions:
  // compressed_tensors.py:129.
  if (groups.ignores_name(std::string("model.").append(name))) return Listed::kYes;
  if (!in.is_sglang()) {
    if (groups.ignore_matches(name)) return Listed::kYes;
    if (!is_whole || !module.has_known_members) return Listed::kNo;
    return members_listed(module, [&](std::string_view n) { return groups.ignore_matches(n); });
  }
  // The last words of a name are enough there: compressed_tensors/utils.py:84.
  const auto has = [&](std::string_view full) {
    if (groups.ignore_matches(full)) return true;
    for (std::size_t dot = full.find('.'); dot != std::string_view::npos;
         dot = full.find('.', dot + 1)) {
      if (groups.ignores_name(full.substr(dot + 1))) return true;
    }
    return false;
  };
  if (is_whole && module.has_known_members)
    return groups.ignores_name(name) ? Listed::kYes : members_listed(module, has);
  return has(name) ? Listed::kYes : Listed::kNo;
}

// vLLM asks for the members before the class, SGLang behind it.
const ConfigGroup* target(const ReaderInput& in, const BuiltModule& module, std::string_view name) {
  const formats::ConfigGroups& groups = *in.facts.groups;
  if (const ConfigGroup* named = groups.named_target(name)) return named;
  const auto of_members = [&]() -> const ConfigGroup* {
    if (name != module.name || !module.has_known_members) return nullptr;
    const bool all_named = std::ranges::all_of(module.members, [&](const std::string& member) {
      return groups.named_target(member) != nullptr;
    });
    return all_named ? groups.named_target(module.members.front()) : nullptr;
  };
  const auto of_class = [&]() -> const ConfigGroup* {
    switch (module.kind) {
      case BuiltModule::Kind::kHead:
        return nullptr;
      case BuiltModule::Kind::kLinear:
        return groups.class_target("Linear");
      case BuiltModule::Kind::kExperts:
        break;
    }
    // A target `Linear` is for experts too, unless another names their class.
    const ConfigGroup* own = groups.class_target(in.is_sglang() ? "FusedMoE" : "RoutedExperts");
    return own != nullptr ? own : groups.exact_target("Linear");
  };
  if (!in.is_sglang()) {
    if (const ConfigGroup* found = of_members()) return found;
    return of_class();
  }
  const ConfigGroup* found = of_class();
  return found != nullptr ? found : of_members();
}

// SGLang's config has one size of blocks (compressed_tensors.py:273). linear.py:1052 and :1312 ask
// for it where they join weights, and deepseek_weight_loader.py:650 and :714 for kv_b_proj.
/// Why SGLang fails at the size of blocks of a module of the group, or at its kv_b_proj; or empty.
std::string_view block_fault(const ReaderInput& in, const ConfigGroup& group,
                             const BuiltModule& module) {
  if (!in.is_sglang() || module.kind != BuiltModule::Kind::kLinear) return {};
  const SchemeFacts& scheme = scheme_facts(group.scheme.value());
  const bool is_block = scheme.id == SchemeId::kFp8Block;
  const bool is_kv_b = module.name.ends_with(".kv_b_proj");
  const bool is_joined = module.name.ends_with(".qkv_proj") ||
                         module.name.ends_with(".gate_up_proj") ||
                         module.name.ends_with(".in_proj_qkvz");
  const ConfigGroup* linears = in.facts.groups->exact_target("Linear");
  const bool has_size =
      linears != nullptr &&
      !json_member(json_member(*linears->json, "weights"), "block_structure").is_null();
  if (is_block && (is_joined || is_kv_b) && !has_size)
    return "without the target \"Linear\", from which it takes the size of blocks (ingot repair "
           "writes it)";
  const bool has_bytes = has_e4m3_codes(scheme) || has_int8_codes(scheme);
  if (is_kv_b && !is_block && has_bytes && has_size)
    return "and takes it for one in blocks, as the target \"Linear\" is (in blocks too, or plain)";
  if (is_kv_b && scheme.code_bits < 8)
    return "packs it, and its `weight` is asked for after loading (leave it plain)";
  return {};
}

// vLLM's compressed_tensors.py:860, 872; SGLang's has the same with one word more.
/// The format that a group names and its scheme is not read from, or empty.
std::string other_format(const ReaderInput& in, const ConfigGroup& group,
                         const BuiltModule& module) {
  constexpr std::string_view kPacked = "pack-quantized";
  constexpr std::array<std::string_view, 4> kWithActivations = {
      "naive-quantized", "int-quantized", "float-quantized", "nvfp4-pack-quantized"};
  const SchemeFacts& scheme = scheme_facts(group.scheme.value());
  // SGLang reads experts only by the format of the block.
  const bool is_of_block =
      group.format.empty() || (in.is_sglang() && module.kind == BuiltModule::Kind::kExperts);
  std::string format = is_of_block ? text_at(in.block(), "format") : group.format;
  if (format.empty()) format = "(none)";
  if (has_int4_codes(scheme)) return format == kPacked ? std::string() : format;
  const bool is_read = has_int8_codes(scheme) ||
                       (in.is_sglang() && scheme.id == SchemeId::kNvfp4) ||
                       scheme.id == SchemeId::kFp8Block || scheme.id == SchemeId::kFp8Channel ||
                       scheme.id == SchemeId::kFp8Tensor;
  if (!is_read || module.kind == BuiltModule::Kind::kExperts) return {};
  const bool is_known = is_in(kWithActivations, format) || (in.is_sglang() && format == kPacked);
  return is_known ? std::string() : format;
}

Reading by_group(const ReaderInput& in, const BuiltModule& module, std::string_view name) {
  const Listed listed = ignored(in, module, name);
  if (listed == Listed::kTorn) return read_partly_listed(module, "ignore");
  if (listed == Listed::kYes) return read_plain("ignore");
  const ConfigGroup* group = target(in, module, name);
  if (group == nullptr) {
    const bool is_needed =
        in.is_sglang() && module.kind != BuiltModule::Kind::kHead && in.facts.groups->has_targets();
    return is_needed ? read_refused("no target matches") : read_plain("no target matches");
  }
  const std::string because = "config_groups." + group->name;
  if (!group->has_weights) return read_plain(because);
  if (!group->scheme) return read_as(std::nullopt, because);
  if (const std::string format = other_format(in, *group, module); !format.empty())
    return read_refused(fmt::format("{} with format {}", because, format));
  if (const std::string_view fault = block_fault(in, *group, module); !fault.empty())
    return read_refused(fmt::format("{} {}", because, fault));
  return read_as(group->scheme, because);
}

Reading by_groups(const ReaderInput& in, const BuiltModule& module) {
  if (module.kind != BuiltModule::Kind::kExperts) return by_group(in, module, module.name);
  const std::string& first = module.members.front();
  const Reading reading = by_group(in, module, first);
  const bool is_plain = reading.is_plain();
  for (const std::string& member : module.members) {
    const Reading other = by_group(in, module, member);
    if (other.is_refused()) return other;
    const bool is_same = is_plain ? other.is_plain()
                                  : !other.is_plain() && says_the_same(target(in, module, first),
                                                                       target(in, module, member));
    if (!is_same) return read_refused(fmt::format("{} is not said to be as {} is", member, first));
  }
  return reading;
}

}  // namespace

Reader read_groups(const ReaderInput& in) {
  if (!in.facts.groups) return {};
  std::string refusal;
  if (in.block().contains("ignore") && json_member(in.block(), "ignore").is_null())
    refusal = "ignore is null";
  for (const ConfigGroup& group : in.facts.groups->groups()) {
    if (!group.has_weights) refusal = fmt::format("config_groups.{} has no weights", group.name);
    if (refusal.empty()) refusal = unknown_word_of(group, in.row.pin_of("compressed-tensors"));
  }
  if (!refusal.empty()) return {.of_all = read_refused(refusal)};
  std::vector<Reading> grouped;  // by the number of the built module
  for (const BuiltModule& module : in.built.modules()) grouped.push_back(by_groups(in, module));
  return {.of =
              [&in, grouped = std::move(grouped)](std::size_t module) {
                const bool is_embedding = role_of(*in.layer(module).tensor) == Role::kEmbedding;
                return in.is_sglang() && is_embedding ? read_plain("always plain")
                                                      : grouped[in.built.module_of(module)];
              },
          .asks = Reader::Asks::kHeads};
}

}  // namespace ingot::engines
