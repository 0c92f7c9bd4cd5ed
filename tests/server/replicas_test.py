#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two servers over one Redis or Valkey, as examples/deploy starts them: each goes on with what the other one kept, also
after it was killed in the middle of an answer.

Usage: tests/server/replicas_test.py PROGRAM
"""
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time

import kill_serve
from kill_serve import Server, message, text_of
from served import skip

LEASE = 3


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start_store(program, folder):
    port = free_port()
    process = subprocess.Popen(
        [program, "--port", str(port), "--bind", "127.0.0.1", "--dir", folder, "--save", "", "--appendonly", "yes",
         "--maxmemory-policy", "noeviction", "--requirepass", os.environ["REDISCLI_AUTH"]], stdout=subprocess.DEVNULL)
    for _ in range(200):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return process, port
        time.sleep(0.05)
    raise AssertionError("the store did not start")


def respond(server, said, **more):
    body = {"input": said, "max_output_tokens": 6, **more}
    return json.loads(server.post("/v1/responses", body))


def when_free(server, said, **more):
    """Who was killed keeps a conversation until its lease has run out."""
    end = time.monotonic() + 20 * LEASE
    while True:
        status, text = server.ask("POST", "/v1/responses", {"input": said, "max_output_tokens": 6, **more})
        if status == 200:
            return json.loads(text)
        assert status == 409 and time.monotonic() < end, (status, text)
        time.sleep(0.2)


def killed_in_an_answer(server, conversation):
    """Kills a server that is writing in a conversation."""
    body = {"input": "The", "conversation": conversation, "max_output_tokens": 100_000, "ignore_eos": True, "stream": True}
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        text = json.dumps(body)
        connection.sendall((f"POST /v1/responses HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                            f"Content-Length: {len(text)}\r\n\r\n{text}").encode())
        seen = b""
        while b"output_text.delta" not in seen:
            part = connection.recv(65536)
            assert part, seen
            seen += part
        server.kill()


def check_python(model, place):
    """The Python package over the build's library opens the same memory."""
    if "EPISODIC_C_LIBRARY" not in os.environ:
        return
    script = f"import episodic; print(episodic.load({str(model)!r}).open({place!r}, write=False).tokens)"
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert said.returncode == 0 and int(said.stdout) > 0, said


def main():
    program = pathlib.Path(sys.argv[1]).resolve()
    store = shutil.which("redis-server") or shutil.which("valkey-server")
    if not store:
        skip("there is no redis-server here (scripts/setup --tests)")
    os.environ["REDISCLI_AUTH"] = "a password of the test"
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        model = folder / "model"
        kill_serve.make_model(kill_serve.ROOT / "models/recall-2m6", model)
        reference = Server(program, model, folder / "memories", [])
        said = [message(turn) for turn in range(5)]
        wanted, last = [], {}
        for text in said:
            last = respond(reference, text, **({"previous_response_id": last["id"]} if last else {}))
            wanted.append(text_of(last))
        reference.stop()

        process, port = start_store(store, folder)
        try:
            places = [f"redis://127.0.0.1:{port}?cache={folder / name},lease_seconds={LEASE}" for name in ("one", "two")]
            logs = [[], []]
            servers = [Server(program, model, place, log) for place, log in zip(places, logs)]
            conversation = json.loads(servers[0].post("/v1/conversations", {}))["id"]
            chain = None
            for turn, text in enumerate(said[:3]):
                server = servers[turn % 2]
                chain = respond(server, text, **({"previous_response_id": chain} if chain else {}))["id"]
                assert text_of(server.get(f"/v1/responses/{chain}")) == wanted[turn], turn
                assert text_of(respond(servers[1 - turn % 2], text, conversation=conversation)) == wanted[turn], turn
            killed_in_an_answer(servers[0], conversation)
            # The other one goes on: with the responses at once, with the conversation once it is free.
            assert text_of(respond(servers[1], said[3], previous_response_id=chain)) == wanted[3]
            assert text_of(when_free(servers[1], said[3], conversation=conversation)) == wanted[3]
            servers[0] = Server(program, model, places[0], logs[0])
            assert text_of(respond(servers[0], said[4], conversation=conversation)) == wanted[4]
            items = servers[1].get(f"/v1/conversations/{conversation}/items?limit=100")["data"]
            assert len(items) == 2 * len(said), len(items)

            # The store goes too, and comes back with all that it was told.
            process.kill()
            process.wait()
            status, text = servers[1].ask("POST", "/v1/responses", {"input": "a", "previous_response_id": chain})
            assert status >= 500 and "redis://127.0.0.1" in text, (status, text)
            process = subprocess.Popen([*process.args[:2], str(port), *process.args[3:]], stdout=subprocess.DEVNULL)
            end = time.monotonic() + 60
            while servers[1].ask("GET", f"/v1/responses/{chain}")[0] != 200:
                assert time.monotonic() < end
                time.sleep(0.2)
            assert text_of(respond(servers[1], said[3], previous_response_id=chain)) == wanted[3]
            for server in servers:
                server.stop()
            check_python(model, f"redis://127.0.0.1:{port}/{chain}.memory?cache={folder / 'three'}")
        finally:
            process.kill()
            process.wait()
    print("ok")


if __name__ == "__main__":
    main()
