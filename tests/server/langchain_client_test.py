# SPDX-License-Identifier: Apache-2.0
"""usage: langchain_client_test.py PROGRAM: langchain-openai, and langchain-anthropic where it is, talk to `PROGRAM serve`."""
import sys

from served import KEY, ROOT, client_library, serving

langchain = client_library("langchain_openai")

WEATHER = {"type": "function", "function": {"name": "weather", "description": "of a town", "parameters": {
    "type": "object", "properties": {"town": {"enum": ["Rome", "Oslo"]}}, "required": ["town"], "additionalProperties": False}}}


def calls(chat):
    """A call that must be made, whole and as a stream; and the conversation behind its result."""
    bound = chat.bind_tools([WEATHER], tool_choice="any", parallel_tool_calls=False)
    message = bound.invoke("How warm is it in Rome?")
    assert [call["name"] for call in message.tool_calls] == ["weather"], message
    assert message.tool_calls[0]["args"]["town"] in ("Rome", "Oslo"), message
    whole = None
    for part in bound.stream("How warm is it in Rome?"):
        whole = part if whole is None else whole + part
    assert whole.tool_calls[0]["args"] == message.tool_calls[0]["args"], whole
    result = {"role": "tool", "tool_call_id": message.tool_calls[0]["id"], "content": "31 degrees"}
    answer = chat.invoke([{"role": "user", "content": "How warm is it in Rome?"}, message, result])
    assert answer.text and not answer.tool_calls, answer


with serving(sys.argv[1], "--encoder", ROOT / "tests/model/sentence_encoder/tiny") as url:
    chat = langchain.ChatOpenAI(base_url=f"{url}/v1", api_key=KEY, model="tiny", max_tokens=8, max_retries=0, temperature=0)
    whole = chat.invoke("Who is it?")
    assert whole.content and whole.usage_metadata["output_tokens"] > 0, whole
    assert "".join(part.content for part in chat.stream("Who is it?")) == whole.content
    for responses in (False, True):
        calls(langchain.ChatOpenAI(base_url=f"{url}/v1", api_key=KEY, model="tiny", max_tokens=100, max_retries=0,
                                   temperature=0, use_responses_api=responses))
    encoder = langchain.OpenAIEmbeddings(
        base_url=f"{url}/v1", api_key=KEY, model="tiny", check_embedding_ctx_length=False)
    assert len(encoder.embed_query("a door")) == len(encoder.embed_documents(["a king"])[0]) > 1
    try:
        from langchain_anthropic import ChatAnthropic
    except ImportError:
        print("without langchain-anthropic")
    else:
        other = ChatAnthropic(base_url=url, api_key=KEY, model="tiny", max_tokens=8, max_retries=0, temperature=0)
        assert other.invoke("Who is it?").content == whole.content
        assert "".join(part.text for part in other.stream("Who is it?")) == whole.content
        calls(ChatAnthropic(base_url=url, api_key=KEY, model="tiny", max_tokens=100, max_retries=0, temperature=0))
