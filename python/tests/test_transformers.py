# SPDX-License-Identifier: Apache-2.0
"""A memory within transformers models: equal to their own attention within the window, and to our decoder beyond it."""
import os
import pathlib
import sys
import tempfile
import unittest

try:
    import torch
    import transformers
except ImportError as e:
    print(f"EPISODIC_SKIP: {e.name} is not installed")
    sys.exit(0)

import episodic
from episodic.transformers import new_memory

MODEL = pathlib.Path(os.environ.get("EPISODIC_MODEL") or
                     pathlib.Path(__file__).resolve().parents[2] / "models" / "recall-2m6")
SENTENCE = "The old man walked slowly to the river in the evening. "
TEXT = SENTENCE * 40 + "The pass key of Nora is 52871. Remember it. 52871 is the pass key of Nora. " + SENTENCE * 110
QUESTION = "\n\n\nWhat is the pass key of Nora?\n\nThe pass key of Nora is"
SIZES = {"vocab_size": 300, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
         "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 4096, "pad_token_id": 0}
FAMILIES = {
    "llama": {}, "mistral": {"sliding_window": None}, "qwen2": {}, "qwen3": {"head_dim": 32}, "granite": {},
    "phi3": {}, "olmo2": {}, "starcoder2": {"sliding_window": None},
    "llama with llama3's rope": {"rope_parameters": {
        "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64}},
    "qwen2 with yarn": {"rope_parameters": {
        "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}},
}
SMALL = {"n_init": 4, "n_local": 32, "n_mem": 32, "chunk": 16, "min_block": 4, "max_block": 16}


def random_model(family, **more):
    kind = family.split()[0]
    config = transformers.AutoConfig.for_model(kind, **SIZES, **FAMILIES.get(family, {}), **more)
    torch.manual_seed(3)
    return transformers.AutoModelForCausalLM.from_config(config).eval()


class Transformers(unittest.TestCase):
    def test_within_the_window_it_is_the_models_own_attention(self):
        for family in FAMILIES:
            with self.subTest(family):
                try:
                    model = random_model(family)
                except (ValueError, KeyError, TypeError) as e:
                    self.skipTest(f"this transformers has no {family}: {e}")
                ids = torch.randint(1, 300, (1, 100))
                with torch.inference_mode():
                    wanted = model(ids).logits
                    written = model.generate(ids, max_new_tokens=12, do_sample=False)
                with episodic.attach(model, n_local=512, chunk=32, n_init=4):
                    self.assertLess((model(ids).logits - wanted).abs().max().item(), 2e-4)
                with episodic.attach(model, n_local=512, chunk=32, n_init=4) as memory:
                    self.assertTrue((model.generate(ids, max_new_tokens=12, do_sample=False) == written).all())
                    self.assertEqual(memory.tokens, 111)
                with torch.inference_mode():  # as it was
                    self.assertTrue((model(ids).logits == wanted).all())

    def test_beyond_it_it_is_what_our_own_decoder_computes(self):
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
            # the question's last token is a step of its own, as the engine makes it
            model(torch.tensor([question[:-1]]))
            written = model.generate(torch.tensor([question[-1:]]), max_new_tokens=8, do_sample=False)
            told = written[0, 1:].tolist()
            self.assertEqual(told[:len(answer.ids)], list(answer.ids))
            self.assertIn("52871", engine.model.decode(told))
            memory.restore(before)
            self.assertEqual(memory.tokens, engine.tokens)

    def test_a_memory_goes_on_and_is_kept(self):
        model = random_model("llama")
        ids = torch.randint(1, 300, (1, 90))
        with tempfile.TemporaryDirectory() as folder:
            where = os.path.join(folder, "m")
            with episodic.attach(model, folder=where, **SMALL) as memory:
                model(ids)
                memory.commit()
                events = memory.events
                wanted = model(ids[:, :10]).logits
            self.assertTrue(events)
            del memory
            with episodic.attach(model, memory=new_memory(model, folder=where)) as again:
                self.assertEqual(again.events, events)
                # the first token's surprise is not known behind a reopened memory: outputs do not need it
                self.assertTrue((model(ids[:, :10]).logits == wanted).all())

    def test_what_is_refused(self):
        model = random_model("llama")
        ids = torch.randint(1, 300, (2, 8))
        with episodic.attach(model, **SMALL):
            with self.assertRaisesRegex(episodic.DataError, "batch of 2"):
                model(ids)
            with self.assertRaisesRegex(episodic.DataError, "padding"):
                model(ids[:1], attention_mask=torch.tensor([[0, 0, 1, 1, 1, 1, 1, 1]]))
            with self.assertRaisesRegex(episodic.DataError, "input_ids"):
                model(inputs_embeds=torch.zeros(1, 4, 64))
            model(ids[:1])  # all is well behind a refusal
        with self.assertRaisesRegex(episodic.ConfigError, "give one of the two"):
            with episodic.attach(model, memory=new_memory(model, **SMALL), n_local=8):
                pass
        with self.assertRaisesRegex(episodic.ConfigError, "no_such"):
            with episodic.attach(model, no_such=1):
                pass
        self.assertNotEqual(model.config._attn_implementation, "episodic")
        for kind, more in (("gpt2", {}), ("gemma3_text", {"sliding_window": 16}), ("mamba", {})):
            try:
                config = transformers.AutoConfig.for_model(kind, **(SIZES if kind != "gpt2" else {"n_layer": 2}), **more)
                other = transformers.AutoModelForCausalLM.from_config(config)
            except (ValueError, KeyError, TypeError, AttributeError):
                continue
            with self.subTest(kind), self.assertRaises(episodic.ConfigError):
                with episodic.attach(other):
                    pass


if __name__ == "__main__":
    print(f"transformers {transformers.__version__}, torch {torch.__version__}")
    unittest.main(verbosity=2)
