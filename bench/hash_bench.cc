// The passes of `check` over all weights, compared with reading the same files from the page cache
// with as many threads, in one run; medians of the ratios of each round.
//
//   hash_bench DIRECTORY [--rounds N] [--threads T]
//
//   ingot synth a --family deepseek_v3 --like layer --layers 1 --experts 16 --vocab 16384

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <vector>

#include <fmt/core.h>

#include "bench/reading.h"
#include "bench/timing.h"
#include "check/rules/loader_rules.h"
#include "check/stored_hashes.h"
#include "formats/base/parallel.h"
#include "formats/checkpoint/checkpoint.h"

namespace {

struct Options {
  std::filesystem::path directory;
  std::size_t rounds = 5, threads = ingot::available_processors();
};

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "--rounds" && i + 1 < argc) {
      options.rounds = std::strtoul(argv[++i], nullptr, 10);
    } else if (word == "--threads" && i + 1 < argc) {
      options.threads = std::strtoul(argv[++i], nullptr, 10);
    } else {
      options.directory = word;
    }
  }
  if (options.directory.empty() || options.rounds == 0 || options.threads == 0) {
    fmt::print(stderr, "hash_bench DIRECTORY [--rounds N] [--threads T]\n");
    std::exit(2);
  }
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  using ingot::bench::median;
  const Options options = parse(argc, argv);
  ingot::bench::Reading reading;
  reading.add(options.directory);
  const auto model = ingot::formats::Checkpoint::open(options.directory);
  reading.run(options.threads);  // into the page cache
  const ingot::bench::Clock clock;
  std::vector<double> read, hash, deep, hash_ratio, deep_ratio;
  std::size_t n_failed = 0, n_found = 0;
  for (std::size_t round = 0; round < options.rounds; ++round) {
    read.push_back(seconds_of(clock, [&] { reading.run(options.threads); }));
    hash.push_back(seconds_of(clock, [&] {
      const auto hashed = ingot::check::hash_stored(
          {.stored = model.stored(), .bytes = model.bytes()}, options.threads);
      n_failed = static_cast<std::size_t>(
          std::count_if(hashed.begin(), hashed.end(), [](const auto& one) { return !one.hash; }));
    }));
    deep.push_back(seconds_of(clock, [&] {
      n_found =
          ingot::check::run_loader_rules(model, {.deep = true, .threads = options.threads}).size();
    }));
    hash_ratio.push_back(read.back() / hash.back());
    deep_ratio.push_back(read.back() / deep.back());
  }
  const double size = reading.gigabytes();
  fmt::print(
      "{:.2f} GB, {} threads: read {:.2f} GB/s, hashed {:.2f} GB/s, ratio {:.2f} ({} failed); "
      "rules with --deep {:.2f} GB/s, ratio {:.2f} ({} findings)\n",
      size, options.threads, size / median(read), size / median(hash), median(hash_ratio), n_failed,
      size / median(deep), median(deep_ratio), n_found);
  return 0;
}
