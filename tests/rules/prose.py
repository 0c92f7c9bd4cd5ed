# SPDX-License-Identifier: Apache-2.0
"""The rules that documents keep: length of lines, length of sentences, words that they avoid.

usage: prose.py FILE...      prints what each file breaks, whatever check_sources.py allows it
"""
import pathlib
import re
import sys

LINE = 120
SENTENCE = 25
ENDS = re.compile(r"(?<=[.!?])[\"')*_]*\s+(?=[\"'(*_\[]*[A-Z0-9`\x00\x01])")
# Pattern of a whole sentence -> what to write instead. Code, tables and quotations are exempt.
BANNED = {
    r"^Of\b": "a sentence that begins with 'Of': put the subject first",
    r"^But for\b": "a sentence that begins with 'But for': write 'Except for', or two sentences",
    r"^What is\b(?!.*\?)": "a sentence that begins with 'What is': name the thing",
    r"\b(is|are|lie|lies|events|blocks) at home\b": "'at home': write where it is stored",
    r"\b[Ss]ettl(e|es|ed|ing)\b": "'settle': write what happens",
    r"\b(lend|lends|lent)\b": "'lend': write who reads or passes what",
    r"\b(judge|judges|judged)\b": "'judge': write what is decided, and by which rule",
    r"\b(doc|document|documents|page|table|line|file|row|column|setting|message|figure|comment)s? says?\b": (
        "a document does not say: write 'describes', 'lists', 'is'"),
    r"\bmodel that brings\b|\bbrings none\b": "'bring': write 'has' or 'contains'",
    r"\bbut for (this|that|these|those|the|a|an)\b": "'but for': write 'except'",
    r"\b(known|know|knows) no more\b|\bthat know (it|them)\b": "'know': write what is stored, read or supported",
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
    plain = re.sub(r"\b(e\.g|i\.e|et al|vs|cf|no|eq|sec|fig|app|approx)\.", r"\1", plain, flags=re.I)
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
                if re.search(pattern, sentence):
                    yield number, remedy


if __name__ == "__main__":
    for name in sys.argv[1:]:
        content = pathlib.Path(name).read_text()
        for check in (long_lines, long_sentences, banned):
            for line_number, what in check(content):
                print(f"{name}:{line_number}: {what}")
