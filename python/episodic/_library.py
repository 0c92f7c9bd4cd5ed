# SPDX-License-Identifier: Apache-2.0
"""libepisodic_c.so by ctypes: what is called, and its codes as exceptions.

Calls leave the interpreter's lock, so that other threads run while the library computes."""
from __future__ import annotations

import atexit
import ctypes
import os
import pathlib
import sys
import threading
from collections.abc import Callable
from typing import Any
from ctypes import POINTER, byref, c_char_p, c_double, c_float, c_int32, c_int64, c_size_t, c_uint64, c_void_p


class Error(Exception):
    """A failure of the library: one line that names the setting or file, and the remedy. `code` says of which kind."""
    code = 1


class ConfigError(Error, ValueError):
    """A setting out of its range, unknown, or against another one."""
    code = 2


class FileError(Error, OSError):
    """A file that is missing, damaged or of another kind."""
    code = 3


class DiskFullError(FileError):
    """The disk, or a disk budget, has no room; nothing was lost."""
    code = 4


class DataError(Error, ValueError):
    """Data of a wrong shape, type or value."""
    code = 5


class BudgetError(Error, MemoryError):
    """A byte budget cannot hold what is asked of it."""
    code = 6


class DeviceError(Error):
    """A CUDA device is missing or refused a call."""
    code = 7


class NotBuiltError(Error, NotImplementedError):
    """Not in this build."""
    code = 8


class ClosedError(Error):
    """The object was closed."""
    code = 100


class BusyError(Error, RuntimeError):
    """Another thread is using the object."""
    code = 101


_ERRORS: dict[int, type[Error]] = {e.code: e for e in (ConfigError, FileError, DiskFullError, DataError, BudgetError,
                                                       DeviceError, NotBuiltError, ClosedError, BusyError)}
_API_VERSION = 5

PROGRESS = ctypes.CFUNCTYPE(c_int32, c_int64, c_int64, c_void_p)
ON_TOKEN = ctypes.CFUNCTYPE(c_int32, c_int64, POINTER(ctypes.c_char), c_size_t, c_void_p)
ON_TOKEN_OF = ctypes.CFUNCTYPE(c_int32, c_size_t, c_int64, POINTER(ctypes.c_char), c_size_t, c_void_p)


class _Struct(ctypes.Structure):
    """One that begins with its size."""

    def __init__(self, **fields: Any) -> None:
        super().__init__(ctypes.sizeof(type(self)), **fields)


class Range(ctypes.Structure):
    _fields_ = [("start", c_int64), ("end", c_int64)]


class LoadOptions(_Struct):
    _fields_ = [("struct_size", c_size_t), ("device", c_char_p), ("device_number", c_int32)]


class ModelInfo(_Struct):
    _fields_ = [("struct_size", c_size_t), ("vocab_size", c_int64), ("n_layers", c_int64), ("n_heads", c_int64),
                ("n_kv_heads", c_int64), ("head_dim", c_int64), ("max_positions", c_int64), ("has_tokenizer", c_int32),
                ("has_chat_format", c_int32)]


class SequenceInfo(_Struct):
    _fields_ = [("struct_size", c_size_t), ("tokens", c_int64), ("events", c_int64), ("chunk", c_int64),
                ("has_memory", c_int32), ("kept", c_int32), ("host_bytes", c_int64), ("disk_bytes", c_int64),
                ("index_bytes", c_int64), ("window_bytes", c_int64)]


class GenerateOptions(_Struct):
    _fields_ = [("struct_size", c_size_t), ("max_new", c_int64), ("temperature", c_double), ("top_p", c_double),
                ("top_k", c_int64), ("min_p", c_double), ("repetition_penalty", c_double), ("seed", c_uint64),
                ("ignore_eos", c_int32), ("chat", c_int32), ("reread", c_int64), ("stop", POINTER(c_char_p)),
                ("n_stop", c_size_t), ("recall", c_int32), ("rerank", c_int32)]


class Recalled(ctypes.Structure):
    _fields_ = [("event", c_int64), ("start", c_int64), ("end", c_int64), ("rank", c_int64), ("attention", c_double)]


class FoundPassage(ctypes.Structure):
    _fields_ = [("start", c_int64), ("end", c_int64), ("score", c_double)]


class Step(_Struct):
    _fields_ = [("struct_size", c_size_t), ("sequence", c_void_p), ("ids", POINTER(c_int64)), ("n", c_size_t),
                ("decodes", c_int32), ("logits", POINTER(c_float)), ("code", c_int32), ("message", ctypes.c_char * 256)]


class Prompt(_Struct):
    _fields_ = [("struct_size", c_size_t), ("sequence", c_void_p), ("text", c_char_p), ("length", c_size_t),
                ("ids", POINTER(c_int64)), ("n_ids", c_size_t), ("options", POINTER(GenerateOptions)),
                ("asks", c_int32), ("code", c_int32), ("answer", c_void_p), ("message", ctypes.c_char * 256)]


class View(_Struct):
    _fields_ = [("struct_size", c_size_t), ("data", c_void_p), ("dtype", c_int32), ("rotated", c_int32),
                ("n", c_int64), ("heads", c_int64), ("dim", c_int64), ("row_stride", c_int64),
                ("head_stride", c_int64)]


class Shape(_Struct):
    _fields_ = [("struct_size", c_size_t), ("n_layers", c_int64), ("n_heads", c_int64), ("n_kv_heads", c_int64),
                ("head_dim", c_int64), ("rotary_dim", c_int64), ("rotary_theta", c_double),
                ("frequencies", POINTER(c_double)), ("attention_factor", c_double), ("interleaved", c_int32),
                ("scale", c_float), ("softcap", c_float)]


class MemoryInfo(_Struct):
    _fields_ = [("struct_size", c_size_t), ("tokens", c_int64), ("events", c_int64), ("lanes", c_int64),
                ("chunk", c_int64), ("open_tokens", c_int64), ("kept", c_int32)]


class Layer(_Struct):
    _fields_ = [("struct_size", c_size_t), ("window", c_int64), ("rotary_dim", c_int64), ("rotary_theta", c_double),
                ("frequencies", POINTER(c_double)), ("attention_factor", c_double), ("interleaved", c_int32),
                ("scale", c_float), ("softcap", c_float)]


class MemoryOptions(_Struct):
    _fields_ = [("struct_size", c_size_t), ("settings", c_char_p), ("folder", c_char_p), ("writes", c_int32),
                ("model", c_char_p), ("shape", POINTER(Shape)), ("layers", POINTER(Layer))]


class DeviceOptions(_Struct):
    _fields_ = [("struct_size", c_size_t), ("settings", c_char_p), ("shape", POINTER(Shape)), ("dtype", c_int32),
                ("device_number", c_int32), ("max_tokens", c_int64), ("stream", c_void_p), ("rotated", c_int32)]


_TEXT: list[Any] = [c_char_p, c_size_t]  # a text and its length
_OUT_TEXT: list[Any] = [c_void_p, c_size_t, POINTER(c_size_t)]
_OUT_ITEMS: list[Any] = [c_void_p, c_size_t, POINTER(c_size_t)]
_SIGNATURES: dict[str, list[Any]] = {
    "load_options_init": [POINTER(LoadOptions)],
    "model_load": [c_char_p, POINTER(LoadOptions), POINTER(c_void_p)],
    "model_free": [c_void_p],
    "model_get_info": [c_void_p, POINTER(ModelInfo)],
    "model_encode": [c_void_p, *_TEXT, c_int32, *_OUT_ITEMS],
    "model_decode": [c_void_p, c_void_p, c_size_t, *_OUT_TEXT],
    "sequence_new": [c_void_p, POINTER(c_void_p)],
    "sequence_free": [c_void_p],
    "sequence_attach": [c_void_p, c_char_p, c_int64],
    "sequence_attach_full_attention": [c_void_p, c_int64],
    "sequence_open": [c_void_p, c_char_p, c_int32, c_char_p, c_int64],
    "sequence_get_info": [c_void_p, POINTER(SequenceInfo)],
    "sequence_read": [c_void_p, *_TEXT, PROGRESS, c_void_p, POINTER(c_int64)],
    "sequence_read_ids": [c_void_p, c_void_p, c_size_t, PROGRESS, c_void_p, POINTER(c_int64)],
    "generate_options_init": [POINTER(GenerateOptions)],
    "sequence_generate": [c_void_p, *_TEXT, POINTER(GenerateOptions), ON_TOKEN, c_void_p, POINTER(c_void_p)],
    "sequence_ask": [c_void_p, *_TEXT, POINTER(GenerateOptions), ON_TOKEN, c_void_p, POINTER(c_void_p)],
    "sequence_generate_ids": [c_void_p, c_void_p, c_size_t, POINTER(GenerateOptions), ON_TOKEN, c_void_p,
                              POINTER(c_void_p)],
    "generate_many": [c_void_p, POINTER(Prompt), c_size_t, ON_TOKEN_OF, c_void_p],
    "run": [c_void_p, POINTER(Step), c_size_t],
    "answer_text": [c_void_p, *_OUT_TEXT],
    "answer_reasoning": [c_void_p, *_OUT_TEXT],
    "answer_ids": [c_void_p, *_OUT_ITEMS],
    "answer_finish": [c_void_p, POINTER(c_int32)],
    "answer_recalled": [c_void_p, *_OUT_ITEMS],
    "answer_passages": [c_void_p, *_OUT_ITEMS],
    "answer_passages_only": [c_void_p, POINTER(c_int32)],
    "answer_free": [c_void_p],
    "sequence_fork": [c_void_p, POINTER(c_void_p)],
    "sequence_snapshot": [c_void_p, POINTER(c_void_p)],
    "sequence_restore": [c_void_p, c_void_p],
    "snapshot_free": [c_void_p],
    "sequence_commit": [c_void_p],
    "sequence_rewind": [c_void_p, c_int64],
    "sequence_forget": [c_void_p, Range, POINTER(c_size_t)],
    "sequence_pin": [c_void_p, c_int64, c_int32],
    "sequence_events": [c_void_p, c_int64, *_OUT_ITEMS],
    "sequence_text": [c_void_p, Range, *_OUT_TEXT],
    "sequence_logits": [c_void_p, *_OUT_ITEMS],
    "memory_new": [c_char_p, POINTER(Shape), POINTER(c_void_p)],
    "memory_create": [c_char_p, c_char_p, POINTER(Shape), POINTER(c_void_p)],
    "memory_open": [c_char_p, c_int32, POINTER(Shape), POINTER(c_void_p)],
    "memory_make": [POINTER(MemoryOptions), POINTER(c_void_p)],
    "memory_on_device": [POINTER(DeviceOptions), POINTER(c_void_p)],
    "memory_use_stream": [c_void_p, c_void_p],
    "memory_free": [c_void_p],
    "memory_begin_step": [c_void_p, c_int64, c_int32],
    "memory_attend": [c_void_p, c_int64, POINTER(View), POINTER(View), POINTER(View), POINTER(View)],
    "memory_end_step": [c_void_p, c_void_p, c_size_t],
    "memory_end_step_logits": [c_void_p, c_void_p, c_size_t, c_void_p, c_int64, c_int64],
    "memory_end_step_ids": [c_void_p, c_void_p, c_size_t, c_void_p, c_void_p, c_int64],
    "memory_abandon_step": [c_void_p],
    "memory_ids": [c_void_p, Range, *_OUT_ITEMS],
    "memory_reset": [c_void_p],
    "memory_get_info": [c_void_p, POINTER(MemoryInfo)],
    "memory_events": [c_void_p, c_int64, *_OUT_ITEMS],
    "memory_recalled": [c_void_p, c_int64, *_OUT_ITEMS],
    "memory_snapshot": [c_void_p, POINTER(c_void_p)],
    "memory_restore": [c_void_p, c_void_p],
    "memory_fork": [c_void_p, POINTER(c_void_p)],
    "memory_commit": [c_void_p],
    "memory_forget": [c_void_p, Range, POINTER(c_size_t)],
    "memory_pin": [c_void_p, c_int64, c_int32],
    "folder_fork": [c_char_p, c_char_p],
    "folder_verify": [c_char_p, POINTER(c_size_t), *_OUT_TEXT],
}


def _load() -> ctypes.CDLL:
    beside = pathlib.Path(__file__).parent / "lib" / "libepisodic_c.so.1"
    path = os.environ.get("EPISODIC_C_LIBRARY") or (str(beside) if beside.exists() else "libepisodic_c.so.1")
    try:
        library = ctypes.CDLL(path)
    except OSError as e:
        raise ImportError(f"episodic: {e}; install the wheel (scripts/wheel makes one), or name the library in "
                          "EPISODIC_C_LIBRARY") from None
    library.episodic_api_version.restype = c_int32
    if library.episodic_api_version() < _API_VERSION:
        raise ImportError(f"episodic: {path} has version {library.episodic_api_version()} of the C API; this package "
                          f"needs {_API_VERSION}")
    library.episodic_last_error.restype = c_char_p
    library.episodic_version.restype = c_char_p
    for name, arguments in _SIGNATURES.items():
        function = getattr(library, "episodic_" + name)
        function.argtypes = arguments
        function.restype = c_int32
    return library


_library = _load()
version: str = _library.episodic_version().decode()


def load_cublas() -> None:
    """Loads that of a package of NVIDIA's, so that the library finds it by its name; without one it looks elsewhere."""
    for root in map(pathlib.Path, sys.path):
        for path in sorted(root.glob("nvidia/*/lib/libcublas.so.*")):
            try:
                ctypes.CDLL(str(path))
                return
            except OSError:  # of another machine, or without its companions
                continue


def error_of(code: int, message: bytes) -> Error | MemoryError:
    """What a code stands for."""
    text = message.decode(errors="replace")
    return MemoryError(text) if code == 104 else _ERRORS.get(code, Error)(text)


def call(name: str, *arguments: Any) -> None:
    """Calls episodic_NAME. Raises what its code stands for."""
    code = getattr(_library, "episodic_" + name)(*arguments)
    if code:
        raise error_of(code, _library.episodic_last_error())


def text_of(name: str, *arguments: Any) -> str:
    """A text that a call copies."""
    length = c_size_t()
    call(name, *arguments, None, 0, byref(length))
    buffer = ctypes.create_string_buffer(length.value + 1)
    call(name, *arguments, buffer, len(buffer), byref(length))
    return buffer.raw[:length.value].decode(errors="replace")


def items_of(kind: Any, name: str, *arguments: Any) -> Any:
    """A list that a call copies, as a ctypes array."""
    n = c_size_t()
    call(name, *arguments, None, 0, byref(n))
    items = (kind * n.value)()
    call(name, *arguments, items, n.value, byref(n))
    return items


class Handle:
    """A handle that is freed with its object."""

    def __init__(self, free: str, value: int | None) -> None:
        self._free, self._value = free, value

    @property
    def _as_parameter_(self) -> c_void_p:
        return c_void_p(self._value)

    def close(self) -> None:
        """Gives it back now; no other call takes it then."""
        value, self._value = self._value, None
        if value:
            call(self._free, value)

    def __del__(self) -> None:
        if getattr(self, "_value", None):
            try:
                self.close()
            except Exception:  # at the interpreter's end nothing is left to tell it to
                pass


Snapshot = Handle  #: what `snapshot` gives and `restore` takes


def made(free: str, name: str, *arguments: Any) -> Handle:
    """The handle that a call gives."""
    handle = c_void_p()
    call(name, *arguments, byref(handle))
    return Handle(free, handle.value)


class Watched:
    """Python functions as callbacks of the calls within `with Watched()`. What one raises, Ctrl-C among it, stops the
    work and is raised at the end. So does the end of the program: a thread that comes back to Python then would be
    ended in the midst of the library's work."""
    _within = 0  #: calls, of all threads
    _changed = threading.Condition()
    _ending = False

    def __init__(self) -> None:
        self._raised: BaseException | None = None

    def __enter__(self) -> Watched:
        with Watched._changed:
            Watched._within += 1
        return self

    def __exit__(self, *_: object) -> None:
        with Watched._changed:
            Watched._within -= 1
            Watched._changed.notify_all()
        if self._raised is not None:
            raise self._raised

    def stops(self, function: Callable[..., object], *arguments: Any) -> int:
        if self._raised is not None or Watched._ending:  # what is left of the work ends too
            return 1
        try:
            return 0 if function(*arguments) is not False else 1
        except BaseException as e:
            self._raised = e
            return 1

    @staticmethod
    def end() -> None:
        """Stops all calls, and waits for them."""
        Watched._ending = True
        with Watched._changed:
            Watched._changed.wait_for(lambda: Watched._within == 0, timeout=60)


atexit.register(Watched.end)
