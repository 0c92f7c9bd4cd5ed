# SPDX-License-Identifier: Apache-2.0
"""Memories on a device beside those on the host. Runs on a library whose device is the host (EPISODIC_C_LIBRARY)."""
import ctypes
import random
import unittest

import episodic

LAYERS, HEADS, KV_HEADS, DIM, VOCAB = 2, 4, 2, 16, 11
SETTINGS = dict(n_init=4, n_local=24, n_mem=24, chunk=12, min_block=3, max_block=9, n_repr=3, kv_dtype="float32")


class Place:
    def __init__(self, kind):
        self.type = kind


class Tensor:
    """Looks like one of torch's."""

    def __init__(self, shape, numbers=None, kind="cuda"):
        self.shape, self.device, self.dtype = shape, Place(kind), "torch.float32"
        count = 1
        for n in shape:
            count *= n
        # an address that is a multiple of 64, as a device's
        self._memory = (ctypes.c_float * (count + 16))()
        at = ctypes.addressof(self._memory)
        self._first = (-at % 64) // 4
        self.address = at + 4 * self._first
        if numbers is not None:
            self._memory[self._first:self._first + count] = numbers

    def numbers(self):
        count = 1
        for n in self.shape:
            count *= n
        return self._memory[self._first:self._first + count]

    def data_ptr(self):
        return self.address

    def stride(self):
        strides = [1] * len(self.shape)
        for i in reversed(range(len(self.shape) - 1)):
            strides[i] = strides[i + 1] * self.shape[i + 1]
        return strides


def on_host():
    return episodic.Memory(LAYERS, HEADS, KV_HEADS, DIM, **SETTINGS)


def on_device(**more):
    return episodic.Memory(LAYERS, HEADS, KV_HEADS, DIM, device="cuda", max_tokens=300, **more, **SETTINGS)


class DeviceMemories(unittest.TestCase):
    def step(self, memories, numbers, n, by_logits):
        """One step of a memory on the host and of one on a device, on the same rows."""
        rows = {layer: [numbers(n * h * DIM) for h in (HEADS, KV_HEADS, KV_HEADS)] for layer in range(LAYERS)}
        last, surprise = numbers(n * VOCAB), [abs(x) for x in numbers(n)]
        ids = [int(abs(x) * 1000) % VOCAB for x in numbers(n)]
        outs = []
        for memory, kind in zip(memories, ("cpu", "cuda")):
            memory.begin_step(n)
            all_out = []
            for layer, (q, k, v) in rows.items():
                out = Tensor([n, HEADS, DIM], kind=kind)
                memory.attend(layer, Tensor([n, HEADS, DIM], q, kind), Tensor([n, KV_HEADS, DIM], k, kind),
                              Tensor([n, KV_HEADS, DIM], v, kind), out)
                all_out += out.numbers()
            if by_logits:
                memory.end_step_logits(ids, Tensor([n, VOCAB], last, kind))
            else:
                memory.end_step(surprise if kind == "cpu" else Tensor([n], surprise))
            outs.append(all_out)
        self.assertLess(max(abs(a - b) for a, b in zip(*outs)), 2e-5)

    def same(self, host, device):
        self.assertEqual(host.tokens, device.tokens)
        self.assertEqual(host.events, device.events)
        self.assertEqual([host.recalled(i) for i in range(host.lanes)],
                         [device.recalled(i) for i in range(device.lanes)])

    def test_it_does_what_one_on_the_host_does(self):
        for by_logits in (False, True):
            source = random.Random(3)
            numbers = lambda count: [source.gauss(0, 1) for _ in range(count)]  # noqa: E731
            both = host, device = on_host(), on_device()
            for _ in range(10):
                self.step(both, numbers, 12, by_logits)
            self.assertGreater(len(device.events), 5)
            self.same(host, device)
            states = [m.snapshot() for m in both]
            self.step(both, numbers, 5, by_logits)
            for memory, state in zip(both, states):
                memory.restore(state)
            forks = [m.fork() for m in both]
            self.step(both, numbers, 1, by_logits)
            self.step(forks, numbers, 7, by_logits)
            self.same(host, device)
            self.same(*forks)

    def test_what_does_not_fit_is_named(self):
        host, device = on_host(), on_device()
        for memory, wrong, right in ((host, "cuda", "cpu"), (device, "cpu", "cuda")):
            memory.begin_step(1)
            wide, narrow = [1, HEADS, DIM], [1, KV_HEADS, DIM]
            with self.assertRaisesRegex(episodic.DataError, "^k: lies "):
                memory.attend(0, Tensor(wide, kind=right), Tensor(narrow, kind=wrong), Tensor(narrow, kind=right),
                              Tensor(wide, kind=right))
            with self.assertRaisesRegex(episodic.DataError, "^logits: lies "):
                memory.end_step_logits([1], Tensor([1, VOCAB], kind=wrong))
            with self.assertRaisesRegex(episodic.DataError, r"^logits: must be \[2, vocab\]"):
                memory.end_step_logits([1, 2], Tensor([1, VOCAB], kind=right))
        with self.assertRaisesRegex(episodic.DataError, "^surprise: lies in host memory"):
            device.end_step(Tensor([1], kind="cpu"))
        with self.assertRaisesRegex(episodic.ConfigError, "use_stream: the memory is on the host"):
            host.use_stream(0)
        with self.assertRaisesRegex(episodic.ConfigError, "commit"):
            device.abandon_step()
            device.commit()
        with self.assertRaisesRegex(episodic.ConfigError, "folder: not with device"):
            on_device(folder="somewhere")
        with self.assertRaisesRegex(episodic.ConfigError, "dtype: 'int8'"):
            on_device(dtype="int8")
        with self.assertRaisesRegex(episodic.ConfigError, "device: 'tpu'"):
            episodic.Memory(LAYERS, HEADS, KV_HEADS, DIM, device="tpu", **SETTINGS)
        with self.assertRaisesRegex(episodic.ConfigError, "max_tokens"):
            episodic.Memory(LAYERS, HEADS, KV_HEADS, DIM, device="cuda", **SETTINGS)


if __name__ == "__main__":
    unittest.main()
