#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/mpi/ranks.h"
#include "inference/parallel/comm.h"
#include "library/options/flag_table.h"

namespace ingot::cli {

/// `--mpi`: what becomes `of_processes` of a launch.
Flag mpi_flag(std::string* target, std::string_view of_processes,
              std::vector<std::string> excludes = {});

/// Runs `single` for one process, or `together` where a launcher has started several that work
/// as one. Throws kInvalidArgument unless all have the same settings. Returns the exit code of
/// all, which `together` returns on rank 0. Where ranks throw, the first has time to say what is
/// wrong with the common arguments.
int run_launched(const std::string& mpi, const FlagTable& table, const std::function<int()>& single,
                 const std::function<int(Ranks&)>& together);

/// Flags of commands that run a model, whose ranks may hold only their slices.
struct RankFlags {
  std::string ranks = "joined", mpi = "auto";
  bool mpi_sums = false;
  const FlagTable* table = nullptr;  ///< table that has these flags
};
/// `--ranks`, `--mpi`, `--mpi-sums`.
void declare_rank_flags(FlagTable& table, RankFlags& flags);

/// A rank that runs, or all of a model.
struct RunningRank {
  std::filesystem::path directory;  ///< the only directory that it opens
  inference::Comm& comm;
  /// How many share the processors and the memory that this process was given, and those that it
  /// finds where it was given none.
  std::size_t n_sharing_given = 1, n_sharing_found = 1;
  bool is_rank = true;

  /// True for the rank that reads the user's input, and prints.
  [[nodiscard]] bool is_first() const { return comm.rank(inference::Group::kWorld) == 0; }
  /// The part of an amount that is this rank's, at least 1.
  [[nodiscard]] std::uint64_t share(std::uint64_t amount, bool is_given) const;
};

/// Runs `body` for the whole model in `directory`; or for each rank of a sliced one, as threads
/// (--ranks threads) or as the processes of the launch. Returns the worst exit code. kNotFound and
/// kInvalidArgument, naming the remedy, for a directory without the rank, and for another number of
/// processes than it was cut for.
int run_ranks(const RankFlags& flags, const std::filesystem::path& directory,
              const std::function<int(const RunningRank&)>& body);

}  // namespace ingot::cli
