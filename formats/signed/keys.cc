// The program has SHA-256 out of OpenSSL's static library (formats/base/hash.cc). Signatures bring
// all of its ciphers and providers, which make the program larger by a third and each start slower:
// so the shared library is loaded, as the module of MPI is, by who signs or verifies.

#include "formats/signed/keys.h"

#include <array>
#include <cstdint>
#include <exception>
#include <new>
#include <optional>
#include <span>

#include <dlfcn.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
// The functions of 1.1.0 and later, as in formats/base/hash.cc.
#define OPENSSL_API_COMPAT 0x10100000L
#include <openssl/bio.h>
#include <openssl/core_names.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>

#include "formats/base/error.h"
#include "formats/base/fd.h"
#include "formats/base/hash.h"

namespace ingot::formats {

namespace {

namespace fs = std::filesystem;

constexpr const char* kCryptoLibrary = "libcrypto.so.3";
constexpr std::uint64_t kMaxKeyBytes = std::uint64_t{1} << 16;

// Functions of the library, under their names there.
struct Crypto {
  decltype(&::BIO_new) BIO_new;
  decltype(&::BIO_s_mem) BIO_s_mem;
  decltype(&::BIO_new_mem_buf) BIO_new_mem_buf;
  decltype(&::BIO_ctrl) BIO_ctrl;
  decltype(&::BIO_free) BIO_free;
  decltype(&::ERR_get_error) ERR_get_error;
  decltype(&::ERR_reason_error_string) ERR_reason_error_string;
  decltype(&::EVP_DigestSign) EVP_DigestSign;
  decltype(&::EVP_DigestSignInit) EVP_DigestSignInit;
  decltype(&::EVP_DigestVerify) EVP_DigestVerify;
  decltype(&::EVP_DigestVerifyInit) EVP_DigestVerifyInit;
  decltype(&::EVP_MD_CTX_free) EVP_MD_CTX_free;
  decltype(&::EVP_MD_CTX_new) EVP_MD_CTX_new;
  decltype(&::EVP_PKEY_CTX_free) EVP_PKEY_CTX_free;
  decltype(&::EVP_PKEY_CTX_new) EVP_PKEY_CTX_new;
  decltype(&::EVP_PKEY_free) EVP_PKEY_free;
  decltype(&::EVP_PKEY_get_group_name) EVP_PKEY_get_group_name;
  decltype(&::EVP_PKEY_is_a) EVP_PKEY_is_a;
  decltype(&::EVP_PKEY_public_check) EVP_PKEY_public_check;
  decltype(&::EVP_PKEY_set_utf8_string_param) EVP_PKEY_set_utf8_string_param;
  decltype(&::EVP_get_digestbyname) EVP_get_digestbyname;
  decltype(&::PEM_read_bio_PUBKEY) PEM_read_bio_PUBKEY;
  decltype(&::PEM_read_bio_PrivateKey) PEM_read_bio_PrivateKey;
  decltype(&::PEM_write_bio_PUBKEY) PEM_write_bio_PUBKEY;
};

Crypto load_crypto() {
  void* const library = ::dlopen(kCryptoLibrary, RTLD_NOW | RTLD_LOCAL);
  const auto refuse = [](const char* fact) {
    throw Error(ErrorCode::kUnsupported,
                "keys and signatures are OpenSSL's, and its library is not usable: {} (install "
                "OpenSSL 3; on Debian and Ubuntu the package libssl3)",
                fact != nullptr ? fact : "dlopen fails");
  };
  if (library == nullptr) refuse(::dlerror());
  Crypto crypto{};
  const auto find = [&](auto& function, const char* name) {
    function =
        reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(library, name));
    if (function == nullptr) refuse(::dlerror());
  };
#define INGOT_FIND(name) find(crypto.name, #name)
  INGOT_FIND(BIO_new);
  INGOT_FIND(BIO_s_mem);
  INGOT_FIND(BIO_new_mem_buf);
  INGOT_FIND(BIO_ctrl);
  INGOT_FIND(BIO_free);
  INGOT_FIND(ERR_get_error);
  INGOT_FIND(ERR_reason_error_string);
  INGOT_FIND(EVP_DigestSign);
  INGOT_FIND(EVP_DigestSignInit);
  INGOT_FIND(EVP_DigestVerify);
  INGOT_FIND(EVP_DigestVerifyInit);
  INGOT_FIND(EVP_MD_CTX_free);
  INGOT_FIND(EVP_MD_CTX_new);
  INGOT_FIND(EVP_PKEY_CTX_free);
  INGOT_FIND(EVP_PKEY_CTX_new);
  INGOT_FIND(EVP_PKEY_free);
  INGOT_FIND(EVP_PKEY_get_group_name);
  INGOT_FIND(EVP_PKEY_is_a);
  INGOT_FIND(EVP_PKEY_public_check);
  INGOT_FIND(EVP_PKEY_set_utf8_string_param);
  INGOT_FIND(EVP_get_digestbyname);
  INGOT_FIND(PEM_read_bio_PUBKEY);
  INGOT_FIND(PEM_read_bio_PrivateKey);
  INGOT_FIND(PEM_write_bio_PUBKEY);
#undef INGOT_FIND
  return crypto;
}

const Crypto& crypto() {
  static const Crypto loaded = load_crypto();
  return loaded;
}

// Kinds of keys of ECDSA, by OpenSSL's names of the curves.
struct CurveRow {
  std::string_view group, algorithm;
  const char* digest;
};
constexpr std::array<CurveRow, 3> kCurves = {{{"prime256v1", "ECDSA P-256", "SHA256"},
                                              {"secp384r1", "ECDSA P-384", "SHA384"},
                                              {"secp521r1", "ECDSA P-521", "SHA512"}}};

// Takes the errors of this thread's last call, and returns the reason of the first; empty: none is
// told. Throws where memory was missing: OpenSSL tells of it as of a signature that is not the
// key's.
std::string take_errors() {
  std::string reason;
  bool has_memory = true;
  while (const unsigned long code = crypto().ERR_get_error()) {
    has_memory = has_memory && ERR_GET_REASON(code) != ERR_R_MALLOC_FAILURE;
    const char* const text = crypto().ERR_reason_error_string(code);
    if (reason.empty()) reason = text != nullptr ? text : "it does not say why";
  }
  if (!has_memory) throw std::bad_alloc();
  return reason;
}

// The reason of a call that failed. Without memory OpenSSL has no place for one.
std::string failure_reason() {
  std::string reason = take_errors();
  if (reason.empty()) throw std::bad_alloc();
  return reason;
}

// Throws unless a call has succeeded that needs a key of a known kind and memory, and nothing else.
void require(bool has_succeeded) {
  if (has_succeeded) return;
  throw Error(ErrorCode::kUnsupported, "OpenSSL neither signs nor verifies: {}", failure_reason());
}

// The digest of a key; null for Ed25519, which has its own.
const EVP_MD* digest_of(const std::string& algorithm) {
  for (const CurveRow& row : kCurves) {
    if (row.algorithm != algorithm) continue;
    const EVP_MD* const digest = crypto().EVP_get_digestbyname(row.digest);
    require(digest != nullptr);
    return digest;
  }
  return nullptr;
}

const unsigned char* octets_of(std::string_view text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}

using Bio = std::unique_ptr<BIO, decltype(&::BIO_free)>;
using DigestContext = std::unique_ptr<EVP_MD_CTX, decltype(&::EVP_MD_CTX_free)>;
using KeyContext = std::unique_ptr<EVP_PKEY_CTX, decltype(&::EVP_PKEY_CTX_free)>;

Bio bio_of(const std::string& text) {
  Bio bio(crypto().BIO_new_mem_buf(text.data(), static_cast<int>(text.size())), crypto().BIO_free);
  require(bio != nullptr);
  return bio;
}

DigestContext digest_context() {
  DigestContext context(crypto().EVP_MD_CTX_new(), crypto().EVP_MD_CTX_free);
  require(context != nullptr);
  return context;
}

// True if the point is one of the curve, and not that at infinity, for which anyone can sign.
bool has_valid_point(evp_pkey_st* key) {
  const KeyContext context(crypto().EVP_PKEY_CTX_new(key, nullptr), crypto().EVP_PKEY_CTX_free);
  require(context != nullptr);
  const bool is_valid = crypto().EVP_PKEY_public_check(context.get()) == 1;
  (void)take_errors();
  return is_valid;
}

struct Asked {
  const std::function<std::string()>* passphrase;
  bool was_asked = false;
  std::exception_ptr failure;
};

// Called by OpenSSL for a key that is encrypted; no exception may pass through it.
int give_passphrase(char* buffer, int size, int /*writes*/, void* data) {
  Asked& asked = *static_cast<Asked*>(data);
  asked.was_asked = true;
  if (!*asked.passphrase) return -1;
  try {
    const std::string given = (*asked.passphrase)();
    if (given.size() > static_cast<std::size_t>(size)) return -1;
    given.copy(buffer, given.size());
    return static_cast<int>(given.size());
  } catch (...) {
    asked.failure = std::current_exception();
    return -1;
  }
}

}  // namespace

void PublicKey::Free::operator()(evp_pkey_st* key) const {
  crypto().EVP_PKEY_free(key);
}

PublicKey::PublicKey(evp_pkey_st* key) : key_(key) {
  if (!has_valid_point(key)) throw Error(ErrorCode::kCorrupt, "is no valid key of its curve");
  if (crypto().EVP_PKEY_is_a(key, "ED25519") == 1) {
    algorithm_ = kEd25519;
    return;
  }
  std::array<char, 64> group{};
  std::size_t n = 0;
  if (crypto().EVP_PKEY_is_a(key, "EC") == 1 &&
      crypto().EVP_PKEY_get_group_name(key, group.data(), group.size(), &n) == 1) {
    for (const CurveRow& row : kCurves) {
      if (row.group == std::string_view(group.data(), n)) algorithm_ = row.algorithm;
    }
  }
  if (!algorithm_.empty()) {
    // One key has one text, however its file spells point and curve: hint() is about it.
    require(crypto().EVP_PKEY_set_utf8_string_param(key, OSSL_PKEY_PARAM_EC_POINT_CONVERSION_FORMAT,
                                                    "uncompressed") == 1 &&
            crypto().EVP_PKEY_set_utf8_string_param(key, OSSL_PKEY_PARAM_EC_ENCODING,
                                                    OSSL_PKEY_EC_ENCODING_GROUP) == 1);
    return;
  }
  throw Error(
      ErrorCode::kUnsupported,
      "is a key of a kind that signs no statements (make one: openssl genpkey -algorithm EC "
      "-pkeyopt ec_paramgen_curve:P-256, or -algorithm ed25519)");
}

PublicKey PublicKey::read(const fs::path& path) {
  const std::string text = read_text_file(path, kMaxKeyBytes);
  const Bio bio = bio_of(text);
  evp_pkey_st* const key = crypto().PEM_read_bio_PUBKEY(bio.get(), nullptr, nullptr, nullptr);
  try {
    if (key == nullptr) {
      const std::string reason = failure_reason();
      throw Error(ErrorCode::kCorrupt, "is no public key in PEM ({})",
                  text.find("PRIVATE KEY") != std::string::npos
                      ? "it is a private one: openssl pkey -in KEY -pubout writes the public half"
                  : text.find("CERTIFICATE") != std::string::npos
                      ? "it is a certificate: openssl x509 -in FILE -noout -pubkey writes its key"
                      : fmt::format("OpenSSL: {}", reason));
    }
    return PublicKey(key);
  } catch (Error& error) {
    error.in_file(path.string());
    throw;
  }
}

bool PublicKey::verifies(std::string_view bytes, std::string_view signature) const {
  // Twice: OpenSSL may say no where it lacked memory for a moment, and tell no reason.
  for (int i = 0; i < 2; ++i) {
    const DigestContext context = digest_context();
    require(crypto().EVP_DigestVerifyInit(context.get(), nullptr, digest_of(algorithm_), nullptr,
                                          key_.get()) == 1);
    const int result = crypto().EVP_DigestVerify(context.get(), octets_of(signature),
                                                 signature.size(), octets_of(bytes), bytes.size());
    if (result == 1) return true;
    (void)take_errors();
  }
  return false;
}

std::string PublicKey::hint() const {
  const Bio bio(crypto().BIO_new(crypto().BIO_s_mem()), crypto().BIO_free);
  require(bio != nullptr && crypto().PEM_write_bio_PUBKEY(bio.get(), key_.get()) == 1);
  char* text = nullptr;
  const long size = crypto().BIO_ctrl(bio.get(), BIO_CTRL_INFO, 0, static_cast<void*>(&text));
  Sha256 sha;
  sha.update(std::as_bytes(std::span(text, static_cast<std::size_t>(size))));
  return sha.finish_hex();
}

SigningKey SigningKey::read(const fs::path& path, const std::function<std::string()>& passphrase) {
  try {
    const Fd file = Fd::open_for_reading(path);
    struct stat facts {};
    if (::fstat(file.get(), &facts) != 0) throw system_error(errno, "stat", path.string());
    if ((facts.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
      throw Error(ErrorCode::kPermission,
                  "is a private key that others can read or write (mode {:04o}; take it from them: "
                  "chmod 600)",
                  facts.st_mode & 07777U);
    }
    if (facts.st_uid != 0 && facts.st_uid != ::geteuid()) {
      throw Error(
          ErrorCode::kPermission,
          "is a private key of another user, who can read and change it (make a copy of your "
          "own: install -m 600 {} KEY)",
          path.string());
    }
    if (file.size() > kMaxKeyBytes) throw Error(ErrorCode::kLimit, "is too long for a key");
    std::string text(file.size(), '\0');
    file.read_exact(std::as_writable_bytes(std::span(text)), 0);
    const Bio bio = bio_of(text);
    Asked asked{.passphrase = &passphrase, .was_asked = false, .failure = nullptr};
    evp_pkey_st* const key =
        crypto().PEM_read_bio_PrivateKey(bio.get(), nullptr, give_passphrase, &asked);
    text.assign(text.size(), '\0');
    if (asked.failure != nullptr) std::rethrow_exception(asked.failure);
    if (key == nullptr) {
      const std::string reason = failure_reason();
      if (!asked.was_asked)
        throw Error(ErrorCode::kCorrupt, "is no private key in PEM (OpenSSL: {})", reason);
      if (!passphrase)
        throw Error(ErrorCode::kPermission, "is encrypted, and no passphrase was given");
      throw Error(ErrorCode::kPermission,
                  "is encrypted, and the passphrase does not open it (OpenSSL: {})", reason);
    }
    return SigningKey(key);
  } catch (Error& error) {
    error.in_file(path.string());
    throw;
  }
}

std::string SigningKey::sign(std::string_view bytes) const {
  const DigestContext context = digest_context();
  require(crypto().EVP_DigestSignInit(context.get(), nullptr, digest_of(key_.algorithm_), nullptr,
                                      key_.key_.get()) == 1);
  std::size_t size = 0;
  require(crypto().EVP_DigestSign(context.get(), nullptr, &size, octets_of(bytes), bytes.size()) ==
          1);
  std::string signature(size, '\0');
  require(crypto().EVP_DigestSign(context.get(), reinterpret_cast<unsigned char*>(signature.data()),
                                  &size, octets_of(bytes), bytes.size()) == 1);
  signature.resize(size);
  if (!key_.verifies(bytes, signature)) {
    throw Error(
        ErrorCode::kCorrupt,
        "its public half does not verify what its private half signs (the file was changed)");
  }
  return signature;
}

}  // namespace ingot::formats
