# SPDX-License-Identifier: Apache-2.0
"""lm-eval's model class: within the window it gives what lm-eval's own gives, beyond it what the memory recalls."""
import os
import pathlib
import sys
import unittest

try:
    import lm_eval  # noqa: F401
    import torch
    import transformers
    from lm_eval.api.instance import Instance
    from lm_eval.api.registry import get_model
    from lm_eval.models.huggingface import HFLM
except ImportError as e:
    print(f"EPISODIC_SKIP: {e.name} is not installed")
    sys.exit(0)

import episodic
import episodic.lm_eval  # registers the class

transformers.logging.set_verbosity_error()
MODEL = pathlib.Path(os.environ.get("EPISODIC_MODEL") or
                     pathlib.Path(__file__).resolve().parents[2] / "models" / "recall-2m6")
SENTENCE = "The old man walked slowly to the river in the evening. "
FACT = "The pass key of Nora is 52871. Remember it. 52871 is the pass key of Nora. "
BOOK = SENTENCE * 40 + FACT + SENTENCE * 110 + "\n\n\nWhat is the pass key of Nora?\n\nThe pass key of Nora is"


def requests(kind, arguments):
    return [Instance(kind, {}, a, i) for i, a in enumerate(arguments)]


class LmEval(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.args = {"pretrained": os.fspath(MODEL), "device": "cpu", "dtype": "float32"}
        cls.wide = get_model("episodic")(**cls.args, n_local=1024, n_init=16, chunk=64)
        cls.small = get_model("episodic")(**cls.args, n_local=128, n_mem=128, n_init=16, chunk=64)
        cls.own = HFLM(**cls.args)

    def test_within_the_window_it_is_the_models_own(self):
        asked = [("The old man walked", " slowly to the river"), ("The old man walked", " home"),
                 ("", "In the evening"), (SENTENCE * 3, SENTENCE), ("The old man walked", " slowly to the river")]
        wanted = self.own.loglikelihood(requests("loglikelihood", asked), disable_tqdm=True)
        told = self.wide.loglikelihood(requests("loglikelihood", asked), disable_tqdm=True)
        for (a, a_greedy), (b, b_greedy) in zip(wanted, told):
            self.assertAlmostEqual(a, b, delta=1e-3)
            self.assertEqual(a_greedy, b_greedy)
        self.assertEqual(told[0], told[4])  # each by itself, though the first three share what was read
        texts = [(SENTENCE * 2,), ("The river.",)]
        for a, b in zip(self.own.loglikelihood_rolling(requests("loglikelihood_rolling", texts), disable_tqdm=True),
                        self.wide.loglikelihood_rolling(requests("loglikelihood_rolling", texts), disable_tqdm=True)):
            self.assertAlmostEqual(a, b, delta=1e-3)
        until = [(t, {"until": ["\n"], "max_gen_toks": 8, "do_sample": False}) for t in ("The old man", SENTENCE * 3)]
        self.assertEqual(self.wide.generate_until(requests("generate_until", until), disable_tqdm=True),
                         self.own.generate_until(requests("generate_until", until), disable_tqdm=True))

    def test_beyond_it_it_answers_from_what_it_recalls(self):
        told = self.small.generate_until(requests("generate_until", [
            (BOOK, {"until": ["\n"], "max_gen_toks": 8, "do_sample": False})]), disable_tqdm=True)
        self.assertIn("52871", told[0])
        right, wrong = self.small.loglikelihood(requests("loglikelihood", [(BOOK, " 52871"), (BOOK, " 93104")]),
                                                disable_tqdm=True)
        self.assertGreater(right[0], wrong[0] + 3)
        self.assertTrue(right[1])

    def test_what_is_refused(self):
        with self.assertRaisesRegex(episodic.ConfigError, "no_such"):
            get_model("episodic")(**self.args, no_such=1)
        with self.assertRaisesRegex(episodic.ConfigError, "folder"):
            get_model("episodic")(**self.args, folder="x")


if __name__ == "__main__":
    print(f"transformers {transformers.__version__}, torch {torch.__version__}")
    unittest.main(verbosity=2)
