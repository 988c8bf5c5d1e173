#include "convert/job/fingerprint.h"

#include <algorithm>
#include <vector>

#include "check/stored_hashes.h"
#include "formats/base/error.h"
#include "formats/base/parallel.h"

namespace ingot::convert {

using formats::Checkpoint;
using formats::Json;

namespace {

Hash128 sample_hash(const Checkpoint& source, std::uint32_t file) {
  const std::uint64_t size = source.files()[file].n_bytes;
  if (size <= kFingerprintSamples * kFingerprintSampleBytes) {
    return formats::hash_range(size, [&](std::uint64_t offset, std::span<std::byte> out) {
      source.read_file(file, offset, out);
    });
  }
  TensorHasher hasher;
  std::vector<std::byte> buffer(kFingerprintSampleBytes);
  const std::uint64_t last = size - kFingerprintSampleBytes;
  for (std::uint64_t i = 0; i < kFingerprintSamples; ++i) {
    // last * i stays below 2^64: a file is shorter than 2^58 bytes.
    source.read_file(file, last * i / (kFingerprintSamples - 1), buffer);
    hasher.update(buffer);
  }
  return hasher.finish();
}

const Json* known_entry(const Json* known, const std::string& name) {
  if (known == nullptr) return nullptr;
  for (const Json& entry : known->at("files")) {
    if (entry.at("name") == name) return &entry;
  }
  return nullptr;
}

}  // namespace

Json source_fingerprint(const Checkpoint& source, const Json* known, const JobThreads& threads) {
  const auto files = source.files();
  std::vector<Json> entries(files.size());
  parallel_for(files.size(), threads.n, [&](std::size_t i) {
    threads.check_stop();
    const auto file = static_cast<std::uint32_t>(i);
    const Hash128 header = hash_bytes(source.header_bytes(file));
    entries[i] = {{"name", files[i].name}, {"bytes", files[i].n_bytes}, {"header", header.hex()}};
    if (source.has_data(file)) {
      entries[i]["samples"] = sample_hash(source, file).hex();
      return;
    }
    const Json* entry = known_entry(known, files[i].name);
    if (entry == nullptr) {
      throw Error(ErrorCode::kNotFound, "is gone and no journal knows it").in_file(files[i].name);
    }
    entries[i]["samples"] = entry->at("samples");
  });

  const auto hash_of = [&](const std::filesystem::path& path) {
    const auto stop = [&] {
      threads.check_stop();
      return false;
    };
    return formats::hash_file(path, {.threads = threads.n, .stop_requested = stop}).hex();
  };
  Json fingerprint = {{"files", Json::array()}, {"side_files", Json::array()}};
  for (Json& entry : entries) fingerprint["files"].push_back(std::move(entry));
  const auto config = source.directory() / "config.json";
  if (std::filesystem::exists(config)) fingerprint["config"] = hash_of(config);
  for (const formats::SideFile& side : source.side_files()) {
    fingerprint["side_files"].push_back({{"name", side.path},
                                         {"bytes", side.n_bytes},
                                         {"hash", hash_of(source.directory() / side.path)}});
  }
  return fingerprint;
}

}  // namespace ingot::convert
