// Comparing the weights of two checkpoints, against reading the bytes of both from the page cache
// with as many threads, in one run; medians of the ratios of each round.
//
//   verify_bench SOURCE OUTPUT [--rounds N] [--threads T] [--cpu]
//
// --cpu takes the time of the processors instead of the wall's, which on a busy host says more.
//
//   ingot synth a --family deepseek_v3 --like layer --layers 1 --experts 16 --vocab 16384
//   ingot convert a b --to nvfp4

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/core.h>

#include "bench/reading.h"
#include "bench/timing.h"
#include "formats/base/parallel.h"
#include "verify/structure/compared_checkpoint.h"
#include "verify/weights/weight_check.h"

namespace {

struct Options {
  std::filesystem::path source, output;
  std::size_t rounds = 5, threads = ingot::available_processors();
  bool processors = false;
};

Options parse(int argc, char** argv) {
  Options options;
  std::vector<std::string> directories;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "--rounds" && i + 1 < argc) {
      options.rounds = std::strtoul(argv[++i], nullptr, 10);
    } else if (word == "--threads" && i + 1 < argc) {
      options.threads = std::strtoul(argv[++i], nullptr, 10);
    } else if (word == "--cpu") {
      options.processors = true;
    } else {
      directories.emplace_back(word);
    }
  }
  if (directories.size() != 2 || options.rounds == 0 || options.threads == 0) {
    fmt::print(stderr, "verify_bench SOURCE OUTPUT [--rounds N] [--threads T] [--cpu]\n");
    std::exit(2);
  }
  options.source = directories[0];
  options.output = directories[1];
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  using ingot::bench::median;
  const Options options = parse(argc, argv);
  ingot::bench::Reading reading;
  reading.add(options.source);
  reading.add(options.output);
  const ingot::verify::ComparedCheckpoint source = ingot::verify::open_compared(options.source, {});
  const ingot::verify::ComparedCheckpoint output = ingot::verify::open_compared(options.output, {});
  const ingot::verify::WeightsOptions weights{.threads = options.threads};
  reading.run(options.threads);  // into the page cache
  const ingot::bench::Clock clock{.processors = options.processors, .threads = options.threads};
  std::vector<double> read, compare, ratio;
  std::uint64_t misrounded = 0;
  for (std::size_t round = 0; round < options.rounds; ++round) {
    read.push_back(seconds_of(clock, [&] { reading.run(options.threads); }));
    compare.push_back(seconds_of(clock, [&] {
      misrounded = 0;
      const auto report = ingot::verify::compare_weights(source.model, output.model, weights);
      for (const auto& tensor : report.tensors) misrounded += tensor.sums.misrounded;
    }));
    ratio.push_back(read.back() / compare.back());
  }
  fmt::print(
      "{:.2f} GB, {} threads: read {:.2f} GB/s, compared {:.2f} GB/s, ratio {:.2f} ({} "
      "misrounded)\n",
      reading.gigabytes(), options.threads, reading.gigabytes() / median(read),
      reading.gigabytes() / median(compare), median(ratio), misrounded);
  return 0;
}
