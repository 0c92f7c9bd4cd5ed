# SPDX-License-Identifier: Apache-2.0
"""Libraries that stand in for CUDA's, so that a torch that was built for CUDA can be imported without them.

usage: cuda_stand_ins.py LIB FOLDER      LIB: the folder of libtorch_python.so

torch's Python module needs CUDA's libraries to be loaded, 2.2 GB of packages, though nothing calls them on a machine
without a device. scripts/setup installs torch without them. This writes into FOLDER, for LD_LIBRARY_PATH, one library
under the names of all that are missing; it has their functions, and each ends the program. Nothing is written, and
FOLDER removed, where none is missing. Needs a C compiler and binutils."""
import collections
import os
import pathlib
import re
import shutil
import subprocess
import sys

LIBRARY = "libcuda_stand_in.so"
KINDS = "cublas|cudnn|cufft|cufile|curand|cusolver|cusparse|p?nccl|nvshmem"
CUDAS = re.compile(f"lib({KINDS})")
FUNCTION = re.compile(rf"\s+[Uw] ((?:{KINDS})\w*)(?:@+(\S+))?$", re.I)


def told(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def of_cuda(libraries):
    """{name: path, or None where it is not found} of CUDA's libraries that these need."""
    lines = [line.split() for path in libraries for line in told("ldd", path).splitlines()]
    return {words[0]: words[2] if words[2].startswith("/") else None
            for words in lines if len(words) > 2 and CUDAS.match(words[0])}


def functions(libraries, found):
    """{version or None: names} of what these call and CUDA's libraries have, without what those that are found have."""
    there = set(re.findall(r" (\w+)(?:@\S*)?$", told("nm", "-D", "--defined-only", *found), re.M)) if found else set()
    called = collections.defaultdict(set)
    for line in told("nm", "-D", "--undefined-only", *libraries).splitlines():
        match = FUNCTION.match(line)
        if match and match[1] not in there:
            called[match[2]].add(match[1])
    return called


def build(calls, folder):
    source, versions = folder / "functions.s", folder / "functions.map"
    names = sorted(set().union(*calls.values()))
    source.write_text(".text\n" + "".join(f".globl {name}\n.type {name},@function\n{name}:\n" for name in names) +
                      "ud2\n" + '.section .note.GNU-stack,"",@progbits\n')
    versions.write_text("".join(f"{version} {{ global: {'; '.join(sorted(of))}; }};\n"
                                for version, of in sorted(calls.items(), key=str) if version))
    subprocess.run([os.environ.get("CC", "cc"), "-shared", "-nostdlib", f"-Wl,--version-script={versions}", "-o",
                    folder / LIBRARY, source], check=True)


def main():
    lib, folder = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    libraries = sorted(map(str, lib.glob("libtorch_*.so"))) + [str(lib / "libc10_cuda.so")]
    libraries = [path for path in libraries if os.path.exists(path)]
    shutil.rmtree(folder, ignore_errors=True)
    libraries_of_cuda = of_cuda(libraries)
    missing = sorted(name for name, path in libraries_of_cuda.items() if path is None)
    if not missing:
        return
    folder.mkdir(parents=True)
    build(functions(libraries, [path for path in libraries_of_cuda.values() if path]), folder)
    for name in missing:
        (folder / name).symlink_to(LIBRARY)
    print(f"{folder}: stands in for {', '.join(missing)}")


if __name__ == "__main__":
    main()
