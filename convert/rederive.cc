#include "convert/rederive.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>
#include <numeric>
#include <random>
#include <set>
#include <span>
#include <string_view>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "convert/output/manifest_writer.h"
#include "convert/output/model_card.h"
#include "convert/output/output_directory.h"
#include "convert/output/rank_directories.h"
#include "convert/recipe/source_card.h"
#include "convert/run/actions.h"
#include "convert/run/moments_factors.h"
#include "convert/run/window_writer.h"
#include "formats/base/error.h"
#include "formats/base/fd.h"
#include "formats/base/parallel.h"
#include "formats/base/stop_scope.h"
#include "formats/container/checkpoint_index.h"
#include "formats/files/folder.h"
#include "formats/records/manifest.h"
#include "formats/signed/bundle.h"
#include "formats/signed/statement.h"
#include "shard/cut/topology.h"

namespace ingot::convert {

namespace fs = std::filesystem;

namespace {

constexpr std::uint64_t kKeptSource = std::uint64_t{64} << 20;
constexpr std::uint64_t kMostFactorBytes = std::uint64_t{2} << 30;
constexpr std::uint64_t kComparedPiece = std::uint64_t{1} << 20;

// A number below n, each as likely: std::uniform_int_distribution draws others in other libraries.
std::uint64_t draw_below(std::mt19937_64& random, std::uint64_t n) {
  const std::uint64_t most = ~std::uint64_t{0} - (~std::uint64_t{0} % n + 1) % n;
  std::uint64_t number = random();
  while (number > most) number = random();
  return number % n;
}

// So many different numbers below n, by Floyd's method.
std::set<std::uint64_t> draw(std::uint64_t n, std::uint64_t n_drawn, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::set<std::uint64_t> drawn;
  for (std::uint64_t last = n - n_drawn; last < n; ++last) {
    if (!drawn.insert(draw_below(random, last + 1)).second) drawn.insert(last);
  }
  return drawn;
}

// A weights file of the output. It is opened for each range: an output can have more files than a
// process may open.
struct OutputFile {
  OutputFile(const fs::path& output, std::string below, std::uint64_t planned)
      : name(std::move(below)), path_(output / name) {
    const auto stamp = stamp_of(path_);
    if (!stamp) {
      fault = "is missing";
    } else if (stamp->n_bytes != planned) {
      fault = fmt::format("has {} bytes, and {} by the plan", stamp->n_bytes, planned);
    } else {
      content = {stamp->device, stamp->inode};
    }
  }
  void read(std::span<std::byte> out, std::uint64_t offset) const {
    Fd::open_for_reading(path_).read_exact(out, offset);
  }

  std::string name;   // path in the output
  std::string fault;  // the fault of the file as a whole; empty: it is there, and has its size
  std::pair<std::uint64_t, std::uint64_t> content;  // device and inode
  bool is_link = false;                             // of another rank's file

 private:
  fs::path path_;
};

// Position of the first byte that differs, or the size.
std::size_t first_difference(std::span<const std::byte> a, std::span<const std::byte> b) {
  if (std::memcmp(a.data(), b.data(), a.size()) == 0) return a.size();
  return static_cast<std::size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
}

// Takes the bytes of tensors, and compares each range with that of the output's file; of all its
// copies, where several ranks load it.
class ComparingSink final : public ByteSink {
 public:
  ComparingSink(const Plan& plan, const fs::path& output) : copies_(plan.n_members) {
    const auto add = [&](std::uint32_t member, const std::string& path, std::uint64_t n_bytes) {
      copies_[member].emplace_back(output, path, n_bytes);
    };
    for (const PlannedFile& file : plan.files) {
      for (std::uint32_t m = 0; m < file.members.size(); ++m)
        add(file.first_member + m, file.members[m].path, file.n_bytes);
    }
    if (plan.has_rank_directories()) {
      const std::uint32_t n_ranks = plan.slicing->topology.n_ranks();
      for (std::uint32_t rank = 0; rank < n_ranks; ++rank) {
        for (const RankFile& own : files_of_rank(plan, rank)) {
          const PlannedFile& file = plan.files[own.file];
          const std::uint32_t member = file.first_member + own.member;
          const std::string path = shard::rank_directory_name(rank, n_ranks) + "/" + own.name;
          if (path != file.members[own.member].path) add(member, path, file.n_bytes);
        }
      }
    }
    for (std::vector<OutputFile>& copies : copies_) tell_links(copies);
  }
  [[nodiscard]] const std::vector<OutputFile>& copies(std::uint32_t member) const {
    return copies_[member];
  }

  // First differing byte by tensor, member and copy.
  std::map<std::tuple<std::uint32_t, std::uint32_t, std::size_t>, std::uint64_t> differences;

  Lease acquire(std::uint32_t file, std::uint64_t offset, std::uint64_t n_bytes) override {
    const std::lock_guard lock(mutex_);
    std::vector<std::byte>& buffer = lent_[{file, offset}];
    if (!spare_.empty()) {
      buffer = std::move(spare_.back());
      spare_.pop_back();
    }
    buffer.resize(n_bytes);
    return {.bytes = buffer, .file = file, .offset = offset};
  }
  void commit(const Lease& lease, std::uint32_t item) override {
    std::vector<std::byte> stored(lease.bytes.size());
    const std::vector<OutputFile>& copies = copies_[lease.file];
    for (std::size_t c = 0; c < copies.size(); ++c) {
      // A file that is not whole is told of by itself.
      if (copies[c].is_link || !copies[c].fault.empty()) continue;
      copies[c].read(stored, lease.offset);
      const std::size_t same = first_difference(lease.bytes, stored);
      if (same == stored.size()) continue;
      const std::lock_guard lock(mutex_);
      const auto [at, is_new] =
          differences.emplace(std::tuple(item, lease.file, c), lease.offset + same);
      if (!is_new) at->second = std::min(at->second, lease.offset + same);
    }
    const std::lock_guard lock(mutex_);
    auto buffer = lent_.extract({lease.file, lease.offset});
    spare_.push_back(std::move(buffer.mapped()));
  }

 private:
  // Tells which copies are other names of a file that is compared anyway.
  static void tell_links(std::vector<OutputFile>& copies) {
    std::set<std::pair<std::uint64_t, std::uint64_t>> seen;
    for (OutputFile& copy : copies)
      copy.is_link = copy.fault.empty() && !seen.insert(copy.content).second;
  }

  std::vector<std::vector<OutputFile>> copies_;  // by member, the first rank's first
  std::mutex mutex_;                             // guards everything below, and `differences`
  std::map<std::pair<std::uint32_t, std::uint64_t>, std::vector<std::byte>> lent_;
  std::vector<std::vector<std::byte>> spare_;
};

std::uint64_t placed_bytes(const Plan& plan, std::uint32_t tensor) {
  std::uint64_t n = 0;
  for (std::size_t p = 0; p < plan.tensors[tensor].n_parts; ++p) {
    for (const PlannedSlice& slice : slices_of(plan, plan.tensors[tensor], p)) n += slice.n_bytes;
  }
  return n;
}

// The name of the stored tensor that has a byte of a file in which several parts make up one.
const std::string& joined_at(const PlannedFile& file, std::uint64_t offset) {
  const auto behind =
      std::ranges::upper_bound(file.joined, offset, {}, &PlannedFile::Joined::offset);
  INGOT_CHECK(behind != file.joined.begin());
  return std::prev(behind)->spec.name;
}

// The stored tensor of a byte that differs.
DifferingTensor differing(const Plan& plan, std::uint32_t tensor, std::uint32_t member,
                          std::string file, std::uint64_t offset) {
  const PlannedTensor& planned = plan.tensors[tensor];
  DifferingTensor at{.tensor = plan.tensor_of(planned).name,
                     .part = {},
                     .file = std::move(file),
                     .offset = offset};
  for (std::size_t p = 0; p < planned.n_parts; ++p) {
    for (const PlannedSlice& slice : slices_of(plan, planned, p)) {
      if (slice.member != member) continue;
      const PlannedFile& whole = plan.files[plan.places[slice.place].file];
      if (!whole.joined.empty()) {
        at.part = joined_at(whole, offset);
      } else if (offset >= slice.offset && offset < slice.offset + slice.n_bytes) {
        at.part = plan.part_name(planned, p);
      }
    }
  }
  return at;
}

// Converts the drawn tensors, each with its set.
void compare_tensors(const Plan& plan, const RederiveOptions& options, ComparingSink& sink,
                     RederiveReport& report) {
  std::vector<std::uint32_t> all;
  for (std::uint32_t t = 0; t < plan.tensors.size(); ++t) {
    if (plan.tensors[t].n_parts > 0) all.push_back(t);
  }
  report.n_tensors = all.size();
  report.n_drawn = std::min<std::uint64_t>(options.sample.value_or(all.size()), all.size());
  std::vector<char> done(plan.tensors.size(), 1);
  std::vector<std::vector<std::uint32_t>> sets;
  std::set<std::uint32_t> has_set;
  for (const std::uint64_t i : draw(all.size(), report.n_drawn, options.seed)) {
    const std::uint32_t fused = plan.tensors[all[i]].fused_set;
    if (fused == PlannedTensor::kNone) {
      sets.push_back({all[i]});
    } else if (has_set.insert(fused).second) {
      sets.push_back(plan.fused_sets[fused]);
    }
  }
  for (const auto& set : sets) {
    for (const std::uint32_t t : set) {
      done[t] = 0;
      ++report.n_compared;
      report.n_bytes += placed_bytes(plan, t);
    }
  }
  const FactorMemory memory = factor_memory(plan, options.threads);
  MomentsFactors factors(plan, std::max(memory.least, std::min(memory.useful, kMostFactorBytes)),
                         options.threads, done);
  RunContext context{.plan = plan,
                     .writer = sink,
                     .progress = {},
                     .original_globals = original_globals(plan),
                     .factors = &factors};
  context.progress = [&] {
    if (options.progress) options.progress(context.done_bytes.load(), report.n_bytes);
  };
  std::vector<TensorResult> results(plan.tensors.size());
  std::atomic<std::size_t> next = 0;
  std::atomic<bool> has_failed = false;
  run_workers(std::max<std::size_t>(1, std::min(options.threads, sets.size())), [&](std::size_t) {
    SetConverter converter(context, kKeptSource, {.done = done, .of = results});
    for (std::size_t i = next.fetch_add(1); i < sets.size() && !has_failed; i = next.fetch_add(1)) {
      try {
        StopScope::check();
        converter(sets[i]);
      } catch (...) {
        has_failed = true;
        throw;
      }
      for (const std::uint32_t t : sets[i]) results[t] = {};
    }
  });
  for (const auto& [where, offset] : sink.differences) {
    const auto [tensor, member, copy] = where;
    report.tensors.push_back(
        differing(plan, tensor, member, sink.copies(member)[copy].name, offset));
  }
}

// Sizes of weights files, and the bytes of them that are known beforehand.
void compare_headers(const Plan& plan, const ComparingSink& sink, RederiveReport& report) {
  for (std::uint32_t f = 0; f < plan.files.size(); ++f) {
    const PlannedFile& file = plan.files[f];
    const std::vector<Plan::KnownBytes> known = plan.known_bytes(f);
    for (std::uint32_t m = 0; m < file.members.size(); ++m) {
      for (const OutputFile& written : sink.copies(file.first_member + m)) {
        StopScope::check();
        ++report.n_files;
        std::string fact = written.fault;
        for (auto at = known.begin(); fact.empty() && at != known.end() && !written.is_link; ++at) {
          std::vector<std::byte> stored(at->bytes.size());
          written.read(stored, at->offset);
          if (first_difference(std::as_bytes(std::span(at->bytes)), stored) == stored.size())
            continue;
          fact = at->offset == 0 ? "has another header than the plan"
                                 : fmt::format("has other bytes in the constant '{}'",
                                               joined_at(file, at->offset));
        }
        if (!fact.empty()) report.files.push_back({.file = written.name, .fact = fact});
      }
    }
  }
}

// A file that has to be there as one.
std::string fault_of_kind(const fs::path& path) {
  std::error_code failure;
  if (fs::is_regular_file(path, failure)) return {};
  return stamp_of(path) ? "is no file" : "is missing";
}

std::string fault_of_text(const fs::path& path, const std::string& text) {
  if (std::string fault = fault_of_kind(path); !fault.empty()) return fault;
  const auto stamp = stamp_of(path);
  if (stamp && stamp->n_bytes == text.size() && read_text_file(path, text.size()) == text)
    return {};
  return "has other contents than the plan";
}

std::string fault_of_copy(const fs::path& path, const fs::path& original) {
  if (std::string fault = fault_of_kind(path); !fault.empty()) return fault;
  const Fd a = Fd::open_for_reading(path), b = Fd::open_for_reading(original);
  const std::uint64_t size = b.size();
  bool is_same = a.size() == size;
  std::vector<std::byte> own(kComparedPiece), other(kComparedPiece);
  for (std::uint64_t at = 0; is_same && at < size; at += kComparedPiece) {
    StopScope::check();
    const std::size_t n = std::min<std::uint64_t>(kComparedPiece, size - at);
    a.read_exact(std::span(own).first(n), at);
    b.read_exact(std::span(other).first(n), at);
    is_same = std::memcmp(own.data(), other.data(), n) == 0;
  }
  return is_same ? "" : "has other contents than that of the source";
}

// Files whose contents depend on more than source and recipe, or tell of the conversion.
bool is_not_derived(std::string_view name) {
  const std::string_view bare = name.substr(name.rfind('/') + 1);
  return bare == formats::kManifestName || bare == formats::kRecordsName ||
         bare == formats::kVerifyName || bare == formats::kAttestationName ||
         bare == formats::kModelSignatureName;
}

// Endings of files that loaders of some engine read, whoever put them there.
bool is_loaded(std::string_view name) {
  for (const std::string_view ending : {".safetensors", ".json", ".py", ".bin", ".pt", ".pth",
                                        ".gguf", ".jinja", ".model", ".txt"}) {
    if (name.ends_with(ending)) return true;
  }
  return false;
}

// Files next to the weights, in each folder that has them.
void compare_side_files(const Plan& plan, const fs::path& output, RederiveReport& report) {
  std::vector<std::string> folders = {""};
  if (plan.has_rank_directories()) {
    folders.clear();
    const std::uint32_t n_ranks = plan.slicing->topology.n_ranks();
    for (std::uint32_t rank = 0; rank < n_ranks; ++rank)
      folders.push_back(shard::rank_directory_name(rank, n_ranks) + "/");
  }
  const auto add = [&](const std::string& name, const std::string& fact) {
    ++report.n_files;
    if (!fact.empty()) report.files.push_back({.file = name, .fact = fact});
  };
  const auto derived = derived_files(plan);
  for (std::uint32_t rank = 0; rank < folders.size(); ++rank) {
    const std::string& folder = folders[rank];
    for (const formats::SideFile& side : copied_files(plan)) {
      add(folder + side.path,
          fault_of_copy(output / (folder + side.path), plan.source.directory() / side.path));
    }
    for (const auto& [name, text] : derived) {
      // The card names engines that load the output, and gates, which the plan does not have.
      if (name == kCardName) continue;
      add(folder + name, fault_of_text(output / (folder + name), text));
    }
    const std::string index =
        plan.has_rank_directories() ? rank_index_text(plan, rank) : plan.json.index;
    const std::string index_name = folder + std::string(formats::kIndexName);
    if (!index.empty()) add(index_name, fault_of_text(output / index_name, index));
  }
}

// Files that the plan does not have.
void list_others(const Plan& plan, const fs::path& output, RederiveReport& report) {
  const std::vector<std::string> order = publish_order(plan);
  const std::set<std::string, std::less<>> planned(order.begin(), order.end());
  const auto repository = formats::repository_paths();
  for (const fs::directory_entry& entry : entries_below(output)) {
    std::error_code failure;
    if (entry.is_directory(failure)) continue;
    const std::string name = entry.path().lexically_relative(output).generic_string();
    if (repository.contains(name.substr(0, name.find('/')))) continue;
    const bool is_card = name.substr(name.rfind('/') + 1) == kCardName && has_model_card(plan);
    if (is_not_derived(name) || is_card || (!planned.contains(name) && !is_loaded(name))) {
      report.not_derived.push_back(name);
    } else if (!planned.contains(name)) {
      report.files.push_back({.file = name, .fact = "is no file of the plan"});
    }
  }
}

}  // namespace

RederiveReport rederive(const Plan& plan, const fs::path& output, const RederiveOptions& options) {
  RederiveReport report;
  ComparingSink sink(plan, output);
  compare_headers(plan, sink, report);
  compare_side_files(plan, output, report);
  list_others(plan, output, report);
  compare_tensors(plan, options, sink, report);
  return report;
}

double missing_probability(std::uint64_t n_tensors, std::uint64_t n_drawn,
                           std::uint64_t n_altered) {
  if (n_altered > n_tensors - std::min(n_tensors, n_drawn)) return 0;
  // The product over the drawn ones of the share that is unaltered among those that are left.
  double log_of = 0;
  for (std::uint64_t i = 0; i < n_drawn; ++i) {
    log_of += std::log1p(-static_cast<double>(n_altered) / static_cast<double>(n_tensors - i));
  }
  return std::exp(log_of);
}

std::uint64_t least_found(std::uint64_t n_tensors, std::uint64_t n_drawn, double most) {
  std::uint64_t low = 1, high = n_tensors;
  while (low < high) {
    const std::uint64_t middle = low + (high - low) / 2;
    if (missing_probability(n_tensors, n_drawn, middle) <= most) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

}  // namespace ingot::convert
