#include "formats/files/shared_blocks.h"

#include <linux/fs.h>
#include <sys/ioctl.h>

namespace ingot {

bool share_blocks(const Fd& from, const Fd& to) {
  return uninterrupted([&] { return ::ioctl(to.get(), FICLONE, from.get()); }) == 0;
}

}  // namespace ingot
