#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

struct evp_pkey_st;

// Keys that sign statements: Ed25519, and ECDSA over P-256, P-384 and P-521 with SHA-256, SHA-384
// and SHA-512. The arithmetic is OpenSSL's, whose library is loaded when the first key is read.

namespace ingot::formats {

/// The public half of a key.
class PublicKey {
 public:
  /// Reads a PEM file, as `openssl pkey -pubout` writes it. Throws kNotFound and kPermission as
  /// files do, kCorrupt for a text that is no public key, kUnsupported for a key of another kind,
  /// and where OpenSSL 3 is not installed.
  static PublicKey read(const std::filesystem::path& path);

  /// True if `signature` is that of these bytes: 64 bytes of Ed25519, ASN.1 DER of ECDSA.
  [[nodiscard]] bool verifies(std::string_view bytes, std::string_view signature) const;
  /// `Ed25519`, `ECDSA P-256`.
  [[nodiscard]] const std::string& algorithm() const { return algorithm_; }
  [[nodiscard]] bool is_ecdsa() const { return algorithm_ != kEd25519; }
  /// SHA-256 of its PEM text in hexadecimal digits: the hint of OpenSSF Model Signing.
  [[nodiscard]] std::string hint() const;

 private:
  friend class SigningKey;
  static constexpr std::string_view kEd25519 = "Ed25519";
  struct Free {
    void operator()(evp_pkey_st* key) const;
  };
  explicit PublicKey(evp_pkey_st* key);

  std::unique_ptr<evp_pkey_st, Free> key_;
  std::string algorithm_;
};

/// Both halves of a key.
class SigningKey {
 public:
  /// Reads a PEM file, as `openssl genpkey` writes it. `passphrase` is called only for a key that
  /// is encrypted; empty: such a key is refused. Throws as PublicKey::read() does, and kPermission
  /// for a file that others than its owner can read or write.
  static SigningKey read(const std::filesystem::path& path,
                         const std::function<std::string()>& passphrase);

  /// Signatures of ECDSA are random: two of the same bytes differ.
  [[nodiscard]] std::string sign(std::string_view bytes) const;
  [[nodiscard]] const PublicKey& public_key() const { return key_; }

 private:
  explicit SigningKey(evp_pkey_st* key) : key_(key) {}

  PublicKey key_;
};

}  // namespace ingot::formats
