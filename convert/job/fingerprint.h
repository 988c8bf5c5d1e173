#pragma once

#include <cstdint>

#include "formats/base/job_threads.h"
#include "formats/checkpoint/checkpoint.h"
#include "formats/json/json.h"

namespace ingot::convert {

/// Samples per weights file, and their length. The first starts at byte 0, the last ends at the end
/// of the file.
inline constexpr std::uint64_t kFingerprintSamples = 64;
inline constexpr std::uint64_t kFingerprintSampleBytes = 4096;

/// What a source is, without reading it all: per weights file its name, size, header hash and the
/// hash of 64 samples of 4 KiB at fixed offsets (the whole file when it is no longer than that);
/// hashes of config.json and of every side file. Never a time: a restored copy is the same source.
/// `known` is an earlier fingerprint, of which the entries of consumed files are taken over (their
/// saved headers must still match).
formats::Json source_fingerprint(const formats::Checkpoint& source, const formats::Json* known,
                                 const JobThreads& threads);

}  // namespace ingot::convert
