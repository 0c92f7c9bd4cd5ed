# SPDX-License-Identifier: Apache-2.0
"""The package on the repository's small model: what its docstrings say, and what is refused."""
import array
import os
import pathlib
import sys
import tempfile
import threading
import unittest

import episodic

MODEL = pathlib.Path(os.environ.get("EPISODIC_MODEL") or
                     pathlib.Path(__file__).resolve().parents[2] / "models" / "recall-2m6")
SENTENCE = "The old man walked slowly to the river in the evening. "
TEXT = SENTENCE * 40 + "The pass key of Nora is 52871. Remember it. 52871 is the pass key of Nora. " + SENTENCE * 110
QUESTION = "\n\n\nWhat is the pass key of Nora?\n\nThe pass key of Nora is"


class Engines(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.model = episodic.Model(MODEL)

    def read(self, **settings):
        engine = episodic.Engine(self.model).attach(**settings)
        engine.read(TEXT)
        return engine

    def test_it_answers_from_what_is_far_outside_its_window(self):
        engine = episodic.load(MODEL)
        engine.attach(n_local=128)
        seen = []
        tokens = engine.read(TEXT, progress=lambda done, total: seen.append((done, total)))
        self.assertEqual(engine.tokens, tokens)
        self.assertEqual(seen[-1], (tokens, tokens))
        answer = engine.ask(QUESTION, max_new=8)
        self.assertIn("52871", answer.text)
        self.assertEqual(str(answer), answer.text)
        self.assertEqual(engine.model.decode(answer.ids), answer.text)
        self.assertIn(answer.finish, ("length", "stop_token"))
        self.assertAlmostEqual(sum(e.attention for e in answer.recalled), 1, places=3)
        self.assertTrue(any("52871" in e.text for e in answer.recalled))
        self.assertEqual(engine.tokens, tokens)  # as it was
        self.assertEqual(answer.passages, [])
        again = engine.ask(QUESTION, max_new=8, reread=2)
        self.assertIn("52871", again.passages[0].text)

    def test_an_answer_streams_and_can_be_broken_off(self):
        engine = self.read()
        whole = engine.ask(QUESTION, max_new=8, ignore_eos=True).text
        self.assertEqual("".join(engine.stream(QUESTION, max_new=8, ignore_eos=True)), whole)
        for piece in engine.stream(QUESTION, max_new=1000000, ignore_eos=True):
            break
        self.assertTrue(whole.startswith(piece))
        self.assertEqual(engine.ask(QUESTION, max_new=8, ignore_eos=True).text, whole)

    def test_what_a_callback_raises_stops_the_work_and_comes_out(self):
        engine = episodic.Engine(self.model).attach()

        def interrupted(done, total):
            raise KeyboardInterrupt

        with self.assertRaises(KeyboardInterrupt):
            engine.read(TEXT, progress=interrupted)
        self.assertTrue(0 < engine.tokens < 1000)
        self.assertTrue(engine.read(TEXT, progress=lambda done, total: False) < 1000)

        def failing(id, text):
            raise ZeroDivisionError

        with self.assertRaises(ZeroDivisionError):
            engine.ask("Who", on_token=failing)

    def test_states_forks_and_events(self):
        engine = self.read()
        events = engine.events
        self.assertGreater(len(events), 10)
        self.assertEqual(events[0].end, events[1].start)
        before = engine.snapshot()
        written = engine.generate(QUESTION, max_new=4)
        self.assertGreater(engine.tokens, events[-1].end)
        self.assertIn(written.text, engine.text(0, engine.tokens))
        engine.restore(before)
        other = engine.fork()
        self.assertEqual(other.ask(QUESTION, max_new=8).text, engine.ask(QUESTION, max_new=8).text)
        with self.assertRaises(episodic.DataError):
            engine.text(0, 10 ** 9)

    def test_kept_memories(self):
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            with episodic.Engine(self.model) as engine:
                engine.open(folder / "book.mem", n_local=128)
                engine.read(TEXT)
                engine.commit()
                tokens = engine.tokens
                engine.fork(folder / "fork.mem")
            self.assertEqual(episodic.verify(folder / "book.mem"), [])
            engine = episodic.Engine(self.model).open(folder / "fork.mem")
            self.assertEqual(engine.tokens, tokens)
            self.assertIn("52871", engine.ask(QUESTION, max_new=8).text)
            self.assertGreater(engine.usage["disk_bytes"], 0)
            self.assertEqual(engine.forget(*engine.events[3]), 1)
            engine.commit()
            with self.assertRaises(episodic.ConfigError):
                episodic.Engine(self.model).open(folder / "fork.mem", write=False, n_local=64)
            engine.close()
            with open(next((folder / "book.mem").glob("*.seg*"), folder / "book.mem" / "manifest.json"), "r+b") as f:
                f.seek(10)
                f.write(b"damage")
            self.assertNotEqual(episodic.verify(folder / "book.mem"), [])

    def test_wrong_use_is_one_typed_exception(self):
        with self.assertRaisesRegex(episodic.FileError, "no/such/model"):
            episodic.load("no/such/model")
        with self.assertRaisesRegex(episodic.ConfigError, "no_such_setting"):
            episodic.Engine(self.model).attach(no_such_setting=1)
        engine = self.read()
        with self.assertRaisesRegex(TypeError, "tempo"):
            engine.ask("Who", tempo=1)
        with self.assertRaisesRegex(episodic.ConfigError, "temperature"):
            engine.ask("Who", temperature=-1)
        with self.assertRaises(episodic.DataError):
            engine.ask("")
        with self.assertRaisesRegex(episodic.DataError, "-3"):
            engine.read([-3])
        with self.assertRaises(episodic.ConfigError):
            engine.commit()
        with self.assertRaises(episodic.ConfigError):
            engine.fork("somewhere")
        engine.close()
        with self.assertRaises(episodic.ClosedError):
            engine.read("a")
        engine.close()
        for error in (episodic.ConfigError, episodic.DataError, episodic.FileError, episodic.BudgetError):
            self.assertTrue(issubclass(error, episodic.Error))

    def test_two_threads_do_not_meet_in_one_engine(self):
        engine = episodic.Engine(self.model).attach()
        results = []

        def work():
            for _ in range(30):
                try:
                    engine.read(SENTENCE)
                    results.append("read")
                except episodic.BusyError:
                    results.append("busy")

        threads = [threading.Thread(target=work) for _ in range(2)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(len(results), 60)
        self.assertIn("read", results)


class Memories(unittest.TestCase):
    SETTINGS = {"n_init": 4, "n_local": 16, "n_mem": 16, "chunk": 8, "min_block": 2, "max_block": 8}

    def test_a_memory_under_arrays_of_ones_own(self):
        try:
            import numpy
        except ImportError:
            self.skipTest("numpy is not installed")
        draw = numpy.random.default_rng(1)
        memory = episodic.Memory(2, 4, 2, 8, **self.SETTINGS)
        out = numpy.empty((8, 4, 8), numpy.float32)
        for _ in range(20):
            qkv = draw.standard_normal((8, 8, 8)).astype(numpy.float32)  # a fused projection: 4 + 2 + 2 heads
            memory.begin_step(8)
            for layer in range(2):
                memory.attend(layer, qkv[:, :4], qkv[:, 4:6], qkv[:, 6:], out)
                self.assertTrue(numpy.isfinite(out).all())
            memory.end_step(2 + draw.standard_normal(8))
        self.assertEqual(memory.tokens, 160)
        self.assertGreater(len(memory.events), 5)
        self.assertTrue(memory.recalled(0))
        first = memory.snapshot()
        other = memory.fork()

        def step(of):
            result = numpy.empty_like(out)
            of.begin_step(8)
            of.attend(0, qkv[:, :4], qkv[:, 4:6], qkv[:, 6:], result)
            return result

        self.assertTrue((step(memory) == step(other)).all())
        del first
        memory.begin_step(8)
        q = qkv[:, :4]
        for wrong, part in (((q[:, :, ::2], qkv[:, 4:6], qkv[:, 6:], out), "q"),
                            ((q[0], qkv[:, 4:6], qkv[:, 6:], out), "3|dimensions"),
                            ((q.astype(numpy.float64), qkv[:, 4:6], qkv[:, 6:], out), "float"),
                            ((q, [1, 2], qkv[:, 6:], out), "k"),
                            ((q, qkv[:, 4:6], qkv[:5, 6:], out), "v")):
            with self.assertRaisesRegex(episodic.DataError, part):
                memory.attend(0, *wrong)
        out.flags.writeable = False
        with self.assertRaisesRegex(episodic.DataError, "read-only"):
            memory.attend(0, q, qkv[:, 4:6], qkv[:, 6:], out)
        with self.assertRaises(episodic.DataError):
            memory.begin_step(1000)
        with self.assertRaisesRegex(episodic.ConfigError, "n_local"):
            episodic.Memory(2, 4, 2, 8, n_local=0)

    def test_dlpack(self):
        try:
            import numpy
        except ImportError:
            self.skipTest("numpy is not installed")

        class Speaks:  # DLPack and nothing else
            def __init__(self, a):
                self.a = a

            def __dlpack__(self, **how):
                return self.a.__dlpack__(**how)

            def __dlpack_device__(self):
                return self.a.__dlpack_device__()

        results = []
        for wrap in (Speaks, lambda a: a):
            memory = episodic.Memory(1, 2, 1, 4, **self.SETTINGS)
            draw = numpy.random.default_rng(2)
            q, k, v = (draw.standard_normal((3, h, 4)).astype(numpy.float32) for h in (2, 1, 1))
            out = numpy.zeros((3, 2, 4), numpy.float32)
            memory.begin_step(3)
            memory.attend(0, wrap(q), wrap(k), wrap(v), out)
            memory.end_step(array.array("f", [1, 2, 3]))
            results.append(out)
        self.assertTrue((results[0] == results[1]).all())

    def test_kept_in_a_folder(self):
        with tempfile.TemporaryDirectory() as folder:
            where = os.path.join(folder, "own.mem")
            with episodic.Memory(1, 2, 1, 4, folder=where, **self.SETTINGS) as memory:
                memory.commit()
            with self.assertRaisesRegex(episodic.ConfigError, "give none"):
                episodic.Memory(1, 2, 1, 4, folder=where, n_local=8)
            with self.assertRaises(episodic.ConfigError):
                episodic.Memory(1, 4, 1, 4, folder=where)
            self.assertEqual(episodic.Memory(1, 2, 1, 4, folder=where).tokens, 0)


if __name__ == "__main__":
    print(f"episodic {episodic.__version__}, Python {sys.version.split()[0]}")
    unittest.main(verbosity=2)
