# SPDX-License-Identifier: Apache-2.0
"""A model, and a text of any length in front of it."""
import collections
import ctypes
import dataclasses
import json
import os
import queue
import sys
import threading
import time

from . import _library as lib

_FINISH = ("length", "stop_token", "stop_text", "cancelled")

Event = collections.namedtuple("Event", "start end")
Event.__doc__ = "Tokens [start, end) of the sequence."


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
    ids: list
    finish: str       #: "length", "stop_token", "stop_text" or "cancelled"
    recalled: list    #: RecalledEvent, best first
    passages: list    #: Passage, in the order of their scores

    def __str__(self):
        return self.text


class _Bar:
    """Progress on stderr: a line that changes on a terminal, else one now and then."""

    def __init__(self):
        self._start = self._last = time.monotonic()

    def __call__(self, done, total):
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


def _settings(settings):
    return json.dumps(settings).encode() if settings else None


class Model:
    """A model in memory: any number of engines, on any number of threads, may use it."""

    def __init__(self, path):
        """path: a Hugging Face directory or a GGUF file."""
        self.path = os.fspath(path)
        self._handle = lib.made("model_free", "model_load", os.fsencode(self.path), None)
        info = lib.ModelInfo()
        lib.call("model_get_info", self._handle, info)
        self.vocab_size, self.n_layers = info.vocab_size, info.n_layers
        self.n_heads, self.n_kv_heads, self.head_dim = info.n_heads, info.n_kv_heads, info.head_dim
        self.max_positions = info.max_positions  #: that it was trained for; 0: it does not say
        self.has_tokenizer, self.has_chat_format = bool(info.has_tokenizer), bool(info.has_chat_format)

    def encode(self, text, special=True):
        """Ids of a text. special: with the tokens that begin a text."""
        data = text.encode()
        return list(lib.items_of(ctypes.c_int64, "model_encode", self._handle, data, len(data), int(special)))

    def decode(self, ids):
        """Text of ids."""
        array = (ctypes.c_int64 * len(ids))(*ids)
        return lib.text_of("model_decode", self._handle, array, len(ids))


class Engine:
    """A sequence of a model: what it has read, in full attention or with an episodic memory.

    One thread at a time; another one gets BusyError. `fork` gives a second one that goes on from here."""

    def __init__(self, model, _handle=None):
        self.model = model if isinstance(model, Model) else Model(model)
        self._handle = _handle or lib.made("sequence_free", "sequence_new", self.model._handle)
        self._folder = None

    # -- what attention reads

    def attach(self, max_tokens=0, **settings):
        """An empty memory. settings: those of docs/settings.md, such as n_local=4096; the others are the model's."""
        lib.call("sequence_attach", self._handle, _settings(settings), max_tokens)
        self._folder = None
        return self

    def attach_full_attention(self, max_tokens=0):
        """Every token before every other, as the model was made."""
        lib.call("sequence_attach_full_attention", self._handle, max_tokens)
        self._folder = None
        return self

    def open(self, folder, write=True, max_tokens=0, **settings):
        """The memory kept in a folder; made there where there is none and `write` is true."""
        lib.call("sequence_open", self._handle, os.fsencode(folder), int(write), _settings(settings), max_tokens)
        self._folder = os.fspath(folder)
        return self

    # -- reading and answering

    def read(self, text, progress=False):
        """Reads a text (or ids) of any length behind what was read. progress: True for a line on stderr, or a function
        of tokens done and tokens in all, which stops the reading by returning False. Returns the tokens read."""
        watched = lib.Watched()
        shown = _Bar() if progress is True else progress or (lambda done, total: True)
        callback = lib.PROGRESS(lambda done, total, _: watched.stops(shown, done, total))
        read = ctypes.c_int64()
        if isinstance(text, str):
            data = text.encode()
            lib.call("sequence_read", self._handle, data, len(data), callback, None, read)
        else:
            ids = (ctypes.c_int64 * len(text))(*text)
            lib.call("sequence_read_ids", self._handle, ids, len(text), callback, None, read)
        watched.check()
        return read.value

    def ask(self, question, on_token=None, **options):
        """Answers from what was read, and comes back: the engine is then as it was.

        options: max_new (128), temperature (0: greedy), top_p, top_k, min_p, repetition_penalty, seed, stop (a list of
        texts), ignore_eos; chat: in the model's chat format (default: where it has one); reread: passages that are
        found for the question and read again before it (default: 3 in the chat format, else 0); recall (True): note
        what was recalled. on_token: called with each id and the text that became certain; False ends the answer."""
        return self._answer("sequence_ask", question, on_token, options)

    def generate(self, prompt, on_token=None, **options):
        """As `ask`, but prompt and answer become part of what was read. Without `reread` and `chat` by default."""
        return self._answer("sequence_generate", prompt, on_token, {"chat": False, "reread": 0} | options)

    def stream(self, question, **options):
        """The texts of an answer to `ask`, as they are written. Breaking off ends it."""
        texts, wanted = queue.Queue(), threading.Event()
        wanted.set()

        def put(_, text):
            if text:
                texts.put(text)
            return wanted.is_set()

        def work():
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

    def _answer(self, function, text, on_token, options):
        given = lib.GenerateOptions()
        lib.call("generate_options_init", given)
        chat = options.pop("chat", None)
        given.chat = int(self.model.has_chat_format if chat is None else chat)
        given.recall = int(options.pop("recall", True))
        can_reread = self.has_memory and given.chat
        given.reread = options.pop("reread", 3 if can_reread else 0)
        stop = options.pop("stop", [])
        stops = (ctypes.c_char_p * max(len(stop), 1))(*[s.encode() for s in stop])
        given.stop, given.n_stop = stops, len(stop)
        for name, value in options.items():
            if name not in ("max_new", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed",
                            "ignore_eos"):
                raise TypeError(f"{name} is no option of an answer")
            setattr(given, name, value)
        watched = lib.Watched()
        told = on_token or (lambda id, text: True)

        def forward(id, data, length, _):
            return watched.stops(told, id, ctypes.string_at(data, length).decode(errors="replace"))

        callback = lib.ON_TOKEN(forward) if on_token else lib.ON_TOKEN()
        data = text.encode()
        answer = lib.made("answer_free", function, self._handle, data, len(data), given, callback, None)
        watched.check()
        return self._told(answer)

    def _told(self, answer):
        finish = ctypes.c_int32()
        lib.call("answer_finish", answer, finish)
        recalled = [RecalledEvent(e.event, e.start, e.end, self._text(e), e.rank, e.attention)
                    for e in lib.items_of(lib.Recalled, "answer_recalled", answer)]
        passages = [Passage(p.start, p.end, self._text(p), p.score)
                    for p in lib.items_of(lib.FoundPassage, "answer_passages", answer)]
        return Answer(lib.text_of("answer_text", answer), list(lib.items_of(ctypes.c_int64, "answer_ids", answer)),
                      _FINISH[finish.value], recalled, passages)

    def _text(self, found):
        # what the question's own steps closed is gone again
        if found.end > self.tokens:
            return ""
        return lib.text_of("sequence_text", self._handle, lib.Range(found.start, found.end))

    # -- states

    def fork(self, folder=None):
        """Without a folder: a second engine that goes on from here; what was read is there once. With a folder: a
        second kept memory with the content of the last commit."""
        if folder is not None:
            if not self._folder:
                raise lib.ConfigError("fork: this memory is not kept in a folder; open one, or fork without a folder")
            return fork_folder(self._folder, folder)
        return Engine(self.model, lib.made("sequence_free", "sequence_fork", self._handle))

    def snapshot(self):
        """The state now, for `restore`."""
        return lib.made("snapshot_free", "sequence_snapshot", self._handle)

    def restore(self, snapshot):
        """Back to a snapshot of this engine."""
        lib.call("sequence_restore", self._handle, snapshot)

    def commit(self):
        """Makes all that was read durable, in a kept memory."""
        lib.call("sequence_commit", self._handle)

    def rewind(self, tokens):
        """A kept memory as it was after its first tokens."""
        lib.call("sequence_rewind", self._handle, tokens)

    def forget(self, start, end):
        """Never recalls again the events that share a token with [start, end). Returns how many there were."""
        forgotten = ctypes.c_size_t()
        lib.call("sequence_forget", self._handle, lib.Range(start, end), forgotten)
        return forgotten.value

    def pin(self, event, pinned=True):
        """A pinned event cannot be forgotten, and is the last to leave host memory."""
        lib.call("sequence_pin", self._handle, event, int(pinned))

    def close(self):
        """Gives everything back now. The engine is then good for nothing."""
        self._handle.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    # -- what there is

    def _info(self):
        info = lib.SequenceInfo()
        lib.call("sequence_get_info", self._handle, info)
        return info

    @property
    def tokens(self):
        """Tokens read so far."""
        return self._info().tokens

    @property
    def has_memory(self):
        """False with full attention."""
        return bool(self._info().has_memory)

    @property
    def events(self):
        """The closed events of the memory."""
        return [Event(e.start, e.end) for e in lib.items_of(lib.Range, "sequence_events", self._handle, 0)]

    def text(self, start, end):
        """Text of tokens [start, end) of what was read."""
        return lib.text_of("sequence_text", self._handle, lib.Range(start, end))

    @property
    def usage(self):
        """Bytes that the memory takes."""
        info = self._info()
        return {name: getattr(info, name) for name in ("host_bytes", "disk_bytes", "index_bytes", "window_bytes")}


def load(path):
    """An engine over the model in a Hugging Face directory or GGUF file, with full attention: `attach` or `open` give
    it a memory."""
    return Engine(Model(path))


def fork_folder(source, target):
    """A second kept memory with the same content; files are shared."""
    lib.call("folder_fork", os.fsencode(source), os.fsencode(target))


def verify(folder):
    """Reads every byte of a kept memory. Returns what is damaged, a line each: [] if nothing is."""
    damages = ctypes.c_size_t()
    return lib.text_of("folder_verify", os.fsencode(folder), damages).splitlines()

