#include "cli/commands/launch.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "cli/commands/commands.h"
#include "cli/terminal/answer.h"
#include "cli/terminal/session.h"
#include "cli/terminal/terminal.h"
#include "formats/base/error.h"
#include "formats/json/json.h"
#include "formats/records/manifest.h"
#include "inference/parallel/mpi_comm.h"
#include "inference/parallel/thread_comm.h"
#include "shard/cut/topology.h"
#include "shard/join/rank_directories.h"

namespace ingot::cli {

namespace fs = std::filesystem;

namespace {

const std::string kJoined = "joined", kThreads = "threads";

// The time that other ranks leave the first to report a fault.
constexpr std::chrono::seconds kTimeOfTheFirst{2};

Error not_cut(const fs::path& directory, std::string_view remedy) {
  return Error(ErrorCode::kNotFound,
               "holds no rank directories, so no ranks can run it ({}, or cut it: ingot convert "
               "--tp T --ep E)",
               remedy)
      .in_file(directory.string());
}

// How the model is cut, as the directory of a rank says, which must be that of this one.
shard::Topology topology_of(const fs::path& directory, std::uint32_t rank, std::uint32_t n_ranks) {
  const auto manifest = formats::read_manifest(directory);
  if (!manifest || !manifest->slicing || !manifest->slicing->rank) {
    throw Error(ErrorCode::kCorrupt, "its ingot.json does not say what a rank holds")
        .in_file(directory.string());
  }
  const formats::SlicingRecord& slicing = *manifest->slicing;
  const shard::Topology topology = {
      .tp = slicing.tp, .ep = slicing.ep, .etp = slicing.etp, .pp = slicing.pp};
  if (topology.n_ranks() != n_ranks || slicing.rank->rank != rank) {
    throw Error(ErrorCode::kMismatch,
                "its ingot.json is that of rank {} of {} (was the directory renamed?)",
                slicing.rank->rank, topology.n_ranks())
        .in_file(directory.string());
  }
  return topology;
}

// The directory of a rank of so many. The others may be on other hosts.
fs::path rank_directory(const fs::path& directory, std::uint32_t rank, std::uint32_t n_ranks) {
  fs::path own = directory / shard::rank_directory_name(rank, n_ranks);
  if (fs::is_directory(own)) return own;
  const std::vector<std::string> here = shard::rank_directories_in(directory);
  if (here.empty()) throw not_cut(directory, "--mpi never lets each process run all of it");
  const auto number = shard::parse_rank_name(here.front(), shard::rank_directory_name);
  if (number && number->n_ranks != n_ranks) {
    throw Error(ErrorCode::kInvalidArgument,
                "is cut for {} ranks, and {} were launched (mpirun -n {})", number->n_ranks,
                n_ranks, number->n_ranks)
        .in_file(directory.string());
  }
  throw Error(ErrorCode::kNotFound, "the directory of this rank is not here").in_file(own.string());
}

int run_as_threads(const fs::path& directory, const std::function<int(const RunningRank&)>& body) {
  const std::vector<std::string> names = shard::rank_directories_in(directory);
  if (names.empty()) throw not_cut(directory, "without --ranks it is run whole");
  const auto first = shard::parse_rank_name(names.front(), shard::rank_directory_name);
  INGOT_CHECK(first.has_value());
  const std::uint32_t n_ranks = first->n_ranks;
  if (names.size() != n_ranks) {
    throw Error(ErrorCode::kNotFound,
                "holds {} of {} rank directories (threads need all of them; mpirun runs ranks of "
                "many hosts)",
                names.size(), n_ranks)
        .in_file(directory.string());
  }
  const shard::Topology topology = topology_of(directory / names.front(), first->rank, n_ranks);
  std::vector<int> codes(n_ranks);
  Session& own_session = session();
  inference::run_ranks(topology, [&](std::uint32_t rank, inference::Comm& comm) {
    const SessionScope scope(own_session);
    const fs::path own = rank_directory(directory, rank, n_ranks);
    (void)topology_of(own, rank, n_ranks);
    codes[rank] = body(
        {.directory = own, .comm = comm, .n_sharing_given = n_ranks, .n_sharing_found = n_ranks});
  });
  return *std::ranges::max_element(codes);
}

// Returns the number that the launcher says; 1 where it says none.
std::size_t ranks_of_this_host() {
  const char* const n = std::getenv("OMPI_COMM_WORLD_LOCAL_SIZE");
  return n != nullptr ? std::max<std::size_t>(std::strtoul(n, nullptr, 10), 1) : 1;
}

int run_as_process(const RankFlags& flags, Ranks& ranks, const fs::path& directory,
                   const std::function<int(const RunningRank&)>& body) {
  const fs::path own = rank_directory(directory, ranks.rank(), ranks.size());
  const shard::Topology topology = topology_of(own, ranks.rank(), ranks.size());
  inference::MpiComm comm(ranks.module(), topology, ranks.rank(),
                          {.own_sums = flags.mpi_sums, .stop_requested = stop_requested});
  return ranks.gather(
      body({.directory = own, .comm = comm, .n_sharing_found = ranks_of_this_host()}));
}

}  // namespace

Flag mpi_flag(std::string* target, std::string_view of_processes,
              std::vector<std::string> excludes) {
  return {"--mpi",
          target,
          fmt::format("{}: auto (when one of these has started this process), always, never",
                      of_processes),
          {.words = {"auto", "always", "never"},
           .excludes = std::move(excludes),
           .is_for_people = true}};
}

int run_launched(const std::string& mpi, const FlagTable& table, const std::function<int()>& single,
                 const std::function<int(Ranks&)>& together) {
  if (!session().is_of_program || !is_launched(parse_mpi_use(mpi))) return single();
  Ranks ranks(table.settings->dump(-1, ' ', false, formats::Json::error_handler_t::replace));
  answer().is_of_other = ranks.rank() != 0;
  int code = kExitDone;
  if (ranks.size() == 1) {
    code = single();
  } else {
    try {
      code = together(ranks);
    } catch (const Error&) {
      // All ranks find the same fault in the common arguments: one of them says it, and ends the
      // rest.
      if (ranks.rank() != 0) std::this_thread::sleep_for(kTimeOfTheFirst);
      throw;
    }
  }
  print_answer();
  std::cout.flush();
  ranks.end(code);
  return code;
}

void declare_rank_flags(FlagTable& table, RankFlags& flags) {
  flags.table = &table;
  table.add(FlagGroup::kJob,
            {{"--ranks",
              &flags.ranks,
              "how a sliced checkpoint runs: joined (slices seen as one model), or threads (each "
              "rank by itself with only its slice, all in this process)",
              {.choices = {kJoined, kThreads}}},
             mpi_flag(&flags.mpi,
                      "a rank of a sliced checkpoint, with only its slice, in each process that "
                      "mpirun, or srun with PMIx, has started"),
             {"--mpi-sums",
              &flags.mpi_sums,
              "sums over processes by MPI's own reduction: fewer bytes, but an order, and so last "
              "bits, of its own",
              {.is_for_people = true}}});
}

std::uint64_t RunningRank::share(std::uint64_t amount, bool is_given) const {
  return std::max<std::uint64_t>(amount / (is_given ? n_sharing_given : n_sharing_found), 1);
}

int run_ranks(const RankFlags& flags, const fs::path& directory,
              const std::function<int(const RunningRank&)>& body) {
  const auto in_this_process = [&] {
    if (flags.ranks == kThreads) return run_as_threads(directory, body);
    inference::OneRank alone;
    return body({.directory = directory, .comm = alone, .is_rank = false});
  };
  return run_launched(flags.mpi, *flags.table, in_this_process, [&](Ranks& ranks) {
    if (flags.ranks == kThreads) {
      throw Error(ErrorCode::kInvalidArgument,
                  "--ranks threads is for one process; the processes of a launch are ranks without "
                  "it");
    }
    return run_as_process(flags, ranks, directory, body);
  });
}

}  // namespace ingot::cli
