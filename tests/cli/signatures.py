#!/usr/bin/env python3
"""Signatures of ingot, verified by the packages of others, and theirs by ingot.

    signatures.py INGOT EXAMPLE GOLDEN

Needs model-signing, pyOpenSSL, securesystemslib and in-toto-attestation from PyPI, in this Python or in the one that
INGOT_SIGNING_PYTHON names; exit status 77 without them. scripts/signatures.sh installs them in a folder of the build."""
import base64
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile

python = os.environ.pop("INGOT_SIGNING_PYTHON", None)
if python:
    os.execv(python, [python, *sys.argv])
try:
    import model_signing
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from google.protobuf import json_format
    from in_toto_attestation.v1 import statement_pb2
    from in_toto_attestation.v1.statement import Statement
    from securesystemslib.dsse import Envelope
    from securesystemslib.exceptions import VerificationError
    from securesystemslib.signer import CryptoSigner, SSlibKey
except ImportError as error:
    print(f"skipped: cli.signatures: {error} (scripts/signatures.sh installs what is needed)")
    sys.exit(77)

ingot, example, golden = sys.argv[1:4]
signers = os.path.join(golden, "oms/signers")
work = tempfile.mkdtemp(prefix="ingot-signatures-")
model_signing_program = os.path.join(os.path.dirname(sys.executable), "model_signing")
counts = {}


def at(*names):
    return os.path.join(work, *names)


def expect(holds, what):
    if not holds:
        sys.exit(f"FAILED: {what}")


def count(what):
    counts[what] = counts.get(what, 0) + 1


def run(status, *words):
    done = subprocess.run(words, capture_output=True, stdin=subprocess.DEVNULL)
    text = (done.stdout + done.stderr).decode()
    expect(done.returncode == status, f"{' '.join(words)}: exit code {done.returncode}, expected {status}:\n{text[:2000]}")
    return text


def key_of(name):
    """A copy that only its owner can read, and its public half."""
    path = at(name + ".pem")
    shutil.copy(os.path.join(signers, name + ".pem"), path)
    os.chmod(path, 0o600)
    return path, os.path.join(signers, name + ".pub.pem")


def private_key(path):
    with open(path, "rb") as file:
        return serialization.load_pem_private_key(file.read(), None)


def public_key(path):
    with open(path, "rb") as file:
        return serialization.load_pem_public_key(file.read())


def by_library(signature, folder, public):
    """Verifies like a program that imports the package."""
    paths = model_signing.hashing.Config().set_ignored_paths(paths=[signature], ignore_git_paths=True)
    config = model_signing.verifying.Config().use_elliptic_key_verifier(public_key=public).set_hashing_config(paths)
    config.verify(folder, signature)


def payload_of(path):
    with open(path, encoding="utf-8") as file:
        return json.loads(base64.b64decode(json.load(file)["dsseEnvelope"]["payload"]))


def changed(folder):
    """The folder with one change after the other; each is undone."""
    names = sorted(os.path.join(base, name) for base, _, files in os.walk(folder) for name in files)
    for path in names:
        if path.endswith("model.sig"):
            continue
        with open(path, "rb") as file:
            before = file.read()
        with open(path, "wb") as file:
            file.write(before[:-1] + bytes([before[-1] ^ 4]) if before else b" ")
        yield f"a byte of {path}"
        os.remove(path)
        yield f"without {path}"
        with open(path, "wb") as file:
            file.write(before)
        os.rename(path, path + ".2")
        yield f"{path} under another name"
        os.rename(path + ".2", path)
    with open(os.path.join(folder, "more.py"), "w", encoding="utf-8") as file:
        file.write("x = 1\n")
    yield "one more file"
    os.remove(os.path.join(folder, "more.py"))


def verified_by_both(signature, folder, public, other):
    by_theirs = [model_signing_program, "verify", "key", "--signature", signature, folder, "--public_key"]
    by_ours = [ingot, "attest", "--verify", folder, "--form", "model-signing", "--bundle", signature, "--key"]
    run(0, *by_theirs, public)
    run(0, *by_ours, public)
    by_library(signature, folder, public)
    run(1, *by_theirs, other)
    run(1, *by_ours, other)


def model_signing_form(folders):
    """Signatures of a folder by each key, in both directions."""
    for name in ("p256", "p384", "p521"):
        private, public = key_of(name)
        other = os.path.join(signers, ("p384" if name == "p256" else "p256") + ".pub.pem")
        for folder in folders:
            inside, theirs = os.path.join(folder, "model.sig"), at("theirs.sig")
            run(0, ingot, "attest", folder, "--form", "model-signing", "--key", private)
            verified_by_both(inside, folder, public, other)
            count("signatures of ingot that model_signing verifies")
            run(0, model_signing_program, "sign", "key", "--private_key", private, "--signature", theirs, "--ignore-paths", inside,
                folder)
            own, their = payload_of(inside), payload_of(theirs)
            for payload in (own, their):
                payload["predicate"]["serialization"]["ignore_paths"] = sorted(
                    path for path in payload["predicate"]["serialization"]["ignore_paths"] if path != "model.sig")
            expect(own == their, f"the statement of {folder}: {own} and {their}")
            os.rename(inside, at("ours.sig"))
            verified_by_both(theirs, folder, public, other)
            count("signatures of model_signing that ingot verifies")
            if name == "p256":
                for what in changed(folder):
                    for signature in (at("ours.sig"), theirs):
                        try:
                            by_library(signature, folder, public)
                            sys.exit(f"FAILED: model_signing passes {what}")
                        except ValueError:
                            pass
                        run(1, ingot, "attest", "--verify", folder, "--form", "model-signing", "--bundle", signature, "--key", public)
                        count("changed folders that both refuse")
                verified_by_both(at("ours.sig"), folder, public, other)


def ecdsa_hash(key):
    return {256: hashes.SHA256, 384: hashes.SHA384, 521: hashes.SHA512}[key.curve.key_size]()


def by_cryptography(envelope, key):
    """The protocol by hand: the signed bytes, and the signature over them."""
    payload, kind = base64.b64decode(envelope["payload"], validate=True), envelope["payloadType"].encode()
    signed = b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)
    signature = base64.b64decode(envelope["signatures"][0]["sig"], validate=True)
    if isinstance(key, ec.EllipticCurvePublicKey):
        key.verify(signature, signed, ec.ECDSA(ecdsa_hash(key)))
    else:
        key.verify(signature, signed)
    return payload


def provenance(out):
    """The statement about a conversion by each key: its envelope, its form, its digests; and signed by others."""
    for name in ("ed25519", "p256", "p384", "p521"):
        private, public = key_of(name)
        run(0, ingot, "attest", out, "--key", private, "--source", example, "--source-uri", "hf://org/name@0123")
        path = os.path.join(out, "ingot.intoto.json")
        with open(path, encoding="utf-8") as file:
            bundle = json.load(file)
        key = public_key(public)
        payload = by_cryptography(bundle["dsseEnvelope"], key)
        count("envelopes of ingot that cryptography verifies")
        envelope = Envelope.from_dict(json.loads(json.dumps(bundle["dsseEnvelope"])))
        # It demands the key's name, of which the protocol makes no use, and takes none for another one.
        nameless = SSlibKey.from_crypto(key)
        nameless.keyid = ""
        envelope.verify([nameless], 1)
        count("envelopes of ingot that securesystemslib verifies")
        for i in range(0, len(payload), 101):
            envelope.payload = payload[:i] + bytes([payload[i] ^ 1]) + payload[i + 1:]
            bundle["dsseEnvelope"]["payload"] = base64.b64encode(envelope.payload).decode()
            try:
                by_cryptography(bundle["dsseEnvelope"], key)
                sys.exit(f"FAILED: {name}: byte {i} of the statement may be another")
            except InvalidSignature:
                pass
            try:
                envelope.verify([nameless], 1)
                sys.exit(f"FAILED: {name}: byte {i} of the statement may be another")
            except VerificationError:
                count("changed statements that securesystemslib refuses")
        # Unknown fields are an error of the parser.
        statement = Statement.copy_from_pb(json_format.Parse(payload, statement_pb2.Statement()))
        statement.validate()
        expect(statement.pb.predicate_type == "https://slsa.dev/provenance/v1", statement.pb.predicate_type)
        subjects = {row.name: row.digest["sha256"] for row in statement.pb.subject}
        for file, digest in subjects.items():
            with open(os.path.join(out, file), "rb") as content:
                expect(hashlib.sha256(content.read()).hexdigest() == digest, f"the digest of {file}")
        expect(subjects.keys() == set(os.listdir(out)) - {"ingot.intoto.json"}, f"subjects: {sorted(subjects)}")
        # The same statement in an envelope of securesystemslib.
        theirs = Envelope(payload, "application/vnd.in-toto+json", {})
        theirs.sign(CryptoSigner(private_key(private), SSlibKey.from_crypto(key)))
        with open(at("theirs.json"), "w", encoding="utf-8") as file:
            json.dump(theirs.to_dict(), file)
        os.remove(path)
        run(0, ingot, "attest", "--verify", out, "--bundle", at("theirs.json"), "--key", public, "--source", example)
        run(0, ingot, "rederive", out, "--bundle", at("theirs.json"), "--key", public, "--source", example, "--all")
        count("envelopes of securesystemslib that ingot verifies")


try:
    out = at("out")
    run(0, ingot, "convert", example, out, "--to", "nvfp4", "--quiet", "--progress", "never")
    ranks = at("ranks")
    run(0, ingot, "convert", example, ranks, "--to", "bf16", "--tp", "2", "--links", "no", "--quiet", "--progress", "never")
    names = at("names")
    shutil.copytree(os.path.join(golden, "oms/model"), names)
    model_signing_form([out, ranks, names])
    provenance(out)
finally:
    shutil.rmtree(work)
for what, n in sorted(counts.items()):
    print(f"{n:5d} {what}")
print("ok")
