# SPDX-License-Identifier: Apache-2.0
"""Prints what scripts/test ends with: skipped and failed tests by name, then the counts."""
import re
import sys
import xml.etree.ElementTree as xml


def skip_reason(case):
    found = re.search(r"EPISODIC_SKIP: *(.*)", case.findtext("system-out") or "")
    return found.group(1).strip() if found else "no reason given"


def main(path):
    try:
        cases = list(xml.parse(path).getroot().iter("testcase"))
    except (OSError, xml.ParseError) as error:
        print(f"no test results: {error}", file=sys.stderr)
        cases = []
    passed, failed = 0, 0
    for case in cases:
        name = case.get("name")
        if case.get("status") == "run":
            passed += 1
        elif case.find("skipped") is not None and "EPISODIC_SKIP" in (case.findtext("system-out") or ""):
            print(f"skipped: {name} ({skip_reason(case)})")
        else:  # failed, not built, disabled: none of these may pass unseen
            failed += 1
            print(f"failed: {name}")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


sys.exit(main(sys.argv[1]))
