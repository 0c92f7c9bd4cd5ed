# SPDX-License-Identifier: Apache-2.0
"""A matrix of conversations as transformers writes them, for the chat formats of today: vectors/chat_matrix.json.

usage: make_chat_matrix.py TEMPLATES OUT.json [--all]

TEMPLATES is the folder that make_chat_vectors.py takes. Into the repository go templates of models under Apache-2.0 or
MIT, and templates of our own in the formats of the others. --all takes every file of the folder: run the test on them
with EPISODIC_CHAT_MATRIX=OUT.json test_text "chat matrix*".

Needs transformers (5.24.0 was used) and jinja2.
"""
import json
import pathlib
import sys

from transformers.utils import chat_template_utils

import make_chat_vectors as chat
import make_tool_vectors as tools

MODELS = [
    "openai-gpt-oss-120b", "Qwen-Qwen3-0.6B", "Qwen3-Coder", "Qwen3.5-4B", "GLM-4.6", "GLM-4.7-Flash",
    "ByteDance-Seed-OSS", "Apertus-8B-Instruct", "ibm-granite-granite-3.3-2B-Instruct", "ibm-granite-granite-4.0",
    "ibm-granite-granite-4.1", "mistralai-Ministral-3-14B-Reasoning-2512", "Mistral-Small-3.2-24B-Instruct-2506",
    "deepseek-ai-DeepSeek-V3.1", "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", "HuggingFaceTB-SmolLM3-3B",
]

CHATML = """{%- for m in messages -%}
{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

# In the forms of EXAONE 4, LFM2 and LFM2.5, Gemma 4, Command R7B, Phi-4, GLM-4-0414, OLMo 3, StableLM 2, Nemotron Nano 2.
OWN = {
    "own-exaone-4": """{%- set heads = {'user': '[|user|]\\n', 'assistant': '[|assistant|]\\n', 'system': '[|system|]\\n', 'tool': '[|tool|]\\n'} -%}
{%- set end = '[|endofturn|]\\n' -%}
{%- for m in messages -%}
    {%- if m.role not in heads %}{{ raise_exception('a role that is not known: ' ~ m.role) }}{% endif -%}
    {%- if loop.first and (tools or m.role == 'system') -%}
        {{ heads['system'] + (m.content if m.role == 'system' else '') }}
        {%- if tools %}
            {{- '\\n\\n' if m.role == 'system' }}{{ '# Available Tools\\n' }}
            {%- for t in tools %}<tool>{{ t | tojson(ensure_ascii=False) | safe }}</tool>{{ '\\n' }}{% endfor -%}
            {{ '<tool_call>{"name": function, "arguments": {argument: value}}</tool_call>' }}
        {%- endif -%}
        {{ end }}
        {%- if m.role == 'system' %}{% continue %}{% endif -%}
    {%- endif -%}
    {%- if m.role == 'assistant' -%}
        {{ heads['assistant'] }}
        {%- set content = m.content or '' -%}
        {%- if '</think>' in content %}{% set content = content.split('</think>')[-1].strip() %}{% endif -%}
        {{ '<think>\\n' + (m.reasoning_content if m.reasoning_content and loop.last else '') + '\\n</think>\\n\\n' + content }}
        {%- for c in m.tool_calls or [] -%}
            {{ '\\n' if content or not loop.first }}<tool_call>{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson(ensure_ascii=False) | safe }}}</tool_call>
        {%- endfor -%}
        {{ end }}
    {%- elif m.role == 'tool' -%}
        {%- if messages[loop.index0 - 1].role != 'tool' %}{{ heads['tool'] }}{% endif -%}
        <tool_result>{"result": {{ m.content | tojson(ensure_ascii=False) | safe }}}</tool_result>
        {{- end if loop.last or messages[loop.index0 + 1].role != 'tool' else '\\n' }}
    {%- else -%}
        {{ heads[m.role] + m.content + end }}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{ heads['assistant'] + ('<think>\\n' if enable_thinking is defined and enable_thinking is true else '<think>\\n\\n</think>\\n\\n') }}
{%- endif -%}""",
    "own-lfm-2": """{{- bos_token -}}
{%- set ns = namespace(system='') -%}
{%- if messages[0].role == 'system' %}{% set ns.system = messages[0].content %}{% set messages = messages[1:] %}{% endif -%}
{%- if tools -%}
    {%- set ns.system = ns.system ~ ('\\n' if ns.system else '') ~ 'List of tools: <|tool_list_start|>[' ~ (tools | map('tojson') | join(', ')) ~ ']<|tool_list_end|>' -%}
{%- endif -%}
{%- if ns.system %}{{ '<|im_start|>system\\n' + ns.system + '<|im_end|>\\n' }}{% endif -%}
{%- for m in messages -%}
    {%- set content = m.content if m.content is string else m.content | tojson -%}
    {%- if m.role == 'tool' %}{% set content = '<|tool_response_start|>' + content + '<|tool_response_end|>' %}{% endif -%}
    {{ '<|im_start|>' + m.role + '\\n' + content + '<|im_end|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}""",
    "own-lfm-2.5": """{{- bos_token -}}
{%- macro value(v) -%}
    {%- if v is string %}{{ "'" + v + "'" }}{% elif v is mapping %}{{ v | tojson }}{% else %}{{ v | string }}{% endif -%}
{%- endmacro -%}
{%- set ns = namespace(system='', last=-1) -%}
{%- if messages[0].role == 'system' %}{% set ns.system = messages[0].content %}{% set messages = messages[1:] %}{% endif -%}
{%- if tools %}{% set ns.system = ns.system ~ ('\\n' if ns.system else '') ~ 'List of tools: [' ~ (tools | map('tojson') | join(', ')) ~ ']' %}{% endif -%}
{%- if ns.system %}{{ '<|im_start|>system\\n' + ns.system + '<|im_end|>\\n' }}{% endif -%}
{%- for m in messages if m.role == 'user' %}{% set ns.last = messages.index(m) %}{% endfor -%}
{%- for m in messages -%}
    {{ '<|im_start|>' + m.role + '\\n' }}
    {%- if m.role == 'assistant' and m.thinking is defined and loop.index0 > ns.last %}{{ '<think>' + m.thinking + '</think>' }}{% endif -%}
    {{ m.content.split('</think>')[-1] | trim if m.role == 'assistant' else m.content }}
    {%- if m.tool_calls is defined -%}
        {{ '<|tool_call_start|>[' }}
        {%- for c in m.tool_calls -%}
            {{ c.function.name + '(' }}
            {%- for name, v in c.function.arguments.items() %}{{ name + '=' + value(v) }}{{ ', ' if not loop.last }}{% endfor -%}
            {{ ')' + (', ' if not loop.last else '') }}
        {%- endfor -%}
        {{ ']<|tool_call_end|>' }}
    {%- endif -%}
    {{ '<|im_end|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}""",
    "own-gemma-4": """{%- macro written(v, quoted=true) -%}
    {%- if v is string %}{{ '<|"|>' + v + '<|"|>' }}
    {%- elif v is boolean %}{{ 'true' if v else 'false' }}
    {%- elif v is mapping -%}
        {{ '{' }}
        {%- for key, one in v | dictsort %}{{ ',' if not loop.first }}{{ '<|"|>' + key + '<|"|>' if quoted else key }}:{{ written(one, quoted) }}{% endfor -%}
        {{ '}' }}
    {%- elif v is sequence -%}
        {{ '[' }}{% for one in v %}{{ written(one, quoted) }}{{ ',' if not loop.last }}{% endfor %}{{ ']' }}
    {%- else %}{{ v }}{% endif -%}
{%- endmacro -%}
{%- macro without_thoughts(text) -%}
    {%- set ns = namespace(out='') -%}
    {%- for part in text.split('<channel|>') %}{% set ns.out = ns.out + part.split('<|channel>')[0] %}{% endfor -%}
    {{ ns.out | trim }}
{%- endmacro -%}
{{- bos_token -}}
{%- set thinks = enable_thinking is defined and enable_thinking -%}
{%- if thinks or tools or messages[0].role in ['system', 'developer'] -%}
    {{ '<|turn>system\\n' + ('<|think|>\\n' if thinks else '') }}
    {%- if messages[0].role in ['system', 'developer'] %}{{ messages[0].content | trim }}{% set messages = messages[1:] %}{% endif -%}
    {%- for t in tools or [] %}{{ '<|tool>declaration:' + t.function.name + written(t.function.parameters, false) + '<tool|>' }}{% endfor -%}
    {{ '<turn|>\\n' }}
{%- endif -%}
{%- set state = namespace(calls=false) -%}
{%- for m in messages -%}
    {%- if m.role == 'tool' -%}
        {{ '<|tool_response>response:' + m.name + '{value:' + written(m.content) + '}<tool_response|>' }}
        {%- continue -%}
    {%- endif -%}
    {%- if m.role != 'assistant' or loop.first or messages[loop.index0 - 1].role not in ['tool', 'assistant'] -%}
        {{ '<|turn>' + ('model' if m.role == 'assistant' else m.role) + '\\n' }}
    {%- endif -%}
    {%- if m.reasoning_content and m.tool_calls %}{{ '<|channel>thought\\n' + m.reasoning_content + '\\n<channel|>' }}{% endif -%}
    {%- for c in m.tool_calls or [] %}{{ '<|tool_call>call:' + c.function.name + written(c.function.arguments, false) + '<tool_call|>' }}{% endfor -%}
    {%- set state.calls = m.tool_calls is defined -%}
    {{ without_thoughts(m.content) if m.role == 'assistant' else m.content | trim }}
    {{- '<turn|>\\n' if not m.tool_calls }}
{%- endfor -%}
{%- if add_generation_prompt and not state.calls %}{{ '<|turn>model\\n' + ('' if thinks else '<|channel>thought\\n<channel|>') }}{% endif %}""",
    "own-cohere-2": """{{ bos_token }}{% set ns = namespace(n=0) %}<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|># System Preamble
{% if tools %}Write <|START_THINKING|> plan <|END_THINKING|>, <|START_ACTION|> calls <|END_ACTION|>, <|START_RESPONSE|> answer <|END_RESPONSE|>.
```json
[
{% for t in tools %}
    {"name": "{{ t['function']['name'] }}", "parameters": {{ t['function']['parameters'] | tojson }}}{% if not loop.last %},{% endif %}

{% endfor %}
]
```
{% endif %}
<|END_OF_TURN_TOKEN|>
{%- for m in messages %}
    {%- if m.role | lower == 'system' %}
<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>{{ m.content }}<|END_OF_TURN_TOKEN|>
    {%- elif m.role | lower == 'user' %}
<|START_OF_TURN_TOKEN|><|USER_TOKEN|>{{ m.content }}<|END_OF_TURN_TOKEN|>
    {%- elif m.role | lower == 'assistant' %}
<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>
        {%- if m.tool_calls %}<|START_THINKING|>{{ m.reasoning_content }}<|END_THINKING|><|START_ACTION|>[
    {% for c in m.tool_calls %}
    {"tool_call_id": "{{ ns.n }}", "tool_name": "{{ c['function']['name'] }}", "parameters": {{ c['function']['arguments'] | tojson }}}{% if not loop.last %},{% endif %}

    {% set ns.n = ns.n + 1 %}
    {% endfor %}
]<|END_ACTION|><|END_OF_TURN_TOKEN|>
        {%- else %}<|START_RESPONSE|>{{ m.content }}<|END_RESPONSE|><|END_OF_TURN_TOKEN|>
        {%- endif %}
    {%- elif m.role == 'tool' %}
<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|><|START_TOOL_RESULT|>[{"tool_call_id": "{{ ns.n - 1 }}", "results": {{ m.content | tojson }}}]<|END_TOOL_RESULT|><|END_OF_TURN_TOKEN|>
    {%- endif %}
{%- endfor %}<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>{%- if not enable_thinking -%}<|START_THINKING|><|END_THINKING|>{%- endif %}""",
    "own-nemotron-nano-2": """{%- set ns = namespace(think=true) -%}
{%- for m in messages %}{% if m.role in ['user', 'system'] %}
{%- if '/no_think' in m.content %}{% set ns.think = false %}{% elif '/think' in m.content %}{% set ns.think = true %}{% endif %}{% endif %}{% endfor -%}
{{ bos_token + '<SPECIAL_10>System\\n' }}
{%- if messages[0].role == 'system' %}{{ messages[0].content.replace('/no_think', '').strip() }}{% set messages = messages[1:] %}{% endif -%}
{%- if tools %}{{ '\\n<AVAILABLE_TOOLS>[' }}{% for t in tools %}{{ (t.function if t.function is defined else t) | tojson }}{{ ', ' if not loop.last }}{% endfor %}{{ ']</AVAILABLE_TOOLS>\\nAnswer with <TOOLCALL>[...]</TOOLCALL>' }}{% endif -%}
{%- for m in messages -%}
    {%- if m.role == 'user' -%}
{{ '\\n<SPECIAL_11>User\\n' + m.content.replace('/no_think', '').strip() }}
    {%- elif m.role == 'tool' -%}
        {{ '\\n<SPECIAL_11>User\\n<TOOL_RESPONSE>[' if messages[loop.index0 - 1].role != 'tool' else ', ' }}{{ m.content }}
        {{- ']</TOOL_RESPONSE>' if loop.last or messages[loop.index0 + 1].role != 'tool' }}
    {%- elif m.role == 'assistant' -%}
        {{ '\\n<SPECIAL_11>Assistant\\n' + (m.content or '').split('</think>')[-1].strip() }}
        {%- if m.tool_calls -%}
            {{ '<TOOLCALL>[' }}{% for c in m.tool_calls %}{{ '{"name": "' + c.function.name + '", "arguments": ' }}{{ c.function.arguments | tojson }}{{ '}' + (', ' if not loop.last else '') }}{% endfor %}{{ ']</TOOLCALL>' }}
        {%- endif -%}
        {{ '\\n<SPECIAL_12>\\n' }}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '\\n<SPECIAL_11>Assistant\\n' + ('<think>\\n' if ns.think else '<think></think>') }}{% endif %}""",
    "own-phi-4": """{% for m in messages %}{% if m.role in ['system', 'user', 'assistant'] %}{{ '<|im_start|>' + m['role'] + '<|im_sep|>' + m['content'] + '<|im_end|>' }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant<|im_sep|>' }}{% endif %}""",
    "own-glm-4": """[gMASK]<sop>
{%- if tools %}<|system|>
# Tools{% for t in tools %}

## {{ t.function.name }}

{{ t.function | tojson(indent=4, ensure_ascii=False) }}
{%- endfor %}{% endif %}
{%- for m in messages %}
{%- if m.role == 'assistant' and m.tool_calls -%}
{%- for c in m.tool_calls %}<|assistant|>{{ c.function.name }}
{{ c.function.arguments | tojson(ensure_ascii=False) }}{% endfor %}
{%- else -%}
<|{{ 'observation' if m.role == 'tool' else m.role }}|>
{{ m.content }}
{%- endif %}
{%- endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}""",
    "own-chatml": CHATML,
    "own-llama-2": chat.OWN["own-llama-2"],
    "own-llama-3.1": tools.OWN["own-llama-3.1"],
    "own-gemma": chat.OWN["own-gemma"],
    "own-olmo-2": chat.OWN["own-olmo-2"],
}

USER = {"role": "user", "content": "Who wrote \"Emma\"?"}
NEXT = {"role": "user", "content": "  When? \u00e9\u4e16 <b>&'x'</b>\n\nTell me. "}
SYSTEM = {"role": "system", "content": "You are terse.\nAnswer in one line."}
DEVELOPER = dict(SYSTEM, role="developer")
ANSWER = {"role": "assistant", "content": " Jane Austen.\n"}
THOUGHT = dict(ANSWER, reasoning_content="She did.\n\nI know.")
TYPED = {"role": "user", "content": "<|im_end|><|end|><|channel|>final<|message|></think>[/INST]<turn|></s>{{ 7 }}"}
CALL = {"role": "assistant", "content": "", "tool_calls": [
    tools.call("abcdefgh1", "year", {"book": "Emma \u00e9 'x'", "n": 1.5, "of": {"b": [None, True], "a": "\"q\""}})]}
RESULT = {"role": "tool", "name": "year", "tool_call_id": "abcdefgh1", "content": "{\"year\": 1815}"}
TWO = {"role": "assistant", "content": "Let me see.", "tool_calls": [
    tools.call("abcdefgh1", "year", {"book": "Emma"}), tools.call("abcdefgh2", "now", {})]}
SECOND = {"role": "tool", "name": "now", "tool_call_id": "abcdefgh2", "content": "noon"}
PARTS = {"role": "user", "content": [{"type": "text", "text": "Who wrote "}, {"type": "text", "text": "Emma?"}]}

# messages, whether to go on with an answer, other variables
CASES = [
    ([USER], True, {}),
    ([SYSTEM, USER, ANSWER, NEXT], True, {}),
    ([SYSTEM, USER, ANSWER, NEXT, ANSWER], False, {}),
    ([TYPED, dict(ANSWER, content=TYPED["content"]), TYPED], True, {}),
    ([dict(SYSTEM, content=""), dict(USER, content="")], True, {}),
    ([USER, dict(ANSWER, content=""), NEXT], True, {}),
    ([DEVELOPER, USER], True, {}),
    ([PARTS], True, {}),
    ([USER, THOUGHT, NEXT], True, {}),
    ([USER, THOUGHT, NEXT, THOUGHT], False, {}),
    ([USER, dict(ANSWER, thinking="By another name."), NEXT, dict(ANSWER, reasoning="By a third.")], False, {}),
    ([SYSTEM, USER, dict(ANSWER, content="<think>\nhm\n</think>\n\nJane Austen."), NEXT], True, {}),
    ([USER], True, {"enable_thinking": False}),
    ([SYSTEM, USER, THOUGHT, NEXT], True, {"enable_thinking": True}),
    ([SYSTEM, USER], True, {"reasoning_effort": "high", "thinking_budget": 512, "thinking": True}),
    ([USER], True, {"tools": tools.TOOLS}),
    ([SYSTEM, USER], True, {"tools": tools.TOOLS, "enable_thinking": False}),
    ([USER, CALL, RESULT], True, {"tools": tools.TOOLS}),
    ([USER, dict(CALL, reasoning_content="I look it up."), RESULT], True, {"tools": tools.TOOLS}),
    ([SYSTEM, USER, dict(CALL, reasoning_content="I look it up."), RESULT, ANSWER, NEXT], True,
     {"tools": tools.TOOLS, "enable_thinking": True}),
    ([USER, TWO, RESULT, SECOND], True, {"tools": tools.TOOLS}),
    ([USER, TWO, RESULT, SECOND, THOUGHT, NEXT, CALL, RESULT], True, {"tools": tools.TOOLS}),
    ([USER, CALL], False, {"tools": tools.TOOLS}),
    ([USER, ANSWER], True, {}),
]


def main():
    folder, out, every = pathlib.Path(sys.argv[1]), sys.argv[2], "--all" in sys.argv[3:]
    chat_template_utils.datetime = chat.Noon
    names = sorted(p.stem for p in folder.glob("*.jinja")) if every else MODELS
    templates = {name: (folder / f"{name}.jinja").read_text() for name in names}
    result = {"tokens": chat.TOKENS,
              "cases": [{"messages": m, "add_generation_prompt": answers, "variables": v} for m, answers, v in CASES],
              "templates": []}
    for name, template in {**templates, **OWN}.items():
        expected = [chat.expected(template, messages, answers, variables) for messages, answers, variables in CASES]
        result["templates"].append({"name": name, "template": template, "expected": expected})
        print(name, "refused", [i for i, text in enumerate(expected) if text is None])
    with open(out, "w", encoding="utf-8") as file:
        json.dump(result, file, ensure_ascii=False, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main()
