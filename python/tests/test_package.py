# SPDX-License-Identifier: Apache-2.0
"""The package as its users meet it: types and docstrings, the README's programs, versions, the notebook's cells."""
import inspect
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

import episodic

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
MODEL = pathlib.Path(os.environ.get("EPISODIC_MODEL") or ROOT / "models" / "recall-2m6")


def public_callables():
    """(name, function) of all that a user may call."""
    for name in episodic.__all__:
        thing = getattr(episodic, name)
        if inspect.isfunction(thing):
            yield name, thing
        elif inspect.isclass(thing):
            for member, value in vars(thing).items():
                function = value.fget if isinstance(value, property) else value
                made_here = inspect.isfunction(function) and function.__module__.startswith("episodic")
                if made_here and (not member.startswith("_") or member == "__init__"):
                    yield f"{name}.{member}", function


class Types(unittest.TestCase):
    def test_every_public_callable_has_types_and_says_what_it_does(self):
        seen = 0
        for name, function in public_callables():
            with self.subTest(name):
                signature = inspect.signature(function)
                generated = "<string>" in function.__code__.co_filename  # of dataclasses
                for parameter in list(signature.parameters.values())[1 if "." in name else 0:]:
                    self.assertIsNot(parameter.annotation, inspect.Parameter.empty, parameter.name)
                self.assertIsNot(signature.return_annotation, inspect.Signature.empty)
                if not name.endswith("__init__") and not generated:
                    self.assertGreater(len(inspect.getdoc(function) or ""), 10)
                seen += 1
        self.assertGreater(seen, 50)

    def test_every_public_class_says_what_it_is(self):
        for name in episodic.__all__:
            thing = getattr(episodic, name)
            with self.subTest(name):
                self.assertTrue((thing.__doc__ or "").strip())

    def test_the_package_says_that_it_has_types(self):
        self.assertTrue((pathlib.Path(episodic.__file__).parent / "py.typed").exists())

    def test_a_program_over_it_is_strictly_typed(self):
        python = os.environ.get("EPISODIC_PYTHON_MYPY", sys.executable)
        found = subprocess.run([python, "-c", "import mypy"], capture_output=True)
        if found.returncode:
            self.skipTest("EPISODIC_SKIP: mypy is not installed (EPISODIC_PYTHON_MYPY names a Python that has it)")
        with tempfile.TemporaryDirectory() as cache:
            environment = {**os.environ, "MYPYPATH": str(pathlib.Path(episodic.__file__).parents[1])}
            # as of an installed package: its own sources' errors are not the user's
            checked = subprocess.run([python, "-m", "mypy", "--strict", "--cache-dir", cache, "--follow-imports",
                                      "silent", "--ignore-missing-imports", str(HERE / "typed_use.py")],
                                     capture_output=True, text=True, env=environment)
        self.assertEqual(checked.returncode, 0, checked.stdout + checked.stderr)


class Documents(unittest.TestCase):
    def test_the_readmes_programs_run_and_answer(self):
        block = re.compile(r"<!-- run: python; expect: (.*?) -->\n```python\n(.*?)^```$", re.S | re.M)
        ran = 0
        for document in (ROOT / "README.md", ROOT / "python" / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
            for expected, code in block.findall(document.read_text()):
                with tempfile.TemporaryDirectory() as folder, self.subTest(document.name):
                    work = pathlib.Path(folder)
                    sentence = "The old man walked slowly to the river in the evening. "
                    key = "The pass key of Nora is 52871. Remember it. 52871 is the pass key of Nora. "
                    (work / "book.txt").write_text(sentence * 40 + key + sentence * 110)
                    os.symlink(MODEL, work / "model")
                    ran += 1
                    done = subprocess.run([sys.executable, "-c", code], cwd=work, capture_output=True, text=True,
                                          env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
                    self.assertEqual(done.returncode, 0, done.stderr)
                    self.assertRegex(done.stdout, expected)
        self.assertGreaterEqual(ran, 3)

    def test_version_and_changelog_are_one(self):
        version = (ROOT / "VERSION").read_text().strip()
        self.assertEqual(episodic.__version__, version)
        newest = re.search(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.M)
        self.assertIn(version, newest[1])

    def test_the_notebooks_cells_run(self):
        """As Jupyter runs them, one namespace for all; without Jupyter."""
        notebook = json.loads((ROOT / "python" / "examples" / "episodic.ipynb").read_text())
        cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
        self.assertGreaterEqual(len(cells), 4)
        for cell in notebook["cells"]:
            self.assertEqual(cell.get("outputs", []), [], "outputs are not committed")
        with tempfile.TemporaryDirectory() as folder:
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "EPISODIC_MODEL": str(MODEL)}
            program = "\n".join(cells) + "\n"
            done = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True,
                                  env=environment)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("52871", done.stdout)
            picture = (pathlib.Path(folder) / "events.svg").read_text()
            self.assertGreater(picture.count("<rect"), 20)


if __name__ == "__main__":
    unittest.main(verbosity=2)
