# SPDX-License-Identifier: Apache-2.0
"""The model class `episodic` of lm-eval: a transformers model that reads through a memory.

    python -m episodic.lm_eval run --model episodic --model_args pretrained=DIR,n_local=1024,n_mem=1024 --tasks ...

is `lm_eval` with this class registered; `import episodic.lm_eval` registers it in a program. What HFLM does not take is
a setting of the memory. Each request begins with an empty memory; requests in a row with the same context read it once.
The length of a text has no bound."""
import inspect

import torch
from lm_eval.api.registry import register_model
from lm_eval.models.huggingface import HFLM

from ._library import ConfigError
from .transformers import _base, _scaled_logits, attach

_NO_BOUND = 1 << 40  # tokens
_STEPS = 64  # of a memory, that one call of the model makes


@register_model("episodic")
class EpisodicLM(HFLM):
    """HFLM, with the attention of an episodic memory."""

    def __init__(self, pretrained, max_length=_NO_BOUND, **kwargs):
        known = inspect.signature(HFLM.__init__).parameters
        self._settings = {name: kwargs.pop(name) for name in list(kwargs) if name not in known}
        if "folder" in self._settings:
            raise ConfigError("lm_eval: each request begins with an empty memory; leave the folder out")
        super().__init__(pretrained, max_length=max_length, **kwargs)
        if self.backend != "causal":
            raise ConfigError("lm_eval: a memory serves decoders; give a causal language model")
        with self._attached():  # refuses a model, or settings, before any work
            pass

    def _attached(self):
        return attach(self.model, **self._settings)

    def _model_generate(self, context, max_length, stop, **generation_kwargs):
        with self._attached():
            return super()._model_generate(context, max_length=max_length, stop=stop, **generation_kwargs)

    def _model_call(self, inps, attn_mask=None, labels=None):
        with self._attached():
            return self.model(inps, attention_mask=attn_mask).logits

    def _loglikelihood_tokens(self, requests, disable_tqdm=False, override_bs=None):
        base, head = _base(self.model), self.model.get_output_embeddings()
        results, read, state = [], None, None
        with self._attached() as memory:
            for request, context, continuation in requests:
                if not continuation:
                    raise ValueError("lm_eval: a request without a continuation")
                if read != context:
                    memory.reset()
                    for part in self._ids(context[:-1]).split(_STEPS * memory.chunk, dim=1):
                        if part.shape[1] > 0:
                            base(part)
                    read, state = context, memory.snapshot()
                else:
                    memory.restore(state)
                hidden = base(self._ids(context[-1:] + continuation[:-1])).last_hidden_state[0]
                told, greedy = 0.0, True
                for first in range(0, len(continuation), 128):
                    ids = torch.tensor(continuation[first:first + 128], device=self.device)
                    logits = _scaled_logits(self.model.config, head(hidden[first:first + 128]).float())
                    told += torch.log_softmax(logits, -1).gather(1, ids[:, None]).double().sum().item()
                    greedy = greedy and bool((logits.argmax(-1) == ids).all())
                results.append((told, greedy))
                if request is not None:
                    self.cache_hook.add_partial("loglikelihood", request, results[-1])
        return results

    def _ids(self, tokens):
        return torch.tensor([tokens], dtype=torch.long, device=self.device)


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate
    cli_evaluate()
