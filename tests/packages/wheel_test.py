#!/usr/bin/env python3
"""The wheel that scripts/package.sh makes. Usage: wheel_test.py BUILD CHECKPOINT"""

import base64
import email
import glob
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import zipfile

BUILD, EXAMPLE = (os.path.abspath(path) for path in sys.argv[1:3])
SOURCE = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../.."))
DATE = 1700000000
# Libraries that every Linux with this glibc has: glibc, and the runtime of GCC that belongs to the process.
OF_THE_SYSTEM = {"libc.so.6", "libm.so.6", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1", "libstdc++.so.6",
                 "libgcc_s.so.1"}


def dynamic(path):
    """{kind of entry: [values]}"""
    told = subprocess.run(["readelf", "-dW", path], check=True, text=True, stdout=subprocess.PIPE).stdout
    entries = {}
    for kind, value in re.findall(r"\((NEEDED|SONAME|RPATH|RUNPATH)\).*\[(.*)\]", told):
        entries.setdefault(kind, []).append(value)
    return entries


class WheelTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp()
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.clone = tempfile.mkdtemp()
        cls.addClassCleanup(shutil.rmtree, cls.clone)
        # A clone that is built already, for the backend of `pip install .`.
        shutil.copytree(f"{SOURCE}/scripts", f"{cls.clone}/scripts")
        for name in ("pyproject.toml", "LICENSE", "README.md", "CHANGELOG.md", "SECURITY.md", "python"):
            os.symlink(f"{SOURCE}/{name}", f"{cls.clone}/{name}")
        os.mkdir(f"{cls.clone}/build")
        os.symlink(BUILD, f"{cls.clone}/build/release")
        if os.path.exists(f"{SOURCE}/build/aarch64-root"):
            os.symlink(f"{SOURCE}/build/aarch64-root", f"{cls.clone}/build/aarch64-root")
        with open(f"{cls.clone}/scripts/build.sh", "w", encoding="utf-8") as file:
            file.write('#!/bin/sh\necho "$@" > built\n')
        cls.said = cls.backend(f"print('wheel', backend.build_wheel({cls.folder!r}))", check=True)
        (cls.wheel,) = os.listdir(cls.folder)
        os.chdir(cls.folder)
        with zipfile.ZipFile(cls.wheel) as archive:
            cls.entries = {entry.filename: entry for entry in archive.infolist()}
            archive.extractall(cls.folder)
        for name, entry in cls.entries.items():
            os.chmod(name, entry.external_attr >> 16)
        (cls.info,) = glob.glob("*.dist-info")
        with open(f"{cls.info}/sboms/ingot.spdx.json", encoding="utf-8") as file:
            cls.sbom = json.load(file)

    @classmethod
    def backend(cls, code, path=os.environ["PATH"], check=False):
        """Runs code with the backend of that clone."""
        done = subprocess.run([sys.executable, "-c", f"import backend; {code}"], check=check, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              env={**os.environ, "PATH": path, "SOURCE_DATE_EPOCH": str(DATE),
                                   "PYTHONPATH": f"{cls.clone}/scripts/packages", "PYTHONDONTWRITEBYTECODE": "1"})
        return done.stdout

    def read(self, name):
        with open(f"{self.info}/{name}", encoding="utf-8") as file:
            return file.read()

    def test_name_and_tag_agree(self):
        name = re.fullmatch(r"(ingot_convert-[0-9.]+)-(py3-none-manylinux_2_\d+_(x86_64|aarch64))\.whl", self.wheel)
        self.assertTrue(name, self.wheel)
        self.assertEqual(self.info, f"{name[1]}.dist-info")
        self.assertIn(f"\nTag: {name[2]}\n", self.read("WHEEL"))
        self.assertLess(os.path.getsize(self.wheel), 30e6)

    def test_the_record_has_every_file(self):
        rows = [line.rsplit(",", 2) for line in self.read("RECORD").splitlines()]
        self.assertEqual([row[0] for row in rows], list(self.entries))
        for name, digest, size in rows[:-1]:
            with open(name, "rb") as file:
                data = file.read()
            expected = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            self.assertEqual(digest, f"sha256={expected}")
            self.assertEqual(int(size), len(data))

    def test_pip_builds_it_in_a_clone(self):
        with open(f"{self.clone}/built", encoding="utf-8") as file:
            self.assertEqual(file.read(), "release ingot_cli ingot_shared\n")
        self.assertIn(f"wheel {self.wheel}\n", self.said)
        with open(f"{SOURCE}/pyproject.toml", encoding="utf-8") as file:
            self.assertRegex(file.read(), r'build-backend = "backend"\nbackend-path = \["scripts/packages"\]')

    def test_pip_says_what_to_do_where_it_cannot(self):
        said = self.backend("backend.build_wheel('.')", path="/nowhere").splitlines()
        self.assertRegex(said[-1], "^error: there is no cmake: run scripts/deps.sh")
        self.assertEqual(len(said), 1)

    def test_it_is_told_with_its_command(self):
        self.assertRegex(self.said, rf"{self.wheel} \(\d+(\.\d+)?M\): pip install \S*{self.wheel}\n")

    def test_its_metadata_is_whole(self):
        metadata = email.message_from_string(self.read("METADATA"))
        self.assertEqual(metadata["Description-Content-Type"], "text/markdown")
        self.assertTrue(metadata.get_payload().lstrip().startswith("# ingot"))
        self.assertNotRegex(metadata.get_payload(), r"\]\((?!http)")
        self.assertGreater(len(metadata.get_all("Classifier")), 8)
        for key in ("Summary", "Keywords", "Author", "Requires-Python", "Provides-Extra"):
            self.assertTrue(metadata[key], key)

    def test_it_has_what_an_environment_shares(self):
        shared = glob.glob("*.data/data/share/")[0]
        wanted = ["ingot/schema/verify.json", "ingot/slurm/convert.sbatch", "ingot/kubernetes/convert.yaml",
                  "ingot/recipes/mtp-kept.yaml"]
        if "x86_64" in self.wheel or os.uname().machine != "x86_64":
            wanted += ["man/man1/ingot-convert.1", "bash-completion/completions/ingot"]
        for name in wanted:
            self.assertTrue(os.path.exists(shared + name), name)

    def test_its_dates_are_those_told(self):
        self.assertEqual({entry.date_time for entry in self.entries.values()}, {(2023, 11, 14, 22, 13, 20)})

    def test_every_library_is_inside(self):
        libraries = os.listdir("ingot/lib")
        for name in libraries:
            entries = dynamic(f"ingot/lib/{name}")
            self.assertEqual(entries["SONAME"], [name])
            self.assertLessEqual(set(entries.get("NEEDED", [])), OF_THE_SYSTEM | set(libraries))
            self.assertEqual(entries["RUNPATH"], ["$ORIGIN"])
        program = dynamic("ingot/bin/ingot")
        self.assertLessEqual(set(program["NEEDED"]), OF_THE_SYSTEM | set(libraries))
        self.assertEqual(program["RUNPATH"], ["$ORIGIN/../lib"])

    def test_it_has_no_symbol_newer_than_its_tag(self):
        tag = tuple(map(int, re.search(r"manylinux_(\d+)_(\d+)", self.wheel).groups()))
        for path in ["ingot/bin/ingot", *glob.glob("ingot/lib/*")]:
            told = subprocess.run(["readelf", "-VW", path], check=True, text=True, stdout=subprocess.PIPE).stdout
            for major, minor in re.findall(r"Name: GLIBC_(\d+)\.(\d+)", told):
                self.assertLessEqual((int(major), int(minor)), tag, path)

    def test_the_sbom_names_everything_inside(self):
        packages = {package["SPDXID"]: package for package in self.sbom["packages"]}
        self.assertEqual(len(packages), len(self.sbom["packages"]))
        inside, relations = [], set()
        for relation in self.sbom["relationships"]:
            self.assertIn(relation["spdxElementId"], {"SPDXRef-DOCUMENT", *packages})
            other = packages[relation["relatedSpdxElement"]]
            relations.add((relation["relationshipType"], other["name"]))
            if relation["relationshipType"] == "CONTAINS":
                inside += other["comment"].split(", ")
        own = ["ingot/bin/ingot", "ingot/lib/libingot.so.1"]
        self.assertEqual(sorted(own + inside), sorted(["ingot/bin/ingot", *glob.glob("ingot/lib/*")]))
        self.assertLessEqual({("DESCRIBES", "ingot"), ("STATIC_LINK", "nlohmann-json3-dev"),
                              ("STATIC_LINK", "libcli11-dev"), ("STATIC_LINK", "libhwy-dev")}, relations)
        self.assertNotIn(("STATIC_LINK", "libgtest-dev"), relations)
        self.assertEqual(self.sbom["creationInfo"]["created"], "2023-11-14T22:13:20Z")
        for package in packages.values():
            self.assertTrue(package["versionInfo"] and package["licenseDeclared"] and package["downloadLocation"])

    def test_all_licences_have_their_texts(self):
        metadata = email.message_from_string(self.read("METADATA"))
        texts = set(metadata.get_all("License-File"))
        self.assertEqual(texts, set(os.listdir(f"{self.info}/licenses")))
        self.assertEqual(metadata["License-Expression"], "Apache-2.0")
        stated = {row["licenseId"]: row["extractedText"] for row in self.sbom["hasExtractedLicensingInfos"]}
        used = {package["licenseDeclared"] for package in self.sbom["packages"]} - {"Apache-2.0"}
        self.assertEqual(used, set(stated))
        names = {row["licenseId"]: row["name"] for row in self.sbom["hasExtractedLicensingInfos"]}
        self.assertEqual((names["LicenseRef-onetbb"], names["LicenseRef-cli11"]), ("Apache-2.0", "BSD-3-clause"))
        for licence, text in stated.items():
            self.assertEqual(self.read(f"licenses/{licence.removeprefix('LicenseRef-')}.txt"), text)
            for name in re.findall(r"common-licenses/(Apache-2\.0|GPL-\d)", text):
                self.assertIn(f"{name}.txt", texts)

    def test_it_runs_with_its_own_libraries(self):
        if "x86_64" not in self.wheel and os.uname().machine == "x86_64":
            self.skipTest("the wheel is for another processor")
        environment = {**os.environ, "PYTHONPATH": self.folder, "PYTHONDONTWRITEBYTECODE": "1"}
        environment.pop("INGOT_LIBRARY", None)
        code = f"import ingot; print(len(ingot.open({EXAMPLE!r})), ingot.version(), open('/proc/self/maps').read())"
        told = subprocess.run([sys.executable, "-c", code], check=True, text=True, env=environment,
                              stdout=subprocess.PIPE).stdout
        self.assertRegex(told, r"^361 ")
        libraries = set(re.findall(r"ingot/lib/(\S+)", told))
        self.assertGreaterEqual(libraries, {"libingot.so.1", "libtbb-ingot.so.12", "libzstd-ingot.so.1"})
        self.assertNotRegex(told, r"/usr/lib/\S*/lib(tbb|hwy|onig|yaml-cpp)\.so")
        code = "from ingot._program import main; main()"
        version = subprocess.run([sys.executable, "-c", code, "--version"], check=True, text=True, env=environment,
                                 stdout=subprocess.PIPE).stdout
        rows = ("commit +\\S", "compiler +\\w+ \\d", "SIMD targets +\\w")
        for row in (rf"^ingot {told.split()[1]}\n", *(rf"\n  {row}" for row in rows)):
            self.assertRegex(version, row)


class InstallTest(unittest.TestCase):
    def test_share_has_what_a_user_looks_for(self):
        with tempfile.TemporaryDirectory() as prefix:
            subprocess.run(["cmake", "--install", BUILD, "--prefix", prefix], check=True, stdout=subprocess.DEVNULL)
            for name in ("c/convert.c", "ingot.pc", "kubernetes/convert.yaml", "recipes/mtp-kept.yaml",
                         "schema/verify.json", "slurm/convert.sbatch"):
                self.assertTrue(os.path.exists(f"{prefix}/share/ingot/{name}"), name)
            for folder in ("share/ingot", "lib/pkgconfig"):
                told = subprocess.run(["pkg-config", "--cflags", "--libs", "ingot"], check=True, text=True,
                                      stdout=subprocess.PIPE,
                                      env={**os.environ, "PKG_CONFIG_PATH": f"{prefix}/{folder}"}).stdout.split()
                header, library = (os.path.realpath(word[2:]) for word in told[:2])
                self.assertTrue(os.path.exists(f"{header}/ingot/ingot.h"), told)
                self.assertTrue(os.path.exists(f"{library}/libingot.so"), told)
                self.assertEqual(told[2], "-lingot")


class DockerfileTest(unittest.TestCase):
    def test_its_steps_exist(self):
        with open(f"{SOURCE}/Dockerfile", encoding="utf-8") as file:
            text = file.read()
        self.assertEqual(len(re.findall(r"(?m)^FROM debian:12", text)), 2)
        for script in re.findall(r"scripts/\w+\.sh", text):
            self.assertTrue(os.access(f"{SOURCE}/{script}", os.X_OK), script)
        with open(f"{SOURCE}/scripts/deps.sh", encoding="utf-8") as file:
            self.assertIn("  --build) ", file.read())
        self.assertIn("deps.sh --build", text)

    def test_it_has_no_finding_of_hadolint(self):
        if not shutil.which("hadolint"):
            self.skipTest("there is no hadolint")
        done = subprocess.run(["hadolint", f"{SOURCE}/Dockerfile"], text=True, stdout=subprocess.PIPE)
        self.assertEqual((done.returncode, done.stdout), (0, ""))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
