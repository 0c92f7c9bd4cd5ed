# SPDX-License-Identifier: Apache-2.0
"""usage: find_test.py BENCH_FIND MODEL TEXT FACTS: a run that was stopped goes on to the answers of one that was not."""
import json
import pathlib
import subprocess
import sys
import tempfile

program, model, text, facts = sys.argv[1:]
METHODS = "window,memory,reread,local,bm25,retrieval,events"


def run(*more, tokens="1500", count="2", text=text, memory='{"n_local": 128, "n_mem": 128, "n_init": 16, "chunk": 64}'):
    return subprocess.run([program, "--plain", "--model", model, "--text", text, "--facts", facts, "--tokens", tokens,
                           "--count", count, "--threads", "1", "--quiet",
                           "--memory", memory, *more],
                          capture_output=True, text=True)


def rows(path):
    return [{name: value for name, value in json.loads(line).items() if name != "seconds"}
            for line in path.read_text().splitlines()]


with tempfile.TemporaryDirectory() as folder:
    whole, part, result = (pathlib.Path(folder, name) for name in ("whole.jsonl", "part.jsonl", "result.json"))
    ran = run("--method", METHODS, "--out", str(whole), "--json", str(result))
    assert ran.returncode == 0, ran.stderr
    expected = rows(whole)
    assert len(expected) == 2 * 2 * 7 and len({row["id"] for row in expected}) == len(expected), expected
    summary = json.loads(result.read_text())
    for method in METHODS.split(","):
        for words in "same", "other":
            counted = summary["methods"][method][words]
            right = sum(row["right"] for row in expected if row["method"] == method and row["words"] == words)
            assert counted["right"] == right and counted["asked"] == 2, (method, counted)
            # Wilson's interval, by its formula
            z, n, p = 1.96, 2, right / 2
            middle, half = (p + z * z / (2 * n)) / (1 + z * z / n), z / (1 + z * z / n) * (p * (1 - p) / n + z * z / 4 / n / n) ** 0.5
            assert abs(counted["low"] - middle + half) < 1e-9 and abs(counted["high"] - middle - half) < 1e-9, counted
    # chunks of 300 words by BM25: without an encoder `retrieval` is the same
    pick = lambda method: [(row["text"], row["found"]) for row in expected if row["method"] == method]
    assert pick("bm25") == pick("retrieval") and any(found for _, found in pick("bm25")), pick("bm25")
    assert summary["found"]["bm25"]["same"][0] == sum(r["found"] for r in expected if r["method"] == "bm25" and r["words"] == "same")

    # stopped within a line, then gone on with; and begun with some methods, gone on with others
    lines = whole.read_text().splitlines(keepends=True)
    part.write_text("".join(lines[:9]) + lines[9][:20])
    for path in pathlib.Path(folder).glob("whole*"):
        if path != whole:
            pathlib.Path(folder, path.name.replace("whole", "part", 1)).write_bytes(path.read_bytes())
    ran = run("--method", METHODS, "--out", str(part))
    assert ran.returncode == 0, ran.stderr
    assert rows(part) == expected, "other answers"
    assert part.read_text().startswith("".join(lines[:9])), "answers were asked for again"
    before = part.read_bytes()
    ran = run("--method", "window,memory", "--out", str(part))  # nothing is left to ask, and all is in the table
    assert ran.returncode == 0 and part.read_bytes() == before and "bm25" in ran.stderr, ran.stderr
    other = pathlib.Path(folder, "other.jsonl")
    for methods in "window", METHODS:
        ran = run("--method", methods, "--out", str(other))
        assert ran.returncode == 0, ran.stderr
    assert sorted(map(json.dumps, rows(other))) == sorted(map(json.dumps, expected)), "other answers by methods apart"

    for more, named in ((["--passages", "1"], "passages"), (["--first", "1"], "another"), ([], "memory")):
        settings = {} if more else {"memory": '{"n_local": 128, "n_mem": 96}'}
        ran = run("--method", METHODS, "--out", str(part), *more, **settings)
        assert ran.returncode == 1 and named in ran.stderr and ran.stderr.count("\n") == 1, (more, ran.stderr)
        assert part.read_bytes() == before, more
    ran = run("--method", "guess")
    assert ran.returncode == 1 and "retrieval" in ran.stderr, ran.stderr
    ran = run("--method", "full")
    assert ran.returncode == 1 and "512" in ran.stderr, ran.stderr
    short = pathlib.Path(folder, "short.txt")
    short.write_text("The old man walked slowly to the river. My sister looked at the garden. " * 40)
    ran = run("--method", "full", tokens="300", count="1", text=str(short), memory='{"n_local": 32, "chunk": 32}')
    assert ran.returncode == 0 and "full" in ran.stderr, ran.stderr
