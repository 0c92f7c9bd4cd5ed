# SPDX-License-Identifier: Apache-2.0
"""usage: run_snippet.py ROOT BUILD REGEX COMMAND...: runs a snippet where its reader would be.

In a scratch folder with `models`, `tests`, `build` and a `book.txt` whose fact lies far before the window of
the shipped model. The output must match REGEX."""
import pathlib
import re
import subprocess
import sys
import tempfile

root, build, expected, *command = sys.argv[1:]
with tempfile.TemporaryDirectory() as folder:
    here = pathlib.Path(folder)
    for name in ("models", "tests"):
        (here / name).symlink_to(pathlib.Path(root) / name)
    (here / "build").symlink_to(build)
    chatter = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.\n"
    (here / "book.txt").write_text(20 * chatter + "The pass key is 60453. Remember it. 60453 is the pass key.\n" +
                                   160 * chatter)
    ran = subprocess.run(command, cwd=here, stdin=subprocess.DEVNULL, capture_output=True, text=True)
print(ran.stdout + ran.stderr)
if ran.returncode != 0:
    sys.exit(f"exit code {ran.returncode}")
if not re.search(expected, ran.stdout):
    sys.exit(f"stdout does not match {expected!r}")
