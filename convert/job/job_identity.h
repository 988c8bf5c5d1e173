#pragma once

#include <cstdint>

#include "convert/plan/plan.h"
#include "convert/recipe/recipe.h"
#include "formats/base/job_threads.h"
#include "formats/checkpoint/checkpoint.h"
#include "formats/json/json_fwd.h"

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

/// Samples per weights file, and their length. The first starts at byte 0, the last ends at the end
/// of the file.
inline constexpr std::uint64_t kFingerprintSamples = 64;
inline constexpr std::uint64_t kFingerprintSampleBytes = 4096;

/// What a source is, without reading it all: per weights file its name, size, header hash and the
/// hash of 64 samples of 4 KiB at fixed offsets (the whole file when it is no longer than that);
/// hashes of config.json and of every side file. Never a time: a restored copy is the same source.
/// `known` is an earlier fingerprint, of which the entries of consumed files are taken over (their
/// saved headers must still match).
formats::JsonValue source_fingerprint(const formats::Checkpoint& source, const formats::Json* known,
                                      const JobThreads& threads);

}  // namespace ingot::convert
