#include "check/opened.h"

#include "formats/checkpoint/checkpoint.h"
#include "formats/family/families.h"
#include "formats/files/hub_cache.h"
#include "shard/join/source.h"

namespace ingot::check {

using formats::Checkpoint;

namespace {

// Calls `act`; an error becomes a fault, but for kInterrupted.
template <typename Act>
void find_faults(Opened& opened, const Act& act) {
  ErrorList faults;
  try {
    act(faults);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kInterrupted) throw;
    faults.add(error);
  }
  opened.faults.insert(opened.faults.end(), faults.errors().begin(), faults.errors().end());
}

void find_manifest(Opened& opened) {
  find_faults(opened,
              [&](ErrorList&) { opened.manifest = formats::read_manifest(opened.directory); });
}

}  // namespace

Opened open_unsliced(const std::filesystem::path& directory, const FindOptions& options) {
  Opened opened{.directory = directory};
  find_manifest(opened);
  find_faults(opened, [&](ErrorList& faults) {
    formats::OpenOptions open{.family = options.family, .threads = options.threads};
    open.faults = &faults;
    // A checkpoint that was converted under a given family is read under it again.
    if (open.family.empty()) {
      open.family =
          formats::family_spec_of(directory, opened.manifest ? opened.manifest->family : "");
    }
    opened.model.emplace(Checkpoint::open(directory, open));
  });
  return opened;
}

Opened open_found(const std::filesystem::path& given, const FindOptions& options) {
  if (formats::is_weights_file(given)) {
    Opened opened{.directory = given};
    find_faults(opened, [&](ErrorList& faults) {
      formats::OpenOptions open{.family = options.family, .threads = options.threads};
      open.faults = &faults;
      opened.model.emplace(formats::open_weights_file(given, options.config, open));
    });
    return opened;
  }
  const std::filesystem::path directory = formats::checkpoint_directory(given);
  if (!shard::is_sliced(directory)) return open_unsliced(directory, options);
  Opened opened{.directory = directory, .is_sliced = true};
  find_manifest(opened);
  // Only undamaged slices are joined.
  find_faults(opened, [&](ErrorList&) {
    opened.model.emplace(shard::open_source(
        directory, {.open = {.family = options.family, .threads = options.threads},
                    .config = options.config}));
  });
  return opened;
}

}  // namespace ingot::check
