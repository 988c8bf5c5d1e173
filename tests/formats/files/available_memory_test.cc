#include "formats/files/available_memory.h"

#include "formats/base/fd.h"
#include "tests/support/test.h"

namespace ingot {
namespace {

// A machine with 1000 kB, and control groups as some kernel shows them.
class ControlGroups : public testing::InTempDir {
 protected:
  ControlGroups() {
    put("proc/meminfo", "MemTotal: 2000 kB\nMemFree: 10 kB\nMemAvailable: 1000 kB\n");
  }
  void put(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories((dir_ / name).parent_path());
    write_text_file(dir_ / name, text);
  }
  // Mounted at `place`: the groups below `root` of the hierarchy.
  [[nodiscard]] std::string mounted(const std::string& root, const std::string& place,
                                    const std::string& type) const {
    return fmt::format("30 23 0:26 {} {}/{} rw,nosuid shared:4 - {} {} rw,{}\n", root,
                       dir_.path().string(), place, type, type,
                       type == "cgroup" ? "memory" : "nsdelegate");
  }
  [[nodiscard]] std::uint64_t available() const { return available_memory(dir_ / "proc"); }
};

TEST_F(ControlGroups, OfNoKindLeaveTheSystems) {
  EXPECT_EQ(available(), 1'024'000U);
  put("proc/self/cgroup", "0::/a\n");
  put("proc/self/mountinfo", mounted("/", "cg", "cgroup2"));
  put("cg/a/memory.max", "max\n");
  put("cg/a/memory.current", "5000\n");
  EXPECT_EQ(available(), 1'024'000U);
}

TEST_F(ControlGroups, AndLimitsOfTheProcessHold) {
  const auto limits = [&](const std::string& space, const std::string& data) {
    put("proc/self/limits",
        "Limit                     Soft Limit           Hard Limit           Units     \n"
        "Max data size             " +
            data + "            unlimited            bytes     \nMax address space         " +
            space + "           unlimited            bytes     \n");
  };
  put("proc/self/status", "VmPeak: 900 kB\nVmSize: 300 kB\nVmData: 100 kB\n");
  limits("unlimited", "unlimited");
  EXPECT_EQ(available(), 1'024'000U);
  limits("921600", "unlimited");
  EXPECT_EQ(available(), 307'200U) << "half of what is left";
  limits("921600", "204800");
  EXPECT_EQ(available(), 51'200U);
  limits("921600", "1000");
  EXPECT_EQ(available(), 0U);
}

TEST_F(ControlGroups, OfVersion2CountUpToTheRoot) {
  put("proc/self/cgroup", "0::/slice/pod/own\n");
  put("proc/self/mountinfo",
      "24 23 0:22 / /sys rw - sysfs sysfs rw\n" + mounted("/", "c\\040g", "cgroup2"));
  put("c g/slice/pod/own/memory.max", "max\n");
  put("c g/slice/pod/own/memory.current", "100\n");
  put("c g/slice/pod/memory.max", "700000\n");
  put("c g/slice/pod/memory.current", "300000\n");
  EXPECT_EQ(available(), 400'000U);
  // Pages of files can go.
  put("c g/slice/pod/memory.stat", "anon 1\ninactive_file 40000\nactive_file 10000\n");
  EXPECT_EQ(available(), 450'000U);
  put("c g/slice/memory.max", "500000\n");
  put("c g/slice/memory.current", "499999\n");
  EXPECT_EQ(available(), 1U);
  put("c g/slice/memory.current", "600000\n");
  EXPECT_EQ(available(), 0U);
}

TEST_F(ControlGroups, OfVersion1AreLookedAtToo) {
  put("proc/self/cgroup", "9:name=systemd:/x\n4:cpu,memory:/docker/abc/job\n0::/\n");
  put("proc/self/mountinfo", mounted("/docker/abc", "memory", "cgroup"));
  put("memory/job/memory.limit_in_bytes", "9223372036854771712\n");
  put("memory/job/memory.usage_in_bytes", "1000\n");
  put("memory/memory.limit_in_bytes", "300000\n");
  put("memory/memory.usage_in_bytes", "100000\n");
  EXPECT_EQ(available(), 200'000U);
  // The limit of a group above the mount.
  put("memory/job/memory.stat", "cache 5\nhierarchical_memory_limit 51000\n");
  EXPECT_EQ(available(), 50'000U);
}

TEST_F(ControlGroups, OutsideOfTheirMountAreTheMount) {
  for (const char* group : {"/elsewhere/job", "/../job", "/docker/abcd"}) {
    put("proc/self/cgroup", fmt::format("0::{}\n", group));
    put("proc/self/mountinfo", mounted("/docker/abc", "cg", "cgroup2"));
    put("cg/memory.max", "7000\n");
    put("cg/memory.current", "4000\n");
    EXPECT_EQ(available(), 3'000U) << group;
  }
}

}  // namespace
}  // namespace ingot
