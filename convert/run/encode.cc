#include <algorithm>
#include <bit>
#include <cstring>

#include "convert/run/actions.h"
#include "convert/run/moments_factors.h"
#include "formats/base/checked.h"
#include "formats/base/error.h"
#include "formats/container/float8.h"

namespace ingot::convert {

using formats::DType;
using formats::Part;

namespace {

// The exponents of F32 scales that are powers of two, as E8M0 has them.
std::vector<std::byte> exponents_of(std::span<const std::byte> scales) {
  std::vector<std::byte> exponents(scales.size() / sizeof(float));
  for (std::size_t i = 0; i < exponents.size(); ++i) {
    float scale = 0;
    std::memcpy(&scale, scales.data() + i * sizeof(float), sizeof(float));
    INGOT_CHECK(formats::is_e8m0_value(scale));
    exponents[i] = static_cast<std::byte>(std::bit_cast<std::uint32_t>(scale) >> 23);
  }
  return exponents;
}

// Encodes one tensor band by band from the file, and writes its parts.
class Encoder {
 public:
  Encoder(const TensorTask& task, std::optional<float> amax, MomentsFactors::Lease* lease)
      : task_(task),
        plan_(task.plan),
        planned_(task.planned),
        facts_(formats::scheme_facts(planned_.to)),
        encoder_(task, amax, task.tiles, lease) {}

  TensorResult run() {
    for (std::size_t p = 0; p < planned_.n_parts; ++p) parts_.push_back(task_.part(p));
    const auto write_scales = [this] {
      for (std::size_t p = 1; p < planned_.n_parts; ++p) {
        if (planned_.parts[p].part == Part::kScale && facts_.group_rows != 0) write_scales_of(p);
        if (planned_.parts[p].part == Part::kZeroPoint) parts_[p].write(packed_zeros());
      }
    };
    const BandPlan& bands = encoder_.bands();
    const Hash128 weight = task_.loop.recode(
        task_.tensor.encoding.stored.weight(), bands, parts_[0],
        [this](const Band& band, std::span<const std::byte> codes, std::span<std::byte> out) {
          encoder_.encode(band, codes, out);
          zeros_.insert(zeros_.end(), encoder_.zeros().begin(), encoder_.zeros().end());
          ends_matrix_ = (band.first_row + band.rows) % encoder_.bands().rows == 0;
          if (planned_.find(Part::kQuantBias) != nullptr) add_row_sums(band, out);
        },
        write_scales);
    encoder_.held().require_some(task_.tensor, planned_.to, task_.plan.recipe.allow.underflow);
    write_remaining_parts();
    TensorResult result{.source = task_.source_hashes({{Part::kWeight, weight}}), .output = {}};
    for (PartWriter& part : parts_) result.output.push_back(part.finish());
    result.change = encoder_.change();
    result.carries_errors = encoder_.carries_errors();
    if (facts_.quantized) {
      result.quality = encoder_.quality();
      if (facts_.group_rows == 0) {
        result.quality->blocks = bands.matrices;
        result.quality->exact_blocks = result.quality->error2 == 0 ? bands.matrices : 0;
      }
    }
    return result;
  }

 private:
  void write_scales_of(std::size_t p) {
    const bool are_narrowed =
        planned_.parts[p].dtype == DType::kF8E8M0 && facts_.scale_dtype == DType::kF32;
    if (are_narrowed) {
      parts_[p].write(exponents_of(encoder_.scales()));
    } else {
      parts_[p].write(encoder_.scales());
    }
  }

  // The zero points of eight rows become a row of words, the first in the lowest four bits; the
  // last rows of a matrix may be fewer. Those of other rows wait for the next band.
  std::vector<std::byte> packed_zeros() {
    const auto across =
        static_cast<std::size_t>(ceil_div(encoder_.bands().cols, planned_.block[1]));
    const std::size_t in_words = across * formats::kZerosPerWord;
    std::vector<std::byte> packed;
    while (zeros_.size() >= in_words || (ends_matrix_ && !zeros_.empty())) {
      const std::size_t n = std::min(in_words, zeros_.size());
      std::vector<std::uint32_t> words(across);
      for (std::size_t i = 0; i < n; ++i) {
        const std::size_t shift = i / across * (32 / formats::kZerosPerWord);
        words[i % across] |= static_cast<std::uint32_t>(zeros_[i]) << shift;
      }
      zeros_.erase(zeros_.begin(), zeros_.begin() + static_cast<std::ptrdiff_t>(n));
      const auto bytes = std::as_bytes(std::span(words));
      packed.insert(packed.end(), bytes.begin(), bytes.end());
    }
    return packed;
  }

  void add_row_sums(const Band& band, std::span<const std::byte> written) {
    for (std::uint64_t row = 0; row < band.rows; ++row) {
      const auto codes = written.subspan(row * encoder_.bands().cols, encoder_.bands().cols);
      std::int64_t sum = 0;
      for (const std::byte code : codes) sum += static_cast<std::int8_t>(code);
      row_sums_.push_back(sum);
    }
    const std::size_t before = row_scales_.size();
    row_scales_.resize(before + band.rows);
    formats::widen_scales(facts_.scale_dtype, encoder_.scales(), std::nullopt,
                          std::span(row_scales_).subspan(before));
  }

  void write_remaining_parts() {
    for (std::size_t p = 0; p < planned_.n_parts; ++p) {
      const PlannedPart& part = planned_.parts[p];
      if (parts_[p].written() == part.n_bytes) continue;
      switch (part.part) {
        case Part::kScale:  // the only scale of a tensor
        case Part::kGlobal:
          parts_[p].write(std::as_bytes(std::span(&encoder_.global(), 1)));
          break;
        case Part::kInputScale:
          if (planned_.keeps_input) {
            const float scale = kept_input_scale(task_);
            parts_[p].write(std::as_bytes(std::span(&scale, 1)));
            break;
          }
          write_made(p);
          break;
        case Part::kGroupOrder: {
          std::vector<std::byte> order(part.n_bytes);
          task_.source.read(task_.tensor.encoding.stored[part.part], 0, order);
          parts_[p].write(order);
          break;
        }
        case Part::kOffset:
          parts_[p].write(std::vector<std::byte>(part.n_bytes));
          break;
        case Part::kDimensions:
          parts_[p].write(dimensions_part(plan_, planned_, part.dtype));
          break;
        default:
          write_made(p);
      }
    }
  }

  void write_made(std::size_t p) {
    parts_[p].write(modelslim_part(
        planned_.parts[p].part,
        {.input = planned_.input, .row_scales = row_scales_, .row_sums = row_sums_}));
  }

  const TensorTask& task_;
  const Plan& plan_;
  const PlannedTensor& planned_;
  const formats::SchemeFacts& facts_;  // of the target
  BandEncoder encoder_;
  std::vector<float> row_scales_;  // of all rows, where a part is made of them
  std::vector<std::int64_t> row_sums_;
  std::vector<std::uint8_t> zeros_;  // of rows that fill no word yet
  bool ends_matrix_ = false;
  std::vector<PartWriter> parts_;  // while run() runs
};

}  // namespace

TensorResult encode(const TensorTask& task, std::optional<float> amax) {
  if (!task.planned.carries_errors) return Encoder(task, amax, nullptr).run();
  // Before the first byte is written: others may wait for what this thread would hold.
  MomentsFactors::Lease lease = task.context.factors->lease(task.planned);
  return Encoder(task, amax, &lease).run();
}

namespace {

// Numbers that are so much larger than the largest code, against it, are still nearest to it: E4M3
// has 464 between 448 and the next one, INT8 127.5.
constexpr float kBeyondE4m3 = 1.0F / 32, kBeyondInt8 = 1.0F / 256;

}  // namespace

bool holds_amax(const TensorTask& task, float amax) {
  const PlannedTensor& planned = task.planned;
  const formats::GlobalScale stored = {
      .value = stored_global(formats::ScaleReader(task.source, task.tensor, task.scale_policy())),
      .divides = planned.storage->global_divides};
  if (task.tensor.encoding.stored.has(Part::kGlobal) &&
      task.tensor.encoding.global_divides != stored.divides)
    return false;
  const quantize::Scheme& scheme = *quantize::find_scheme(planned.to);
  const float needed =
      scheme.global(amax, options_for(scheme, task.plan.target.encode), stored.divides);
  const bool is_int8 = formats::scheme_facts(planned.to).code == formats::CodeKind::kInt8;
  const float most = 1 + (is_int8 ? kBeyondInt8 : kBeyondE4m3);
  return stored.divides ? needed * most >= stored.value : needed <= stored.value * most;
}

float amax_of(const TensorTask& task) {
  BandEncoder encoder(task, std::nullopt, task.tiles);
  float largest = 0;
  task.loop.look(task.tensor.encoding.stored.weight(), encoder.bands(),
                 [&](const Band& band, std::span<const std::byte> codes) {
                   const StageTimer timer(task.context.times.compute, 0);
                   largest = std::max(largest, encoder.largest(band, codes));
                 });
  return largest;
}

}  // namespace ingot::convert
