"""page.py WRITER: loads the HTML report of a passing and of a failing verification in a headless Chromium, at desktop and
phone width, and proves that every section is there, that nothing is wider than the page, and that no drawing is cut off.
Exits 77 (skipped) where no Chromium runs."""
import html
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

SECTIONS = {
    "verification": ["verdict", "summary", "gates", "sides", "findings", "layers", "router", "schemes", "heatmap",
                     "histogram", "worst", "outputs"],
    "comparison": ["verdict", "summary", "figures", "roles", "layers", "heatmap", "worst", "outputs", "findings"],
}
WIDTHS = [1280, 390]
PRINTED = 2  # sheets of A4
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
# Pages of few layers and of many.
PAGES = [("passing", "6"), ("failing", "62"), ("comparison", "62")]

# A frame, because a headless window cannot be as narrow as a phone. It inherits the origin, so that the page need not
# hold a script to be measured.
MEASURE = """
function faults(frame) {
  const page = frame.contentDocument, root = page.documentElement, found = [];
  if (root.scrollWidth > frame.clientWidth) found.push(`the page is ${root.scrollWidth} wide`);
  for (const box of page.querySelectorAll("body *")) {
    if (box.closest(".scroll") && !box.classList.contains("scroll")) continue;
    if (box.getBoundingClientRect().right > frame.clientWidth + 0.5) found.push(`${box.tagName} ${box.className} sticks out`);
  }
  for (const svg of page.querySelectorAll("svg")) {
    const frame_of = svg.getBoundingClientRect();
    for (const text of svg.querySelectorAll("text")) {
      const box = text.getBoundingClientRect();
      if (box.left < frame_of.left - 1 || box.right > frame_of.right + 1 || box.top < frame_of.top - 1 ||
          box.bottom > frame_of.bottom + 1) found.push(`"${text.textContent}" is cut off`);
    }
  }
  return found.slice(0, 10);
}
window.onload = () => {
  const result = [...document.querySelectorAll("iframe")].map(frame => ({
    name: frame.name, width: frame.contentWindow.innerWidth, faults: faults(frame),
    heights: Object.fromEntries([...frame.contentDocument.querySelectorAll("[id]")].map(
        element => [element.id, element.getBoundingClientRect().height]))}));
  const out = document.createElement("pre");
  out.id = "result";
  out.textContent = JSON.stringify(result);
  document.body.append(out);
};
"""


def chromium():
    for name in ("chromium", "chromium-browser", "google-chrome"):
        path = shutil.which(name)
        if path is None:
            continue
        # Ubuntu's only asks for snap, and some containers let none start.
        try:
            answer = subprocess.run([path, *FLAGS, "--dump-dom", "data:text/html,<p>runs</p>"], capture_output=True,
                                    text=True, timeout=60, check=False)
        except (subprocess.TimeoutExpired, OSError):
            continue
        if "<p>runs</p>" in answer.stdout:
            return path
    return None


def measure(browser, folder, pages):
    frames = "".join(
        f'<iframe name="{name} {width}" width="{width}" height="900" style="border:0" srcdoc="{html.escape(page)}"></iframe>'
        for name, page in pages for width in WIDTHS)
    wrapper = os.path.join(folder, "wrapper.html")
    with open(wrapper, "w", encoding="utf-8") as file:
        file.write(f'<!DOCTYPE html><meta charset="utf-8"><body>{frames}<script>{MEASURE}</script></body>')
    run = subprocess.run(
        [browser, *FLAGS, f"--user-data-dir={folder}/profile", "--window-size=1400,900", "--virtual-time-budget=20000",
         "--dump-dom", f"file://{wrapper}"],
        capture_output=True, text=True, timeout=240, check=False)
    found = re.search(r'<pre id="result">(.*?)</pre>', run.stdout, re.DOTALL)
    if found is None:
        sys.exit(f"the browser measured nothing (exit {run.returncode}): {run.stderr[-2000:]}")
    return json.loads(html.unescape(found.group(1)))


def sheets(browser, folder, page):
    """How many pages the page is on paper."""
    html_path, pdf_path = os.path.join(folder, "print.html"), os.path.join(folder, "print.pdf")
    with open(html_path, "w", encoding="utf-8") as file:
        file.write(page)
    subprocess.run([browser, *FLAGS, f"--user-data-dir={folder}/profile", "--no-pdf-header-footer",
                    f"--print-to-pdf={pdf_path}", f"file://{html_path}"], capture_output=True, timeout=240, check=False)
    with open(pdf_path, "rb") as file:
        return len(re.findall(rb"/Type\s*/Page\b", file.read()))


def main():
    browser = chromium()
    if browser is None:
        print("skipped: no Chromium runs here")
        return 77
    failures = []
    with tempfile.TemporaryDirectory(prefix="ingot-test-") as folder:
        pages = []
        for kind, layers in PAGES:
            path = os.path.join(folder, "page.html")
            subprocess.run([sys.argv[1], path, kind, layers], check=True)
            with open(path, encoding="utf-8") as file:
                pages.append((kind, file.read()))
        results = measure(browser, folder, pages)
        for kind, page in pages:
            printed = sheets(browser, folder, page)
            if not 1 <= printed <= PRINTED:
                failures.append(f"{kind}: prints on {printed} sheets")
    if len(results) != len(PAGES) * len(WIDTHS):
        failures.append(f"{len(results)} pages were measured")
    for result in results:
        failures += [f"{result['name']}: {fault}" for fault in result["faults"]]
        if not result["name"].endswith(f" {result['width']}"):
            failures.append(f"{result['name']}: was shown {result['width']} wide")
        kind = "comparison" if result["name"].startswith("comparison") else "verification"
        for section in SECTIONS[kind]:
            if result["heights"].get(section, 0) < 40:
                failures.append(f"{result['name']}: section {section} is not there")
    print("\n".join(failures) or f"{len(results)} views hold every section, and nothing sticks out")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
