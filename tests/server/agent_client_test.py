# SPDX-License-Identifier: Apache-2.0
"""usage: agent_client_test.py PROGRAM MODEL: a stranger's agent, written with OpenAI's own client, against `PROGRAM serve`.

The agent calls a tool and keeps its conversation, by chat completions, by responses and in a conversation of the
server, while the server is stopped and killed (SIGKILL) between its requests and started again on the same folder.
What reached the model is what the server says that it read: its tokens and its prompts.

MODEL is the shipped small model, which calls a tool because tool_choice makes it. With a real one, in the GGUF file that
EPISODIC_REAL_CHAT_MODEL names (scripts/real_model qwen2.5-0.5b), an agent decides by itself, too.

Skipped, in sight, where the package `openai` is not installed; it may also lie in a folder of EPISODIC_PYTHON_CLIENTS.
"""
import json
import os
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from served import client_library, skip  # noqa: E402

openai = client_library("openai")
program, shipped = map(pathlib.Path, sys.argv[1:3])
if not program.exists():
    skip(f"{program} is not built")
from kill_serve import Server, make_model  # noqa: E402

# Hermes' form of calls, which many templates have.
TEMPLATE = (
    "{% if tools %}You may call <tools>{% for t in tools %}{{ t | tojson }}{% endfor %}"
    '</tools> as <tool_call>{"name": ..., "arguments": ...}</tool_call>\n{% endif %}'
    "{% for m in messages %}{{ m.role }}: {{ m.content }}"
    "{% for c in m.tool_calls %}<tool_call>\n{{ c.function | tojson }}\n</tool_call>{% endfor %}{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
TOWNS = {"Rome": "It is 31 degrees in Rome.", "Oslo": "It is 4 degrees in Oslo."}
SCHEMA = {"type": "object", "properties": {"town": {"type": "string", "enum": list(TOWNS)}}, "required": ["town"],
          "additionalProperties": False}
ROUNDS = 4  # of calls, behind which an agent gives up
WHAT = "Tells the temperature in a town."
CHAT_TOOLS = [{"type": "function", "function": {"name": "weather", "description": WHAT, "parameters": SCHEMA}}]
RESPONSE_TOOLS = [{"type": "function", "name": "weather", "description": WHAT, "parameters": SCHEMA}]


def weather(town):
    return TOWNS[town]


class House:
    """A server on one folder, which is stopped or killed and started again between the agent's requests."""

    def __init__(self, model, memories):
        self.model, self.memories, self.ends = model, memories, []
        self.server = Server(program, model, memories, [])

    def client(self):
        """A new one each time: the port is another after a restart."""
        return openai.OpenAI(base_url=f"http://127.0.0.1:{self.server.port}/v1", api_key="none", max_retries=0, timeout=600)

    def restart(self, kill):
        if kill:
            self.server.kill()
        else:
            self.server.stop()
        self.server = Server(program, self.model, self.memories, [])

    def tokens_of(self, text):
        return json.loads(self.server.post("/tokenize", {"content": text}))["count"]


class ChatAgent:
    """Keeps its messages itself, and sends all of them each time."""

    def __init__(self, house, choice, streams=False, then=""):
        """then: what the user says behind each result; small models need it"""
        self.house, self.choice, self.streams, self.then = house, choice, streams, then
        self.messages, self.called = [], []

    def complete(self, **more):
        chat = self.house.client().chat.completions
        asked = dict(model="any", messages=self.messages, tools=CHAT_TOOLS, temperature=0, parallel_tool_calls=False, **more)
        if not self.streams:
            return chat.create(**asked)
        with chat.stream(**asked, stream_options={"include_usage": True}) as stream:
            for _ in stream:
                pass
            try:
                return stream.get_final_completion()
            except openai.LengthFinishReasonError as cut:  # the small model knows no end
                return cut.completion

    def ask(self, question, between):
        self.messages.append({"role": "user", "content": question})
        choice = self.choice
        for _ in range(ROUNDS):
            answer = self.complete(tool_choice=choice, max_tokens=100)
            said = answer.choices[0].message
            self.messages.append(said.model_dump(exclude_none=True, include={"role", "content", "tool_calls"}))
            if not said.tool_calls:
                return said.content, answer.usage.prompt_tokens
            assert answer.choices[0].finish_reason == "tool_calls", answer
            for call in said.tool_calls:
                arguments = json.loads(call.function.arguments)
                self.called.append(arguments)
                self.messages.append({"role": "tool", "tool_call_id": call.id, "content": weather(**arguments)})
            self.messages += [{"role": "user", "content": self.then}] * bool(self.then)
            between()
            choice = "auto"
        raise AssertionError(self.messages)


class ResponsesAgent:
    """Keeps nothing but the name of where it was."""

    def __init__(self, house, choice, conversation=False, streams=False, then=""):
        self.house, self.choice, self.streams, self.then, self.called = house, choice, streams, then, []
        self.place = {"conversation": house.client().conversations.create().id} if conversation else {}

    def respond(self, **asked):
        responses = self.house.client().responses
        asked = dict(model="any", tools=RESPONSE_TOOLS, temperature=0, parallel_tool_calls=False, max_output_tokens=100,
                     **self.place, **asked)
        if self.streams:
            with responses.stream(**asked) as stream:
                for event in stream:
                    if event.type in ("response.completed", "response.incomplete"):
                        response = event.response
        else:
            response = responses.create(**asked)
        if "conversation" not in self.place:
            self.place = {"previous_response_id": response.id}
        return response

    def ask(self, question, between):
        items, choice = [{"role": "user", "content": question}], self.choice
        for _ in range(ROUNDS):
            response = self.respond(input=items, tool_choice=choice)
            calls = [item for item in response.output if item.type == "function_call"]
            if not calls:
                return response.output_text, response.usage.input_tokens
            items = []
            for call in calls:
                arguments = json.loads(call.arguments)
                self.called.append(arguments)
                items.append({"type": "function_call_output", "call_id": call.call_id, "output": weather(**arguments)})
            items += [{"role": "user", "content": self.then}] * bool(self.then)
            between()
            choice = "auto"
        raise AssertionError(self.called)


def chat_agent(house):
    for streams in (False, True):
        agent = ChatAgent(house, "required", streams)
        said, read = agent.ask("How warm is it in Rome?", lambda: house.restart(kill=streams))
        assert said and len(agent.called) == 1, agent.messages
        result = TOWNS[agent.called[0]["town"]]
        # the prompt that the model answered: the server writes it, and it has as many tokens as it says
        shown = {"messages": agent.messages[:-1], "tools": CHAT_TOOLS}
        prompt = json.loads(house.server.post("/apply-template", shown))["prompt"]
        assert prompt.endswith(f"tool: {result}\nassistant:"), prompt
        assert json.loads(house.server.post("/tokenize", shown))["count"] == read, (prompt, read)
        # and the conversation goes on, over a kill
        agent.ask("And in Oslo?", lambda: house.restart(kill=True))
        roles = [m["role"] for m in agent.messages]
        assert roles == ["user", "assistant", "tool", "assistant"] * 2 and len(agent.called) == 2, agent.messages


def responses_agent(house):
    told = None
    for conversation in (False, True):
        for streams in (False, True):
            agent = ResponsesAgent(house, "required", conversation, streams)
            said, read = agent.ask("How warm is it in Rome?", lambda: house.restart(kill=streams))
            result = TOWNS[agent.called[0]["town"]]
            # behind the call the server read the result, and nothing else
            assert said and read == house.tokens_of(f"\ntool: {result}\nassistant:"), (said, read)
            more, read = agent.ask("And in Oslo?", lambda: house.restart(kill=True))
            assert more and len(agent.called) == 2, agent.called
            assert read == house.tokens_of(f"\ntool: {TOWNS[agent.called[1]['town']]}\nassistant:"), read
            # branches and conversations, streams and whole answers, stops and kills: the same words
            told = told or (said, more, agent.called)
            assert told == (said, more, agent.called), (told, said, more, agent.called)
        if conversation:
            kept = list(house.client().conversations.items.list(agent.place["conversation"], order="asc"))
            kinds = [item.type for item in kept]
            assert kinds == ["message", "function_call", "function_call_output", "message"] * 2, kept


def one_call_at_most(house):
    answer = house.client().responses.create(
        model="any", input="How warm is it?", tools=RESPONSE_TOOLS, tool_choice={"type": "function", "name": "weather"},
        parallel_tool_calls=False, max_output_tokens=200)
    assert [item.type for item in answer.output] == ["function_call"] and answer.status == "completed", answer
    assert not answer.parallel_tool_calls and answer.tools[0].name == "weather", answer


def logprobs(house):
    answer = house.client().responses.create(
        model="any", input="Who?", include=["message.output_text.logprobs"], top_logprobs=3, max_output_tokens=5)
    part = answer.output[0].content[0]
    assert "".join(token.token for token in part.logprobs) == part.text, part
    assert all(len(token.top_logprobs) == 3 for token in part.logprobs), part


def real_agent(house):
    """A model that decides by itself."""
    then = "So, how warm is it? Answer in a sentence."
    for agent in (ChatAgent(house, "auto", then=then), ResponsesAgent(house, "auto", then=then),
                  ResponsesAgent(house, "auto", conversation=True, streams=True, then=then)):
        said, _ = agent.ask("How warm is it in Rome?", lambda: house.restart(kill=True))
        print(f"{type(agent).__name__}: called with {agent.called}, said: {said!r}")
        assert agent.called and agent.called[0] == {"town": "Rome"} and "31" in said, (agent.called, said)


def run(model, memories, *parts):
    house = House(model, memories)
    try:
        for part in parts:
            part(house)
        house.server.stop()
    finally:
        house.server.process.kill()
        house.server.process.wait()


with tempfile.TemporaryDirectory(prefix="episodic-agent-") as work:
    work = pathlib.Path(work)
    make_model(shipped, work / "model")
    config = work / "model/tokenizer_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "chat_template": TEMPLATE}))
    run(work / "model", work / "memories", chat_agent, responses_agent, one_call_at_most, logprobs)
    print(f"openai {openai.__version__}: an agent over stops and kills, by chat, responses and conversations")
    if real := os.environ.get("EPISODIC_REAL_CHAT_MODEL"):
        run(pathlib.Path(real), work / "real-memories", real_agent)
    else:
        print("without a real model: EPISODIC_REAL_CHAT_MODEL names none")
