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
SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../scripts/package.sh")
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
        subprocess.run([SCRIPT, BUILD, cls.folder, "wheel"], check=True,
                       env={**os.environ, "SOURCE_DATE_EPOCH": str(DATE)})
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


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
