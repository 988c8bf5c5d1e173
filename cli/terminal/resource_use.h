#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "formats/json/json.h"

namespace ingot::cli {

/// The resources that this process has used.
struct ResourceUse {
  double seconds = 0;         ///< time of the wall's clock
  double cpu_seconds = 0;     ///< time of cores, of all its threads
  double system_seconds = 0;  ///< part of it in the kernel, where jobs read and write
  /// Time that its threads had a core or waited for one, and that they waited for a disk, as far
  /// as they were looked at (ThreadWatch).
  double wanted_core_seconds = 0, waited_disk_seconds = 0;
  /// Read from and written to disks; 0 where the system does not say.
  std::uint64_t disk_bytes = 0;
  std::uint64_t major_faults = 0;  ///< pages of its memory that had to be read from a disk

  friend ResourceUse operator-(const ResourceUse& later, const ResourceUse& earlier);
};

/// Until now; without the demands of threads.
ResourceUse resource_use();

/// Samples the threads of this process to learn which resource they wait for: CPU time does not
/// tell where other programs want the same cores. Linux tells the state of each thread.
class ThreadWatch {
 public:
  /// Looks, unless it has just been done.
  void look();
  /// The use since the last call.
  [[nodiscard]] ResourceUse take();

 private:
  double looked_at_ = 0;
  ResourceUse seen_;
};

/// The resource that kept so many threads from being faster: "cores (wanted 97% of the time)",
/// "memory (...)", "disk (...)", "one core", or "-" where none did.
std::string limit_text(const ResourceUse& use, std::size_t threads);

/// A kind of work, and its share of the time of a job's threads, from 0 to 1.
struct WorkShare {
  std::string_view work;
  double share = 0;
};

/// Shares of a job that writes nothing, the largest first: computing, reading (calls into the
/// kernel, and waiting for a disk), other programs that had the cores, and waiting.
std::vector<WorkShare> reading_shares(const ResourceUse& use, std::size_t threads);

/// The shares for a document.
formats::Json limits_json(const std::vector<WorkShare>& shares);

/// The limit of a job and those that would come next: "limited by computing (71% of the threads'
/// time), next by reading (20%)"; without shares of less than 1%.
std::string limits_text(const std::vector<WorkShare>& shares);

}  // namespace ingot::cli
