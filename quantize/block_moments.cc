// The factor makes an error of a block a sum of squares: none is negative, whatever FP32 rounds.
//
// The floor is lambda x the diagonal. A bound by it ends a search where what all scales that follow
// cut off is too much. lambda is the largest number of a short list for which S - lambda x diagonal
// has a factor. FP32 moves an error of 16 x 16 products by less than 2^-12 of it where lambda is at
// least 2^-8: sums of at most 17 roundings lose at most 17 x 2^-24 x the norm of |U|^T |d|, which
// by Cauchy and Schwarz is at most 4 / sqrt(lambda) x that of U^T d. The floor is lower than lambda
// x diagonal by 2^-10, which leaves room for that.

#include "quantize/block_moments.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "formats/base/error.h"

namespace ingot::quantize {
namespace {

using Square = std::array<double, kMomentBlock * kMomentBlock>;

/// A share of the diagonal that is added to it. Moments of inputs that depend on each other, as
/// they are rounded to FP32, have directions with a moment of down to -2^-20 of it.
constexpr double kRidge = 0x1p-17;
constexpr double kSlack = 1 - 0x1p-10;
/// Descending.
constexpr std::array kLambdas = {
    0.95, 0.9, 0.85, 0.8, 0.75,  0.7,  0.65,  0.6,   0.55,   0.5,    0.45, 0.4,    0.35,   0.3,
    0.25, 0.2, 0.15, 0.1, 0.075, 0.05, 0.035, 0.025, 0.0175, 0.0125, 0.01, 0.0075, 0.0055, 0x1p-8};

double& at(Square& of, std::size_t row, std::size_t col) {
  return of[row * kMomentBlock + col];
}

/// Replaces the upper triangle by the factor U of U U^T, and the rest by zeros; rows of zeros are
/// left out. Returns false, half done, if there is none.
bool factor(Square& square) {
  for (std::size_t k = kMomentBlock; k-- > 0;) {
    const double diagonal = at(square, k, k);
    double pivot = diagonal;
    for (std::size_t j = k + 1; j < kMomentBlock; ++j) pivot -= at(square, k, j) * at(square, k, j);
    if (diagonal > 0 && !(pivot > 0)) return false;
    const double root = diagonal > 0 ? std::sqrt(pivot) : 0;
    at(square, k, k) = root;
    for (std::size_t i = k + 1; i < kMomentBlock; ++i) at(square, i, k) = 0;
    for (std::size_t i = 0; i < k; ++i) {
      double rest = at(square, i, k);
      for (std::size_t j = k + 1; j < kMomentBlock; ++j)
        rest -= at(square, i, j) * at(square, k, j);
      at(square, i, k) = root > 0 ? rest / root : 0;
    }
  }
  return true;
}

/// Moments times their unit. Throws for those that are none.
Square checked(std::span<const float> moments, double unit, std::size_t block) {
  const auto refuse = [block](std::string_view what) {
    return Error(ErrorCode::kCorrupt, "block {} {}", block, what);
  };
  Square square{};
  for (std::size_t i = 0; i < square.size(); ++i) {
    if (!std::isfinite(moments[i])) throw refuse("has a moment that is not finite");
    square[i] = double{moments[i]} * unit;
  }
  for (std::size_t i = 0; i < kMomentBlock; ++i) {
    if (at(square, i, i) < 0) throw refuse("has a negative mean square");
    for (std::size_t j = 0; j < i; ++j) {
      if (at(square, i, j) != at(square, j, i)) throw refuse("is not symmetric");
      // Cauchy and Schwarz; also where one of both is zero.
      if (at(square, i, j) * at(square, i, j) > at(square, i, i) * at(square, j, j) * (1 + kRidge))
        throw refuse("has a moment of two inputs above what their mean squares allow");
    }
  }
  return square;
}

/// The largest lambda of the list for which `square` - lambda x its diagonal has a factor, or 0.
double lambda_of(const Square& square) {
  const auto is_below = [&square](double lambda) {
    Square rest = square;
    for (std::size_t i = 0; i < kMomentBlock; ++i) at(rest, i, i) *= 1 - lambda;
    return factor(rest);
  };
  const auto found =
      std::ranges::partition_point(kLambdas, [&](double lambda) { return !is_below(lambda); });
  return found == kLambdas.end() ? 0 : *found;
}

MomentBlock factored(const Square& moments, std::size_t block) {
  Square root = moments;
  for (std::size_t i = 0; i < kMomentBlock; ++i) at(root, i, i) *= 1 + kRidge;
  if (!factor(root)) {
    throw Error(ErrorCode::kCorrupt, "block {} has a direction in which its moment is negative",
                block);
  }
  MomentBlock result{};
  std::ranges::transform(root, result.factor.begin(),
                         [](double value) { return static_cast<float>(value); });
  // The product of the factor as it is, rounded.
  Square product{};
  for (std::size_t i = 0; i < kMomentBlock; ++i) {
    for (std::size_t j = 0; j <= i; ++j) {
      double sum = 0;
      for (std::size_t k = i; k < kMomentBlock; ++k)
        sum += double{result.factor[i * kMomentBlock + k]} *
               double{result.factor[j * kMomentBlock + k]};
      at(product, i, j) = at(product, j, i) = sum;
    }
  }
  const double lambda = lambda_of(product) * kSlack;
  for (std::size_t i = 0; i < kMomentBlock; ++i)
    result.floor[i] = static_cast<float>(lambda * at(product, i, i));
  return result;
}

/// The power of four that brings the largest diagonal element to 1 ... 4, or 0.
double unit_of(std::span<const float> moments) {
  float largest = 0;
  for (std::size_t i = 0; i < moments.size(); ++i) {
    const std::size_t in_block = i % (kMomentBlock * kMomentBlock);
    if (in_block % (kMomentBlock + 1) == 0) largest = std::max(largest, moments[i]);
  }
  if (!(largest > 0) || !std::isfinite(largest)) return largest > 0 ? 1 : 0;
  const int exponent = std::ilogb(largest);
  return std::ldexp(1.0, -(exponent - (exponent & 1)));
}

constexpr MomentBlock identity() {
  MomentBlock block{};
  for (std::size_t i = 0; i < kMomentBlock; ++i) block.factor[i * (kMomentBlock + 1)] = 1;
  block.floor.fill(static_cast<float>(kSlack));
  return block;
}

}  // namespace

std::vector<MomentBlock> factor_moments(std::span<const float> moments, std::size_t group_blocks) {
  constexpr std::size_t kNumbers = kMomentBlock * kMomentBlock;
  INGOT_CHECK(moments.size() % kNumbers == 0 && group_blocks > 0);
  const std::size_t n = moments.size() / kNumbers;
  std::vector<MomentBlock> blocks;
  blocks.reserve(n);
  for (std::size_t first = 0; first < n; first += group_blocks) {
    const std::size_t n_here = std::min(group_blocks, n - first);
    const double unit = unit_of(moments.subspan(first * kNumbers, n_here * kNumbers));
    for (std::size_t b = first; b < first + n_here; ++b) {
      const Square square =
          checked(moments.subspan(b * kNumbers, kNumbers), unit == 0 ? 1 : unit, b);
      blocks.push_back(unit == 0 ? identity() : factored(square, b));
    }
  }
  return blocks;
}

}  // namespace ingot::quantize
