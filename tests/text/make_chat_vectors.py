# SPDX-License-Identifier: Apache-2.0
"""What transformers makes of conversations with chat templates: vectors/chat.json.

usage: make_chat_vectors.py TEMPLATES OUT.json [--all]

TEMPLATES is a folder of *.jinja. The models' own come with the PyPI source package llama-cpp-python
(vendor/llama.cpp/models/templates):

    pip download --no-deps --no-binary llama-cpp-python llama-cpp-python

Into the repository go those whose models are under Apache-2.0 or MIT, and templates of our own in
the formats of the others. --all takes every file of the folder: run the test on them with
EPISODIC_CHAT_VECTORS=OUT.json test_text "chat*".

Needs transformers (5.23.0 was used) and jinja2.
"""
import datetime
import json
import pathlib
import sys

from transformers.utils import chat_template_utils

MODELS = [
    "HuggingFaceTB-SmolLM3-3B",
    "Qwen-Qwen2.5-7B-Instruct",
    "Qwen-Qwen3-0.6B",
    "ibm-granite-granite-3.3-2B-Instruct",
    "microsoft-Phi-3.5-mini-instruct",
    "mistralai-Mistral-Nemo-Instruct-2407",
    "openai-gpt-oss-120b",
]

# The formats of LLaMA 2 and 3, Gemma 2 and 3, and OLMo 2.
OWN = {
    "own-llama-2": """{% if messages and messages[0]['role'] == 'system' %}
{% set system, rest = messages[0].content, messages[1:] %}
{% else %}
{% set system, rest = none, messages %}
{% endif %}
{% for m in rest %}
    {%- if (m['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception('roles must alternate, a user first') }}
    {%- endif -%}
    {%- if m.role == 'user' -%}
        {{ bos_token + '[INST] ' ~ ('<<SYS>>\\n' + system + '\\n<</SYS>>\\n\\n' if loop.first and system is not none else '') }}
        {{- m.content.strip() }} [/INST]
    {%- else %} {{ m.content | trim }} {{ eos_token }}
    {%- endif %}
{%- endfor %}""",
    "own-llama-3": """{{- bos_token }}{# the header of every message #}
{%- macro header(role) -%}
<|start_header_id|>{{ role }}<|end_header_id|>{{ '\\n\\n' }}
{%- endmacro -%}
{%- set date = strftime_now('%d %b %Y') if strftime_now is defined else '26 Jul 2024' -%}
{%- if messages[0].role == 'system' -%}
    {%- set system = messages[0]['content'] | trim -%}
    {%- set messages = messages[1:] -%}
{%- else -%}
    {%- set system = '' -%}
{%- endif -%}
{{ header('system') }}Today Date: {{ date }}

{{ system }}<|eot_id|>
{%- for message in messages if message.role not in ['nobody'] -%}
    {{ header(role=message.role) + message.content | trim + '<|eot_id|>' }}
{%- endfor -%}
{%- if add_generation_prompt %}{{ header('assistant') }}{% endif %}""",
    "own-gemma": """{{ bos_token }}
{%- set ns = namespace(first='') -%}
{%- for message in messages -%}
{%- if message['role'] == 'system' -%}
{%- if not loop.first -%}{{ raise_exception('a system message stands first') }}{%- endif -%}
{%- set ns.first = (message['content'] if message['content'] is string else message['content'][0]['text']) + '\\n\\n' -%}
{%- continue -%}
{%- endif -%}
{%- set role = 'model' if message.role == 'assistant' else message.role -%}
<start_of_turn>{{ role }}
{{ ns.first }}
{%- set ns.first = '' -%}
{%- if message.content is string %}{{ message.content | trim }}
{%- elif message.content is iterable -%}
{%- for part in message.content -%}
{%- if part.type == 'image' %}<start_of_image>{% elif part.type == 'text' %}{{ part.text | trim }}{% endif -%}
{%- endfor -%}
{%- else %}{{ raise_exception('content of a kind that is not known') }}{% endif %}<end_of_turn>
{% endfor -%}
{% if add_generation_prompt %}<start_of_turn>model
{% endif %}""",
    "own-olmo-2": """{{ bos_token }}{% for message in messages %}
{% if message['role'] != 'assistant' %}
<|{{ message['role'] }}|>
{{ message['content'] }}
{% elif not loop.last %}
<|assistant|>
{% generation %}{{ message['content'] + eos_token }}{% endgeneration %}

{% else %}
<|assistant|>
{{ message['content'] + eos_token }}
{% endif %}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>\\n' }}
{% endif %}
{% endfor %}""",
    # what the language does, whoever uses it
    "own-language": """{% set list = [3, 1, 'b', true, none, 2.0] if false else [3, 1, 2] %}
{{ list | sort | join('-') }} {{ list[::-1] }} {{ list[-2:] }} {{ 'h\\u00e9llo'[1:3] }} {{ 'abc'[::-1] }}
{{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 2 ** 10 }} {{ 1.0 }} {{ 0.1 + 0.2 }} {{ 3 * 'ab' if false else 'ab' * 3 }}
{{ {'a': [1, true, none], "b'c": 'd'} }} {{ {'a': 1, 'z': {'q': []}} | tojson }} {{ {'a': [1, 2], 'z': {}} | tojson(indent=2) }}
{{ "\\"quoted\\" \u00e9" | tojson }} {{ 'x' in 'xyz' }} {{ 1 not in [1] }} {{ 'k' in {'k': 0} }}
{{ undefined_name }}|{{ undefined_name is defined }}|{{ undefined_name | default('d') }}|{{ '' | default('e', true) }}
{{ messages | map(attribute='role') | list | tojson }} {{ messages | selectattr('role', 'equalto', 'user') | list | length }} {{ messages | rejectattr('role', 'eq', 'user') | first | default('no') is mapping }}
{% for k, v in {'one': 1, 'two': 2}.items() %}
  {{ k }}={{ v }}{{ ', ' if not loop.last }}
{% else %}
  none
{% endfor %}
{% for x in [] %}{{ x }}{% else %}empty{% endfor %}
{% for i in range(5) %}{% if i == 1 %}{% continue %}{% endif %}{% if i == 4 %}{% break %}{% endif %}{{ loop.index }}:{{ i }}/{{ loop.revindex0 }} {% endfor %}

  {%+ if true %}kept{% endif +%}
{% raw %}{{ not run }}{% endraw %}

{% set block %}
a {{ 'b' }}
{% endset %}
[{{ block }}] {{ block | length }} {{ block is string }}
{% macro f(a, b='B') %}({{ a }},{{ b }}){% endmacro %}
{{ f(1) }}{{ f(1, 2) }}{{ f(b=3, a=4) }}
{% set ns = namespace(n=0) %}{% for x in [1, 2, 3] %}{% set ns.n = ns.n + x %}{% set hidden = x %}{% endfor %}{{ ns.n }} {{ hidden is defined }}
{{ ' a b  c '.split() }} {{ 'a,b,c'.split(',', 1) }} {{ '  x '.strip() + '|' + '--x-'.lstrip('-') + '|' + 'x--'.rstrip('-') }}
{{ 'Hello'.startswith('He') }} {{ 'a-b'.replace('-', '+') }} {{ 'ab cd'.title() }} {{ 'AB'.lower() }} {{ 'ab' | upper }} {{ 'aB c' | capitalize }}
{{ 5 is odd }} {{ 4 is even }} {{ 6 is divisibleby 3 }} {{ none is none }} {{ 1 is number }} {{ 'a' is iterable }} {{ true is boolean }} {{ 1 is integer }} {{ 1.5 is float }}
{{ not true or false and true }} {{ 1 < 2 and 'a' < 'b' }} {{ [] or 'empty' }} {{ 'a' ~ 1 ~ none }}
{{ 'l1\\nl2\\n\\nl4' | indent(2) }} {{ [1, 2, 2, 1] | unique | list }} {{ ' 12 ' | trim | int + 1 }} {{ '2.5' | float }} {{ -3 | abs }} {{ [[1, 'a']] | first | last }}
{{- '   stripped' }}   {{- ' left' -}}
   right""",
}

TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
NOW = datetime.datetime(2024, 7, 26, 12)

FIRST = [{"role": "user", "content": "Who wrote \"Emma\"?"}]
TURNS = FIRST + [
    {"role": "assistant", "content": " Jane Austen.\n"},
    {"role": "user", "content": "  When? \u00e9\u4e16 <b>&'x'</b>\n\nTell me. "},
]
SYSTEM = [{"role": "system", "content": "You are terse.\nAnswer in one line."}]
TOOLS = [{
    "type": "function",
    "function": {
        "name": "year",
        "description": "Year of a book's \"first\" edition",
        "parameters": {
            "type": "object",
            "properties": {"book": {"type": "string", "description": "Title"},
                           "n": {"type": "integer", "default": 3}},
            "required": ["book"],
        },
    },
}]
CALL = FIRST + [
    {"role": "assistant", "content": "",
     "tool_calls": [{"type": "function", "id": "abcdefgh1",
                     "function": {"name": "year", "arguments": {"book": "Emma"}}}]},
    {"role": "tool", "name": "year", "tool_call_id": "abcdefgh1", "content": "1815"},
    TURNS[2],
]
THOUGHT = [{"role": "assistant", "content": "<think>\nhm\n</think>\n\n1815."}]

# messages, whether to go on with an answer, other variables
CASES = [
    (TURNS, True, {}),
    (SYSTEM + TURNS, True, {}),
    (FIRST, True, {}),
    (SYSTEM + TURNS + THOUGHT, False, {}),
    (FIRST + FIRST, True, {}),
    (SYSTEM, True, {}),
    (FIRST, True, {"enable_thinking": False}),
    (TURNS, True, {"tools": TOOLS}),
    (CALL, True, {"tools": TOOLS}),
]


class Noon(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return NOW


def expected(template, messages, answers, variables):
    others = dict(variables)
    tools = others.pop("tools", None)
    try:
        texts, _ = chat_template_utils.render_jinja_template(
            conversations=[messages], tools=tools, chat_template=template,
            add_generation_prompt=answers, **TOKENS, **others)
        return texts[0]
    except Exception:  # refused: by the template or by the language
        return None


def main():
    folder, out, every = pathlib.Path(sys.argv[1]), sys.argv[2], "--all" in sys.argv[3:]
    chat_template_utils.datetime = Noon
    names = sorted(p.stem for p in folder.glob("*.jinja")) if every else MODELS
    templates = {name: (folder / f"{name}.jinja").read_text() for name in names}
    result = {"tokens": TOKENS, "now": "2024-07-26T12", "templates": []}
    for name, template in {**templates, **OWN}.items():
        cases = [{"variables": {"messages": messages, **variables}, "add_generation_prompt": answers,
                  "expected": expected(template, messages, answers, variables)}
                 for messages, answers, variables in CASES]
        result["templates"].append({"name": name, "template": template, "cases": cases})
    with open(out, "w", encoding="utf-8") as file:
        json.dump(result, file, ensure_ascii=False, indent=1)
        file.write("\n")
    refused = sum(c["expected"] is None for t in result["templates"] for c in t["cases"])
    print(f"{len(result['templates'])} templates, {len(CASES)} conversations, {refused} refused")


if __name__ == "__main__":
    main()
