# SPDX-License-Identifier: Apache-2.0
"""Conversations with tools as transformers writes them: vectors/tools.json.

usage: make_tool_vectors.py TEMPLATES OUT.json [--all]

TEMPLATES is the folder that make_chat_vectors.py takes. Into the repository go templates of models
under Apache-2.0 or MIT, and our own in the forms of the others; --all adds these others' own: run
the test on them with EPISODIC_TOOL_VECTORS=OUT.json test_text "tool prompts*".

A conversation is written as an OpenAI client sends it. For transformers it is prepared here: by what
people do by hand for a template of that kind, and for templates without tools by the general form
of docs/tool-calls.md.

Needs transformers (5.24.0 was used) and jinja2.
"""
import copy
import json
import pathlib
import sys

from transformers.utils import chat_template_utils

import make_chat_vectors as chat

OWN = {
    "own-llama-3.1": """{{- bos_token }}{# in the form of LLaMA 3.1 #}
{%- macro head(role) -%}<|start_header_id|>{{ role }}<|end_header_id|>{{ '\\n\\n' }}{%- endmacro -%}
{%- if messages[0].role == 'system' -%}
    {%- set system, messages = messages[0].content, messages[1:] -%}
{%- else -%}
    {%- set system = '' -%}
{%- endif -%}
{{ head('system') }}{{ 'Environment: ipython\\n' if tools }}{{ system }}<|eot_id|>
{%- if tools -%}
    {{ head('user') }}Answer with {"name": function name, "parameters": dictionary of arguments}.
{% for tool in tools %}{{ tool | tojson(indent=4) }}

{% endfor %}
    {{- messages[0].content }}<|eot_id|>
    {%- set messages = messages[1:] -%}
{%- endif -%}
{%- for m in messages -%}
    {%- if 'tool_calls' in m -%}
        {%- if m.tool_calls | length != 1 %}{{ raise_exception('one call at a time') }}{% endif -%}
        {%- set f = m.tool_calls[0].function -%}
        {{ head('assistant') }}{"name": "{{ f.name }}", "parameters": {{ f.arguments | tojson }}}<|eot_id|>
    {%- elif m.role == 'tool' -%}
        {{ head('ipython') }}{{ m.content | tojson }}<|eot_id|>
    {%- else -%}
        {{ head(m.role) }}{{ m.content | trim }}<|eot_id|>
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt %}{{ head('assistant') }}{% endif %}""",
    "own-phi-4-mini": """{%- for m in messages -%}
<|{{ m.role }}|>{{ m.content }}
{%- if m.role == 'system' and m.tools %}<|tool|>{{ m.tools }}<|/tool|>{% endif -%}
<|end|>
{%- endfor -%}
{{ '<|assistant|>' if add_generation_prompt else eos_token }}""",
    "own-functionary": """{{ bos_token }}{% for m in messages %}
{%- if loop.first and tools %}<|system|>
Call functions so: <function=NAME>{"ARGUMENT": "VALUE"}</function>
{% for tool in tools %}{{ tool.function | tojson }}
{% endfor %}{% endif -%}
<|{{ m.role }}|>
{% if m.content %}{{ m.content }}{% endif %}
{%- for call in m.tool_calls or [] %}{{ '<function=' + call.function.name + '>' + call.function.arguments + '</function>' }}{% endfor %}
{% endfor %}{% if add_generation_prompt %}<|assistant|>
{% endif %}""",
    "HuggingFaceTB-SmolLM2-135M-Instruct": """{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system
You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>
' }}{% endif %}{{'<|im_start|>' + message['role'] + '
' + message['content'] + '<|im_end|>' + '
'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant
' }}{% endif %}""",
    "own-llama-2": chat.OWN["own-llama-2"],
    "own-gemma": chat.OWN["own-gemma"],
    "own-olmo-2": chat.OWN["own-olmo-2"],
}

HERMES = dict(form="hermes", open="", call='<tool_call>\n{"name": "', arguments='", "arguments": ',
              end='}\n</tool_call>', between="\n", close="")
LIST = dict(open="<|tool_call|>[", call='{"name": "', arguments='", "arguments": ', end="}",
            between=", ", close="]")
GENERAL = dict(HERMES, form="general", tools="told", calls=False, results=False)
DEEPSEEK = {part: f"<\uff5ctool\u2581{part.replace('_', chr(0x2581))}\uff5c>"
            for part in ("calls_begin", "calls_end", "call_begin", "call_end", "sep")}

# What of tools, calls and results a template writes, and how.
TRAITS = {
    "Qwen-Qwen2.5-7B-Instruct": dict(form="hermes"),
    "Qwen-Qwen3-0.6B": dict(form="hermes"),
    "ibm-granite-granite-4.0": dict(form="hermes"),
    "ibm-granite-granite-3.3-2B-Instruct": dict(LIST, form="granite", calls=False),
    "mistralai-Mistral-Nemo-Instruct-2407": dict(form="mistral"),
    "mistralai-Ministral-3-14B-Reasoning-2512": dict(form="mistral_named"),
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": dict(
        form="deepseek", tools="told", open=DEEPSEEK["calls_begin"],
        call=DEEPSEEK["call_begin"] + "function" + DEEPSEEK["sep"], arguments="\n```json\n",
        end="\n```" + DEEPSEEK["call_end"], between="\n", close=DEEPSEEK["calls_end"]),
    "own-llama-3.1": dict(form="llama", several=False),
    "own-phi-4-mini": dict(LIST, form="phi4", tools="message", calls=False, close="]<|/tool_call|>"),
    "own-functionary": dict(form="functionary", text=True),
    "HuggingFaceTB-SmolLM3-3B": dict(GENERAL, results=True),  # as edited by Unsloth
    "HuggingFaceTB-SmolLM2-135M-Instruct": GENERAL,
    "microsoft-Phi-3.5-mini-instruct": GENERAL,
    "own-llama-2": GENERAL,
    "own-gemma": GENERAL,
    "own-olmo-2": GENERAL,
}
OTHERS = {
    "meta-llama-Llama-3.1-8B-Instruct": dict(form="llama", several=False),
    "meta-llama-Llama-3.2-3B-Instruct": dict(form="llama", several=False),
    "meta-llama-Llama-3.3-70B-Instruct": dict(form="llama", several=False),
    "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use": dict(form="hermes"),
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use": dict(form="hermes"),
    "Qwen-QwQ-32B": dict(form="hermes"),
    "google-gemma-2-2b-it": dict(GENERAL, system=False),
    "ibm-granite-granite-4.1": dict(form="hermes"),
    "deepseek-ai-DeepSeek-V3.1": dict(
        form="deepseek_v3", tools="told", open=DEEPSEEK["calls_begin"], call=DEEPSEEK["call_begin"],
        arguments=DEEPSEEK["sep"], end=DEEPSEEK["call_end"], between="", close=DEEPSEEK["calls_end"]),
}

TOOLS = chat.TOOLS + [{
    "type": "function",
    "function": {"name": "now", "description": "The time.",
                 "parameters": {"type": "object", "properties": {
                     "zone": {"type": "string", "description": "Zone", "enum": ["UTC", "\u00e9"]}}}},
}]


def call(id_, name, arguments):
    return {"id": id_, "type": "function", "function": {"arguments": arguments, "name": name}}


USER = {"role": "user", "content": "Who wrote \"Emma\"?"}
PARTS = {"role": "user", "content": [{"type": "text", "text": "Who wrote "}, {"type": "text", "text": "Emma?"}]}
SYSTEM = {"role": "system", "content": "You are terse."}
ONE = [USER,
       {"role": "assistant", "content": None, "tool_calls": [
           call("abcdefgh1", "year", '{"book": "Emma", "n": 1.5, "of": {"\u00e9": [null, true]}}')]},
       {"role": "tool", "tool_call_id": "abcdefgh1", "content": "1815 \u00e9 \"</tool_response>\""}]
REST = [{"role": "assistant", "content": "In 1815."}, {"role": "user", "content": "And now?"}]
TWO = [USER,
       {"role": "assistant", "content": "Let me see.", "tool_calls": [
           call("abcdefgh1", "year", '{"book": "Emma"}'), call("abcdefgh2", "now", "")]},
       {"role": "tool", "tool_call_id": "abcdefgh1", "content": [{"type": "text", "text": "1815"}]},
       {"role": "tool", "tool_call_id": "abcdefgh2", "content": "{\"hour\": 7}"}]

# messages, with tools
CASES = [([USER], True), ([SYSTEM, PARTS], True), (ONE, True), (ONE + REST, True), ([SYSTEM] + TWO, True),
         (TWO + REST, True), (ONE + REST, False), (REST[1:], False)]


def text_of(content):
    if content is None:
        return ""
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def dumped(value):
    return json.dumps(value, ensure_ascii=False)


def prepared(messages, with_tools, traits):
    """The messages for transformers, and its `tools`."""
    messages = copy.deepcopy(messages)
    names = {}
    for m in messages:
        m["content"] = text_of(m["content"])
        for c in m.get("tool_calls", []):
            f = c["function"]
            names[c["id"]] = f["name"]
            c["function"] = {"name": f["name"], "arguments": json.loads(f["arguments"] or "{}")}
        if m["role"] == "tool":
            m["name"] = names[m["tool_call_id"]]
    if not traits.get("several", True):
        messages = singles(messages)
    for m in messages:
        if traits.get("text"):
            for c in m.get("tool_calls", []):
                c["function"]["arguments"] = dumped(c["function"]["arguments"])
        if "tool_calls" in m and not traits.get("calls", True):
            calls = traits["between"].join(
                traits["call"] + c["function"]["name"] + traits["arguments"]
                + dumped(c["function"]["arguments"]) + traits["end"] for c in m.pop("tool_calls"))
            m["content"] += ("\n" if m["content"] else "") + traits["open"] + calls + traits["close"]
    if not traits.get("results", True):
        messages = users_results(messages)
    if not with_tools:
        return messages, None
    how = traits.get("tools", "variable")
    if how == "variable":
        return messages, TOOLS
    if how == "message":
        if messages[0]["role"] != "system":
            messages.insert(0, {"role": "system", "content": ""})
        messages[0]["tools"] = "[" + ", ".join(dumped(t["function"]) for t in TOOLS) + "]"
        return messages, None
    told = "# Tools\n\nYou may call functions to help with the user's request. Their signatures are JSON objects " \
           "within <tools></tools>:\n<tools>\n"
    for tool in TOOLS:
        told += '{"type": "function", "function": ' + dumped(tool["function"]) + "}\n"
    told += "</tools>\n\nTo call a function, answer with its name and a JSON object of its arguments in this form:\n"
    told += traits["open"] + traits["call"] + "NAME" + traits["arguments"] + '{"ARGUMENT": VALUE}' + traits["end"]
    told += traits["close"] + "\nIts result comes back within <tool_response></tool_response>."
    if not traits.get("system", True):
        user = next(m for m in messages if m["role"] == "user")
        user["content"] = told + "\n\n" + user["content"]
    elif messages[0]["role"] == "system":
        messages[0]["content"] += "\n\n" + told
    else:
        messages.insert(0, {"role": "system", "content": told})
    return messages, None


def singles(messages):
    out = []
    results = {m["tool_call_id"]: m for m in messages if m["role"] == "tool"}
    for m in messages:
        if m["role"] == "tool":
            continue
        for i, c in enumerate(m.get("tool_calls", [])):
            out.append(dict(m, tool_calls=[c], content=m["content"] if i == 0 else ""))
            out.append(results[c["id"]])
        if "tool_calls" not in m:
            out.append(m)
    return out


def users_results(messages):
    out = []
    ours = False
    for m in messages:
        if m["role"] == "tool":
            text = "<tool_response>\n" + m["content"] + "\n</tool_response>"
            if ours:
                out[-1]["content"] += "\n" + text
            else:
                out.append({"role": "user", "content": text})
            ours = True
        elif m["role"] == "user" and ours:
            out[-1]["content"] += "\n\n" + m["content"]
            ours = False
        else:
            out.append(m)
            ours = False
    return out


def expected(template, messages, with_tools, traits):
    messages, tools = prepared(messages, with_tools, traits)
    try:
        texts, _ = chat_template_utils.render_jinja_template(
            conversations=[messages], tools=tools, chat_template=template,
            add_generation_prompt=True, **chat.TOKENS)
        return texts[0]
    except Exception:  # refused by the template
        return None


def main():
    folder, out, every = pathlib.Path(sys.argv[1]), sys.argv[2], "--all" in sys.argv[3:]
    chat_template_utils.datetime = chat.Noon
    known = dict(TRAITS, **OTHERS) if every else TRAITS
    result = {"tokens": chat.TOKENS, "tools": TOOLS,
              "cases": [{"messages": messages, "tools": tools} for messages, tools in CASES], "templates": []}
    for name, traits in known.items():
        template = OWN[name] if name in OWN else (folder / f"{name}.jinja").read_text()
        result["templates"].append({
            "name": name, "form": traits["form"], "native": traits.get("tools", "variable") != "told",
            "template": template, "expected": [expected(template, m, tools, traits) for m, tools in CASES]})
    with open(out, "w", encoding="utf-8") as file:
        json.dump(result, file, ensure_ascii=False, indent=1)
        file.write("\n")
    for t in result["templates"]:
        print(t["name"], "refused", [i for i, text in enumerate(t["expected"]) if text is None])


if __name__ == "__main__":
    main()
