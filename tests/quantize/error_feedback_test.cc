#include "quantize/error_feedback.h"

#include "formats/base/fd.h"
#include "formats/container/safetensors.h"
#include "formats/json/json.h"
#include "quantize/kernels/codes.h"
#include "quantize/kernels/feedback_steps.h"
#include "tests/quantize/awkward_matrices.h"
#include "tests/quantize/coded_matrix.h"
#include "tests/quantize/each_target.h"
#include "tests/support/test.h"

// GPTQ against a plain second implementation in double, and against the traces of a third in NumPy.

namespace ingot::quantize {
namespace {

using formats::SchemeId;

// Second moments [size, size] of inputs, row-major.
struct Moments {
  std::size_t size = 0;
  std::vector<float> values;

  [[nodiscard]] std::optional<MomentsFactor> factor(std::size_t threads = 1) const {
    return MomentsFactor::make(size, threads, [this](std::size_t row, std::span<float> out) {
      std::copy_n(values.begin() + static_cast<std::ptrdiff_t>(row * size), size, out.begin());
    });
  }
};

// Inputs that depend on their neighbours, with a few large channels; `unseen` is always zero.
Moments random_moments(std::size_t size, std::size_t n_inputs, std::uint32_t seed,
                       std::optional<std::size_t> unseen = {}) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  std::vector<double> sums(size * size);
  std::vector<double> x(size);
  for (std::size_t t = 0; t < n_inputs; ++t) {
    double before = 0;
    for (std::size_t i = 0; i < size; ++i) {
      before = 0.7 * before + normal(random);
      x[i] = before * (i % 13 == 5 ? 6 : 1);
    }
    if (unseen) x[*unseen] = 0;
    for (std::size_t i = 0; i < size; ++i) {
      for (std::size_t k = 0; k < size; ++k) sums[i * size + k] += x[i] * x[k];
    }
  }
  Moments moments{.size = size, .values = std::vector<float>(size * size)};
  for (std::size_t i = 0; i < sums.size(); ++i)
    moments.values[i] = static_cast<float>(sums[i] / static_cast<double>(n_inputs));
  return moments;
}

// The moments as the definition damps them.
std::vector<double> damped(const Moments& moments) {
  const std::size_t n = moments.size;
  std::vector<double> m(moments.values.begin(), moments.values.end());
  double sum = 0, seen = 0;
  for (std::size_t i = 0; i < n; ++i) {
    sum += m[i * n + i];
    seen += m[i * n + i] != 0 ? 1 : 0;
  }
  for (std::size_t i = 0; i < n; ++i) m[i * n + i] += m[i * n + i] != 0 ? 0.01 * sum / seen : 1;
  return m;
}

double factor_at(const MomentsFactor& factor, std::size_t i, std::size_t k) {
  const std::size_t last = factor.blocks() * kFactorBlock - 1;
  const std::size_t row = last - i, col = last - k;
  return factor.block(row / kFactorBlock,
                      col / kFactorBlock)[row % kFactorBlock * kFactorBlock + col % kFactorBlock];
}

struct Scales {
  SchemeId id;
  std::size_t block;
  bool has_zeros = false;
};
constexpr std::array kForms = {Scales{SchemeId::kInt4Group, 32}, Scales{SchemeId::kInt4Group, 128},
                               Scales{SchemeId::kNvfp4, 16}, Scales{SchemeId::kMxfp4, 32},
                               Scales{SchemeId::kInt4Group, 32, true}};

Coded encode_carrying(const Scales& form, const Matrix& matrix, const MomentsFactor& factor,
                      ScaleSearch search = ScaleSearch::kMse,
                      const std::vector<float>& importance = {},
                      std::span<const MomentBlock> moments = {}) {
  EncodeOptions options;
  options.search = search;
  // Sizes, and scales that are replaced.
  Coded coded = encode(form.id, matrix,
                       {.options = options, .block = form.block, .has_zeros = form.has_zeros});
  const std::size_t width = coded.scales.size() / coded.effective.size();
  encode_carrying_errors(*find_scheme(form.id),
                         {.values = matrix.view(),
                          .block_rows = coded.block_rows,
                          .block_cols = coded.block_cols,
                          .global = coded.global,
                          .importance = importance,
                          .moments = moments,
                          .options = options},
                         factor,
                         {.weight = coded.weight.data(),
                          .weight_stride = coded.weight.size() / coded.rows,
                          .scales = coded.scales.data(),
                          .scale_stride = coded.scale_cols * width,
                          .zeros = form.has_zeros ? coded.zeros.data() : nullptr,
                          .zero_stride = coded.scale_cols});
  for (std::size_t i = 0; i < coded.effective.size(); ++i) {
    const auto scale = static_cast<float>(
        stored_scale(formats::scheme_facts(form.id).scale_dtype, coded.scales.data() + i * width));
    coded.effective[i] = form.id == SchemeId::kNvfp4 ? scale * coded.global : scale;
  }
  return coded;
}

double trace(const Matrix& matrix, const Coded& coded, const Moments& moments) {
  const Matrix became = decode(coded);
  double sum = 0;
  std::vector<double> error(matrix.cols);
  for (std::size_t r = 0; r < matrix.rows; ++r) {
    for (std::size_t c = 0; c < matrix.cols; ++c) {
      const std::size_t at = r * matrix.cols + c;
      error[c] = double{became.values[at]} - double{matrix.values[at]};
    }
    for (std::size_t i = 0; i < matrix.cols; ++i) {
      for (std::size_t k = 0; k < matrix.cols; ++k)
        sum += error[i] * double{moments.values[i * matrix.cols + k]} * error[k];
    }
  }
  return sum;
}

struct Recorded {
  Matrix weight{0, 0};
  Moments moments;
};

Recorded recorded(const std::string& name) {
  const Fd file = Fd::open_for_reading(std::string(INGOT_SOURCE_DIR) + "/tests/golden/gptq/" +
                                       name + ".safetensors");
  Recorded found;
  for (const formats::StoredTensor& tensor : formats::read_safetensors_header(file).tensors) {
    if (tensor.name == "moments") {
      found.moments.size = tensor.shape[0];
      found.moments.values.resize(tensor.n_bytes / sizeof(float));
      file.read_exact(std::as_writable_bytes(std::span(found.moments.values)), tensor.offset);
      continue;
    }
    std::vector<std::uint16_t> words(tensor.n_bytes / sizeof(std::uint16_t));
    file.read_exact(std::as_writable_bytes(std::span(words)), tensor.offset);
    found.weight = Matrix(tensor.shape[0], tensor.shape[1]);
    for (std::size_t i = 0; i < words.size(); ++i)
      found.weight.values[i] = std::bit_cast<float>(std::uint32_t{words[i]} << 16);
  }
  return found;
}

TEST(ErrorFeedback, LosesNoMoreThanAnIndependentGptq) {
  const formats::Json rows = formats::read_json_file(
      std::string(INGOT_SOURCE_DIR) + "/tests/golden/gptq/traces.json", std::uint64_t{1} << 20);
  const std::map<std::string, Scales> forms = {{"int4_g32", kForms[0]},
                                               {"int4_g128", kForms[1]},
                                               {"nvfp4", kForms[2]},
                                               {"mxfp4", kForms[3]}};
  ASSERT_EQ(rows.size(), 12U);
  for (const formats::Json& row : rows) {
    const Recorded given = recorded(row["matrix"].get<std::string>());
    const Scales& form = forms.at(row["scheme"].get<std::string>());
    const MomentsFactor factor = given.moments.factor().value();
    const double most = 1.02 * row["trace_gptq"].get<double>();
    const std::vector<float> importance(factor.mean_squares().begin(), factor.mean_squares().end());
    const Coded coded = encode_carrying(form, given.weight, factor, ScaleSearch::kMse, importance);
    const double lost = trace(given.weight, coded, given.moments);
    EXPECT_LE(lost, most) << row.dump();
    RecordProperty(
        fmt::format("{}_{}", row["matrix"].get<std::string>(), row["scheme"].get<std::string>()),
        fmt::format("{:.4f}", lost / row["trace_gptq"].get<double>()));
  }
}

// The textbook's way: the rows of the upper Cholesky factor of the inverse, under given scales.
std::vector<double> textbook_values(const Matrix& matrix, const Coded& scaled,
                                    const Moments& moments) {
  const std::size_t n = moments.size;
  std::vector<double> m = damped(moments), inverse(n * n);
  // Gauss and Jordan.
  for (std::size_t i = 0; i < n; ++i) inverse[i * n + i] = 1;
  for (std::size_t p = 0; p < n; ++p) {
    const double pivot = m[p * n + p];
    for (std::size_t k = 0; k < n; ++k) {
      m[p * n + k] /= pivot;
      inverse[p * n + k] /= pivot;
    }
    for (std::size_t i = 0; i < n; ++i) {
      const double times = m[i * n + p];
      if (i == p || times == 0) continue;
      for (std::size_t k = 0; k < n; ++k) {
        m[i * n + k] -= times * m[p * n + k];
        inverse[i * n + k] -= times * inverse[p * n + k];
      }
    }
  }
  std::vector<double> upper(n * n);  // U'U = inverse
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t k = i; k < n; ++k) {
      double value = inverse[i * n + k];
      for (std::size_t j = 0; j < i; ++j) value -= upper[j * n + i] * upper[j * n + k];
      upper[i * n + k] = k == i ? std::sqrt(value) : value / upper[i * n + i];
    }
  }
  const bool is_integer = scaled.id == SchemeId::kInt4Group;
  std::vector<double> became(matrix.values.size());
  for (std::size_t r = 0; r < matrix.rows; ++r) {
    std::vector<double> w(n);
    for (std::size_t c = 0; c < n; ++c) w[c] = double{matrix.values[r * n + c]};
    for (std::size_t c = 0; c < n; ++c) {
      const double scale = double{scaled.effective[r * scaled.scale_cols + c / scaled.block_cols]};
      const double y = w[c] / scale;
      const std::size_t group = r * scaled.scale_cols + c / scaled.block_cols;
      const int zero = scaled.zeros.empty() ? 8 : scaled.zeros[group];
      double best = 0;
      for (int code = -8; code < 8; ++code) {
        const double value =
            is_integer ? code + 8 - zero
                       : std::copysign(double{kE2m1Magnitudes[code & 7]}, code < 0 ? -1.0 : 1.0);
        if (std::fabs(value - y) < std::fabs(best - y)) best = value;
      }
      became[r * n + c] = best * scale;
      const double error = (w[c] - best * scale) / upper[c * n + c];
      for (std::size_t k = c; k < n; ++k) w[k] -= error * upper[c * n + k];
    }
  }
  return became;
}

TEST(ErrorFeedback, GivesTheCodesOfTheTextbook) {
  for (const std::size_t size : {128U, 256U}) {
    const Moments moments = random_moments(size, 3 * size / 4, 7);
    const Matrix matrix = random_matrix(24, size, Shape::kNormal, 3);
    for (const Scales& form : kForms) {
      const Coded coded = encode_carrying(form, matrix, moments.factor().value());
      const std::vector<double> wanted = textbook_values(matrix, coded, moments);
      const Matrix became = decode(coded);
      // FP32 takes another code where double is next to a tie, and then the row goes its own way.
      std::size_t rows_alike = 0;
      for (std::size_t r = 0; r < matrix.rows; ++r) {
        bool is_alike = true;
        for (std::size_t c = 0; c < size; ++c) {
          const double scale = double{coded.effective[r * coded.scale_cols + c / coded.block_cols]};
          is_alike = is_alike && std::fabs(double{became.values[r * size + c]} -
                                           wanted[r * size + c]) < 0.01 * std::fabs(scale);
        }
        rows_alike += is_alike ? 1U : 0U;
      }
      EXPECT_GE(rows_alike, 23U) << formats::scheme_name(form.id) << " of " << size;
    }
  }
}

TEST(ErrorFeedback, FactorMultipliesToTheDampedMoments) {
  for (const std::size_t size : {16U, 64U, 200U}) {
    const Moments moments = random_moments(size, size / 2, 11, size / 3);
    const std::vector<double> wanted = damped(moments);
    const MomentsFactor factor = moments.factor().value();
    // With M = (F + 1) D (F + 1)', D follows from the last column to the first.
    std::vector<double> diagonal(size);
    for (std::size_t i = size; i-- > 0;) {
      diagonal[i] = wanted[i * size + i];
      for (std::size_t j = i + 1; j < size; ++j)
        diagonal[i] -= factor_at(factor, i, j) * factor_at(factor, i, j) * diagonal[j];
      ASSERT_GT(diagonal[i], 0);
      for (std::size_t k = i + 1; k < size; ++k) {
        double value = factor_at(factor, i, k) * diagonal[k];
        for (std::size_t j = k + 1; j < size; ++j)
          value += factor_at(factor, i, j) * factor_at(factor, k, j) * diagonal[j];
        const double unit = std::sqrt(wanted[i * size + i] * wanted[k * size + k]);
        ASSERT_NEAR(value, wanted[i * size + k], 1e-6 * unit) << i << ", " << k;
      }
    }
  }
}

TEST(ErrorFeedback, FactorIsTheSameForAnyThreadsAndTarget) {
  const Moments moments = random_moments(330, 100, 5);
  const auto bytes_of = [](const MomentsFactor& factor) {
    const float* values = factor.block(0, 0);
    return std::vector<float>(values, values + MomentsFactor::bytes(330) / sizeof(float));
  };
  const std::vector<float> first = bytes_of(moments.factor().value());
  for_each_target([&] {
    for (const std::size_t threads : {1U, 2U, 5U})
      EXPECT_EQ(bytes_of(moments.factor(threads).value()), first);
  });
}

TEST(ErrorFeedback, FactorNeedsPositiveDefiniteMoments) {
  Moments moments = random_moments(80, 100, 5);
  EXPECT_TRUE(moments.factor().has_value());
  moments.values[3 * 80 + 70] *= 50;
  EXPECT_FALSE(moments.factor().has_value());
  moments = random_moments(80, 100, 5);
  moments.values[7 * 80 + 7] *= -1;
  EXPECT_FALSE(moments.factor().has_value());
  moments.values[7 * 80 + 7] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_FALSE(moments.factor().has_value());
}

TEST(ErrorFeedback, EncodesPlainlyWithoutMoments) {
  const Moments none{.size = 128, .values = std::vector<float>(std::size_t{128} * 128)};
  for (const auto& [name, matrix] : awkward_matrices(5, 128)) {
    for (const Scales& form : kForms) {
      const Coded plain =
          encode(form.id, matrix, {.block = form.block, .has_zeros = form.has_zeros});
      const Coded carried = encode_carrying(form, matrix, none.factor().value());
      EXPECT_EQ(carried.weight, plain.weight) << name;
      EXPECT_EQ(carried.scales, plain.scales) << name;
      EXPECT_EQ(carried.zeros, plain.zeros) << name;
    }
  }
}

TEST(ErrorFeedback, AnUnseenColumnIsRoundedPlainly) {
  constexpr std::size_t kUnseen = 41;
  const Moments moments = random_moments(128, 60, 9, kUnseen);
  Matrix matrix = random_matrix(16, 128, Shape::kNormal, 4);
  const MomentsFactor factor = moments.factor().value();
  for (const Scales& form : kForms) {
    const Coded coded = encode_carrying(form, matrix, factor, ScaleSearch::kAmax);
    const Matrix became = decode(coded);
    for (std::size_t r = 0; r < matrix.rows; ++r) {
      const float scale = coded.effective[r * coded.scale_cols + kUnseen / coded.block_cols];
      const float quotient = matrix.values[r * 128 + kUnseen] / scale;
      const std::size_t group = r * coded.scale_cols + kUnseen / coded.block_cols;
      const float zero = coded.zeros.empty() ? 8 : coded.zeros[group];
      const float code =
          form.id == SchemeId::kInt4Group
              ? std::nearbyint(std::clamp(quotient, -zero, 15 - zero))
              : std::copysign(kE2m1Magnitudes[e2m1_from_magnitude(std::fabs(quotient))], quotient);
      EXPECT_EQ(became.values[r * 128 + kUnseen], code * scale);
    }
  }
}

TEST(ErrorFeedback, BytesDependOnNeitherTargetNorBand) {
  const Moments moments = random_moments(256, 300, 21);
  const MomentsFactor factor = moments.factor().value();
  std::vector<float> importance(256);
  for (std::size_t i = 0; i < importance.size(); ++i)
    importance[i] = moments.values[i * importance.size() + i];
  std::vector<AwkwardMatrix> matrices = awkward_matrices(37, 256);
  matrices.push_back({"heavy", random_matrix(37, 256, Shape::kHeavy, 8)});
  for (const auto& [name, matrix] : matrices) {
    for (const Scales& form : kForms) {
      const Coded first = encode_carrying(form, matrix, factor, ScaleSearch::kMse, importance);
      for_each_target([&, &matrix = matrix, &name = name] {
        const Coded coded = encode_carrying(form, matrix, factor, ScaleSearch::kMse, importance);
        EXPECT_EQ(coded.weight, first.weight) << name;
        EXPECT_EQ(coded.scales, first.scales) << name;
        EXPECT_EQ(coded.zeros, first.zeros) << name;
      });
      Matrix last_rows(4, 256);
      std::copy_n(matrix.values.end() - 4 * 256, 4 * 256, last_rows.values.begin());
      if (form.id == SchemeId::kNvfp4) continue;  // these rows have another global scale
      const Coded some = encode_carrying(form, last_rows, factor, ScaleSearch::kMse, importance);
      const auto is_end_of = [](const auto& part, const auto& whole) {
        return std::equal(part.rbegin(), part.rend(), whole.rbegin());
      };
      EXPECT_TRUE(is_end_of(some.weight, first.weight)) << name;
      EXPECT_TRUE(is_end_of(some.scales, first.scales)) << name;
    }
  }
}

// The blocks of 16 along the diagonal.
std::vector<float> blocks_of(const Moments& moments) {
  std::vector<float> blocks;
  for (std::size_t block = 0; block < moments.size; block += kMomentBlock) {
    for (std::size_t i = block; i < block + kMomentBlock; ++i) {
      const auto row =
          moments.values.begin() + static_cast<std::ptrdiff_t>(i * moments.size + block);
      blocks.insert(blocks.end(), row, row + kMomentBlock);
    }
  }
  return blocks;
}

TEST(ErrorFeedback, TakesScalesOfASearchByMoments) {
  const Moments moments = random_moments(256, 300, 21);
  const MomentsFactor factor = moments.factor().value();
  const Matrix matrix = random_matrix(40, 256, Shape::kHeavy, 8);
  for (const Scales& form : kForms) {
    const std::vector<float> blocks = blocks_of(moments);
    const std::vector<MomentBlock> factored = factor_moments(blocks, form.block / kMomentBlock);
    const auto carried = [&] {
      return encode_carrying(form, matrix, factor, ScaleSearch::kHessian, {}, factored);
    };
    const Coded first = carried();
    for_each_target([&] {
      EXPECT_EQ(carried().weight, first.weight);
      EXPECT_EQ(carried().scales, first.scales);
    });
    // The first group of a row is not changed yet: its scale is that of the search by itself.
    EncodeOptions options;
    options.search = ScaleSearch::kHessian;
    const Coded plain = encode(
        form.id, matrix,
        {.options = options, .block = form.block, .moments = blocks, .has_zeros = form.has_zeros});
    for (std::size_t r = 0; r < matrix.rows; ++r) {
      EXPECT_EQ(first.effective[r * first.scale_cols], plain.effective[r * plain.scale_cols]);
    }
    EXPECT_LT(trace(matrix, first, moments), trace(matrix, plain, moments));
    EXPECT_NE(first.scales, encode_carrying(form, matrix, factor).scales);
  }
}

TEST(ErrorFeedback, StepsEqualTheirScalarTwins) {
  std::mt19937 random(3);
  std::normal_distribution<double> normal;
  std::vector<double> a(kFactorBlock * kFactorBlock), b(a.size()), c(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    a[i] = normal(random);
    b[i] = normal(random);
    c[i] = normal(random);
  }
  for (std::size_t i = 0; i < kFactorBlock; ++i) a[i * kFactorBlock + i] = 30 + normal(random);
  std::vector<double> product = c, solved = c;
  scalar::subtract_product(a.data(), b.data(), product.data());
  scalar::solve_block(a.data(), solved.data());
  constexpr std::size_t kRows = 3 * kCarryRows;
  std::vector<float> errors(kFactorBlock * kRows), columns(errors.size());
  std::vector<float> factors(kFactorBlock * kFactorBlock);
  for (float& value : errors) value = static_cast<float>(normal(random));
  for (float& value : columns) value = static_cast<float>(normal(random));
  for (float& value : factors) value = static_cast<float>(normal(random));
  struct Span {
    std::size_t first, end, targets;
  };
  for (const Span& span : {Span{0, 64, 64}, Span{63, 64, 63}, Span{5, 6, 5}, Span{16, 40, 64}}) {
    const auto carried = [&](std::vector<float>& to) {
      return CarriedErrors{.factor = factors.data(),
                           .errors = errors.data(),
                           .first = span.first,
                           .end = span.end,
                           .columns = to.data(),
                           .targets = span.targets,
                           .rows = kRows};
    };
    std::vector<float> wanted = columns;
    scalar::carry_errors(carried(wanted));
    for_each_target([&] {
      std::vector<float> got = columns;
      carry_errors(carried(got));
      EXPECT_EQ(got, wanted);
    });
  }
  for_each_target([&] {
    std::vector<double> got = c;
    subtract_product(a.data(), b.data(), got.data());
    EXPECT_EQ(got, product);
    got = c;
    solve_block(a.data(), got.data());
    EXPECT_EQ(got, solved);
  });
}

TEST(ErrorFeedback, ErrorsOfAColumnEqualTheScalarTwins) {
  for (const auto& [name, matrix] : awkward_matrices(4, 2 * kCarryRows)) {
    for (const formats::CodeKind kind : {formats::CodeKind::kE2m1, formats::CodeKind::kInt4}) {
      // Scales that clip nothing, a little and much; values are at least as large as these.
      for (const float part : {1.0F, 3.0F, 40.0F}) {
        std::vector<float> scales(matrix.values.size()), zeros(scales.size());
        for (std::size_t i = 0; i < scales.size(); ++i) {
          zeros[i] = static_cast<float>(i % 16);
          const float own = std::fabs(matrix.values[i - i % 16]) / 7 / part;
          scales[i] = own > 0x1p-120F ? own : 1.0F;
        }
        const auto take = [&](auto run) {
          std::vector<float> errors(matrix.values.rbegin(), matrix.values.rend());
          run({.kind = kind,
               .values = matrix.values.data(),
               .scales = scales.data(),
               .zeros = zeros.data(),
               .errors = errors.data(),
               .rows = errors.size()});
          std::vector<std::uint32_t> bits;
          for (const float error : errors) bits.push_back(bits_of(error));
          return bits;
        };
        const auto wanted = take([](const ColumnAtTurn& column) { scalar::take_errors(column); });
        for_each_target([&, &name = name] {
          EXPECT_EQ(take([](const ColumnAtTurn& column) { take_errors(column); }), wanted) << name;
        });
      }
    }
  }
}

}  // namespace
}  // namespace ingot::quantize
