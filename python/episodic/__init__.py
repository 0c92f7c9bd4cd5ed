# SPDX-License-Identifier: Apache-2.0
"""A memory for language models whose text is far longer than their window.

    import episodic
    engine = episodic.load("model.gguf")               # or a Hugging Face directory
    engine.attach(n_local=4096, n_mem=2048)            # or engine.open("book.mem")
    engine.read(text, progress=True)
    print(engine.ask("Who closed the door?").text)
    for piece in engine.stream("And who opened it?"):
        print(piece, end="", flush=True)
    answers = episodic.ask_many([(engine, "Who?"), (engine.fork(), "Where?")])  # at once

`Memory` is the memory alone, for attention of your own over numpy arrays or tensors."""
from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from ._engine import (Answer, AnswerOptions, Engine, Event, Model, Passage, RecalledEvent, StepResult, ask_many,
                      fork_folder, generate_many, load, run, verify)
from ._library import (BudgetError, BusyError, ClosedError, ConfigError, DataError, DeviceError, DiskFullError, Error,
                       FileError, NotBuiltError, Snapshot, version)
from ._memory import Memory

__version__ = version

__all__ = ["Answer", "AnswerOptions", "BudgetError", "BusyError", "ClosedError", "ConfigError", "DataError",
           "DeviceError", "DiskFullError", "Engine", "Error", "Event", "FileError", "Memory", "Model", "NotBuiltError",
           "Passage", "RecalledEvent", "Snapshot", "StepResult", "ask_many", "attach", "fork_folder", "generate_many",
           "load", "run", "verify"]


def attach(model: Any, memory: Memory | None = None, **settings: Any) -> AbstractContextManager[Memory]:
    """An episodic memory within a transformers model: `with episodic.attach(model, n_local=1024): model.generate(...)`.
    folder="book.mem" keeps it, and opens one that is there. See episodic.transformers."""
    from .transformers import attach as attach_to
    return attach_to(model, memory, **settings)
