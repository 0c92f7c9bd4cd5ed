# SPDX-License-Identifier: Apache-2.0
"""An episodic memory within a transformers model: its attention layers read the memory in place of a cache.

    with episodic.attach(model, n_local=1024, n_mem=1024) as memory:
        model.generate(**tokenizer(book + question, return_tensors="pt"), max_new_tokens=40)
        print(memory.events[:3])

For models whose attention passes through transformers' AttentionInterface, with rotary embedding of any kind or none.
What the layers do is observed, not read from the configuration: steps of four tokens show each layer's window, scale
and rotary table. Layers with a window attend to it exactly; the memory serves those that see everything.

Importing this module registers the pipeline "episodic-text-generation"."""
from __future__ import annotations

import contextlib
import inspect
import math
import os
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from transformers import AttentionInterface
from transformers.cache_utils import Cache

from ._library import BusyError, ConfigError, DataError, FileError, NotBuiltError
from ._memory import Memory

NAME = "episodic"
_PIECE = 128  # rows of logits at a time


class EpisodicCache(Cache):
    """Hands over the keys and values of the step alone: the memory has what came before."""

    def __init__(self, reading):
        self.reading = reading
        self.layers = []
        self.offloading = False

    def update(self, key_states, value_states, layer_idx, *args, **kwargs):
        if not self.reading.open:
            raise ConfigError("attach: the cache is that of a memory that is no longer attached; leave it out")
        return key_states, value_states

    def get_seq_length(self, layer_idx=0, *args, **kwargs):
        return self.reading.tokens

    def get_mask_sizes(self, query_length, layer_idx=0, *args, **kwargs):
        n = query_length if isinstance(query_length, int) else query_length.shape[0]
        return n, 0

    def get_max_cache_shape(self, *args, **kwargs):
        return -1

    @property
    def is_compileable(self):
        return False

    @property
    def is_initialized(self):
        return True

    def __len__(self):
        return 0

    def reorder_cache(self, *args, **kwargs):
        raise ConfigError("attach: beams need a memory each; use num_beams=1")

    def crop(self, *args, **kwargs):
        raise ConfigError("attach: the memory cannot be cropped; assisted generation is not built")

    def reset(self):
        for memory in self.reading.memories:
            memory.reset()


def _attention(module, query, key, value, attention_mask, scaling=None, dropout=0.0, **kwargs):
    reading = getattr(module, "_episodic", None)
    if reading is None:
        raise ConfigError("attach: this model has no memory; its attention is \"episodic\" without one")
    return reading.attend(module.layer_idx, query, key, value, scaling=scaling, module=module, **kwargs), None


AttentionInterface.register(NAME, _attention)


# -- what a model's layers do -----------------------------------------------------------------------------------------


class _Table:
    """A rotary table, as the model's own module has it."""

    def __init__(self, module, prefix):
        self.module, self.prefix = module, prefix
        kind = getattr(module, "rope_type", "default")
        if isinstance(kind, dict):
            kind = kind.get(prefix.rstrip("_"), "default")
        self.by_length = kind is not None and ("dynamic" in kind or kind == "longrope")

    def at(self, context):
        """Frequencies and factor for queries that look back `context` tokens at most."""
        def turn(position):
            x = torch.zeros(1, dtype=torch.float32, device=self._frequencies().device)
            more = [self.prefix.rstrip("_")] if self.prefix else []
            self.module(x, torch.tensor([[position]], device=x.device), *more)
        if not self.by_length or context is None:
            return self._now()
        turn(context - 1)
        try:
            return self._now()
        finally:
            turn(0)

    def _frequencies(self):
        return getattr(self.module, self.prefix + "inv_freq")

    def _now(self):
        factor = getattr(self.module, self.prefix + "attention_scaling", 1.0)
        return [float(f) for f in self._frequencies().double().cpu()], float(factor)

    def turned(self, rows, positions, interleaved):
        """rows [heads, d], at position 0 (times the factor), at each of the positions: [n, heads, d], in float64."""
        frequencies, _ = self._now()
        half = len(frequencies)
        angles = torch.tensor(positions, dtype=torch.float64)[:, None] * torch.tensor(frequencies, dtype=torch.float64)
        cos, sin = angles.cos()[:, None], angles.sin()[:, None]
        x = rows[None].expand(len(positions), -1, -1).clone()
        first, second = ((slice(0, 2 * half, 2), slice(1, 2 * half, 2)) if interleaved else
                         (slice(0, half), slice(half, 2 * half)))
        a, b = x[..., first].clone(), x[..., second].clone()
        x[..., first], x[..., second] = a * cos - b * sin, b * cos + a * sin
        return x


def _rotary_modules(base):
    return [m for m in base.modules() if any(name.endswith("inv_freq") for name, _ in m.named_buffers(recurse=False))]


def _tables(base):
    tables = []
    for module in _rotary_modules(base):
        for name, _ in module.named_buffers(recurse=False):
            if name.endswith("inv_freq") and not name.endswith("original_inv_freq"):
                tables.append(_Table(module, name[:-len("inv_freq")]))
    return tables


class _Layer:
    """What was seen of a layer."""

    def __init__(self, index, query, key, value, scaling, window, softcap):
        self.query, self.key, self.value = (x[0].transpose(0, 1).double().cpu() for x in (query, key, value))
        self.index, self.window, self.softcap = index, int(window or 0), float(softcap or 0)
        self.head_dim = query.shape[3]
        self.scale = self.head_dim ** -0.5 if scaling is None else float(scaling)
        self.table, self.interleaved = None, False

    @property
    def shape(self):
        return self.query.shape[1], self.key.shape[1], self.head_dim


class _Probe:
    """Stands in for attention in one step of four equal tokens. It gives zeros, so that the tokens stay equal in every
    layer, and their queries and keys differ by their positions alone."""

    POSITIONS = [0, 1, 3, 17]
    open = True
    tokens = 0

    def __init__(self):
        self.layers = []

    def attend(self, layer, query, key, value, scaling=None, module=None, sliding_window=None, softcap=None,
               **kwargs):
        if value.shape[3] != query.shape[3] or key.shape[3] != query.shape[3]:
            raise NotBuiltError("attach: values of another width than keys are not built")
        if kwargs.get("s_aux") is not None:
            raise NotBuiltError("attach: attention with sinks in its softmax (s_aux) is not built")
        if kwargs.get("position_bias") is not None:
            raise NotBuiltError("attach: attention with a bias by position is not built")
        if getattr(module, "is_causal", True) is False:
            raise NotBuiltError("attach: attention to later tokens is not built; give a causal language model")
        self.layers.append(_Layer(layer, query, key, value, scaling, sliding_window, softcap))
        return query.new_zeros(query.shape[0], query.shape[2], query.shape[1], query.shape[3])


def _distance(given, wanted):
    return ((given - wanted).norm() / wanted.norm().clamp_min(1e-30)).item()


def _fit(layer, tables, tolerance):
    """Finds the rotary table that turns a layer's queries and keys, or that none does."""
    def of(turn):
        return max(_distance(turn(rows[0]), rows) for rows in (layer.query, layer.key))
    found = (of(lambda row: row[None].expand(len(_Probe.POSITIONS), -1, -1)), None, False)
    for table in tables:
        for interleaved in (False, True):
            if 2 * len(table._now()[0]) > layer.head_dim:
                continue
            candidate = (of(lambda row: table.turned(row, _Probe.POSITIONS, interleaved)), table, interleaved)
            found = min(found, candidate, key=lambda c: c[0])
    if found[0] > tolerance:
        raise NotBuiltError(f"attach: the queries of layer {layer.index} know their position by other means than "
                            "rotary embedding of their first channels; that is not built")
    if _distance(layer.value[:1].expand_as(layer.value), layer.value) > tolerance:
        raise NotBuiltError(f"attach: the values of layer {layer.index} depend on their position; that is not built")
    layer.table, layer.interleaved = found[1:]


def _scaled_logits(config, logits):
    for name, divides in (("logits_scaling", True), ("logit_scale", False)):
        scale = getattr(config, name, None)
        if scale:
            logits = logits / scale if divides else logits * scale
    cap = getattr(config, "final_logit_softcapping", None)
    return cap * torch.tanh(logits / cap) if cap else logits


def _config_of(model):
    config = model.config
    if hasattr(config, "text_config"):
        raise NotBuiltError(f"attach: {type(model).__name__} reads more than text; give its language model "
                            "(AutoModelForCausalLM of the text configuration)")
    return config


def _base(model):
    """What gives the hidden states that the head turns into logits."""
    base = model.base_model
    return model.get_decoder() if base is model else base  # Gemma 3 before transformers 4.53 names its base wrongly


def _check(model):
    if not hasattr(model, "base_model") or not hasattr(model, "generate") or not hasattr(model, "config"):
        raise ConfigError(f"attach: {type(model).__name__} is no model of transformers; give an AutoModelForCausalLM")
    config = _config_of(model)
    devices = {str(p.device) for p in model.parameters()}
    if "meta" in devices:
        raise ConfigError("attach: weights of the model lie nowhere (device meta); load them first")
    if len(devices) > 1:
        raise ConfigError(f"attach: the model's weights lie on {', '.join(sorted(devices))}; put it on one device")
    if model.get_output_embeddings() is None:
        raise ConfigError(f"attach: {type(model).__name__} has no language model head; give an AutoModelForCausalLM")
    kinds = set(getattr(config, "layer_types", None) or []) - {"full_attention", "sliding_attention"}
    if getattr(config, "attention_chunk_size", None):
        kinds.add("chunked_attention")
    if kinds:
        raise NotBuiltError(f"attach: layers of the kind {', '.join(sorted(kinds))} are not built; full and sliding "
                            "attention are")
    if any(hasattr(m, "_episodic") for m in _base(model).modules()):
        raise ConfigError("attach: this model has a memory already; leave that context first")
    return config


def _cache_name(function):
    return "cache" if "cache" in inspect.signature(function).parameters else "past_key_values"


def _set_attention(model, name):
    if hasattr(model, "set_attn_implementation"):
        model.set_attn_implementation(name)
    else:  # transformers before 4.53
        model.config._attn_implementation = name


@contextlib.contextmanager
def _replaced(*replacements):
    """Attributes of objects, each (object, name, value), which then are again what they were."""
    with contextlib.ExitStack() as stack:
        for of, name, value in replacements:
            if name in vars(of):  # somebody else's replacement
                stack.callback(setattr, of, name, vars(of)[name])
            else:
                stack.callback(vars(of).pop, name, None)
            setattr(of, name, value)
        yield


@contextlib.contextmanager
def _attending(model, reading):
    """The model's attention is the reading's."""
    before, base = model.config._attn_implementation, _base(model)
    replacements = [(m, "_episodic", reading) for m in base.modules() if hasattr(m, "layer_idx")]
    if hasattr(base, "_update_causal_mask"):  # transformers before 4.53 makes one whoever attends, and cuts it
        replacements.append((base, "_update_causal_mask", lambda *_, **__: None))
    with _replaced(*replacements):
        try:
            _set_attention(model, NAME)
            yield
        finally:
            _set_attention(model, before)


def _probed(model, probe):
    """A step of four equal tokens: the model's logits, and the hidden states that its base gave."""
    config, base, name = model.config, _base(model), type(model).__name__
    token = next(i for i in range(config.vocab_size) if i != getattr(config, "pad_token_id", None))
    device = next(model.parameters()).device
    seen, forward = {}, base.forward

    def noted(*args, **kwargs):
        result = forward(*args, **kwargs)
        seen["hidden"] = result.last_hidden_state
        return result

    try:
        with torch.inference_mode(), _attending(model, probe), _replaced((base, "forward", noted)):
            logits = model(input_ids=torch.full((1, 4), token, device=device), use_cache=True,
                           position_ids=torch.tensor([_Probe.POSITIONS], device=device),
                           **{_cache_name(model.forward): EpisodicCache(probe)}).logits
    except (ConfigError, DataError, NotBuiltError):
        raise
    except (AttributeError, IndexError, KeyError, NotImplementedError, RuntimeError, TypeError, ValueError) as e:
        raise ConfigError(f"attach: {name} does not run with its attention replaced through transformers' "
                          f"AttentionInterface ({type(e).__name__}: {str(e).splitlines()[0] if str(e) else ''})") from e
    if "hidden" not in seen:
        raise ConfigError(f"attach: {name} does not call its base model's forward; such models are not built")
    return logits, seen["hidden"]


def _observe(model):
    """The model's layers, as two steps of four tokens show them."""
    config = _check(model)
    base, name, probe, still = _base(model), type(model).__name__, _Probe(), _Probe()
    told, hidden = _probed(model, probe)
    if [layer.index for layer in probe.layers] != list(range(config.num_hidden_layers)):
        raise ConfigError(f"attach: {len(probe.layers)} of the {config.num_hidden_layers} layers of {name} pass their "
                          "attention through transformers' AttentionInterface; all must, each once")
    with torch.inference_mode():
        logits = _scaled_logits(config, model.get_output_embeddings()(hidden))
    tolerance = 1e-3 if logits.dtype == torch.float32 else 5e-2
    if (told - logits).abs().max() > tolerance * told.abs().max().clamp_min(1e-3):
        raise NotBuiltError(f"attach: {name} does more to its logits than is built here")
    tables = _tables(base)
    for layer in probe.layers:
        _fit(layer, tables, tolerance)
    if any(layer.shape != probe.layers[0].shape for layer in probe.layers):
        raise NotBuiltError(f"attach: the layers of {name} have heads of different number or width; that is not built")
    with _not_turning(base):
        _probed(model, still)
    for layer in still.layers:
        if max(_distance(rows[:1].expand_as(rows), rows) for rows in (layer.query, layer.key)) > tolerance:
            raise NotBuiltError(f"attach: layer {layer.index} of {name} rotates by other means than the model's rotary "
                                "modules; that is not built")
    return probe.layers


def _told(layers, settings):
    """The layers as a Memory takes them."""
    told = []
    for layer in layers:
        one = {"window": layer.window, "scale": layer.scale, "softcap": layer.softcap}
        if layer.table is not None:
            context = None
            if layer.table.by_length and layer.window == 0:
                context = settings.get("n_local")
            one["frequencies"], one["attention_factor"] = layer.table.at(context)
            one["interleaved"] = int(layer.interleaved)
        told.append(one)
    return told


def _require_same_weights(model, source):
    """Compares some rows of every tensor that the source's files have under the model's name. Nothing of a GGUF
    file."""
    if not os.path.isdir(source):
        return
    from safetensors import safe_open
    own = dict(model.named_parameters())
    for file in sorted(f for f in os.listdir(source) if f.endswith(".safetensors")):
        with safe_open(os.path.join(source, file), "pt") as tensors:
            for name in tensors.keys():
                if name not in own:
                    continue
                there, here = tensors.get_slice(name), own[name]
                same = list(there.get_shape()) == list(here.shape)
                for at in {0, len(here) // 2, len(here) - 1} if same and here.dim() > 0 else ():
                    row, mine = there[at:at + 1].float(), here[at:at + 1].detach().float().cpu()
                    same = same and torch.allclose(row, mine, rtol=1e-2, atol=1e-3 * row.abs().max().item())
                if not same:
                    raise ConfigError(f"{source}: its weights are not those of the model that is given ({name} "
                                      "differs); name the directory of this model as `source`")


def _source_of(model):
    """The directory that a model was loaded from, that of the hub's cache among them; None where there is none."""
    name = getattr(model.config, "_name_or_path", "") or ""
    if os.path.isfile(os.path.join(name, "config.json")):
        return name
    try:
        from huggingface_hub import try_to_load_from_cache
        found = try_to_load_from_cache(name, "config.json", revision=getattr(model.config, "_commit_hash", None))
    except (ImportError, ValueError):  # no name of the hub's
        return None
    return os.path.dirname(found) if isinstance(found, str) else None


def new_memory(model: Any, source: str | os.PathLike | None = None, folder: str | os.PathLike | None = None,
               write: bool = True, **settings: Any) -> Memory:
    """A memory of the model's shape. source: the directory or GGUF file of the model, by which a memory in a folder
    knows whose it is, and whose settings a new one has; None: the directory that the model was loaded from, if there is
    one."""
    layers = _observe(model)
    return _memory_for(model, layers, source, folder, write, settings)


def _memory_for(model, layers, source, folder, write, settings):
    n_heads, n_kv_heads, head_dim = layers[0].shape
    shape = (len(layers), n_heads, n_kv_heads, head_dim)
    path = source or _source_of(model)
    if path is not None:
        if folder is not None:
            _require_same_weights(model, path)
        try:
            return Memory(*shape, layers=_told(layers, settings), model=path, folder=folder, write=write, **settings)
        except (ConfigError, DataError, FileError) as e:
            # Nobody named the directory: the library may not know the family, or transformers may read it otherwise.
            # A memory of what was seen needs none of it; settings that are wrong are refused there too. One in a folder
            # does without it only where the library cannot read the model: no program has made it then.
            unknown = isinstance(e, FileError) and str(e).startswith(os.path.join(path, "config.json"))
            if source is not None or folder is not None and not unknown:
                raise
    if "n_local" not in settings and any(layer.table and layer.table.by_length for layer in layers):
        raise ConfigError("attach: this model's rotary table depends on the length of the context; say n_local")
    return Memory(*shape, layers=_told(layers, settings), folder=folder, write=write, **settings)


# -- reading -----------------------------------------------------------------------------------------------------------


class _Step:
    """A part of a row's tokens, within one step of its memory."""

    def __init__(self, row, first, end, decodes):
        self.row, self.first, self.end, self.decodes = row, first, end, decodes

    @property
    def n(self):
        return self.end - self.first


class _Reading:
    """The model's calls as steps of the memories, one for each row of a batch."""

    def __init__(self, model, memories, more):
        self.model, self.base, self.memories = model, _base(model), memories
        self.more = more  # makes a further empty memory; None: there is no such
        self.open = True
        self.cache = EpisodicCache(self)
        self.cache_name = _cache_name(self.base.forward)
        self.forward = self.base.forward
        self.lock = threading.RLock()
        self.generating = self.prompt = False  # within generate, and at its prompt
        self.over, self.ends = set(), set()    # rows whose answers have ended, and tokens that end one
        self.head = model.get_output_embeddings()
        self.head_forward = self.head.forward
        self.told = None  # hidden states that generate gets, and what the head made of them
        self.step = []  # parts of the step that is open, a row of the batch each

    @property
    def tokens(self):
        # generate takes what the cache has off its prompt; ours is all new
        return self.memories[0].tokens if self.open and not (self.generating and self.prompt) else 0

    def close(self):
        """Lets go of memories, which live as long as their callers have them."""
        self.open, self.memories, self.more, self.told = False, [], None, None

    # -- the model's calls

    @contextlib.contextmanager
    def alone(self):
        if not self.lock.acquire(blocking=False):
            raise BusyError("attach: another thread is using this model with its memory; use one at a time")
        try:
            yield
        finally:
            self.lock.release()

    def call(self, input_ids=None, attention_mask=None, position_ids=None, *, inputs_embeds=None, **kwargs):
        """In place of the base model's forward."""
        with self.alone(), torch.no_grad():
            self.check_call(input_ids, inputs_embeds, kwargs)
            for name in ("cache", "past_key_values", "cache_position", "use_cache", "return_dict", "output_attentions",
                         "output_hidden_states"):
                kwargs.pop(name, None)
            spans = _spans(input_ids, attention_mask)
            self.have_rows(len(spans))
            return self.read(input_ids, spans, self.steps_of(input_ids, spans), kwargs)

    def check_call(self, input_ids, inputs_embeds, kwargs):
        if input_ids is None or inputs_embeds is not None:
            raise DataError("attach: input_ids are needed; embeddings have no surprise")
        if input_ids.dim() != 2 or input_ids.shape[1] == 0:
            raise DataError(f"attach: input_ids have shape {list(input_ids.shape)}; they must be [rows, tokens]")
        device = next(self.model.parameters()).device
        if input_ids.device != device:
            raise DataError(f"attach: input_ids lie on {input_ids.device}, the model on {device}; put them on one "
                            "device")
        vocabulary = self.model.get_input_embeddings().num_embeddings
        if input_ids.min() < 0 or input_ids.max() >= vocabulary:
            raise DataError(f"attach: input_ids must be in [0, {vocabulary}), the model's vocabulary")
        self.check_caches(kwargs)
        for name in ("output_attentions", "output_hidden_states"):
            if kwargs.get(name):
                raise NotBuiltError(f"attach: {name} is not built with a memory; leave it out")

    def check_caches(self, kwargs):
        for name in ("cache", "past_key_values"):
            cache = kwargs.get(name)
            if cache is None or cache is self.cache:
                continue
            if not isinstance(cache, Cache):
                raise DataError(f"attach: {name} is a {type(cache).__name__}; the memory takes the cache's place: "
                                "leave it out")
            if isinstance(cache, EpisodicCache) or cache.get_seq_length() > 0:
                raise DataError(f"attach: {name} holds tokens that this memory has not read; leave it out, and read "
                                "them within the context")

    def have_rows(self, n):
        """A memory for each row."""
        if n == len(self.memories):
            return
        told = (f"attach: a batch of {n} rows, and {len(self.memories)} "
                f"{'memory that has' if len(self.memories) == 1 else 'memories that have'} read")
        if any(memory.tokens > 0 for memory in self.memories):
            raise DataError(f"{told} {self.tokens} tokens; give as many rows, or a memory for each: "
                            "attach(model, memory=[memory, memory.fork(), ...])")
        if n > len(self.memories) and self.more is None:
            raise DataError(f"{told} nothing yet; it is kept in a folder, or was given: give a memory for each row")
        while len(self.memories) < n:
            self.memories.append(self.more())
        del self.memories[n:]
        self.memories[0]._others = self.memories[1:]

    def steps_of(self, input_ids, spans):
        """The steps that each row makes, as it would make them alone: [rows][steps]."""
        if self.generating and not self.prompt:
            if len(spans) > 1:  # answers that have ended wait for the others
                self.over |= {row for row, (_, end) in enumerate(spans) if int(input_ids[row, end - 1]) in self.ends}
            if len(self.over) == len(spans):
                self.over = set()  # whoever asks for more gets it
            return [[] if row in self.over else [_Step(row, *span, True)] for row, span in enumerate(spans)]
        result = []
        for row, (first, end) in enumerate(spans):
            chunk = self.memories[row].chunk
            # the token that an answer starts from is a step of its own (EM 3.4)
            last = end - 1 if self.generating else end
            steps = [_Step(row, at, min(at + chunk, last), not self.generating and end - first == 1)
                     for at in range(first, last, chunk)]
            result.append(steps + ([_Step(row, last, end, False)] if last < end else []))
        self.prompt = False
        return result

    def read(self, input_ids, spans, steps, kwargs):
        hidden = result = None
        rows = {}
        for number in range(max(len(of_row) for of_row in steps)):
            step = [of_row[number] for of_row in steps if number < len(of_row)]
            result, last = self.make(input_ids, step, kwargs)
            rows.update(last)
            told = result.last_hidden_state
            if hidden is None:  # of an answer's prompt only the last token's row is read
                width = 1 if self.generating else input_ids.shape[1]
                hidden = told.new_zeros(input_ids.shape[0], width, told.shape[2])
            for i, part in enumerate(step):
                if not self.generating:
                    hidden[part.row, part.first:part.end] = told[i, :part.n]
                elif part.end == spans[part.row][1]:
                    hidden[part.row, 0] = told[i, part.n - 1]
        result.last_hidden_state = hidden
        if self.generating:
            nothing = torch.zeros_like(next(iter(rows.values())))
            self.told = hidden, torch.stack([rows.get(row, nothing) for row in range(len(spans))])[:, None]
        return result

    def call_head(self, hidden):
        """In place of the head's forward: of what generate got, it has been computed for the surprise."""
        if self.told is not None:
            of, rows = self.told
            if hidden.shape == of.shape and hidden.data_ptr() == of.data_ptr():
                return rows
        return self.head_forward(hidden)

    def make(self, input_ids, step, kwargs):
        """One step of some rows at once, padded behind to the longest. Also the head's outputs of each row's last
        token."""
        longest = max(part.n for part in step)
        ids = input_ids.new_zeros(len(step), longest)
        positions = torch.zeros_like(ids)
        self.step = step
        try:
            for i, part in enumerate(step):
                ids[i, :part.n] = input_ids[part.row, part.first:part.end]
                start = self.memories[part.row].tokens
                positions[i] = torch.arange(start, start + longest)
                self.memories[part.row].begin_step(part.n, decodes=part.decodes)
            result = self.forward(input_ids=ids, attention_mask=None, position_ids=positions, use_cache=True,
                                  **{self.cache_name: self.cache}, **kwargs)
            surprise = [self.surprise(ids[i, :part.n], result.last_hidden_state[i, :part.n])
                        for i, part in enumerate(step)]
            for i, part in enumerate(step):
                self.memories[part.row].end_step_ids(ids[i, :part.n].tolist(), *surprise[i][:2])
            return result, {part.row: surprise[i][2] for i, part in enumerate(step)}
        except BaseException:
            for part in step:  # nothing of it counts
                with contextlib.suppress(Exception):
                    self.memories[part.row].abandon_step()
            raise
        finally:
            self.step = []

    def attend(self, layer, query, key, value, **kwargs):
        # [rows, heads, n, d] each; the memory takes rows where they lie, before rotary embedding
        out = torch.zeros(query.shape[0], query.shape[2], query.shape[1], query.shape[3])
        q, k, v = (x.detach().transpose(1, 2).to("cpu") for x in (query, key, value))
        for i, part in enumerate(self.step):
            n = part.n
            self.memories[part.row].attend(layer, q[i, :n], k[i, :n], v[i, :n], out[i, :n])
        return out.to(query.device, query.dtype)

    def surprise(self, ids, hidden):
        """Negative log-likelihood of a step's tokens but the first, the logits that follow the last, and what the head
        made of it."""
        result, before, raw = [], None, None
        for first in range(0, len(ids), _PIECE):
            piece = ids[first:first + _PIECE]
            raw = self.head_forward(hidden[first:first + _PIECE])
            logits = _scaled_logits(self.model.config, raw.float())
            rows, told = (logits[:-1], piece[1:]) if before is None else (torch.cat((before[None], logits[:-1])), piece)
            if len(told):
                result += (-torch.log_softmax(rows, -1).gather(1, told[:, None])[:, 0]).tolist()
            before = logits[-1]
        last = before.contiguous().cpu()
        if any(math.isnan(s) for s in result) or bool(torch.isnan(last).any()):
            raise DataError("attach: the model's logits are NaN; check its weights and dtype")
        return result, last, raw[-1]

    # -- generate

    def generate(self, original):
        def generate(inputs=None, generation_config=None, **kwargs):
            own = generation_config or self.model.generation_config

            def setting(name):
                return kwargs[name] if name in kwargs else getattr(own, name, None)
            if (setting("num_beams") or 1) > 1:
                raise ConfigError("attach: beams need a memory each; use num_beams=1")
            for name in ("assistant_model", "prompt_lookup_num_tokens", "use_mtp", "assistant_early_exit"):
                if setting(name):
                    raise ConfigError(f"attach: {name}: the memory cannot take tokens back; assisted generation is not "
                                      "built")
            for name in ("cache_implementation", "penalty_alpha", "dola_layers"):
                if kwargs.get(name):
                    raise ConfigError(f"attach: {name} is not built with a memory; leave it out")
            if setting("prefill_chunk_size"):
                raise ConfigError("attach: prefill_chunk_size: the memory reads in steps of its own; leave it out")
            if setting("use_cache") is False:
                raise ConfigError("attach: without use_cache a model reads its prompt anew for each token; leave it "
                                  "out")
            self.check_caches(kwargs)
            for name in ("cache", "past_key_values"):
                kwargs.pop(name, None)
            # no cache of the model's own kind: some take room for the whole prompt
            kwargs[_cache_name(self.model.forward)] = self.cache
            if getattr(own, "cache_implementation", None):
                kwargs["cache_implementation"] = None
            eos = setting("eos_token_id")
            eos = eos.tolist() if isinstance(eos, torch.Tensor) else eos
            with self.alone():
                self.generating, self.prompt, self.over = True, True, set()
                self.ends = set(eos if isinstance(eos, (list, tuple)) else [eos])
                try:
                    return original(inputs, generation_config=generation_config, **kwargs)
                finally:
                    self.generating, self.told = False, None
        return generate


def _spans(input_ids, attention_mask):
    """First and last of each row's tokens, those that padding leaves."""
    rows, n = input_ids.shape
    if attention_mask is None:
        return [(0, n)] * rows
    if not isinstance(attention_mask, torch.Tensor) or attention_mask.dim() != 2 or attention_mask.shape[0] != rows or \
            attention_mask.shape[1] < n:
        raise DataError("attach: the attention mask must be [rows, tokens], of ones and zeros")
    spans = []
    for row, mask in enumerate(attention_mask[:, -n:].bool().tolist()):
        kept = [i for i, there in enumerate(mask) if there]
        if not kept:
            raise DataError(f"attach: the attention mask leaves nothing of row {row}; give it a token")
        if kept[-1] - kept[0] + 1 != len(kept):
            raise DataError(f"attach: the attention mask leaves tokens out within row {row}; only padding before or "
                            "behind a row's tokens is built")
        spans.append((kept[0], kept[-1] + 1))
    return spans


def _not_turning(base):
    """Rotary modules that turn nothing: queries and keys reach attention as the memory takes them."""
    def still(forward):
        def call(x, position_ids=None, *args, **kwargs):
            if position_ids is not None:
                args = (torch.zeros_like(position_ids), *args)
            told = forward(x, *args, **kwargs)
            if isinstance(told, tuple):
                return torch.ones_like(told[0]), torch.zeros_like(told[1])
            return torch.ones_like(told)  # complex: of angle 0
        return call
    return _replaced(*((module, "forward", still(module.forward)) for module in _rotary_modules(base)))


def _require_same_layers(memory, layers):
    """Refuses a memory that was made for other layers."""
    if not isinstance(memory, Memory):
        raise ConfigError(f"attach: memory is a {type(memory).__name__}; give one of episodic.transformers.new_memory")
    remedy = "make it with episodic.transformers.new_memory of this model"
    s, (n_heads, n_kv_heads, head_dim) = memory._shape, layers[0].shape
    if (s.n_layers, s.n_heads, s.n_kv_heads, s.head_dim) != (len(layers), n_heads, n_kv_heads, head_dim):
        raise ConfigError(f"attach: the memory is of {s.n_layers} layers of {s.n_heads} and {s.n_kv_heads} heads of "
                          f"{s.head_dim} channels, the model has {len(layers)} of {n_heads} and {n_kv_heads} of "
                          f"{head_dim}; {remedy}")
    if memory._layers is None or memory.rotated:
        raise ConfigError(f"attach: the memory is of no model's layers; {remedy}")

    def near(a, b):
        return len(a) == len(b) and all(math.isclose(x, y, rel_tol=1e-5) for x, y in zip(a, b))
    for layer, made in zip(layers, memory._layers):
        now = _told([layer], {})[0]
        names = {"window", "scale", "softcap", "interleaved"} | (set() if layer.table and layer.table.by_length else
                                                                 {"attention_factor"})
        if not all(math.isclose(now.get(n, 0), made.get(n, 0), rel_tol=1e-5) for n in names) or \
                "attention_factor" in names and not near(now.get("frequencies", ()), made.get("frequencies", ())):
            raise ConfigError(f"attach: the memory was made for another model: layer {layer.index} has another window, "
                              f"scale or rotary table; {remedy}")


@contextlib.contextmanager
def attach(model: Any, memory: Memory | Sequence[Memory] | None = None, folder: str | os.PathLike | None = None,
           source: str | os.PathLike | None = None, write: bool = True, **settings: Any) -> Iterator[Memory]:
    """A context in which `model` reads and writes with a memory, which it yields.

    memory: one of `new_memory`, which then goes on, or a list of them, one for each row of a batch; None: a new one.
    folder: keeps it there; one that is there is opened, also one that `episodic ingest` or an Engine made of the same
    model. write=False leaves the folder as it is. source: the model's directory or GGUF file, where the model does not
    know the directory it was loaded from. settings: as those of Memory (n_local, n_mem, ...).

    A batch of several rows has a memory for each: `memory.rows`. Rows may be padded, with the attention mask that says
    so."""
    if memory is not None and (settings or folder is not None or source is not None):
        raise ConfigError("attach: the memory has its settings; give one of the two")
    if isinstance(memory, (list, tuple)) and not memory:
        raise ConfigError("attach: the list of memories is empty; give one for each row")
    layers = _observe(model)
    more = None
    if memory is None:
        memories = [_memory_for(model, layers, source, folder, write, settings)]
        if folder is None:
            def more():
                return _memory_for(model, layers, source, None, True, settings)
    else:
        memories = list(memory) if isinstance(memory, (list, tuple)) else [memory]
        for one in memories:
            _require_same_layers(one, layers)
    base, reading = _base(model), _Reading(model, memories, more)
    memories[0]._others = memories[1:]
    try:
        with torch.inference_mode(), _not_turning(base), _attending(model, reading), \
                _replaced((base, "forward", reading.call), (reading.head, "forward", reading.call_head),
                          (model, "generate", reading.generate(model.generate))):
            yield memories[0]
    finally:
        reading.close()


def _register():
    from ._pipeline import register
    register()


_register()
