# SPDX-License-Identifier: Apache-2.0
"""What jinja2 makes of small templates, set up as transformers does for chats: vectors/jinja.json.

usage: make_jinja_vectors.py OUT.json

A row is [template, text], or [template, null] where jinja2 raises, or [template, null, "unbuilt"]
where it gives a text, but we refuse by name (UNBUILT). Every row is rendered with VARIABLES.
Needs jinja2 (3.1.6 was used).
"""
import copy
import datetime
import itertools
import json
import re
import sys

import jinja2
import jinja2.ext
import jinja2.sandbox

VARIABLES = {
    "msgs": [{"role": "user", "content": " Hi \u4e16\n", "n": 2}, {"role": "Bot", "content": "\u3000yo\u00a0", "n": 1},
             {"role": "user", "content": "", "n": 3}],
    "big": 18446744073709551615, "low": -9223372036854775808, "tiny": 1e-05, "huge": 1.2345678901234568e+17,
    "tools": [{"name": "f", "parameters": {"type": "object", "items": [1, 2.0, None, True], "x": "<\u00e9&'\">"}}],
    "tree": [{"v": 1, "c": [{"v": 2, "c": []}, {"v": 3, "c": [{"v": 4, "c": []}]}]}, {"v": 5, "c": []}],
}

TEXTS = ["''", "'aBc dEf'", "' x\\t\\n'", "'\\u3000\\u00a0\\u2028a b\\u1680\\x1c'",
         "'\\u00e9t\\u00c9 \\u00df\\ufb01 \\u0130\\u01c6 \\u03a3A\\u03a3. \\u03a3'", "'42'", "' -7 '", "'1_0.5e1'",
         "'\\u0663\\u00b2\\u00bd\\u4e03'", "'a,b,,c'", "'l1\\nl2\\r\\n\\n l4\\x0bl5'", "'it\\'s \"q\"'", "'Hello World'",
         "'aaaa'", "'\\U0001f600e\\u0301'", "'x-y(z[w'", "'<a href=\"x\">&'", "'ab\\tc\\td'"]
NUMBERS = ["0", "1", "-3", "7", "2.5", "-0.5", "1e16", "1e-05", "3.0", "9007199254740993", "true", "false"]
LISTS = ["[]", "[3, 1, 2]", "['b', 'A', 'c', 'a']", "(1, 'x')", "(1,)", "()", "[[1, 2], [3]]", "[1, 1.0, true, '1', none]",
         "range(4)", "range(5, 0, -2)", "msgs", "[none, undef]", "['\\u00e9', 'z', '\\u4e16']"]
OTHERS = ["none", "undef", "{}", "{'b': 1, 'A': 2, 'c': 0}", "{1: 'x', none: 2, 'k': [1]}", "namespace(a=1)",
          "{'a': 1}.items()", "{'a': 1}.keys()", "{'b': 2, 'a': 3}.values()", "msgs[0]"]
ALL = TEXTS + NUMBERS + LISTS + OTHERS
SOME = ["''", "'ab'", "'\\u00e9'", "2", "-3", "2.5", "true", "none", "undef", "[]", "[1, 'a']", "(1, 2)", "{'ab': 1}",
        "range(2)", "'%s-%s'"]

FILTERS = {
    "abs": [""], "attr": ["('a')", "('items')", "()"], "batch": ["(2)", "(2, 'x')", "(linecount=3)", "(0)"],
    "capitalize": ["", "(1)"], "center": ["", "(9)", "(width=4)"], "count": [""], "d": ["('z')"],
    "default": ["", "('z')", "('z', true)", "(default_value=1, boolean=true)"],
    "dictsort": ["", "(true)", "(by='value')", "(reverse=true)", "(by='x')"], "e": [""], "escape": [""],
    "filesizeformat": [""], "first": [""], "float": ["", "(1.5)", "(default=9)"], "forceescape": [""],
    "format": ["(1)", "(1, 'b')", "(a=1)", ""], "groupby": ["(0)", "('n')", "('role')", "('role', case_sensitive=true)",
    "('zz', default='q')"], "indent": ["", "(2)", "(2, true)", "('>', blank=true)", "(width=1, first=true, blank=true)"],
    "int": ["", "(5)", "(default=-1, base=16)"], "items": [""], "join": ["", "('-')", "(', ', 'n')", "(d=1)", "(attribute='role')"],
    "last": [""], "length": [""], "list": [""], "lower": [""],
    "map": ["('upper')", "(attribute='n')", "(attribute='zz', default='d')", "('default', 'q')", "()", "('nofilter')", "(attribute=0)"],
    "max": ["", "(true)", "(attribute='n')"], "min": ["", "(case_sensitive=true)", "(attribute='role')"],
    "pprint": [""], "random": [""], "reject": ["", "('none')", "('string')", "('eq', 1)"],
    "rejectattr": ["('n')", "('n', 'gt', 1)", "('role', 'eq', 'user')", "()"],
    "replace": ["('a', 'X')", "('', '-')", "('a', 'b', 1)", "('l', '', count=2)", "(1, 2)", "('a')"], "reverse": [""],
    "round": ["", "(1)", "(0, 'ceil')", "(1, 'floor')", "(method='x')"], "safe": [""],
    "select": ["", "('odd')", "('in', [1, 'b'])", "('==', 1)", "('notest')"], "selectattr": ["('n')", "('n', '>', 1)", "('role', 'equalto', 'user')"],
    "slice": ["(2)", "(3, 'x')"], "sort": ["", "(true)", "(case_sensitive=true)", "(attribute='n')", "(attribute='role,n')", "(reverse=true, attribute='content')"],
    "string": [""], "striptags": [""], "sum": ["", "(start=10)", "(attribute='n')", "('n', 5)"], "title": [""],
    "tojson": ["", "(indent=2)", "(indent='.')", "(indent=0)", "(ensure_ascii=true)", "(sort_keys=true)", "(separators=(',', ':'))", "(true, 1)"],
    "trim": ["", "('x')", "(chars='ab ')", "(none)", "('\\u3000')"], "truncate": ["", "(5)", "(5, true)", "(4, end='', leeway=0)", "(2)"],
    "unique": ["", "(true)", "(attribute='role')"], "upper": [""], "urlencode": [""], "urlize": [""], "wordcount": [""],
    "wordwrap": [""], "xmlattr": [""], "nofilter": [""],
}
METHODS = {
    "capitalize": ["()"], "casefold": ["()"], "center": ["(9)", "(8, '*')", "()", "(width=3)"],
    "count": ["('a')", "('')", "('aa', 1)", "('a', 1, 3)", "()"], "encode": ["()"],
    "endswith": ["('d')", "(('x', 'c'))", "('')", "('b', 0, 2)", "(1)"], "expandtabs": ["()", "(3)", "(tabsize=0)"],
    "find": ["('b')", "('')", "('zz')", "('a', 1)", "('a', -2, 99)", "('', 99)"], "format": ["(1)", "()", "(a=1)"], "format_map": ["({})"],
    "index": ["('a')", "('zz')"], "isalnum": ["()"], "isalpha": ["()", "(1)"], "isascii": ["()"], "isdecimal": ["()"], "isdigit": ["()"],
    "isidentifier": ["()"], "islower": ["()"], "isnumeric": ["()"], "isprintable": ["()"], "isspace": ["()"], "istitle": ["()"],
    "isupper": ["()"], "join": ["(['x', 'y'])", "('ab')", "([1])", "({'k': 1})", "([])", "()"], "ljust": ["(9)", "(9, '.')"], "lower": ["()"],
    "lstrip": ["()", "('a ')", "(none)", "(chars='a')"], "maketrans": ["({})"], "partition": ["('b')", "(',')", "('')"],
    "removeprefix": ["('a')"], "removesuffix": ["('c')", "('')"], "replace": ["('a', 'X')", "('', '-')", "('a', 'b', 1)", "('a', 'b', 0)", "('a')", "('a', 'b', count=1)"],
    "rfind": ["('a')", "('')", "('b', 0, 2)"], "rindex": ["('a')", "('zz')"], "rjust": ["(9)"], "rpartition": ["(',')", "('zz')"],
    "rsplit": ["()", "(',')", "(',', 1)", "(none, 1)", "(maxsplit=1)"], "rstrip": ["()", "('c\\n')"],
    "split": ["()", "(',')", "(',', 1)", "(none, 1)", "(maxsplit=1)", "(sep='a')", "('')", "(1)", "('a', -1)"], "splitlines": ["()", "(true)", "(keepends=true)"],
    "startswith": ["('a')", "(('x', 'H'))", "('B', 1)", "(none)"], "strip": ["()", "('a \\n')", "('')", "(none)", "(1)"], "swapcase": ["()"],
    "title": ["()"], "translate": ["({})"], "upper": ["()"], "zfill": ["(6)", "(0)"], "nomethod": ["()"], "__class__": [""],
}
TESTS = {
    "boolean": [""], "callable": [""], "defined": ["", "(1)"], "divisibleby": ["(2)", " 3", "(0)", "(num=2)"], "eq": ["(1)", " 'x'", "([])"],
    "equalto": ["(none)"], "escaped": [""], "even": [""], "false": [""], "filter": [""], "float": [""], "ge": ["(1)"],
    "greaterthan": ["(1)"], "gt": ["('a')"], "in": ["([1, 'x'])", "('aBc dEf42')", "({'A': 1})"], "integer": [""], "iterable": [""],
    "le": ["(2)"], "lessthan": ["(1)"], "lower": [""], "lt": ["('z')"], "mapping": [""], "ne": ["(1)"], "none": [""], "number": [""],
    "odd": [""], "sameas": ["(none)", "(true)"], "sequence": [""], "string": [""], "test": [""], "true": [""], "undefined": [""],
    "upper": [""], "notest": [""],
}
OPERATORS = ["+", "-", "*", "/", "//", "%", "**", "~", "==", "!=", "<", "<=", ">", ">=", "in", "not in", "and", "or"]

MORE = r"""
{{ 1.0 }} {{ 0.1 + 0.2 }} {{ 1e15 }} {{ 1e16 }} {{ 1e22 }} {{ 123456789012345680.0 }} {{ 1e-4 }} {{ 1e-5 }} {{ 5e-324 }} {{ 1.7976931348623157e308 }}
{{ -0.0 }} {{ 1_000 }} {{ 0x1F }} {{ 0o17 }} {{ 0b101 }} {{ 1_0.2_5 }} {{ 2.5e3 }} {{ 1E5 }} {{ 00 }}
{{ big }} {{ big + 1 }} {{ low }} {{ low - 1 }} {{ big * 2 }} {{ tiny }} {{ huge }} {{ [big, tiny, huge] | tojson }} {{ -big }}
{{ 9223372036854775807 + 1 }} {{ 2 ** 64 }} {{ 2 ** 100 }} {{ 10 ** 30 }} {{ 3 ** 50 % 7 }} {{ 18446744073709551616 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 % -3 }} {{ -7.5 // 2 }} {{ -7.5 % 2 }} {{ 7.5 % -2 }}
{{ 2 ** 200 }}
{{ 10 ** 40 }}
{{ 2 ** -1 }} {{ 2 ** 0.5 }} {{ 4 ** 0.5 }} {{ 2 ** 3 ** 2 }} {{ -2 ** 2 }} {{ 0 ** 0 }} {{ 7 / 2 }} {{ 6 / 3 }} {{ 1 / 3 }}
{{ (-8) ** 0.5 }}
{{ 0 ** -1 }}
{{ 1.5 // 0 }}
{{ 1e308 * 10 }} {{ -1e308 * 10 }} {{ (1e308 * 10) | int }}
{{ 'nan' | float }} {{ 'inf' | float }} {{ ['nan' | float, '-inf' | float] | tojson }} {{ ('nan' | float) == ('nan' | float) }}
{{ 9007199254740993 == 9007199254740992.0 }} {{ 9007199254740993 > 9007199254740992.0 }} {{ 1 == 1.0 }} {{ true == 1 }} {{ 1 < 2.5 }} {{ big > 1e19 }}
{{ 1 < 2 < 3 }} {{ 3 > 2 > 2 }} {{ 1 < 2 in [2] }} {{ 1 == 1 != 2 }} {{ 'a' in 'abc' not in ['x'] }} {{ 1 < 2 < 3 < 4 == 4 }}
{{ not true and false }} {{ not 1 == 2 }} {{ not not 1 }} {{ 1 if true }} {{ 1 if false }} {{ 1 if false else 2 if false else 3 }} {{ 1 and 0 or 'x' }}
{{ +true }} {{ -true }} {{ - 3 | abs }} {{ -3 | abs }} {{ (-3) | abs }} {{ +-+3 }} {{ -'a' }}
{{ 1 + 2 * 3 - 4 / 2 }} {{ 'a' ~ 1 + 2 ~ 'b' }} {{ 1 ~ 2 * 3 }} {{ 'a' + 'b' ~ 'c' + 'd' }} {{ 10 - 3 - 2 }} {{ 2 * 3 % 4 }} {{ 7 // 2 * 2 }}
{{ (1, 2) + (3,) }} {{ [1] + [2] }} {{ (1, 2)[0] }} {{ (1, 2)[-1] }} {{ 1, 2 }} {{ (1) }} {{ (1,) }} {{ () }}
{{ 'abcdef'[1:4] }}|{{ 'abcdef'[::-1] }}|{{ 'abcdef'[4:1:-1] }}|{{ 'abcdef'[-3:] }}|{{ 'abcdef'[:-2] }}|{{ 'abcdef'[::2] }}|{{ 'abcdef'[5:0:-2] }}|{{ 'abcdef'[9:] }}|{{ 'abcdef'[-99:2] }}|{{ 'abcdef'[3:3] }}|{{ 'abcdef'[-1:-99:-1] }}
{{ 'h\u00e9\u4e16\U0001f600x'[1:4] }}|{{ 'h\u00e9\u4e16\U0001f600x'[::-1] }}|{{ 'h\u00e9\u4e16\U0001f600x'[-2] }}|{{ 'h\u00e9\u4e16\U0001f600x' | length }}|{{ 'h\u00e9\u4e16'[::2] }}
{{ [1,2,3,4,5][::-2] }} {{ [1,2,3,4,5][3:0:-1] }} {{ (1,2,3)[1:] }} {{ range(10)[2:8:3] }} {{ range(10)[::-1] }} {{ range(3)[1] }} {{ range(3)[9] is defined }} {{ [1,2][none:1] }} {{ [1,2][true] }} {{ 'ab'[true:] }}
{{ [1,2][1.0] is defined }} {{ 'ab'['x'] is defined }} {{ {'a': 1}['b'] is defined }} {{ none[0] is defined }} {{ 5[0] is defined }} {{ 'ab'[9] is defined }} {{ {'a': 1}[[1]] is defined }}
{{ [1][::0] }}
{{ {'a': 1, 'a': 2} }} {{ {1: 'a', 1.0: 'b', true: 'c'} }} {{ {(1, 2): 3}[(1, 2)] }} {{ {none: 1}[none] }} {{ {'a': {'b': [1, {'c': ()}]}} }}
{{ {[1]: 2} }}
{{ {'items': 5, 'keys': 6, 'x': 7}['items'] }} {{ {'x': 7}['x'] }} {{ {'x': 7}.x }} {{ {'get': 1}['get'] }} {{ {'update': 1}.update is defined }} {{ {'items': 5}.items() }}
{{ {'a': 1}.get('a') }} {{ {'a': 1}.get('b') }} {{ {'a': 1}.get('b', 3) }} {{ {'a': 1}.keys() }} {{ {'a': 1}.values() }} {{ {'a': 1}.items() }} {{ {'a': 1}.copy() }} {{ {'a': 1}.keys()[0] is defined }} {{ {'a': 1}.keys() | first }}
{{ {'a': 1}.update({'b': 2}) }}
{{ [1].append(2) }}
{{ [1, 2, 1].count(1) }} {{ [1, 2].index(2) }} {{ (1, 2, 2).count(2) }} {{ [1].copy() }} {{ range(5).count(3) }} {{ [1].append is defined }} {{ 'a'.upper is defined }} {{ 'a'.nothing is defined }} {{ 'a'.upper is callable }}
{{ [1].index(9) }}
{{ 'a'.__class__ }}|{{ 'a'.__class__ is defined }}
{{ 'a'.__class__.__name__ }}
{{ (1).real }}
{{ 'a'.upper }}
{{ range }}
{{ [1] | map('upper') }}
{{ "a\tb\nc\\d\"e'f\x41\u00e9\U0001f600\101\0\q\a\b\f\v\r" | tojson }}
{{ 'a\
b' }} {{ 'x' 'y' "z" }} {{ 'tab	in' }}
{{ '\ud83d' }}
{{ '\N{BULLET}' }}
{{ '\x4' }}
{{ 'a' 'b' | upper }} {{ ('a' 'b') ~ 'c' | upper }} {{ 'a' ~ 'b' | upper }} {{ ['a', 'b'] | join | upper }} {{ 'ab' | first | upper ~ 'x' }}
{{ "\x7f\x80\x9f\xa0\xad\u2028\u200b\ue000\U0001f600\u0378" }} {{ ["\x7f\x80\x9f\xa0\xad\u2028\u200b\ue000\U0001f600\u0378\x01", 'it\'s', "q\"q", "b'\"", '\\'] }}
{{ ['\n', '\t', '\r', '\x00', '\x1b'] }} {{ ['\n\t\r\x00\x1f\x7f\u2028\b\f'] | tojson }} {{ '\U0001f600\u00e9\x7f' | tojson(ensure_ascii=true) }}
{{ tools | tojson }}
{{ tools | tojson(indent=2) }} {{ [] | tojson(indent=2) }} {{ {} | tojson(indent=2) }} {{ [[]] | tojson(indent=1) }}
{{ {1: 2, none: 3, true: 4, 2.5: 5} | tojson }} {{ {'b': 1, 'a': 2} | tojson(sort_keys=true, indent=1) }} {{ (1, (2,)) | tojson }}
{{ undef | tojson }}
{{ {(1, 2): 3} | tojson }}
{{ range(3) | tojson }}
{{ namespace(a=1) | tojson }}
{{ {'a': 1}.items() | tojson }}
{{ [1] | map('string') | tojson }}
{% set n = namespace(a=1) %}{% set n.b = n.a + 1 %}{{ n.a }}{{ n.b }}{{ n.c is defined }}{{ n['a'] }} {{ n }} {{ n == n }} {{ namespace() == namespace() }} {{ namespace({'x': 1}, y=2) }}
{% set n = namespace() %}{% set n._x = 1 %}
{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set (c, d) = [3, 4] %}{{ c }}{{ d }}{% set e = 1, %}{{ e }}{% set (f, (g, h)) = (1, (2, 3)) %}{{ f }}{{ g }}{{ h }}
{% set a, b = 1 %}
{% set a, b = [1, 2, 3] %}
{% for x in [1, 2, 3] %}{{ x }}{% if x == 2 %}{% set y = x %}{% endif %}{{ y }}{% endfor %}{{ y is defined }}
{% for x in [1, 2, 3] if x != 2 %}{{ loop.index }}{{ loop.length }}{{ loop.first }}{{ loop.last }}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.depth }}{{ loop.depth0 }}{{ loop }} {% else %}none{% endfor %}
{% for x in [] %}{{ x }}{% else %}none{{ x is defined }}{% endfor %} {% for x in undef %}{{ x }}{% else %}empty{% endfor %}
{% for k, v in {'a': 1, 'b': 2}.items() %}{{ k }}{{ v }}{{ loop.cycle('x', 'y') }}{% endfor %} {% for (a, b), c in [((1, 2), 3)] %}{{ a }}{{ b }}{{ c }}{% endfor %} {% for c in 'h\u00e9' %}{{ c }}.{% endfor %} {% for k in {'z': 1} %}{{ k }}{% endfor %}
{% for x in [1, 1, 2, 2] %}{{ loop.changed(x) }}{% endfor %} {% for x in 1, 2 %}{{ x }}{% endfor %} {% for x in [1,2,3,4] %}{% if x == 2 %}{% continue %}{% endif %}{% if x == 4 %}{% break %}{% endif %}{{ x }}{% endfor %}
{% for a in [1, 2] %}{% for b in [3, 4] %}{{ loop.index }}{% endfor %}{{ loop.index }}{% set outer = loop %}{% for b in [5] %}{{ outer.index }}{{ loop.index }}{% endfor %}{% endfor %}
{% for n in tree recursive %}{{ n.v }}{{ loop.depth }}{% if n.c %}({{ loop(n.c) }}){% endif %}{% endfor %}
{% for n in [1] %}{{ loop([2]) }}{% endfor %}
{% for x in 3 %}{% endfor %}
{% for x in none %}{% endfor %}
{% for x in [1] %}{{ loop.nothing is defined }}{{ loop['index'] }}{{ loop is iterable }}{{ loop is callable }}{{ loop | length }}{% endfor %}
{% macro f(a, b='B', c=a) %}[{{ a }},{{ b }},{{ c }}]{% endmacro %}{{ f(1) }}{{ f(1, 2) }}{{ f(b=3, a=4) }}{{ f() }}{{ f(1, 2, 3) }}{{ f }} {{ f.name }} {{ f.arguments }} {{ f is callable }}
{% macro f(a) %}{{ a }}{% endmacro %}{{ f(1, 2) }}
{% macro f(a) %}{{ a }}{% endmacro %}{{ f(1, a=2) }}
{% macro f(a) %}{{ a }}{% endmacro %}{{ f(zz=2) }}
{% macro f(a) %}{{ a }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ f(1, 2, 3, x=4) }}{{ f() }}
{% macro f(x) %}<{{ caller() }}{{ x }}>{% endmacro %}{% call f(1) %}body{% endcall %} {% call f(x=2) %}{{ 1 + 1 }}{% endcall %}
{% macro f() %}{{ caller(1, b=2) }}{% endmacro %}{% call(a, b=0) f() %}{{ a }}/{{ b }}{% endcall %}
{% macro f() %}{{ caller is defined }}{{ caller }}{% endmacro %}{{ f() }}
{% macro f() %}x{% endmacro %}{% call f() %}y{% endcall %}
{% macro fac(n) %}{% if n > 1 %}{{ n }}*{{ fac(n - 1) }}{% else %}1{% endif %}{% endmacro %}{{ fac(5) }}
{% set x = 1 %}{% macro f() %}{{ x }}{% endmacro %}{% set x = 2 %}{{ f() }}{% macro g() %}{% set x = 9 %}{{ x }}{% endmacro %}{{ g() }}{{ x }}
{% for i in [1, 2] %}{% macro m() %}{{ i }}{% endmacro %}{{ m() }}{% endfor %}{{ m is defined }}
{% macro outer(a) %}{% macro inner(b) %}{{ a }}{{ b }}{% endmacro %}{{ inner(2) }}{% endmacro %}{{ outer(1) }}
{% with a = 1, b = 2 %}{{ a }}{{ b }}{% set c = 3 %}{{ c }}{% endwith %}{{ a is defined }}{{ c is defined }} {% with %}{{ 5 }}{% endwith %}
{% set a = 1 %}{% with a = 2, b = a %}{{ a }}{{ b }}{% endwith %}{{ a }}
{% filter upper %}ab{{ 'c' }}{% endfilter %} {% filter replace('a', 'b') | upper %}aa{% endfilter %} {% filter indent(2) %}x
y{% endfilter %}
{% set x %}a{{ 1 }}{% endset %}{{ x }}{{ x | length }} {% set y | upper | trim %} b {% endset %}[{{ y }}] {% set z %}{% set q = 1 %}{% endset %}{{ q is defined }}
{% if 0 %}a{% elif '' %}b{% elif [] %}c{% elif none %}d{% elif undef %}e{% else %}f{% endif %} {% if 'x' %}y{% endif %} {% if range(0) %}a{% else %}b{% endif %} {% if {} %}a{% else %}b{% endif %} {% if 0.0 %}a{% else %}b{% endif %} {% if namespace() %}a{% endif %} {% if [] | map('upper') %}gen{% endif %}
{% if false %}{% set late = 1 %}{% endif %}{{ late is defined }} {% if true %}{% set late2 = 1 %}{% endif %}{{ late2 }}
{% set g = [1, 2, 3] | select('odd') %}{{ g | list }}{{ g | list }} {{ [3, 1] | reverse | list }} {{ 'abc' | reverse }} {% for x in [1, 2] | map('string') %}{{ x }}{{ loop.last }}{% endfor %} {{ [1, 2, 3] | select('gt', 1) | first }}
{{ [1, 2] | select('odd') | length }}
{{ (msgs | map(attribute='role') | unique | join(',')) }} {{ msgs | groupby('role') }} {% for g, l in msgs | groupby('role') %}{{ g }}{{ l | length }}{% endfor %} {% for x in msgs | groupby('n') %}{{ x.grouper }}{{ x.list | length }}{% endfor %}
{{ msgs | sort(attribute='n') | map(attribute='n') | list }} {{ msgs | sum(attribute='n') }} {{ msgs | map(attribute='content') | map('trim') | list }} {{ msgs | selectattr('content') | list | length }} {{ msgs | map(attribute='a.b') | list }}
{{ [[1, 2], [3, 4]] | map(attribute=1) | list }} {{ [[1, 2], [3, 4]] | map(attribute='1') | list }} {{ [{'a': {'b': 1}}] | map(attribute='a.b') | list }} {{ ['b', 'a'] | sort | first }} {{ [[2], [1]] | sort }}
{{ [1, 'a'] | sort }}
{{ [{}, []] | sort }}
{{ '%s %d %5.2f %-5s|%05d %x %X %o %c %% %r %+d' | format('a', 2, 3.14159, 'b', 42, 255, 255, 8, 'z', 'q', 5) }} {{ '%s' % 'x' }} {{ '%s %s' % (1, 2) }} {{ '%(a)s' % {'a': 1} }} {{ '%e %g %G' % (12345.678, 0.0001, 1e20) }} {{ '%.3s|%6s' % ('abcdef', '\u00e9') }} {{ '%i' % 3.9 }} {{ '%5s|%-5d|' % (true, 7) }}
{{ '%s' % (1, 2) }}
{{ '%d' % 'x' }}
{{ '%s %s' % 1 }}
{{ 'a{}b{}'.format(1, 'x') }} {{ '{0}{1}{0}'.format('a', 'b') }} {{ '{a}'.format(a=1) }} {{ '{{}}'.format() }}
{{ '{:5d}'.format(3) }}
{{ '{'.format() }}
{{ 'a' | e }} {{ '<' | e }} {{ ('<' | e) | length }} {{ '<b>' | safe }} {{ '<' | safe | escape }} {{ 'x' | safe is escaped }} {{ '<' | escape | string }} {{ '<' | forceescape }}
{{ ('<' | e) ~ '>' }}
{{ ('<' | e) + '>' }}
{{ '<' + ('<' | safe) + '&' ~ '<' }}
{{ 'a' ~ '' + ('<' | safe) ~ ('' + ('<' | e)) | length }}
{{ ('a' | safe) | upper }}
{{ ['a' | safe] }}
{{ 'a b' | urlencode }} {{ 'a/b?c=d&\u00e9' | urlencode }} {{ 5 | urlencode }}
{{ 'The quick brown fox' | truncate(11) }}|{{ 'The quick brown fox' | truncate(11, true) }}|{{ 'The quick' | truncate(9) }}|{{ 'foo bar baz qux' | truncate(9, leeway=0, end='\u2026') }}
{{ 'x' is defined }} {{ undef is not defined }} {{ undef.x is defined }}
{{ undef is defined }} {{ msgs[0].zz is defined }} {{ msgs[9] is defined }} {{ msgs[0]['role'] is string }} {{ msgs.0.role }} {{ msgs[0].role.0 }}
{{ undef + 1 }}
{{ undef ~ 1 }}{{ undef == undef }}{{ undef == none }}{{ undef != 1 }}{{ 1 in undef }}{{ undef | length }}{{ undef | upper }}{{ undef | list }}{{ undef | first is defined }}{{ not undef }}
{{ undef < 1 }}
{{ undef() }}
{{ undef.x }}
{{ undef['x'] }}
{{ 1 is odd }} {{ 2 is odd }} {{ 2 is even }} {{ 6 is divisibleby 3 }} {{ 6 is divisibleby(4) }} {{ 1 is not none }} {{ 'a' is in 'abc' }} {{ 1 is in [1] }} {{ 'x' is eq 'x' }} {{ 3 is gt 2 }} {{ 'upper' is filter }} {{ 'nope' is filter }} {{ 'odd' is test }} {{ 2.0 is even }} {{ 1 is eq 1 and 2 is eq 2 }} {{ 1 is defined or x }}
{{ not 1 is none }} {{ 1 is not none and 2 is number }} {{ [1] is sequence and 'a' is string }} {{ 1 + 1 is number }}
{{ 1 is none is none }}
{{ 3 is divisibleby 3 + 1 }}
{{ dict(a=1, b='x') }} {{ dict({'a': 1}, a=2) }} {{ dict([['k', 'v']]) }} {{ range(3) | list }} {{ range(1, 8, 3) | list }} {{ range(3, 0, -1) | list }} {{ range(0) | list }} {{ range(2) }} {{ range(5, 1, -2) }}
{{ range(1000000000) }}
{{ range('a') }}
{{ range() }}
{{ range(1, 2, 0) }}
{{ cycler(1, 2).next() }}
{% set j = joiner(',') %}{{ j() }}
{{ lipsum() }}
{{ raise_exception('no') }}
{{ nofunction(1) }}
{{ 'a'.nomethod() }}
{% include 'x' %}
{% import 'x' as y %}
{% from 'x' import y %}
{% extends 'x' %}
{% do 1 %}
{% nothing %}
{% endif %}
{% if true %}
{% for x in y %}{% endif %}
{{ 1
{{ 1 } }}
{{ (1] }}
{{ [1, 2 }}
{% set x %}{{ 'a' }}
{# comment
{{ 'abc }}
{{ 1 +}}
{{ a b }}
{{ * }}
{{ 'a' | }}
{{ 'a' is }}
{{ f(a=1, 2) }}
{{ f(a=1, a=2) }}
{% macro f(a=1, b) %}{% endmacro %}
{% set true = 1 %}
{% set 1 = 1 %}
{% break %}
{{ ''' }}
{{ 1 ; 2 }}
{{ $ }}
a  {%- if true -%}  b  {%- endif -%}  c
a  {%+ if true %}  b{% endif +%}
a {{- 'x' -}} b {{ 'y' }} c
x {#- comment -#} y {# c #} z
{% raw %}{{ x }} {% if %}{% endraw %} {%- raw -%}  a  {%- endraw %} b
{% generation %}a{{ 1 }}{% set zz = 1 %}{% endgeneration %}{{ zz is defined }}
{{ {'a': 1} == {'a': 1.0} }} {{ [1, 2] == (1, 2) }} {{ (1, 2) == (1, 2) }} {{ range(2) == range(2) }} {{ range(2) == [0, 1] }} {{ 'a' == 'a' }} {{ [1, [2]] == [1, [2]] }} {{ none == false }} {{ {'a': 1, 'b': 2} == {'b': 2, 'a': 1} }} {{ [1, 2] < [1, 3] }} {{ (1,) < (1, 2) }} {{ 'a' < 'B' }} {{ '\u00e9' > 'z' }} {{ '\U0001f600' > '\uffee' }}
{{ [1] < (2,) }}
{{ {} < {} }}
{{ none < 1 }}
{{ 'a' * 3 }} {{ 2 * 'ab' }} {{ [1] * 2 }} {{ (1,) * 2 }} {{ 'a' * -1 }} {{ 'a' * 0 }} {{ 'a' * true }} {{ [] * 5 }}
{{ 'a' * 1.0 }}
{{ ' a b ' | trim | length }} {{ ' x ' | trim | upper ~ '!' }} {{ ('a', 'b') | join(' ') }} {{ 'abc' | list }} {{ {'a': 1} | list }} {{ 'abc' | join('-') }} {{ {'a': 1, 'b': 2} | join }} {{ {'x': 1} | items | list }} {{ {'b': 1, 'a': 2} | dictsort }}
{{ msgs[0] }} {{ msgs[0] | tojson }} {{ msgs | length }} {{ msgs[-1].n }} {{ msgs[1:] | map(attribute='n') | list }} {{ msgs[0].items() | list }} {{ msgs[0].content.strip() }} {{ msgs[1].content | trim }} {{ msgs[1].content.split() }}
{{ strange\u00e9 }}|{% set \u00e9 = 1 %}{{ \u00e9 }}
{{ 'a' if msgs | length > 2 and msgs[0].role == 'user' else 'b' }} {{ (msgs | first).role }} {{ (1 if true else 2) + 1 }} {{ [x for x in y] }}
{{ [1, 2, 3,] }} {{ {'a': 1,} }} {{ (1, 2,) }} {{ [
1,
2] }}
{{ "%s" | format("a") | upper }} {{ -1 | string }} {{ 1.5 | int }} {{ '0x1f' | int(base=16) }} {{ '1e3' | int }} {{ ' 5 ' | int }} {{ 'x' | int(default=3) }} {{ none | int }} {{ '\u0665' | int }} {{ '1_000' | int }} {{ '99999999999999999999' | int }} {{ 1e30 | int }} {{ true | int }} {{ '1__0' | int }} {{ 'infinity' | float }} {{ '1_0.5' | float }} {{ '.5' | float }} {{ '5.' | float }} {{ '1e400' is string }}
{{ 42.55 | round }} {{ 42.55 | round(1) }} {{ 42.55 | round(1, 'floor') }} {{ 42 | round }} {{ 2.5 | round }} {{ 3.5 | round }} {{ -2.5 | round }} {{ 0.125 | round(2) }} {{ 2.675 | round(2) }} {{ 1.5 | round(0, 'ceil') }} {{ 2 | round(0, 'ceil') }} {{ -0.4 | round }} {{ 1e20 | round(2) }} {{ true | round }}
{{ '{}' }}{{ '}}' }}{{ '%}' }}{{ {'a': {'b': 1}}['a'] }}
{{ self }}
{{ loop }}|{{ loop is defined }}
{{ msgs | map('attr', 'x') | list }} {{ 5 | attr('real') }}
{{ 'a\u0300'.upper() }} {{ '\u1e9e'.lower() }} {{ '\u0149'.upper() }} {{ '\u1f80'.upper() }} {{ '\u1f80'.title() }} {{ '\u0390'.upper() }} {{ '\u03a3'.lower() }} {{ 'A\u03a3'.lower() }} {{ 'A\u03a3B'.lower() }} {{ 'A.\u03a3'.lower() }} {{ '\u01c5'.swapcase() }} {{ '\ufb03'.casefold() }} {{ '\u00b5'.upper() }} {{ '\u0131'.upper() }} {{ '\u10d0'.upper() }} {{ '\u13a0'.lower() }} {{ '\uab70'.upper() }} {{ '\ufb01x'.capitalize() }} {{ 'they\'re o\'neil 3rd'.title() }} {{ 'they\'re o\'neil-smith (3rd' | title }} {{ '\u0130x'.lower() | length }}
"""

UNBUILT = re.compile(
    r"\|\s*(filesizeformat|pprint|random|striptags|urlize|wordwrap|xmlattr)\b|\.(encode|format_map|isidentifier|maketrans|translate)\(|"
    r"\.real|\\N\{|cycler|joiner|lipsum|\(-8\)|2 \*\* 200|10 \*\* 40|\{:5d\}|\| safe\) \| upper|\['a' \| safe\]|"
    r"\{\{ self|attr\('real'\)|\(9007199254740993\) \| round\(1, |\(([\[({]|range|namespace|msgs).*\| urlencode|"
    r"\(-3\) \*\* \(2.5\)|^\{\{ \((none|true|false|[-.\de]+|\{.*\})\)\[.*:.*\] \}\}$")


def escaped(line):
    """MORE is raw, so that escapes reach the template; those outside of strings are made here."""
    if "strange" in line:
        return line.encode("ascii").decode("unicode-escape")
    return line


def templates():
    for value in ALL:
        for name, variants in FILTERS.items():
            for arguments in variants:
                yield "{{ " + f"({value}) | {name}{arguments}" + " }}"
                if name in ("map", "select", "reject", "selectattr", "rejectattr", "batch", "slice", "unique", "items", "reverse"):
                    yield "{{ " + f"({value}) | {name}{arguments} | list" + " }}"
    for value in TEXTS:
        for name, variants in METHODS.items():
            for arguments in variants:
                yield "{{ " + f"{value}.{name}{arguments}" + " }}"
    for value in ALL:
        for name, variants in TESTS.items():
            for arguments in variants:
                yield "{{ " + f"({value}) is {name}{arguments}" + " }}"
    for a, b in itertools.product(SOME, SOME):
        for op in OPERATORS:
            yield "{{ " + f"({a}) {op} ({b})" + " }}"
    for value in ALL:
        yield "{{ " + value + " }}|{{ [" + value + "] }}|{{ not (" + value + ") }}"
        yield "{{ -(" + value + ") }}"
        yield "{% for x in (" + value + ") %}{{ x }};{{ loop.length }}{% else %}nothing{% endfor %}"
        for part in ("[0]", "[-1]", "['a']", "[1:]", "[::-1]", "[:2]", "[-2:5:2]", "[none]", "[1.5]", ".a", ".items", "[true]"):
            yield "{{ (" + value + ")" + part + " }}"
    lines = MORE.strip("\n").split("\n")
    while lines:
        line = lines.pop(0)
        # a row ends with its line, unless what is open goes on in the next
        while lines and (line.endswith("\\") or line.endswith("[") or line.endswith("1,") or line.endswith("%}x")):
            line += "\n" + lines.pop(0)
        yield escaped(line)


# -- as transformers sets it up --------------------------------------------------------------------


class Generation(jinja2.ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_said"), [], [], body).set_lineno(line)

    def _said(self, caller):
        return caller()


class Space(jinja2.utils.Namespace):
    def __init__(*args, **kwargs):
        attributes = dict(*args[1:], **kwargs)
        for name in attributes:
            Space.check(name)
        jinja2.utils.Namespace.__init__(args[0], attributes)

    def __setitem__(self, name, value):
        Space.check(name)
        jinja2.utils.Namespace.__setitem__(self, name, value)

    @staticmethod
    def check(name):
        if isinstance(name, str) and name.startswith("_"):
            raise jinja2.exceptions.SecurityError(name)


def environment():
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])

    def refuse(message):
        raise jinja2.exceptions.TemplateError(message)

    def to_json(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    env.filters["tojson"] = to_json
    env.globals["raise_exception"] = refuse
    env.globals["strftime_now"] = lambda form: datetime.datetime(2024, 7, 26, 12).strftime(form)
    env.globals["namespace"] = Space
    env.globals["dict"] = type("Maker", (), {"__call__": lambda self, *a, **k: dict(*a, **k)})()
    return env


def main():
    env = environment()
    rows, seen = [], set()
    for template in templates():
        if template in seen:
            continue
        seen.add(template)
        try:
            text = env.from_string(template).render(**copy.deepcopy(VARIABLES))  # `indent` changes lists
            text.encode("utf-8")
        except Exception:  # jinja2's errors, Python's, and lone surrogates
            rows.append([template, None])
            continue
        if " at 0x" in text or "<class " in text or "<filter " in text or UNBUILT.search(template):
            rows.append([template, None, "unbuilt"])
        else:
            rows.append([template, text])
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        file.write('{"variables": ' + json.dumps(VARIABLES) + ',\n"rows": [\n')
        file.write(",\n".join(json.dumps(row, ensure_ascii=False) for row in rows))
        file.write("\n]}\n")
    print(f"{len(rows)} rows, {sum(r[1] is None for r in rows)} refused")


if __name__ == "__main__":
    main()
