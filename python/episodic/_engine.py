# SPDX-License-Identifier: Apache-2.0
"""A model, and a text of any length in front of it."""
from __future__ import annotations

import array
import ctypes
import dataclasses
import json
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypedDict, Union, overload

from . import _library as lib

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack  # of the type checker: nothing is imported

_REREAD = {"sure": -1, "alone": -2}  # EPISODIC_REREAD_...
_FINISH = ("length", "stop_token", "stop_text", "cancelled")

Path = Union[str, "os.PathLike[str]"]
Text = Union[str, Sequence[int]]  #: a text, or the ids of its tokens


class Event(NamedTuple):
    """Tokens [start, end) of the sequence."""
    start: int
    end: int


class AnswerOptions(TypedDict, total=False):
    """How an answer is written; those that are left out have their defaults."""
    max_new: int               #: most tokens (128)
    temperature: float         #: 0: greedy (0)
    top_p: float               #: (1)
    top_k: int                 #: 0: all (0)
    min_p: float               #: (0)
    repetition_penalty: float  #: (1)
    seed: int                  #: (0)
    stop: Sequence[str]        #: texts that end the answer
    ignore_eos: bool           #: (False)
    chat: bool                 #: in the model's chat format (`ask`: where it has one, `generate`: False)
    reread: int | Literal["sure", "alone"]  #: passages that are found for the question and read again before it
    rerank: int                #: candidates that the model reads to choose those passages (0)
    recall: bool               #: note what was recalled (True)


@dataclasses.dataclass(frozen=True)
class RecalledEvent:
    """An event that a question and its answer recalled."""
    event: int
    start: int
    end: int
    text: str
    rank: int          #: its best in any layer; 1 is the best
    attention: float   #: its share of what all recalled events received


@dataclasses.dataclass(frozen=True)
class Passage:
    """A stretch of the text that was read again."""
    start: int
    end: int
    text: str
    score: float  #: in (0, 1]


@dataclasses.dataclass(frozen=True)
class Answer:
    """What a model wrote."""
    text: str
    ids: list[int]
    finish: str       #: "length", "stop_token", "stop_text" or "cancelled"
    recalled: list[RecalledEvent]  #: best first
    passages: list[Passage]        #: in the order of their scores
    reasoning: str = ""  #: what the model thought before it said `text`, in the chat format of a model that does
    passages_only: bool = False  #: nothing but the passages was read before the question

    def __str__(self) -> str:
        return self.text


@dataclasses.dataclass(frozen=True)
class StepResult:
    """What a step of many gave one engine: logits, or the error that kept it from its step."""
    logits: array.array[float] | None  #: float32 [vocab_size] that follow its last token, where they were wanted
    error: lib.Error | MemoryError | None


class _Bar:
    """Progress on stderr: a line that changes on a terminal, else one now and then."""

    def __init__(self) -> None:
        self._start = self._last = time.monotonic()

    def __call__(self, done: int, total: int) -> bool:
        now = time.monotonic()
        terminal = sys.stderr.isatty()
        if done < total and now - self._last < (0.1 if terminal else 10):
            return True
        if not terminal and now - self._start < 10:
            return True
        self._last = now
        rate = done / max(now - self._start, 1e-9)
        print(f"{chr(13) if terminal else ''}reading: {done} of {total} tokens, {rate:.0f} a second",
              end="\n" if done >= total or not terminal else "", file=sys.stderr, flush=True)
        return True


def _settings(settings: dict[str, Any]) -> bytes | None:
    return json.dumps(settings).encode() if settings else None


def _ids(ids: Sequence[int]) -> Any:
    return (ctypes.c_int64 * len(ids))(*ids)


class Model:
    """A model in memory: any number of engines, on any number of threads, may use it."""

    def __init__(self, path: Path, device: str = "cpu", device_number: int = 0) -> None:
        """path: a Hugging Face directory or a GGUF file. device: "cpu", or "cuda" with a wheel that has it:
        NotBuiltError with another one, DeviceError where no device is there."""
        self.path, self.device = os.fspath(path), device
        if device == "cuda":
            lib.load_cublas()
        options = lib.LoadOptions(device=device.encode(), device_number=device_number)
        self._handle = lib.made("model_free", "model_load", os.fsencode(self.path), options)
        info = lib.ModelInfo()
        lib.call("model_get_info", self._handle, info)
        self.vocab_size, self.n_layers = info.vocab_size, info.n_layers
        self.n_heads, self.n_kv_heads, self.head_dim = info.n_heads, info.n_kv_heads, info.head_dim
        self.max_positions = info.max_positions  #: that it was trained for; 0: it does not say
        self.has_tokenizer, self.has_chat_format = bool(info.has_tokenizer), bool(info.has_chat_format)

    def encode(self, text: str, special: bool = True) -> list[int]:
        """Ids of a text. special: with the tokens that begin a text."""
        data = text.encode()
        return list(lib.items_of(ctypes.c_int64, "model_encode", self._handle, data, len(data), int(special)))

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids."""
        return lib.text_of("model_decode", self._handle, _ids(ids), len(ids))


class Engine:
    """A sequence of a model: what it has read, in full attention or with an episodic memory.

    One thread at a time; another one gets BusyError. `fork` gives a second one that goes on from here."""

    def __init__(self, model: Model | Path, _handle: lib.Handle | None = None) -> None:
        self.model = model if isinstance(model, Model) else Model(model)
        self._handle = _handle or lib.made("sequence_free", "sequence_new", self.model._handle)
        self._folder: str | None = None

    # -- what attention reads

    def attach(self, max_tokens: int = 0, **settings: Any) -> Self:
        """An empty memory. settings: those of docs/settings.md, such as n_local=4096; the others are the model's.
        max_tokens: that the engine may come to; needed on a device."""
        lib.call("sequence_attach", self._handle, _settings(settings), max_tokens)
        self._folder = None
        return self

    def attach_full_attention(self, max_tokens: int = 0) -> Self:
        """Every token before every other, as the model was made."""
        lib.call("sequence_attach_full_attention", self._handle, max_tokens)
        self._folder = None
        return self

    def open(self, folder: Path, write: bool = True, max_tokens: int = 0, **settings: Any) -> Self:
        """The memory kept in a folder; made there where there is none and `write` is true."""
        lib.call("sequence_open", self._handle, os.fsencode(folder), int(write), _settings(settings), max_tokens)
        self._folder = os.fspath(folder)
        return self

    # -- reading and answering

    def read(self, text: Text, progress: bool | Callable[[int, int], object] = False) -> int:
        """Reads a text (or ids) of any length behind what was read. progress: True for a line on stderr, or a function
        of tokens done and tokens in all, which stops the reading by returning False. Returns the tokens read."""
        watched = lib.Watched()
        shown: Callable[[int, int], object]
        shown = _Bar() if progress is True else progress if callable(progress) else lambda done, total: True
        callback = lib.PROGRESS(lambda done, total, _: watched.stops(shown, done, total))
        read = ctypes.c_int64()
        function = "sequence_read" if isinstance(text, str) else "sequence_read_ids"
        data = text.encode() if isinstance(text, str) else _ids(text)
        with watched:
            lib.call(function, self._handle, data, len(data), callback, None, read)
        return read.value

    def ask(self, question: str, on_token: Callable[[int, str], object] | None = None,
            **options: Unpack[AnswerOptions]) -> Answer:
        """Answers from what was read, and comes back: the engine is then as it was.

        options: max_new (128), temperature (0: greedy), top_p, top_k, min_p, repetition_penalty, seed, stop (a list of
        texts), ignore_eos; chat: in the model's chat format (default: where it has one); reread: passages that are
        found for the question and read again before it, behind the memory; or "sure": three short ones alone where the
        model is sure of them, else three longer ones behind the memory; or "alone": the short ones in any case
        (default: "sure" in the chat format, else 0); rerank: candidates that the model reads to choose a number of
        passages (0; `reread` is then 3 by default); recall (True): note what was recalled. on_token: called with each
        id and the text that became certain; False ends the answer."""
        return self._answer("sequence_ask", question, on_token, dict(options))

    def generate(self, prompt: Text, on_token: Callable[[int, str], object] | None = None,
                 **options: Unpack[AnswerOptions]) -> Answer:
        """As `ask`, but prompt and answer become part of what was read. Without `reread` and `chat` by default.
        prompt: a text or ids."""
        function = "sequence_generate" if isinstance(prompt, str) else "sequence_generate_ids"
        return self._answer(function, prompt, on_token, {"chat": False, "reread": 0, **options})

    def stream(self, question: str, **options: Unpack[AnswerOptions]) -> Iterator[str]:
        """The texts of an answer to `ask`, as they are written. Breaking off ends it."""
        texts: queue.Queue[str | BaseException | None] = queue.Queue()
        wanted = threading.Event()
        wanted.set()

        def put(_: int, text: str) -> bool:
            if text:
                texts.put(text)
            return wanted.is_set()

        def work() -> None:
            try:
                self.ask(question, on_token=put, **options)
                texts.put(None)
            except BaseException as e:
                texts.put(e)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        try:
            while True:
                text = texts.get()
                if text is None:
                    return
                if isinstance(text, BaseException):
                    raise text
                yield text
        finally:
            wanted.clear()
            thread.join()

    def _options(self, options: dict[str, Any]) -> lib.GenerateOptions:
        given = lib.GenerateOptions()
        lib.call("generate_options_init", given)
        chat = options.pop("chat", None)
        given.chat = int(self.model.has_chat_format if chat is None else chat)
        given.recall = int(options.pop("recall", True))
        can_reread = self.has_memory and given.chat
        by_default: Any = (3 if options.get("rerank") else "sure") if can_reread else 0
        reread = options.pop("reread", by_default)
        if isinstance(reread, str) and reread not in _REREAD:
            raise ValueError(f"reread = {reread!r}: must be a number of passages, 'sure' or 'alone'")
        given.reread = _REREAD.get(reread, reread)
        stop = options.pop("stop", [])
        given.stop, given.n_stop = (ctypes.c_char_p * max(len(stop), 1))(*[s.encode() for s in stop]), len(stop)
        for name, value in options.items():
            if name not in AnswerOptions.__annotations__:
                raise TypeError(f"{name} is no option of an answer")
            setattr(given, name, value)
        return given

    def _answer(self, function: str, text: Text, on_token: Callable[[int, str], object] | None,
                options: dict[str, Any]) -> Answer:
        given = self._options(options)
        watched = lib.Watched()

        told = on_token or (lambda id, text: True)  # called even so: Ctrl-C then ends the answer

        def forward(id: int, data: Any, length: int, _: object) -> int:
            return watched.stops(told, id, ctypes.string_at(data, length).decode(errors="replace"))

        callback = lib.ON_TOKEN(forward)
        data = text.encode() if isinstance(text, str) else _ids(text)
        with watched:
            answer = lib.made("answer_free", function, self._handle, data, len(data), given, callback, None)
        return self._told(answer)

    def _told(self, answer: lib.Handle) -> Answer:
        finish = ctypes.c_int32()
        lib.call("answer_finish", answer, finish)
        only = ctypes.c_int32()
        lib.call("answer_passages_only", answer, only)
        recalled = [RecalledEvent(e.event, e.start, e.end, self._text(e), e.rank, e.attention)
                    for e in lib.items_of(lib.Recalled, "answer_recalled", answer)]
        passages = [Passage(p.start, p.end, self._text(p), p.score)
                    for p in lib.items_of(lib.FoundPassage, "answer_passages", answer)]
        return Answer(lib.text_of("answer_text", answer), list(lib.items_of(ctypes.c_int64, "answer_ids", answer)),
                      _FINISH[finish.value], recalled, passages, lib.text_of("answer_reasoning", answer),
                      bool(only.value))

    def _text(self, found: Any) -> str:
        # what the question's own steps closed is gone again
        if found.end > self.tokens:
            return ""
        return lib.text_of("sequence_text", self._handle, lib.Range(found.start, found.end))

    # -- states

    @overload
    def fork(self) -> Engine: ...

    @overload
    def fork(self, folder: Path) -> None: ...

    def fork(self, folder: Path | None = None) -> Engine | None:
        """Without a folder: a second engine that goes on from here; what was read is there once. With a folder: a
        second kept memory with the content of the last commit."""
        if folder is not None:
            if not self._folder:
                raise lib.ConfigError("fork: this memory is not kept in a folder; open one, or fork without a folder")
            fork_folder(self._folder, folder)
            return None
        return Engine(self.model, lib.made("sequence_free", "sequence_fork", self._handle))

    def snapshot(self) -> lib.Snapshot:
        """The state now, for `restore`."""
        return lib.made("snapshot_free", "sequence_snapshot", self._handle)

    def restore(self, snapshot: lib.Snapshot) -> None:
        """Back to a snapshot of this engine."""
        lib.call("sequence_restore", self._handle, snapshot)

    def commit(self) -> None:
        """Makes all that was read durable, in a kept memory."""
        lib.call("sequence_commit", self._handle)

    def rewind(self, tokens: int) -> None:
        """A kept memory as it was after its first tokens."""
        lib.call("sequence_rewind", self._handle, tokens)

    def forget(self, start: int, end: int) -> int:
        """Never recalls again the events that share a token with [start, end). Returns how many there were."""
        forgotten = ctypes.c_size_t()
        lib.call("sequence_forget", self._handle, lib.Range(start, end), forgotten)
        return forgotten.value

    def pin(self, event: int, pinned: bool = True) -> None:
        """A pinned event cannot be forgotten, and is the last to leave host memory."""
        lib.call("sequence_pin", self._handle, event, int(pinned))

    def close(self) -> None:
        """Gives everything back now. The engine is then good for nothing."""
        self._handle.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- what there is

    def _info(self) -> lib.SequenceInfo:
        info = lib.SequenceInfo()
        lib.call("sequence_get_info", self._handle, info)
        return info

    @property
    def tokens(self) -> int:
        """Tokens read so far."""
        return int(self._info().tokens)

    @property
    def has_memory(self) -> bool:
        """False with full attention."""
        return bool(self._info().has_memory)

    @property
    def events(self) -> list[Event]:
        """The closed events of the memory."""
        return [Event(e.start, e.end) for e in lib.items_of(lib.Range, "sequence_events", self._handle, 0)]

    def text(self, start: int, end: int) -> str:
        """Text of tokens [start, end) of what was read."""
        return lib.text_of("sequence_text", self._handle, lib.Range(start, end))

    @property
    def usage(self) -> dict[str, int]:
        """Bytes that the memory takes: host_bytes, disk_bytes, index_bytes, window_bytes."""
        info = self._info()
        return {name: getattr(info, name) for name in ("host_bytes", "disk_bytes", "index_bytes", "window_bytes")}


def load(path: Path, device: str = "cpu", device_number: int = 0) -> Engine:
    """An engine over the model in a Hugging Face directory or GGUF file, with full attention: `attach` or `open` give
    it a memory. device: as of `Model`."""
    return Engine(Model(path, device, device_number))


def run(steps: Iterable[tuple[Engine, Sequence[int]]], decodes: bool = False, logits: bool = True) -> list[StepResult]:
    """One step of many engines over one model: the weights are read once for all of them.

    steps: each engine with 1 to `chunk` ids. decodes: the ids are of answers, not of texts that are read. Each gives
    what it gives alone, to the bit. What is wrong with one is its own error, and leaves the others alone."""
    pairs = list(steps)
    given = (lib.Step * max(len(pairs), 1))()
    rows, kept = [], []
    for step, (engine, ids) in zip(given, pairs):
        kept.append(_ids(ids))
        step.struct_size = ctypes.sizeof(lib.Step)
        step.sequence, step.ids, step.n = engine._handle._as_parameter_, kept[-1], len(ids)
        step.decodes = int(decodes)
        rows.append((ctypes.c_float * engine.model.vocab_size)() if logits else None)
        if rows[-1] is not None:
            step.logits = rows[-1]
    if pairs:
        lib.call("run", pairs[0][0].model._handle, given, len(pairs))
    results = []
    for step, row in zip(given, rows):
        error = lib.error_of(step.code, step.message) if step.code else None
        results.append(StepResult(array.array("f", row) if row is not None and not error else None, error))
    return results


def ask_many(questions: Iterable[tuple[Engine, str]], on_token: Callable[[int, int, str], object] | None = None,
             **options: Unpack[AnswerOptions]) -> list[Answer | lib.Error | MemoryError]:
    """`ask` of many engines over one model at once: each step is one of all that are not done, so that the weights are
    read once for all of them.

    questions: an engine with each; forks of one engine read what is behind all of them once. Each answer is the one
    that its engine gives alone, to the bit. Where one fails, its error stands in its answer's place, and the others are
    as they would be without it. on_token: called with the number of the question, an id and a text."""
    return _answer_many(questions, True, on_token, dict(options))


def generate_many(prompts: Iterable[tuple[Engine, Text]], on_token: Callable[[int, int, str], object] | None = None,
                  **options: Unpack[AnswerOptions]) -> list[Answer | lib.Error | MemoryError]:
    """As `ask_many`, but each prompt and answer becomes part of what its engine has read, as with `generate`."""
    return _answer_many(prompts, False, on_token, {"chat": False, "reread": 0, **options})


def _answer_many(prompts: Iterable[tuple[Engine, Text]], asks: bool,
                 on_token: Callable[[int, int, str], object] | None,
                 options: dict[str, Any]) -> list[Answer | lib.Error | MemoryError]:
    pairs = list(prompts)
    answers: list[Any] = [None] * len(pairs)
    asked: list[int] = []  # the others have failed already
    kept: list[Any] = []   # what the structs point at
    given = (lib.Prompt * max(len(pairs), 1))()
    for i, (engine, text) in enumerate(pairs):
        try:
            chosen = engine._options(dict(options))
        except lib.Error as e:
            answers[i] = e
            continue
        prompt = given[len(asked)]
        prompt.struct_size = ctypes.sizeof(lib.Prompt)
        prompt.sequence, prompt.asks = engine._handle._as_parameter_, int(asks)
        prompt.options = ctypes.pointer(chosen)
        kept.append(chosen)
        if isinstance(text, str):
            prompt.text, prompt.length = text.encode(), len(text.encode())
        else:
            kept.append(_ids(text))
            prompt.ids, prompt.n_ids = kept[-1], len(text)
        asked.append(i)
    watched = lib.Watched()

    told = on_token or (lambda prompt, id, text: True)  # called even so: Ctrl-C then ends the answers

    def forward(prompt: int, id: int, data: Any, length: int, _: object) -> int:
        return watched.stops(told, asked[prompt], id, ctypes.string_at(data, length).decode(errors="replace"))

    callback = lib.ON_TOKEN_OF(forward)
    if not asked:
        return answers
    with watched:
        lib.call("generate_many", pairs[asked[0]][0].model._handle, given, len(asked), callback, None)
        for prompt, i in zip(given, asked):
            if prompt.code:
                answers[i] = lib.error_of(prompt.code, prompt.message)
            else:
                answers[i] = pairs[i][0]._told(lib.Handle("answer_free", prompt.answer))
    return answers


def fork_folder(source: Path, target: Path) -> None:
    """A second kept memory with the same content; files are shared."""
    lib.call("folder_fork", os.fsencode(source), os.fsencode(target))


def verify(folder: Path) -> list[str]:
    """Reads every byte of a kept memory. Returns what is damaged, a line each: [] if nothing is."""
    damages = ctypes.c_size_t()
    return lib.text_of("folder_verify", os.fsencode(folder), damages).splitlines()
