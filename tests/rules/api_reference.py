#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The API reference is written without a warning. Usage: api_reference.py SOURCE_DIR"""
import pathlib
import shutil
import subprocess
import sys
import tempfile

source = pathlib.Path(sys.argv[1])
if not shutil.which("doxygen"):
    print("EPISODIC_SKIP: doxygen is not installed")
    sys.exit()
with tempfile.TemporaryDirectory() as out:
    settings = (source / "Doxyfile").read_text() + f'\nOUTPUT_DIRECTORY = "{out}"\n'
    run = subprocess.run(["doxygen", "-"], cwd=source, input=settings, text=True, capture_output=True)
    print(run.stdout + run.stderr)
    pages = len(list(pathlib.Path(out, "html").glob("*.html")))
    if run.returncode or run.stderr.strip() or pages < 100:
        sys.exit(f"doxygen ended with {run.returncode}, warnings are above; {pages} pages")
print(f"{pages} pages")
