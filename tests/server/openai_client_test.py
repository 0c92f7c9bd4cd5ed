# SPDX-License-Identifier: Apache-2.0
"""usage: openai_client_test.py PROGRAM MODEL: OpenAI's own Python client against `episodic serve`, unmodified.

Skipped, in sight, where the package `openai` is not installed; it may also lie in a folder of EPISODIC_PYTHON_CLIENTS.
"""
import asyncio
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from served import client_library  # noqa: E402

openai = client_library("openai")
program, shipped = map(pathlib.Path, sys.argv[1:3])
if not program.exists():
    print(f"EPISODIC_SKIP: no {program}")
    sys.exit(0)
from kill_serve import Server, make_model  # noqa: E402


def client_of(server, kind=openai.OpenAI):
    return kind(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none", max_retries=0)


def sync_client(server):
    client = client_of(server)
    assert [m.id for m in client.models.list()] == ["model"]
    first = client.responses.create(model="model", input="The king said", instructions="Be brief.", metadata={"who": "me"})
    assert first.output_text and first.status in ("completed", "incomplete"), first
    assert first.usage.output_tokens > 0 and first.metadata == {"who": "me"} and first.store, first
    second = client.responses.create(model="model", input=[{"role": "user", "content": "And then?"}], previous_response_id=first.id)
    assert second.previous_response_id == first.id and second.output_text, second
    assert client.responses.retrieve(second.id).output_text == second.output_text
    items = list(client.responses.input_items.list(second.id))
    assert items[0].content[0].text == "And then?", items
    chat = client.chat.completions.create(model="model", messages=[{"role": "user", "content": "Who?"}])
    assert chat.choices[0].message.content
    return first, second


def streams(server, first, second):
    client = client_of(server)
    names, text = [], ""
    with client.responses.stream(model="model", input="And then?", previous_response_id=first.id) as stream:
        for event in stream:
            names.append(event.type)
            if event.type == "response.output_text.delta":
                text += event.delta
        assert names[0] == "response.created" and names[-1] in ("response.completed", "response.incomplete"), names
    assert text == second.output_text, (text, second.output_text)
    raw = list(client.responses.create(model="model", input="And then?", previous_response_id=first.id, stream=True))
    assert raw[-1].response.output_text == second.output_text, raw[-1]
    assert [event.sequence_number for event in raw] == list(range(len(raw)))


async def async_client(server, first, second):
    client = client_of(server, openai.AsyncOpenAI)
    answers = await asyncio.gather(*(client.responses.create(model="model", input="And then?", previous_response_id=first.id)
                                     for _ in range(4)))
    assert all(answer.output_text == second.output_text for answer in answers), answers
    text = ""
    async for event in await client.responses.create(model="model", input="And then?", previous_response_id=first.id, stream=True):
        if event.type == "response.output_text.delta":
            text += event.delta
    assert text == second.output_text, text


def conversation(server):
    client = client_of(server)
    made = client.conversations.create(metadata={"topic": "kings"}, items=[{"type": "message", "role": "user", "content": "The king said"}])
    first = client.responses.create(model="model", conversation=made.id, input=[])
    assert first.output_text and first.conversation.id == made.id, first
    return made.id, first.output_text


def refusals(server):
    client = client_of(server)
    for call, kind in ((lambda: client.responses.retrieve("resp_00"), openai.NotFoundError),
                       (lambda: client.responses.create(model="model", input="a", previous_response_id="resp_00"), openai.NotFoundError),
                       (lambda: client.responses.create(model="model", input="a", background=True), openai.BadRequestError)):
        try:
            call()
        except kind as e:
            assert e.body["message"], e
        else:
            raise AssertionError(kind)


with tempfile.TemporaryDirectory(prefix="episodic-openai-") as work:
    work = pathlib.Path(work)
    make_model(shipped, work / "model")
    server = Server(program, work / "model", work / "memories", [])
    try:
        first, second = sync_client(server)
        streams(server, first, second)
        asyncio.run(async_client(server, first, second))
        refusals(server)
        talk, said = conversation(server)
        server.stop()
        server = Server(program, work / "model", work / "memories", [])
        client = client_of(server)
        again = client.responses.create(model="model", input="And then?", previous_response_id=first.id)
        assert again.output_text == second.output_text, (again, second)
        assert client.responses.retrieve(second.id).model_dump() == second.model_dump()
        later = client.responses.create(model="model", conversation=talk, input="And then?")
        items = list(client.conversations.items.list(talk, order="asc"))
        assert [item.role for item in items] == ["user", "assistant"] * 2, items
        assert items[1].content[0].text == said and items[3].content[0].text == later.output_text, items
        client.responses.delete(second.id)
        client.conversations.delete(talk)
        server.stop()
    finally:
        server.process.kill()
print(f"openai {openai.__version__}: responses, streams, async, conversations, a restart")
