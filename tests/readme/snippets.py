# SPDX-License-Identifier: Apache-2.0
"""usage: snippets.py OUT FILE...: the marked code blocks of Markdown files, as sources and as tests.

A block is marked by a comment on the line before it, which readers do not see:
  <!-- run: cpp ARGUMENTS; expect: REGEX -->     a whole program: compiled, run, its output matched
  <!-- run: shell; expect: REGEX -->             commands for bash
  <!-- run: python; expect: REGEX -->            left to python/tests/test_package.py
Every ```cpp block must be marked. Writes OUT/NAME.cpp or OUT/NAME.sh for each, and on stdout a line
KIND|NAME|REGEX|ARGUMENTS for CMake."""
import pathlib
import re
import sys

out = pathlib.Path(sys.argv[1])
out.mkdir(parents=True, exist_ok=True)
BLOCK = re.compile(r"(?:<!-- run: (?P<kind>\w+) ?(?P<args>[^;]*); expect: (?P<expect>.*?) -->\n)?"
                   r"^```(?P<language>\w*)\n(?P<code>.*?)^```$", re.S | re.M)
for file in map(pathlib.Path, sys.argv[2:]):
    for number, block in enumerate(BLOCK.finditer(file.read_text()), 1):
        name = f"{file.stem.lower()}_{number}"
        if not block["kind"]:
            if block["language"] == "cpp":
                sys.exit(f"{file}: C++ block {number} is not marked with <!-- run: cpp ...; expect: ... -->")
            continue
        if block["kind"] == "python":
            continue
        suffix = {"cpp": ".cpp", "shell": ".sh"}[block["kind"]]
        source = out / (name + suffix)
        if not source.exists() or source.read_text() != block["code"]:
            source.write_text(block["code"])
        print("|".join([block["kind"], name, block["expect"], block["args"]]))
