#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The pages that programs write, in headless Chromium as on a phone: demo, segment, inspect.

Usage: pages_test.py PROGRAM MODEL [--pictures DIR]

At 400 and 360 pixels, light and dark: nothing but a table or a drawing in a box of its own is wider than the window,
text has 14 pixels and stands out from what is behind it, what is tapped has 40, and rows are no taller than their text.
Exit code 77: no Chromium or no chromedriver, nothing was checked. --pictures writes what was seen, for people to look at.
"""
import argparse
import pathlib
import random
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "support"))
from browser import SKIPPED, Browser, programs  # noqa: E402

WIDTHS = (400, 360)
SMALLEST_LETTERS = 14  # pixels
SMALLEST_TARGET = 40
TALLEST_ROW = 60  # of one line, of cells without text of the book
LEAST_CONTRAST = 4.5  # WCAG 2, of text

FAULTS = r"""
const smallest = arguments[0], target = arguments[1], row = arguments[2], contrast = arguments[3];
const faults = new Set(), width = window.innerWidth;
const name = e => e.tagName.toLowerCase() + (e.getAttribute('class') ? '.' + e.getAttribute('class') : '');
const scroller = e => e.closest('.wide');

// the page and what is in it
const over = document.documentElement.scrollWidth - width;
if (over > 0) faults.add(`the page is ${over} pixels wider than its window`);
for (const e of document.body.querySelectorAll('*')) {
  const box = e.getBoundingClientRect();
  if (box.width > 0 && box.right > width + 1 && !scroller(e)) faults.add(`${name(e)} ends at ${box.right}`);
}
for (const e of document.body.querySelectorAll('*')) {
  const scrolls = ['auto', 'scroll'].includes(getComputedStyle(e).overflowX);
  if (scrolls && !e.querySelector('table, svg, code, pre')) faults.add(`${name(e)} scrolls without a table or drawing`);
}

// colours, as [red, green, blue, alpha] of 0 to 1
const parsed = text => {
  const n = text.match(/[\d.]+(e-?\d+)?/g).map(Number), unit = text.startsWith('color(') ? 1 : 255;
  return [n[0] / unit, n[1] / unit, n[2] / unit, n.length > 3 ? n[3] : 1];
};
const onto = (top, below) => [0, 1, 2].map(i => top[i] * top[3] + below[i] * (1 - top[3])).concat(1);
const behind = e => {
  if (!e) return parsed(getComputedStyle(document.body).backgroundColor);
  const own = parsed(getComputedStyle(e).backgroundColor);
  return own[3] === 1 ? own : onto(own, behind(e.parentElement));
};
const light = c => {
  const [r, g, b] = c.map(x => x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const ratio = (a, b) => (Math.max(light(a), light(b)) + 0.05) / (Math.min(light(a), light(b)) + 0.05);

// letters
const words = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
for (let node = words.nextNode(); node; node = words.nextNode()) {
  const e = node.parentElement;
  if (!node.textContent.trim() || e.closest('title, style') || !e.getClientRects().length) continue;
  const style = getComputedStyle(e), drawn = e.ownerSVGElement;
  const size = parseFloat(style.fontSize) * (drawn ? e.getScreenCTM().a : 1);
  if (size < smallest - 0.01) faults.add(`${name(e)} has letters of ${size.toFixed(1)} pixels`);
  if (drawn) continue;  // may lie on blocks of any colour
  const ground = behind(e), seen = ratio(onto(parsed(style.color), ground), ground);
  if (seen < contrast) faults.add(`${name(e)}: contrast ${seen.toFixed(2)}`);
}

// what is tapped, and rows
for (const e of document.body.querySelectorAll('a, summary, button, input')) {
  const height = e.getBoundingClientRect().height;
  if (height > 0 && height < target) faults.add(`${name(e)} is ${height.toFixed(0)} pixels to tap`);
}
for (const e of document.body.querySelectorAll('tr')) {
  const height = e.getBoundingClientRect().height;
  if (!e.querySelector('.text') && height > row) faults.add(`a row of ${height.toFixed(0)} pixels`);
}
return [...faults].slice(0, 20);
"""


def story(seed):
    """A text of some thousand tokens, with words that no line breaks."""
    draw = random.Random(seed)
    words = ("river door king lantern walked along the old prince and seven sisters of Babylon counted stones quietly "
             "beneath mountains until morning came again with rain").split()
    text = "x" * 300 + "\n" + " ".join(["https://example.org/" + "a-long-path/" * 20])
    for i in range(160):
        sentence = " ".join(draw.choice(words) for _ in range(draw.randint(6, 16))).capitalize()
        text += sentence + (". " if i % 7 else ".\n\n")
    return text


def written(program, model, folder):
    """Every page that a program writes."""
    text = folder / "a story with a long name, to see how a heading of many words breaks on a phone.txt"
    text.write_text(story(3))
    memory = folder / "story.mem"
    quiet = ["--threads", "1", "--quiet"]

    def run(*arguments):
        done = subprocess.run([program, *map(str, arguments), *quiet], capture_output=True, text=True)
        assert done.returncode == 0, f"{arguments}: {done.stderr}"

    pages = {name: folder / f"{name}.html" for name in ("demo", "segment", "heads", "inspect", "no-texts")}
    run("demo", "--tokens", "3000", "--facts", "4", "--text", text, "--html", pages["demo"])
    run("segment", "--model", model, "--text", text, "--html", pages["segment"], "--json", folder / "events.json")
    run("segment", "--model", model, "--text", text, "--memory", '{"scope": "head"}', "--html", pages["heads"],
        "--json", folder / "heads.json")
    run("ingest", "--model", model, "--text", text, "--memory-dir", memory)
    run("ask", "--model", model, "--memory-dir", memory, "--prompt", "The old prince", "--max-new", "4", "--keep")
    run("inspect", memory, "--model", model, "--html", pages["inspect"])
    run("inspect", memory, "--html", pages["no-texts"])
    return pages


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program")
    parser.add_argument("model")
    parser.add_argument("--pictures", type=pathlib.Path)
    options = parser.parse_args()
    found = programs()
    if not found:
        return SKIPPED
    if options.pictures:
        options.pictures.mkdir(parents=True, exist_ok=True)
    faults = []
    with tempfile.TemporaryDirectory() as folder:
        pages = written(options.program, options.model, pathlib.Path(folder))
        browser = Browser(*found)
        try:
            for name, path in pages.items():
                for width in WIDTHS:
                    for dark in (False, True):
                        browser.show_as(width, 800, dark, mobile=True)
                        browser.go(path.as_uri())
                        browser.run("document.querySelectorAll('details').forEach(d => d.open = true)")
                        seen = browser.run("return window.innerWidth")
                        where = f"{name}, {width} pixels, {'dark' if dark else 'light'}"
                        if seen != width:  # what is too wide makes a phone zoom out
                            faults.append(f"{where}: the window shows {seen} pixels")
                        found_here = browser.ask("POST", "/execute/sync", {"script": FAULTS, "args": [
                            SMALLEST_LETTERS, SMALLEST_TARGET, TALLEST_ROW, LEAST_CONTRAST]})
                        faults += [f"{where}: {fault}" for fault in found_here]
                        if options.pictures:
                            browser.picture(options.pictures / f"{name}-{width}-{'dark' if dark else 'light'}.png")
            complaints = browser.complaints()
            assert not complaints, complaints
        finally:
            browser.close()
    for fault in faults:
        print(fault)
    if not faults:
        print(f"{len(pages)} pages at {WIDTHS} pixels, light and dark: kept")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
