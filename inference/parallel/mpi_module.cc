#include "inference/parallel/mpi_module.h"

#include <vector>

#include <mpi.h>

// Errors of MPI end all ranks with MPI's own words: its default, which is wanted here.

namespace ingot::inference {
namespace {

constexpr int kTag = 1, kWords = 3;

// The message that is on its way; it must stay where it is until it has left.
RankMessage on_its_way = {};
MPI_Request sending = MPI_REQUEST_NULL;

struct RankGroup {
  MPI_Comm comm = MPI_COMM_NULL;
  std::vector<MPI_Request> under_way;
};
std::vector<RankGroup> groups;

MPI_Request* next_request(std::uint32_t group) {
  return &groups[group].under_way.emplace_back(MPI_REQUEST_NULL);
}

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

std::uint32_t split(std::uint32_t colour, std::uint32_t place) {
  RankGroup& group = groups.emplace_back();
  MPI_Comm_split(MPI_COMM_WORLD, static_cast<int>(colour), static_cast<int>(place), &group.comm);
  return static_cast<std::uint32_t>(groups.size() - 1);
}

void start_send(std::uint32_t group, std::uint32_t to, std::uint32_t tag, const void* bytes,
                std::uint64_t n_bytes) {
  MPI_Isend(bytes, static_cast<int>(n_bytes), MPI_BYTE, static_cast<int>(to), static_cast<int>(tag),
            groups[group].comm, next_request(group));
}

bool probe(std::uint32_t group, std::uint32_t from, std::uint32_t* tag, std::uint64_t* n_bytes) {
  int is_here = 0, count = 0;
  MPI_Status status;
  MPI_Iprobe(static_cast<int>(from), MPI_ANY_TAG, groups[group].comm, &is_here, &status);
  if (is_here == 0) return false;
  MPI_Get_count(&status, MPI_BYTE, &count);
  *tag = static_cast<std::uint32_t>(status.MPI_TAG);
  *n_bytes = static_cast<std::uint64_t>(count);
  return true;
}

void start_receive(std::uint32_t group, std::uint32_t from, std::uint32_t tag, void* bytes,
                   std::uint64_t n_bytes) {
  MPI_Irecv(bytes, static_cast<int>(n_bytes), MPI_BYTE, static_cast<int>(from),
            static_cast<int>(tag), groups[group].comm, next_request(group));
}

void start_sum(std::uint32_t group, float* values, std::uint64_t n) {
  MPI_Iallreduce(MPI_IN_PLACE, values, static_cast<int>(n), MPI_FLOAT, MPI_SUM, groups[group].comm,
                 next_request(group));
}

bool is_done(std::uint32_t group) {
  std::vector<MPI_Request>& requests = groups[group].under_way;
  int are_done = 0;
  MPI_Testall(static_cast<int>(requests.size()), requests.data(), &are_done, MPI_STATUSES_IGNORE);
  if (are_done != 0) requests.clear();
  return are_done != 0;
}

constexpr MpiModule kModule = {.version = kMpiModuleVersion,
                               .start = start,
                               .try_send = try_send,
                               .is_sent = is_sent,
                               .try_receive = try_receive,
                               .end = end,
                               .abort = abort,
                               .split = split,
                               .start_send = start_send,
                               .probe = probe,
                               .start_receive = start_receive,
                               .start_sum = start_sum,
                               .is_done = is_done};

}  // namespace
}  // namespace ingot::inference

const ingot::inference::MpiModule* ingot_mpi_module() {
  return &ingot::inference::kModule;
}
