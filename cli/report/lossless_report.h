#pragma once

#include <string>
#include <vector>

#include "convert/plan/plan.h"
#include "convert/run/lossless_proof.h"
#include "formats/json/json_fwd.h"
#include "verify/report/document.h"

namespace ingot::cli {

/// What headers say, by role: whether the output holds every value of the source.
verify::Table exactness_table(const convert::Plan& plan);
formats::Json exactness_json(const convert::Plan& plan);

/// One line: what was proven, by what, or how much would be lost.
std::string proof_text(const convert::LosslessProof& proof);
/// The blocks that would lose values, each with its place, its scale and why.
verify::Table loss_table(const convert::Plan& plan, const convert::LosslessProof& proof);
formats::Json proof_json(const convert::Plan& plan, const convert::LosslessProof& proof);

}  // namespace ingot::cli
