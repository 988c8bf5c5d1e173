#pragma once

#include <sys/resource.h>

#include "tests/support/test.h"

namespace ingot::testing {

/// Lowers the number of files that the process may open, for a scope.
class DescriptorLimit {
 public:
  explicit DescriptorLimit(rlim_t most) {
    EXPECT_EQ(::getrlimit(RLIMIT_NOFILE, &before_), 0);
    struct rlimit lowered = before_;
    lowered.rlim_cur = std::min(most, before_.rlim_cur);
    EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &lowered), 0);
  }
  ~DescriptorLimit() { EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &before_), 0); }
  DescriptorLimit(const DescriptorLimit&) = delete;
  DescriptorLimit& operator=(const DescriptorLimit&) = delete;

 private:
  struct rlimit before_ {};
};

/// How many descriptors of this process are open on files below a directory.
inline std::size_t descriptors_below(const std::filesystem::path& directory) {
  const std::string prefix = directory.string() + "/";
  std::size_t n = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code closed_meanwhile;
    const auto target = std::filesystem::read_symlink(entry.path(), closed_meanwhile);
    if (!closed_meanwhile && target.string().starts_with(prefix)) ++n;
  }
  return n;
}

}  // namespace ingot::testing
