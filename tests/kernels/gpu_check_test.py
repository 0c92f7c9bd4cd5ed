# SPDX-License-Identifier: Apache-2.0
"""usage: gpu_check_test.py GPU_CHECK: scripts/gpu_check over programs that only pretend."""
import os
import pathlib
import subprocess
import sys
import tempfile

GPU_CHECK = sys.argv[1]
TESTS = ("test_kernels", "test_device", "test_device_decoder", "test_device_training", "test_device_torch", "example_segmented_attention")
PASSED = "echo 'All tests passed (7 assertions in 2 test cases)'"
# $3 is the tool: compute-sanitizer --tool NAME ... PROGRAM
SANITIZER = '[ "$1" = --version ] && echo "a sanitizer" && exit 0; [ "$2" != {broken} ] || exit 86; "$7"'


def check(changes, sanitizer="none", arguments=(), torch_cuda=False):
    """(exit code, summary) of a run where `changes` replaces the bodies of some programs."""
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        programs = {name: PASSED for name in TESTS}
        programs["bench_kernels"] = 'while [ "$1" != --json ]; do shift; done; echo "{}" > "$2"; echo a table'
        programs["compute-sanitizer"] = SANITIZER.format(broken=sanitizer)
        for name, body in {**programs, **changes}.items():
            if body is not None:
                (folder / name).write_text(f"#!/bin/bash\n{body}\n")
                (folder / name).chmod(0o755)
        libraries = folder / "torch"
        libraries.mkdir()
        if torch_cuda:
            (libraries / "libtorch_cuda.so").write_text("the loader says that it leaves this out")
        out = folder / "out"
        ran = subprocess.run([GPU_CHECK, "--bin", folder, *arguments, out], capture_output=True, text=True,
                             env={**os.environ, "LD_LIBRARY_PATH": str(libraries),
                                  "COMPUTE_SANITIZER": str(folder / "compute-sanitizer")})
        summary = (out / "summary.txt").read_text() if out.exists() else ran.stderr
        logs = sorted(path.name for path in out.iterdir()) if out.exists() else []
        return ran.returncode, summary, logs


def expect(what, happened, seen):
    if not happened:
        sys.exit(f"not so: {what}\n{seen}")


code, summary, logs = check({})
expect("all passes", code == 0 and "\n0 failed" in summary, summary)
expect("every test is run plainly, and some cases under four tools", summary.count("All tests passed") == 10, summary)
expect("the most important comes first", summary.index("test_kernels ") < summary.index("a table") < summary.index("test_device "),
       summary)
code, summary, _ = check({}, arguments=["--all"])
expect("or every test", code == 0 and summary.count("All tests passed") == 25, summary)
expect("without torch's CUDA its test is named", "test_device_torch" in summary and "not run" in summary, summary)
yardstick = 'echo "beside $2 with $LD_PRELOAD"'
code, summary, _ = check({"bench_torch_attention": yardstick}, torch_cuda=True)
expect("with it the test runs, preloaded", code == 0 and summary.count("All tests passed") == 11, summary)
expect("and torch's attention is measured beside", "bench_kernels.json with" in summary and "torch/libtorch_cuda.so" in summary,
       summary)
expect("the table is in the summary", "a table" in summary, summary)
expect("what is written", logs == ["bench_kernels.json", "initcheck.log", "memcheck.log", "plain.log",
                                   "racecheck.log", "summary.txt", "synccheck.log"], logs)
code, summary, _ = check({"test_device": "echo 'test cases: 2 | 1 failed'; exit 1"}, arguments=["--tools", ""])
expect("a failing test fails", code == 1 and "\n1 failed" in summary and "1 failed" in summary, summary)
code, summary, _ = check({"test_device": f"echo 'EPISODIC_SKIP: no CUDA device'; {PASSED}"}, arguments=["--tools", ""])
expect("skipping for want of a device fails", code == 1 and "no CUDA device" in summary, summary)
code, summary, _ = check({}, sanitizer="racecheck")
expect("a race fails", code == 1 and "\n1 failed" in summary, summary)
code, summary, _ = check({"test_kernels": None}, arguments=["--quick"])
expect("a program that lacks fails", code == 1 and "\n1 failed" in summary, summary)
code, summary, _ = check({"bench_kernels": "exit 1"}, arguments=["--quick"])
expect("a benchmark that fails fails", code == 1 and "\n1 failed" in summary, summary)
code, summary, _ = check({"test_device": "sleep 20"}, arguments=["--limit", "1", "--tools", ""])
expect("a program that hangs is stopped", code == 1 and "stopped after 1 s" in summary, summary)
code, summary, logs = check({"test_device": "echo so far; sleep 20"}, arguments=["--total", "3"])
expect("when the time is up, what there is stays", code == 0 and "stopped" in summary and "a table" in summary
       and "bench_kernels.json" in logs and "\n0 failed, " in summary and ", 0 without" not in summary, summary)
cases = 'if [ "$1" = --list-test-names-only ]; then echo one; echo two; else [ "$1" != {broken} ]; fi'
code, summary, logs = check({"test_device": cases.format(broken="none")}, arguments=["--jobs", "2", "--tools", ""])
expect("cases run by themselves", code == 0 and "test_device: 2 passed, 0 skipped, 0 failed" in summary, summary)
expect("each has its log", "test_device.log" in logs, logs)
code, summary, _ = check({"test_device": cases.format(broken="two")}, arguments=["--jobs", "2", "--tools", ""])
expect("a case that fails fails", code == 1 and "test_device: 1 passed, 0 skipped, 1 failed" in summary, summary)
code, summary, _ = check({"test_device": "echo 'EPISODIC_SKIP: no CUDA device'"}, arguments=["--jobs", "2", "--tools", ""])
expect("cases skipped for want of a device fail", code == 1 and "no CUDA device" in summary, summary)
code, summary, _ = check({}, arguments=["--tools", "nocheck"])
expect("an unknown tool is refused", code == 2 and "nocheck" in summary, summary)
