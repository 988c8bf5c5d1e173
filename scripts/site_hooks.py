"""Hooks of mkdocs.yml: pages that lie outside docs/ are part of the site, and links lead to where pages are in it. A link
to any other file of the repository becomes its words. The page of all options is made by the program: that of INGOT, of
build/release, or on the path."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
OUTSIDE = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "bench/README.md")
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")


def options_page(program):
    """The options of all commands, a table for each; without a program the command that prints them."""
    page = "# Options\n\n`ingot list options` prints all options of all commands, `ingot list options convert` those of one.\n"
    if program is None:
        return page
    told = subprocess.run([program, "list", "options", "--json"], check=True, stdout=subprocess.PIPE).stdout
    for command in dict.fromkeys(row["command"] for row in json.loads(told)["options"]):
        rows = subprocess.run([program, "list", "options", command, "--markdown"], check=True, text=True,
                              stdout=subprocess.PIPE).stdout.splitlines(keepends=True)
        # A word for a value of another command may be this one's name.
        page += f"\n## {command}\n\n" + "".join(
            row for number, row in enumerate(rows) if number < 2 or f"` | {command} | " in row)
    return page


def on_files(files, config):
    from mkdocs.structure.files import File

    for name in OUTSIDE:
        files.append(File(name, str(ROOT), config["site_dir"], config["use_directory_urls"]))
    built = ROOT / "build/release/cli/ingot"
    program = os.environ.get("INGOT") or (str(built) if built.exists() else shutil.which("ingot"))
    config["made"] = tempfile.TemporaryDirectory()  # as long as the site is made
    pathlib.Path(config["made"].name, "options.md").write_text(options_page(program))
    files.append(File("options.md", config["made"].name, config["site_dir"], config["use_directory_urls"]))
    return files


def on_page_markdown(markdown, page, config, files):
    place = page.file.src_uri
    here = os.path.dirname(place if place in OUTSIDE else f"docs/{place}")

    def led(match):
        mark, words, target = match.groups()
        path, _, anchor = target.partition("#")
        if "://" in target or not path:
            return match[0]
        path = os.path.normpath(os.path.join(here, path))
        path = path if path in OUTSIDE else path.removeprefix("docs/") if path.startswith("docs/") else None
        if path is None or files.get_file_from_path(path) is None:
            return words
        path = os.path.relpath(path, os.path.dirname(place) or ".")
        return f"{mark}[{words}]({path}{'#' + anchor if anchor else ''})"

    return LINK.sub(led, markdown)
