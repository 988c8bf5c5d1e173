#include <cstdint>

// When Highway's library is loaded it measures the resolution of the processor's clock, for the
// benchmarks that it offers: 3.5 ms of every start, a third of them. The loader takes this function
// in the place of that one, and nothing here uses those benchmarks.
namespace hwy::platform {

std::uint64_t TimerResolution();
std::uint64_t TimerResolution() {
  return 1;
}

}  // namespace hwy::platform
