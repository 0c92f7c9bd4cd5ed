#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""usage: make_wheel.py LIBRARY DIST [CUDA]: packs the package and the library into DIST/episodic-VERSION-....whl.

CUDA: major version of the toolkit that the library was built with; the wheel is then VERSION+cuCUDA.

A wheel is a zip file with two files of metadata (packaging.python.org, "Binary distribution format"). Nothing is
compiled for one Python, so one wheel serves all. Prints its path."""
import base64
import hashlib
import os
import pathlib
import re
import subprocess
import sys
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
METADATA = """Metadata-Version: 2.1
Name: episodic
Version: {version}
Summary: A memory for language models whose text is far longer than their window
License: Apache-2.0
Requires-Python: >=3.9
{more}Description-Content-Type: text/markdown

{readme}"""


def needed(library):
    """Path of the libgomp that the library would load."""
    listing = subprocess.run(["ldd", library], check=True, capture_output=True, text=True).stdout
    found = re.search(r"libgomp\.so\.1 => (\S+)", listing)
    allowed = re.compile(r"lib(m|c|gcc_s|gomp|dl|rt|pthread)\.so|ld-linux|linux-vdso")
    others = [line.split()[0] for line in listing.splitlines() if not allowed.search(line.split()[0])]
    if others or not found:
        sys.exit(f"make_wheel: {library} needs {', '.join(others) or 'no libgomp'}: it was not built by scripts/wheel")
    return found[1]


def platform(*libraries):
    """The oldest that these run on, by the versions of glibc's functions that they call (PEP 600)."""
    told = subprocess.run(["readelf", "--version-info", "--wide", *libraries], check=True, capture_output=True,
                          text=True).stdout
    newest = max(int(minor) for minor in re.findall(r"Name: GLIBC_2\.(\d+)", told))
    return f"manylinux_2_{newest}_{os.uname().machine}"


def main():
    library, dist = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2])
    version = (HERE.parent / "VERSION").read_text().strip()
    more = ""
    if len(sys.argv) > 3:
        cuda = int(sys.argv[3])
        version += f"+cu{cuda}"
        cublas = f"nvidia-cublas >={cuda},<{cuda + 1}" if cuda > 12 else f"nvidia-cublas-cu{cuda}"  # NVIDIA's names
        more = f"Provides-Extra: cuda\nRequires-Dist: {cublas}; extra == \"cuda\"\n"
    info = f"episodic-{version}.dist-info"
    openmp = needed(library)
    tag = f"py3-none-{platform(library, openmp)}"
    files = {f"episodic/{p.relative_to(HERE / 'episodic')}": p.read_bytes()
             for p in sorted((HERE / "episodic").rglob("*")) if p.suffix in (".py", ".pyi", ".typed")}
    stripped = dist / "libepisodic_c.so.1"
    dist.mkdir(parents=True, exist_ok=True)
    subprocess.run(["strip", "--strip-unneeded", "-o", stripped, library], check=True)
    files["episodic/lib/libepisodic_c.so.1"] = stripped.read_bytes()
    stripped.unlink()
    files["episodic/lib/libgomp.so.1"] = pathlib.Path(openmp).read_bytes()
    readme = (HERE / "README.md").read_text()
    files[f"{info}/METADATA"] = METADATA.format(version=version, more=more, readme=readme).encode()
    files[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: episodic\nRoot-Is-Purelib: false\nTag: {tag}\n".encode()
    files[f"{info}/LICENSE"] = (HERE.parent / "LICENSE").read_bytes()
    record = ""
    for name, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        record += f"{name},sha256={digest},{len(data)}\n"
    files[f"{info}/RECORD"] = (record + f"{info}/RECORD,,\n").encode()
    path = dist / f"episodic-{version}-{tag}.whl"
    unfinished = path.with_suffix(".part")
    with zipfile.ZipFile(unfinished, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name)  # the same bytes give the same wheel
            entry.external_attr = 0o644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            wheel.writestr(entry, data)
    for other in dist.glob(f"episodic-{version}-*.whl"):  # of another tag: pip would be given two
        other.unlink()
    unfinished.replace(path)
    print(path)


if __name__ == "__main__":
    main()
