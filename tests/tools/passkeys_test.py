# SPDX-License-Identifier: Apache-2.0
"""usage: passkeys_test.py BENCH_PASSKEYS MODEL TEXT: a run that was stopped goes on to the answers of one that was not."""
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

program, model, text = sys.argv[1:]


def command(*more):
    return [program, "--model", model, "--text", text, "--tokens", "1200", "--keys", "4", "--quiet", "--threads", "1", *more]


def run(*more):
    return subprocess.run(command(*more), capture_output=True, text=True)


def answers(path):
    return [{name: value for name, value in key.items() if name != "seconds"}
            for key in json.loads(path.read_text())["keys"]]


def committed(kept):
    """Whether a memory there holds more than none: it was committed since it was made."""
    try:
        return any('"generation": 1,' not in path.read_text() for path in kept.glob("*/manifest.json"))
    except FileNotFoundError:  # its key was asked for just now
        return False


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

    # in folders, killed as soon as something is committed: the same answers
    kept, apart = pathlib.Path(folder, "kept"), pathlib.Path(folder, "apart.json")
    arguments = "--resume", "--memory-dir", str(kept), "--json", str(apart)
    for _ in range(20):  # until it was caught within a text
        apart.unlink(missing_ok=True)
        killed = subprocess.Popen(command(*arguments), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while killed.poll() is None and not committed(kept):
            time.sleep(0.001)
        killed.kill()
        killed.wait()
        if committed(kept):
            break
        shutil.rmtree(kept, ignore_errors=True)
    for different in ["--memory", '{"n_mem": 96}'], ["--from", "0.2"]:  # the text up to 0.1 is the same
        ran = run("--resume", "--memory-dir", str(kept), "--json", str(apart), *different)
        assert ran.returncode == 1 and "another" in ran.stderr, (different, ran)
    ran = run(*arguments)
    assert ran.returncode == 0, ran.stderr
    asked = json.loads(apart.read_text())["keys"]
    resumed = [key.pop("resumed_at") for key in asked]
    assert [key["answer"] for key in asked] == [key["answer"] for key in answers(whole)], asked
    assert max(resumed) > 0, resumed
    assert not list(kept.iterdir())
    ran = run("--memory-dir", str(kept))
    assert ran.returncode == 2 and "--resume" in ran.stderr, ran.stderr

    ran = run("--resume")
    assert ran.returncode == 1 and "--json" in ran.stderr, ran.stderr
