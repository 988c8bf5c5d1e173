#include "library/options/job_options.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <ctime>
#include <fstream>
#include <iterator>

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include "convert/output/model_card.h"
#include "library/options/settings.h"
#include "verify/gates/gate.h"

namespace ingot {
namespace {

// Enough to know a command by.
constexpr std::size_t kMaxCommandBytes = 200;

constexpr std::size_t kLeastWorst = 20;

// Files of /proc have no length; a file that cannot be read is empty.
std::string text_of(const char* path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

/// This process, as another run that wants the same output will read of it.
convert::RunName this_run() {
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0) host.front() = '\0';
  std::string boot = text_of("/proc/sys/kernel/random/boot_id");
  if (!boot.empty() && boot.back() == '\n') boot.pop_back();
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  return {.host = host.data(),
          .boot = std::move(boot),
          .pid = static_cast<std::uint64_t>(::getpid()),
          .started = fmt::format("{:%Y-%m-%d %H:%M:%S} UTC", fmt::gmtime(now)),
          .command = {}};
}

}  // namespace

convert::ExecuteOptions execution(const JobOptions& options) {
  convert::ExecuteOptions execute = options.execute;
  execute.run = this_run();
  if (options.table != nullptr) {
    execute.settings = absolute_settings(*options.table);
    std::string& command = execute.run.command;
    command = fmt::format("ingot {} {}", options.table->command, convert::typed(execute.settings));
    if (command.size() > kMaxCommandBytes) command = command.substr(0, kMaxCommandBytes) + " ...";
  }
  execute.hub_cache = hub_cache();
  execute.threads = threads_of(execute.threads);
  execute.mem_limit = memory_budget(options.mem_limit);
  execute.sha256 = options.hash == "sha256";
  execute.direct_io = !options.buffered;
  execute.n_worst = std::max(options.n_worst.value_or(0), kLeastWorst);
  return execute;
}

void declare_gates(FlagTable& table, std::filesystem::path& thresholds,
                   std::vector<std::string>& requirements,
                   const std::function<std::string_view()>& idle) {
  table.add(FlagGroup::kComparison,
            {{"--thresholds",
              &thresholds,
              "YAML file of gates, instead of the defaults",
              {.kind = ValueKind::kFile, .idle = idle}},
             {"--require",
              &requirements,
              "a gate, METRIC>=LIMIT or METRIC<=LIMIT, of one scheme METRIC[SCHEME]; may be "
              "repeated; metrics: ingot list metrics",
              {.words = words_of(verify::metrics(), &verify::Metric::name),
               .words_begin = true,
               .idle = idle}}});
}

void declare_job_options(FlagTable& table, JobOptions& options) {
  convert::ExecuteOptions& execute = options.execute;
  execute.threads = 0;
  options.table = &table;
  table.add(FlagGroup::kCommon,
            {{"--resume", &execute.resume, "continue a stopped conversion"},
             {"--force", &execute.force, "replace the checkpoint that is in the output"}});
  table.add(FlagGroup::kJob,
            {mem_limit_flag(&options.mem_limit),
             threads_flag(&execute.threads),
             {"--hash",
              &options.hash,
              "xxh3 per tensor; sha256 adds a plain SHA-256 per file, in a second pass",
              {.choices = {"xxh3", "sha256"}}},
             {"--consume-source", &execute.consume_source,
              "delete each source file once its tensors are safe"},
             {"--buffered", &options.buffered,
              "write through the page cache even where direct I/O works"},
             {"--read-back", &execute.read_back,
              "read everything again from the disk, past the page cache, before it is published"},
             {"--follow-links", &execute.follow_links,
              "copy side files that are links to something outside the source"}});
}

}  // namespace ingot
