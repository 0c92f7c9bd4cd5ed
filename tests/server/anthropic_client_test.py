# SPDX-License-Identifier: Apache-2.0
"""usage: anthropic_client_test.py PROGRAM: Anthropic's own client talks to `PROGRAM serve`, unmodified."""
import asyncio
import sys

from served import KEY, asked, client_library, serving

anthropic = client_library("anthropic")

TURN = [{"role": "user", "content": "Who is it?"}]


def answers(client):
    message = client.messages.create(model="tiny", max_tokens=8, system="Be brief.", messages=TURN)
    assert message.role == "assistant" and message.type == "message", message
    assert message.content[0].type == "text" and message.content[0].text, message
    assert message.stop_reason in ("max_tokens", "end_turn") and message.stop_sequence is None, message
    counted = client.messages.count_tokens(model="tiny", system="Be brief.", messages=TURN)
    usage = message.usage
    assert counted.input_tokens == usage.input_tokens + usage.cache_read_input_tokens, (counted, usage)
    assert 0 < usage.output_tokens <= 8, usage
    return message


def streams(client, whole):
    with client.messages.stream(model="tiny", max_tokens=8, system="Be brief.", messages=TURN) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == final.content[0].text == whole.content[0].text, (text, final, whole)
    assert final.stop_reason == whole.stop_reason, final
    assert final.usage.output_tokens == whole.usage.output_tokens, final
    stop = text[2:5]
    stopped = client.messages.create(model="tiny", max_tokens=8, system="Be brief.", messages=TURN, stop_sequences=[stop])
    assert stopped.stop_reason == "stop_sequence" and stopped.stop_sequence == stop, stopped
    assert stopped.content[0].text == text[:text.find(stop)], stopped


def conversation(client):
    blocks = [{"type": "text", "text": "Who is it?", "cache_control": {"type": "ephemeral"}}]
    turns = [{"role": "user", "content": blocks}]
    for _ in range(3):
        message = client.messages.create(model="tiny", max_tokens=4, messages=turns)
        turns += [{"role": "assistant", "content": message.content}, {"role": "user", "content": "And then?"}]
    assert message.usage.cache_read_input_tokens > 0, message


def tools(client):
    """The template of this model has no form for tools; the general one is described to it."""
    known = [{"name": "weather", "description": "of a town", "input_schema": {
        "type": "object", "properties": {"town": {"enum": ["Rome", "Oslo"]}}, "required": ["town"], "additionalProperties": False}}]
    asked = dict(model="tiny", max_tokens=100, tools=known,
                 tool_choice={"type": "any", "disable_parallel_tool_use": True})
    turns = [{"role": "user", "content": "How warm is it in Rome?"}]
    message = client.messages.create(messages=turns, **asked)
    assert message.stop_reason == "tool_use" and len(message.content) == 1, message
    call = message.content[0]
    assert call.type == "tool_use" and call.name == "weather" and call.input["town"] in ("Rome", "Oslo"), message
    with client.messages.stream(messages=turns, **asked) as stream:
        inputs = [event.partial_json for event in stream if event.type == "input_json"]
        final = stream.get_final_message()
    assert "".join(inputs) and final.content[0].input == call.input and final.stop_reason == "tool_use", final
    asked["tool_choice"] = {"type": "auto"}
    turns += [{"role": "assistant", "content": message.content}]

    def read(result):
        results = [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": result}]}]
        answer = client.messages.create(messages=turns + results, **asked)
        counted = client.messages.count_tokens(model="tiny", tools=known, messages=turns + results)
        assert counted.input_tokens == answer.usage.input_tokens + answer.usage.cache_read_input_tokens, answer
        assert answer.content[0].type == "text" and answer.stop_reason != "tool_use", answer
        return counted.input_tokens
    assert read("31 degrees and rain from noon on") > read("31") + 3


def memories(client, url):
    asked(f"{url}/v1/memories", {"name": "book"})
    kept = client.messages.create(model="tiny", max_tokens=4, messages=TURN, extra_body={"memory": "book", "store": True})
    tokens = asked(f"{url}/v1/memories/book")["tokens"]
    assert tokens >= kept.usage.input_tokens + kept.usage.output_tokens, (tokens, kept)
    by_header = client.messages.create(
        model="tiny", max_tokens=4, messages=TURN, extra_headers={"X-Episodic-Memory": "book"},
        extra_body={"include": ["recall"]})
    assert isinstance(by_header.model_extra["recalled"], list), by_header


def errors(client, url):
    for wrong, kind in (
        (lambda: client.messages.create(model="tiny", max_tokens=0, messages=TURN), anthropic.BadRequestError),
        (lambda: client.messages.create(model="tiny", max_tokens=4, messages=TURN, tools=[{"name": "f g", "input_schema": {}}]),
         anthropic.BadRequestError),
        (lambda: client.messages.create(model="tiny", max_tokens=4, messages=TURN, extra_body={"memory": "none"}),
         anthropic.NotFoundError),
        (lambda: anthropic.Anthropic(base_url=url, api_key="wrong", max_retries=0).messages.create(
            model="tiny", max_tokens=4, messages=TURN), anthropic.AuthenticationError),
    ):
        try:
            wrong()
        except kind as error:
            assert error.body["type"] == "error" and error.body["error"]["message"], error.body
        else:
            raise AssertionError(f"no {kind}")


async def asynchronous(url, whole):
    async with anthropic.AsyncAnthropic(base_url=url, auth_token=KEY, api_key=None, max_retries=0) as client:
        async def one():
            async with client.messages.stream(model="tiny", max_tokens=8, system="Be brief.", messages=TURN) as stream:
                return "".join([text async for text in stream.text_stream])
        assert set(await asyncio.gather(*(one() for _ in range(4)))) == {whole.content[0].text}


with serving(sys.argv[1], "--parallel", "2") as address:
    with anthropic.Anthropic(base_url=address, api_key=KEY, max_retries=0, timeout=120) as first:
        answer = answers(first)
        streams(first, answer)
        conversation(first)
        tools(first)
        memories(first, address)
        errors(first, address)
    asyncio.run(asynchronous(address, answer))
