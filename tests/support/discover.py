# SPDX-License-Identifier: Apache-2.0
"""Lists the test cases of a Catch2 executable (2.x or 3.x) as ctest tests.

usage: discover.py EXECUTABLE NAME OUTPUT [LABEL...]
"""
import os
import re
import subprocess
import sys


def cases(executable, *spec):
    """Names of the test cases that match, one per line of output."""
    for options in (["--list-test-names-only"], ["--list-tests", "--verbosity", "quiet"]):
        run = subprocess.run([executable, *spec, *options], capture_output=True, text=True)
        if "Unrecognised token" not in run.stdout + run.stderr:
            # Catch 2 returns the number of cases, so a crash shows as a signal or on stderr
            if run.returncode < 0 or run.stderr:
                sys.exit(f"{executable} cannot list its tests: exit code {run.returncode}\n{run.stderr}")
            return [line for line in run.stdout.splitlines() if line.strip()]
    sys.exit(f"{executable}: neither Catch2 2.x nor 3.x?")


def escaped(case):
    """A case's name as a pattern of Catch2 that matches it alone."""
    return re.sub(r"([\\,\[\]*])", r"\\\1", case)


def bracket(text):
    """A CMake argument that nothing inside can end."""
    return f"[==[{text}]==]"


# What a machine with a GPU has, a Jetson and Windows' Linux among them.
GPU = " OR ".join(f"EXISTS {path}" for path in ("/dev/nvidiactl", "/dev/nvhost-gpu", "/dev/dxg"))


def without_gpu(executable, name, labels, cases_of_test):
    """Lines for ctest that make one test of all cases, where each would start a process to say that it is skipped."""
    test = bracket(f"{name}: {cases_of_test} cases, without a GPU")
    return [f"if(NOT ({GPU}))", f"add_test({test} {bracket(executable)})",
            f"set_tests_properties({test} PROPERTIES LABELS {bracket(';'.join([name, *labels]))} "
            "SKIP_REGULAR_EXPRESSION EPISODIC_SKIP)", "return()", "endif()"]


def main(executable, name, output, *labels):
    tagged = {tag: set(cases(executable, f"[{tag}]")) for tag in ("heavy", "long")}
    lines = []
    for case in cases(executable):
        own = [name, *labels] + [tag for tag in tagged if case in tagged[tag] and tag not in labels]
        properties = {
            "LABELS": ";".join(own),
            "SKIP_REGULAR_EXPRESSION": "EPISODIC_SKIP",
            "WORKING_DIRECTORY": os.path.dirname(output),
        }
        if name.endswith("_emulated"):
            # or the address sanitizer makes each thread of a block a second stack of 11 MB
            properties["ENVIRONMENT_MODIFICATION"] = "ASAN_OPTIONS=string_append::detect_stack_use_after_return=0"
        if "heavy" in own:
            properties["RUN_SERIAL"] = "ON"  # it uses every core itself
        test = bracket(f"{name}: {case}")
        lines.append(f"add_test({test} {bracket(executable)} {bracket(escaped(case))})")
        lines.append(f"set_tests_properties({test} PROPERTIES "
                     + " ".join(f"{key} {bracket(value)}" for key, value in properties.items()) + ")")
    if not lines:
        sys.exit(f"{executable} has no tests")
    if "gpu" in labels:
        lines = without_gpu(executable, name, labels, len(lines) // 2) + lines
    with open(output + ".new", "w") as file:
        file.write("\n".join(lines) + "\n")
    os.replace(output + ".new", output)


if __name__ == "__main__":
    main(*sys.argv[1:])
