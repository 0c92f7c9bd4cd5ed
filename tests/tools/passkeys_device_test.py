# SPDX-License-Identifier: Apache-2.0
"""usage: passkeys_device_test.py BENCH_PASSKEYS MODEL TEXT: on a device, with and without memories in folders."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

program, model, text = sys.argv[1:]
TOKENS, KEYS = ("400", "2") if os.environ.get("EPISODIC_ALL_CASES") == "1" else ("320", "1")

with tempfile.TemporaryDirectory() as folder:
    kept = pathlib.Path(folder, "kept")

    def keys(name, *more):
        path = pathlib.Path(folder, name)
        ran = subprocess.run([program, "--device", "cuda", "--model", model, "--text", text, "--tokens", TOKENS, "--keys", KEYS,
                              "--quiet", "--threads", "1", "--json", str(path), *more], capture_output=True, text=True)
        assert ran.returncode == 0, ran.stderr
        result = json.loads(path.read_text())
        assert result["environment"]["device"] == "emulated device", result["environment"]
        return [(key["key"], key["answer"], key["recalled_in_layers"], key["tokens"]) for key in result["keys"]]

    at_once = keys("at_once.json")
    assert len(at_once) == int(KEYS) and any(layers for _, _, layers, _ in at_once), at_once
    in_folders = keys("in_folders.json", "--resume", "--memory-dir", str(kept))
    assert in_folders == at_once, (in_folders, at_once)
    assert not list(kept.iterdir())
