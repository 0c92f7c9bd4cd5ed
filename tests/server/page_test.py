#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The page of `episodic serve` in headless Chromium: memories, an upload, an answer with its passages.

Usage: page_test.py PROGRAM MODEL [--pictures DIR]

Drives chromedriver by its HTTP interface. Exit code 77: no Chromium or no chromedriver, nothing was checked.
--pictures writes the page in light, dark and at 400 pixels, for people to look at.
"""
import argparse
import base64
import contextlib
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"


class Browser:
    """One session of chromedriver."""

    def __init__(self, driver, chromium, dark=False, width=1200):
        self.process = subprocess.Popen([driver, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                        text=True)
        try:
            self.open(chromium, dark, width)
        except BaseException:
            self.close()
            raise

    def open(self, chromium, dark, width):
        for line in self.process.stdout:
            port = re.search(r"successfully on port (\d+)", line)
            if port:
                break
        self.base = f"http://127.0.0.1:{port[1]}/session"
        arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                     f"--window-size={width},900"]
        if dark:
            arguments.append("--force-dark-mode")
        options = {"binary": chromium, "args": arguments}
        opened = self.ask("POST", "", {"capabilities": {"alwaysMatch": {
            "browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}}})
        self.base += "/" + opened["sessionId"]

    def ask(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.base + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=120) as response:
                return json.load(response)["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{method} {path}: {error.read().decode()[:500]}") from error

    def go(self, url):
        self.ask("POST", "/url", {"url": url})

    def run(self, script):
        return self.ask("POST", "/execute/sync", {"script": script, "args": []})

    def wait(self, script, what):
        end = time.time() + 120
        while time.time() < end:
            value = self.run("return " + script)
            if value:
                return value
            time.sleep(0.1)
        raise AssertionError(f"{what} did not come; the page says: {self.run('return document.body.innerText')}")

    def find(self, css):
        return self.ask("POST", "/element", {"using": "css selector", "value": css})[ELEMENT]

    def click(self, css):
        self.ask("POST", f"/element/{self.find(css)}/click", {})

    def type(self, css, text):
        self.ask("POST", f"/element/{self.find(css)}/value", {"text": text})

    def picture(self, path):
        path.write_bytes(base64.b64decode(self.ask("GET", "/screenshot")))

    def complaints(self):
        return [entry["message"] for entry in self.ask("POST", "/se/log", {"type": "browser"})
                if entry["level"] == "SEVERE" and "Failed to load resource" not in entry["message"]]

    def close(self):
        with contextlib.suppress(urllib.error.URLError, ConnectionError, AssertionError, AttributeError):
            self.ask("DELETE", "")
        self.process.terminate()
        self.process.wait()


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
    driver = shutil.which("chromedriver")
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if not driver or not chromium:
        print("EPISODIC_SKIP: no chromium or no chromedriver (Debian: chromium, chromium-driver)")
        return 77
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
                    browser.ask("POST", "/window/rect", {"width": width, "height": 900})
                    if dark:
                        browser.ask("POST", "/goog/cdp/execute", {"cmd": "Emulation.setEmulatedMedia", "params": {
                            "features": [{"name": "prefers-color-scheme", "value": "dark"}]}})
                    else:
                        browser.ask("POST", "/goog/cdp/execute", {"cmd": "Emulation.setDeviceMetricsOverride", "params": {
                            "width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}})
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
