#pragma once

#include "tests/support/test.h"

namespace ingot::testing {

/// A fresh directory on the disk of the build, where the usual ones may be in memory: for claims
/// about direct writes, reserved bytes and files of several names.
class DiskDir : public TempDir {
 public:
  DiskDir() : TempDir(INGOT_BINARY_DIR) {}
};

/// A test that has one.
class OnDisk : public ::testing::Test {
 protected:
  const DiskDir dir_;
};

}  // namespace ingot::testing
