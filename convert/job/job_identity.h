#pragma once

#include "convert/plan/plan.h"
#include "convert/recipe/recipe.h"

namespace ingot::convert {

/// What a job is: two runs with equal identities write the same bytes, so one may continue the
/// other. `source`, the fingerprint, is null until it is known.
formats::Json job_identity(const Plan& plan);

/// Throws kMismatch, naming what differs, unless a run with the options of `now` may continue the
/// job `earlier`. `may_allow_more`: further --allow change nothing of what passed without them.
void require_same_options(const formats::Json& earlier, const formats::Json& now,
                          bool may_allow_more);

/// Throws kMismatch, naming the file, unless the fingerprints are equal.
void require_same_source(const formats::Json& earlier, const formats::Json& now);

}  // namespace ingot::convert
