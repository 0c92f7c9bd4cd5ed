# SPDX-License-Identifier: Apache-2.0
"""The pipeline "episodic-text-generation": one context, which is read once, and any number of questions about it."""
import torch
from transformers import AutoModelForCausalLM
from transformers.pipelines import PIPELINE_REGISTRY
from transformers.pipelines.base import Pipeline

TASK = "episodic-text-generation"
_STEPS = 64  # of a memory, that one call of the model makes of a context


class EpisodicTextGenerationPipeline(Pipeline):
    """
        import episodic.transformers
        pipe = transformers.pipeline("episodic-text-generation", model=...)
        pipe(context, question="...", n_local=1024)["answer"]
        pipe(context, questions=["...", "..."])["answers"]

    Each question is asked of the context alone. max_new_tokens, answer_prefix and generate_kwargs concern the answers;
    all else is a setting of `episodic.attach`, folder among them. A model with a chat format gets context and question
    as one message."""

    # transformers fills these in for pipelines that say nothing
    _load_processor = _load_image_processor = _load_feature_extractor = False
    _load_tokenizer = True

    def _sanitize_parameters(self, question=None, questions=None, max_new_tokens=None, answer_prefix=None,
                             generate_kwargs=None, **settings):
        if question is not None and questions is not None:
            raise ValueError(f"{TASK}: give question or questions, not both")
        before, forward = {}, {}
        if question is not None or questions is not None:
            before["questions"] = [question] if questions is None else list(questions)
        if answer_prefix is not None:
            before["answer_prefix"] = answer_prefix
        if max_new_tokens is not None:
            forward["max_new_tokens"] = max_new_tokens
        if generate_kwargs is not None:
            forward["generate_kwargs"] = generate_kwargs
        if settings:
            forward["settings"] = settings
        return before, forward, {"single": True} if question is not None else {}

    def preprocess(self, context, questions=("",), answer_prefix=""):
        tokenizer = self.tokenizer
        if getattr(tokenizer, "chat_template", None):
            mark = "\n" + "#" * (len(context) + 8)  # that the context does not hold
            text = tokenizer.apply_chat_template([{"role": "user", "content": context + mark}], tokenize=False,
                                                 add_generation_prompt=True)
            before, behind = text.split(mark)
        else:
            before, behind = (tokenizer.bos_token or "") + context, "\n"

        def encode(text):
            return tokenizer.encode(text, return_tensors="pt", add_special_tokens=False)
        return {"context": encode(before), "questions": [encode(q + behind + answer_prefix) for q in questions]}

    def _forward(self, inputs, max_new_tokens=50, generate_kwargs=None, settings=None):
        from .transformers import _base, attach
        model, answers = self.model, []
        options = {"do_sample": False, "max_new_tokens": max_new_tokens, **(generate_kwargs or {})}
        with attach(model, **(settings or {})) as memory:
            context = inputs["context"]
            for part in context.split(_STEPS * memory.chunk, dim=1):
                _base(model)(part)
            state = memory.snapshot()
            for question in inputs["questions"]:
                told = model.generate(question, attention_mask=torch.ones_like(question), **options)
                answers.append(told[0, question.shape[1]:].cpu())
                memory.restore(state)
        return {"answers": answers}

    def postprocess(self, outputs, single=False):
        answers = [self.tokenizer.decode(ids, skip_special_tokens=True) for ids in outputs["answers"]]
        return {"answer": answers[0]} if single else {"answers": answers}


def register():
    if TASK not in PIPELINE_REGISTRY.supported_tasks:
        PIPELINE_REGISTRY.register_pipeline(TASK, EpisodicTextGenerationPipeline, pt_model=AutoModelForCausalLM)
