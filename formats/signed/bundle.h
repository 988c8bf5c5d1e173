#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "formats/signed/keys.h"

// Signed texts: a DSSE envelope, by itself or in a bundle of Sigstore's form (docs/trust.md,
// "Statements"). Sources: DSSE protocol 1.0; Sigstore bundle v0.3.

namespace ingot::formats {

inline constexpr std::string_view kStatementType = "application/vnd.in-toto+json";
/// Names of bundles in the folder that they are about: ours, and the one of OpenSSF Model Signing.
inline constexpr std::string_view kAttestationName = "ingot.intoto.json";
inline constexpr std::string_view kModelSignatureName = "model.sig";

/// A text, and signatures of it.
struct Bundle {
  struct Signature {
    std::string bytes;
    std::string keyid;  ///< name of the key, which nothing protects
  };
  std::string payload_type;
  std::string payload;  ///< bytes as they were signed
  std::vector<Signature> signatures;
  std::string hint;  ///< PublicKey::hint() of the signer; empty: not told
};

/// The bytes that are signed (pre-authentication encoding): `DSSEv1`, type and payload, each behind
/// its length.
std::string signed_bytes(std::string_view payload_type, std::string_view payload);

/// Signs a statement.
Bundle sign_statement(std::string statement, const SigningKey& key);

/// The form with a key's hint, which model_signing and cosign read.
std::string bundle_text(const Bundle& bundle);
/// Reads a bundle, or an envelope by itself. Throws kCorrupt for any other text. Nothing is
/// verified.
Bundle parse_bundle(std::string_view text, std::string_view where);
Bundle read_bundle(const std::filesystem::path& path);

/// Throws kMismatch unless the payload is a statement, and a signature of it is the key's.
void require_signed(const Bundle& bundle, const PublicKey& key, std::string_view where);

}  // namespace ingot::formats
