#pragma once

#include <filesystem>
#include <memory>

#include "convert/job/execute.h"
#include "convert/job/preflight.h"
#include "convert/plan/plan.h"
#include "convert/recipe/recipe.h"

namespace ingot::convert {

/// The source's quantization_config, or the one that its manifest remembers; null without one.
formats::JsonValue remembered_quantization(const formats::Checkpoint& source);

/// Adds the allowances that an output of ours in `directory`, or ranks' directories below it, was
/// made with; none where there is no manifest.
void allow_as_recorded(const std::filesystem::path& directory, Allowances& allow);

/// Reads the facts that a plan needs in addition to the opened checkpoint: the manifest, and of a
/// model whose config says that its head is the embedding both, where they are stored; and its
/// card.
SourceFacts read_source_facts(const formats::Checkpoint& source,
                              const std::string& base_model = {});

/// Reads the facts that a plan needs in addition to the opened checkpoint, and makes the plan in
/// the dialect that the recipe asks for. A copy has the allowances of its source. Throws,
/// collected: rules that match nothing (kInvalidArgument), tensors that cannot be computed or held
/// (kUnsupported).
Plan plan_conversion(const formats::Checkpoint& source, Recipe recipe, const PlanOptions& options);

/// The manifest of an output, or of its first rank; nullopt where there is none.
std::optional<formats::Manifest> recorded_manifest(const std::filesystem::path& directory);

/// Makes only the plan, of a recipe with its default rules: opens no file.
Plan make_plan(const formats::Checkpoint& source, Recipe recipe, const PlanOptions& options,
               SourceFacts source_facts);

/// Executes a plan into `output`: everything is written to output/.ingot-partial and given its
/// final name at the end. The result is the same bytes for any thread count, budget, I/O path and
/// number of interruptions. Before it starts, throws as preflight(), require_space() and
/// require_resumable() throw (convert/job/preflight.h), and kExists while another run is at work
/// here; kMismatch when the source changed while it was read; kInterrupted when stopped. In every
/// such case no file has a final name. So too when the inspection refuses: the files stay in
/// .ingot-partial, and a run with --resume has them inspected again.
///
/// A part of a job (PlanOptions::part) writes its files and publishes nothing: that is done by an
/// execution with ExecuteOptions::join, when all parts are complete, or by one that resumes the
/// whole. A job may be resumed in another number of parts.
ExecuteReport execute(const Plan& plan, const std::filesystem::path& output,
                      const ExecuteOptions& options);

/// Where a resumed run finds headers of consumed source files; for OpenOptions::consumed_headers.
/// Empty when there are none.
std::filesystem::path consumed_headers_of(const std::filesystem::path& output);

/// True if a job that is resumed is finished and its source deleted (--consume-source), so that no
/// plan can be made any more. Throws kMismatch when its options were others. Removes leftovers
/// of a kill in the last step.
bool is_done_without_source(const NamedSource& source, const std::filesystem::path& output,
                            const Recipe& recipe, const PlanOptions& plan,
                            const ExecuteOptions& options);

/// Removes what a run that was killed in its last step left in a finished output. Throws kExists
/// while another run is at work there.
void remove_leftovers(const std::filesystem::path& output, const RunName& run);

/// Makes the plan of make_plan(). Where the engine of --for loads shared experts as further routed
/// ones (engines::fused_layers), and so needs an option for some that the plan stores in another
/// form, they take the scheme of their layer's routed experts instead, and a warning says so: if
/// --to is a quantized scheme, no rule of the user and no choice about MTP layers decides about
/// them, and the engine loads that output without the option. `recipe` has the default rules.
Plan plan_with_alike_experts(const formats::Checkpoint& source, Recipe recipe,
                             const PlanOptions& options, SourceFacts facts);

/// True if the output has to be the source to the byte, opened under formats::kAsStored: the
/// recipe asks for a plain copy, and parts of weights have forms in which nothing else writes them
/// (a global scale for each expert of a stack, rows or scales in another order); of AWQ and GPTQ
/// also the experts that stay.
bool is_copied_as_stored(const formats::Checkpoint& source, const Recipe& recipe,
                         const PlanOptions& options);

/// The source as the output has it in names and order. Its scales of a cache of keys and values
/// have the names of the target's dialect, where that is another (CacheFate). Its routed experts
/// have the form and order of the output's: `choices.experts`, else the form that loaders of the
/// target read (StorageRow::experts; plain weights stay in the family's own form); and each stack
/// output-major where it is quantized, as the family's row has it where it is plain. Throws
/// kInvalidArgument for a choice without effect, kUnsupported for experts that cannot be seen as
/// chosen, and as decide() does.
std::shared_ptr<const formats::Checkpoint> as_written(
    std::shared_ptr<const formats::Checkpoint> source, const Recipe& recipe,
    const PlanOptions& options);

}  // namespace ingot::convert
