#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace ingot::cli {

/// A GPU by its name, and its memory as the maker's program shows it (nvidia-smi, rocm-smi,
/// npu-smi). A scheme is in one list by its --to word; in none: it was not tried, or read anywhere.
struct Gpu {
  std::string_view name;
  std::uint64_t memory_mib;
  std::string_view native;  ///< schemes in whose numbers its matrix units multiply
  std::string_view
      weight_only;           ///< schemes of which engines decode the weights, and multiply in BF16
  std::string_view refused;  ///< schemes that vLLM refuses there
  std::string_view summary;
};

// Native: the makers' data sheets. Weight-only and refused: read in vLLM's kernels (Marlin takes
// FP8 below capability 8.9, and FP4 below 10.0; dispatch_scaled_mm() has no INT8 from 10.0 on).
inline constexpr std::array kGpus = {
    Gpu{"a100", 81920, "bf16, f16, int8", "fp8, int4, nvfp4, mxfp4", "", "A100, sold as 80 GB"},
    Gpu{"l40s", 46068, "bf16, f16, fp8, int8", "int4, nvfp4, mxfp4", "", "L40S, sold as 48 GB"},
    Gpu{"h100", 81559, "bf16, f16, fp8, int8", "int4, nvfp4, mxfp4", "", "H100, sold as 80 GB"},
    Gpu{"h200", 143771, "bf16, f16, fp8, int8", "int4, nvfp4, mxfp4", "", "H200, sold as 141 GB"},
    Gpu{"b200", 183359, "bf16, f16, fp8, mxfp8, mxfp4, nvfp4", "int4", "int8",
        "B200, sold as 180 GB"},
    Gpu{"mi300x", 196592, "bf16, f16, fp8, int8", "", "",
        "MI300X, sold as 192 GB; its FP8 is E4M3 FNUZ, which engines make while they load"},
    Gpu{"ascend910b", 65536, "bf16, f16, int8", "", "", "Ascend 910B, sold as 64 GB"}};

}  // namespace ingot::cli
