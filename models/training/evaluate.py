# SPDX-License-Identifier: Apache-2.0
"""Hides facts in a long text, feeds it through the memory and asks for each of them. One JSON
line per run.

Facts   passkey   "The pass key is 60453. Remember it. 60453 is the pass key.", one fact a
                  context, a context per depth
        named     "The pass key of NAME is ...", as above, all in one context, names picked
                  by hand
        numbers   "The number of NOUN is 123456.", all in one context; nouns of the training text,
                  6 digits
        nouns     the same with nouns picked by hand, 5 to 7 digits
        mixed     labels of several kinds in one context, 5 to 7 digits
Hay     noise (a line that repeats), essays (PaulGrahamEssays.json in --texts), or the path of a
        text file
Feed    token: the context, then the question token by token.  question: the question as a step of
        its own.
        last: the whole prompt but its last token in chunks, then that token.
"""

import argparse
import json
import os
import random
import re
import time

import numpy as np
import torch
from tokenizers import Tokenizer

from data import BOS, EOS, INTRO, NOISE, read_text
from memory import SETTINGS, Memory
from model import Llama

NAMES = (
    "Zanele Quentin Xavier Ottilie Bartholomew Siobhan Ximena Thaddeus Wilhelmina Ngozi "
    "Leopold Cornelius Beatrix Fergus Isolde Rupert Mathilda Dmitri Ferdinand Gwendolyn "
    "Percival Rosalind Tobias Ursula Vivienne Wendell Yolanda Zachary Araminta Barnaby"
).split()
NOUNS = (
    "apples lanterns telescopes umbrellas bicycles penguins volcanoes satellites violins "
    "mushrooms keyboards dragons pillows cathedrals tractors diamonds submarines bananas "
    "elephants rockets candles microphones spiders waterfalls helmets robots kettles dinosaurs "
    "pyramids teapots"
).split()
MIXED = [
    "pass key of {n}",
    "number of {w}",
    "phone number of {n}",
    "{w} code",
    "secret number of {n}",
    "price of the {w}",
    "favorite number of {n}",
    "access code for {n}",
    "magic number",
    "age of {n}",
]
DIGITS = dict(passkey=(5, 5), named=(5, 5), numbers=(6, 6), nouns=(5, 7), mixed=(5, 7))
ONCE = "The {l} is {v}.\n"
TWICE = "The {l} is {v}. Remember it. {v} is the {l}.\n"


def load(path):
    """A checkpoint of train.py, or a folder of export.py."""
    if os.path.isdir(path):
        from safetensors.torch import load_file

        c = json.load(open(os.path.join(path, "config.json")))
        w = {k: v.float() for k, v in load_file(os.path.join(path, "model.safetensors")).items()}
    else:
        z = torch.load(path)
        c, w = z["cfg"], {k: v.bfloat16().float() for k, v in z["net"].items()}
    net = Llama(c)
    net.load_state_dict(w)
    return net.eval()


class Contexts:
    def __init__(self, tok, texts, hay, seed):
        self.tok, self.r = tok, random.Random(seed)
        if hay == "noise":
            self.pieces = [self.enc(NOISE)]
        else:
            if hay == "essays":
                lines = (
                    open(os.path.join(texts, "PaulGrahamEssays.json"), encoding="utf-8")
                    .read()
                    .strip()
                    .split("}\n{")
                )
                s = " ".join(
                    json.loads("{" + x.strip().removeprefix("{").removesuffix("}") + "}")["text"]
                    for x in lines
                )
            else:
                s = read_text(hay)
            sentences = re.findall(r".{1,400}?[.!?](?= |$)|.{400}", re.sub(r"\s+", " ", s))
            self.pieces = [
                e.ids
                for e in tok.encode_batch(
                    [x.strip() + "\n" for x in sentences], add_special_tokens=False
                )
            ]
        words = re.findall(r"\b[a-z]{4,9}\b", read_text(os.path.join(texts, "war_and_peace.txt")))
        count = {}
        for w in words:
            count[w] = count.get(w, 0) + 1
        self.words = [w for w, c in count.items() if c >= 3]

    def enc(self, s):
        return self.tok.encode(s, add_special_tokens=False).ids

    def labels(self, task, n):
        r = self.r
        if task == "passkey":
            return ["pass key"]
        if task == "named":
            return ["pass key of " + x for x in r.sample(NAMES, n)]
        if task == "numbers":
            return ["number of " + x for x in r.sample(self.words, n)]
        if task == "nouns":
            return ["number of " + x for x in r.sample(NOUNS, n)]
        names, nouns = r.sample(NAMES, n), r.sample(NOUNS, n)
        out = []
        for i in range(n):
            m = MIXED[i % len(MIXED)]
            if "{" not in m and m in out:
                m = "number of {w}"
            out.append(m.format(n=names[i], w=nouns[i]))
        return out

    def build(self, task, tokens, depths):
        """-> ids of the context, [(depth, ids of the question, value, first token of the fact,
        end)]"""
        labels = self.labels(task, len(depths))
        values = [
            "".join(self.r.choice("0123456789") for _ in range(self.r.randint(*DIGITS[task])))
            for _ in labels
        ]
        form = TWICE if task in ("passkey", "named") else ONCE
        facts = [self.enc(form.format(l=l, v=v)) for l, v in zip(labels, values)]
        room = tokens - sum(map(len, facts)) - 60
        chosen, n, i = [], 0, self.r.randrange(len(self.pieces))
        while n < room:
            chosen.append(self.pieces[i % len(self.pieces)])
            n, i = n + len(chosen[-1]), i + 1
        ids, out, j = [BOS] + self.enc(INTRO[0]), [], 0
        for k in range(len(chosen) + 1):
            while j < len(facts) and round(depths[j] * len(chosen)) <= k:
                out.append((depths[j], labels[j], values[j], len(ids), len(ids) + len(facts[j])))
                ids += facts[j]
                j += 1
            if k < len(chosen):
                ids += chosen[k]
        joined = ids[-1:] == self.enc(".\n")  # the pieces the whole prompt would have
        if joined:
            ids.pop()
        ask = lambda l: self.enc((".\n" if joined else "") + f"\n\nWhat is the {l}?\n\nThe {l} is")
        return ids, [(d, ask(l), v, s, e) for d, l, v, s, e in out]


def run(net, contexts, task, tokens, settings, feed, depths):
    """-> right, asked, times the gold event was recalled by layer, misses, tokens, events, tokens
    a second"""
    ids, questions = contexts.build(task, tokens, depths)
    m = Memory(net, settings, len(ids) + 400, torch.float16 if len(ids) > 300000 else torch.float32)
    cut = len(ids) // m.m["chunk"] * m.m["chunk"] if feed == "last" else len(ids)
    t = time.time()
    m.feed(ids[:cut])
    speed = len(ids) / (time.time() - t)
    state, right, recalled, misses = m.fork(), 0, np.zeros(m.L), []
    for depth, question, value, s, e in questions:
        m.restore(state)
        tail = ids[cut:] + question
        if feed == "question":
            m.trace = []
            logits = m.step(tail)
        elif feed == "last":
            m.feed(tail[:-1])
            m.trace = []
            logits = m.step(tail[-1:])
        else:
            for i, t in enumerate(tail):
                m.trace = [] if i == len(tail) - 1 else None
                logits = m.step([t])
        ((_, _, events),) = m.trace
        m.trace = None
        for l, x in enumerate(events):
            recalled[l] += any(m.first[k] < e and m.end[k] > s for k in x)
        text = contexts.tok.decode(m.answer(logits, 14, EOS))
        found = re.search("[0-9]+", text)
        if found and found.group(0) == value:
            right += 1
        else:
            misses.append(
                (
                    round(depth, 3),
                    contexts.tok.decode(question).split("What is the ")[1].split("?")[0],
                    value,
                    text[:20],
                )
            )
    return right, len(questions), recalled, misses, len(ids), m.E, speed


def main():
    ap = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    ap.add_argument("--model", required=True, help="checkpoint or Hugging Face folder")
    ap.add_argument("--tok", required=True, help="folder of tokenizer.json")
    ap.add_argument(
        "--texts", required=True, help="folder of war_and_peace.txt and PaulGrahamEssays.json"
    )
    ap.add_argument("--facts", nargs="+", default=["named"], choices=sorted(DIGITS))
    ap.add_argument("--hay", default="essays")
    ap.add_argument("--tokens", type=int, default=20000)
    ap.add_argument("--questions", type=int, default=20, help="facts at evenly spaced depths")
    ap.add_argument("--contexts", type=int, default=1, help="repetitions (not for passkey)")
    ap.add_argument("--feed", default="token", choices=["token", "question", "last"])
    ap.add_argument(
        "--memory",
        type=json.loads,
        default={},
        help="settings that differ from the recommended ones, as JSON",
    )
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--threads", type=int, default=1)
    a = ap.parse_args()
    torch.set_num_threads(a.threads)
    net = load(a.model)
    contexts = Contexts(
        Tokenizer.from_file(os.path.join(a.tok, "tokenizer.json")), a.texts, a.hay, a.seed
    )
    depths = [(i + 0.5) / a.questions for i in range(a.questions)]
    for task in a.facts:
        sets = [[d] for d in depths] if task == "passkey" else [depths] * a.contexts
        right = asked = 0
        recalled, misses = 0, []
        for ds in sets:
            r, n, rec, miss, tokens, events, speed = run(
                net, contexts, task, a.tokens, dict(SETTINGS, **a.memory), a.feed, ds
            )
            right, asked, recalled, misses = right + r, asked + n, recalled + rec, misses + miss
        print(
            json.dumps(
                dict(
                    facts=task,
                    hay=a.hay,
                    tokens=tokens,
                    right=right,
                    asked=asked,
                    recalled=(recalled / asked).round(2).tolist(),
                    events=events,
                    feed=a.feed,
                    memory=a.memory,
                    seed=a.seed,
                    tokens_per_s=round(speed),
                    misses=misses[:8],
                )
            ),
            flush=True,
        )


if __name__ == "__main__":
    main()
