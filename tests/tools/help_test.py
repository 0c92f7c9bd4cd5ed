# SPDX-License-Identifier: Apache-2.0
"""usage: help_test.py PROGRAM...: each says what it does with an example, and refuses a wrong command line."""
import pathlib
import subprocess
import sys

for program in map(pathlib.Path, sys.argv[1:]):
    def run(*arguments):
        return subprocess.run([program, *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)

    told = run("--help")
    assert told.returncode == 0 and not told.stderr, (program.name, told)
    examples = told.stdout.partition("Example")[2]
    assert f"{program.name} --" in examples and ("--json" in told.stdout or "--out" in told.stdout), (program.name, told.stdout)
    refused = run("--no-such-flag")
    assert refused.returncode == 2 and not refused.stdout, (program.name, refused)
    assert refused.stderr.startswith(f"{program.name}: ") and f"{program.name} --help" in refused.stderr, refused
    assert refused.stderr.count("\n") == 1 and "--no-such-flag" in refused.stderr, refused
assert len(sys.argv) > 15, sys.argv
