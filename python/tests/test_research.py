# SPDX-License-Identifier: Apache-2.0
"""Reports over what the programs measured: numbers, refusals, plots where matplotlib is installed."""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

from episodic import FileError, research

ROOT = pathlib.Path(__file__).resolve().parents[2]


def segmentation(method, modularity, people):
    measures = {"modularity": 0.5, "conductance": 0.1, "ratio_of_sums": 1, "ratio_of_means": 1}
    return {"method": method, "count": "surprise", "gamma": 1, "missed": None, "boundaries": [4, 9, 30],
            "cohesion": {**measures, "modularity": modularity}, "random": measures,
            "random_deviation": {**measures, "modularity": 0.25}, "raters": None, "random_raters": None,
            "people": people, "random_people": people}


def made_files(folder):
    """One of each kind, as the programs write them."""
    comparison = {"model": "m", "stories": [{"name": "tale", "tokens": 40, "people": [5], "heads": [], "recall": [],
                                             "segmentations": [segmentation("S", 1.5, {"wasserstein": 0.0123}),
                                                               segmentation("F", 0.25, None)]}]}
    (folder / "comparison.json").write_text(json.dumps(comparison))
    (folder / "ablations.csv").write_text("setting,value,perplexity,events,passkey\n"
                                          "gamma,0.5,3.25,40,100\ngamma,1,3.5,20,80\nn_mem,64,3.75,20,60\n")
    for method, score in (("em-llm", None), ("rag", 12.5)):
        examples = [{"id": "a", "score": 1}, {"id": "b", "score": 0.5}]
        (folder / f"{method}.json").write_text(json.dumps(
            {"suite": "longbench", "task": "hotpotqa", "examples": examples, "settings": {"method": method},
             **({"score": score} if score else {})}))
    return [folder / name for name in ("comparison.json", "ablations.csv", "em-llm.json", "rag.json")]


class Reports(unittest.TestCase):
    def test_the_numbers_are_those_of_the_files(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            text = research.report(made_files(folder), folder / "report").read_text()
        self.assertIn("| tale | S | 3 | 4 | 0.0123 |", text)  # (1.5 - 0.5) / 0.25 deviations above random
        self.assertIn("| tale | F | 3 | -1 |  |", text)
        self.assertIn("| 0.5 | 3.25 | 40 | 100 |", text)
        self.assertIn("## n_mem\n\n| value | perplexity | events | passkey |", text)
        self.assertIn("| task | em-llm | rag |\n| --- | --- | --- |\n| hotpotqa | 75 | 12.5 |", text)

    def test_results_of_one_name_are_told_apart(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            files = made_files(folder)
            text = research.report([files[3], files[3]], folder / "report").read_text()
        self.assertIn("| task | rag (1) | rag (2) |", text)

    def test_other_files_are_one_typed_line_and_nothing_is_written(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            good = made_files(folder)
            for text, suffix in (("{", "json"), ("[]", "json"), ("{\"stories\": [{}]}", "json"), ("a,b\n1,2\n", "csv"),
                                 ("{\"task\": \"t\", \"examples\": []}", "json"), ("{\"task\": NaN}", "json"),
                                 ("setting,value,perplexity\ngamma,x,1\n", "csv")):
                bad = folder / f"bad.{suffix}"
                bad.write_text(text)
                with self.subTest(text), self.assertRaisesRegex(FileError, "bad") as caught:
                    research.report([*good, bad], folder / "report")
                self.assertNotIn("\n", str(caught.exception))
            with self.assertRaises(FileError):
                research.report([folder / "missing.json"], folder / "report")
            self.assertFalse((folder / "report").exists())
            self.assertEqual(research.main(["--out", str(folder / "report"), str(folder / "missing.json")]), 1)

    def test_it_reads_what_the_program_writes(self):
        program = os.environ.get("EPISODIC_PROGRAM") or shutil.which("episodic")
        model = ROOT / "models" / "recall-2m6"
        if not program or not pathlib.Path(program).exists() or not (model / "model.safetensors").exists():
            self.skipTest("no program `episodic` (EPISODIC_PROGRAM names one)")
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            (folder / "stories").mkdir()
            (folder / "stories" / "first.txt").write_text("The old man walked to the river. A fox saw him. " * 40)
            subprocess.run([program, "compare-events", "--quiet", "--draws", "4", "--threads", "1", "--json",
                            folder / "found.json", "--model", model, "--memory", "{\"n_local\": 64, \"chunk\": 32}",
                            "--stories", folder / "stories", "--out", folder / "theirs"], check=True,
                           capture_output=True)
            found = research.read_comparison(folder / "found.json")
        self.assertGreater(len(found), 5)
        self.assertIn("S", [s.method for s in found])
        self.assertTrue(all(s.boundaries == sorted(s.boundaries) for s in found))


class Plots(unittest.TestCase):
    def test_there_is_a_plot_for_every_table(self):
        python = os.environ.get("EPISODIC_PYTHON_MATPLOTLIB", sys.executable)
        if subprocess.run([python, "-c", "import matplotlib"], capture_output=True).returncode:
            self.skipTest("EPISODIC_SKIP: matplotlib is not installed (EPISODIC_PYTHON_MATPLOTLIB names a Python that "
                          "has it)")
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            command = [python, "-m", "episodic.research", "--out", folder / "report", *made_files(folder)]
            done = subprocess.run(command, capture_output=True, text=True,
                                  env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
            self.assertEqual(done.returncode, 0, done.stderr)
            text = (folder / "report" / "report.md").read_text()
            self.assertNotIn("Without plots", text)
            pictures = sorted(path.stem for path in (folder / "report").glob("*.svg"))
            self.assertEqual(pictures, ["ablation_gamma", "ablation_n_mem", "events_1", "suite_longbench"])
            for picture in pictures:
                self.assertIn(f"![{picture}]({picture}.svg)", text)
                self.assertIn("</svg>", (folder / "report" / f"{picture}.svg").read_text())


if __name__ == "__main__":
    unittest.main(verbosity=2)
