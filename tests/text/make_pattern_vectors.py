#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes vectors/patterns.json: what Oniguruma, as Hugging Face's `tokenizers` calls it, makes of
regular expressions: every construct by hand (MATRIX), and random ones out of a grammar.

    python3 tests/text/make_pattern_vectors.py [RANDOM] [SEED]     # needs: pip install tokenizers

Each row is [expression, [[text, spans], ...]], or [expression, null] where Oniguruma refuses it.
Spans are bytes from left to right: "m3 g2" is a match of 3 bytes and a gap of 2.
"""
import json
import os
import random
import re
import sys
from pathlib import Path

from tokenizers import Regex, pre_tokenizers

HERE = Path(__file__).resolve().parent
COMMON = ["a1 \u00e9\u4f60_-B\r\n\n", "The quick\u00a0Fox's 42nd; \u1e9e\u00df ss\u017fS k\u212a \u0661\u00b2\u2167", ""]

MATRIX = r"""
[a-c[x-z]]+|bar xyz
[a-w&&[^c-g]z]|abcdz&
[[a][b]]|ab[c]
[^[^a]]|ab
[^[^a-c]x]|abcx
[[^a][^b]]|ab
[[a]&&[a]]|ab
[a&&b&&c]|abc
[a-z&&[aeiou]&&[^a]]+|aebuz
[a-z&&aeiou]|aebz
[^a-z&&[^b]]|abA
[^a&&a]|ab
[a&b]|a&b
[a&&&b]|a&b
[&]|&a
[^&&a]|a&b
[a&&]|a&
[&&a]|a&
[^a&&]|ab
[a&&]b|ab
[\p{L}&&[^\p{Han}]]+|ab\u4f60c
[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+|Hello\u4f60worldABC \u3042\u0301
[^\r\n\p{L}\p{N}]?((?:[\p{L}\p{M}&&[^\p{Han}]])+)|ab \u4f60 cd
 ?[^(\s|[.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c])]+|Hello, world! \u3002x (y) z
[^\S\n]+|a \t\n b
[\S&&[^a]]|ab c
[\W\d]+|a1-b
[^\W\d_]+|ab_1c
[\s\S]|a\n
[\w&&[^\d]]+|a1_b
[[:alpha:]]+|ab\u00e9\u04121
[[:^alpha:]]+|ab1-
[[:alpha:][:digit:]]+|a1-
[[:alnum:]_]+|a1_-
[[:punct:]]+|a.,$+\u00a7b
[[:space:]]+|a \t\n\u0085\u00a0b
[[:upper:]]+|aBC\u00c9
[[:lower:]]+|aBC\u00e9
[[:xdigit:]]+|xfF0g
[[:word:]]+|a_1\u0301-
[[:cntrl:]]+|a\u0001\u0085
[[:graph:]]+|a b\u00a0
[[:print:]]+|a\u0001b \u2028
[[:blank:]]+|a \t\n\u00a0
[[:ascii:]]+|a\u00e9
[[:foo:]]+|foo:
[:alpha:]|alph:1
[[:alpha]]|a:]
[[:alpha:]|a:]
[[=a=]]|a=]
[[.a.]]|a.]
[[:alpha:]-z]|a-z
[[:alpha:]-]|a-z
[]|]
[]a]|]a
[^]a]|]ab
[^]|a
[^]]|a]
[a-]|a-b
[-a]|a-b
[a-\d]|a-1b
[\d-a]|a-1b
[\d-]|a-1b
[a-b-c]|a-bc
[a-z-9]|a-9
[a-b-c-e]|a-bcde
[z-a]|a
[a-\x63]|abcd
[\x61-c]|abcd
[--a]|-.a
[a--]|a-
[!--]|!-,
[a-&&b]|a-b
[a-[b]]|a-b
[[b]-a]|ab-
[[b]-]|ab-
[\]\[\-\^]|]-[^
[a\]]+|a]
[\q]|q
[\R]|R\n
[\X\N\K\O]|XNKO
[\b]|\u0008b
[\c]]|\u001d]
[\ca-\cz]|\u0001
[[a]|a[
[a|a
a]|a]
a)|a)
[\x{41 43}]|ABC
[\x{41-43}]|ABC
[\p{^L}]|a1
[\P{L}]|a1
[^\p{L}\P{N}]|a1
[[\p{L}--a]]|a-
\p{^L}|a1
\P{^L}|a1
\p{Han}+|\u6f22a\u3005
\p{Hani}|\u6f22a
\p{hiragana}|\u3042a\u30a2
\p{Katakana}|\u30a2\u30fc
\p{Greek}|\u03b1a
\p{Common}+|a1\u3002
\p{script=Han}|a
\p{IsHan}|a
\p{InCJKUnifiedIdeographs}|\u6f22a
\p{In_Basic_Latin}|\u6f22a
\pL|aLpL1
\p {L}|ap {L}
\p{letter}|a1
\p{ L u }|Aa
\p{Uppercase_Letter}|Aa
\p{upper-case letter}|Aa
\p{^ L}|a1
\p{LC}|a\u4f60
\p{L&}|a
\p{}|a
\p{L|a
\p{Bogus}|a
\p|p
[\p]|p
\p{Alphabetic}+|a1\u0345\u0301
\p{Alnum}+|a1\u0345\u0301-
\p{Punct}+|a.$
\p{Emoji}|\U0001f6001a
\p{emoji_presentation}|\U0001f6001
\p{Any}|a
\p{Assigned}|a\u0378
\p{Cn}|a\u0378
\p{White_Space}+|a \u0085
\p{gc=L}|a
\p{Word}+|a\u00b2
\w+|a\u00b2\u0301_\u203f\u2167\u24d0\u200d\u4f60-
[\w]+|a\u00b2_-
\W+|a\u00b2-
\d+|12\u0663\u00b2
\D|a1
\s+|a \t\n\u000b\u000c\r\u0085\u00a0\u180e\u200b\u3000
\S|a 
\h+|g1aF 
\H+|g1aF 
[\h]+|ag
[^\h]+|ag
\R|a\r\nb\n\u0085\u2028
\R+|\r\n\n
\R\n|\r\n\n \r\n
\X|e\u0301a
\N|a\n
\O|a\n
\y|ab
\Y|ab
\N{U+61}|a{U+61}
\O{1}|ab
.|a\n\r\u2028
.+|a\nb\r\nc
(?m).|a\n
(?m:.)+|a\nb
(?-m).+|a\nb
(?s).|a\n
^|a\nb\n
$|a\nb\n
^a|\r\na\ra
a$|a\r\na
\A|ab
\Aa|aa
\z|ab
\Z|a\n
a\Z|a\n
\Gab|abab ab
\Ga|ab
\G\G|a
\Ga|aabab
\b|ab cd
\b\w|ab \u0301c
\B|ab cd
\b.|\u00b2a
a\Kb|ab
\K*a|a
(?=a\K)b|ab
(?i)ss|\u00df\u1e9e ss SS sS
(?i)\u00df|ss \u00df \u1e9e SS
(?i)ss+|\u00dfss sss
(?i)ss*|\u00df s ss
(?i)s+|\u00dfss
(?i)s(?:s)|\u00dfss
(?i)(?:s)(?:s)|\u00df
(?i)(s)s|\u00df
(?i:s)s|\u00df ss
(?i)(?>s)s|\u00df
(?i)s(?:s\x7ct)|\u00df \ufb06 ss
(?i)(?:ss)+|\u00df\u00dfss
(?i)s{2}|\u00df ss
(?i)s{1}s|\u00df ss
(?i)ss\x7cx|\u00df x ss
(?i)\x{73 73}|\u00df
(?i)s\x73|\u00df
(?i)\u017fs|\u00df ss
(?i)s.|\u00dfa
(?i)sst|\u00dft s\ufb06 sst
(?i)ffi|\ufb03 \ufb00i f\ufb01 ffi
(?i)ffl|\ufb04 \ufb00l f\ufb02 ffl
(?i)ff|\ufb00 ff
(?i)fi|\ufb01 fi FI
(?i)\ufb01|fi \ufb01 FI
(?i)ss\u00df|\u00df\u00df ssss ss\u00df \u00dfss
(?i)\u00dfs|sss \u00dfs s\u00df
(?i)s\u00df|sss \u00dfs s\u00df
(?i)[a-z]st|a\ufb06 a\ufb05
(?i)(?=ss)..|\u00df. ss
(?i)(?<=ss)a|\u00dfa ssa
(?i)(?<=[\u00df])a|\u00dfa ssa
(?i)[\u00df]|ss \u00df \u1e9e SS sS
(?i)[^\u00df]|ss\u00df\u1e9e
(?i)[\u00dfs]+|sss\u00df
(?i)[\u00df]s|sss ssS
(?i)[s]{2}|\u00df
(?i)[s]s|\u00df ss
(?i)\u1e96|\u1e96 h\u0331
(?i)[\u1e96]|\u1e96 H\u0331
(?i)\u0130|i\u0307 \u0130 i
(?i)i|\u0130 \u0131 I i
(?i)\u0390|\u03b9\u0308\u0301 \u1fd3 \u0390
(?i)\u03b9\u0308\u0301|\u1fd3 \u0390
(?i)\u03ca\u0301|\u0390
(?i)\u1f80|\u1f88 \u1f00\u03b9 \u1f08\u0399 \u1f80
(?i)\u0587|\u0565\u0582 \u0535\u0552 \u0587
(?i)\u02bcn|\u0149
(?i)k|\u212a K
(?i)\u00e5|\u212b \u00c5 \u00e5
(?i)\u01c6|\u01c5 \u01c4
(?i)\u03c3|\u03c2\u03a3
(?i)\uab70|\u13a0 \uab70
(?i)[k]|\u212a K
(?i)[a-z]+|aB\u017f\u212a1
(?i)[^a-z]+|aB\u017f\u212a1
(?i)\p{Lu}|aA
(?i)[\p{Lu}]|aA
(?i)\P{Lu}|aA
(?i)[\P{Lu}]|aA
(?i)[[:upper:]]+|aA
(?i)\p{upper}+|aA
(?i)\p{Ll}+|aA
(?i)[[^A]]|aA
(?i)[^[^A]]|aA
(?i)[a-z&&[^a]]|aAbB
(?i)[^a-z&&[^a]]|aAbB
(?i)[\p{L}]+|\u1e96 h\u0331 \u0345
(?i)[^\p{L}]+|\u0331h\u0331\u0345
(?i)[a-z\u00df]+|xss\u00df\u1e9eSS
(?i)\w+|aA-
(?i:'s\x7c't\x7c're\x7c've\x7c'm\x7c'll\x7c'd)|'S 'LL '\u017f 're
(?i)(a)\1|aA
(?i:a(?-i)b)|AB Ab
(?-i)a|A
(?i-x)a|A
(?i-m:a)|A
(?im)a.|A\n
a(?i)b|aB AB
a(?i)b\x7cc|aB C c aC ac
(a(?i)b\x7cc)d|aBd cd aCd Ad
(?W:\w)+|a\u00e9
(?W)\b.|\u00e9a
(?D)\d|1\u0663
(?S)\s|\u00a0 
(?P)[[:alpha:]]|a\u00e9
(?P:\w\d)|a1\u00e91
(?a)a|a
(?u)a|a
(?L)a|a
(?)a|a
(?-)a|a
(?:a|a
(?|ab
(?x) a b # c|ab
(?x)a#c\nb|ab
(?x)a + b|aab
(?x)a+ +b|aab
(?x)[a b]|a b
(?x)a\ b|a b
(?x:a b)c d|abc d
(?x)a(?#c)+|aa
(?x) a {2}|aa
(?#comment)a|a
(?#a\)b)c|c)
a(?#c)+|aa
(?#x|a
a{,2}|aaaa
a{,2}?|aaaa
a{2,1}|aaaa a{2,1}
a{2,1}a|aaa
a{3,1}?|aaaa
a{2}+|aaaaaa
a{1,2}+|aaaaaa
a{2,}+a|aaa
a{2,3}+a|aaaa
a{2}?b|b ab aab
a{2}??b|b ab aab
a{2,2}?b|b aab
a{2}{3}|aaaaaaa
a{1,2}{2}b|aaaab
a{2}{,2}b|b aab aaaab
a{0}b|ab
a{0,0}|a
a{n}|a{n}
a{,}|a{,}
a{|a{
a{2|a{2
a{2,|a{2,
a{ 2 }|a{ 2 }
a{2,3 }|aa
x{}|x{}
{2}|{2}
{,2}|{,2}
a\x7c{2}|{2}
a{100001}|a
a++|aa
a++a|aaa
a?+|aa
a?+a|aa
a*+a|aaa
a**|aaa
a+*|aaa
a?*|aaa
a+?|aa
a+??|aa
a?+?|aa
a*+?|aa
a++?|aa
a*+*|aa
a+?+|aaa
a*?*|aaa
a??*|aaa
a??+|aaa
a+??b|aab
a**?|aaa
a+*?|aaa
a?*?|aaa
a*??|aaa
a*?+b|aab
a+?*b|aab
(?:a+?)?|aaa
(?:a??)*|aaa
(?:a*?)+|aaa
(?:a+?)*|aaa
(?:a*)??|aaa
(?:a??)?|aa
(?:a?)??|aa
(?:a+)?+a|aaa
(?:a\x7cb*)*|aabba
(a?)*b|aab
(?:a?)*?b|aab
(?:\x7ca)+|aa
(?:a\x7c)+b|aab
(?:(?!a).)*|xxaxx
(?:)+a|a
()*a|a
*a|*a
+|a
?a|a
(?:*)|a
|*|a
(*a)|a
(*FAIL)a|a
^*|a\nb
$+|a
\b+|a
\A?a|a
(?=a)?|a
(?=a){2}|a
(?=a)*b|ab
(?!a)+b|ab
(?<=a)+b|ab
(?=a)b\x7ca|ab
(?<n>a)\k<n>|aaa
(?'n'a)\k'n'|aa
(?<n>a)(b)\2|aab
(a)(?<n>b)|ab
(?<n>a)(?<n>b)\k<n>|abb aba
(?<1>a)|a
(?<n>a)\k<n+0>|aa
(?P<n>a)|a
(a)\1|aa
(a)\k<1>|aa
(a)(b)\k<-1>|abb
(a)\2|aa
\1(a)|a
(a)\g<1>|aa
(a)\g1|aag1
\g<n>(?<n>a)|aa
(?<n>.)\g<n>\k<n>|abb aba
(?<n>(?i:a))\g<n>|aA
(?i:\g<n>)(?<n>a)|Aa aa
(a\x7cb\g<1>c)+|bacbbacc
(?<n>a\x7c\g<n>b)|ab
a\g<0>?b|aabb
\k|k
\kx|kx
\k<n|k
(?>a+)|aa
(?>a\x7cab)c|abc ac
(?<=a\x7cbc)d|ad bcd
(?<!a)d|ad d
(?<!a\x7cbc)d|ad bcd d
(?<=a+)d|aad
(?<=(?:a\x7cbc))d|ad bcd
(?<=a(?:b\x7ccd))e|abe acde
(?<=[ab]{2})c|abc bc
(?<=\b)a|a
(?<=(a))b|ab
(?<!(a))b|ab
(?<=\R)a|\r\na
(?<=^)a|a\na
(?<=(?=a))a|a
(?<=a\x7c)b|b ab
(?<=.{1,3})b|ab
(?~abc)|xxabcxx
(?(1)a\x7cb)|ab
(a)?(?(1)b\x7cc)|ab c
(?{x})|a
(?C)a|a
=\x41\x{42}\u0043\o{104}\105|ABCDE
\x{41 42}|AB
\x{61 62 63}+|abcc
\x{61-63}|b
\x{0000061}|a
\x{110000}|a
\x{d800}|a
\x{}|x
\x|x
\xg|g
=\u00e9|\u00e9
=\u00|a
=\u{61}|a
\xc3\xa9|\u00e9
\xe9|\u00e9
\x80|a
[\x80-\xff]|\u00e9
[^\x00-\x7f]+|a\u00e9\u0436
[^\x00-\x7F]+|a\u00e9\u0436
\o{}|o
\o{8}|o
\077|?
\0|\u0000
\01|\u0001
\12|\n
(a)\12|a\n
\400|x
\8|8
\cA\C-a|\u0001\u0001
\c?|\u007f
\c\a|\u0007
\c|a
\C-|a
\M-a|a
\e\a\f\v\t|\u001b\u0007\u000c\u000b\t
\v|\u000b\u000c\n
\i\q\j\l|iqjl
\Q.\E|a.QE
\U0061|a
\-\_\<\>\`\'\"\ \#\/|-_<>`'" #/
\u4f60+|\u4f60\u4f60a
\|a
[\|a
a\x7c\x7cb|ab
a\x7c|ab
\x7ca|ab
()|ab
(?:)|ab
|ab
"""
# The expressions of known tokenizers, whole.
KNOWN = [
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r" ?[^(\s|[.,!?" + "\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c" + r"])]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r"(?i)'s|'t|'re|'ve|'m|'ll|'d|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"\s?\p{L}+|\s?\p{N}+|\s?[^\s\p{L}\p{N}]+|\s+",
    r"[0-9][0-9][0-9]", r"\d{1,3}(?=(?:\d{3})*\b)", r"(?=(\d{3})+(?!\d))", r"[^\n]+|[\n]+",
]
KNOWN_TEXTS = COMMON + [
    "I'LL don't we'Re \u017f's it'\u017f  3,141.59 x=[1,2];\n\n\tif (a) {\r\n}\r\n  ",
    "\u4f60\u597d\u4e16\u754cHello\u3042\u30a2\uac00 \u0e01\u0e33 \u0915\u094d\u0937 caf\u00e9 e\u0301 \U0001f600\u200d 1234567890",
]


def spans(expression, text):
    """As the test writes them, None if Oniguruma refuses the expression or gives up."""
    try:
        isolated = pre_tokenizers.Split(Regex(expression), "isolated").pre_tokenize_str(text)
        gaps = pre_tokenizers.Split(Regex(expression), "removed").pre_tokenize_str(text)
    except BaseException:  # it panics where the search gives up
        return None
    free = {g[1] for g in gaps}
    return " ".join("%s%d" % ("g" if at in free else "m", len(piece.encode())) for piece, at in isolated)


def row(expression, texts):
    try:
        Regex(expression)
    except BaseException:
        return [expression, None]
    cases = [[t, spans(expression, t)] for t in texts]
    return [expression, [c for c in cases if c[1] is not None]]


def unescaped(text):
    return re.sub(r"\\u([0-9a-f]{4})|\\U([0-9a-f]{8})|\\([nrt])",
                  lambda m: {"n": "\n", "r": "\r", "t": "\t"}[m[3]] if m[3] else chr(int(m[1] or m[2], 16)), text)


def matrix():
    """A row is expression|text. The file is ASCII: \\u.... in an expression is the character itself,
    but where the row begins with =; \\x7c in it is the sign |."""
    rows = []
    for line in MATRIX.strip("\n").split("\n"):
        expression, _, text = line.lstrip("=").rpartition("|")
        expression = expression.replace("\\x7c", "|")
        if line[0] != "=":
            expression = re.sub(r"\\u([0-9a-f]{4})", lambda m: chr(int(m[1], 16)), expression)
        rows.append(row(expression, [unescaped(text)] + COMMON[:2]))
    return rows


class Grammar:
    def __init__(self, seed):
        self.r = random.Random(seed)
        self.letters = self.r.choice(["ab1 -", "sSftil\u00df\u017f\ufb01\ufb06", "a\u00e9\u4f60\u0301 1_\u00b2\n", "aAbB\n\r"])

    def pick(self, *options):
        return self.r.choice(options)()

    def char(self):
        c = self.r.choice(self.letters)
        return "\\" + c if c in "-" else c

    def class_item(self, depth):
        k = self.r.random()
        if k < .45:
            return self.char()
        if k < .6:
            a, b = sorted([self.r.choice(self.letters.replace("-", "x")), self.r.choice(self.letters.replace("-", "y"))])
            return a + "-" + b
        if k < .75:
            return self.r.choice([r"\w", r"\W", r"\d", r"\s", r"\S", r"\h", r"\p{L}", r"\P{Lu}", r"\p{^N}", "[:alpha:]", "[:^space:]", r"\p{Han}"])
        if depth > 1:
            return self.char()
        return self.klass(depth + 1)

    def klass(self, depth=0):
        ops = []
        for _ in range(1 if self.r.random() < .75 else 2):
            ops.append("".join(self.class_item(depth) for _ in range(self.r.randint(1, 3))))
        return "[" + ("^" if self.r.random() < .3 else "") + "&&".join(ops) + "]"

    def atom(self, depth):
        k = self.r.random()
        if k < .42:
            return self.char()
        if k < .6:
            return self.klass()
        if k < .72:
            return self.r.choice([".", r"\w", r"\s", r"\S", r"\d", r"\R", r"\N", r"\O", r"\p{L}", r"\P{L}", r"\h", r"\W"])
        if k < .76:
            return self.r.choice(["^", "$", r"\b", r"\B", r"\A", r"\z", r"\Z", r"\G"]) + self.char()
        if depth > 2:
            return self.char()
        inner = self.alternation(depth + 1)
        if k < .80:
            return self.r.choice(["(?=", "(?!"]) + inner + ")" + self.char()
        if k < .83:
            return self.r.choice(["(?<=", "(?<!"]) + self.char() + self.r.choice(["", self.char(), "|" + self.char()]) + ")" + self.char()
        return self.r.choice(["(?:", "(", "(?>", "(?i:", "(?-i:", "(?m:", "(?:(?i)", "(?x: "]) + inner + ")"

    def quantified(self, depth):
        a = self.atom(depth)
        if self.r.random() < .4:
            a += self.r.choice(["?", "*", "+", "{2}", "{1,2}", "{,2}", "{2,}", "{1}", "{2,1}"]) + self.r.choice(["", "", "", "?", "+"])
        return a

    def alternation(self, depth=0):
        return "|".join("".join(self.quantified(depth) for _ in range(self.r.randint(1, 3)))
                        for _ in range(self.r.choice([1, 1, 1, 2])))

    def expression(self):
        return self.r.choice(["", "", "(?i)"]) + self.alternation()

    def text(self):
        return "".join(self.r.choice(self.letters + "aS.") for _ in range(self.r.randint(3, 14)))


def main():
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 400
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    sys.stderr.flush()
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)  # panics of the reference
    out = {"matrix": matrix(), "known": [row(e, KNOWN_TEXTS) for e in KNOWN], "random": []}
    for i in range(count):
        g = Grammar(seed * 1000003 + i)
        out["random"].append(row(g.expression(), [g.text() for _ in range(4)]))
    lines = ",\n".join('"%s": [\n%s\n]' % (k, ",\n".join(json.dumps(r) for r in v)) for k, v in out.items())
    (HERE / "vectors/patterns.json").write_text("{\n%s\n}\n" % lines)
    refused = sum(r[1] is None for v in out.values() for r in v)
    print({k: len(v) for k, v in out.items()}, "refused by Oniguruma:", refused)


if __name__ == "__main__":
    main()
