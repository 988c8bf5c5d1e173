# Every third-party package, found once. All are distribution packages (see scripts/deps.sh).
find_package(Threads REQUIRED)
find_package(nlohmann_json 3.11 REQUIRED)
find_package(CLI11 REQUIRED)
find_package(TBB REQUIRED)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(yaml-cpp REQUIRED)
find_package(OpenSSL REQUIRED COMPONENTS Crypto)
# SHA-256 out of the static library, where there is one: loading all of the shared one was a quarter of every start.
cmake_path(REPLACE_EXTENSION OPENSSL_CRYPTO_LIBRARY a OUTPUT_VARIABLE static_crypto)
if(EXISTS ${static_crypto})
  set_target_properties(OpenSSL::Crypto PROPERTIES IMPORTED_LOCATION ${static_crypto})
endif()
# Only for the module of MPI (inference/parallel).
set(MPI_CXX_SKIP_MPICXX ON)
find_package(MPI COMPONENTS CXX)
find_package(PkgConfig REQUIRED)
pkg_check_modules(zstd REQUIRED IMPORTED_TARGET libzstd)
pkg_check_modules(xxhash REQUIRED IMPORTED_TARGET libxxhash)
# Run-time dispatch to AVX2 and AVX-512, where the distribution builds it in (x86-64): the same hashes, twice as fast.
include(CheckCXXSourceCompiles)
set(CMAKE_REQUIRED_LIBRARIES PkgConfig::xxhash)
check_cxx_source_compiles("#include <xxh_x86dispatch.h>
  int main() { return static_cast<int>(XXH3_128bits(\"\", 0).low64); }" INGOT_XXHASH_DISPATCHES)
unset(CMAKE_REQUIRED_LIBRARIES)
pkg_check_modules(pcre2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(oniguruma REQUIRED IMPORTED_TARGET oniguruma)
pkg_check_modules(utf8proc REQUIRED IMPORTED_TARGET libutf8proc)
pkg_check_modules(edit REQUIRED IMPORTED_TARGET libedit)
pkg_check_modules(hwy REQUIRED IMPORTED_TARGET libhwy)
# For which processors kernels are compiled, in every layer; any other runs the scalar twins, with the same bytes.
# x86-64: AVX3_DL (Ice Lake, Zen 4 and later: byte permutes), AVX3 (Skylake-SP, Cascade Lake), AVX2 (Haswell, Zen 1 to
# 3), and SSE4, since its vectors have the 128 bits of NEON: what ARM runs is tested on every developer's machine. SSSE3
# without SSE4 has not been made since 2008. ARM: NEON, which every 64-bit processor has; SVE is left out since kernels
# count on vectors of a known size, and those of servers (128 and 256 bits) promise too little for a second version.
set(left_out "HWY_SSSE3|HWY_SVE|HWY_SVE2|HWY_SVE_256|HWY_SVE2_128")
# The targets are compiled from one text, and a sanitizer makes each of them minutes to compile: there, and where lines of
# that text are counted, AVX3_DL, whose loads and byte permutes are the longest, and AVX2, for processors without it.
if(CMAKE_CXX_FLAGS MATCHES "-fsanitize" OR INGOT_COVERAGE)
  string(APPEND left_out "|HWY_AVX3|HWY_SSE4")
endif()
target_compile_definitions(PkgConfig::hwy INTERFACE HWY_WANT_AVX3_DL "HWY_DISABLED_TARGETS=(${left_out})")
if(PROJECT_IS_TOP_LEVEL)
  find_package(GTest REQUIRED)
  find_package(benchmark REQUIRED)
endif()
