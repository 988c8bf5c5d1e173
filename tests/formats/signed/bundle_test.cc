#include "formats/signed/bundle.h"

#include <unistd.h>

#include "formats/base/error.h"
#include "formats/base/fd.h"
#include "formats/signed/keys.h"
#include "formats/text/base64.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test.h"

namespace ingot::formats {
namespace {

using testing::expect_error;
using testing::TempDir;

const std::filesystem::path kOms = std::filesystem::path(INGOT_SOURCE_DIR) / "tests/golden/oms";

std::string text_of(const std::filesystem::path& path) {
  return read_text_file(kOms / path, 1 << 20);
}

PublicKey public_key(const std::string& name) {
  return PublicKey::read(kOms / "keys" / (name + ".pub.pem"));
}

/// A key of signers/ that only its owner may read.
class Signer {
 public:
  explicit Signer(const std::string& name) : file_(folder_ / name) {
    std::filesystem::copy(kOms / "signers" / name, file_);
    std::filesystem::permissions(file_, std::filesystem::perms::owner_read);
  }
  [[nodiscard]] const std::filesystem::path& file() const { return file_; }
  [[nodiscard]] SigningKey read(const std::function<std::string()>& passphrase = {}) const {
    return SigningKey::read(file_, passphrase);
  }

 private:
  TempDir folder_;
  std::filesystem::path file_;
};

bool is_signed(const std::string& bundle, const std::string& key) {
  try {
    require_signed(read_bundle(kOms / bundle), public_key(key), bundle);
    return true;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kMismatch) << error.what();
    return false;
  }
}

TEST(Base64, TextsOfBytesAreThoseOfRfc4648) {
  const std::vector<std::pair<std::string, std::string>> rows = {
      {"f", "Zg=="},        {"fo", "Zm8="},        {"foo", "Zm9v"},
      {"foob", "Zm9vYg=="}, {"fooba", "Zm9vYmE="}, {"foobar", "Zm9vYmFy"}};
  for (const auto& [bytes, text] : rows) {
    EXPECT_EQ(base64_text(bytes), text);
    EXPECT_EQ(base64_bytes(text), bytes);
  }
  EXPECT_EQ(base64_bytes("-_-_", Base64::kForAddresses), base64_bytes("+/+/"));
  for (const char* text : {"", "Zg", "Zg=", "====", "Z===", "Zg==Zg==", "Zm9 ", "-_-_"})
    EXPECT_EQ(base64_bytes(text), std::nullopt) << text;
}

TEST(Bundle, SignedBytesAreThoseOfTheProtocol) {
  EXPECT_EQ(signed_bytes("http://example.com/HelloWorld", "hello world"),
            "DSSEv1 29 http://example.com/HelloWorld 11 hello world");
  EXPECT_EQ(signed_bytes(kStatementType, text_of("dsse/statement.json")), text_of("dsse/pae.bin"));
}

TEST(Bundle, SignaturesOfOtherProgramsVerify) {
  EXPECT_TRUE(is_signed("p256.sig", "p256"));
  EXPECT_TRUE(is_signed("p384.sig", "p384"));
  EXPECT_TRUE(is_signed("p521.sig", "p521"));
  EXPECT_TRUE(is_signed("certificate.sig", "leaf"));
  EXPECT_TRUE(is_signed("dsse/p256.json", "p256"));
  EXPECT_TRUE(is_signed("dsse/ed25519.json", "ed25519"));
  EXPECT_TRUE(is_signed("dsse/both.json", "p256"));
  EXPECT_TRUE(is_signed("dsse/both.json", "ed25519"));
  EXPECT_TRUE(is_signed("altered/no-hint.sig", "p256"));
  EXPECT_TRUE(is_signed("altered/no-tlog.sig", "p256"));
  EXPECT_TRUE(is_signed("altered/no-keyid.sig", "p256"));
  EXPECT_TRUE(is_signed("altered/resigned-other-order.sig", "p256"));
  EXPECT_EQ(read_bundle(kOms / "p256.sig").payload, text_of("statement.p256.json"));
}

TEST(Bundle, OtherKeysAndChangedTextsAreRefused) {
  EXPECT_FALSE(is_signed("p256.sig", "other"));
  EXPECT_FALSE(is_signed("altered/no-hint.sig", "other"));
  EXPECT_FALSE(is_signed("dsse/p256.json", "ed25519"));
  EXPECT_FALSE(is_signed("dsse/ed25519.json", "p256"));
  EXPECT_FALSE(is_signed("altered/bad-payload.sig", "p256"));
  EXPECT_FALSE(is_signed("dsse/bad-type.json", "p256"));
}

TEST(Bundle, EveryChangedByteOfPayloadIsRefused) {
  Bundle bundle = read_bundle(kOms / "dsse/ed25519.json");
  const PublicKey key = public_key("ed25519");
  for (std::size_t i = 0; i < bundle.payload.size(); i += 7) {
    bundle.payload[i] ^= 1;
    expect_error(ErrorCode::kMismatch, "has no signature by this key",
                 [&] { require_signed(bundle, key, "it"); });
    bundle.payload[i] ^= 1;
  }
  bundle.signatures.front().bytes.pop_back();
  expect_error(ErrorCode::kMismatch, "has no signature",
               [&] { require_signed(bundle, key, "it"); });
  bundle.signatures.clear();
  expect_error(ErrorCode::kMismatch, "has no signature",
               [&] { require_signed(bundle, key, "it"); });
}

TEST(Bundle, HintIsTheHashOfThePemText) {
  EXPECT_EQ(public_key("p256").hint(), read_bundle(kOms / "p256.sig").hint);
  EXPECT_EQ(public_key("p521").hint(), read_bundle(kOms / "p521.sig").hint);
}

TEST(Bundle, MalformedTextsAreRefused) {
  const std::string good = text_of("p256.sig");
  for (std::size_t n = 0; n < good.size(); n += 97) {
    expect_error(ErrorCode::kCorrupt, "it", [&] { (void)parse_bundle(good.substr(0, n), "it"); });
  }
  for (const char* text :
       {"[]", "{}", R"({"dsseEnvelope": 3})", R"({"payload": "Zg==", "payloadType": "t"})",
        R"({"payload": "!", "payloadType": "t", "signatures": []})",
        R"({"payload": "Zg==", "payloadType": "t", "signatures": [3]})",
        R"({"payload": "Zg==", "payloadType": "t", "signatures": [{"sig": 1}]})"}) {
    expect_error(ErrorCode::kCorrupt, "it", [&] { (void)parse_bundle(text, "it"); });
  }
}

class EachSigner : public ::testing::TestWithParam<const char*> {};

TEST_P(EachSigner, SignsWhatItsPublicHalfVerifies) {
  const std::string name = GetParam();
  const SigningKey key = Signer(name + ".pem").read();
  const PublicKey half = PublicKey::read(kOms / "signers" / (name + ".pub.pem"));
  EXPECT_EQ(key.public_key().hint(), half.hint());
  EXPECT_EQ(key.public_key().algorithm(), half.algorithm());
  const Bundle made = parse_bundle(bundle_text(sign_statement("{}\n", key)), "it");
  EXPECT_EQ(made.payload, "{}\n");
  EXPECT_EQ(made.hint, half.hint());
  require_signed(made, half, "it");
}

INSTANTIATE_TEST_SUITE_P(Keys, EachSigner, ::testing::Values("ed25519", "p256", "p384", "p521"),
                         [](const auto& name) { return std::string(name.param); });

TEST(SigningKey, KeysThatOthersReadAreRefused) {
  const Signer signer("p256.pem");
  for (const auto perms : {std::filesystem::perms::group_read, std::filesystem::perms::others_read,
                           std::filesystem::perms::others_write}) {
    std::filesystem::permissions(signer.file(), std::filesystem::perms::owner_read | perms);
    expect_error(ErrorCode::kPermission, "p256.pem...that others can read or write",
                 [&] { (void)signer.read(); });
  }
}

TEST(SigningKey, EncryptedKeysNeedTheirPassphrase) {
  const Signer signer("p256-encrypted.pem");
  const SigningKey key = signer.read([] { return std::string("open sesame"); });
  EXPECT_EQ(key.public_key().hint(), Signer("p256.pem").read().public_key().hint());
  expect_error(ErrorCode::kPermission, "the passphrase does not open it",
               [&] { (void)signer.read([] { return std::string("open barley"); }); });
  expect_error(ErrorCode::kPermission, "no passphrase was given", [&] { (void)signer.read(); });
  expect_error(ErrorCode::kPermission, "the passphrase does not open it",
               [&] { (void)signer.read([] { return std::string(5000, 'x'); }); });
  expect_error(ErrorCode::kInterrupted, "stopped", [&] {
    (void)signer.read([]() -> std::string { throw Error(ErrorCode::kInterrupted, "stopped"); });
  });
}

TEST(SigningKey, KeysOfOtherUsersAreRefused) {
  const Signer signer("p256.pem");
  EXPECT_NO_THROW((void)signer.read());
  // The system lets root give a file away, and refuses it to others.
  const bool is_given = ::chown(signer.file().c_str(), 1234, 1234) == 0;
  ASSERT_EQ(is_given, ::geteuid() == 0);
  if (!is_given) return;
  expect_error(ErrorCode::kPermission, "p256.pem...is a private key of another user",
               [&] { (void)signer.read(); });
}

// Returns a public key of P-256 in PEM, whose point has these bytes.
std::string public_text(std::string_view point) {
  std::string der = base64_bytes("MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgA=").value();
  der[1] = static_cast<char>(der.size() - 2 + point.size());
  der[der.size() - 2] = static_cast<char>(1 + point.size());
  der += point;
  return "-----BEGIN PUBLIC KEY-----\n" + base64_text(der) + "\n-----END PUBLIC KEY-----\n";
}

TEST(PublicKey, OneKeyHasOneHintInEveryForm) {
  const std::string pem = text_of("signers/p256.pub.pem");
  const std::size_t begin = pem.find('\n') + 1;
  std::string letters = pem.substr(begin, pem.find("-----END") - begin);
  std::erase(letters, '\n');
  const std::string point = base64_bytes(letters).value().substr(26);
  const std::string parity(1, static_cast<char>(2 + (point.back() & 1)));
  const TempDir folder;
  const auto key = [&](const std::string& as) {
    write_text_file(folder / "key", public_text(as), Durable::kLater);
    return PublicKey::read(folder / "key");
  };
  EXPECT_EQ(text_of("signers/p256.pub.pem").find("MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgA"), begin);
  const std::string hint = PublicKey::read(kOms / "signers/p256.pub.pem").hint();
  EXPECT_EQ(key(point).hint(), hint);
  EXPECT_EQ(key(parity + point.substr(1, 32)).hint(), hint);
  for (const std::string& other : {std::string(1, '\0'), '\4' + std::string(64, '\1'),
                                   '\4' + std::string(64, '\xff'), std::string()})
    expect_error(ErrorCode::kCorrupt, "key...is no ", [&] { (void)key(other); });
}

TEST(SigningKey, OtherKeysAndTextsAreRefused) {
  expect_error(ErrorCode::kUnsupported, "rsa.pem...signs no statements",
               [] { (void)Signer("rsa.pem").read(); });
  expect_error(ErrorCode::kCorrupt, "p256.pub.pem...is no private key",
               [] { (void)Signer("p256.pub.pem").read(); });
  expect_error(ErrorCode::kCorrupt, "is no public key in PEM (it is a private one",
               [] { (void)PublicKey::read(kOms / "signers/p256.pem"); });
  const TempDir folder;
  write_text_file(folder / "leaf.crt", "-----BEGIN CERTIFICATE-----\n", Durable::kLater);
  expect_error(ErrorCode::kCorrupt, "is no public key in PEM (it is a certificate",
               [&] { (void)PublicKey::read(folder / "leaf.crt"); });
  expect_error(ErrorCode::kCorrupt, "is no public key",
               [] { (void)PublicKey::read(kOms / "model/config.json"); });
}

}  // namespace
}  // namespace ingot::formats
