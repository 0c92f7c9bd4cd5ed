# SPDX-License-Identifier: Apache-2.0
"""What the scripts that compare with llama.cpp share: the prebuilt package, and what stands in their results."""
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PACKAGES = ["xllamacpp==2026.10.11549", "gguf==0.19.0", "numpy==2.4.6"]


def die(text):
    print(f"{pathlib.Path(sys.argv[0]).name}: error: {text}", file=sys.stderr)
    sys.exit(1)


def listed(kind):
    """For argparse: values divided by commas."""
    return lambda text: [kind(x) for x in text.split(",") if x]


def python_with_packages(work):
    """A Python that has the packages, fetched once."""
    env = work / "python"
    if not (env / "ready").exists():
        print("fetching " + ", ".join(PACKAGES), file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", env], check=True)
        if subprocess.run([env / "bin" / "pip", "install", "-q", *PACKAGES]).returncode:
            die("pip failed; check the network")
        (env / "ready").touch()
    return env / "bin" / "python"
