# SPDX-License-Identifier: Apache-2.0
"""Prints what scripts/test ends with: skipped tests by name, failed ones with the end of their output
(a log that was cut to its last lines still says why), how many were left out, then the counts.

usage: summarise_tests.py RESULTS [TESTS LABELS]: TESTS would have run but for their LABELS ("a|b")
"""
import re
import sys
import xml.etree.ElementTree as xml


def skip_reason(case):
    found = re.search(r"EPISODIC_SKIP: *(.*)", case.findtext("system-out") or "")
    return found.group(1).strip() if found else "no reason given"


def last_lines(case, count=12):
    """The end of what a test printed, without the colours of a terminal."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", case.findtext("system-out") or "")
    return [line.rstrip() for line in text.splitlines() if line.strip()][-count:]


def main(path, fitting="0", labels=""):
    try:
        cases = list(xml.parse(path).getroot().iter("testcase"))
    except (OSError, xml.ParseError) as error:
        print(f"no test results: {error}", file=sys.stderr)
        cases = []
    passed, failed = 0, []
    for case in cases:
        name = case.get("name")
        if case.get("status") == "run":
            passed += 1
        elif case.find("skipped") is not None and "EPISODIC_SKIP" in (case.findtext("system-out") or ""):
            print(f"skipped: {name} ({skip_reason(case)})")
        else:  # failed, not built, disabled: none of these may pass unseen
            failed.append(case)
    for case in failed:
        print(f"failed: {case.get('name')} ({case.get('time', '?')} s)")
        for line in last_lines(case):
            print(f"    {line[:200]}")
    left_out = int(fitting) - len(cases)
    if left_out > 0:
        print(f"{left_out} left out by their labels ({', '.join(labels.split('|'))})")
    print(f"{passed} passed, {len(failed)} failed")
    return 1 if failed or not passed else 0


sys.exit(main(*sys.argv[1:]))
