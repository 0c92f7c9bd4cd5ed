# SPDX-License-Identifier: Apache-2.0
"""usage: langchain_client_test.py PROGRAM: langchain-openai, and langchain-anthropic where it is, talk to `PROGRAM serve`."""
import sys

from served import KEY, ROOT, client_library, serving

langchain = client_library("langchain_openai")

with serving(sys.argv[1], "--encoder", ROOT / "tests/model/sentence_encoder/tiny") as url:
    chat = langchain.ChatOpenAI(base_url=f"{url}/v1", api_key=KEY, model="tiny", max_tokens=8, max_retries=0, temperature=0)
    whole = chat.invoke("Who is it?")
    assert whole.content and whole.usage_metadata["output_tokens"] > 0, whole
    assert "".join(part.content for part in chat.stream("Who is it?")) == whole.content
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
