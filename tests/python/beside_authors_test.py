# SPDX-License-Identifier: Apache-2.0
"""scripts/beside_authors: its arithmetic and its table, and a whole run with classes that stand in for the authors'."""
import contextlib
import importlib.util
import io
import json
import pathlib
import statistics
import sys
import tempfile
import textwrap
import unittest
from importlib.machinery import SourceFileLoader

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "scripts"))


def script():
    """As a module, anew."""
    loader = SourceFileLoader("beside_authors", str(ROOT / "scripts" / "beside_authors"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    loader.exec_module(module)
    return module


SHAPE = {"heads": 4, "kv-heads": 2, "head-dim": 8, "n-init": 16, "n-local": 48, "n-mem": 32, "chunk": 16,
         "n-repr": 2}

# Attends to the window alone, and names CUDA where the authors' files do. SHIFT: by how much its events are off.
MANAGER = '''
    import math
    import psutil
    import torch

    class Attention:
        pass

    class Block:
        def __init__(self, size):
            self.size = size
            self.event = torch.cuda.Event()
            self.event.record(torch.cuda.current_stream())

    class ContextManager:
        def __init__(self, layer_idx, position_embedding, n_init, n_local, max_block_size, max_cached_block,
                     exc_block_size, min_block_size=1, async_global_stream=True, repr_topk=1,
                     surprisal_threshold_gamma=1.1, n_mem=2048):
            assert not async_global_stream and (n_init, n_local, n_mem) == (16, 48, 32)
            assert (exc_block_size, repr_topk) == (16, 2)
            assert (min_block_size, max_block_size, surprisal_threshold_gamma) == (8, 128, 2)
            self.n_init, self.n_local, self.Attn = n_init, n_local, Attention
            self.slots = torch.zeros(2, device="cuda")
            self.keys = None
            self.opens, self.begin, self.load_count = [], n_init, 0
            self.global_blocks, self.cached_blocks = [[]], [{}]

        def append(self, q, k, v, far_q, far_k, far_v):
            if self.keys is None:
                assert q.is_cuda and torch.empty(1, device=torch.device("cuda")).dtype == torch.float32
                self.keys, self.values = k[:, :, :0], v[:, :, :0]
            else:
                assert not q.is_cuda
            self.keys, self.values = torch.cat((self.keys, k), 2), torch.cat((self.values, v), 2)
            n, total = q.shape[2], self.keys.shape[2]
            k, v = (x.repeat_interleave(2, 1) for x in (self.keys, self.values))
            ago = torch.arange(total - n, total)[:, None] - torch.arange(total)[None]
            scores = (q @ k.transpose(2, 3)) / math.sqrt(q.shape[3])
            scores = scores.masked_fill((ago < 0) | (ago >= self.n_local), -math.inf)
            self.load_count += 1
            with torch.cuda.stream(None):
                self.cached_blocks[0] = {i: self.load_count for i in range(len(self.global_blocks[0]))}
            return torch.softmax(scores, -1) @ v

        def update_memory(self, n, surprise):
            assert surprise.shape == (1, n)
            first = self.keys.shape[2] - n
            self.opens += [first + i for i, s in enumerate(surprise[0].tolist()) if s > 5]
            while self.opens and self.opens[0] < self.keys.shape[2] - self.n_local:
                end = self.opens.pop(0)
                self.global_blocks[0].append(Block(end - self.begin + SHIFT))
                self.begin = end
'''
ROTARY = '''
    import torch

    class RotaryEmbeddingESM(torch.nn.Module):
        def __init__(self, dim, base=10000, distance_scale=1, ext_factors=1.0):
            super().__init__()
            self.inverse = 1 / (ext_factors.to(torch.device("cuda")) *
                                base ** (torch.arange(0, dim, 2, device="cuda", dtype=torch.float32) / dim))
'''


class Arithmetic(unittest.TestCase):
    def setUp(self):
        self.script = script()

    def test_events_are_of_14_tokens_whatever_the_steps(self):
        whole = self.script.Surprise(128).take(30128)
        opens = [i for i, s in enumerate(whole) if s > 5]
        sizes = [b - a for a, b in zip([128, *opens], opens)]
        self.assertEqual((min(sizes), max(sizes)), (8, 20))
        self.assertAlmostEqual(statistics.mean(sizes), 14, delta=0.3)
        self.assertLess(max(s for s in whole if s < 5), 1)
        pieces = self.script.Surprise(128)
        self.assertEqual([s for n in (1, 500, 7, 400) for s in pieces.take(n)], whole[:908])

    def test_flops_are_those_of_the_table_of_benchmarks(self):
        self.assertAlmostEqual(self.script.flops(self.script.LARGE, 512), 61.2e9, delta=0.1e9)
        self.assertAlmostEqual(self.script.flops(self.script.SMALL, 128), 0.369e9, delta=0.001e9)

    def test_a_row_has_medians_and_ratios_of_neighbours(self):
        steps = {"authors": [(6.0, 5.0), (8.0, 5.0), (70.0, 50.0)], "episodic": [(1.0, 1.0), (2.0, 1.0), (4.0, 4.0)]}
        flops = self.script.flops(SHAPE, 16)
        row = self.script.summary("small-64", SHAPE, 64, "keeps", 16, steps, [flops / 2, flops / 4, flops])
        self.assertEqual(row["authors"]["seconds"], 8)
        self.assertEqual(row["episodic"]["seconds"], 2)
        self.assertEqual(row["ratio"], 4)
        self.assertEqual(row["ratios"], [6, 4, 17.5])
        self.assertEqual(row["ratio_of_processor_time"], 5)
        self.assertEqual(row["authors"]["products"], 4)  # of 2 seconds each
        self.assertEqual(row["episodic"]["fastest"], 1)
        document = {"environment": {"date": "2026-11-28T00:00:00", "commit": "0123456789ab", "cpu": "EPYC", "simd": [],
                                    "cores": 2, "load_average_at_start": 0.25, "torch": "2",
                                    "torch_instructions": "AVX2", "authors": "no checkout"},
                    "command": "scripts/beside_authors", "note": "", "results": [row, {**row, "tokens": 1}],
                    "sameness": [{"name": "small-64", "tokens": 16, "events": 3, "recalled": 2, "by_both": 1,
                                  "difference": 0.25}]}
        lines = self.script.table(document).splitlines()
        self.assertIn("- Ours is faster, glibc keeps: a chunk 4.0 (small-64) to 4.0 times (small-64), "
                      "a token 4.0 (small-64) to 4.0 times (small-64).", lines)
        self.assertIn("| small-64 | 16 | keeps | 8000.00 | 2000.00 | 4.0 | 4.0, 17.5 | 5.0 | 4.0 | 1.00 |", lines)
        self.assertIn("| small-64 | 1 | keeps | 8000.00 | 2000.00 | 4.0 | 4.0, 17.5 | 5.0 | | |", lines)
        self.assertIn("| small-64 | 16 | 3 | 2 | 1 | 2.5e-01 |", lines)

    def test_no_classes_no_shape(self):
        with self.assertRaisesRegex(SystemExit, "no shape and context matches"):
            self.run_with(["--authors", ".", "--only", "no-such"])
        with tempfile.TemporaryDirectory() as folder, self.assertRaisesRegex(SystemExit, "git clone|checkout"):
            self.script.load_classes(None, pathlib.Path(folder))

    def run_with(self, arguments):
        before, sys.argv = sys.argv, ["beside_authors", *arguments]
        try:
            self.script.main()
        finally:
            sys.argv = before


class Run(unittest.TestCase):
    """With torch and the library."""

    def run_with(self, shift, out):
        work = pathlib.Path(out)
        attention = work / "authors" / "em_llm" / "attention"
        attention.mkdir(parents=True)
        (attention / "__init__.py").write_text("raise ImportError('of the whole package')\n")
        (attention / "context_manager.py").write_text(textwrap.dedent(MANAGER).replace("SHIFT", str(shift)))
        (attention / "rope.py").write_text(textwrap.dedent(ROTARY))
        module = script()
        module.CONTEXTS = [("tiny", SHAPE, (96, 128)), ("other", SHAPE, (160,))]
        module.far_keys_once = lambda attention: attention
        before, sys.argv = sys.argv, ["beside_authors", "--authors", str(work / "authors"), "--chunks", "2", "--tokens",
                                      "3", "--out", str(work / "out")]
        said = io.StringIO()
        try:
            with contextlib.redirect_stdout(said):
                module.main()
        finally:
            sys.argv = before
        return json.loads((work / "out" / "beside.json").read_text()), (work / "out" / "beside.md").read_text()

    def test_a_whole_run(self):
        with tempfile.TemporaryDirectory() as folder:
            document, table = self.run_with(0, folder)
        self.assertEqual([(r["name"], r["freed_memory"], r["tokens"], r["steps"]) for r in document["results"]],
                         [(name, freed, n, steps) for names in (("tiny-96", "tiny-128"), ("other-160",))
                          for freed in ("as it is", "keeps") for name in names for n, steps in ((16, 2), (1, 3))])
        for row in document["results"]:
            self.assertGreater(row["authors"]["seconds"], 0)
            self.assertGreater(row["episodic"]["seconds"], 0)
        for row in document["sameness"]:
            self.assertGreater(row["events"], 1)
            self.assertGreater(row["difference"], 1e-3)  # the stand-in recalls nothing
            self.assertLess(row["difference"], 10)
        self.assertIn("other-160, once", table)

    def test_other_events_are_an_error(self):
        with tempfile.TemporaryDirectory() as folder, self.assertRaises(SystemExit) as left:
            self.run_with(1, folder)
        self.assertEqual(left.exception.code, 1)


if __name__ == "__main__":
    if sys.argv[1:] == ["Run"]:
        try:
            import torch  # noqa: F401
        except ImportError as e:
            print(f"EPISODIC_SKIP: {e.name} is not installed")
            sys.exit(0)
    unittest.main(verbosity=2)
