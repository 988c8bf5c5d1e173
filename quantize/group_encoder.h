#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "quantize/kernels/code_encode.h"
#include "quantize/scheme.h"

namespace ingot::quantize {

/// How a scheme that scales groups of codes encodes: from the largest magnitude of a group to its
/// scale, from the scale to its stored form, from value and scale to a code.
struct GroupEncoding {
  /// The effective scale: above zero and finite. Candidate 0 is the scale by amax.
  float (*scale)(float amax, std::size_t candidate, const EncodeOptions& options);
  /// Writes the stored form of one scale.
  void (*store)(float scale, std::byte* out);
  std::size_t stored_bytes;
  formats::CodeKind code;
  /// Returns a scale that stores every value of the group exactly, or 0 if `scale` already does or
  /// there is none; for EncodeInput::keeps_values. `amax` is above zero. Null: only `scale` is
  /// known.
  float (*exact_scale)(formats::MatrixView<const float> group, float amax,
                       const EncodeOptions& options) = nullptr;
  std::size_t n_candidates = 1;
  /// Squared errors of each group under its scale (quantize/kernels/scales/scale_errors.h); null:
  /// there is one candidate.
  void (*errors)(const ScaledGroups& in, const float* weights, std::span<float> errors) = nullptr;
};

/// True if every value of a group is a code times the scale.
bool holds(formats::MatrixView<const float> group, float scale, formats::CodeKind kind);

/// Encodes a run group by group. Unless the search is kAmax, a group gets the candidate with the
/// least squared error, or error by moments (quantize/kernels/scales/scale_errors.h), the first on
/// a tie, and the scale by amax if that holds every value. Where scale x code would be infinite
/// (only for values from 2^127 on), the code is one smaller.
void encode_groups(const EncodeInput& in, const EncodeOutput& out, const GroupEncoding& encoding);

/// Scheme::encode of schemes that need nothing else.
template <const GroupEncoding& Encoding>
EncodeFaults encode_by_groups(const EncodeInput& in, const EncodeOutput& out) {
  encode_groups(in, out, Encoding);
  return {};
}

/// Encodes a run under one scale given from outside, which is not written.
void encode_under_scale(const EncodeInput& in, const EncodeOutput& out,
                        const GroupEncoding& encoding, float scale);

/// Steps down every code that, under the scale of its group, decodes to an infinity.
void settle_infinite_codes(const ScaledGroups& in, formats::CodeKind kind, std::byte* codes,
                           std::size_t stride);

/// Computes weights of errors from the importance of columns: per group of so many divided by the
/// largest, so that none overflows and equal ones are exactly 1, as without weights; 1 where a
/// whole group is 0. Both spans have the same length, a multiple of `group`.
void group_weights(std::span<const float> importance, std::size_t group, std::span<float> weights);

/// Stores a scale as F32.
void store_f32_scale(float scale, std::byte* out);

}  // namespace ingot::quantize
