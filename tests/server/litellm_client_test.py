# SPDX-License-Identifier: Apache-2.0
"""usage: litellm_client_test.py PROGRAM: litellm talks to `PROGRAM serve` as to OpenAI and as to Anthropic."""
import json
import os
import sys

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it fetches one when it is imported

from served import KEY, ROOT, client_library, serving  # noqa: E402

litellm = client_library("litellm")
litellm.telemetry = False

WEATHER = {"type": "function", "function": {"name": "weather", "description": "of a town", "parameters": {
    "type": "object", "properties": {"town": {"enum": ["Rome", "Oslo"]}}, "required": ["town"], "additionalProperties": False}}}
TURN = [{"role": "user", "content": "Who is it?"}]

with serving(sys.argv[1], "--encoder", ROOT / "tests/model/sentence_encoder/tiny") as url:
    texts = []
    for model, base in (("openai/tiny", f"{url}/v1"), ("anthropic/tiny", url)):
        asked = dict(model=model, api_base=base, api_key=KEY, messages=TURN, max_tokens=8, timeout=120)
        whole = litellm.completion(**asked)
        text = whole.choices[0].message.content
        assert text and whole.usage.completion_tokens > 0, whole
        parts = [part.choices[0].delta.content or "" for part in litellm.completion(**asked, stream=True)]
        assert "".join(parts) == text, (parts, text)
        texts.append(text)
        must = dict(asked, max_tokens=100, tools=[WEATHER], tool_choice="required", parallel_tool_calls=False)
        message = litellm.completion(**must).choices[0].message
        assert [call.function.name for call in message.tool_calls] == ["weather"], message
        pieces = [call.function.arguments or "" for part in litellm.completion(**must, stream=True)
                  for call in part.choices[0].delta.tool_calls or []]
        assert json.loads("".join(pieces)) == json.loads(message.tool_calls[0].function.arguments), (pieces, message)
        result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "31 degrees"}
        answer = litellm.completion(**dict(asked, messages=[*TURN, message.model_dump(), result], tools=[WEATHER]))
        assert answer.choices[0].message.content, answer
    assert texts[0] == texts[1], texts
    vectors = litellm.embedding(model="openai/tiny", api_base=f"{url}/v1", api_key=KEY, input=["a door", "a king"])
    assert len(vectors.data) == 2 and len(vectors.data[0]["embedding"]) > 1, vectors
