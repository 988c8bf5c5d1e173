#include "cli/command_line.h"

// Code units of PCRE2 are bytes; the header insists on being told.
#define PCRE2_CODE_UNIT_WIDTH 8
#include <array>
#include <cstdint>

#include <CLI/Version.hpp>
#include <fmt/format.h>
#include <histedit.h>
#include <hwy/highway.h>
#include <hwy/targets.h>
#include <nlohmann/json_fwd.hpp>
#include <oniguruma.h>
#include <openssl/opensslv.h>
#include <pcre2.h>
#include <spdlog/version.h>
#include <tbb/version.h>
#include <utf8proc.h>
#include <xxhash.h>
#include <zstd.h>

#include "cli/commit.h"
#include "convert/output/version.h"

namespace ingot::cli {
namespace {

// A number of the form MMmmpp, in decimal digits.
std::string dotted(unsigned number) {
  return fmt::format("{}.{}.{}", number / 10000, number / 100 % 100, number % 100);
}

std::string pcre2_version() {
  std::array<char, 64> text{};
  if (pcre2_config(PCRE2_CONFIG_VERSION, nullptr) > static_cast<int>(text.size())) return "unknown";
  pcre2_config(PCRE2_CONFIG_VERSION, text.data());
  return text.data();
}

std::string compiler() {
#ifdef __clang__
  return fmt::format("Clang {}", __clang_version__);
#else
  return fmt::format("GCC {}", __VERSION__);
#endif
}

// Names of the targets of this processor; kernels run on the first.
std::string simd_targets() {
  const auto supported = static_cast<std::uint64_t>(hwy::SupportedTargets());
  std::string names;
  for (unsigned bit = 0; bit < 63; ++bit) {
    const std::uint64_t target = std::uint64_t{1} << bit;
    if ((supported & target) == 0) continue;
    names += fmt::format("{}{}", names.empty() ? "" : " ",
                         hwy::TargetName(static_cast<std::int64_t>(target)));
  }
  return names;
}

}  // namespace

std::string versions_text() {
  std::string text = fmt::format("ingot {}", convert::kVersion);
  const auto row = [&](std::string_view name, std::string_view version) {
    text += fmt::format("\n  {:<14} {}", name, version);
  };
  row("commit", kCommit);
  row("compiler", compiler());
  row("SIMD targets", simd_targets());
  row("nlohmann-json", fmt::format("{}.{}.{}", NLOHMANN_JSON_VERSION_MAJOR,
                                   NLOHMANN_JSON_VERSION_MINOR, NLOHMANN_JSON_VERSION_PATCH));
  row("CLI11", CLI11_VERSION);
  row("oneTBB",
      fmt::format("{} (interface {})", TBB_runtime_version(), TBB_runtime_interface_version()));
  row("zstd", ZSTD_versionString());
  row("Highway", fmt::format("{}.{}.{}", HWY_MAJOR, HWY_MINOR, HWY_PATCH));
  row("fmt", dotted(FMT_VERSION));
  row("spdlog", fmt::format("{}.{}.{}", SPDLOG_VER_MAJOR, SPDLOG_VER_MINOR, SPDLOG_VER_PATCH));
  row("yaml-cpp", INGOT_YAML_CPP_VERSION);
  row("xxHash", dotted(XXH_versionNumber()));
  row("OpenSSL", OPENSSL_VERSION_TEXT);
  row("Oniguruma", onig_version());
  row("PCRE2", pcre2_version());
  row("utf8proc", utf8proc_version());
  row("libedit", fmt::format("{}.{}", LIBEDIT_MAJOR, LIBEDIT_MINOR));
  return text;
}

}  // namespace ingot::cli
