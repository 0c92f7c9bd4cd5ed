# SPDX-License-Identifier: Apache-2.0
"""What the tests of clients in Python share: the program served on a small chat model, and a skip in sight."""
import contextlib
import importlib
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
KEY = "key-of-the-test"
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content | trim }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


def skip(why):
    print(f"EPISODIC_SKIP: {why}")
    sys.exit(0)


def client_library(name):
    """A package that some machines have, also in the folder EPISODIC_PYTHON_CLIENTS (pip install --target)."""
    sys.path[:0] = [path for path in os.environ.get("EPISODIC_PYTHON_CLIENTS", "").split(":") if path]
    try:
        return importlib.import_module(name)
    except ImportError as error:
        skip(f"{name} is not installed ({error})")


def make_chat_model(folder):
    """The shipped model with a chat format."""
    folder.mkdir()
    for path in (ROOT / "models/recall-2m6").iterdir():
        if path.name != "tokenizer_config.json":
            (folder / path.name).symlink_to(path)
    config = json.loads((ROOT / "models/recall-2m6/tokenizer_config.json").read_text())
    config["chat_template"] = TEMPLATE
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def health(url):
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=60) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def asked(url, body=None):
    """What the server says to a request, with the key."""
    request = urllib.request.Request(
        url, json.dumps(body).encode() if body is not None else None,
        {"x-api-key": KEY, "Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


@contextlib.contextmanager
def serving(program, *flags):
    """The address of a server that is ready. It must end with success when it is asked to."""
    if not pathlib.Path(program).exists():
        skip(f"{program} is not built")
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        model = make_chat_model(folder / "tiny")
        log = folder / "log"
        command = [program, "serve", "--model", model, "--port", "0", "--threads", "1", "--max-new", "12"]
        with log.open("w") as err:
            process = subprocess.Popen(
                [*command, "--memories", folder / "memories", *flags], stderr=err, stdin=subprocess.DEVNULL,
                env={**os.environ, "EPISODIC_API_KEY": KEY, "OMP_WAIT_POLICY": "passive"})
        try:
            end = time.monotonic() + 120
            url = None
            while not url or health(url) != 200:
                said = re.search(r"http://127\.0\.0\.1:\d+", log.read_text())
                url = said and said.group()
                if process.poll() is not None or time.monotonic() > end:
                    raise AssertionError(f"the server does not answer: {log.read_text()}")
                time.sleep(0.05)
            yield url
            process.terminate()
            assert process.wait(60) == 0, log.read_text()
        finally:
            process.kill()
            process.wait()
