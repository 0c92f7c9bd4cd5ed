# SPDX-License-Identifier: Apache-2.0
"""Runs a test by a Python that has what it needs.

usage: with_packages.py NEEDS TEST [ARGUMENTS]
NEEDS: 5 or 4 (torch and that version of transformers), lm_eval (it, and what 5 is), or tools (mypy and matplotlib)

The Python is that of EPISODIC_PYTHON_TRANSFORMERS (for version 4: EPISODIC_PYTHON_TRANSFORMERS_4), else the one for
which scripts/setup --transformers put packages into the folder EPISODIC_PYTHON_PACKAGES, else this one. A test that
finds no packages says EPISODIC_SKIP itself."""
import os
import pathlib
import sys


def command(needs):
    """(Python, what is behind its other paths for modules, and before those for libraries)"""
    version = "5" if needs == "lm_eval" else needs
    folder = pathlib.Path(os.environ.get("EPISODIC_PYTHON_PACKAGES", ""))
    if version == "tools":
        there = (folder / "tools" / "stamp").is_file()
        return sys.executable, [os.fspath(folder / "tools")] if there else [], []
    named = os.environ.get("EPISODIC_PYTHON_TRANSFORMERS" + ("" if version == "5" else "_" + version))
    if named:
        return named, [], []
    sets = [folder / f"transformers_{v}" for v in sorted({"5", version})]  # the older one holds what it has otherwise
    sets += [folder / needs] if needs == "lm_eval" else []
    if not all((of / "stamp").is_file() for of in sets) or not (folder / "python").is_file():
        return sys.executable, [], []
    python, torch = (folder / "python").read_text().splitlines()
    return python, [*map(os.fspath, sets), torch], [os.fspath(folder / "cuda")]


def main():
    python, modules, libraries = command(sys.argv[1])
    for name, more in (("PYTHONPATH", modules), ("LD_LIBRARY_PATH", libraries)):
        before = [part for part in os.environ.get(name, "").split(os.pathsep) if part]
        os.environ[name] = os.pathsep.join([*before, *more] if name == "PYTHONPATH" else [*more, *before])
    if sys.argv[1] == "4" and python == sys.executable:  # it would be whichever version there is
        print("EPISODIC_SKIP: transformers 4 is not installed (scripts/setup --transformers)")
        return
    os.execvp(python, [python, *sys.argv[2:]])


if __name__ == "__main__":
    main()
