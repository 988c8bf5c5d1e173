#pragma once

#include <cstdint>

// What the program and its module of MPI agree on. The module is the only file that knows MPI; the
// program loads it where a launcher has started several processes, so that it runs without MPI too.

namespace ingot::cli {

/// What one rank tells another: three numbers whose meaning is the sender's.
struct RankMessage {
  std::uint64_t words[3];
};

/// The functions of the module. None is called by two threads at once.
struct MpiModule {
  /// kMpiModuleVersion of the header that the module was compiled with.
  std::uint32_t version;
  /// Starts MPI and says which of how many ranks this process is. Returns false when MPI cannot be
  /// used by several threads in turn.
  bool (*start)(std::uint32_t* rank, std::uint32_t* n_ranks);
  /// Sends a message, or returns false while the one before it is on its way.
  bool (*try_send)(std::uint32_t to, const RankMessage* message);
  /// Whether the last message has left.
  bool (*is_sent)();
  /// Takes the next message that has come, of any rank, or returns false.
  bool (*try_receive)(std::uint32_t* from, RankMessage* message);
  /// Ends MPI; every rank has to call it.
  void (*end)();
  /// Ends every rank; the launcher's exit code is `code`.
  void (*abort)(std::int32_t code);
};

inline constexpr std::uint32_t kMpiModuleVersion = 1;
inline constexpr const char* kMpiModuleFile = "ingot_mpi.so";
inline constexpr const char* kMpiModuleSymbol = "ingot_mpi_module";

}  // namespace ingot::cli

/// The symbol that the program looks up.
extern "C" const ingot::cli::MpiModule* ingot_mpi_module();
