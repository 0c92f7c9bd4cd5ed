# SPDX-License-Identifier: Apache-2.0
"""Rules for documents: length of lines, length of sentences, words to avoid.

usage: prose.py FILE...      prints each place in these files that breaks a rule
"""
import pathlib
import re
import sys

LINE = 120
SENTENCE = 25
ENDS = re.compile(r"(?<=[.!?])[\"')*_]*\s+(?=[\"'(*_\[]*[A-Z0-9`\x00\x01])")
# What documents avoid, and what to write instead. Code, tables and headings are exempt.
BANNED = {
    r"^Of\b": "begins with 'Of': put the subject first",
    r"^But for\b|\bbut for (this|that|these|those|the|an?)\b": "'but for': write 'except'",
    r"^What (is|are|was|has|follows)\b(?!.*\?)": "begins with 'What is': name the thing",
    r"\b(is|are|lie|lies|events|blocks) at home\b": "'at home': write where it is stored",
    r"\bsettl(e|es|ed|ing|ements?)\b": "'settle': write what happens or is decided",
    r"\b(lend|lends|lent|lending)\b": "'lend': write who reads or passes what",
    r"\bjudg(e|es|ed|ing)\b": "'judge': write what is decided, and by which rule",
    r"\b(brings?|brought|bringing)\b": "'bring': write 'has', 'contains', 'copies' or 'sends'",
    r"\bstands\b(?! (out|for)\b)": "'stands': write 'is', 'lies' or 'applies'",
    r"\bknows\b": "'knows': write what is stored, read or supported",
    r"\b(go|goes|went|gone) on\b": "'go on': write 'continue'",
    r"\b(document|page|table|line|file|row|column|setting|message|figure|comment|header)s? says?\b":
        "a document does not say: write 'describes', 'lists' or 'is'",
}


def blocks(text):
    """(line number, words in one string) of each paragraph and list item; no code, tables, headings, HTML."""
    fenced, number, start, words = False, 0, 0, []
    for number, line in enumerate(text.splitlines() + [""], 1):
        bare = line.strip()
        if bare.startswith("```"):
            fenced = not fenced
        item = re.match(r"\s*([-*]|\d+\.)\s+", line)
        apart = not bare or bare[0] in "|#<>!" or bare.startswith("```") or fenced or (
            line.startswith("    ") and not item and not words)
        if words and (apart or item):
            yield start, " ".join(words)
            words = []
        if apart:
            continue
        if not words:
            start = number
        words.append(re.sub(r"^([-*]|\d+\.)\s+", "", bare))


def sentences(block):
    code = re.sub(r"`[^`]*`", "\x00", block)
    plain = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", "\x01\\1", code)
    plain = re.sub(r"\b(e\.g|i\.e|et al|vs|cf|eq|sec|fig|approx)\.", r"\1", plain, flags=re.I)
    return [piece.strip() for piece in ENDS.split(plain) if piece.strip()]


def words_of(sentence):
    """Words: what holds a letter, or a piece of code; figures and signs are none."""
    return [word for word in sentence.split() if re.search(r"[A-Za-z\x00]", word)]


def long_lines(text):
    """Lines above 120 characters, except one whose link is longer by itself."""
    for number, line in enumerate(text.splitlines(), 1):
        if len(line) > LINE and len(max(line.split(), key=len)) <= 100:
            yield number, f"{len(line)} characters, at most {LINE}"


def long_sentences(text):
    for number, block in blocks(text):
        for sentence in sentences(block):
            count = len(words_of(sentence))
            if count > SENTENCE:
                start = " ".join(sentence.replace("\x00", "`..`").split()[:8])
                yield number, f"a sentence of {count} words, at most {SENTENCE}: {start} ..."


def banned(text):
    for number, block in blocks(text):
        for sentence in sentences(block):
            for pattern, remedy in BANNED.items():
                if re.search(pattern, sentence, flags=re.I if pattern[0] != "^" else 0):
                    yield number, remedy


def faults(path, rules=(long_lines, long_sentences, banned)):
    text = path.read_text()
    for rule in rules:
        for number, what in rule(text):
            yield f"{path}:{number}: {what}"


if __name__ == "__main__":
    for name in sys.argv[1:]:
        for fault in faults(pathlib.Path(name)):
            print(fault)
