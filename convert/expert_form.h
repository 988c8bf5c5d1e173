#pragma once

#include <memory>

#include "convert/plan/plan.h"

namespace ingot::convert {

/// The source with its routed experts in the form and order in which the output has them:
/// `choices.experts`, else the form that loaders of the target read (StorageRow::experts; plain
/// weights stay in the family's own form); and each stack output-major where it is quantized, as
/// the family's row has it where it is plain. Throws kInvalidArgument for a choice without effect,
/// kUnsupported for experts that cannot be seen as chosen, and as decide() does.
std::shared_ptr<const formats::Checkpoint> with_experts_as_written(
    std::shared_ptr<const formats::Checkpoint> source, const Recipe& recipe,
    const PlanOptions& options);

}  // namespace ingot::convert
