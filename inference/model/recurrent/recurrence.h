#pragma once

#include <span>

// The steps of mixers that remember a sequence in a state of fixed size. Each takes one token, so
// that a prompt in chunks is computed as token by token: the same operations in the same order.
// All arithmetic is FP32; sums whose order is not said are in the order of dot().

namespace ingot::inference {

/// x / (1 + e^-x).
float silu_f32(float x);

/// x / sqrt(sum of squares + eps), in place.
void l2_normalize(std::span<float> x, float eps);

/// The delta rule of one head, S [keys, values] row-major:
///   S <- diag(decay) S;  S <- S + k (beta (v - S^T k))^T;  out = S^T q
/// `decay` has one value per key (Kimi Delta Attention) or one for all (gated delta net). Sums over
/// keys ascend. Source: transformers 5.23, recurrent_kimi_delta_attention and
/// torch_recurrent_gated_delta_rule; Gated Delta Networks (arXiv 2412.06464).
void delta_rule_token(std::span<const float> q, std::span<const float> k, std::span<const float> v,
                      std::span<const float> decay, float beta, std::span<float> state,
                      std::span<float> out);

/// The selective state space of one head (Mamba-2), state [values, N] row-major:
///   state[p] <- decay state[p] + (step b) x[p];  out[p] = state[p] . c + skip x[p]
/// Source: transformers 5.23, mamba2_selective_state_update; Mamba-2 (arXiv 2405.21060).
void state_space_token(std::span<const float> x, std::span<const float> b, std::span<const float> c,
                       float decay, float step, float skip, std::span<float> state,
                       std::span<float> out);

/// One channel of a selective scan (Mamba-1), state [N]:
///   state[n] <- e^(-rate[n] step) state[n] + (step b[n]) x;  returns state . c + skip x
/// Source: transformers 5.24, JambaMambaMixer.
float scan_token(float x, std::span<const float> b, std::span<const float> c,
                 std::span<const float> rate, float step, float skip, std::span<float> state);

/// Linear attention of one head with one decay, S [keys, values] row-major:
///   S <- decay S + k v^T;  out = S^T q
/// Sums over keys ascend. Source: transformers 5.24, MiniMaxLightningAttention.
void decaying_token(std::span<const float> q, std::span<const float> k, std::span<const float> v,
                    float decay, std::span<float> state, std::span<float> out);

}  // namespace ingot::inference
