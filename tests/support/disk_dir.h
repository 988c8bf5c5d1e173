#pragma once

#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string>

#include <gtest/gtest.h>

namespace ingot::testing {

/// A fresh directory on the disk of the build, where the usual ones may be in memory: for claims
/// about direct writes, reserved bytes and files of several names.
class DiskDir {
 public:
  DiskDir() {
    std::string name = INGOT_BINARY_DIR "/ingot-test-XXXXXX";
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
    path_ = name;
  }
  ~DiskDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  DiskDir(const DiskDir&) = delete;
  DiskDir& operator=(const DiskDir&) = delete;

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

/// A test that has one.
class OnDisk : public ::testing::Test {
 protected:
  const DiskDir dir_;
};

}  // namespace ingot::testing
