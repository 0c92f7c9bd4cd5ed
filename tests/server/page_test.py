#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The page of `episodic serve` in headless Chromium: memories, an upload, an answer with its passages.

Usage: page_test.py PROGRAM MODEL [--pictures DIR]

Drives chromedriver by its HTTP interface. Exit code 77: no Chromium or no chromedriver, nothing was checked.
--pictures writes the page in light, dark and at 400 pixels, for people to look at.
"""
import argparse
import contextlib
import pathlib
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "support"))
from browser import SKIPPED, Browser, programs  # noqa: E402

@contextlib.contextmanager
def server(program, model, memories):
    process = subprocess.Popen([program, "serve", "--model", model, "--memories", memories, "--port", "0",
                                "--parallel", "2", "--threads", "1"], stderr=subprocess.PIPE, text=True)
    try:
        for line in process.stderr:
            place = re.search(r"http://127\.0\.0\.1:\d+", line)
            if place:
                break
        yield place[0]
    finally:
        process.terminate()
        process.wait(timeout=30)


def talk(browser, place, text):
    """Makes a memory, reads a file into it, asks, looks at what was recalled."""
    browser.go(place + "/")
    browser.wait("document.getElementById('state').textContent === 'ready'", "the list of memories")
    browser.type("#name", "book")
    browser.click("#create")
    browser.wait("!document.getElementById('chosen').hidden", "the new memory")
    browser.type("#file", str(text))
    browser.wait("document.getElementById('reading').textContent.endsWith('is read')", "the end of the reading")
    browser.wait("/[1-9][0-9,]* events/.test(document.getElementById('memories').innerText)", "events")
    browser.type("#question", "The old prince said that <b>the")
    browser.click("#send")
    browser.wait("document.querySelector('details')", "the passages of an answer")
    assert browser.run("return document.getElementById('plain').checked"), "the model has no chat format"
    answer = browser.run("return document.querySelectorAll('.turn')[1].querySelector('span:not(.who)').textContent")
    assert answer.strip(), "the answer is empty"
    asked = browser.run("return document.querySelector('.turn.mine').textContent")
    assert "<b>the" in asked, f"markup in a question is no markup: {asked}"
    browser.click("summary")
    assert browser.run("return document.querySelector('mark').textContent.length > 3"), "a passage is marked"
    browser.click(".passage .link")
    browser.wait("document.querySelectorAll('.passage')[0].querySelectorAll('span').length > 0", "the text around")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program")
    parser.add_argument("model")
    parser.add_argument("--pictures", type=pathlib.Path)
    options = parser.parse_args()
    found = programs()
    if not found:
        return SKIPPED
    driver, chromium = found
    with tempfile.TemporaryDirectory() as folder:
        text = pathlib.Path(folder, "book.txt")
        text.write_text("".join(f"The old prince number {i} walked along the river and closed door {i * 7 % 31}. "
                                for i in range(400)))
        with server(options.program, options.model, folder + "/memories") as place:
            browser = Browser(driver, chromium)
            try:
                talk(browser, place, text)
                complaints = browser.complaints()
                assert not complaints, complaints
                if options.pictures:
                    options.pictures.mkdir(parents=True, exist_ok=True)
                    browser.picture(options.pictures / "light.png")
            finally:
                browser.close()
            for name, dark, width in (("dark", True, 1200), ("narrow", False, 400)):
                browser = Browser(driver, chromium, dark, width)
                try:
                    browser.show_as(width, 800, dark)
                    browser.go(place + "/")
                    browser.wait("document.querySelectorAll('.memory').length > 1", "the memories")
                    browser.run("document.querySelectorAll('.memory')[1].click()")
                    browser.click("#events")
                    browser.wait("document.querySelectorAll('.passage').length > 3", "the events")
                    over = browser.run("return document.documentElement.scrollWidth - window.innerWidth")
                    assert over <= 0, f"{name}: the page is {over} pixels wider than its window"
                    complaints = browser.complaints()
                    assert not complaints, complaints
                    if options.pictures:
                        browser.picture(options.pictures / f"{name}.png")
                finally:
                    browser.close()
    print("the page: memories, an upload, an answer, its passages; light, dark, 400 pixels")
    return 0


if __name__ == "__main__":
    sys.exit(main())
