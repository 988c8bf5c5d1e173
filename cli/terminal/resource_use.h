#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace ingot::cli {

/// The resources that this process has used.
struct ResourceUse {
  double seconds = 0;      ///< on the wall
  double cpu_seconds = 0;  ///< of all its threads
  /// That its threads had a core or waited for one, and that they waited for a disk, as far as
  /// they were looked at (ThreadWatch).
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

}  // namespace ingot::cli
