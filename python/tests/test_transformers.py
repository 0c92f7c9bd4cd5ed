# SPDX-License-Identifier: Apache-2.0
"""A memory within transformers models: equal to their own attention within the window, and to our decoder beyond it."""
import contextlib
import ctypes
import io
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import unittest

try:
    import torch
    import transformers
except ImportError as e:
    print(f"EPISODIC_SKIP: {e.name} is not installed")
    sys.exit(0)

import episodic
from episodic import _library as lib
from episodic.transformers import new_memory

transformers.logging.set_verbosity_error()
MODEL = pathlib.Path(os.environ.get("EPISODIC_MODEL") or
                     pathlib.Path(__file__).resolve().parents[2] / "models" / "recall-2m6")
SENTENCE = "The old man walked slowly to the river in the evening. "
TEXT = SENTENCE * 40 + "The pass key of Nora is 52871. Remember it. 52871 is the pass key of Nora. " + SENTENCE * 110
QUESTION = "\n\n\nWhat is the pass key of Nora?\n\nThe pass key of Nora is"
SIZES = {"vocab_size": 300, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4,
         "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 4096, "pad_token_id": 0,
         "bos_token_id": 1, "eos_token_id": 2}


def rope(kind, **more):
    """For transformers 5 and 4."""
    told = {"rope_type": kind, "rope_theta": 10000.0, **more}
    if int(transformers.__version__.split(".")[0]) >= 5:
        return {"rope_parameters": told}
    return {"rope_theta": told.pop("rope_theta"), "rope_scaling": told}


OURS = {  # families that our decoder has, with what differs between layers
    "llama": {}, "mistral": {"sliding_window": None}, "mistral, all sliding": {"sliding_window": 48},
    "qwen2": {}, "qwen2, upper layers sliding": {"use_sliding_window": True, "sliding_window": 16,
                                                 "max_window_layers": 2},
    "qwen3": {"head_dim": 32}, "phi3": {"sliding_window": None}, "smollm3": {}, "olmo2": {},
    "granite": {"attention_multiplier": 0.3, "logits_scaling": 3.0, "embedding_multiplier": 4.0},
    "gemma2": {"sliding_window": 16, "head_dim": 16, "query_pre_attn_scalar": 9},
    "gemma3_text": {"sliding_window": 16, "num_hidden_layers": 7, "head_dim": 16, "query_pre_attn_scalar": 9},
    "llama with llama3's rope": rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                                     original_max_position_embeddings=64),
    "qwen2 with yarn": {**rope("yarn", factor=4.0, original_max_position_embeddings=64),
                        "max_position_embeddings": 256},
    "llama with dynamic rope": {**rope("dynamic", factor=4.0), "max_position_embeddings": 24},
    "phi3 with longrope": {"sliding_window": None, "original_max_position_embeddings": 24,
                           **rope("longrope", original_max_position_embeddings=24, short_factor=[1.0] * 8,
                                  long_factor=[1.5 + i for i in range(8)])},
}
OTHERS = {  # not compared with our decoder, which has some of them: partial and interleaved rotary embedding, none in
            # some layers, experts
    "starcoder2": {"sliding_window": None}, "cohere": {}, "cohere2": {"sliding_window": 16}, "glm": {"head_dim": 16},
    "olmo3": {"sliding_window": 16}, "exaone4": {"sliding_window": 16, "sliding_window_pattern": 2}, "stablelm": {},
    "gpt_neox": {}, "phi": {}, "mixtral": {"num_local_experts": 4},
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "head_dim": 16},
}
FAMILIES = {**OURS, **OTHERS}


def some(families):
    """Every third of them, all with EPISODIC_ALL_CASES=1."""
    return families if os.environ.get("EPISODIC_ALL_CASES") == "1" else dict([*families.items()][::3])


# n_local that ends before the window of all layers, or before the length from which a rotary table changes
WINDOWS = {"mistral, all sliding": 48, "llama with dynamic rope": 24, "phi3 with longrope": 24}
# their own attention has windows in other layers than the configuration says
WRONG_BY_ITSELF = {"qwen2, upper layers sliding"} if transformers.__version__.startswith("4.52") else set()
SMALL = {"n_init": 4, "n_local": 32, "n_mem": 32, "chunk": 16, "min_block": 4, "max_block": 16}


def random_model(family, **more):
    kind = family.replace(",", " ").split()[0]
    config = transformers.AutoConfig.for_model(kind, **{**SIZES, **FAMILIES.get(family, {}), **more})
    torch.manual_seed(3)
    # the others of transformers 4 leave its cap out
    more = {"attn_implementation": "eager"} if kind == "gemma2" else {}
    model = transformers.AutoModelForCausalLM.from_config(config, **more).eval()
    for weight in model.parameters():  # so that tokens differ and attention is not flat
        if weight.dim() > 1:
            weight.data *= 4
    return model


class Transformers(unittest.TestCase):
    def each(self, families):
        tried = 0
        for family in families:
            try:
                model = random_model(family)
            except (ValueError, KeyError, TypeError, AttributeError) as e:
                print(f"{family}: not in this transformers ({type(e).__name__})", file=sys.stderr)
                continue
            if family in OTHERS and "ALL_ATTENTION_FUNCTIONS" not in vars(sys.modules[type(model).__module__]):
                print(f"{family}: its attention does not pass through the interface of this transformers",
                      file=sys.stderr)
                continue
            tried += 1
            yield family, model
        self.assertGreater(tried, len(families) / 2)

    def logits(self, engine):
        return torch.tensor(list(lib.items_of(ctypes.c_float, "sequence_logits", engine._handle)))

    def test_within_the_window_it_is_the_models_own_attention(self):
        for family, model in self.each(some(FAMILIES)):
            if family in WRONG_BY_ITSELF:
                continue
            settings = {"n_local": WINDOWS.get(family, 512), "n_init": 4, "chunk": 16}
            ids = torch.randint(3, 300, (1, min(100, settings["n_local"] - 14)))
            with self.subTest(family):
                with torch.inference_mode():
                    wanted = model(ids).logits
                    written = model.generate(ids, max_new_tokens=12, do_sample=False)
                with episodic.attach(model, **settings):
                    self.assertLess((model(ids).logits - wanted).abs().max().item(), 1e-4)
                with episodic.attach(model, **settings) as memory:
                    told = model.generate(ids, max_new_tokens=12, do_sample=False)
                    self.assertEqual(told.tolist(), written.tolist())
                    self.assertEqual(memory.tokens, written.shape[1] - 1)
                with torch.inference_mode():  # as it was
                    self.assertTrue((model(ids).logits == wanted).all())

    def test_beyond_it_it_is_what_our_own_decoder_computes(self):
        for family, model in self.each(some(OURS)):
            with self.subTest(family):
                ids, question = torch.randint(3, 300, (1, 400)), torch.randint(3, 300, (1, 9))
                with tempfile.TemporaryDirectory() as folder:
                    model.save_pretrained(folder)
                    engine = episodic.load(folder)
                    engine.attach(**SMALL)
                    engine.read(ids[0].tolist())
                    there = self.logits(engine)
                    engine.read(question[0, :-1].tolist())
                    token, answer = question[0, -1].item(), []
                    for _ in range(12):
                        engine.read([token])
                        token = int(self.logits(engine).argmax())
                        answer.append(token)
                    for source in (folder, None):  # by the model's files, and by what is seen of its layers alone
                        with episodic.attach(model, source=source, **SMALL) as memory:
                            here = model(ids).logits[0, -1]
                            self.assertLess((here - there).abs().max().item(), 1e-4)
                            recalled = [memory.recalled(lane) for lane in range(memory.lanes)]
                            self.assertTrue(any(recalled))
                            told = model.generate(question, max_new_tokens=12, do_sample=False, eos_token_id=None)
                            self.assertEqual(told[0, question.shape[1]:].tolist(), answer)
                            self.assertGreater(len(memory.events), 10)
                            self.assertEqual(memory.events, [tuple(e) for e in engine.events][:len(memory.events)])
                            self.assertGreaterEqual(len(memory.events), len(engine.events) - 1)

    def test_it_answers_recalls_and_writes_as_our_own_decoder_does(self):
        model = transformers.AutoModelForCausalLM.from_pretrained(MODEL).float().eval()
        engine = episodic.load(MODEL)
        settings = {"n_init": 16, "n_local": 128, "n_mem": 128, "chunk": 64, "n_repr": 4, "min_block": 8,
                    "max_block": 128, "gamma": 1.0}
        engine.attach(**settings)
        ids, question = engine.model.encode(TEXT), engine.model.encode(QUESTION, special=False)
        engine.read(ids)
        with episodic.attach(model, **settings) as memory:
            model(torch.tensor([ids]))
            self.assertEqual(memory.events, [tuple(e) for e in engine.events])
            before = memory.snapshot()
            answer = engine.ask(QUESTION, max_new=8)
            written = model.generate(torch.tensor([question]), max_new_tokens=8, do_sample=False)
            told = written[0, len(question):].tolist()
            self.assertEqual(told[:len(answer.ids)], list(answer.ids))
            self.assertIn("52871", engine.model.decode(told))
            memory.restore(before)
            self.assertEqual(memory.tokens, engine.tokens)

    def test_it_recalls_what_our_own_decoder_recalls(self):
        model = transformers.AutoModelForCausalLM.from_pretrained(MODEL).float().eval()
        engine = episodic.load(MODEL)
        engine.attach(**SMALL)
        ids, question = torch.randint(3, 500, (500,)).tolist(), engine.model.encode(QUESTION, special=False)
        engine.read(ids)
        answer = engine.ask(QUESTION, max_new=1)
        with episodic.attach(model, **SMALL) as memory:
            model(torch.tensor([ids]))
            recalled = set()
            first = question[:-1]
            for part in (*(first[i:i + memory.chunk] for i in range(0, len(first), memory.chunk)), question[-1:]):
                model(torch.tensor([part]))
                recalled |= {e for lane in range(memory.lanes) for e in memory.recalled(lane)}
        self.assertTrue(recalled)
        self.assertEqual(recalled, {e.event for e in answer.recalled})

    def test_the_model_is_left_as_it_was(self):
        model = random_model("gemma2")
        base, head = model.base_model, model.get_output_embeddings()
        others = base.forward  # somebody else's replacement
        base.forward = lambda *args, **kwargs: others(*args, **kwargs)
        before = [dict(vars(m)) for m in model.modules()]
        with episodic.attach(model, **SMALL):
            self.assertIsNot(vars(head).get("forward"), None)
        with self.assertRaises(ZeroDivisionError):
            with episodic.attach(model, **SMALL):
                raise ZeroDivisionError
        self.assertEqual([list(vars(m)) for m in model.modules()], [list(b) for b in before])
        self.assertIs(vars(base)["forward"], before[[*model.modules()].index(base)]["forward"])

    def test_bfloat16(self):
        model = random_model("llama").bfloat16()
        ids = torch.randint(3, 300, (1, 60))
        with torch.inference_mode():
            wanted = model(ids).logits
        with episodic.attach(model, n_local=512, chunk=32):
            self.assertLess((model(ids).logits - wanted).abs().max().item(), 0.1 * wanted.abs().max().item())

    # -- batches

    def alone(self, model, ids, **more):
        with episodic.attach(model, **SMALL) as memory:
            told = model.generate(torch.tensor([ids]), max_new_tokens=10, do_sample=False, **more)
            return told[0, len(ids):].tolist(), memory.events, memory.tokens

    def test_each_row_of_a_batch_gives_what_it_gives_alone(self):
        for family in ("llama", "gemma3_text"):
            model = random_model(family)
            every = os.environ.get("EPISODIC_ALL_CASES") == "1"
            for lengths in ((150, 150), (150, 150, 150), (150, 37, 91), (5, 160, 33)) if every else ((150, 37, 91),):
                rows = [torch.randint(3, 300, (n,)).tolist() for n in lengths]
                longest = max(lengths)
                wanted = [self.alone(model, row, eos_token_id=None) for row in rows]
                ids = torch.tensor([[0] * (longest - len(r)) + r for r in rows])
                mask = torch.tensor([[0] * (longest - len(r)) + [1] * len(r) for r in rows])
                with episodic.attach(model, **SMALL) as memory:
                    told = model.generate(ids, attention_mask=mask, max_new_tokens=10, do_sample=False,
                                          eos_token_id=None)
                    self.assertEqual(len(memory.rows), len(rows))
                    for row, of_row, kept, one in zip(rows, told[:, longest:].tolist(), memory.rows, wanted):
                        with self.subTest(family, lengths=lengths, row=len(row)):
                            self.assertEqual((of_row, kept.events, kept.tokens), one)
                with episodic.attach(model, **SMALL):  # logits of all tokens
                    behind = torch.tensor([r + [0] * (longest - len(r)) for r in rows])
                    told = model(behind, attention_mask=torch.tensor([[1] * len(r) + [0] * (longest - len(r))
                                                                      for r in rows])).logits
                for i, row in enumerate(rows):
                    with episodic.attach(model, **SMALL):
                        wanted = model(torch.tensor([row])).logits[0]
                    self.assertLess((told[i, :len(row)] - wanted).abs().max().item(), 1e-4)

    def test_an_answer_that_ends_early_leaves_its_memory_as_alone(self):
        model = random_model("llama")
        rows = [torch.randint(3, 300, (40,)).tolist() for _ in range(3)]
        free = [self.alone(model, row, eos_token_id=None)[0] for row in rows]
        end = free[0][3]  # ends the first row's answer
        wanted = [self.alone(model, row, eos_token_id=end) for row in rows]
        self.assertLess(len(wanted[0][0]), 10)
        with episodic.attach(model, **SMALL) as memory:
            told = model.generate(torch.tensor(rows), max_new_tokens=10, do_sample=False, eos_token_id=end)[:, 40:]
            for of_row, kept, (answer, events, tokens) in zip(told.tolist(), memory.rows, wanted):
                self.assertEqual(of_row[:len(answer)], answer)
                self.assertEqual((kept.events, kept.tokens), (events, tokens))

    def test_rows_that_go_on_from_one_text(self):
        model = random_model("gemma3_text")
        text, questions = torch.randint(3, 300, (1, 200)), torch.randint(3, 300, (2, 9))
        answers = []
        for question in questions:
            with episodic.attach(model, **SMALL):
                model(text)
                answers.append(model.generate(question[None], max_new_tokens=6, do_sample=False, eos_token_id=None)[0])
        with episodic.attach(model, **SMALL) as memory:
            model(text)
            with self.assertRaisesRegex(episodic.DataError, "memory.fork"):
                model(questions)
        with episodic.attach(model, memory=[memory, memory.fork()]):
            told = model.generate(questions, max_new_tokens=6, do_sample=False, eos_token_id=None)
        self.assertEqual(told.tolist(), [a.tolist() for a in answers])

    # -- states and folders

    def test_a_snapshot_brings_windows_and_logits_back(self):
        for family in ("llama", "gemma3_text"):
            model = random_model(family)
            ids, more = torch.randint(3, 300, (1, 150)), torch.randint(3, 300, (1, 40))
            with episodic.attach(model, **SMALL) as memory:
                model(ids)
                state = memory.snapshot()
                wanted, events = model(more).logits, memory.events
                memory.restore(state)
                self.assertTrue((model(more).logits == wanted).all())
                self.assertEqual(memory.events, events)
                memory.reset()
                model(ids)
                self.assertTrue((model(more).logits == wanted).all())

    def test_a_memory_goes_on_and_is_kept(self):
        with tempfile.TemporaryDirectory() as folder:
            self.goes_on(random_model("gemma3_text"), os.path.join(folder, "one.mem"))
            # of a directory whose family the library does not know
            random_model("phi").save_pretrained(os.path.join(folder, "model"))
            with self.assertRaises(episodic.FileError):
                episodic.load(os.path.join(folder, "model"))
            model = transformers.AutoModelForCausalLM.from_pretrained(os.path.join(folder, "model")).float().eval()
            self.goes_on(model, os.path.join(folder, "two.mem"))

    def goes_on(self, model, where):
        ids = torch.randint(3, 300, (1, 90))
        with episodic.attach(model, folder=where, **SMALL) as memory:
            model(ids)
            memory.commit()
            events = memory.events
            wanted = model(ids[:, :10]).logits
            with self.assertRaisesRegex(episodic.DataError, "row"):
                model(ids.expand(2, -1))
        self.assertTrue(events)
        memory.close()
        with episodic.attach(model, folder=where, write=False) as again:
            self.assertEqual(again.events, events)
            self.assertEqual(again.ids(0, 90), ids[0].tolist())
            self.assertTrue((model(ids[:, :10]).logits == wanted).all())

    def test_folders_are_shared_with_the_programs(self):
        """A memory that our decoder made goes on here, and the other way round, also of a model with windows."""
        for family in ("gemma3_text", None):
            with tempfile.TemporaryDirectory() as folder:
                path = os.fspath(MODEL)
                if family:
                    path = os.path.join(folder, "model")
                    random_model(family).save_pretrained(path)
                model = transformers.AutoModelForCausalLM.from_pretrained(path).float().eval()
                ids, more = torch.randint(3, 300, (1, 300)), torch.randint(3, 300, (1, 40))
                ours, here, both = (os.path.join(folder, name) for name in ("ours.mem", "here.mem", "both.mem"))
                engine = episodic.load(path)
                engine.open(ours, **SMALL)
                engine.read(ids[0].tolist())
                engine.commit()
                episodic.fork_folder(ours, both)
                events = [tuple(e) for e in engine.events]
                engine.read(more[0].tolist())
                wanted, later = self.logits(engine), [tuple(e) for e in engine.events]

                with episodic.attach(model, folder=both) as memory:
                    self.assertEqual((memory.tokens, memory.events), (300, events))
                    self.assertLess((model(more).logits[0, -1] - wanted).abs().max().item(), 1e-4)
                    self.assertEqual(memory.events, later)
                    memory.commit()
                memory.close()
                with episodic.load(path) as again:  # what it wrote behind ours
                    again.open(both, write=False)
                    self.assertEqual((again.tokens, [tuple(e) for e in again.events]), (340, later))

                with episodic.attach(model, folder=here, **SMALL) as memory:
                    model(ids)
                    memory.commit()
                memory.close()
                other = episodic.load(path)
                other.open(here)
                self.assertEqual([tuple(e) for e in other.events], events)
                other.read(more[0].tolist())
                self.assertLess((self.logits(other) - wanted).abs().max().item(), 1e-4)
                self.assertEqual([tuple(e) for e in other.events], later)
                if not family:  # the tokens were kept too
                    self.assertEqual(other.text(0, 300), other.model.decode(ids[0].tolist()))

    def test_what_the_program_ingested_answers_here_and_goes_back(self):
        program = os.environ.get("EPISODIC_PROGRAM", "")
        if not os.path.exists(program):
            self.skipTest("EPISODIC_PROGRAM names no program")
        model = transformers.AutoModelForCausalLM.from_pretrained(MODEL).float().eval()
        tokenizer = transformers.AutoTokenizer.from_pretrained(MODEL)

        def run(*command):
            return subprocess.run([program, *map(os.fspath, command), "--quiet", "--threads", "1"], check=True,
                                  text=True, capture_output=True).stdout
        with tempfile.TemporaryDirectory() as folder:
            text, where = os.path.join(folder, "book.txt"), os.path.join(folder, "book.mem")
            pathlib.Path(text).write_text(TEXT)
            run("ingest", "--model", MODEL, "--memory-dir", where, "--text", text)
            question = tokenizer(QUESTION, return_tensors="pt", add_special_tokens=False).input_ids
            with episodic.attach(model, folder=where) as memory:
                tokens = memory.tokens
                told = model.generate(question, max_new_tokens=8, do_sample=False)
                self.assertIn("52871", tokenizer.decode(told[0, question.shape[1]:]))
                memory.commit()
                self.assertGreater(memory.tokens, tokens)
            memory.close()
            self.assertIn("52871", run("ask", "--model", MODEL, "--memory-dir", where, "--prompt", QUESTION,
                                       "--max-new", "8"))

    def test_a_model_of_the_hubs_cache_knows_its_files(self):
        program = """
import sys, episodic, episodic.transformers, torch, transformers
model = transformers.AutoModelForCausalLM.from_pretrained("somebody/tiny").float().eval()
with episodic.attach(model, folder=sys.argv[1]) as memory:
    model(torch.arange(3, 60)[None])
    memory.commit()
"""
        with tempfile.TemporaryDirectory() as folder:
            cached = pathlib.Path(folder) / "home" / "hub" / "models--somebody--tiny"
            (cached / "refs").mkdir(parents=True)
            (cached / "refs" / "main").write_text("a" * 40)
            (cached / "snapshots").mkdir()
            os.symlink(MODEL, cached / "snapshots" / ("a" * 40))
            where = os.path.join(folder, "kept.mem")
            done = subprocess.run([sys.executable, "-c", program, where], capture_output=True, text=True, env={
                **os.environ, "HF_HOME": os.path.join(folder, "home"), "HF_HUB_OFFLINE": "1",
                "PYTHONPATH": os.pathsep.join(sys.path)})
            self.assertEqual(done.returncode, 0, done.stderr)
            with episodic.load(MODEL) as engine:  # the same model by its directory
                self.assertEqual(engine.open(where).tokens, 57)
            random_model("llama").save_pretrained(os.path.join(folder, "other"))
            with self.assertRaises(episodic.ConfigError), episodic.load(os.path.join(folder, "other")) as engine:
                engine.open(where)

    def test_a_folder_of_another_model_is_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            paths = [os.path.join(folder, name) for name in ("one", "two")]
            models = []
            for i, path in enumerate(paths):
                model = random_model("llama")
                model.get_input_embeddings().weight.data *= 1 + i
                model.save_pretrained(path)
                models.append(transformers.AutoModelForCausalLM.from_pretrained(path).float().eval())
            where = os.path.join(folder, "kept.mem")
            with episodic.attach(models[0], folder=where, **SMALL) as memory:
                model = models[0](torch.randint(3, 300, (1, 50)))
                memory.commit()
            memory.close()
            for attempt in ({"folder": where}, {"folder": where, "source": paths[0]},
                            {"folder": where, "source": os.fspath(MODEL)}):
                with self.subTest(attempt), self.assertRaises(episodic.ConfigError):
                    with episodic.attach(models[1], **attempt):
                        pass
            with self.assertRaisesRegex(episodic.ConfigError, "give none"):
                with episodic.attach(models[0], folder=where, n_local=64):
                    pass
            with self.assertRaises(episodic.FileError):
                with episodic.attach(models[0], folder=where + "s", write=False):
                    pass
            with episodic.attach(models[0], folder=where) as memory:
                self.assertEqual(memory.tokens, 50)
                memory.close()

    # -- the pipeline

    def test_pipeline_of_one_context_and_many_questions(self):
        tokenizer = transformers.AutoTokenizer.from_pretrained(MODEL)
        model = transformers.AutoModelForCausalLM.from_pretrained(MODEL).float().eval()
        pipe = transformers.pipeline("episodic-text-generation", model=model, tokenizer=tokenizer)
        settings = {"n_local": 128, "n_mem": 128, "chunk": 64, "n_init": 16, "max_new_tokens": 8}
        ask = "\n\nWhat is the pass key of Nora?\n\n"
        told = pipe(TEXT, questions=[ask, "\n\nWho walked?", ask], answer_prefix="The pass key of Nora is", **settings)
        self.assertEqual(len(told["answers"]), 3)
        self.assertIn("52871", told["answers"][0])
        self.assertEqual(told["answers"][0], told["answers"][2])  # each of the context alone
        one = pipe(TEXT, question=ask, answer_prefix="The pass key of Nora is", **settings)
        self.assertEqual(one["answer"], told["answers"][0])
        with self.assertRaisesRegex(ValueError, "not both"):
            pipe(TEXT, question="a", questions=["b"])

    def test_what_the_readme_says(self):
        tokenizer = transformers.AutoTokenizer.from_pretrained(MODEL)
        tokenizer.model_input_names = ["input_ids", "attention_mask"]  # transformers 4 gives more than a Llama takes
        model = transformers.AutoModelForCausalLM.from_pretrained(MODEL).float().eval()
        page = (pathlib.Path(__file__).resolve().parents[1] / "README.md").read_text()
        blocks = [b.split("```")[0] for b in page.split("```python\n")[1:]]
        blocks = [b for b in blocks if "transformers" in b or "attach(model" in b]
        self.assertEqual(len(blocks), 2)
        names = {"model": model, "tokenizer": tokenizer, "book": TEXT, "question": QUESTION, "context": TEXT}
        for block in blocks:
            with contextlib.redirect_stdout(io.StringIO()):
                exec(block.replace("model=...", "model=model, tokenizer=tokenizer"), names)

    # -- what is refused

    def test_what_is_refused(self):
        model = random_model("llama")
        ids = torch.randint(3, 300, (1, 8))
        with torch.inference_mode():
            past = model(ids, use_cache=True).past_key_values
            wanted = model(ids).logits
        with episodic.attach(model, **SMALL) as memory:
            refused = [
                (episodic.DataError, "within row", {"input_ids": ids,
                                                    "attention_mask": torch.tensor([[1, 1, 0, 1, 1, 1, 1, 1]])}),
                (episodic.DataError, "leaves nothing", {"input_ids": ids, "attention_mask": torch.zeros(1, 8)}),
                (episodic.DataError, "must be", {"input_ids": ids, "attention_mask": torch.ones(1, 1, 8, 8)}),
                (episodic.DataError, "input_ids are needed", {"inputs_embeds": torch.zeros(1, 4, 64)}),
                (episodic.DataError, "vocabulary", {"input_ids": ids + 300}),
                (episodic.DataError, "device", {"input_ids": ids.to("meta")}),
                (episodic.DataError, "holds tokens", {"input_ids": ids, "past_key_values": past}),
                (episodic.DataError, "tuple", {"input_ids": ids, "past_key_values": ((1, 2),)}),
                (episodic.NotBuiltError, "output_attentions", {"input_ids": ids, "output_attentions": True}),
            ]
            for kind, message, arguments in refused:
                with self.subTest(message), self.assertRaisesRegex(kind, message):
                    if "past_key_values" in arguments:
                        model.base_model(**arguments)
                    else:
                        model(**arguments)
                self.assertEqual((memory.tokens, memory.open_tokens), (0, 0))
            for kind, message, arguments in ((episodic.ConfigError, "num_beams=1", {"num_beams": 2}),
                                             (episodic.ConfigError, "assisted", {"assistant_model": model}),
                                             (episodic.ConfigError, "assisted", {"prompt_lookup_num_tokens": 3}),
                                             (episodic.ConfigError, "use_cache", {"use_cache": False}),
                                             (episodic.ConfigError, "prefill_chunk_size", {"prefill_chunk_size": 4}),
                                             (episodic.DataError, "holds tokens", {"past_key_values": past}),
                                             (episodic.ConfigError, "cache_implementation",
                                              {"cache_implementation": "static"})):
                with self.subTest(message), self.assertRaisesRegex(kind, message):
                    model.generate(ids, max_new_tokens=2, **arguments)
            with self.assertRaisesRegex(episodic.ConfigError, "memory already"):
                with episodic.attach(model, **SMALL):
                    pass
            result = model(ids)  # all is well behind a refusal
            self.assertLess((result.logits - wanted).abs().max().item(), 1e-4)
            with self.assertRaisesRegex(episodic.DataError, "a batch of 3"):
                model(ids.expand(3, -1))
            stale = result.past_key_values
        with self.assertRaisesRegex(episodic.ConfigError, "no longer attached"), torch.inference_mode():
            model.base_model(ids, past_key_values=stale)
        with self.assertRaisesRegex(episodic.ConfigError, "give one of the two"):
            with episodic.attach(model, memory=new_memory(model, **SMALL), n_local=8):
                pass
        with self.assertRaisesRegex(episodic.ConfigError, "no_such"):
            with episodic.attach(model, no_such=1):
                pass
        self.assertNotEqual(model.config._attn_implementation, "episodic")
        with torch.inference_mode():
            self.assertTrue((model(ids).logits == wanted).all())

    def test_memories_of_others_are_refused(self):
        model, other = random_model("llama"), random_model("llama", num_hidden_layers=2)
        for memory, message in ((new_memory(other, **SMALL), "2 layers"), ("book.mem", "str"), ([], "empty"),
                                (new_memory(random_model("qwen2, upper layers sliding"), **SMALL), "layer 2"),
                                (new_memory(random_model("llama with llama3's rope"), **SMALL), "layer 0"),
                                (episodic.Memory(4, 4, 2, 16, rotated=True, **SMALL), "no model's layers")):
            with self.subTest(message), self.assertRaisesRegex(episodic.ConfigError, message):
                with episodic.attach(model, memory=memory):
                    pass
        closed = new_memory(model, **SMALL)
        with episodic.attach(model, memory=closed):
            closed.close()
            with self.assertRaises(episodic.ClosedError):
                model(torch.randint(3, 300, (1, 4)))
        with self.assertRaises(episodic.ClosedError):
            with episodic.attach(model, memory=closed):
                model(torch.randint(3, 300, (1, 4)))

    def test_models_that_cannot_be_served_are_refused(self):
        tried = []
        for kind in ("gpt2", "bloom", "opt", "mamba", "gpt_oss", "llama4_text", "lfm2", "diffllama"):
            try:
                sizes = {**SIZES, **({"layer_types": ["conv", "full_attention"] * 2} if kind == "lfm2" else {})}
                other = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(kind, **sizes))
            except Exception:  # not in this transformers, or not in this size
                continue
            tried.append(kind)
            with self.subTest(kind), self.assertRaises((episodic.ConfigError, episodic.NotBuiltError)) as caught:
                with episodic.attach(other.eval(), **SMALL):
                    pass
            self.assertNotIn("\n", str(caught.exception))
            self.assertFalse(any("_episodic" in vars(m) for m in other.modules()))
        self.assertGreaterEqual(len(tried), 3)
        with self.assertRaisesRegex(episodic.ConfigError, "no model"):
            with episodic.attach(torch.nn.Linear(2, 2)):
                pass
        with torch.device("meta"):
            nowhere = random_model("llama")
        with self.assertRaisesRegex(episodic.ConfigError, "meta"):
            with episodic.attach(nowhere):
                pass
        sliding = random_model("mistral, all sliding")
        with self.assertRaisesRegex(episodic.ConfigError, "sliding window of 48"):
            with episodic.attach(sliding, n_local=64):
                pass

    def test_a_second_thread_is_refused(self):
        model = random_model("llama")
        ids = torch.randint(3, 300, (1, 8))
        inside, go, raised = threading.Event(), threading.Event(), []

        def wait(*_):
            inside.set()
            go.wait(30)
        with episodic.attach(model, **SMALL) as memory:
            hook = model.base_model.layers[1].register_forward_pre_hook(wait)
            first = threading.Thread(target=lambda: raised.append(model(ids)))
            first.start()
            self.assertTrue(inside.wait(30))
            for call in (lambda: model(ids), lambda: model.generate(ids, max_new_tokens=1)):
                with self.assertRaisesRegex(episodic.BusyError, "another thread"):
                    call()
            go.set()
            first.join()
            hook.remove()
            self.assertEqual(memory.tokens, 8)
            model(ids)
            self.assertEqual(memory.tokens, 16)


if __name__ == "__main__":
    print(f"transformers {transformers.__version__}, torch {torch.__version__}")
    unittest.main(verbosity=2)
