# SPDX-License-Identifier: Apache-2.0
"""The package on the repository's small model: what its docstrings say, and what is refused."""
import array
import os
import pathlib
import subprocess
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
        best = engine.ask(QUESTION, max_new=8, reread=1, rerank=4)
        self.assertEqual([p.score for p in best.passages], [1])  # of the likeliest question
        self.assertFalse(best.passages_only)
        alone = engine.ask(QUESTION, max_new=8, reread="alone")
        self.assertTrue(alone.passages_only)
        self.assertTrue(any("52871" in p.text for p in alone.passages))
        self.assertEqual(alone.recalled, [])
        sure = engine.ask(QUESTION, max_new=8, reread="sure")
        self.assertEqual(sure.passages == alone.passages, sure.passages_only)
        self.assertEqual(episodic.ask_many([(engine, QUESTION)], max_new=8, reread="alone"), [alone])
        self.assertEqual(engine.tokens, tokens)
        with self.assertRaisesRegex(ValueError, "reread = 'all'"):
            engine.ask(QUESTION, reread="all")
        with self.assertRaisesRegex(episodic.ConfigError, "reread"):
            engine.ask(QUESTION, reread=-3)
        with self.assertRaisesRegex(episodic.ConfigError, "reread = -2"):
            engine.generate(QUESTION, reread="alone")

    def test_full_attention_is_asked_too_and_stays_as_it_was(self):
        engine = episodic.load(MODEL)
        tokens = engine.read(SENTENCE * 3)
        answer = engine.ask("The old man", max_new=4)
        self.assertEqual(engine.tokens, tokens)
        both = episodic.ask_many([(engine, "The old man"), (engine.fork(), "A")], max_new=4)
        self.assertEqual(both[0], answer)
        self.assertEqual(engine.generate("The old man", max_new=4).text, answer.text)
        self.assertGreater(engine.tokens, tokens)

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

    def test_many_answers_at_once_are_those_of_each_alone(self):
        engine = self.read()
        engines = [engine, engine.fork(), engine.fork(), self.read(n_local=64)]
        asked = [QUESTION, "The old man", "Remember", QUESTION]
        for options in ({"max_new": 8, "ignore_eos": True},
                        {"max_new": 6, "temperature": 0.8, "seed": 5, "repetition_penalty": 1.2, "recall": False}):
            alone = [e.ask(q, **options) for e, q in zip(engines, asked)]
            seen = []
            together = episodic.ask_many(zip(engines, asked), on_token=lambda *told: seen.append(told), **options)
            self.assertEqual(together, alone)  # events recalled, and how much, among it
            for i, answer in enumerate(together):
                self.assertEqual("".join(text for number, _, text in seen if number == i), answer.text)
            self.assertEqual(len({e.tokens for e in engines}), 1)  # as they were
        self.assertIn("52871", alone[0].text + together[0].text)
        # what is written becomes a part of each
        before = [e.snapshot() for e in engines]
        alone = [e.generate(q, max_new=5) for e, q in zip(engines, asked)]
        logits = [list(r.logits) for r in episodic.run([(e, [5]) for e in engines])]
        lengths = [e.tokens for e in engines]
        for e, state in zip(engines, before):
            e.restore(state)
        self.assertEqual(episodic.generate_many(zip(engines, asked), max_new=5), alone)
        self.assertEqual([list(r.logits) for r in episodic.run([(e, [5]) for e in engines])], logits)
        self.assertEqual([e.tokens for e in engines], lengths)
        self.assertEqual(episodic.ask_many([]), [])
        self.assertEqual(episodic.run([]), [])

    def test_one_that_fails_leaves_the_others_alone(self):
        good, other, closed, busy = self.read(), self.read(), self.read(), self.read()
        closed.close()
        stranger = episodic.load(MODEL)
        alone = good.ask(QUESTION, max_new=4)

        def ask_within(done, total):  # `busy` is in use then
            told.extend(episodic.ask_many([(good, QUESTION), (closed, QUESTION), (stranger, QUESTION), (good, "again"),
                                           (other, ""), (busy, QUESTION)], max_new=4))
            return False

        told = []
        busy.read("a", progress=ask_within)
        self.assertEqual(told[0], alone)
        for answer, kind, part in ((told[1], episodic.ClosedError, "freed|null"),
                                   (told[2], episodic.DataError, "model"), (told[3], episodic.DataError, "prompt 0"),
                                   (told[4], episodic.DataError, "prompt"), (told[5], episodic.BusyError, "in use")):
            self.assertIsInstance(answer, kind)
            self.assertRegex(str(answer), part)
        tokens = other.tokens
        results = episodic.run([(good, [3, 4]), (closed, [1]), (stranger, [1]), (good, [1]), (other, [-1])])
        self.assertEqual([type(r.error) for r in results],
                         [type(None), episodic.ClosedError] + 3 * [episodic.DataError])
        self.assertEqual(len(results[0].logits), self.model.vocab_size)
        self.assertIsNone(results[1].logits)
        self.assertEqual(other.tokens, tokens)
        self.assertIsNone(episodic.run([(other, [1])], logits=False)[0].logits)
        with self.assertRaisesRegex(TypeError, "tempo"):
            episodic.ask_many([(good, "Who")], tempo=1)
        bad = episodic.ask_many([(good, "Who"), (other, "Who")], temperature=-1)
        self.assertEqual([type(e) for e in bad], [episodic.ConfigError] * 2)

        def failing(number, id, text):
            raise ZeroDivisionError

        with self.assertRaises(ZeroDivisionError):
            episodic.ask_many([(good, "Who"), (other, "Who")], on_token=failing, max_new=1000000)
        self.assertEqual(other.tokens, tokens + 1)

    def test_a_device_that_is_not_there_is_one_typed_line(self):
        with self.assertRaisesRegex(episodic.ConfigError, "must be cpu or cuda"):
            episodic.load(MODEL, device="tpu")
        try:
            engine = episodic.load(MODEL, device="cuda")
        except (episodic.NotBuiltError, episodic.DeviceError) as e:
            self.assertNotIn("\n", str(e))
            self.assertRegex(str(e), "cuda|CUDA")
        else:
            self.assertEqual(engine.model.device, "cuda")
            with self.assertRaisesRegex(episodic.ConfigError, "max_tokens"):
                engine.attach()
            engine.attach(max_tokens=5000, n_local=128)
            engine.read(TEXT)
            self.assertIn("52871", engine.ask(QUESTION, max_new=8).text)

    def test_a_stream_that_is_left_open_does_not_keep_a_program_from_ending(self):
        program = ("import episodic, sys\n"
                   "engine = episodic.load(sys.argv[1]).attach()\n"
                   "texts = engine.stream('The old man', max_new=1000000, ignore_eos=True, recall=False)\n"
                   "print(next(texts), flush=True)\n"
                   "sys.exit(3)\n")
        done = subprocess.run([sys.executable, "-c", program, MODEL], capture_output=True, text=True, timeout=120,
                              env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
        self.assertEqual(done.returncode, 3, done.stderr)

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
