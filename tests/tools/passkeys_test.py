# SPDX-License-Identifier: Apache-2.0
"""usage: passkeys_test.py BENCH_PASSKEYS MODEL TEXT: a run that was stopped goes on to the answers of one that was not."""
import json
import pathlib
import subprocess
import sys
import tempfile

program, model, text = sys.argv[1:]


def run(*more):
    return subprocess.run([program, "--model", model, "--text", text, "--tokens", "1200", "--keys", "4", "--quiet",
                           "--threads", "1", *more], capture_output=True, text=True)


def answers(path):
    return [{name: value for name, value in key.items() if name != "seconds"}
            for key in json.loads(path.read_text())["keys"]]


with tempfile.TemporaryDirectory() as folder:
    whole, part = pathlib.Path(folder, "whole.json"), pathlib.Path(folder, "part.json")
    ran = run("--resume", "--json", str(whole))  # nothing to go on with: from the start
    assert ran.returncode == 0, ran.stderr
    stopped = json.loads(whole.read_text())
    stopped["keys"] = stopped["keys"][:2]
    stopped["keys"][0]["seconds"] = -1  # kept as it is: not asked for again
    part.write_text(json.dumps(stopped))
    ran = run("--resume", "--json", str(part))
    assert ran.returncode == 0, ran.stderr
    assert len(ran.stdout.splitlines()) == 4 and "2 keys were asked for before" in ran.stdout, ran.stdout
    assert len(answers(whole)) == 4 and answers(part) == answers(whole), (answers(part), answers(whole))
    gone_on = json.loads(part.read_text())
    assert gone_on["asked"] == 4 and len(gone_on["later_environments"]) == 1, gone_on
    assert gone_on["keys"][0]["seconds"] == -1, gone_on
    before = part.read_bytes()
    ran = run("--resume", "--json", str(part))  # nothing is left to ask
    assert ran.returncode == 0 and "all 4 keys" in ran.stdout and part.read_bytes() == before, ran
    for other, named in (["--seed", "2"], "key 1"), (["--window"], '"method"'), (["--memory", '{"n_mem": 96}'], '"memory"'):
        ran = run("--resume", "--json", str(part), *other)
        assert ran.returncode == 1 and named in ran.stderr and ran.stderr.count("\n") == 1, (other, ran.stderr)
        assert part.read_bytes() == before, other
    ran = run("--resume")
    assert ran.returncode == 1 and "--json" in ran.stderr, ran.stderr
