# SPDX-License-Identifier: Apache-2.0
"""Training rows made on the fly: natural text, copies of passages, and facts hidden in text with
questions at the end.

A row is T token ids, a loss weight per token, and a list of *copies*: (p, s1, s2, kind) says that
position p predicts a token that stands at s1 and s2 too. kind: FIRST, the token before the
value's own; REST; INSIDE, the second mention in a fact; END, what ends the value. The trainer
uses them for its auxiliary losses.

Words with a checksum divisible by 10 (``held_out``) are never asked for, so that an evaluation
can use them."""

import os
import random
import re
import zlib
from collections import Counter

import numpy as np
from tokenizers import Tokenizer

PAD, BOS, EOS = 0, 1, 2
REST, FIRST, INSIDE, END = range(4)
TEXTS = ("war_and_peace.txt", "frankenstein.txt")
NOISE = (
    "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.\n"
)
FILL = [
    NOISE,
    "The river is long. The stone is grey. The wind is cold. We walk on. Up and down we go.\n",
    "One day follows another. The clock is slow. The door is shut. Nothing is new here.\n",
    "The cat is black. The dog is brown. The bird is white. They run and they sleep.\n",
]
INTRO = [
    (
        "There is an important info hidden inside a lot of irrelevant text. Find it and memorize "
        "it. I will quiz you about the important information.\n\n"
    ),
    (
        "There is an important info hidden inside a lot of irrelevant text. Find it and memorize "
        "them. I will quiz you about the important information there.\n\n"
    ),
    (
        "There is an important info hidden inside a lot of irrelevant text. Find it. I will quiz "
        "you about the important information there.\n\n"
    ),
    "Read the text below and remember the facts in it.\n\n",
    "",
]
LABELS = (
    "pass key,pass key,pass key,pass key,sequence of digits,secret number,access code,"
    "magic number,door code,secret code,passkey,phone number,account number,lucky number,"
    "house number,ticket number,code,PIN,key,room number"
).split(",")
NAMES = (
    "Alice Bob Carol David Emma Frank Grace Henry Irene Jack Kate Leo Mary Nora Oscar Paul "
    "Rosa Sam Tom Vera Walter Anna Peter Pierre Natasha Boris Helen Ivan Olga Marie John James "
    "Robert Michael William Richard Joseph Thomas Charles Daniel Matthew Anthony Mark Steven "
    "Andrew Joshua Kevin Brian George Timothy Ronald Jason Edward Jeffrey Ryan Jacob Gary "
    "Nicholas Eric Jonathan Stephen Larry Justin Scott Brandon Patricia Jennifer Linda "
    "Elizabeth Barbara Susan Jessica Sarah Karen Lisa Nancy Betty Sandra Ashley Donna Michelle "
    "Carolyn Amanda Melissa Deborah Stephanie Rebecca Sharon Laura Cynthia Kathleen Amy Angela "
    "Shirley Diane Julia Ruth Victoria Kelly Lauren Martha Judith Megan Andrea Cheryl Hannah "
    "Jacqueline Ann Jean Gloria Teresa Sara Janice Madison Sophia Olivia Lucy Claire Alan "
    "Simon Ian Hugo Felix Max Erik Lars Sven Hans Karl Otto Klaus Jose Juan Carlos Luis Diego "
    "Pablo Maria Elena Ana Fatima Ali Omar Hassan Ahmed Yusuf Aisha Ravi Arjun Deepa Anil Chen "
    "Wei Ming Yuki Kenji Hiro Akira Sakura Kim Lee Park Nguyen"
).split()
COLORS = (
    "red blue green yellow black white grey brown orange purple silver golden pink small old "
    "new big long hidden second first last"
).split()
ONSET = "b c d f g h j k l m n p r s t v w z br ch cl dr fr gr kr ph pl sh st th tr".split()
RIME = "a e i o u an en in on ar er or el il al as es is us ia ea ot ak em im".split()
LENGTHS = [n for n, k in enumerate((1, 2, 5, 8, 26, 24, 18, 8, 3, 5), 1) for _ in range(k)]
FORMS = [
    "The {l} is {v}. Remember it. {v} is the {l}.\n",
    "The {l} is {v}.\n",
    "The {l} is {v}. Remember it.\n",
    "Remember that the {l} is {v}.\n",
]


def held_out(word):
    return zlib.crc32(word.lower().encode()) % 10 == 0


def read_text(path):
    """Line breaks inside a paragraph become spaces."""
    x = re.sub(r"\r\n?", "\n", open(path, encoding="utf-8", errors="replace").read())
    return re.sub(r"(?<!\n)\n(?!\n)", " ", x)


class Generator:
    def __init__(self, tokenizer, texts, seed=0, mix=(0.10, 0.20), hard=0.0):
        """tokenizer: tokenizer.json. texts: folder of TEXTS. mix: up to here text, up to there
        copies, the rest questions. hard: share of values made of two or three different digits
        only; as many share three digits with another value."""
        self.tok = Tokenizer.from_file(tokenizer)
        self.r, self.mix, self.hard, self.cache = random.Random(seed), mix, hard, {}
        raw = [read_text(os.path.join(texts, f)) for f in TEXTS]
        pieces = [p + "\n" for x in raw for p in x.split("\n") if p.strip()]
        encoded = self.tok.encode_batch(pieces, add_special_tokens=False)
        self.corpus = np.concatenate([np.array(e.ids, dtype=np.int16) for e in encoded])
        lower = Counter(w for x in raw for w in re.findall(r"\b[a-z]{3,13}\b", x))
        upper = Counter(w for x in raw for w in re.findall(r"(?<=[a-z,] )[A-Z][a-z]{2,11}\b", x))
        self.words = sorted(w for w, c in lower.items() if c >= 2 and not held_out(w))
        self.proper = sorted(
            w for w, c in upper.items() if c >= 2 and lower[w.lower()] < c and not held_out(w)
        )
        self.names = [n for n in NAMES if not held_out(n)]
        self.vocab = self.tok.get_vocab_size()
        self.alike = {}
        self.ends = {}
        for w in self.words:
            ids = self.tok.encode(" " + w, add_special_tokens=False).ids
            self.ends[w] = ids[0], ids[-1]
            for key in (("first", ids[0]), ("last", ids[-1])):
                self.alike.setdefault(key, []).append(w)

    # ---- tokens ----
    def enc(self, s):
        """-> ids, character offsets"""
        if s not in self.cache:
            e = self.tok.encode(s, add_special_tokens=False)
            if len(self.cache) > 5000:
                self.cache.clear()
            self.cache[s] = (e.ids, e.offsets)
        return self.cache[s]

    def spans(self, s, v):
        """ids of s and the token span of every occurrence of v in it"""
        ids, off = self.enc(s)
        out = []
        for m in re.finditer(re.escape(v), s):
            k = [i for i, (a, b) in enumerate(off) if b > m.start() and a < m.end()]
            out.append((k[0], k[-1] + 1))
        return ids, out

    def natural(self, n):
        i = self.r.randrange(len(self.corpus) - n - 1)
        return self.corpus[i : i + n].tolist()

    # ---- names, nouns, values ----
    def digits(self, n):
        return "".join(self.r.choice("0123456789") for _ in range(n))

    def runs(self):
        """ten digits with repeats, as InfiniteBench's sequences"""
        x = [self.r.choice("0123456789") for _ in range(5)]
        for k in range(5):
            p = self.r.randint(0, 4 + k)
            x.insert(p, x[p])
        return "".join(x)

    def made_up(self):
        return "".join(
            self.r.choice(ONSET) + self.r.choice(RIME) for _ in range(self.r.randint(2, 3))
        )

    def name(self):
        r, k = self.r, self.r.random()
        if k < 0.35:
            return r.choice(self.names)
        if k < 0.60:
            return r.choice(self.proper)
        if k < 0.70:
            return r.choice(self.words).capitalize()
        if k < 0.85:
            return self.made_up().capitalize()
        if k < 0.97:
            first = r.choice(self.names + self.proper[:200])
            last = [r.choice(self.proper), self.made_up().capitalize(), r.choice(self.names)]
            return first + " " + r.choice(last)
        return r.choice(["Dr. ", "Mr. ", "Mrs. ", "Captain ", "Prince "]) + r.choice(self.proper)

    def noun(self):
        r, k = self.r, self.r.random()
        if k < 0.70:
            return r.choice(self.words)
        if k < 0.80:
            return self.made_up() + r.choice(["", "s", "s"])
        if k < 0.95:
            return r.choice(COLORS + self.words) + " " + r.choice(self.words)
        return self.name()

    def similar(self, x):
        """another noun or name, hard to tell from x"""
        r = self.r
        last = x.split(" ")[-1]
        if last.lower() in self.ends and r.random() < 0.7:
            first, end = self.ends[last.lower()]
            w = r.choice(self.alike[r.choice([("first", first), ("last", end)])])
            return x[: len(x) - len(last)] + (w.capitalize() if last[0].isupper() else w)
        if " " in x and r.random() < 0.5:
            return (self.name() if x[0].isupper() else r.choice(self.words)) + x[x.index(" ") :]
        k = r.randint(1, max(1, len(x) - 2))
        if r.random() < 0.5:
            return x[:k] + r.choice(RIME) + r.choice(["", "n", "s", "t"])
        w = r.choice(ONSET) + x[k:].lower()
        return w.capitalize() if x[0].isupper() else w

    def value(self, like=None):
        """digits; with some chance they begin as ``like`` does"""
        r = self.r
        v = self.runs() if r.random() < 0.07 else self.digits(r.choice(LENGTHS))
        if self.hard and r.random() < self.hard:
            few = r.sample("0123456789", r.randint(2, 3))
            v = "".join(r.choice(few) for _ in v)
        elif self.hard and like and like.isdigit() and len(v) > 3 and r.random() < self.hard:
            i, k = r.randint(0, len(like)), r.randint(0, len(v) - 3)
            part = like[i : i + 3]
            v = v[:k] + part + v[k + len(part) :]
        if like and like.isdigit() and r.random() < 0.3:
            n = r.randint(1, 3)
            v = like[:n] + v[n:] if len(v) > n else v
        return v

    # ---- facts ----
    def label(self, kind, base, of):
        if kind == "number":
            return "number of " + of
        if kind == "word":
            return "capital word for " + of
        if kind == "named":
            return base + (" of " if self.r.random() < 0.8 else " for ") + of
        if kind == "colored":
            return self.r.choice(COLORS) + " " + base
        return base

    def facts(self, n):
        """At most n facts (text, value, label) with distinct labels: all of one kind and differing
        in the name only, or one name with many labels, or anything."""
        r = self.r
        k = r.random()
        plan = "family" if k < 0.55 else "one name" if k < 0.67 else "any"
        kinds = ["named"] * 8 + ["number"] * 10 + ["colored"] * 2 + ["plain"] * 3 + ["word"] * 2
        kind = r.choice(["named"] * 5 + ["number"] * 7 + ["word"])
        base, form, who = r.choice(LABELS), self.form(), self.name()
        while any(held_out(w) for w in who.split()):
            who = self.name()
        open_base = r.random() < 0.3
        out, used, last, tries = [], set(), None, 0
        while len(out) < n and tries < 20 * n:
            tries += 1
            if plan != "family":
                kind, form = r.choice(kinds), self.form()
                base = r.choice(self.words) if r.random() < 0.3 else r.choice(LABELS)
                if plan == "one name" and n > 1:
                    kind = r.choice(["named", "named", "named", "number", "word"])
            elif open_base:
                base, open_base = r.choice(self.words), False
            noun = kind == "number" or kind == "word" and r.random() < 0.6
            of = self.noun() if noun else self.name()
            if plan == "one name":
                of = who
            elif last and r.random() < 0.3:
                of = self.similar(last)
            lab = self.label(kind, base, of)
            if any(lab in u or u in lab for u in used) or any(held_out(w) for w in of.split()):
                continue
            used.add(lab)
            last = of
            if kind == "word":
                val = r.choice(self.words)
            else:
                val = self.value(out[-1][1] if out else None)
            f = form
            if kind in ("number", "word") and form == 0 and r.random() < 0.7:
                f = r.choice([1, 1, 1, 0, 2])
            out.append((FORMS[f].format(l=lab, v=val), val, lab))
        return out

    def form(self):
        return self.r.choice([0, 0, 0, 1, 1, 1, 1, 2, 3])

    # ---- rows ----
    def row(self, T):
        k = self.r.random()
        if k < self.mix[0]:
            return self.row_text(T)
        if k < self.mix[1]:
            return self.row_copy(T)
        return self.row_facts(T)

    def row_text(self, T):
        return dict(ids=[BOS] + self.natural(T - 1), w=[0.5] * T, copies=[], q0=T, need=[])

    def row_copy(self, T):
        """passages, of text or of random tokens, that come again at the end"""
        r = self.r
        ids, w, copies, need, start = [BOS], [0.0], [], [], []
        nat, ns = r.random() < 0.4, r.randint(1, 4)
        lengths = [r.randint(12, max(13, T // 4 // ns)) for _ in range(ns)]
        segs = [
            self.natural(n) if nat else [r.randrange(3, self.vocab) for _ in range(n)]
            for n in lengths
        ]
        fill = max(0, T - 2 * sum(lengths) - 1)
        for s in segs:
            f = r.randint(0, fill)
            fill -= f
            ids += self.natural(f)
            w += [0.3] * f
            start.append(len(ids))
            need.append((len(ids), len(ids) + len(s)))
            ids += s
            w += [0.3 if nat else 0.0] * len(s)
        ids += self.natural(fill)
        w += [0.3] * fill
        q0 = len(ids)
        for j in r.sample(range(ns), ns):
            a, s = len(ids), segs[j]
            ids += s
            w += [0.0] * 2 + [1.0] * (len(s) - 2)
            copies += [(a + i - 1, start[j] + i, start[j] + i, REST) for i in range(2, len(s))]
        return self.finish(ids, w, copies, q0, need, T)

    def hay(self, kind, line):
        """-> ids, loss weight"""
        r = self.r
        if kind == "noise":
            return self.enc(line)[0], 0.05
        if kind == "fill":
            return self.enc(r.choice(FILL))[0], 0.05
        x = self.natural(r.randint(10, 60))
        if kind == "numbered":
            d = r.randint(1, 3)
            number = f"{self.digits(d)}:{self.digits(2)} "
            point = f"{self.digits(d)}. "
            year = f"In {self.digits(4)} there were {self.digits(d)} "
            x = self.enc(r.choice([number, point, year]))[0] + x
        return x, 0.3

    def row_facts(self, T):
        r = self.r
        ids, w, copies, need = [BOS], [0.0], [], []

        def add(x, weight):
            ids.extend(x)
            w.extend([weight] * len(x))
            return len(ids) - len(x)

        add(self.enc(r.choice(INTRO))[0], 0.05)
        n = r.choice([1, 1, 2, 4, 6, 9, 14, 20, 28])
        facts = self.facts(n)
        body = [self.enc(x[0])[0] for x in facts]
        size = np.cumsum([len(x) for x in body])
        n = min(len(facts), max(1, int((size < 0.6 * T - 40).sum())))
        facts, body = facts[:n], body[:n]
        asked = r.sample(range(n), r.randint(1, max(1, min(n, T // 100))))
        sep = r.choice(["\n\n"] * 6 + ["\n"] * 2 + [" "])
        style = r.choice([0] * 8 + [1, 2])
        tail = []
        for j in asked:
            _, val, lab = facts[j]
            q = (f"What is the {lab}?{sep}", "", f"Question: What is the {lab}?\nAnswer: ")[style]
            a = f"The {lab} is {val}." + r.choice(["\n\n", "\n"])
            tail.append((self.enc(q)[0], self.spans(a, " " + val), j))
        room = T - len(ids) - sum(len(q) + len(a[0]) for q, a, _ in tail) - sum(map(len, body)) - 6
        k = r.random()
        kind = "noise" if k < 0.25 else "fill" if k < 0.32 else "numbered" if k < 0.5 else "text"
        line = r.choice(FILL) if r.random() < 0.4 else NOISE
        inline = kind in ("text", "numbered") and r.random() < 0.3
        order = []
        while True:
            x, weight = self.hay(kind, line)
            if kind in ("text", "numbered"):
                x = x + self.enc("." if inline else ".\n")[0]
            room -= len(x)
            if room < 0:
                break
            order.append((x, weight, None))
        for j in range(n):
            order.insert(r.randint(0, len(order)), (None, 0.1, j))
        source = {}
        for x, weight, j in order:
            if j is None:
                add(x, weight)
                continue
            text = facts[j][0]
            if inline:
                text = " " + text.strip()
            x, found = self.spans(text, " " + facts[j][1])
            a = add(x, weight)
            need.append((a, a + len(x)))
            source[j] = [(a + s, a + e) for s, e in found]
            s0, e0 = source[j][0]
            for s, e in source[j][1:]:
                if ids[s:e] == ids[s0:e0]:
                    for i in range(2, e - s):
                        w[s + i] = 0.5
                        copies.append((s + i - 1, s0 + i, s0 + i, INSIDE))
        if ids[-1:] == self.enc(".\n")[0] and r.random() < 0.6:
            ids.pop(), w.pop()  # the pieces that a prompt encoded as a whole would have
            q0 = add(self.enc(".\n\n\n")[0], 0.1)
        else:
            q0 = add(self.enc(r.choice(["\n\n", "\n"]))[0], 0.1)
        for q, (a, found), j in tail:
            add(q, 0.05)
            at = add(a, 0.1)
            b, e = at + found[-1][0], at + found[-1][1]
            same = [s for s in source[j] if ids[s[0] : s[1]] == ids[b:e]]
            for i in range(e - b):
                w[b + i] = 2.0
                if same:
                    copies.append(
                        (b + i - 1, same[0][0] + i, same[-1][0] + i, REST if i else FIRST)
                    )
            w[e] = 2.0
            if same:
                copies.append((e - 1, same[0][1], same[-1][1], END))
        add([EOS], 0.5)
        return self.finish(ids, w, copies, q0, need, T)

    def finish(self, ids, w, copies, q0, need, T):
        n = max(0, T - len(ids))
        return dict(
            ids=(ids + [PAD] * n)[:T],
            w=(w + [0.0] * n)[:T],
            copies=[c for c in copies if c[0] + 1 < T],
            q0=min(q0, T),
            need=need,
        )

    def batch(self, B, T, most=40):
        """-> ids, weights, bad (B,T): tokens of facts and of the tail, copies (B, most, 4) padded
        with -1, q0 (B,)"""
        rows = [self.row(T) for _ in range(B)]
        bad = np.zeros((B, T), bool)
        copies = np.full((B, most, 4), -1, dtype=np.int64)
        for b, x in enumerate(rows):
            bad[b, x["q0"] :] = True
            for s, e in x["need"]:
                bad[b, s:e] = True
            c = x["copies"]
            if len(c) > most:
                self.r.shuffle(c)
                c = sorted(c, key=lambda z: (z[3] != FIRST) + (z[3] == INSIDE))[:most]
            if c:
                copies[b, : len(c)] = c
        return (
            np.array([x["ids"] for x in rows], dtype=np.int64),
            np.array([x["w"] for x in rows], dtype=np.float32),
            bad,
            copies,
            np.array([x["q0"] for x in rows]),
        )
