#!/usr/bin/env python3
"""Every link of a document leads to a file, and to a heading of it.

    links.py ROOT

Lines of Markdown end at 120 columns, except in tables, code and links. The site of mkdocs.yml has three groups, with each
page of docs/ in one of them."""
import glob
import os
import re
import sys

root = sys.argv[1]
documents = [path for pattern in ("*.md", "docs/*.md", "bench/*.md", "scripts/*/*.md") for path in glob.glob(f"{root}/{pattern}")]
faults, n_links = [], 0


def text_of(path):
    return re.sub(r"^```.*?^```", "", open(path).read(), flags=re.M | re.S)


def anchors_of(path):
    """As GitHub makes them of headings: small letters, digits, `_`, and `-` for a blank."""
    headings = re.findall(r"^#+ (.*)", text_of(path), flags=re.M)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


for document in documents:
    name = os.path.relpath(document, root)
    for target in re.findall(r"\]\(([^)]*)\)", text_of(document)):
        if "://" in target:
            continue
        n_links += 1
        path, _, anchor = target.partition("#")
        path = os.path.join(os.path.dirname(document), path) if path else document
        if not os.path.exists(path):
            faults.append(f"{name}: there is no {target}")
        elif anchor and anchor not in anchors_of(path):
            faults.append(f"{name}: there is no heading {target}")
    for line in text_of(document).splitlines():
        if len(line) > 120 and line[0] != "|" and "](" not in line:
            faults.append(f"{name}: more than 120 columns: {line[:60]}")
groups, placed = [], []
for indent, entry in re.findall(r"^( +)- (.*)$", open(f"{root}/mkdocs.yml").read(), flags=re.M):
    (groups if entry.endswith(":") else placed).append(entry)
pages = [os.path.basename(path) for path in glob.glob(f"{root}/docs/*.md")]
if len(groups) != 3:
    faults.append(f"mkdocs.yml: {len(groups)} groups of pages instead of 3")
for page in sorted(set(pages) | {name for name in placed if "/" not in name}):
    is_made = page == "options.md"  # by scripts/site_hooks.py
    if placed.count(page) != 1 or not (is_made or page in pages or os.path.exists(f"{root}/{page}")):
        faults.append(f"mkdocs.yml: {page} is in its nav {placed.count(page)} times, or does not exist")
if n_links < 100:
    faults.append(f"only {n_links} links were found: wrong ROOT?")
for fault in faults:
    print(fault)
sys.exit(1 if faults else 0)
