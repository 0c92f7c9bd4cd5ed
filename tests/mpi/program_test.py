#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The program on two processes answers as on one: program_test.py MPIRUN EPISODIC MODEL."""
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

mpirun, episodic, model = sys.argv[1:4]
if not os.path.exists(mpirun):
    print("EPISODIC_SKIP: no mpirun")
    sys.exit(0)
ENVIRONMENT = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                   OMPI_MCA_rmaps_base_oversubscribe="1",
                   OMPI_MCA_btl_vader_single_copy_mechanism="none")  # which containers forbid
MEMORY = json.dumps({"n_init": 8, "n_local": 128, "n_mem": 96, "chunk": 64, "refine": "modularity"})


def command(n, *words):
    if n == 1:
        return [episodic, *words, "--device", "cpu"]
    return [mpirun, "-n", str(n), episodic, *words, "--parallel", "tensor", "--group-timeout", "20"]


def run(n, *words, fails=False, stdin=None):
    done = subprocess.run(command(n, *words), env=ENVIRONMENT, text=True, capture_output=True, timeout=300, input=stdin)
    assert (done.returncode != 0) == fails, (words, done.stdout, done.stderr)
    return done


def said(done):
    """What the program says on stderr, without mpirun's own lines."""
    return [line for line in done.stderr.splitlines() if line.startswith("episodic: ")]


with tempfile.TemporaryDirectory() as folder:
    work = Path(folder)
    words = "The old man walked along the river. The pass key is 71432. Remember it. The rain fell on the town. "
    text = work / "text.txt"
    text.write_text(words * 40)

    # generate: the same answer, written once
    answers = {}
    for n in (1, 2):
        out = work / f"out{n}.json"
        done = run(n, "generate", "--model", model, "--prompt-file", str(text), "--question", "The pass key is",
                   "--max-new", "8", "--memory", MEMORY, "--json", str(out))
        answers[n] = (done.stdout, json.loads(out.read_text()))
    assert answers[1][0] == answers[2][0], answers
    one, two = answers[1][1], answers[2][1]
    assert one["ids"] == two["ids"]
    for key in ("tokens", "events", "recalled_events"):
        assert one["memory"][key] == two["memory"][key], (key, one, two)
    assert two["memory"]["store_bytes"] < 0.6 * one["memory"]["store_bytes"], (one, two)

    # the prompt from stdin, which mpirun gives to the first process alone
    done = run(2, "generate", "--model", model, "--prompt-file", "-", "--max-new", "8", "--memory", MEMORY,
               stdin=text.read_text())
    assert done.stdout.strip()

    # ingest, on which both ask
    kept = {n: work / f"memory{n}" for n in (1, 2)}
    asked = {}
    for n in (1, 2):
        done = run(n, "ingest", "--model", model, "--text", str(text), "--memory-dir", str(kept[n]),
                   "--memory", MEMORY, "--commit-every", "256")
        assert done.stdout.count("tokens in") == 1, done.stdout
        asked[n] = run(n, "ask", "--model", model, "--memory-dir", str(kept[n]), "--prompt", "The pass key is",
                       "--max-new", "8").stdout
    assert asked[1] == asked[2], asked
    assert sorted(p.name for p in kept[2].iterdir()) == ["rank-0-of-2", "rank-1-of-2"]
    run(1, "verify", str(kept[2] / "rank-1-of-2"))

    # a memory of two is not opened by one or three; what is not there is said once
    done = run(1, "ask", "--model", model, "--memory-dir", str(kept[2]), "--prompt", "The", fails=True)
    assert "is a memory of 2 ranks" in done.stderr, done.stderr
    done = run(2, "ask", "--model", model, "--memory-dir", str(kept[1]), "--prompt", "The", fails=True)
    assert len(said(done)) == 1 and "is the memory of one process" in done.stderr, done.stderr
    done = run(2, "generate", "--model", model, "--prompt-file", str(work / "none.txt"), fails=True)
    assert len(said(done)) == 1 and "none.txt" in done.stderr, done.stderr
    done = run(2, "generate", "--model", model, "--prompt", "The", "--encoder", str(work), fails=True)
    assert len(said(done)) == 1 and "--encoder: not with --parallel" in done.stderr, done.stderr

    # a process that is killed in the midst of reading: the other says so once, and reading goes on behind
    text.write_text(words * 600)
    killed = work / "killed"
    ingest = ["ingest", "--model", model, "--text", str(text), "--memory-dir", str(killed), "--memory", MEMORY,
              "--commit-every", "512", "--quiet"]
    reading = subprocess.Popen(
        [mpirun, "--enable-recovery", "-n", "2", episodic, *ingest, "--parallel", "tensor", "--group-timeout", "4"],
        env=ENVIRONMENT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def committed(rank):
        try:
            lines = (killed / f"rank-{rank}-of-2" / "manifest.json").read_text()
            return json.loads(lines[:lines.rindex("checksum:")])["state"]["tokens"]
        except (FileNotFoundError, ValueError):
            return 0

    def second_process():
        for entry in Path("/proc").iterdir():
            try:
                if not entry.name.isdigit() or episodic.encode() not in (entry / "cmdline").read_bytes().split(b"\0")[0]:
                    continue
                environment = (entry / "environ").read_bytes()
                if b"OMPI_COMM_WORLD_RANK=1\0" in environment and str(killed).encode() in (entry / "cmdline").read_bytes():
                    return int(entry.name)
            except OSError:
                continue
        return None

    for _ in range(2400):
        if committed(1) >= 1024 or reading.poll() is not None:
            break
        time.sleep(0.05)
    assert reading.poll() is None, reading.communicate()
    os.kill(second_process(), signal.SIGKILL)
    begun = time.monotonic()
    _, errors = reading.communicate(timeout=120)
    lines = [line for line in errors.splitlines() if line.startswith("episodic: ")]
    assert len(lines) == 1 and "rank 1 of 2 has sent nothing for 4 s" in lines[0], errors
    assert time.monotonic() - begun < 60
    reached = min(committed(0), committed(1))
    assert reached >= 1024, (committed(0), committed(1))
    run(2, *ingest, "--resume")
    assert committed(0) == committed(1) > reached
    whole = work / "whole"
    run(2, *[str(whole) if w == str(killed) else w for w in ingest])
    for rank in (0, 1):
        digests = {run(1, "verify", str(place / f"rank-{rank}-of-2"), "--digest").stdout.split("digest ")[1]
                   for place in (killed, whole)}
        assert len(digests) == 1, digests
print("ok")
