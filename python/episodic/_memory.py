# SPDX-License-Identifier: Apache-2.0
"""The memory alone, for attention of one's own: arrays where they lie, by torch's and numpy's attributes or DLPack."""
from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from . import _library as lib

if TYPE_CHECKING:
    from typing_extensions import Self  # of the type checker: nothing is imported

#: a numpy array, a torch tensor, or what has __dlpack__: float32, bfloat16 or float16, where the memory is
Array = Any

_TYPES = {"float32": 0, "bfloat16": 1, "float16": 2}


class _DLDevice(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int32), ("id", ctypes.c_int32)]


class _DLType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _DLTensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device", _DLDevice), ("ndim", ctypes.c_int32), ("dtype", _DLType),
                ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
                ("byte_offset", ctypes.c_uint64)]


def _of_dlpack(array: Any) -> tuple[int, str, list[int], list[int], int]:
    """Address, type, shape and strides in elements of what speaks DLPack; the array outlives their use."""
    capsule = array.__dlpack__()
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    tensor = _DLTensor.from_address(get(capsule, b"dltensor"))
    names = {(2, 32): "float32", (2, 16): "float16", (4, 16): "bfloat16"}
    shape = tensor.shape[:tensor.ndim]
    if tensor.strides:
        strides = tensor.strides[:tensor.ndim]
    else:
        strides = [1] * tensor.ndim
        for i in reversed(range(tensor.ndim - 1)):
            strides[i] = strides[i + 1] * shape[i + 1]
    kind = names.get((tensor.dtype.code, tensor.dtype.bits), "?")
    return (tensor.data or 0) + tensor.byte_offset, kind, shape, strides, tensor.device.type


def _address(array: Any, name: str, writes: bool) -> tuple[int, str, list[int], list[int], int]:
    if hasattr(array, "data_ptr"):  # torch
        return (array.data_ptr(), str(array.dtype).rpartition(".")[2], list(array.shape), list(array.stride()),
                1 if array.device.type == "cpu" else 2)
    if hasattr(array, "__array_interface__"):  # numpy
        told = array.__array_interface__
        if writes and told["data"][1]:
            raise lib.DataError(f"{name}: the array is read-only; give one that may be written")
        kind = {"<f4": "float32", "<f2": "float16"}.get(told["typestr"], told["typestr"])
        size = int(told["typestr"][2:])
        shape = list(told["shape"])
        strides = told["strides"]
        if strides is None:
            strides = [size] * len(shape)
            for i in reversed(range(len(shape) - 1)):
                strides[i] = strides[i + 1] * shape[i + 1]
        return told["data"][0], kind, shape, [s // size for s in strides], 1
    if hasattr(array, "__dlpack__"):
        return _of_dlpack(array)
    raise lib.DataError(f"{name}: {type(array).__name__} is no array; give a numpy array, a tensor, or what has "
                        "__dlpack__")


def _require_place(name: str, device: int, on_device: bool) -> None:
    if on_device and device != 2:
        raise lib.DataError(f"{name}: lies in host memory, and the memory on a CUDA device: move it there")
    if not on_device and device != 1:
        raise lib.DataError(f"{name}: lies on a device, and the memory on the host; move it there, or make the memory "
                            'with device="cuda"')


def _view(array: Array, name: str, on_device: bool, rotated: bool = False, writes: bool = False) -> lib.View:
    address, kind, shape, strides, device = _address(array, name, writes)
    if len(shape) != 3:
        raise lib.DataError(f"{name}: has {len(shape)} dimensions; it must be [tokens, heads, head_dim]")
    if kind not in _TYPES:
        raise lib.DataError(f"{name}: has type {kind}; it must be one of {', '.join(_TYPES)}")
    _require_place(name, device, on_device)
    if shape[2] > 1 and strides[2] != 1:
        raise lib.DataError(f"{name}: the elements of a head lie {strides[2]} apart; make it contiguous in its last "
                            "dimension")
    return lib.View(data=address, dtype=_TYPES[kind], rotated=int(rotated), n=shape[0], heads=shape[1], dim=shape[2],
                    row_stride=strides[0], head_stride=strides[1])


def _shape(n_layers: int, n_heads: int, n_kv_heads: int, head_dim: int, rotary_dim: int | None, rotary_theta: float,
           frequencies: Sequence[float] | None, attention_factor: float, interleaved: bool, scale: float | None,
           softcap: float | None) -> lib.Shape:
    shape = lib.Shape(n_layers=n_layers, n_heads=n_heads, n_kv_heads=n_kv_heads, head_dim=head_dim,
                      rotary_dim=head_dim if rotary_dim is None else rotary_dim, rotary_theta=rotary_theta,
                      attention_factor=attention_factor, interleaved=int(interleaved), scale=scale or 0,
                      softcap=softcap or 0)
    if frequencies is not None:
        shape.frequencies = (ctypes.c_double * len(frequencies))(*frequencies)
        shape.rotary_dim = 2 * len(frequencies)
    return shape


def _layers(layers: Sequence[dict[str, Any]]) -> Any:
    """As ctypes. Frequencies stay alive with the array."""
    array = (lib.Layer * len(layers))()
    for to, layer in zip(array, layers):
        told = dict(layer)
        frequencies = told.pop("frequencies", None)
        if frequencies is not None:
            told["frequencies"] = (ctypes.c_double * len(frequencies))(*frequencies)
            told["rotary_dim"] = 2 * len(frequencies)
        to.struct_size = ctypes.sizeof(lib.Layer)
        for name, value in told.items():
            setattr(to, name, value)
    return array


class Memory:
    """One sequence's memory, driven step by step:

        memory.begin_step(n)
        for layer in range(n_layers):
            memory.attend(layer, q, k, v, out)   # [n, heads, head_dim] each; out is written
        memory.end_step(surprise)                # [n] nats

    settings: those of docs/settings.md, such as n_local=1024. folder: keeps it there; one that is there is opened at
    its last commit, and takes no settings. rotated: queries and keys come after rotary embedding.

    Where layers differ, layers has a dict for each, of window (0: none), frequencies (or rotary_dim and rotary_theta),
    attention_factor, interleaved, scale and softcap. Layers with a window, beside others without, attend to their
    windows exactly; their queries and keys come before rotary embedding. model: the directory or GGUF file of the
    model, whose folders the programs of this project open too.

    device="cuda": on a CUDA device, for arrays that lie there, all of `dtype`; for max_tokens at most. Calls of a step
    enqueue their work on `stream` (torch.cuda.current_stream().cuda_stream; 0: the default one) and return. Such a
    memory has no folder, and layers that are all alike."""

    _others: Sequence[Memory] = ()
    _on_device = False

    def __init__(self, n_layers: int, n_heads: int, n_kv_heads: int, head_dim: int, rotary_dim: int | None = None,
                 rotary_theta: float = 10000.0, frequencies: Sequence[float] | None = None,
                 attention_factor: float = 1.0, interleaved: bool = False, scale: float | None = None,
                 softcap: float | None = None, folder: str | os.PathLike[str] | None = None, write: bool = True,
                 rotated: bool = False, layers: Sequence[dict[str, Any]] | None = None,
                 model: str | os.PathLike[str] | None = None, device: str = "cpu", device_number: int = 0,
                 dtype: str = "float32", max_tokens: int = 0, stream: int = 0, **settings: Any) -> None:
        self.rotated = rotated
        if device not in ("cpu", "cuda"):
            raise lib.ConfigError(f"device: {device!r}, must be \"cpu\" or \"cuda\"")
        self._on_device = device == "cuda"
        self._shape = _shape(n_layers, n_heads, n_kv_heads, head_dim, rotary_dim, rotary_theta, frequencies,
                             attention_factor, interleaved, scale, softcap)
        self._layers = layers
        if layers is not None and len(layers) != n_layers:
            raise lib.ConfigError(f"layers: there are {len(layers)}, and n_layers = {n_layers}")
        told = json.dumps(settings).encode() if settings else None
        there = folder is not None and os.path.exists(os.path.join(folder, "manifest.json"))
        if there and settings:
            raise lib.ConfigError(f"{folder}: the memory is there, with the settings it was made with; give none")
        where = None if folder is None else os.fsencode(folder)
        if self._on_device:
            for name, value in (("folder", folder), ("layers", layers), ("model", model)):
                if value is not None:
                    raise lib.ConfigError(f"{name}: not with device=\"cuda\"; leave one of the two out")
            if dtype not in _TYPES:
                raise lib.ConfigError(f"dtype: {dtype!r}, must be one of {', '.join(_TYPES)}")
            self._handle = lib.made("memory_free", "memory_on_device", lib.DeviceOptions(
                settings=told, shape=ctypes.pointer(self._shape), dtype=_TYPES[dtype], device_number=device_number,
                max_tokens=max_tokens, stream=stream or None, rotated=int(rotated)))
        elif layers is not None or model is not None:
            options = lib.MemoryOptions(settings=told, folder=where, writes=int(write),
                                        model=None if model is None else os.fsencode(model),
                                        shape=ctypes.pointer(self._shape))
            if layers is not None:
                options.layers = _layers(layers)
            self._handle = lib.made("memory_free", "memory_make", options)
        elif folder is None:
            self._handle = lib.made("memory_free", "memory_new", told, self._shape)
        elif there:
            self._handle = lib.made("memory_free", "memory_open", where, int(write), self._shape)
        else:
            self._handle = lib.made("memory_free", "memory_create", where, told, self._shape)

    def begin_step(self, n: int, decodes: bool = False) -> None:
        """Opens a step of n tokens, at most `chunk`. decodes: a token of an answer, not of a text that is read."""
        lib.call("memory_begin_step", self._handle, n, int(decodes))

    def attend(self, layer: int, q: Array, k: Array, v: Array, out: Array) -> None:
        """One layer of the step, in order, each once. q [n, n_heads, head_dim], k and v [n, n_kv_heads, head_dim] are
        read where they lie; out [n, n_heads, head_dim] is written. float32, bfloat16 or float16 each."""
        there = self._on_device
        lib.call("memory_attend", self._handle, layer, _view(q, "q", there, self.rotated),
                 _view(k, "k", there, self.rotated), _view(v, "v", there), _view(out, "out", there, writes=True))

    def end_step(self, surprise: Sequence[float] | Array) -> None:
        """Ends the step. surprise [n]: negative log-likelihood of each of its tokens, in nats; numbers of any kind. On
        a device an array of float32 there."""
        if self._on_device:
            address, kind, shape, strides, device = _address(surprise, "surprise", False)
            _require_place("surprise", device, True)
            if kind != "float32" or len(shape) != 1 or shape[0] > 1 and strides[0] != 1:
                raise lib.DataError("surprise: must be [n] of float32 without gaps")
            lib.call("memory_end_step", self._handle, address, shape[0])
            return
        n = len(surprise)
        array = (ctypes.c_float * n)(*[float(s) for s in surprise])
        lib.call("memory_end_step", self._handle, array, n)

    def end_step_logits(self, ids: Sequence[int], logits: Array) -> None:
        """Ends the step of these ids. logits: [n, vocab] float32 where the memory is; row i follows ids[i]."""
        n = len(ids)
        address, kind, shape, strides, device = _address(logits, "logits", False)
        _require_place("logits", device, self._on_device)
        if kind != "float32" or len(shape) != 2 or shape[0] != n or shape[1] > 1 and strides[1] != 1:
            raise lib.DataError(f"logits: must be [{n}, vocab] of float32, the numbers of a row side by side")
        stride = strides[0] if n > 1 else shape[1]
        lib.call("memory_end_step_logits", self._handle, (ctypes.c_int64 * n)(*ids), n, address, shape[1], stride)

    def use_stream(self, stream: int) -> None:
        """From here on enqueues on another stream of its device, which waits for what was enqueued."""
        lib.call("memory_use_stream", self._handle, stream or None)

    def end_step_ids(self, ids: Sequence[int], surprise: Sequence[float], last_logits: Any) -> None:
        """Ends the step of these ids, which are kept with the memory. surprise: of ids[1] and on; that of ids[0]
        follows from the logits of the step before. last_logits: [vocab] float32 that follow the last id, in host
        memory."""
        n = len(ids)
        if len(surprise) != n - 1:
            raise lib.DataError(f"surprise: has {len(surprise)} values for {n} ids; there must be one less than ids")
        address, kind, shape, strides, device = _address(last_logits, "last_logits", False)
        if kind != "float32" or device != 1 or len(shape) != 1 or shape[0] > 1 and strides[0] != 1:
            raise lib.DataError("last_logits: must be [vocab] of float32 in host memory without gaps")
        lib.call("memory_end_step_ids", self._handle, (ctypes.c_int64 * n)(*ids), n,
                 (ctypes.c_float * (n - 1))(*surprise), address, shape[0])

    def abandon_step(self) -> None:
        """Gives up the step that is open, if one is."""
        lib.call("memory_abandon_step", self._handle)

    def ids(self, start: int, end: int) -> list[int]:
        """Ids of tokens of a kept memory; -1 where none were given."""
        return list(lib.items_of(ctypes.c_int64, "memory_ids", self._handle, lib.Range(start, end)))

    def _info(self) -> lib.MemoryInfo:
        info = lib.MemoryInfo()
        lib.call("memory_get_info", self._handle, info)
        return info

    @property
    def tokens(self) -> int:
        """Tokens of the finished steps."""
        return int(self._info().tokens)

    @property
    def chunk(self) -> int:
        """Most tokens of one step."""
        return int(self._info().chunk)

    @property
    def rows(self) -> list[Memory]:
        """The memories of a batch's rows, this one first (episodic.attach)."""
        return [self, *self._others]

    @property
    def lanes(self) -> int:
        """What recalls for itself: the layers that the memory serves, or groups of their heads."""
        return int(self._info().lanes)

    @property
    def kept(self) -> bool:
        """Whether it is kept in a folder."""
        return bool(self._info().kept)

    @property
    def open_tokens(self) -> int:
        """Of the step that is open; 0 if none is."""
        return int(self._info().open_tokens)

    @property
    def events(self) -> list[tuple[int, int]]:
        """The closed events: (start, end) of their tokens."""
        return [(e.start, e.end) for e in lib.items_of(lib.Range, "memory_events", self._handle, 0)]

    def recalled(self, lane: int) -> list[int]:
        """Events that a lane (a layer) recalled in the last step, best first."""
        return list(lib.items_of(ctypes.c_int64, "memory_recalled", self._handle, lane))

    def reset(self) -> None:
        """Back to the empty sequence."""
        lib.call("memory_reset", self._handle)

    def snapshot(self) -> lib.Snapshot:
        """The state now, for `restore`."""
        return lib.made("snapshot_free", "memory_snapshot", self._handle)

    def restore(self, snapshot: lib.Snapshot) -> None:
        """Back to a snapshot of this memory."""
        lib.call("memory_restore", self._handle, snapshot)

    def fork(self) -> Memory:
        """A further memory that goes on from here; what there is becomes a base of both."""
        other = object.__new__(Memory)
        other.rotated, other._shape, other._layers = self.rotated, self._shape, self._layers
        other._on_device = self._on_device
        other._handle = lib.made("memory_free", "memory_fork", self._handle)
        return other

    def commit(self) -> None:
        """Makes all finished steps durable, in a kept memory."""
        lib.call("memory_commit", self._handle)

    def forget(self, start: int, end: int) -> int:
        """Never recalls again the events that share a token with [start, end). Returns how many there were."""
        forgotten = ctypes.c_size_t()
        lib.call("memory_forget", self._handle, lib.Range(start, end), forgotten)
        return forgotten.value

    def close(self) -> None:
        """Gives everything back now."""
        self._handle.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
