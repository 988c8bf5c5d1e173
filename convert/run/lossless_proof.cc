#include "convert/run/lossless_proof.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <set>
#include <utility>

#include "convert/plan/exactness.h"
#include "convert/run/actions.h"
#include "convert/run/scale_proof.h"
#include "formats/base/parallel.h"

namespace ingot::convert {

using formats::Part;
using formats::ScaleReader;
using formats::SchemeId;
using quantize::EncodedRows;

namespace {

// Gathers values that change, by the scale of the source that they are under.
class LossFinder {
 public:
  explicit LossFinder(const ScaleProof& subject) : subject_(subject) {
    loss_.index = subject.index;
    loss_.is_counted =
        exactness_of(subject.plan, subject.planned).kind != Exactness::Kind::kRounded;
  }

  // Runs come in the order of rows.
  void compare(std::uint64_t first_row, std::uint64_t first_col,
               formats::MatrixView<const float> values, formats::MatrixView<const float> decoded) {
    for (std::size_t r = 0; r < values.rows; ++r) {
      const float* of_row = values.row(r);
      const float* became = decoded.row(r);
      // Known once for a row: a tensor may change in every value.
      BlockLoss block{.block_row = block_row(first_row + r), .row = first_row + r};
      for (std::size_t c = 0; c < values.cols; ++c) {
        if (of_row[c] == became[c] || (std::isnan(of_row[c]) && std::isnan(became[c]))) continue;
        block.col = first_col + c;
        block.value = of_row[c];
        block.becomes = became[c];
        add(block);
      }
    }
  }
  // Of a row of the tensor: the row of its scales, if it has some.
  [[nodiscard]] std::uint64_t block_row(std::uint64_t row) const {
    return subject_.scales.has_scales() ? subject_.scales.range_of(row, 1).first : row;
  }
  // A value, and the row of its block.
  void add(BlockLoss block) {
    const ScaleReader& scales = subject_.scales;
    block.block_col = block.col;
    if (scales.has_scales()) {
      const auto order = scales.group_order();
      block.block_col =
          order.empty() ? block.col / subject_.tensor.encoding.block_cols : order[block.col];
      const std::uint64_t id = block.block_row * scales.cols() + block.block_col;
      if (id == last_) return;
      last_ = id;
      if (!open_.insert(id).second) return;
    }
    ++loss_.n_blocks;
    if (loss_.blocks.size() >= kBlocksNamed) return;
    if (scales.has_scales())
      block.scale = scales.read({.first = block.block_row, .n = 1})[block.block_col];
    loss_.blocks.push_back(block);
  }
  // No run of rows before this one will follow.
  void forget_before(std::uint64_t row) {
    if (open_.empty()) return;
    const std::uint64_t id = subject_.scales.range_of(row, 1).first * subject_.scales.cols();
    open_.erase(open_.begin(), open_.lower_bound(id));
  }

  [[nodiscard]] bool is_decided() const { return loss_.n_blocks > 0 && !loss_.is_counted; }
  [[nodiscard]] TensorLoss& loss() { return loss_; }

 private:
  const ScaleProof& subject_;
  TensorLoss loss_;
  std::set<std::uint64_t> open_;  // scales of the last rows
  std::uint64_t last_ = std::numeric_limits<std::uint64_t>::max();
};

// Proves the tensors of one fused set, or one tensor.
class UnitProof {
 public:
  UnitProof(const Plan& plan, const OriginalGlobals& originals, const CheckStop& check_stop)
      : plan_(plan), originals_(originals), check_stop_(check_stop) {}

  LosslessProof prove(const std::vector<std::uint32_t>& tensors) {
    LosslessProof proof;
    std::vector<ScaleProof> subjects;
    for (const std::uint32_t index : tensors) {
      const PlannedTensor& planned = plan_.tensors[index];
      if (exactness_of(plan_, planned).kind == Exactness::Kind::kAlways) {
        ++proof.by_headers;
      } else {
        at_tensor(index, [&] { subjects.emplace_back(plan_, index); });
      }
    }
    const std::optional<float> amax = amax_of_set(subjects);
    for (const ScaleProof& subject : subjects) {
      LossFinder finder(subject);
      read_codes_ = false;
      at_tensor(subject.index, [&] { look(subject, amax, finder); });
      if (finder.loss().n_blocks > 0) {
        proof.losses.push_back(std::move(finder.loss()));
      } else {
        ++(read_codes_ ? proof.by_codes : proof.by_scales);
      }
    }
    return proof;
  }

 private:
  // Names file and tensor in what `act` throws.
  template <typename Act>
  void at_tensor(std::uint32_t index, const Act& act) const {
    const formats::LogicalTensor& tensor = plan_.tensor_of(plan_.tensors[index]);
    try {
      act();
    } catch (Error& error) {
      if (error.code() == ErrorCode::kInterrupted) throw;
      const auto& stored = plan_.source.stored()[tensor.encoding.stored.weight()];
      error.in_file(plan_.source.files()[stored.file].name).in_tensor(tensor.name);
      throw;
    }
  }

  void look(const ScaleProof& subject, std::optional<float> amax, LossFinder& finder) {
    if (subject.planned.action == Action::kRepackage) return look_at_scales(subject, finder);
    if (subject.planned.action == Action::kCast) return cast(subject, subject.planned.to, finder);
    if (plan_.target.via == Via::kBf16) cast(subject, SchemeId::kBf16, finder);
    if (!finder.is_decided()) encode(subject, amax, finder);
  }

  std::span<const std::byte> read(const ScaleProof& subject, const Band& band) {
    check_stop_();
    read_codes_ = true;
    input_.resize(band.source_bytes);
    plan_.source.read(subject.tensor.encoding.stored.weight(), band.source_offset, input_);
    return input_;
  }

  // What encoders must know of a set first; nothing where scales prove it without, or where there
  // is none. Leaves in `top_` the largest value of the set that is possible, or there.
  std::optional<float> amax_of_set(const std::vector<ScaleProof>& subjects) {
    top_.reset();
    if (subjects.empty() || subjects.front().planned.fused_set == PlannedTensor::kNone) return {};
    double top = 0;
    std::vector<Bounds> bounds;
    for (const ScaleProof& subject : subjects) {
      at_tensor(subject.index, [&] { bounds.push_back(subject.all_scales()); });
      top = std::max(top, subject.codes.largest * bounds.back().largest);
    }
    top_ = top;
    bool is_held = true;
    for (std::size_t i = 0; i < subjects.size(); ++i)
      is_held = is_held && subjects[i].is_held(subjects[i].planned.to, bounds[i], top);
    if (is_held) return {};
    float amax = 0;
    for (const ScaleProof& subject : subjects) {
      at_tensor(subject.index, [&] {
        const BandEncoder encoder(subject, std::nullopt, tiles_);
        for (std::uint64_t b = 0; b < encoder.bands().count(); ++b) {
          const Band band = encoder.bands().band(b);
          amax = std::max(amax, encoder.largest(band, read(subject, band)));
        }
        top_ = amax * (encoder.repacks() ? subject.codes.largest : 1);
      });
    }
    return amax;
  }

  void encode(const ScaleProof& subject, std::optional<float> amax, LossFinder& finder) {
    const SchemeId to = subject.planned.to;
    if (top_ && !amax) return;
    if (!top_ && subject.all_rows([&](std::uint64_t row, std::uint64_t n) {
          return subject.are_held(to, row, n, top_);
        }))
      return;
    read_codes_ = true;
    BandEncoder encoder(subject, amax, tiles_);
    for (std::uint64_t b = 0; b < encoder.bands().count() && !finder.is_decided(); ++b) {
      const Band band = encoder.bands().band(b);
      if (subject.are_held(to, band.first_row, band.rows, top_)) continue;
      output_.resize(band.output_bytes);
      finder.forget_before(band.first_row);
      encoder.encode(band, read(subject, band), output_,
                     [&](const Band& at, const Tile& tile, formats::MatrixView<const float> values,
                         formats::MatrixView<const float> decoded) {
                       finder.compare(at.first_row + tile.row, tile.col, values, decoded);
                     });
    }
  }

  // The values as they are decoded, and as the words of a plain scheme hold them.
  void cast(const ScaleProof& subject, SchemeId to, LossFinder& finder) {
    const auto holds = [&](std::uint64_t row, std::uint64_t n) {
      return subject.are_held(to, row, n, std::nullopt);
    };
    if (subject.all_rows(holds)) return;
    const quantize::Scheme& from = *quantize::find_scheme(subject.tensor.encoding.scheme);
    const quantize::Scheme& plain = *quantize::find_scheme(to);
    const BandPlan bands = BandPlan::to_cast(subject.tensor, to);
    const ScaleReader& scales = subject.scales;
    for (std::uint64_t b = 0; b < bands.count() && !finder.is_decided(); ++b) {
      const Band band = bands.band(b);
      if (scales.has_scales() && holds(band.first_row, band.rows)) continue;
      EncodedRows rows = subject.rows_of(bands, band, read(subject, band));
      const BandScales undoing(scales, scales.range_of(band.first_row, band.rows));
      undoing.undo(scales, rows);
      const formats::MatrixView<float> values = view(tiles_.values, band);
      const formats::MatrixView<float> decoded = view(tiles_.decoded, band);
      const quantize::DecodeFaults faults = from.decode(rows, values);
      if (faults.nan_codes > 0 && !subject.allows_nan()) {
        throw subject.nan_code(band.first_row + faults.first_nan / band.cols,
                               band.first_col + faults.first_nan % band.cols);
      }
      const std::size_t row_bytes = band.cols * bands.output_bits / 8;
      output_.resize(band.rows * row_bytes);
      plain.encode({.values = values}, {.weight = output_.data(), .weight_stride = row_bytes});
      plain.decode({.weight = output_.data(), .rows = band.rows, .cols = band.cols}, decoded);
      if (scales.has_scales()) finder.forget_before(band.first_row);
      finder.compare(band.first_row, band.first_col, values, decoded);
    }
  }

  static formats::MatrixView<float> view(std::vector<float>& buffer, const Band& band) {
    buffer.resize(std::max<std::uint64_t>(buffer.size(), band.rows * band.cols));
    return {.data = buffer.data(), .rows = band.rows, .cols = band.cols, .stride = band.cols};
  }

  // Codes are kept; what they will be multiplied with may differ.
  void look_at_scales(const ScaleProof& subject, LossFinder& finder) {
    const ScaleReader& scales = subject.scales;
    const formats::Encoding& encoding = subject.tensor.encoding;
    std::optional<formats::GlobalScale> turned;
    if (scales.global()) {
      turned = {.value = target_global(subject, originals_, *scales.global()),
                .divides = subject.planned.storage->global_divides};
    }
    subject.all_rows([&](std::uint64_t first_row, std::uint64_t n) {
      check_stop_();
      const ScaleReader::Range range = scales.range_of(first_row, n);
      const std::vector<float> before = scales.read(range);
      std::vector<float> after = before;
      if (turned) {
        const std::uint32_t stored = encoding.stored[Part::kScale];
        const formats::DType dtype = plan_.source.stored()[stored].dtype;
        const std::uint64_t width = formats::dtype_bits(dtype) / 8;
        input_.resize(before.size() * width);
        plan_.source.read(stored, range.first * scales.cols() * width, input_);
        formats::widen_scales(dtype, input_, turned, after);
      } else {
        const float input = subject.planned.input.scale;
        for (float& scale : after) scale = input * scale / input;
      }
      for (std::size_t i = 0; i < before.size(); ++i) {
        if (before[i] == after[i]) continue;
        const std::uint64_t row = first_row + i / scales.cols() * encoding.block_rows;
        finder.add({.block_row = finder.block_row(row),
                    .row = row,
                    .col = i % scales.cols() * encoding.block_cols,
                    .value = before[i],
                    .becomes = after[i]});
      }
      return true;
    });
  }

  const Plan& plan_;
  const OriginalGlobals& originals_;
  const CheckStop& check_stop_;
  TileBuffers tiles_;
  std::vector<std::byte> input_, output_;
  std::optional<double> top_;  // of a fused set
  bool read_codes_ = false;    // of the tensor at hand
};

// The tensors that this run writes, with those that share a number with them.
std::vector<std::vector<std::uint32_t>> units_of(const Plan& plan) {
  std::vector<std::vector<std::uint32_t>> units;
  std::vector<char> is_taken(plan.fused_sets.size(), 0);
  for (std::uint32_t index = 0; index < plan.tensors.size(); ++index) {
    const PlannedTensor& planned = plan.tensors[index];
    if (planned.action == Action::kDrop || !plan.is_here(planned)) continue;
    if (planned.fused_set == PlannedTensor::kNone) {
      units.push_back({index});
    } else if (std::exchange(is_taken[planned.fused_set], 1) == 0) {
      units.push_back(plan.fused_sets[planned.fused_set]);
    }
  }
  return units;
}

}  // namespace

LosslessProof prove_lossless(const Plan& plan, const JobThreads& threads) {
  const std::vector<std::vector<std::uint32_t>> units = units_of(plan);
  const OriginalGlobals originals = original_globals(plan);
  std::vector<LosslessProof> proofs(units.size());
  parallel_for(units.size(), threads.n, [&](std::size_t i) {
    proofs[i] = UnitProof(plan, originals, threads.check_stop).prove(units[i]);
  });
  LosslessProof all;
  for (LosslessProof& proof : proofs) {
    all.by_headers += proof.by_headers;
    all.by_scales += proof.by_scales;
    all.by_codes += proof.by_codes;
    std::ranges::move(proof.losses, std::back_inserter(all.losses));
  }
  return all;
}

}  // namespace ingot::convert
