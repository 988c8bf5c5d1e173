#include "convert/run/convert_tensors.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <mutex>
#include <optional>

#include <fmt/format.h>

#include "convert/run/actions.h"
#include "convert/run/memory/given_tensors.h"
#include "convert/run/moments_factors.h"
#include "formats/base/error.h"
#include "formats/base/parallel.h"

namespace ingot::convert {

namespace {

constexpr std::uint64_t kSyncBytes = std::uint64_t{128} << 20;
constexpr std::chrono::milliseconds kSyncInterval{250};

// The header of an output file, or the tensors of a fused set, or one tensor.
struct WorkUnit {
  std::uint32_t file;  // of its first byte
  bool is_header;
  std::vector<std::uint32_t> tensors;
  std::uint64_t n_bytes = 0;  // of the tensors in the output
};

// Units in plan order, without finished ones; each file's header before the first tensor in it.
std::vector<WorkUnit> work_units(const Plan& plan, const std::vector<char>& done,
                                 const std::vector<char>& whole_files) {
  std::vector<WorkUnit> units;
  std::vector<char> has_header = whole_files;
  has_header.resize(plan.files.size(), 0);
  const auto add_header = [&](std::uint32_t file) {
    if (has_header[file] != 0 || !plan.files[file].is_here) return;
    has_header[file] = 1;
    units.push_back({.file = file, .is_header = true, .tensors = {}});
  };
  const auto add_tensor = [&](WorkUnit& unit, std::uint32_t index) {
    const PlannedTensor& planned = plan.tensors[index];
    for (std::size_t p = 0; p < planned.n_parts; ++p) unit.n_bytes += planned.parts[p].n_bytes;
    unit.tensors.push_back(index);
  };
  std::vector<std::size_t> unit_of_set(plan.fused_sets.size(), 0);
  for (std::uint32_t index = 0; index < plan.tensors.size(); ++index) {
    const PlannedTensor& planned = plan.tensors[index];
    if (planned.n_parts == 0 || done[index] != 0 || !plan.is_here(planned)) continue;
    const std::uint32_t file = plan.first_place(planned.parts[0]).file;
    add_header(file);
    if (planned.fused_set != PlannedTensor::kNone && unit_of_set[planned.fused_set] != 0) {
      add_tensor(units[unit_of_set[planned.fused_set] - 1], index);
      continue;
    }
    add_tensor(units.emplace_back(WorkUnit{.file = file, .is_header = false, .tensors = {}}),
               index);
    if (planned.fused_set != PlannedTensor::kNone) unit_of_set[planned.fused_set] = units.size();
  }
  for (std::uint32_t file = 0; file < plan.files.size(); ++file) add_header(file);
  return units;
}

// The order in which units are handed out: those of so many files at a time, the next one of the
// file that has had the fewest bytes; a file without further units makes room for the next. Kernels
// let one thread write into a file at a time, so a single file is as fast as one core copies.
// Before them come units that would take a thread more than half of its share of the job: begun
// late, one of them is what all other threads wait for in the end. Not where files are written one
// after another, so that the source's can be deleted in between.
std::vector<std::size_t> order_of(const std::vector<WorkUnit>& units, const MemoryPlan& memory) {
  struct Lane {
    std::size_t next, end;
    std::uint64_t n_bytes;
  };
  std::vector<Lane> lanes;
  std::vector<std::size_t> order;
  std::uint64_t whole = 0;
  for (const WorkUnit& unit : units) whole += unit.n_bytes;
  const auto is_long = [&](std::size_t unit) {
    return memory.files_at_once > 1 && units[unit].n_bytes > whole / (2 * memory.threads);
  };
  for (std::size_t i = 0; i < units.size(); ++i) {
    if (is_long(i)) order.push_back(i);
  }
  std::size_t begin = 0;  // of the next file's units
  const auto open = [&](std::uint64_t n_bytes) {
    if (begin == units.size()) return;
    std::size_t end = begin;
    while (end < units.size() && units[end].file == units[begin].file) ++end;
    lanes.push_back({.next = begin, .end = end, .n_bytes = n_bytes});
    begin = end;
  };
  while (lanes.size() < memory.files_at_once && begin < units.size()) open(0);
  while (!lanes.empty()) {
    const auto lane = std::ranges::min_element(lanes, {}, &Lane::n_bytes);
    if (!is_long(lane->next)) {
      lane->n_bytes += units[lane->next].n_bytes;
      order.push_back(lane->next);
    }
    ++lane->next;
    if (lane->next < lane->end) continue;
    const std::uint64_t n_bytes = lane->n_bytes;
    lanes.erase(lane);
    open(n_bytes);
  }
  return order;
}

// Runs units on one thread.
class Worker {
 public:
  Worker(RunContext& context, const TensorRun& run)
      : context_(context),
        convert_(context, run.memory.kept_bytes, {.done = run.done, .of = run.results}) {}

  void operator()(const WorkUnit& unit) {
    unit.is_header ? write_header(unit.file) : convert_(unit.tensors);
  }

 private:
  void write_header(std::uint32_t file) {
    const std::vector<Plan::KnownBytes> known = context_.plan.known_bytes(file);
    const auto item = static_cast<std::uint32_t>(context_.plan.tensors.size() + file);
    const PlannedFile& planned = context_.plan.files[file];
    for (std::uint32_t m = 0; m < planned.members.size(); ++m) {
      for (const auto& [offset, bytes] : known) {
        auto rest = std::as_bytes(std::span(bytes));
        context_.writer.put(planned.first_member + m, offset, bytes.size(), item,
                            [&](std::span<std::byte> piece) {
                              std::memcpy(piece.data(), rest.data(), piece.size());
                              rest = rest.subspan(piece.size());
                            });
      }
    }
    context_.writer.finish_item(item);
  }

  RunContext& context_;
  SetConverter convert_;
};

// After a failure only units before it are run, so that the failure returned is the first in plan
// order whatever the threads did.
std::exception_ptr run_units(RunContext& context, WindowWriter& writer, const TensorRun& run,
                             const std::vector<WorkUnit>& units) {
  const std::vector<std::size_t> order = order_of(units, run.memory);
  std::atomic<std::size_t> next = 0, failed = units.size();
  std::mutex mutex;
  std::exception_ptr failure;
  const auto take = [&]() -> std::optional<std::size_t> {
    if (run.given != nullptr) return run.given->take();
    const std::size_t at = next.fetch_add(1, std::memory_order_relaxed);
    return at < order.size() ? std::optional(order[at]) : std::nullopt;
  };
  if (run.given != nullptr) {
    std::vector<std::vector<std::uint32_t>> needs;
    for (const WorkUnit& unit : units) needs.push_back(unit.tensors);
    run.given->begin(run.plan, needs);
  }
  run_workers(run.threads, [&](std::size_t) {
    Worker worker(context, run);
    while (true) {
      const std::optional<std::size_t> unit = take();
      if (!unit) return writer.help();
      if (*unit > failed.load(std::memory_order_relaxed)) continue;
      try {
        worker(units[*unit]);
        if (run.given != nullptr) run.given->done(*unit);
      } catch (...) {
        if (run.given != nullptr) run.given->end_job(std::current_exception());
        const std::lock_guard lock(mutex);
        if (*unit > failed.load(std::memory_order_relaxed)) continue;
        failed.store(*unit, std::memory_order_relaxed);
        failure = std::current_exception();
      }
    }
  });
  return failure == nullptr && run.given != nullptr ? run.given->failure() : failure;
}

bool is_staged_whole(const TensorRun& run, std::size_t file) {
  return !run.whole_files.empty() && run.whole_files[file] != 0;
}

std::vector<WindowWriter::File> files_of(const TensorRun& run) {
  std::vector<WindowWriter::File> files;
  for (std::size_t number = 0; number < run.plan.files.size(); ++number) {
    const PlannedFile& file = run.plan.files[number];
    // Files of other parts of the job are not written, not even opened.
    const bool is_written = file.is_here && !is_staged_whole(run, number);
    for (const PlannedFile::Member& member : file.members)
      files.push_back({.name = member.path, .n_bytes = is_written ? file.n_bytes : 0});
  }
  return files;
}

WindowWriter::Options writer_options(const TensorRun& run) {
  // A sync costs its time once per file, so where a tensor goes to many it is done less often.
  const std::uint64_t targets =
      std::max<std::uint64_t>(run.plan.sizes.open_targets, run.memory.files_at_once);
  const auto syncs = static_cast<unsigned>(std::clamp<std::uint64_t>(targets / 4, 1, 8));
  return {.window_bytes = run.memory.window_bytes,
          .max_windows = run.memory.n_windows,
          .writer_threads = 2,
          .direct = run.direct_io,
          .sync_bytes = kSyncBytes * syncs,
          .sync_interval = kSyncInterval * syncs};
}

// Tells the writer about bytes that earlier runs have written, and returns how many there are.
std::uint64_t mark_written(const TensorRun& run, WindowWriter& writer) {
  std::uint64_t n_bytes = 0;
  for (std::uint32_t index = 0; index < run.plan.tensors.size(); ++index) {
    const PlannedTensor& planned = run.plan.tensors[index];
    for (std::size_t p = 0; run.done[index] != 0 && p < planned.n_parts; ++p) {
      for (const PlannedSlice& slice : slices_of(run.plan, planned, p)) {
        if (slice.n_bytes == 0 || !is_here(run.plan, slice)) continue;
        n_bytes += slice.n_bytes;
        if (is_staged_whole(run, run.plan.places[slice.place].file)) continue;
        if (slice.turned.is_turned()) {
          slice.turned.for_each_run(0, slice.n_bytes,
                                    [&](std::uint64_t at, std::uint64_t n, std::uint64_t /*from*/) {
                                      writer.mark_written(slice.member, slice.offset + at, n);
                                    });
        } else {
          writer.mark_written(slice.member, slice.offset, slice.n_bytes);
        }
      }
    }
  }
  return n_bytes;
}

StageReport report_of(const StageTime& stage) {
  return {.seconds = static_cast<double>(stage.ns.load()) * 1e-9, .n_bytes = stage.n_bytes.load()};
}

}  // namespace

TensorRunReport convert_tensors(const TensorRun& run) {
  const auto begin = std::chrono::steady_clock::now();
  WindowWriter writer(run.staged, files_of(run), writer_options(run),
                      [&](std::vector<std::uint32_t> items) {
                        // Headers are written again on resume.
                        std::erase_if(items, [&](auto i) { return i >= run.plan.tensors.size(); });
                        if (!items.empty()) run.durable(items);
                      });
  MomentsFactors factors(run.plan, run.memory.factor_bytes, run.threads, run.done);
  RunContext context{.plan = run.plan,
                     .writer = writer,
                     .progress = {},
                     .original_globals = original_globals(run.plan),
                     .lossless_only = run.lossless_only,
                     .factors = &factors};
  context.done_bytes = mark_written(run, writer);
  context.progress = [&] {
    if (run.progress) run.progress(context.done_bytes.load(), run.plan.sizes.bytes_out);
  };
  const std::vector<WorkUnit> units = work_units(run.plan, run.done, run.whole_files);
  if (const auto failure = run_units(context, writer, run, units)) {
    writer.abandon();
    run.log("stopped before the end; finished tensors are in the journal");
    std::rethrow_exception(failure);
  }
  writer.finish();
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
  run.log(fmt::format("{} write buffers of {} bytes, {} written in pieces", run.memory.n_windows,
                      run.memory.window_bytes, writer.windows_spilled()));
  return {.read = report_of(context.times.read),
          .compute = report_of(context.times.compute),
          .write = report_of(writer.written()),
          .hash = report_of(context.times.hash),
          .thread_seconds = elapsed.count() * static_cast<double>(run.threads),
          .direct_io = writer.uses_direct_io(),
          .has_reserved = writer.has_reserved()};
}

}  // namespace ingot::convert
