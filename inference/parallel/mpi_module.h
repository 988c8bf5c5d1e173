#pragma once

#include <cstdint>

// The interface between the program and its module of MPI. The module is the only file that knows
// MPI; the program loads it where a launcher has started several processes, so that it runs without
// MPI too.

namespace ingot::inference {

/// A message from one rank to another: three numbers whose meaning the sender defines.
struct RankMessage {
  std::uint64_t words[3];
};

/// The functions of the module. None waits, unless it says so; none is called by two threads at
/// once.
struct MpiModule {
  /// kMpiModuleVersion of the header that the module was compiled with.
  std::uint32_t version;
  /// Starts MPI and says which of how many ranks this process is. Returns false when MPI cannot be
  /// used by several threads in turn.
  bool (*start)(std::uint32_t* rank, std::uint32_t* n_ranks);
  /// Sends a message, or returns false while the one before it is on its way.
  bool (*try_send)(std::uint32_t to, const RankMessage* message);
  /// True if the last message has left.
  bool (*is_sent)();
  /// Takes the next message that has come, of any rank, or returns false.
  bool (*try_receive)(std::uint32_t* from, RankMessage* message);
  /// Ends MPI; every rank has to call it, and it waits for all.
  void (*end)();
  /// Ends every rank; the launcher's exit code is `code`.
  void (*abort)(std::int32_t code);

  /// Makes a group of the ranks that name the same colour, which are numbered in the order of
  /// `place`, and returns its number: 0 for the first group of this rank, and so on. Every rank
  /// calls it the same number of times, and it waits for all.
  std::uint32_t (*split)(std::uint32_t colour, std::uint32_t place);
  /// Starts to send at most kMostMpiBytes to a rank of a group; they stay where they are until
  /// is_done(group). `tag`: below kMpiTags, the kind of the message.
  void (*start_send)(std::uint32_t group, std::uint32_t to, std::uint32_t tag, const void* bytes,
                     std::uint64_t n_bytes);
  /// True if a message of this rank of the group has come; then gives its tag and its size.
  bool (*probe)(std::uint32_t group, std::uint32_t from, std::uint32_t* tag,
                std::uint64_t* n_bytes);
  /// Starts to receive the message that probe() has just seen.
  void (*start_receive)(std::uint32_t group, std::uint32_t from, std::uint32_t tag, void* bytes,
                        std::uint64_t n_bytes);
  /// Starts to replace `values` by their sums over the group, at most kMostMpiBytes of them, added
  /// in an order that is MPI's own.
  void (*start_sum)(std::uint32_t group, float* values, std::uint64_t n);
  /// True if all work that was started in the group is done.
  bool (*is_done)(std::uint32_t group);
};

/// MPI counts in `int`.
inline constexpr std::uint64_t kMostMpiBytes = (std::uint64_t{1} << 31) - 1;
/// Every MPI has as many.
inline constexpr std::uint32_t kMpiTags = 1U << 15U;

inline constexpr std::uint32_t kMpiModuleVersion = 2;
inline constexpr const char* kMpiModuleFile = "ingot_mpi.so";
inline constexpr const char* kMpiModuleSymbol = "ingot_mpi_module";

}  // namespace ingot::inference

/// The symbol that the program looks up.
extern "C" const ingot::inference::MpiModule* ingot_mpi_module();
