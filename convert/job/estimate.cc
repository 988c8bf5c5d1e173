#include "convert/job/estimate.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include <fcntl.h>

#include "convert/plan/passes.h"
#include "formats/base/aligned_buffer.h"
#include "formats/base/checked.h"
#include "formats/base/error.h"
#include "formats/base/fd.h"
#include "formats/base/parallel.h"
#include "quantize/error_feedback.h"
#include "quantize/quality.h"
#include "quantize/scheme.h"

namespace ingot::convert {

namespace fs = std::filesystem;
using formats::SchemeId;

namespace {

using Clock = std::chrono::steady_clock;

// Shares of the time for measuring.
constexpr double kDiskShare = 0.25, kComputeShare = 0.4;
// The largest piece, and the unit of others: direct I/O takes whole blocks.
constexpr std::size_t kPiece = std::size_t{8} << 20, kBlock = 4096;
constexpr std::size_t kStreams = 4;
// A file without a name never takes more of the disk, nor more pieces than the output has.
constexpr std::uint64_t kMostWritten = std::uint64_t{4} << 30;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Bytes per second of `step`, which moves a piece of the `there` bytes and says how many it had (0:
// no more), on up to kStreams threads for so many seconds; 0 when a step fails. A small model costs
// no more memory than it has bytes.
template <typename Step>
double rate_of(std::uint64_t there, std::size_t threads, double seconds, const Step& step) {
  const std::uint64_t piece = std::clamp<std::uint64_t>(round_up(there, kBlock), kBlock, kPiece);
  const std::uint64_t pieces = std::max<std::uint64_t>(1, ceil_div(there, piece));
  std::atomic<std::uint64_t> n_bytes = 0;
  const Clock::time_point start = Clock::now();
  try {
    run_workers(std::min<std::uint64_t>({threads, kStreams, pieces}), [&](std::size_t) {
      const AlignedBuffer buffer(piece);
      std::fill(buffer.span().begin(), buffer.span().end(), std::byte{0x5a});
      do {
        const std::uint64_t n = step(buffer.span());
        if (n == 0) return;
        n_bytes += n;
      } while (seconds_since(start) < seconds);
    });
  } catch (const Error&) {
    return 0;  // a run will report the fault of the disk
  }
  return static_cast<double>(n_bytes.load()) / std::max(seconds_since(start), 1e-9);
}

WorkEstimate measure_reading(const Plan& plan, std::size_t threads, double seconds) {
  WorkEstimate work{.n_bytes = plan.sizes.bytes_in};
  const auto files = plan.source.files();
  const auto largest =
      std::max_element(files.begin(), files.end(),
                       [](const auto& a, const auto& b) { return a.n_bytes < b.n_bytes; });
  if (largest == files.end()) return work;
  const auto index = static_cast<std::uint32_t>(largest - files.begin());
  if (!plan.source.has_data(index)) return work;
  const fs::path path = plan.source.directory() / largest->name;
  const Fd direct = fs::exists(path) ? Fd::open_direct(path) : Fd();
  work.is_past_cache = direct.valid();
  std::atomic<std::uint64_t> next = 0;
  work.per_second =
      rate_of(largest->n_bytes, threads, seconds, [&](std::span<std::byte> piece) {
        const std::uint64_t offset = next.fetch_add(piece.size());
        if (offset >= largest->n_bytes) return std::uint64_t{0};
        if (direct.valid()) return std::uint64_t{direct.read_direct(piece, offset).value_or(0)};
        const std::uint64_t n = std::min<std::uint64_t>(piece.size(), largest->n_bytes - offset);
        plan.source.read_file(index, offset, piece.first(n));
        return n;
      });
  return work;
}

// Where the output is to be, or the nearest folder above that is there.
fs::path existing_folder(const fs::path& output) {
  fs::path folder = fs::absolute(output);
  while (!fs::is_directory(folder) && folder.has_relative_path()) folder = folder.parent_path();
  return folder;
}

WorkEstimate measure_writing(const Plan& plan, const fs::path& folder, std::size_t threads,
                             double seconds) {
  WorkEstimate work{.n_bytes = plan.sizes.bytes_out};
  const auto without_name = [&](int flags) -> Fd {
    try {
      return Fd::open_for_writing(folder, O_TMPFILE | O_WRONLY | flags);
    } catch (const Error&) {
      return {};
    }
  };
  Fd file = without_name(O_DIRECT);
  work.is_past_cache = file.valid();
  if (!file.valid()) file = without_name(0);
  if (!file.valid()) return work;
  const std::uint64_t most = std::clamp<std::uint64_t>(plan.sizes.bytes_out, 1, kMostWritten);
  std::atomic<std::uint64_t> next = 0;
  const Clock::time_point start = Clock::now();
  const double rate = rate_of(most, threads, seconds, [&](std::span<std::byte> piece) {
    const std::uint64_t offset = next.fetch_add(piece.size());
    if (offset >= most) return std::uint64_t{0};
    if (work.is_past_cache) {
      if (!file.write_direct(piece, offset)) return std::uint64_t{0};
    } else {
      file.write_exact(piece, offset);
    }
    return std::uint64_t{piece.size()};
  });
  const double n_bytes = rate * seconds_since(start);
  try {
    file.sync_data();
  } catch (const Error&) {
    return work;
  }
  work.per_second = n_bytes / std::max(seconds_since(start), 1e-9);
  return work;
}

/// A tile of one pair of schemes: the work of an action on each, without reading and writing.
class TrialTile {
 public:
  TrialTile(SchemeId from, SchemeId to, const quantize::EncodeOptions& options)
      : from_(from),
        to_(to),
        options_(options_for(*quantize::find_scheme(to), options)),
        values_(kRows * kCols),
        decoded_(kRows * kCols) {
    std::minstd_rand random(1);
    std::normal_distribution<float> normal(0.0F, 0.02F);
    for (float& value : values_) value = normal(random);
    codes_.resize(kRows * kCols * sizeof(float));
    source_.resize(codes_.size(), kOrdinary);
    scales_.resize(kRows * kCols * sizeof(float));
    ones_.resize(kRows * kCols, 1.0F);
  }

  void run() {
    if (const auto transcode = quantize::find_transcode(from_, to_)) {
      transcode(
          encoded(from_, source_),
          std::as_writable_bytes(std::span(decoded_)).first(kRows * kCols * code_bits(to_) / 8));
      return;
    }
    const quantize::Scheme& to = *quantize::find_scheme(to_);
    const formats::MatrixView<float> decoded = {
        .data = decoded_.data(), .rows = kRows, .cols = kCols, .stride = kCols};
    quantize::decode(encoded(from_, source_), decoded);
    const auto [block_rows, block_cols] = group(to_);
    const float global = to.global != nullptr ? to.global(0.1F, options_, /*divides=*/false) : 0.0F;
    to.encode({.values = {.data = values_.data(), .rows = kRows, .cols = kCols, .stride = kCols},
               .block_rows = block_rows,
               .block_cols = block_cols,
               .global = global,
               .options = options_},
              {.weight = codes_.data(),
               .weight_stride = kCols * code_bits(to_) / 8,
               .scales = scales_.data(),
               .scale_stride = kCols * sizeof(float)});
    if (!formats::scheme_facts(to_).quantized) return;
    // The error is taken from the codes as written.
    quantize::decode(encoded(to_, codes_), decoded);
    quality_.add(quantize::measure_quality(
        {.values = {.data = values_.data(), .rows = kRows, .cols = kCols, .stride = kCols},
         .decoded = {.data = decoded_.data(), .rows = kRows, .cols = kCols, .stride = kCols},
         .scales = encoded(to_, codes_).scales,
         .block_rows = block_rows,
         .block_cols = block_cols,
         .half_top_step = quantize::half_top_step(to_)}));
  }

  static constexpr std::uint64_t n_values() { return kRows * kCols; }

 private:
  static constexpr std::uint64_t kRows = 128, kCols = 512;
  // A code without peculiarities in every scheme: no NaN, which kernels would report.
  static constexpr std::byte kOrdinary{0x38};

  static std::uint64_t code_bits(SchemeId scheme) {
    return formats::scheme_facts(scheme).code_bits;
  }
  static std::array<std::uint64_t, 2> group(SchemeId scheme) {
    return formats::scale_group(scheme, {kRows, kCols}, {128, 128});
  }
  quantize::CodedMatrix encoded(SchemeId scheme, const std::vector<std::byte>& codes) const {
    const auto [block_rows, block_cols] = group(scheme);
    const bool has_scales = block_cols > 0;
    return {.scheme = scheme,
            .codes = codes.data(),
            .rows = kRows,
            .cols = kCols,
            .row_bytes = kCols * code_bits(scheme) / 8,
            .scales = has_scales ? std::span<const float>(ones_) : std::span<const float>(),
            .rows_per_matrix = kRows,
            .scale_cols = has_scales ? (kCols + block_cols - 1) / block_cols : 0,
            .block_rows = block_rows,
            .block_cols = block_cols};
  }

  SchemeId from_, to_;
  quantize::EncodeOptions options_;
  std::vector<float> values_, decoded_, ones_;
  std::vector<std::byte> source_, codes_, scales_;
  quantize::QualitySums quality_;
};

// Seconds of all threads for errors that are carried on (--gptq), and for the factors of moments,
// by the products that both take.
double carrying_seconds(const Plan& plan, std::size_t threads) {
  constexpr std::size_t kRows = 64, kSize = 512;
  const auto products_of = [](std::uint64_t rows, std::uint64_t cols) {
    return 0.5 * static_cast<double>(rows) * static_cast<double>(cols) * static_cast<double>(cols);
  };
  std::set<const formats::StatisticTensor*> factors;
  double in_columns = 0, in_factors = 0;
  SchemeId scheme{};
  for (const PlannedTensor& planned : plan.tensors) {
    if (!planned.carries_errors || !plan.is_here(planned)) continue;
    const formats::Shape& shape = plan.tensor_of(planned).shape;
    const std::uint64_t cols = shape.back(), rows = shape[shape.size() - 2];
    scheme = planned.to;
    for (const formats::StatisticTensor* moments : moments_of(plan, planned)) {
      if (moments == nullptr) continue;
      in_columns += products_of(rows, cols);
      if (factors.insert(moments).second) in_factors += products_of(cols, cols) / 3;
    }
  }
  if (factors.empty()) return 0;
  Clock::time_point begun = Clock::now();
  const auto factor =
      quantize::MomentsFactor::make(kSize, 1, [](std::size_t row, std::span<float> out) {
        std::fill(out.begin(), out.end(), 0.0F);
        out[row] = 1;
      });
  const double factor_rate = products_of(kSize, kSize) / 3 / seconds_since(begun);
  const quantize::Scheme& to = *quantize::find_scheme(scheme);
  const quantize::EncodeOptions options{.search = quantize::ScaleSearch::kAmax};
  const auto [block_rows, block_cols] = formats::scale_group(scheme, {kRows, kSize}, {128, 128});
  std::vector<double> rates(threads, 0);
  run_workers(threads, [&, block_rows = block_rows, block_cols = block_cols](std::size_t worker) {
    const std::vector<float> values(kRows * kSize, 0.02F);
    std::vector<std::byte> codes(kRows * kSize), scales(kRows * kSize);
    const Clock::time_point start = Clock::now();
    quantize::encode_carrying_errors(
        to,
        {.values = {.data = values.data(), .rows = kRows, .cols = kSize, .stride = kSize},
         .block_rows = block_rows,
         .block_cols = block_cols,
         .global = to.global != nullptr ? to.global(0.1F, options, /*divides=*/false) : 0.0F,
         .options = options},
        *factor,
        {.weight = codes.data(),
         .weight_stride = kSize,
         .scales = scales.data(),
         .scale_stride = kSize});
    rates[worker] = products_of(kRows, kSize) / seconds_since(start);
  });
  return in_columns / std::accumulate(rates.begin(), rates.end(), 0.0) +
         in_factors / (factor_rate * static_cast<double>(threads));
}

WorkEstimate measure_computing(const Plan& plan, std::size_t threads, double at_most) {
  std::map<std::pair<SchemeId, SchemeId>, std::uint64_t> values;
  for (const PlannedTensor& planned : plan.tensors) {
    if (planned.action != Action::kCast && planned.action != Action::kQuantize) continue;
    if (!plan.is_here(planned)) continue;
    const formats::LogicalTensor& tensor = plan.tensor_of(planned);
    values[{tensor.encoding.scheme, planned.to}] +=
        formats::element_count(tensor.shape).value_or(0);
  }
  WorkEstimate work;
  double seconds = 0;
  for (const auto& [pair, n_values] : values) {
    const auto [from, to] = pair;
    std::vector<double> rates(threads, 0);  // values per second of each thread
    const double limit = trial_seconds(threads, at_most / static_cast<double>(values.size()));
    const TrialTile made(from, to, plan.target.encode);
    run_workers(threads, [&, n_values = n_values](std::size_t worker) {
      TrialTile tile = made;
      std::uint64_t n = 0;
      const Clock::time_point begun = Clock::now();
      do {
        tile.run();
        n += TrialTile::n_values();
        // A small model is not measured for longer than it takes.
      } while (n < n_values && seconds_since(begun) < limit);
      rates[worker] = static_cast<double>(n) / seconds_since(begun);
    });
    work.n_bytes += n_values;
    seconds += static_cast<double>(n_values) / std::accumulate(rates.begin(), rates.end(), 0.0);
  }
  seconds += carrying_seconds(plan, threads);
  if (seconds > 0) work.per_second = static_cast<double>(work.n_bytes) / seconds;
  return work;
}

bool is_one_disk(const fs::path& a, const fs::path& b) {
  const auto of_a = stamp_of(a), of_b = stamp_of(b);
  return of_a && of_b && of_a->device == of_b->device;
}

}  // namespace

double trial_seconds(std::size_t threads, double at_most) {
  constexpr double kThreadsOfAllTime = 2;
  return at_most * std::min(1.0, kThreadsOfAllTime / static_cast<double>(threads));
}

double TimeEstimate::seconds() const {
  const double disks = has_one_disk ? reading.seconds() + writing.seconds()
                                    : std::max(reading.seconds(), writing.seconds());
  return std::max(disks, computing.seconds());
}

const char* TimeEstimate::limit() const {
  if (computing.seconds() >= seconds()) return "computing";
  return reading.seconds() > writing.seconds() ? "reading" : "writing";
}

TimeEstimate estimate_time(const Plan& plan, const fs::path& output, std::size_t threads,
                           double seconds) {
  const double disk = kDiskShare * seconds;
  const fs::path folder = existing_folder(output);
  return {.reading = measure_reading(plan, threads, disk),
          .writing = measure_writing(plan, folder, threads, disk),
          .computing = measure_computing(plan, threads, kComputeShare * seconds),
          .has_one_disk = is_one_disk(plan.source.directory(), folder)};
}

}  // namespace ingot::convert
