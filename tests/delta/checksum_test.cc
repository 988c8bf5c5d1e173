#include "delta/checksum.h"

#include "tests/support/test.h"

namespace ingot::delta {
namespace {

std::vector<std::byte> pattern(std::size_t n) {
  std::vector<std::byte> bytes(n);
  for (std::size_t i = 0; i < n; ++i) bytes[i] = static_cast<std::byte>(i % 251);
  return bytes;
}

std::string sum_of(ChecksumKind kind, std::span<const std::byte> bytes, std::size_t piece) {
  Checksum sum(kind);
  for (std::size_t at = 0; at < bytes.size(); at += piece)
    sum.update(bytes.subspan(at, std::min(piece, bytes.size() - at)));
  return sum.finish();
}

// Values of BLAKE3's own test vectors, as the package blake3 1.0.11 of PyPI computed them, too.
TEST(ChecksumTest, Blake3HasItsPublishedValues) {
  for (const auto& [n, expected] : std::map<std::size_t, std::string>{
           {0, "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"},
           {1, "2d3adedff11b61f14c886e35afa036736dcd87a74d27b5c1510225d0f592e213"},
           {64, "4eed7141ea4a5cd4b788606bd23f46e212af9cacebacdc7d1f4c6dc7f2511b98"},
           {1024, "42214739f095a406f3fc83deb889744ac00df831c10daa55189b5d121c855af7"},
           {1025, "d00278ae47eb27b34faecf67b4fe263f82d5412916c1ffd97c8cb7fb814b8444"},
           {2048, "e776b6028c7cd22a4d0ba182a8bf62205d2ef576467e838ed6f2529b85fba24a"},
           {3073, "7124b49501012f81cc7f11ca069ec9226cecb8a2c850cfe644e327d22d3e1cd3"},
           {31744, "62b6960e1a44bcc1eb1a611a8d6235b6b4b78f32e7abc4fb4c6cdcce94895c47"},
           {102400, "bc3e3d41a1146b069abffad3c0d44860cf664390afce4d9661f7902e7943e085"}}) {
    for (const std::size_t piece : {std::size_t{7}, std::size_t{1000}, std::size_t{1} << 20})
      EXPECT_EQ(sum_of(ChecksumKind::kBlake3, pattern(n), piece), expected) << n;
  }
}

TEST(ChecksumTest, Adler32AndXxh3HaveKnownValues) {
  EXPECT_EQ(sum_of(ChecksumKind::kAdler32, {}, 1), "00000001");
  EXPECT_EQ(sum_of(ChecksumKind::kAdler32, std::as_bytes(std::span("abc", 3)), 2), "024d0127");
  // zlib.adler32 of Python, of bytes that need the remainder more than once.
  EXPECT_EQ(sum_of(ChecksumKind::kAdler32, pattern(100'000), 30'000), "84cba994");
  EXPECT_EQ(sum_of(ChecksumKind::kXxh3, {}, 1), "99aa06d3014798d86001c324468d497f");
}

}  // namespace
}  // namespace ingot::delta
