#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "convert/plan/plan.h"
#include "engines/verdicts.h"

namespace ingot::convert {

/// True if README.md of the output is a model card of its own: tensors are stored in another form
/// than in the source. Copies, whole or cut, merged slices and repaired checkpoints keep the
/// source's file.
bool has_model_card(const Plan& plan);

/// The card, in the form that the hub reads: front matter, the command that made the output, a
/// table of conversions, the gates that it passed, commands that serve it, and the source's own
/// text. It depends on source, recipe and gates only: slices that are put together have the card of
/// the output that was never cut. `engines`: as Loadable has them. `gate`: as ExecuteOptions has
/// it; empty: none had to pass.
std::string model_card_text(const Plan& plan, std::span<const engines::EngineVerdict> engines,
                            const formats::JsonValue& gate);

/// Settings as they are typed in a shell: `--verify weights --require 'weights.cosine>=1'`.
std::string typed(const formats::JsonValue& settings);

/// The commands of engines and the gates make it longer by no more.
inline constexpr std::uint64_t kServingBytes = 16384;

/// The command that made an output, without the paths of this host: `ingot convert IN OUT --to
/// nvfp4`. Options for the cut and for the job are left out.
std::string recipe_command(const Recipe& recipe, std::string_view source);

}  // namespace ingot::convert
