// Bands of all tensors are one list of work, so that neither many small tensors nor one large one
// leave a thread idle. Results are added up in the order of the list.

#include "verify/weights/weight_check.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <utility>

#include "formats/base/checked.h"
#include "formats/base/error.h"
#include "formats/base/parallel.h"
#include "formats/base/stop_scope.h"
#include "verify/weights/element_row.h"
#include "verify/weights/weight_pair.h"

namespace ingot::verify {
namespace {

using formats::Checkpoint;
using formats::LogicalTensor;

/// Bands that a thread takes at a time.
constexpr std::uint64_t kJobBands = 4;
/// Tensors of which the cause of misrounding is looked for.
constexpr std::size_t kMaxCauses = 8;

/// How far rounding to a plain dtype may move all values alike, as a factor of them. The nearest
/// number is at most u |x| away from x, u = half a step at 1 (2^-8 in BF16, 2^-11 in F16), and
/// where steps no longer shrink at most h, half of the least. Least squares' a in
/// output = a x source is then off 1 by
///   |sum x e| / sum x^2  <=  u + h sum |x| / sum x^2  <=  u + h sqrt(n / sum x^2)
/// (Cauchy and Schwarz). The bound is reached: values under one scale are few numbers times powers
/// of two, and each of these is rounded alike at every place. `misrounded` tells whether every
/// value is the nearest; below the bound a factor tells nothing more.
double shift_of_rounding(formats::SchemeId plain, const ElementSums& sums) {
  const StepGrid& grid = step_grid(plain);
  const double half_step = static_cast<double>(grid.step_factor) / 2;
  if (!(sums.source2 > 0)) return half_step;
  const double least = half_step * static_cast<double>(grid.floor);
  return half_step + least * std::sqrt(static_cast<double>(sums.elements) / sums.source2);
}

/// How far rounding to codes under the least scales may move all values alike: half a step of these
/// (Cauchy and Schwarz, as above). Where not even one value that had all squares would reach the
/// largest code under such a scale, no value need be exact, and rounding moves one of a few as far
/// as it moves any.
double shift_at_floor(formats::SchemeId coded, const ElementSums& sums) {
  const StepGrid grid = step_grid(coded);
  const double top = static_cast<double>(grid.largest) * static_cast<double>(floor_scale(coded));
  const double relative = grid.is_even() ? 0 : 1 / (2 / static_cast<double>(grid.step_factor) + 1);
  return std::sqrt(error2_at_floor(coded, sums)) + (sums.source2 <= top * top ? relative : 0);
}

double shift_of(const TensorWeights& tensor, const Wanted& wanted) {
  if (tensor.relation == Relation::kIdentical || tensor.relation == Relation::kChanged) return 0;
  const formats::SchemeId to = *formats::find_scheme(tensor.to);
  const bool is_plain = !formats::scheme_facts(to).quantized && to != formats::SchemeId::kRaw;
  const bool is_coded = formats::scheme_facts(to).code != formats::CodeKind::kPlain;
  return (is_plain ? shift_of_rounding(to, tensor.sums) : 0) +
         (is_coded ? shift_at_floor(to, tensor.sums) : 0) +
         (wanted.via_bf16 ? shift_of_rounding(formats::SchemeId::kBf16, tensor.sums) : 0);
}

/// How far rounding the scales themselves may move all values alike: half a step of the dtype in
/// which tools store them. E4M3 scales of NVFP4 are searched block by block, and only a few blocks
/// may all be moved to one side.
double shift_of_scales(const ComparedTensor& output, std::uint64_t groups) {
  constexpr std::uint64_t kFew = 8;
  const formats::StoredParts& parts = output.tensor.encoding.stored;
  if (!parts.has(formats::Part::kScale)) return 0;
  switch (output.source.stored()[parts[formats::Part::kScale]].dtype) {
    case formats::DType::kBf16:
      return 0x1p-8;
    case formats::DType::kF16:
      return 0x1p-11;
    case formats::DType::kF8E4M3:
      return groups < kFew ? 0x1p-4 : 0;
    default:
      return 0;
  }
}

/// A pair at work.
struct Pending {
  std::unique_ptr<WeightPair> pair;
  bool is_ours = true;  ///< pair is of the share of this run
  std::uint64_t first_job = 0, jobs = 0;
  std::vector<BandSums> found;  ///< sums of every job, while any job is left
  std::uint64_t left = 0;
};

class WeightCheck {
 public:
  WeightCheck(const Checkpoint& source, const Checkpoint& output, const WeightsOptions& options)
      : source_(source), output_(output), options_(options) {
    report_.sample = options.sample;
    match();
    deal();
  }

  WeightsReport run() {
    if (options_.progress) options_.progress(0, total_bytes_);
    if (n_jobs_ > 0) run_workers(workers(), [&](std::size_t) { work(); });
    if (options_.ledger != nullptr) keep_own();
    if (options_.ledger != nullptr && options_.ledger->share.n > 1) return std::move(report_);
    excuse_fused();
    for (std::size_t i = 0; i < report_.tensors.size(); ++i)
      report_.tensors[i].rounding_shift += shift_of(report_.tensors[i], options_.wanted);
    excuse_scales_of_others();
    // A cause is looked for in the source's own values.
    if (!options_.wanted.via_bf16) find_causes();
    return std::move(report_);
  }

 private:
  void match() {
    std::map<std::string_view, const LogicalTensor*> outputs;
    for (const LogicalTensor& tensor : output_.tensors()) outputs.emplace(tensor.name, &tensor);
    for (const LogicalTensor& tensor : source_.tensors()) {
      const auto found = outputs.extract(tensor.name);
      if (found.empty() || found.mapped()->shape != tensor.shape) {
        ++report_.unmatched;
      } else {
        add(tensor, *found.mapped());
      }
    }
    report_.unmatched += outputs.size();
  }

  void add(const LogicalTensor& tensor, const LogicalTensor& partner) {
    report_.tensors.push_back(
        {.name = tensor.name,
         .role = std::string(formats::role_name(role_of(tensor))),
         .layer = tensor.layer,
         .expert = tensor.expert,
         .from = std::string(formats::scheme_facts(tensor.encoding.scheme).name),
         .to = std::string(formats::scheme_facts(partner.encoding.scheme).name)});
    TensorWeights& added = report_.tensors.back();
    added.is_rounded_apart =
        options_.wanted.search == kCarryingSearch && !options_.wanted.carries_errors(partner);
    if (const formats::Encoding& encoding = partner.encoding;
        encoding.block_cols != 0 && tensor.shape.size() > 1) {
      added.groups =
          formats::element_count(
              formats::block_scale_shape(tensor.shape, encoding.block_rows, encoding.block_cols))
              .value_or(0);
      added.group_elements = std::min(encoding.block_rows, tensor.shape[tensor.shape.size() - 2]) *
                             std::min(encoding.block_cols, tensor.shape.back());
      added.rounding_shift = shift_of_scales({output_, partner}, added.groups);
    }
    auto pair = std::make_unique<WeightPair>(ComparedTensor{source_, tensor},
                                             ComparedTensor{output_, partner}, options_.sample,
                                             options_.wanted);
    pending_.push_back({.pair = std::move(pair)});
  }

  // Decides which of the pairs this run compares.
  void deal() {
    WeightLedger own;
    const WeightLedger& ledger = options_.ledger != nullptr ? *options_.ledger : own;
    std::uint64_t before = 0, total = 0;
    for (const Pending& pending : pending_) total += bytes_of(pending);
    for (std::size_t i = 0; i < pending_.size(); ++i) {
      Pending& pending = pending_[i];
      pending.first_job = n_jobs_;
      pending.is_ours = ledger.share.has(std::exchange(before, before + bytes_of(pending)), total);
      if (i < ledger.tensors.size() && ledger.tensors[i]) {
        take(report_.tensors[i], *ledger.tensors[i]);
        continue;
      }
      if (!pending.is_ours) continue;
      total_bytes_ += bytes_of(pending);
      scratch_bytes_ = std::max(scratch_bytes_, pending.pair->scratch_bytes());
      pending.jobs = pending.left = ceil_div(pending.pair->bands().count(), kJobBands);
      if (pending.jobs == 0) report_.tensors[i].relation = pending.pair->relation({});
      n_jobs_ += pending.jobs;
    }
  }

  static std::uint64_t bytes_of(const Pending& pending) {
    return pending.pair->bytes_of(pending.pair->bands().elements());
  }

  static void take(TensorWeights& tensor, const ComparedValues& values) {
    tensor.relation = values.relation;
    tensor.sums = values.sums;
    tensor.reach = values.reach;
  }

  void keep_own() {
    options_.ledger->tensors.resize(pending_.size());
    for (std::size_t i = 0; i < pending_.size(); ++i) {
      const TensorWeights& tensor = report_.tensors[i];
      if (!pending_[i].is_ours) continue;
      options_.ledger->tensors[i] = {
          .relation = tensor.relation, .sums = tensor.sums, .reach = tensor.reach};
    }
  }

  [[nodiscard]] std::size_t workers() const {
    if (scratch_bytes_ > options_.mem_limit) {
      throw Error(ErrorCode::kLimit,
                  "comparing the longest rows needs {} bytes, beyond the memory limit of {} (raise "
                  "--mem-limit)",
                  scratch_bytes_, options_.mem_limit);
    }
    return std::min({std::max<std::uint64_t>(options_.threads, 1), n_jobs_,
                     options_.mem_limit / std::max<std::uint64_t>(scratch_bytes_, 1)});
  }

  void work() {
    WeightScratch scratch;
    for (std::uint64_t job = next_job_++; job < n_jobs_; job = next_job_++) {
      try {
        StopScope::check();
        compare(job, scratch);
      } catch (...) {
        next_job_ = n_jobs_;  // no thread takes another job
        throw;
      }
    }
  }

  void compare(std::uint64_t job, WeightScratch& scratch) {
    const auto after = std::upper_bound(
        pending_.begin(), pending_.end(), job,
        [](std::uint64_t wanted, const Pending& pending) { return wanted < pending.first_job; });
    const auto index = static_cast<std::size_t>(after - pending_.begin()) - 1;
    Pending& pending = pending_[index];
    const WeightBands& bands = pending.pair->bands();
    const std::uint64_t first = (job - pending.first_job) * kJobBands;
    BandSums found;
    std::uint64_t elements = 0;
    for (std::uint64_t i = first; i < std::min(first + kJobBands, bands.count()); ++i) {
      const WeightBand band = bands.band(i);
      found.add(pending.pair->compare(band, scratch));
      elements += band.rows * band.cols;
    }
    const std::lock_guard lock(mutex_);
    if (pending.found.empty()) pending.found.resize(pending.jobs);
    pending.found[job - pending.first_job] = found;
    done_bytes_ += pending.pair->bytes_of(elements);
    if (--pending.left == 0) finish(pending, report_.tensors[index]);
    if (options_.progress) options_.progress(done_bytes_, total_bytes_);
  }

  static void finish(Pending& pending, TensorWeights& tensor) {
    BandSums whole;
    for (const BandSums& found : pending.found) whole.add(found);
    tensor.sums = whole.sums;
    tensor.relation = pending.pair->relation(whole);
    tensor.reach = whole.reach;
    tensor.reach.add(pending.pair->shared_reach());
    if (tensor.relation != Relation::kQuantized) tensor.reach = {};
    pending.found = {};
  }

  void find_causes() {
    std::vector<std::size_t> worst;
    for (std::size_t i = 0; i < report_.tensors.size(); ++i) {
      const TensorWeights& tensor = report_.tensors[i];
      if (tensor.sums.misrounded > 0 && tensor.relation == Relation::kQuantized) worst.push_back(i);
    }
    std::stable_sort(worst.begin(), worst.end(), [&](std::size_t a, std::size_t b) {
      return report_.tensors[a].sums.misrounded > report_.tensors[b].sums.misrounded;
    });
    worst.resize(std::min(worst.size(), kMaxCauses));
    for (const std::size_t i : worst) {
      const std::string module = pending_[i].pair->fused_module();
      std::vector<OtherScale> others;
      for (std::size_t j = 0; j < pending_.size() && !module.empty(); ++j) {
        if (j == i || pending_[j].pair->fused_module() != module) continue;
        if (const auto scale = pending_[j].pair->one_scale())
          others.push_back({.name = report_.tensors[j].name, .value = *scale});
      }
      report_.tensors[i].cause = pending_[i].pair->cause(others);
    }
  }

  // Weights that loaders fuse share one scale per tensor: the largest that any of them needs.
  void excuse_fused() {
    std::map<std::string, float> reached;  // by module, the scale of a member that fills it
    for (const bool is_search : {true, false}) {
      for (std::size_t i = 0; i < report_.tensors.size(); ++i) {
        TensorWeights& tensor = report_.tensors[i];
        if (tensor.reach.scale == 0) continue;
        const std::string module = pending_[i].pair->fused_module();
        if (module.empty()) continue;
        if (is_search) {
          if (tensor.reach.fills) reached.emplace(module, tensor.reach.scale);
        } else if (const auto found = reached.find(module);
                   found != reached.end() && found->second == tensor.reach.scale) {
          tensor.reach.coarse = 0;
          tensor.reach.least = 1;
        }
      }
    }
  }

  // Fused weights share a scale, which the largest value of all of them decides. So that value is
  // exact, and all values of another one of these weights may be off by the same factor. Under
  // scales that are powers of two, of which a wrong one is half or twice, any weight may be so.
  void excuse_scales_of_others() {
    for (std::size_t i = 0; i < report_.tensors.size(); ++i) {
      TensorWeights& tensor = report_.tensors[i];
      const double factor = tensor.relation == Relation::kQuantized ? lone_factor(tensor) : 0;
      if (factor == 0) continue;
      if (factor < 0.5 && pending_[i].pair->has_powers_of_two()) {
        tensor.rounding_shift = std::max(tensor.rounding_shift, factor);
        continue;
      }
      // The largest value was rounded too, if all values were cast first.
      const double within = factor / 16 + (options_.wanted.via_bf16 ? 0x1p-8 : 0);
      const auto scale = pending_[i].pair->one_scale();
      const std::string module = pending_[i].pair->fused_module();
      for (std::size_t j = 0; scale && j < pending_.size(); ++j) {
        const WeightPair& other = *pending_[j].pair;
        const bool is_shared = j == i || (!module.empty() && other.fused_module() == module &&
                                          other.one_scale() == scale);
        if (!is_shared || !other.keeps_largest(within)) continue;
        tensor.rounding_shift = std::max(tensor.rounding_shift, factor);
        break;
      }
    }
  }

  const Checkpoint& source_;
  const Checkpoint& output_;
  const WeightsOptions& options_;
  WeightsReport report_;
  std::vector<Pending> pending_;  // of every tensor of the report
  std::uint64_t n_jobs_ = 0, total_bytes_ = 0, scratch_bytes_ = 0;
  std::atomic<std::uint64_t> next_job_ = 0;
  std::mutex mutex_;
  std::uint64_t done_bytes_ = 0;
};

void add_to_group(WeightGroup& group, const TensorWeights& tensor) {
  const double cosine = tensor.sums.cosine();
  const double scale = tensor.sums.fitted_scale();
  if (group.tensors == 0 || cosine < group.least_cosine) {
    group.least_cosine = cosine;
    group.worst = tensor.name;
  }
  if (std::fabs(scale - 1) > std::fabs(group.worst_scale - 1)) group.worst_scale = scale;
  ++group.tensors;
  group.identical += tensor.relation == Relation::kIdentical ? 1 : 0;
  group.sums.add(tensor.sums);
}

/// Groups by key(tensor), in order of first appearance; name(group, tensor) names their common
/// property.
template <typename Key, typename Name>
std::vector<WeightGroup> group_by(const WeightsReport& report, const Key& key, const Name& name) {
  std::vector<WeightGroup> groups;
  std::map<decltype(key(report.tensors.front())), std::size_t> index;
  for (const TensorWeights& tensor : report.tensors) {
    const auto [at, is_new] = index.emplace(key(tensor), groups.size());
    if (is_new) name(groups.emplace_back(), tensor);
    add_to_group(groups[at->second], tensor);
  }
  return groups;
}

}  // namespace

WeightsReport compare_weights(const Checkpoint& source, const Checkpoint& output,
                              const WeightsOptions& options) {
  if (!(options.sample > 0 && options.sample <= 1))
    throw Error(ErrorCode::kInvalidArgument, "a sample of {} (above 0, at most 1)", options.sample);
  return WeightCheck(source, output, options).run();
}

double lone_factor(const TensorWeights& tensor) {
  constexpr double kShare = 10;
  const auto scheme = formats::find_scheme(tensor.to);
  const bool has_exponents =
      scheme && formats::scheme_facts(*scheme).scale_dtype == formats::DType::kF8E8M0;
  if (has_exponents || !(tensor.sums.source2 > 0)) return 0;
  const double bias = std::abs(tensor.sums.fitted_scale() - 1);
  if (bias <= tensor.rounding_shift) return 0;
  const double error = tensor.sums.relative_error();
  const double scatter2 = std::max(0.0, error * error - bias * bias);
  return bias * bias > kShare * kShare * scatter2 ? bias : 0;
}

std::string_view relation_name(Relation relation) {
  constexpr std::array kNames = {"identical", "changed", "quantized", "widened", "narrowed"};
  return kNames.at(static_cast<std::size_t>(relation));
}

bool is_fault(const TensorWeights& tensor) {
  return tensor.relation == Relation::kChanged || tensor.relation == Relation::kNarrowed ||
         tensor.sums.misrounded > 0 || tensor.sums.nonfinite > 0 || tensor.reach.coarse > 0;
}

std::vector<WeightGroup> by_scheme_and_role(const WeightsReport& report) {
  return group_by(
      report,
      [](const TensorWeights& tensor) {
        return std::tuple<std::string_view, std::string_view, std::string_view>(
            tensor.from, tensor.to, tensor.role);
      },
      [](WeightGroup& group, const TensorWeights& tensor) {
        group.from = tensor.from;
        group.to = tensor.to;
        group.role = tensor.role;
      });
}

std::vector<WeightGroup> by_layer_and_role(const WeightsReport& report) {
  return group_by(
      report,
      [](const TensorWeights& tensor) {
        return std::tuple<std::optional<std::uint32_t>, std::string_view>(tensor.layer,
                                                                          tensor.role);
      },
      [](WeightGroup& group, const TensorWeights& tensor) {
        group.layer = tensor.layer;
        group.role = tensor.role;
      });
}

std::vector<const TensorWeights*> worst_tensors(const WeightsReport& report, std::size_t n) {
  std::vector<const TensorWeights*> worst;
  for (const TensorWeights& tensor : report.tensors) worst.push_back(&tensor);
  std::stable_sort(worst.begin(), worst.end(), [](const auto* a, const auto* b) {
    if (is_fault(*a) != is_fault(*b)) return is_fault(*a);
    return a->sums.relative_error() > b->sums.relative_error();
  });
  worst.resize(std::min(n, worst.size()));
  return worst;
}

}  // namespace ingot::verify
