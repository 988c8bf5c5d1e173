#include "formats/signed/bundle.h"

#include <cstdint>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "formats/base/fd.h"
#include "formats/json/json.h"
#include "formats/json/json_fields.h"
#include "formats/text/base64.h"

namespace ingot::formats {

namespace {

constexpr std::string_view kBundleType = "application/vnd.dev.sigstore.bundle.v0.3+json";
// A statement has some 200 bytes for each file; the largest outputs have a hundred thousand.
constexpr std::uint64_t kMaxBundleBytes = std::uint64_t{64} << 20;

std::string bytes_at(const JsonFields& fields, const char* key) {
  const std::string text = fields.text(key);
  if (text.empty()) return {};
  std::optional<std::string> bytes = base64_bytes(text);
  if (!bytes) bytes = base64_bytes(text, Base64::kForAddresses);
  if (!bytes) fields.refuse(key, "is no base64");
  return *std::move(bytes);
}

}  // namespace

std::string signed_bytes(std::string_view payload_type, std::string_view payload) {
  return fmt::format("DSSEv1 {} {} {} {}", payload_type.size(), payload_type, payload.size(),
                     payload);
}

Bundle sign_statement(std::string statement, const SigningKey& key) {
  std::string signature = key.sign(signed_bytes(kStatementType, statement));
  return {.payload_type = std::string(kStatementType),
          .payload = std::move(statement),
          .signatures = {{.bytes = std::move(signature), .keyid = ""}},
          .hint = key.public_key().hint()};
}

std::string bundle_text(const Bundle& bundle) {
  const Json signatures = json_list(bundle.signatures, [](const Bundle::Signature& signature) {
    return Json{{"sig", base64_text(signature.bytes)}, {"keyid", signature.keyid}};
  });
  Json key = Json::object();
  if (!bundle.hint.empty()) key["hint"] = bundle.hint;
  return json_text(
      {{"mediaType", std::string(kBundleType)},
       {"verificationMaterial", {{"publicKey", std::move(key)}, {"tlogEntries", Json::array()}}},
       {"dsseEnvelope",
        {{"payload", base64_text(bundle.payload)},
         {"payloadType", bundle.payload_type},
         {"signatures", signatures}}}});
}

Bundle parse_bundle(std::string_view text, std::string_view where) {
  const Json json = parse_json(text, where);
  const JsonFields whole(json, where);
  const auto inner = whole.optional_child("dsseEnvelope");
  const JsonFields& envelope = inner ? *inner : whole;
  Bundle bundle{.payload_type = envelope.text("payloadType"),
                .payload = bytes_at(envelope, "payload"),
                .signatures = {},
                .hint = {}};
  for (const Json& entry : envelope.array("signatures")) {
    const JsonFields signature(entry, where, "signatures");
    bundle.signatures.push_back(
        {.bytes = bytes_at(signature, "sig"), .keyid = signature.text("keyid", "")});
  }
  if (const auto material = whole.optional_child("verificationMaterial")) {
    if (const auto key = material->optional_child("publicKey")) bundle.hint = key->text("hint", "");
  }
  return bundle;
}

Bundle read_bundle(const std::filesystem::path& path) {
  return parse_bundle(read_text_file(path, kMaxBundleBytes), path.string());
}

void require_signed(const Bundle& bundle, const PublicKey& key, std::string_view where) {
  const auto refuse = [&](std::string_view fact) {
    throw Error(ErrorCode::kMismatch, "{}", fact).in_file(where);
  };
  if (bundle.payload_type != kStatementType) refuse("its payload is no in-toto statement");
  if (!bundle.hint.empty() && bundle.hint != key.hint())
    refuse("was signed by another key: its hint is not that of this one");
  const std::string bytes = signed_bytes(bundle.payload_type, bundle.payload);
  for (const Bundle::Signature& signature : bundle.signatures) {
    if (key.verifies(bytes, signature.bytes)) return;
  }
  refuse("has no signature by this key: it was signed by another one, or changed since");
}

}  // namespace ingot::formats
