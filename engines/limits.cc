#include "engines/limits.h"

#include <algorithm>

#include <fmt/format.h>

namespace ingot::engines {
namespace {

// Adds a form, and what the engine refuses of it.
void add_form(EngineSupport form, std::vector<EngineSupport>& rows) {
  std::vector<EngineSupport> refused;
  for (const EngineLimit& limit : form.engine->limits) {
    const bool is_of_it = limit.is_of_form() &&
                          (limit.dialect.empty() || limit.dialect == form.dialect) &&
                          (!limit.scheme || limit.scheme == form.scheme) &&
                          (!limit.activations || limit.activations == form.activations);
    if (!is_of_it) continue;
    refused.push_back(form);
    refused.back().limit = &limit;
    if (limit.scope != EngineScope::kAny || !limit.is_refusal()) continue;
    rows.push_back(refused.back());
    return;
  }
  rows.push_back(form);
  rows.insert(rows.end(), refused.begin(), refused.end());
}

void add_forms(EngineSupport form, std::vector<EngineSupport>& rows) {
  const auto add = [&] {
    const auto loads = form.engine->loads;
    const auto load = std::ranges::find_if(loads, [&](const EngineLoad& row) {
      return row.dialect == form.dialect && row.scheme == form.scheme &&
             row.activations == form.activations;
    });
    form.load = load == loads.end() ? nullptr : &*load;
    form.evidence =
        form.load == nullptr ? Evidence::kNotTried : form.engine->evidence_of(*form.load);
    add_form(form, rows);
  };
  if (!formats::scheme_facts(*form.scheme).quantized) return add();
  for (const Dialect* dialect : formats::dialects()) {
    for (const formats::StorageRow& row : dialect->storage) {
      if (row.scheme != form.scheme || find_storage(*dialect, row.scheme, row.activations) != &row)
        continue;
      form.dialect = dialect->name;
      form.activations = row.activations;
      // Nobody is asked to load what nothing writes.
      if (row.is_read_only &&
          form.engine->find_load(*dialect, row.scheme, row.activations) == nullptr)
        continue;
      add();
    }
  }
  // Dialects that are only read.
  for (const EngineLoad& load : form.engine->loads) {
    if (load.scheme != form.scheme || formats::find_dialect(load.dialect) != nullptr) continue;
    form.dialect = load.dialect;
    form.activations = load.activations;
    add();
  }
  for (const EngineLimit& limit : form.engine->limits) {
    const bool is_of_load = std::ranges::any_of(form.engine->loads, [&](const EngineLoad& load) {
      return load.dialect == limit.dialect && load.scheme == form.scheme &&
             (!limit.activations || limit.activations == load.activations);
    });
    // Forms of a dialect that is written are above, but for those that other tools write in it.
    const Dialect* const own = formats::find_dialect(limit.dialect);
    const bool is_above =
        own != nullptr && (!limit.is_foreign || find_storage(*own, *form.scheme) != nullptr);
    if (limit.dialect.empty() || is_above || limit.scheme != form.scheme || !limit.is_of_form() ||
        is_of_load)
      continue;
    rows.push_back(
        {form.engine, limit.dialect, limit.scheme, limit.activations, Evidence::kRead, &limit});
  }
  for (const Dialect* dialect : formats::dialects()) {
    for (const formats::StorageRow& row : dialect->native_storage) {
      // FP8 has the same form under native names as under others.
      if (row.scheme != form.scheme || find_storage(*dialect, row.scheme) != nullptr) continue;
      form.dialect = dialect->name;
      form.activations = row.activations;
      add();
    }
  }
}

}  // namespace

std::vector<const EngineLimit*> limits_of(const EngineRow& engine, const Dialect& dialect,
                                          const EngineWeight& weight) {
  std::vector<const EngineLimit*> limits;
  const bool is_quantized = formats::scheme_facts(weight.scheme).quantized;
  const SchemeId scheme = is_quantized ? weight.scheme : SchemeId::kBf16;
  for (const EngineLimit& limit : engine.limits) {
    if (!limit.dialect.empty() && limit.dialect != dialect.name) continue;
    if (!limit.family.empty() && limit.family != weight.family) continue;
    if (limit.scheme && *limit.scheme != scheme) continue;
    if (limit.activations && *limit.activations != weight.activations) continue;
    if (limit.scope == EngineScope::kOtherNames && engine.knows_name(weight)) continue;
    const bool is_said = std::ranges::any_of(limits, [&](const EngineLimit* other) {
      return other->family == limit.family && other->scope == limit.scope;
    });
    if (!is_said && is_in_scope(limit.scope, dialect, weight)) limits.push_back(&limit);
  }
  return limits;
}

std::vector<std::pair<const EngineRow*, const EngineLimit*>> limits_of_all(
    const Dialect& dialect, const EngineWeight& weight) {
  std::vector<std::pair<const EngineRow*, const EngineLimit*>> all;
  for (const EngineRow* engine : engines()) {
    for (const EngineLimit* limit : limits_of(*engine, dialect, weight))
      all.emplace_back(engine, limit);
  }
  return all;
}

const EngineLimit* limit_of(const EngineRow& engine, const Dialect& dialect,
                            const EngineWeight& weight) {
  const EngineLimit* with_option = nullptr;
  for (const EngineLimit* limit : limits_of(engine, dialect, weight)) {
    if (limit->is_refusal()) return limit;
    if (with_option == nullptr && !limit->needed_option().empty()) with_option = limit;
  }
  return with_option;
}

bool takes_stacks(const EngineRow& engine, std::string_view family) {
  return engine.stacks.empty() || std::ranges::find(engine.stacks, family) != engine.stacks.end();
}

bool takes_singles(const EngineRow& engine, const formats::Family& family) {
  const bool takes_others = std::ranges::none_of(engine.limits, [&](const EngineLimit& limit) {
    return limit.scope == EngineScope::kForeignExperts && limit.family == family.name;
  });
  return takes_others && std::ranges::any_of(engine.loads, [&](const EngineLoad& load) {
           const Dialect* dialect = formats::find_dialect(load.dialect);
           if (dialect == nullptr || !is_known(engine.family_evidence(family.name, load.scheme)))
             return false;
           const formats::StorageRow* row = formats::find_storage(*dialect, family, load.scheme);
           return row != nullptr && row->experts == formats::ExpertForm::kSeparate;
         });
}

std::vector<EngineSupport> engine_support(std::span<const EngineRow* const> versions) {
  std::vector<EngineSupport> rows;
  for (const EngineRow* engine : versions) {
    for (const formats::SchemeFacts& scheme : formats::schemes()) {
      if (!scheme.to_word.empty()) add_forms({.engine = engine, .scheme = scheme.id}, rows);
    }
    for (const EngineLimit& limit : engine->limits) {
      if (!limit.is_of_form())
        rows.push_back(
            {engine, limit.dialect, limit.scheme, limit.activations, Evidence::kRead, &limit});
    }
  }
  return rows;
}

std::string engine_support_text(const EngineSupport& support) {
  return support.limit == nullptr ? support.engine->known_text(support.evidence)
                                  : engine_effect_text(*support.limit);
}

void EngineLimitsMet::add(const EngineWeight& weight) {
  std::erase_if(may_load_, [&](const EngineRow* engine) {
    const auto limits = limits_of(*engine, *dialect_, weight);
    return std::ranges::any_of(limits, [](const EngineLimit* limit) {
      return !limit->is_foreign && limit->is_refusal() && limit->is_of_form();
    });
  });
  for (const auto& [engine, limit] : limits_of_all(*dialect_, weight)) {
    if (limit->is_foreign) continue;
    const auto known = std::ranges::find(hits_, limit, &LimitHit::limit);
    if (known != hits_.end()) {
      ++known->count;
    } else {
      hits_.push_back({.engine = engine,
                       .limit = limit,
                       .first = std::string(weight.name),
                       .scheme = weight.scheme,
                       .count = 1});
    }
  }
}

std::string limit_hit_text(const EngineLimitsMet::LimitHit& hit, std::uint64_t ranks) {
  const EngineLimit& limit = *hit.limit;
  const std::string_view engine = hit.engine->name;
  std::string weight = fmt::format("is {}", formats::scheme_facts(hit.scheme).name);
  if (limit.activations)
    weight += fmt::format(" with {} activations", activations_name(*limit.activations));
  if (is_of_widths(limit.scope) && ranks != 1) weight += fmt::format(" on {} ranks", ranks);
  if (hit.count != 1) weight += fmt::format(" (so are {} more)", hit.count - 1);
  switch (limit.effect) {
    case EngineEffect::kGarbage:
      return fmt::format(
          "{}, which {} loads without an error and computes garbage with: {} (it loads {})", weight,
          engine, limit.reason, limit.instead);
    case EngineEffect::kGarbageWithout:
      return fmt::format("{}, with which {} computes garbage without {}: {} (or {})", weight,
                         engine, limit.option, limit.reason, limit.instead);
    case EngineEffect::kRefusedOption:
      return fmt::format("{}, which {} refuses with {}: {} (right: {})", weight, engine,
                         limit.option, limit.reason, limit.instead);
    default:
      return limit.option.empty() ? fmt::format("{}, which {} refuses: {} (it loads {})", weight,
                                                engine, limit.reason, limit.instead)
                                  : fmt::format("{}, which {} loads with {} only: {}", weight,
                                                engine, limit.option, limit.reason);
  }
}

}  // namespace ingot::engines
