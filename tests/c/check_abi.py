#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""usage: check_abi.py LIBRARY LAYOUT_PROGRAM: what callers of every version were compiled with still holds.

Every symbol and every struct's layout of abi_v1.txt and its successors is as it was; new symbols are allowed once they
stand in the header. The library exports nothing else, and needs only the system's libraries."""
import pathlib
import re
import subprocess
import sys

HERE = pathlib.Path(__file__).parent
SYSTEM = re.compile(r"lib(episodic|episodic_core|episodic_redis|c|m|stdc\+\+|gcc_s|gomp|pthread|dl|rt|faiss.*|openblas|blas|lapack|gfortran|quadmath|fmt|"
                    r"pcre2-8|utf8proc|uring|hiredis|[alt]san|ubsan|cudart|cublas|cublasLt)\.so|ld-linux")


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def main():
    library, layout = sys.argv[1:]
    exported = {line.split()[-1] for line in run("nm", "-D", "--defined-only", library).splitlines()}
    header = (HERE / "../../include/episodic/c/episodic.h").read_text()
    declared = set(re.findall(r"EPISODIC_C_API [^;(]*?\b(episodic_\w+)\(", header))
    promised = [line for file in sorted(HERE.glob("abi_v*.txt")) for line in file.read_text().splitlines()]
    symbols = {line for line in promised if " " not in line}
    problems = [f"{s}: was in an earlier version and is not exported" for s in sorted(symbols - exported)]
    problems += [f"{s}: is declared and not exported" for s in sorted(declared - exported)]
    problems += [f"{s}: is exported and not declared" for s in sorted(exported - declared)]
    now = set(run(layout).splitlines())
    problems += [f"{line}: was so in an earlier version" for line in promised if " " in line and line not in now]
    for line in run("objdump", "-p", library).splitlines():
        needed = re.match(r"\s*NEEDED\s+(\S+)", line)
        if needed and not SYSTEM.match(needed[1]):
            problems.append(f"{needed[1]}: is needed and is none of the system's libraries")
    print("\n".join(problems) or f"{len(exported)} symbols, {len(now)} numbers of layouts")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
