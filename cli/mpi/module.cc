#include "cli/mpi/module.h"

#include <mpi.h>

// Errors of MPI end all ranks with MPI's own words: its default, and what is wanted.

namespace ingot::cli {
namespace {

constexpr int kTag = 1, kWords = 3;

// The message that is on its way; it must stay where it is until it has left.
RankMessage on_its_way = {};
MPI_Request sending = MPI_REQUEST_NULL;

bool start(std::uint32_t* rank, std::uint32_t* n_ranks) {
  int given = MPI_THREAD_SINGLE, own = 0, all = 0;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &given);
  MPI_Comm_rank(MPI_COMM_WORLD, &own);
  MPI_Comm_size(MPI_COMM_WORLD, &all);
  *rank = static_cast<std::uint32_t>(own);
  *n_ranks = static_cast<std::uint32_t>(all);
  return given >= MPI_THREAD_SERIALIZED;
}

bool is_sent() {
  int has_left = 0;
  MPI_Test(&sending, &has_left, MPI_STATUS_IGNORE);
  return has_left != 0;
}

bool try_send(std::uint32_t to, const RankMessage* message) {
  if (!is_sent()) return false;
  on_its_way = *message;
  MPI_Isend(on_its_way.words, kWords, MPI_UINT64_T, static_cast<int>(to), kTag, MPI_COMM_WORLD,
            &sending);
  return true;
}

bool try_receive(std::uint32_t* from, RankMessage* message) {
  int is_here = 0;
  MPI_Status status;
  MPI_Iprobe(MPI_ANY_SOURCE, kTag, MPI_COMM_WORLD, &is_here, &status);
  if (is_here == 0) return false;
  MPI_Recv(message->words, kWords, MPI_UINT64_T, status.MPI_SOURCE, kTag, MPI_COMM_WORLD,
           MPI_STATUS_IGNORE);
  *from = static_cast<std::uint32_t>(status.MPI_SOURCE);
  return true;
}

void end() {
  MPI_Finalize();
}

void abort(std::int32_t code) {
  MPI_Abort(MPI_COMM_WORLD, code);
}

constexpr MpiModule kModule = {.version = kMpiModuleVersion,
                               .start = start,
                               .try_send = try_send,
                               .is_sent = is_sent,
                               .try_receive = try_receive,
                               .end = end,
                               .abort = abort};

}  // namespace
}  // namespace ingot::cli

const ingot::cli::MpiModule* ingot_mpi_module() {
  return &ingot::cli::kModule;
}
