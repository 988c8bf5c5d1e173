#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>

#include "convert/job/preflight.h"
#include "formats/checkpoint/checkpoint.h"
#include "formats/json/json_fwd.h"

namespace ingot::convert {

/// The identity of the job: two runs with equal identities write the same bytes, so one may
/// continue the other. Reads samples of the source and its side files. Throws kMismatch, naming the
/// difference, when the job that is resumed, or has finished, is another one.
formats::Json require_resumable(const Plan& plan, const std::filesystem::path& output,
                                const Preflight& checked, std::size_t threads);

/// True if the finished `output` is that of the job.
bool is_output_of(const Plan& plan, const std::filesystem::path& output, std::size_t threads);

/// True if `output` is finished, and a weights file that its manifest says it was made of is gone
/// from `source`, which has the same config.json. (A run without --consume-source that ends what
/// one with it began leaves the others.) Throws kMismatch, naming them, when options of the job
/// were others, as far as that shows without a source.
bool is_finished_of_deleted(const NamedSource& source, const std::filesystem::path& output,
                            const Recipe& recipe, const PlanOptions& options);

/// Samples per weights file, and their length. The first starts at byte 0, the last ends at the end
/// of the file.
inline constexpr std::uint64_t kFingerprintSamples = 64;
inline constexpr std::uint64_t kFingerprintSampleBytes = 4096;

/// The fingerprint of a source, without reading it all: per weights file its name, size, header
/// hash and the hash of 64 samples of 4 KiB at fixed offsets (the whole file when it is no longer
/// than that); hashes of config.json and of every side file. Never a time: a restored copy is the
/// same source. `known` is an earlier fingerprint, of which the entries of consumed files are taken
/// over (their saved headers must still match).
formats::JsonValue source_fingerprint(const formats::Checkpoint& source, const formats::Json* known,
                                      std::size_t threads);

}  // namespace ingot::convert
