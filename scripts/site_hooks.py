"""Hooks of mkdocs.yml: pages that lie outside docs/ are part of the site, and links lead to where pages are in it. A link
to any other file of the repository becomes its words."""

import os
import pathlib
import re

from mkdocs.structure.files import File

ROOT = pathlib.Path(__file__).resolve().parent.parent
OUTSIDE = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "bench/README.md")
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")


def on_files(files, config):
    for name in OUTSIDE:
        files.append(File(name, str(ROOT), config["site_dir"], config["use_directory_urls"]))
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
