#include "convert/output/apart.h"

#include <cerrno>
#include <charconv>
#include <csignal>
#include <map>
#include <new>
#include <optional>
#include <random>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include "convert/output/output_directory.h"
#include "convert/recipe/composition.h"
#include "convert/recipe/kv_ranges.h"
#include "convert/recipe/statistics.h"
#include "formats/base/error.h"
#include "formats/base/fd.h"
#include "formats/files/folder.h"

namespace ingot::convert {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kProbe = ".ingot-probe-";
// Runs on other hosts remove such files when they find them.
constexpr int kFolderAttempts = 100;

// Device and inode.
using Identity = std::pair<std::uint64_t, std::uint64_t>;

std::optional<Identity> identity_of(const fs::path& path) {
  try {
    if (const auto stamp = stamp_of(path)) return Identity(stamp->device, stamp->inode);
  } catch (const Error&) {
    // A folder that we may not look at, which is passed through by name.
  }
  return std::nullopt;
}

// A resolved path and all above it.
std::vector<fs::path> with_parents(fs::path path) {
  std::vector<fs::path> chain = {path};
  for (; path.has_relative_path(); chain.push_back(path)) path = path.parent_path();
  return chain;
}

using Folders = std::map<Identity, fs::path>;

void add(const fs::path& folder, Folders& folders) {
  if (const auto identity = identity_of(folder)) folders.emplace(*identity, folder);
}

// A folder with every one below it that is no link. Calls `on_link` for those, and for links to
// files.
template <typename OnLink>
Folders tree_of(const fs::path& top, const OnLink& on_link) {
  Folders tree;
  add(top, tree);
  (void)visit_below(top, [&](const fs::directory_entry& entry) {
    std::error_code ignored;
    if (entry.is_symlink(ignored)) {
      on_link(entry.path());
    } else if (entry.is_directory(ignored)) {
      add(entry.path(), tree);
    }
    return true;
  });
  return tree;
}

struct ReadFolders {
  Folders own;     // the checkpoints' own, which the output must not be, or be in
  Folders linked;  // where links lead to, and files that options name: not in the output
};

ReadFolders folders_of(const JobInputs& inputs) {
  ReadFolders read;
  const auto add_target = [&](const fs::path& path) {
    std::error_code failure;
    const fs::path target = fs::canonical(path, failure);
    if (failure == std::errc::not_enough_memory) throw std::bad_alloc();
    if (failure) return;
    add(fs::is_directory(target, failure) ? target : target.parent_path(), read.linked);
  };
  for (const fs::path& folder : inputs.folders)
    read.own.merge(tree_of(resolved_path(folder), add_target));
  for (const fs::path& file : inputs.files) add_target(file);
  return read;
}

[[noreturn]] void refuse(const fs::path& output, const fs::path& source, std::string_view why) {
  throw Error(ErrorCode::kInvalidArgument,
              "the output {} and the source {} must not contain one another{}", output.string(),
              source.string(), why);
}

std::string same_text(const fs::path& one, const fs::path& other) {
  return one == other ? ""
                      : fmt::format(" ({} and {} are one folder)", one.string(), other.string());
}

// True if no process of this host has the number in the name of a probe: the process was killed, or
// works on another host and makes another probe.
bool is_abandoned(const std::string& probe) {
  pid_t pid = 0;
  const char* const begin = probe.data() + kProbe.size();
  const char* const end = probe.data() + probe.size();
  return std::from_chars(begin, end, pid).ec != std::errc() || pid <= 0 ||
         (::kill(pid, 0) != 0 && errno == ESRCH);
}

// Makes the file until it is there to the end of `look`.
template <typename Look>
void with_probe(const fs::path& folder, const Look& look) {
  const Folder output = Folder::open(folder);
  std::random_device random;
  for (int i = 0; i < kFolderAttempts; ++i) {
    for (const fs::directory_entry& entry : entries_in(folder)) {
      std::error_code ignored;
      const fs::path left = entry.path().filename();
      if (is_probe(left) && is_abandoned(left.string())) fs::remove(entry.path(), ignored);
    }
    const std::string name = fmt::format(
        "{}{}-{:08x}{:08x}", kProbe, static_cast<std::uint64_t>(::getpid()), random(), random());
    if (!output.create(name, O_WRONLY).valid()) continue;
    std::error_code failure;
    try {
      look(name);
    } catch (...) {
      fs::remove(folder / name, failure);
      throw;
    }
    if (fs::remove(folder / name, failure)) return;
    if (failure) throw system_error(failure.value(), "remove", (folder / name).string());
  }
  throw Error(ErrorCode::kExists, "other runs keep starting here (run again later)")
      .in_file(folder.string());
}

}  // namespace

JobInputs inputs_of(const Plan& plan) {
  const Choices& choices = plan.recipe.choices;
  JobInputs inputs{.folders = {plan.source.directory()}};
  if (choices.scales_from) inputs.folders.push_back(choices.scales_from->directory());
  for (const formats::Giver& giver : plan.source.givers())
    inputs.folders.push_back(giver.model->directory());
  if (choices.composed) {
    for (const OverlayFacts& overlay : choices.composed->overlays)
      inputs.folders.push_back(overlay.directory);
  }
  const auto add_files = [&](const auto& statistics) {
    if (statistics == nullptr) return;
    for (const StampedFile& file : statistics->files()) inputs.files.push_back(file.path);
  };
  add_files(choices.activation_scales);
  add_files(choices.importance);
  add_files(choices.kv_scales);
  for (const auto& editor : choices.editors) {
    for (const auto& [path, stamp] : editor->files()) inputs.files.push_back(path);
  }
  return inputs;
}

void require_apart(const JobInputs& inputs, const fs::path& output) {
  const fs::path to = resolved_path(output);
  const ReadFolders read = folders_of(inputs);
  for (const fs::path& folder : with_parents(to)) {
    const auto identity = identity_of(folder);
    const auto found = identity ? read.own.find(*identity) : read.own.end();
    if (found != read.own.end()) refuse(to, found->second, same_text(folder, found->second));
  }
  const Folders tree = fs::exists(to) ? tree_of(to, [](const fs::path&) {}) : Folders();
  const auto require_outside = [&](const Folders& folders, std::string_view why) {
    for (const auto& [identity, source] : folders) {
      for (const fs::path& folder : with_parents(source)) {
        const auto own = identity_of(folder);
        const auto found = own ? tree.find(*own) : tree.end();
        if (found != tree.end()) refuse(to, source, same_text(found->second, folder).append(why));
      }
    }
  };
  require_outside(read.own, "");
  require_outside(read.linked, " (files that are read lie there, which links or options lead to)");
}

void require_unseen(const JobInputs& inputs, const fs::path& output) {
  const fs::path to = resolved_path(output);
  const ReadFolders read = folders_of(inputs);
  // The output below each of its parents: below a source that is the same as one of these.
  std::vector<fs::path> below = {fs::path()};
  for (fs::path at = to; at.has_relative_path(); at = at.parent_path())
    below.push_back(below.back().empty() ? at.filename() : at.filename() / below.back());
  with_probe(to, [&](const std::string& name) {
    const auto require_absent = [&](const fs::path& folder, const fs::path& source) {
      std::error_code ignored;
      if (fs::exists(fs::symlink_status(folder / name, ignored)))
        refuse(to, source,
               fmt::format(" (a file that is made in the one appears in {})", folder.string()));
    };
    for (const Folders& folders : {read.own, read.linked}) {
      for (const auto& [identity, source] : folders)
        for (const fs::path& folder : with_parents(source)) require_absent(folder, source);
    }
    for (const auto& [identity, source] : read.own)
      for (const fs::path& rest : below) require_absent(source / rest, source);
  });
}

bool is_probe(const fs::path& name) {
  return name.string().starts_with(kProbe);
}

}  // namespace ingot::convert
