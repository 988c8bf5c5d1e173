#include "convert/plan/repair.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "convert/plan/passes.h"
#include "engines/limits.h"
#include "formats/base/fd.h"
#include "formats/config/nested_config.h"
#include "formats/dialect/dialect.h"
#include "formats/dialect/modelopt.h"
#include "formats/experts/expert_view.h"
#include "formats/json/json.h"
#include "formats/modules/module_list.h"
#include "formats/storage/block_scales.h"

namespace ingot::convert {

using formats::Checkpoint;
using formats::LogicalTensor;
using formats::Part;

namespace {

float as_factor(const formats::GlobalScale& global) {
  return global.divides ? 1 / global.value : global.value;
}

// True if a part has the shape of the parameter that loaders copy it into. One number may have a
// dimension or none; the matrices of a stack have a number each.
bool has_shape(const formats::PartRow& at, const LogicalTensor& tensor,
               const formats::StoredTensor& stored) {
  const formats::Encoding& encoding = tensor.encoding;
  if (at.part == Part::kWeight || tensor.shape.size() > 2) return true;
  if (engines::is_joined_number(at.shape, tensor.rule)) return stored.shape.empty();
  if (at.shape == formats::PartShape::kOne || at.shape == formats::PartShape::kScalar)
    return stored.shape.size() < 2;
  return stored.shape == formats::part_shape(at, encoding.scheme, tensor.shape,
                                             {encoding.block_rows, encoding.block_cols});
}

// DeepSeek's own names are in no row, and read by its own loader.
bool is_native_name(std::string_view name) {
  return name.ends_with(".scale");
}

enum class Form : std::uint8_t { kNames, kNamesAndShapes };

// True if the parts of a tensor have the form of some row of the dialect.
bool has_form(const formats::Dialect& dialect, const Checkpoint& source,
              const LogicalTensor& tensor, Form form) {
  bool is_known = true;
  tensor.encoding.stored.for_each([&](Part part, std::uint32_t index) {
    const formats::StoredTensor& stored = source.stored()[index];
    const auto has_it_so = [&](const formats::StorageRow& row) {
      return row.scheme == tensor.encoding.scheme &&
             std::ranges::any_of(row.parts, [&](const formats::PartRow& at) {
               return at.part == part && formats::part_name(at, tensor.name) == stored.name &&
                      (form == Form::kNames || has_shape(at, tensor, stored));
             });
    };
    is_known = is_known && (is_native_name(stored.name) ||
                            std::ranges::any_of(formats::storage_rows(dialect, source.family()),
                                                [&](std::span<const formats::StorageRow> rows) {
                                                  return std::ranges::any_of(rows, has_it_so);
                                                }));
  });
  return is_known;
}

// FP4 experts of DeepSeek-V4, which its own loader knows and no row.
bool has_native_scale(const Checkpoint& source, const LogicalTensor& tensor) {
  const formats::StoredParts& stored = tensor.encoding.stored;
  return stored.has(Part::kScale) && is_native_name(source.stored()[stored[Part::kScale]].name);
}

// True if the dialect has a row for each weight, with scales of activations where there are any.
bool holds_all(const formats::Dialect& dialect, const Checkpoint& source) {
  return std::ranges::all_of(source.tensors(), [&](const LogicalTensor& tensor) {
    if (!is_quantized(tensor)) return true;
    if (&dialect == &source.dialect() && has_native_scale(source, tensor)) return true;
    const bool is_static = tensor.encoding.stored.has(Part::kInputScale);
    const auto holds = [&](const formats::StorageRow& row) {
      if (row.scheme != tensor.encoding.scheme) return false;
      if (formats::is_of_experts(dialect, source.family(), row.scheme) &&
          !is_routed_expert(role_of(tensor)))
        return false;
      if (row.is_read_only) return has_form(dialect, source, tensor, Form::kNames);
      return !is_static || row.activations == formats::Activations::kStatic;
    };
    return std::ranges::any_of(formats::storage_rows(dialect, source.family()),
                               [&](std::span<const formats::StorageRow> rows) {
                                 return std::ranges::any_of(rows, holds);
                               });
  });
}

bool names_all(const formats::Dialect& dialect, const Checkpoint& source) {
  return std::ranges::all_of(source.tensors(), [&](const LogicalTensor& tensor) {
    return !is_quantized(tensor) || has_form(dialect, source, tensor, Form::kNames);
  });
}

// Throws if no statement names a known algorithm: codes that look like those of one algorithm may
// mean other values under another. One of the two statements is enough.
void refuse_unknown_algo(const Checkpoint& source) {
  using formats::ModeloptStatement;
  std::optional<Error> unknown;
  for (const ModeloptStatement& statement :
       {ModeloptStatement::of_file(source.description()),
        ModeloptStatement::of_config(formats::quantization_block(source.config()))}) {
    if (!statement.object.contains("quant_algo")) continue;
    const std::string fault = formats::unknown_algo(statement.object);
    if (fault.empty()) return;
    unknown =
        Error(ErrorCode::kUnsupported, "says {} (correct it: repair makes up no algorithm)", fault)
            .in_file(statement.file);
  }
  if (unknown) throw Error(*unknown);
}

// Native names with schemes that the rows of no written dialect put under them.
void refuse_native_names(const Checkpoint& source, const formats::Dialect& dialect) {
  const bool is_said =
      source.config().quantization && !source.config().quantization->quant_method.empty();
  if (is_said) return;
  for (const LogicalTensor& tensor : source.tensors()) {
    if (!is_quantized(tensor) || !has_native_scale(source, tensor)) continue;
    const bool is_held = formats::find_storage(source.dialect(), tensor.encoding.scheme) != nullptr;
    if (is_held && &dialect == &source.dialect()) continue;
    throw Error(ErrorCode::kUnsupported,
                "is stored under DeepSeek's own names, whose loader goes by the config as "
                "released, and config.json does not say how it is quantized (copy "
                "quantization_config from the release; or ingot convert, or --dialect)")
        .in_tensor(tensor.name);
  }
}

// Weights without the input scale that others have which a config says one thing of: those of a
// scheme, or the experts of a layer where it may be a mixture. Nothing here makes up numbers.
void refuse_missing_inputs(const Plan& plan, const formats::SourceActivations& said) {
  const formats::Dialect& dialect = plan.source.dialect();
  using Key = std::pair<formats::SchemeId, std::string_view>;
  std::map<Key, std::string_view> inputs;  // name of the input scale, if any weight has one
  const auto key_of = [&](const LogicalTensor& tensor) {
    return Key(tensor.encoding.scheme,
               dialect.holds_mixtures ? formats::experts_of(tensor.name) : std::string_view());
  };
  const auto for_each = [&](bool has_input, const auto& visit) {
    for (const PlannedTensor& planned : plan.tensors) {
      const LogicalTensor& tensor = plan.tensor_of(planned);
      if (planned.action != Action::kCopy ||
          tensor.encoding.stored.has(Part::kInputScale) != has_input ||
          said.leaves_inputs(tensor.name, tensor.encoding))
        continue;
      const Key key = key_of(tensor);
      if (!dialect.holds_mixtures || !key.second.empty()) visit(tensor, key);
    }
  };
  const auto row_with = [&](const Key& key, formats::Activations activations) {
    return formats::find_storage(dialect, key.first, activations);
  };
  for_each(true, [&](const LogicalTensor&, const Key& key) {
    if (const auto* row = row_with(key, formats::Activations::kStatic))
      inputs.emplace(key, formats::find_part_row(*row, Part::kInputScale)->suffix.substr(1));
  });
  ErrorList refusals;
  for_each(false, [&](const LogicalTensor& tensor, const Key& key) {
    const auto input = inputs.find(key);
    if (input == inputs.end()) return;
    const bool can_be_left_out = row_with(key, formats::Activations::kWeightOnly) != nullptr;
    const std::string_view scheme = formats::scheme_facts(key.first).name;
    refusals.add(ErrorCode::kMissingTensor, tensor.name,
                 "has no {}, which others in {} have (fetch its file again; or ingot convert "
                 "--to {} --dialect {}, {}with --activations static and --activation-scales "
                 "FILE, which has numbers for it)",
                 input->second, scheme, scheme, dialect.name,
                 can_be_left_out ? "with --activations weight-only, which leaves all of them "
                                   "out, or "
                                 : "");
  });
  refusals.throw_if_any();
}

// One global scale for weights that loaders fuse: the largest as it multiplies.
void join_globals(const Checkpoint& source, const std::vector<const LogicalTensor*>& set,
                  RepairFacts& facts) {
  std::vector<formats::GlobalScale> own;
  for (const LogicalTensor* tensor : set)
    own.push_back(*formats::ScaleReader(source, *tensor).global());
  const auto [least, most] = std::ranges::minmax_element(
      own, {}, [](const formats::GlobalScale& global) { return as_factor(global); });
  if (as_factor(*most) / as_factor(*least) > kFarthestGlobals) {
    const LogicalTensor &small = *set[static_cast<std::size_t>(least - own.begin())],
                        &large = *set[static_cast<std::size_t>(most - own.begin())];
    throw Error(
        ErrorCode::kBadScale,
        "has a global scale of {}, and '{}', with which loaders fuse it, one of {}: farther apart "
        "than block scales can make up for (where one is the reciprocal that it should not be, "
        "ingot check says so; else ingot convert computes them from the release)",
        least->value, large.name, most->value)
        .in_tensor(small.name);
  }
  for (std::size_t i = 0; i < set.size(); ++i) {
    if (own[i].value != most->value) facts.joint_globals.emplace(set[i]->name, most->value);
  }
}

}  // namespace

RepairFacts read_repair_facts(const Checkpoint& source) {
  refuse_unknown_algo(source);
  RepairFacts facts;
  for (const formats::SourceFile& at : source.files()) {
    const Fd file = Fd::open_for_reading(source.directory() / at.name);
    std::vector<std::byte> bytes(at.data_start);
    file.read_exact(bytes, 0);
    facts.headers.push_back(hash_bytes(bytes));
  }
  const auto& said = source.config().quantization;
  facts.power_of_two_scales = said && said->scale_fmt == "ue8m0"
                                  ? !formats::has_scale_beyond_powers_of_two(source)
                                  : formats::all_scales_are_powers_of_two(source);
  std::map<std::string, std::vector<const LogicalTensor*>> sets;
  for (const LogicalTensor& tensor : source.tensors()) {
    if (tensor.encoding.stored.has(Part::kGlobal)) sets[fused_module(tensor)].push_back(&tensor);
  }
  ErrorList faults;
  for (const auto& [key, set] : sets) {
    if (set.size() < 2) continue;
    try {
      join_globals(source, set, facts);
    } catch (const Error& error) {
      faults.add(error);
    }
  }
  faults.throw_if_any();
  return facts;
}

const formats::Dialect& repaired_dialect(const Checkpoint& source) {
  const formats::Dialect& own = source.dialect();
  const auto& said = source.config().quantization;
  const bool is_said =
      (said && !said->quant_method.empty()) || !source.description().is_null() || own.is_read_only;
  const formats::Dialect* chosen = &own;
  const auto choose = [&](const auto& fits) {
    const auto dialects = formats::dialects();
    const auto found = std::ranges::find_if(
        dialects, [&](const formats::Dialect* dialect) { return fits(*dialect); });
    if (found != dialects.end()) chosen = *found;
    return found != dialects.end();
  };
  const auto is_theirs = [&](const formats::Dialect& dialect) {
    return names_all(dialect, source) && holds_all(dialect, source);
  };
  const formats::Dialect* by_keys =
      formats::dialect_of_keys(formats::quantization_block(source.config()));
  if (is_said && (own.is_read_only || holds_all(own, source))) {
    // The dialect that the config names is right.
  } else if (by_keys != nullptr && holds_all(*by_keys, source)) {
    chosen = by_keys;
  } else if (!choose(is_theirs)) {
    choose([&](const formats::Dialect& dialect) { return holds_all(dialect, source); });
  }
  refuse_native_names(source, *chosen);
  return *chosen;
}

formats::Activations repaired_activations(const formats::SourceActivations& said,
                                          const formats::Dialect& dialect,
                                          const LogicalTensor& tensor) {
  using formats::Activations;
  const formats::SchemeId scheme = tensor.encoding.scheme;
  if (tensor.encoding.stored.has(Part::kInputScale) &&
      !said.leaves_inputs(tensor.name, tensor.encoding))
    return Activations::kStatic;
  const Activations claimed = said.of(tensor.name, tensor.encoding);
  if (claimed != Activations::kStatic && formats::find_storage(dialect, scheme, claimed) != nullptr)
    return claimed;
  const auto possible = std::ranges::find_if(dialect.storage, [&](const formats::StorageRow& row) {
    return row.scheme == scheme && row.activations != Activations::kStatic;
  });
  return possible == dialect.storage.end() ? claimed : possible->activations;
}

void mend_tensors(Plan& plan) {
  const RepairFacts* facts = plan.recipe.choices.repair.get();
  if (facts == nullptr) return;
  const Checkpoint& source = plan.source;
  const formats::SourceActivations activations(source.config(), source.dialect(),
                                               source.description());
  refuse_missing_inputs(plan, activations);
  bool is_postponed = false;
  for (PlannedTensor& planned : plan.tensors) {
    const LogicalTensor& tensor = plan.tensor_of(planned);
    if (planned.action == Action::kCopy && formats::scheme_facts(planned.to).quantized &&
        !has_form(source.dialect(), source, tensor, Form::kNamesAndShapes)) {
      const bool is_static = tensor.encoding.stored.has(Part::kInputScale);
      const formats::StorageRow* row =
          is_static ? formats::storage_of(source.dialect(), source, tensor) : nullptr;
      if (row == nullptr) {
        row = formats::find_storage(source.dialect(), planned.to,
                                    repaired_activations(activations, source.dialect(), tensor));
      }
      if (row != nullptr && (is_static ? keeps_inputs(*row, source, tensor)
                                       : row->activations != formats::Activations::kStatic)) {
        planned.action = Action::kRewrap;
        planned.storage = row;
        planned.block = {tensor.encoding.block_rows, tensor.encoding.block_cols};
        planned.keeps_input = is_static;
      }
    }
    const auto joint = facts->joint_globals.find(tensor.name);
    if (joint == facts->joint_globals.end()) continue;
    const bool is_renamed = planned.action == Action::kRewrap;
    if (is_renamed && planned.storage->global_divides != tensor.encoding.global_divides) {
      is_postponed = true;
    } else if (is_renamed || planned.action == Action::kCopy) {
      planned.joint_global = joint->second;
    }
  }
  if (is_postponed) {
    plan.warnings.emplace_back(
        "global scales of NVFP4 weights are turned over for another dialect, so that fused ones "
        "keep some of their own for now (repair the result once more)");
  }
}

void keep_whole_files(Plan& plan) {
  const RepairFacts* facts = plan.recipe.choices.repair.get();
  if (facts == nullptr || !plan.options.links) return;
  for (std::size_t f = 0; f < plan.files.size(); ++f) {
    PlannedFile& file = plan.files[f];
    const bool is_copy = std::ranges::all_of(file.parts, [&](const PartRef& at) {
      const PlannedTensor& planned = plan.tensors[at.tensor];
      return planned.action == Action::kCopy && !planned.joint_global;
    });
    if (!is_copy) continue;
    const auto files = plan.source.files();
    const auto same = std::ranges::find(files, file.name, &formats::SourceFile::name);
    if (same == files.end() || same->n_bytes != file.n_bytes) continue;
    const std::string header = plan.header(f);
    const auto index = static_cast<std::size_t>(same - files.begin());
    if (hash_bytes(std::as_bytes(std::span(header))) != facts->headers[index]) continue;
    file.is_linked = true;
    file.is_here = false;
  }
}

}  // namespace ingot::convert
