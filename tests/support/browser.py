# SPDX-License-Identifier: Apache-2.0
"""Headless Chromium for tests of pages, by chromedriver's HTTP interface."""
import base64
import contextlib
import json
import re
import shutil
import subprocess
import time
import urllib.error
import urllib.request

SKIPPED = 77


def programs():
    """(chromedriver, chromium), or nothing, said in sight, where one of them is not there."""
    driver = shutil.which("chromedriver")
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if driver and chromium:
        return driver, chromium
    print("EPISODIC_SKIP: no chromium or no chromedriver (Debian: chromium, chromium-driver)")
    return None


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

    def show_as(self, width, height, dark=False, mobile=False):
        """The window's size from here on, and what the reader prefers."""
        self.ask("POST", "/window/rect", {"width": width, "height": height})
        self.ask("POST", "/goog/cdp/execute", {"cmd": "Emulation.setEmulatedMedia", "params": {
            "features": [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]}})
        self.ask("POST", "/goog/cdp/execute", {"cmd": "Emulation.setDeviceMetricsOverride", "params": {
            "width": width, "height": height, "deviceScaleFactor": 1, "mobile": mobile}})

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
