# SPDX-License-Identifier: Apache-2.0
"""An episodic memory within a transformers model: its attention layers read the memory in place of a cache.

    with episodic.attach(model, n_local=1024, n_mem=1024) as memory:
        model.generate(**tokenizer(book + question, return_tensors="pt"), max_new_tokens=40)
        print(memory.events[:3])

For models whose attention passes through transformers' AttentionInterface, with one kind of attention layer and rotary
embedding over all or the first channels of a head (Llama, Mistral, Qwen2, Qwen3, Granite and others). A batch of one,
float32 or 16 bits, in host memory. Prompts are read in steps of the memory's `chunk`."""
import contextlib
import inspect
import math

import torch
from transformers import AttentionInterface
from transformers.cache_utils import Cache

from ._library import ConfigError, DataError
from ._memory import Memory

NAME = "episodic"


class EpisodicCache(Cache):
    """Hands over the keys and values of the step alone: the memory has what came before."""

    def __init__(self, memory):
        self.memory = memory
        self.layers = []
        self.offloading = False

    def update(self, key_states, value_states, layer_idx, *args, **kwargs):
        return key_states, value_states

    def get_seq_length(self, layer_idx=0, *args, **kwargs):
        return self.memory.tokens

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
        self.memory.reset()


def _attention(module, query, key, value, attention_mask, scaling=None, dropout=0.0, **kwargs):
    reading = getattr(module, "_episodic", None)
    if reading is None:
        raise ConfigError("attach: this model has no memory; its attention is \"episodic\" without one")
    return reading.attend(module.layer_idx, query, key, value), None


AttentionInterface.register(NAME, _attention)


def _rotary_of(base, config):
    """Frequencies and factor of the model's own rotary embedding."""
    modules = [m for m in base.modules() if hasattr(m, "inv_freq") and hasattr(m, "attention_scaling")]
    if len({m.inv_freq.shape for m in modules}) != 1 or len(modules) != 1:
        raise ConfigError(f"attach: {type(base).__name__} has {len(modules)} rotary tables; models with one are built")
    kind = getattr(modules[0], "rope_type", "default")
    if kind not in ("default", "linear", "llama3", "yarn"):
        raise ConfigError(f"attach: rotary embedding of type {kind} is not built")
    return [float(f) for f in modules[0].inv_freq.double().cpu()], float(modules[0].attention_scaling)


class _Reading:
    """The model's calls as steps of the memory."""

    def __init__(self, model, memory):
        self.model, self.memory = model, memory
        self.logits = None  # that follow the last token

    def attend(self, layer, query, key, value):
        if query.shape[0] != 1:
            raise DataError(f"attach: a batch of {query.shape[0]}; a memory is one sequence's: give one")
        # [1, heads, n, d] -> [n, heads, d]; the memory takes rows where they lie
        q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
        out = torch.empty(q.shape, dtype=torch.float32)
        self.memory.attend(layer, q, k, v, out)
        return out[None].to(query.dtype)

    def surprise(self, ids, hidden):
        """Negative log-likelihood of a step's tokens: its first one by the logits before it."""
        head = self.model.get_output_embeddings()
        result = []
        before = self.logits
        for first in range(0, len(ids), 128):
            logits = head(hidden[first:first + 128]).float()
            scale = getattr(self.model.config, "logits_scaling", None)
            if scale:
                logits = logits / scale
            cap = getattr(self.model.config, "final_logit_softcapping", None)
            if cap:
                logits = cap * torch.tanh(logits / cap)
            rows = torch.cat(([before[None]] if before is not None else [logits[:1]]) + [logits[:-1]])
            told = torch.log_softmax(rows, -1).gather(1, ids[first:first + 128, None])[:, 0]
            result += (-told).tolist()
            before = logits[-1]
        self.logits = before
        if any(math.isnan(s) for s in result):
            raise DataError("attach: the model's logits are NaN; check its weights and dtype")
        return result


def _check(model, base):
    config = model.config
    if model.device.type != "cpu":
        raise ConfigError(f"attach: the model lies on {model.device}; models in host memory are built: model.cpu()")
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True):
        kinds.add("sliding_attention")
    if kinds != {"full_attention"}:
        raise ConfigError("attach: models whose layers all have full attention are built; this one has "
                          f"{', '.join(sorted(kinds))}")
    layers = [m for m in base.modules() if hasattr(m, "layer_idx") and hasattr(m, "q_proj") or
              hasattr(m, "layer_idx") and hasattr(m, "qkv_proj")]
    if len(layers) != config.num_hidden_layers:
        raise ConfigError(f"attach: {type(model).__name__} has {len(layers)} attention layers of the kind that is built, "
                          f"and {config.num_hidden_layers} layers")
    source = inspect.getsource(type(layers[0]))
    if "ALL_ATTENTION_FUNCTIONS" not in source:
        raise ConfigError(f"attach: the attention of {type(layers[0]).__name__} does not pass through transformers' "
                          "AttentionInterface; a newer transformers may have it")
    return layers


def new_memory(model, **settings):
    """A memory of the model's shape."""
    base = model.base_model
    layers = _check(model, base)
    config = model.config
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    frequencies, factor = _rotary_of(base, config)
    return Memory(config.num_hidden_layers, config.num_attention_heads, config.num_key_value_heads, head_dim,
                  frequencies=frequencies, attention_factor=factor, scale=float(layers[0].scaling), rotated=True,
                  **settings)


def _set_attention(model, name):
    if hasattr(model, "set_attn_implementation"):
        model.set_attn_implementation(name)
    else:  # transformers before 4.53
        model.config._attn_implementation = name


@contextlib.contextmanager
def attach(model, memory=None, **settings):
    """A context in which `model` reads and writes with a memory. memory: one of `new_memory`, which then goes on, or
    None for a new one. settings: as those of Memory (n_local, n_mem, folder, ...). Yields the memory."""
    if memory is not None and settings:
        raise ConfigError("attach: the memory has its settings; give one of the two")
    base = model.base_model
    layers = _check(model, base)
    memory = memory or new_memory(model, **settings)
    reading = _Reading(model, memory)
    cache = EpisodicCache(memory)
    names = inspect.signature(base.forward).parameters
    cache_name = "cache" if "cache" in names else "past_key_values"
    forward = base.forward
    before = model.config._attn_implementation

    def steps(input_ids=None, attention_mask=None, position_ids=None, inputs_embeds=None, **kwargs):
        if input_ids is None:
            raise DataError("attach: input_ids are needed; embeddings have no surprise")
        if input_ids.shape[0] != 1:
            raise DataError(f"attach: a batch of {input_ids.shape[0]}; a memory is one sequence's: give one")
        if attention_mask is not None and attention_mask.dim() == 2 and not attention_mask.bool().all():
            raise DataError("attach: the attention mask leaves tokens out; give one sequence without padding")
        for name in ("cache", "past_key_values", "cache_position", "use_cache", "return_dict", "output_attentions",
                     "output_hidden_states"):
            kwargs.pop(name, None)
        parts, n = [], input_ids.shape[1]
        chunk = memory.chunk
        for first in range(0, n, chunk):
            ids = input_ids[:, first:first + chunk]
            start = memory.tokens
            positions = torch.arange(start, start + ids.shape[1])[None]
            memory.begin_step(ids.shape[1], decodes=n == 1)
            result = forward(input_ids=ids, attention_mask=None, position_ids=positions, use_cache=True,
                             **{cache_name: cache}, **kwargs)
            memory.end_step(reading.surprise(ids[0], result.last_hidden_state[0]))
            parts.append(result.last_hidden_state)
        result.last_hidden_state = torch.cat(parts, 1)
        return result

    base.forward = steps
    _set_attention(model, NAME)
    for layer in layers:
        layer._episodic = reading
    try:
        with torch.inference_mode():
            yield memory
    finally:
        del base.forward
        _set_attention(model, before)
        for layer in layers:
            del layer._episodic
