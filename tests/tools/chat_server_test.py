# SPDX-License-Identifier: Apache-2.0
"""usage: chat_server_test.py PROGRAM MODEL EDITS: `episodic chat --server` with a running `episodic serve`.

PROGRAM, MODEL and EDITS are as those of chat_terminal_test.py."""
import contextlib
import http.server
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import tempfile
import threading
import time
import unittest
import urllib.request

from chat_terminal_test import CTRL, MODEL, PROGRAM, TEMPLATE, Terminal

KEY = "key-of-the-test"
PATIENCE = 120


class Server:
    """`episodic serve` on the model of a folder."""

    def __init__(self, folder, *flags, port=0):
        self.log = folder / "serve.log"
        with self.log.open("w") as err:
            self.process = subprocess.Popen(
                [PROGRAM, "serve", "--model", folder / "model", "--memories", folder / "memories", "--threads", "1",
                 "--max-new", "4", "--temperature", "0", "--port", str(port), *flags],
                stdin=subprocess.DEVNULL, stderr=err, env={**os.environ, "OMP_WAIT_POLICY": "passive"})
        until = time.monotonic() + PATIENCE
        while not (found := re.search(r"at http://127\.0\.0\.1:(\d+)/v1", self.log.read_text())):
            if self.process.poll() is not None or time.monotonic() > until:
                raise AssertionError(self.log.read_text())
            time.sleep(0.02)
        self.port = int(found[1])
        self.url = f"http://127.0.0.1:{self.port}"

    def end(self, how=signal.SIGTERM):
        self.process.send_signal(how)
        self.process.wait(PATIENCE)

    def ask(self, path, body=None, key=None):
        headers = {"Content-Type": "application/json"} | ({"x-api-key": key} if key else {})
        request = urllib.request.Request(self.url + path, json.dumps(body).encode() if body else None, headers)
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return answer.read().decode()


class RemoteTerminal(Terminal):
    def __init__(self, folder, url, *flags):
        self.url = url
        super().__init__(folder, *flags)

    def arguments(self, folder):
        return ["--server", self.url]


class ChatWithAServer(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)
        (self.folder / "model").mkdir()
        for file in MODEL.iterdir():
            if file.name != "tokenizer_config.json":
                (self.folder / "model" / file.name).symlink_to(file.resolve())
        config = json.loads((MODEL / "tokenizer_config.json").read_text()) | {"chat_template": TEMPLATE}
        (self.folder / "model" / "tokenizer_config.json").write_text(json.dumps(config))

    @contextlib.contextmanager
    def serving(self, *flags, **how):
        server = Server(self.folder, *flags, **how)
        try:
            yield server
        finally:
            server.end()

    def command(self, url, *flags):
        return [PROGRAM, "chat", "--server", url, "--no-history", "--json", self.folder / "json", *flags]

    def chat(self, url, lines, *flags, status=0, key=None):
        """What it says, and its JSON."""
        environment = {**os.environ, **({"EPISODIC_API_KEY": key} if key else {})}
        (self.folder / "json").unlink(missing_ok=True)
        done = subprocess.run(self.command(url, *flags), input="".join(line + "\n" for line in lines), text=True,
                              capture_output=True, timeout=PATIENCE, env=environment)
        self.assertEqual(done.returncode, status, done.stderr)
        said = json.loads((self.folder / "json").read_text()) if (self.folder / "json").exists() else None
        return done, said

    def test_a_conversation_that_is_kept_nowhere_goes_over_whole(self):
        with self.serving() as server:
            done, said = self.chat(server.url + "/v1", ["Who came?", "", "  And\\", "then?", "/memory"], "--system", "Be brief.")
            turns = said["turns"]
            self.assertEqual([t["message"] for t in turns], ["Who came?", "  And\nthen?"])
            messages = [{"role": "system", "content": "Be brief."}]
            for turn in turns:
                messages.append({"role": "user", "content": turn["message"]})
                answer = json.loads(server.ask("/v1/chat/completions", {"messages": messages}))
                self.assertEqual(turn["text"], answer["choices"][0]["message"]["content"])
                self.assertEqual(turn["prompt_tokens"], answer["usage"]["prompt_tokens"])
                self.assertEqual(turn["finish"], answer["choices"][0]["finish_reason"])
                messages.append({"role": "assistant", "content": turn["text"]})
                self.assertIn(turn["text"] + "\n", done.stdout)
            self.assertIn("5 messages, which go over with each new one; nothing is kept", done.stdout)
            self.assertIn("cut at 4 tokens", done.stderr)
            self.assertEqual(json.loads(server.ask("/v1/memories"))["data"], [])
            # flags of sampling go over, and those that were not given do not
            _, drawn = self.chat(server.url, ["Who?"], "--max-new", "2", "--seed", "3", "--stop", "zzz")
            self.assertEqual((drawn["seed"], len(drawn["turns"])), (3, 1))
            _, held = self.chat(server.url, ["Who?"], "--json-schema", self.put("schema", '{"enum": ["you"]}'))
            self.assertEqual(held["turns"][0]["text"], '"you"')
            # a command that needs a memory says so, and the conversation goes on
            done, said = self.chat(server.url, ["/fork a", "/forget a", "/save", "/nothing", "/read none", "Who?"])
            self.assertEqual(len(said["turns"]), 1)
            self.assertEqual(len(said["refused"]), 5)
            for line in said["refused"][:3]:
                self.assertIn("not kept; begin it with --memory-name NAME", line)

    def put(self, name, text):
        (self.folder / name).write_text(text)
        return str(self.folder / name)

    def test_a_conversation_is_kept_in_a_memory_by_name(self):
        with self.serving("--memory", '{"n_local": 32, "chunk": 32, "n_init": 4}') as server:
            book = self.put("book.txt", "The pass key of the old house is 4712. " * 12 + "Nobody knew the harbour. " * 30)
            lines = [f"/read {book}", "/memory", "Who came?", "/recall", "/memories", "/fork draft", "/save", "/memory"]
            done, said = self.chat(server.url, lines, "--memory-name", "talks")
            self.assertIn("talks is a new memory of the server", done.stderr)
            self.assertIn("of text wait for your next message", done.stdout)
            self.assertRegex(done.stdout, r"events were recalled for the last answer\n *attention +rank")
            self.assertRegex(done.stdout, r"memories of http://[0-9.:]+\n  talks .* this conversation\n")
            self.assertIn("draft has this conversation up to here; this one goes on in talks", done.stdout)
            self.assertTrue(said["turns"][0]["recalled"])
            kept = json.loads(server.ask("/v1/memories/talks"))
            self.assertGreater(kept["tokens"], said["turns"][0]["prompt_tokens"])
            self.assertEqual(json.loads(server.ask("/v1/memories/draft"))["tokens"], kept["tokens"])
            self.assertIn(f"kept in talks of {server.url}", done.stdout)
            # the next process goes on behind it: only the new turn is read
            _, said = self.chat(server.url, ["And then?"], "--memory-name", "talks")
            self.assertLess(said["turns"][0]["prompt_tokens"], 40)
            self.assertGreater(json.loads(server.ask("/v1/memories/talks"))["tokens"], kept["tokens"])
            # by its text, with other white space; an event; tokens
            done, said = self.chat(server.url, ["/forget  pass key\tof the old", "/forget 1", "/forget 60:70", "/forget nobody said",
                                                "/forget 999", "/forget \"\""], "--memory-name", "draft")
            self.assertRegex(done.stdout, r"^\d+ events forgotten: 0, 1")
            self.assertEqual(len(said["refused"]), 3)
            self.assertIn("'nobody said' is in no event", said["refused"][0])
            events = json.loads(server.ask("/v1/memories/draft/events?limit=1000"))["data"]
            self.assertTrue(any(e["forgotten"] for e in events))
            self.assertFalse(any("pass key" in e["text"] for e in events))
            self.assertTrue(any("pass key" in e["text"]
                                for e in json.loads(server.ask("/v1/memories/talks/events?limit=1000"))["data"]))

    def test_a_key_and_a_socket(self):
        path = self.folder / "s"
        keys = self.put("keys", f"# mine\n{KEY}\n")
        os.chmod(keys, 0o600)
        with self.serving("--socket", str(path), "--api-keys", keys) as server:
            url = f"unix:{path}"
            for flags, key in (("--api-key-file", keys), None), ((), KEY):
                _, said = self.chat(url, ["Who?"], *flags, key=key)
                self.assertEqual(len(said["turns"]), 1)
            for key in None, "another":
                done, _ = self.chat(url, ["Who?"], status=1, key=key)
                self.assertEqual(done.stdout, "")
                self.assertEqual(done.stderr.count("\n"), 1)
                self.assertRegex(done.stderr, "the API key is missing or wrong.*--api-key-file")
            self.assertIn(f"at {server.url}", server.log.read_text())

    def test_a_server_that_is_away_comes_back_or_never_was(self):
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            done, _ = self.chat(f"http://127.0.0.1:{unused.getsockname()[1]}", ["Who?"], status=1)
        self.assertRegex(done.stderr, r"^episodic: http://127.0.0.1:\d+: nobody answers there; start it")
        self.assertEqual(done.stderr.count("\n"), 1)
        done, _ = self.chat(f"unix:{self.folder}/none", ["Who?"], status=1)
        self.assertIn("nobody answers there", done.stderr)
        server = Server(self.folder)
        chat = subprocess.Popen(self.command(server.url, "--memory-name", "m"), text=True, stdin=subprocess.PIPE,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE)

        def say(line, until):
            chat.stdin.write(line + "\n")
            chat.stdin.flush()
            while until not in (heard := chat.stderr.readline()):
                self.assertTrue(heard, "the chat ended")

        say("Who came?", "cut at 4 tokens")
        server.end(signal.SIGKILL)
        say("Is anybody there?", "nobody answers there")
        server = Server(self.folder, port=server.port)
        say("And now?", "cut at 4 tokens")
        chat.stdin.close()
        self.assertEqual(chat.wait(PATIENCE), 0)
        chat.stdout.close()
        chat.stderr.close()
        said = json.loads((self.folder / "json").read_text())
        self.assertEqual([t["message"] for t in said["turns"]], ["Who came?", "And now?"])
        self.assertEqual(len(said["refused"]), 1)
        self.assertEqual(json.loads(server.ask("/v1/memories/m"))["generation"], 3)  # made, and two turns
        server.end()

    def test_a_server_that_loads_ends_early_or_is_none(self):
        """One that says what the test says."""
        answers = []

        class Says(http.server.BaseHTTPRequestHandler):
            def answer(self):
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                status, body = answers.pop(0)
                self.send_response(status)
                self.end_headers()  # without a length: it ends with the connection
                self.wfile.write(body.encode())
            do_GET = do_POST = answer

            def log_message(self, *args):
                pass

        models = (200, '{"data": [{"id": "tiny"}]}')
        loading = (503, json.dumps({"error": {"message": "the model is still being loaded"}}))

        def event(content, finish=None):
            return "data: " + json.dumps({"choices": [{"delta": {"content": content}, "finish_reason": finish}]}) + "\n\n"

        with http.server.HTTPServer(("127.0.0.1", 0), Says) as fake:
            threading.Thread(target=fake.serve_forever, daemon=True).start()
            url = f"http://127.0.0.1:{fake.server_port}"
            answers[:] = [loading, loading, models, models,
                          (200, event("Yes") + event("", "stop") + "data: [DONE]\n\n"),
                          (200, event("half an answ")),
                          (200, event("half") + 'data: {"error": {"message": "no memory\\u001b"}}\n\n'),
                          (200, "data: nothing\n\n"), (200, "data: [1]\n\n"), (502, "<html>"),
                          (429, json.dumps({"error": {"message": "64 requests wait already"}}))]
            done, said = self.chat(url, [f"message {n}" for n in range(7)])
            self.assertEqual(answers, [])
            self.assertEqual(done.stderr.count("loads its model; waiting"), 1)
            self.assertEqual([t["text"] for t in said["turns"]], ["Yes"])
            refused = "\n".join(said["refused"])
            self.assertEqual(len(said["refused"]), 6, refused)
            for part in ("ended before the answer was complete", "no memory", "not of the form", "status 502",
                         "64 requests wait already"):
                self.assertIn(part, refused)
            self.assertNotIn("\x1b", done.stderr)
            for body in "[]", "{}", "<html>", '{"data": [{"id": 3}]}':
                answers[:] = [(200, body), (200, body)]
                done, _ = self.chat(url, ["Who?"], status=1)
                self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
            fake.shutdown()

    def test_flags_that_say_nothing_to_a_server_are_refused(self):
        away = "http://127.0.0.1:1"
        for flags, why in (
                (["--model", "m"], "--model: says nothing with --server"),
                (["--memory-dir", "m"], "--memory-dir: says nothing with --server"),
                (["--quantize", "q8_0"], "--quantize: says nothing with --server"),
                (["--threads", "2"], "--threads: says nothing with --server"),
                (["--temperature", "-1"], "temperature")):
            done, _ = self.chat(away, [], *flags, status=1)
            self.assertIn(why, done.stderr)
        for url in ("https://127.0.0.1", "127.0.0.1:8080", "http://", "http://a:b", "http://a:70000", "http://a/b", "unix:"):
            done, _ = self.chat(url, [], status=1)
            self.assertRegex(done.stderr, "is no address of a server")
        done = subprocess.run([PROGRAM, "chat", "--memory-name", "m", "--model", "x"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 2)
        done = subprocess.run([PROGRAM, "chat"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 2)
        self.assertIn("--model is required, or the address of a server with --server", done.stderr)

    def test_ctrl_c_stops_an_answer_and_the_next_line_is_asked_for(self):
        with self.serving() as server:
            for flags, text in ((), "episodic: stopped\r?\n"), (("--memory-name", "m"), "has nothing of this turn"):
                chat = RemoteTerminal(self.folder, server.url, "--ignore-eos", "--max-new", "90000", "--json",
                                      str(self.folder / "json"), *flags)
                chat.at_prompt().type("Who?\r")
                chat.wait(r"\n[^\n]{20}")
                chat.type(CTRL["C"])
                chat.wait(text)
                self.assertEqual(chat.end(CTRL["D"]), 0)
                turns = json.loads((self.folder / "json").read_text())["turns"]
                self.assertEqual([t["finish"] for t in turns], ["cancelled"])
            until = time.monotonic() + PATIENCE
            while "episodic_requests_in_flight 0\n" not in server.ask("/metrics"):
                self.assertLess(time.monotonic(), until, "it still answers nobody")
                time.sleep(0.05)
            self.assertIn("episodic_requests_given_up_total 2\n", server.ask("/metrics"))
            self.assertEqual(json.loads(server.ask("/v1/memories/m"))["tokens"], 0)


if __name__ == "__main__":
    unittest.main(argv=["chat_server_test.py"], verbosity=2)
