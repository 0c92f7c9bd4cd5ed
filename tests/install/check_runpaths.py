# SPDX-License-Identifier: Apache-2.0
"""Programs and libraries load nothing from the current folder.

usage: check_runpaths.py COMPILER FOLDER...

Reads every ELF file below the folders. An entry of its RPATH or RUNPATH that is empty or relative names the folder
that the user happens to stand in, so whoever put a library there would run code: each entry must be absolute or
begin with $ORIGIN. A library that is needed by a relative path is refused for the same reason. Programs linked so
by COMPILER first show that the check notices."""
import os
import pathlib
import re
import subprocess
import sys
import tempfile


def elf_files(folder):
    for path in sorted(pathlib.Path(folder).rglob("*")):
        if path.is_file() and not path.is_symlink() and os.access(path, os.R_OK):
            with open(path, "rb") as file:
                if file.read(4) == b"\x7fELF":
                    yield path


def faults(path):
    """What path loads from the current folder; None for an ELF file that loads nothing, such as an object."""
    said = subprocess.run(["readelf", "-dW", str(path)], check=True, capture_output=True, text=True).stdout
    if "Dynamic section" not in said:
        return None
    found = []
    for kind, entries in re.findall(r"\((RPATH|RUNPATH)\).*?\[(.*)\]", said):
        found += [f"{path}: {kind} has the entry '{entry}'" for entry in entries.split(":")
                  if not entry.startswith(("/", "$ORIGIN"))]
    found += [f"{path}: needs '{name}'" for name in re.findall(r"\(NEEDED\).*?\[(.*)\]", said)
              if "/" in name and not name.startswith("/")]
    return found


def self_test(compiler):
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder, "main.cpp")
        source.write_text("int main() {}\n")
        for option, bad in (("-Wl,-rpath,/usr/lib", False), ("-Wl,-rpath,$ORIGIN/../lib", False),
                            ("-Wl,-rpath,/usr/lib::", True), ("-Wl,-rpath,lib", True),
                            ("-Wl,--disable-new-dtags,-rpath,.", True)):
            program = pathlib.Path(folder, "program")
            subprocess.run([compiler, str(source), option, "-o", str(program)], check=True)
            if bool(faults(program)) != bad:
                sys.exit(f"the check is wrong about {option}: {faults(program)}")


def main(compiler, folders):
    self_test(compiler)
    read, found = 0, []
    for folder in folders:
        for path in elf_files(folder):
            of_file = faults(path)
            read += of_file is not None
            found += of_file or []
    print("\n".join(found) if found else f"{read} programs and libraries load nothing from the current folder")
    if read == 0:
        sys.exit("no program was found")
    return 1 if found else 0


sys.exit(main(sys.argv[1], sys.argv[2:]))
