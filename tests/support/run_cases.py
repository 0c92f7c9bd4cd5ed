#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs every case of Catch2 programs as a process of its own, several at a time.

usage: run_cases.py [--jobs N] [--limit SECONDS] [--match REGEX] [--log FILE] PROGRAM...

A fault on a device ends the process it happens in: a case of its own takes no other with it. Prints a line for each case
that failed, each reason for which some were skipped, and each program; --log has all that was said. Exit code 1 if a case
failed, or none ran.
"""
import argparse
import collections
import concurrent.futures
import pathlib
import re
import subprocess
import sys
import time

import discover


def run_case(program, case, limit):
    """(program, case, what came of it, seconds, output)"""
    begin = time.monotonic()
    try:
        run = subprocess.run([program, discover.escaped(case)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=limit)
        output = run.stdout.decode(errors="replace")
        said = "failed" if run.returncode else "skipped" if "EPISODIC_SKIP" in output else "passed"
        if said == "failed":
            output += f"\nexit code {run.returncode}\n"
    except subprocess.TimeoutExpired as late:
        output, said = (late.output or b"").decode(errors="replace") + f"\nstopped after {limit:g} s\n", "failed"
    return program, case, said, time.monotonic() - begin, output


def reason(output):
    """A line for a table: what Catch2 found first, or the last line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    for i, line in enumerate(lines):
        if "FAILED:" in line:
            return " ".join(lines[i:i + 6])[:300]
    return lines[-1][:300] if lines else "no output"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs="+", metavar="PROGRAM")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--limit", type=float, default=600, help="seconds of one case (default: 600)")
    parser.add_argument("--match", type=re.compile, default=re.compile(""), help="only cases whose names match")
    parser.add_argument("--log", type=pathlib.Path)
    args = parser.parse_args()
    cases = [(program, case) for program in args.programs for case in discover.cases(program) if args.match.search(case)]
    reasons = collections.Counter()
    counts = {program: {"passed": 0, "skipped": 0, "failed": 0} for program in args.programs}
    begin = time.monotonic()
    log = args.log.open("w") if args.log else None
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        futures = [pool.submit(run_case, *case, args.limit) for case in cases]
        for future in concurrent.futures.as_completed(futures):
            program, case, said, seconds, output = future.result()
            counts[program][said] += 1
            if log:
                log.write(f"==== {pathlib.Path(program).name} | {case} | {said} | {seconds:.2f} s\n{output}\n")
                log.flush()
            if said == "skipped":
                reasons[re.search("EPISODIC_SKIP.*", output).group()] += 1
            if said == "failed":
                print(f"FAILED {pathlib.Path(program).name} \"{case}\" {seconds:.1f} s: {reason(output)}", flush=True)
    for why, count in sorted(reasons.items()):
        print(f"{why} ({count})")
    for program, count in counts.items():
        print(f"{pathlib.Path(program).name}: {count['passed']} passed, {count['skipped']} skipped, {count['failed']} failed")
    print(f"{len(cases)} cases, {args.jobs} at a time, {time.monotonic() - begin:.0f} s")
    sys.exit(0 if cases and not any(count["failed"] for count in counts.values()) else 1)


if __name__ == "__main__":
    main()
