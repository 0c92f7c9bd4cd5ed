# SPDX-License-Identifier: Apache-2.0
"""A user's program over all of the package, which `mypy --strict` accepts (test_package.py); nothing runs it."""
from __future__ import annotations

import array
import pathlib

import episodic


def engines(path: pathlib.Path) -> str:
    engine = episodic.load(path, device="cpu").attach(n_local=128, kv_dtype="int8")
    read: int = engine.read("a text", progress=lambda done, total: done < 100)
    read += engine.read([1, 2, 3], progress=True)
    answer: episodic.Answer = engine.ask("Who?", max_new=8, temperature=0.7, stop=["."], reread=2)
    best: list[float] = [event.attention for event in answer.recalled if event.rank == 1]
    passage: list[str] = [p.text for p in answer.passages if p.score > 0.5]
    for piece in engine.stream("Who?", max_new=3):
        passage.append(piece.upper())
    before: episodic.Snapshot = engine.snapshot()
    ids: list[int] = engine.generate([1, 2], on_token=lambda id, text: id != 7).ids
    engine.restore(before)
    other: episodic.Engine = engine.fork()
    start, end = engine.events[0]
    forgotten: int = engine.forget(start, end)
    with other:
        other.pin(0)
        host_bytes: int = other.usage["host_bytes"]
    damaged: list[str] = episodic.verify(path)
    episodic.fork_folder(path, str(path))
    model: episodic.Model = engine.model
    text: str = model.decode(model.encode("a", special=False)) + engine.text(0, 1) + engine.model.device
    return f"{read}{best}{passage}{ids}{forgotten}{host_bytes}{damaged}{text}{model.vocab_size}{episodic.__version__}"


def many(a: episodic.Engine, b: episodic.Engine) -> list[str]:
    texts: list[str] = []
    for answer in episodic.ask_many([(a, "Who?"), (b, "Where?")], max_new=8, on_token=lambda i, id, text: i < 2):
        if isinstance(answer, episodic.Answer):
            texts.append(answer.text)
        else:
            texts.append(str(answer))
    options: episodic.AnswerOptions = {"max_new": 2, "seed": 3}
    episodic.generate_many([(a, [1, 2]), (b, "text")], **options)
    for result in episodic.run([(a, [1]), (b, [2, 3])]):
        logits: array.array[float] | None = result.logits
        texts.append(str(result.error if logits is None else logits[0]))
    return texts


def memories(array_of_anything: object) -> int:
    with episodic.Memory(2, 4, 2, 8, rotated=True, n_local=16) as memory:
        memory.begin_step(1)
        memory.attend(0, array_of_anything, array_of_anything, array_of_anything, array_of_anything)
        memory.end_step([1.0])
        state: episodic.Snapshot = memory.snapshot()
        memory.restore(state)
        first: tuple[int, int] = memory.fork().events[0]
        return memory.tokens + memory.chunk + memory.open_tokens + sum(memory.recalled(0)) + first[0]


def within_transformers(model: object) -> list[tuple[int, int]]:
    with episodic.attach(model, n_local=1024) as memory:
        return memory.events


def errors() -> int:
    try:
        episodic.load("no/such/model")
    except (episodic.FileError, episodic.NotBuiltError, episodic.DeviceError) as error:
        return error.code
    return 0
