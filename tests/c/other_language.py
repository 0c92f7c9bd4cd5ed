#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""usage: other_language.py rust|go LIBRARY MODEL: a program in that language reads and asks through the library.

It has nothing but the header (go) or its own declarations of what it calls (rust). Skipped in sight without the
compiler."""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
COMPILERS = {"rust": "rustc", "go": "go"}


def main():
    language, library, model = sys.argv[1], pathlib.Path(sys.argv[2]).resolve(), sys.argv[3]
    compiler = shutil.which(COMPILERS[language]) or shutil.which(os.path.expanduser("~/.cargo/bin/rustc"))
    if not compiler or pathlib.Path(compiler).name != COMPILERS[language]:
        print(f"EPISODIC_SKIP: {COMPILERS[language]} is not installed")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        (folder / "libepisodic_c.so").symlink_to(library)
        program = folder / "ask"
        env = os.environ | {"LD_LIBRARY_PATH": f"{library.parent}:{folder}", "OMP_WAIT_POLICY": "passive"}
        if language == "rust":
            build = [compiler, "-o", program, "-L", folder, HERE / "ask.rs"]
        else:
            shutil.copy(HERE / "ask.go", folder)
            build = [compiler, "build", "-o", program, folder / "ask.go"]
            env |= {"CGO_CFLAGS": f"-I{HERE.parent.parent / 'include'}", "CGO_LDFLAGS": f"-L{folder} -lepisodic_c",
                    "GOCACHE": str(folder / "cache"), "GO111MODULE": "off"}
        subprocess.run(build, check=True, env=env)
        answer = subprocess.run([program, model], check=True, env=env, capture_output=True, text=True)
    print(answer.stdout)
    return 0 if "52871" in answer.stdout else 1


if __name__ == "__main__":
    sys.exit(main())
