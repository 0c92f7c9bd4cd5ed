#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The server on a device gives the answers of the host: memories, kept turns, conversations, streams.

Usage: device_serve_test.py PROGRAM DEVICE_PROGRAM MODEL      DEVICE_PROGRAM: with `--device cuda`, emulated or not
"""
import contextlib
import http.client
import json
import re
import subprocess
import sys
import tempfile
import threading

TEXT = "".join(f"The old prince number {i} walked along the river and closed door {i * 7 % 31}. " for i in range(30))


@contextlib.contextmanager
def server(program, model, memories, *flags):
    process = subprocess.Popen([program, "serve", "--model", model, "--memories", memories, "--port", "0", "--threads",
                                "1", "--max-tokens", "2000", *flags], stderr=subprocess.PIPE, text=True)
    try:
        for line in process.stderr:
            place = re.search(r"http://127\.0\.0\.1:(\d+)", line)
            if place:
                break
        else:
            raise SystemExit("device_serve_test: the server did not start")
        threading.Thread(target=process.stderr.read, daemon=True).start()
        yield int(place[1])
    finally:
        process.terminate()
        process.wait(timeout=60)


def ask(port, path, body):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=900)
    connection.request("POST", "/v1/" + path, json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    text = response.read().decode()
    if response.status >= 300:
        raise SystemExit(f"device_serve_test: {path}: {response.status} {text[:500]}")
    return text if body.get("stream") else json.loads(text)


def answers(port):
    """What a server says to a fixed list of requests."""
    said = []
    completion = lambda **body: ask(port, "completions", {"max_tokens": 6, "temperature": 0, **body})
    text = lambda answer: answer["choices"][0]["text"]
    said.append(text(completion(prompt="The king said")))
    ask(port, "memories", {"name": "book"})
    ask(port, "memories/book/read", {"text": TEXT})
    for prompt in ("The old prince number", "And the door"):
        said.append(text(completion(prompt=prompt, memory="book")))
    said.append(text(completion(prompt="The river", memory="book", store=True)))
    said.append(text(completion(prompt="The river", memory="book")))
    stream = completion(prompt="And the door", memory="book", stream=True)
    said.append("".join(json.loads(line[6:])["choices"][0]["text"] for line in stream.splitlines()
                        if line.startswith("data: {")))
    said.append(text(completion(prompt="The king said")))
    said.append(text(completion(prompt="Which door did the prince close?", memory="book", reread=2)))
    # from passages alone, and then from the memory again
    alone = completion(prompt="Which door did the prince close?", memory="book", reread="alone", include=["recall"])
    if not alone["choices"][0].get("passages_only"):
        raise SystemExit(f"device_serve_test: the memory was read too: {alone}")
    said.append(text(alone))
    said.append(text(completion(prompt="The river", memory="book")))
    return said


def at_once(port):
    """What a server says to requests that come together."""
    prompts = [("The old prince number", "book"), ("And the door", "book"), ("The king said", None), ("The river", "book")]
    said = [None] * len(prompts)

    def one(i, prompt, memory):
        body = {"prompt": prompt, "max_tokens": 6, "temperature": 0, **({"memory": memory} if memory else {})}
        said[i] = ask(port, "completions", body)["choices"][0]["text"]

    threads = [threading.Thread(target=one, args=(i, *prompt)) for i, prompt in enumerate(prompts)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return said


def main():
    program, device_program, model = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        with server(program, model, folder + "/host") as port:
            host = answers(port)
            together = at_once(port)
        with server(device_program, model, folder + "/device", "--device", "cuda") as port:
            device = answers(port)
        # a memory that the device kept is the host's to go on with
        with server(program, model, folder + "/device") as port:
            after = ask(port, "completions", {"prompt": "The river", "memory": "book", "max_tokens": 6,
                                              "temperature": 0})["choices"][0]["text"]
        with server(device_program, model, folder + "/device", "--device", "cuda", "--parallel", "3") as port:
            device_together = at_once(port)
            with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
                connection.request("GET", "/metrics")
                metrics = connection.getresponse().read().decode()
    print(json.dumps({"host": host, "device": device, "after": after, "together": together,
                      "device together": device_together}, indent=1))
    if host != device or after != host[4] or together != device_together:
        raise SystemExit("device_serve_test: the answers differ")
    sequences = re.search(r"^episodic_sequences (\d+)", metrics, re.M)
    if not sequences or int(sequences[1]) < 2:
        raise SystemExit(f"device_serve_test: no two sequences at once: {sequences and sequences[0]}")


if __name__ == "__main__":
    main()
