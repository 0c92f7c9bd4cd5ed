#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/server/kill_serve.py: kills `episodic serve` at random moments with sessions open, and shows that nothing is lost.

Usage: tests/server/kill_serve.py [--kills 60] [--sessions 3] [--turns 8] [--seed 1] [--json FILE]
       [--program build/bin/episodic] [--model models/recall-2m6] [--work DIR]

A server that nobody disturbs answers the turns of one session: its answers and token counts are the reference.
Then a server with `--memories` answers the same turns in many sessions at once, of three kinds: chains of responses
(some of them streams), conversations, and memories by name that keep their turns. It is killed (SIGKILL) after a
random while and started again on the same folder. After every start:
  - every response in the folder is there as a whole, and `verify` finds no damage in its memory;
  - a conversation has a whole number of turns, all that were answered and at most one more;
  - a memory has the tokens of a commit, no fewer than of the last turn that was answered;
  - every session goes on from there, and each of its answers is the reference's.
Exit 1 at the first violation.
"""
import argparse
import http.client
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TEMPLATE = ("{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content | trim }}\n{% endfor %}"
            "{% if add_generation_prompt %}assistant:{% endif %}")
WORDS = "the king said that door was closed and nobody of them knew who had come in at night from far away".split()


class Violation(Exception):
    pass


def make_model(shipped, folder):
    """The model with a chat format."""
    folder.mkdir()
    for file in shipped.iterdir():
        if file.name != "tokenizer_config.json":
            (folder / file.name).symlink_to(file.resolve())
    config = json.loads((shipped / "tokenizer_config.json").read_text())
    config["chat_template"] = TEMPLATE
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


class Server:
    def __init__(self, program, model, memories, log):
        self.process = subprocess.Popen(
            [program, "serve", "--model", model, "--memories", memories, "--port", "0", "--parallel", "4", "--threads", "1",
             "--max-new", "8", "--temperature", "0"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.port, self.lines = None, log
        for line in self.process.stderr:
            self.lines.append(line)
            if found := re.search(r"http://127\.0\.0\.1:(\d+)/v1", line):
                self.port = int(found[1])
                break
        if self.port is None:
            raise Violation("the server did not start: " + "".join(self.lines[-5:]))
        threading.Thread(target=lambda: self.lines.extend(self.process.stderr), daemon=True).start()

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self):
        self.process.terminate()
        if self.process.wait(60) != 0:
            raise Violation("the server did not end by itself: " + "".join(self.lines[-5:]))

    def ask(self, method, path, body=None):
        """Status and body. \\throws OSError, HTTPException where the server is gone."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            connection.request(method, path, None if body is None else json.dumps(body), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def get(self, path):
        status, text = self.ask("GET", path)
        if status != 200:
            raise Violation(f"GET {path}: {status} {text}")
        return json.loads(text)

    def post(self, path, body):
        status, text = self.ask("POST", path, body)
        if status not in (200, 201):
            raise Violation(f"POST {path}: {status} {text}")
        return text


def message(turn):
    draw = random.Random(turn)
    return " ".join(draw.choice(WORDS) for _ in range(draw.randint(20, 300)))


def text_of(response):
    return response["output"][0]["content"][0]["text"]


class Chain:
    """Responses, each behind the one before."""

    def __init__(self, draw):
        self.draw, self.last, self.answered = draw, None, 0

    def found(self, server):
        if self.last:
            server.get(f"/v1/responses/{self.last}")

    def turn(self, server):
        body = {"input": message(self.answered), "previous_response_id": self.last}
        if self.draw.random() < 0.5:
            response = json.loads(server.post("/v1/responses", body))
        else:
            text = server.post("/v1/responses", {**body, "stream": True})
            events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]
            if not events or events[-1]["type"] not in ("response.completed", "response.incomplete"):
                if events and events[-1]["type"] == "response.failed":
                    raise Violation(f"failed: {events[-1]}")
                raise OSError("cut off")
            response = events[-1]["response"]
        self.last, self.answered = response["id"], self.answered + 1
        return text_of(response)


class Conversation:
    """One that grows."""

    def __init__(self, draw):
        self.id, self.answered, self.responses = None, 0, []

    def found(self, server):
        if not self.id:
            return
        items = server.get(f"/v1/conversations/{self.id}/items?limit=100&order=asc")["data"]
        if len(items) % 2 or not self.answered <= len(items) // 2 <= self.answered + 1:
            raise Violation(f"{self.id}: {len(items)} items after {self.answered} turns that were answered")
        for turn in range(len(items) // 2):
            if items[2 * turn]["content"][0]["text"] != message(turn):
                raise Violation(f"{self.id}: turn {turn} is another one")
        self.answered = len(items) // 2

    def turn(self, server):
        if not self.id:
            self.id = json.loads(server.post("/v1/conversations", {}))["id"]
        response = json.loads(server.post("/v1/responses", {"input": message(self.answered), "conversation": self.id}))
        self.answered += 1
        self.responses.append(response["id"])
        return text_of(response)


class Memory:
    """One by name, in which turns are kept."""
    tokens = []  # after each turn

    def __init__(self, draw):
        self.name, self.answered, self.made = f"m{draw.getrandbits(60):x}", 0, False

    def found(self, server):
        status, text = server.ask("GET", f"/v1/memories/{self.name}")
        if status == 404 and not self.made:
            return
        if status != 200:
            raise Violation(f"{self.name}: {status} {text}")
        self.made = True
        tokens = json.loads(text)["tokens"]
        turns = [t for t in (self.answered, self.answered + 1) if ([0] + Memory.tokens)[t:t + 1] == [tokens]]
        if not turns:
            raise Violation(f"{self.name}: {tokens} tokens after {self.answered} turns; commits are at {Memory.tokens}")
        self.answered = turns[0]

    def turn(self, server):
        if not self.made:
            server.post("/v1/memories", {"name": self.name})
            self.made = True
        answer = server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": message(self.answered)}],
                                                      "memory": self.name, "store": True})
        self.answered += 1
        return json.loads(answer)["choices"][0]["message"]["content"]


class Player(threading.Thread):
    """Makes turns of one session after another until the server is gone."""

    def __init__(self, server, session, kind, args, reference, draw):
        super().__init__(daemon=True)
        self.server, self.session, self.kind, self.args, self.reference, self.draw = server, session, kind, args, reference, draw
        self.turns, self.violation = 0, None

    def run(self):
        try:
            while True:
                if self.session.answered >= self.args.turns:
                    self.session = self.kind(self.draw)
                turn = self.session.answered
                text = self.session.turn(self.server)
                if text != self.reference[self.kind][turn]:
                    raise Violation(f"{self.kind.__name__}, turn {turn}: {text!r}, the reference says {self.reference[self.kind][turn]!r}")
                self.turns += 1
        except (OSError, http.client.HTTPException):
            pass
        except Exception as e:  # noqa: BLE001
            self.violation = e


def check_folder(args, server, memories, seen):
    """Every response in the folder is whole, and so is its memory."""
    for folder in sorted((memories / ".responses").glob("resp_*")):
        if folder.name in seen:
            continue
        if server.get(f"/v1/responses/{folder.name}")["id"] != folder.name:
            raise Violation(f"{folder}: is another response")
        done = subprocess.run([args.program, "verify", folder / "memory"], capture_output=True, text=True)
        if done.returncode != 0:
            raise Violation(f"{folder}: {done.stderr}")
        seen.add(folder.name)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--sessions", type=int, default=3)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--longest", type=float, default=4, help="seconds until a kill")
    parser.add_argument("--json")
    parser.add_argument("--program", type=pathlib.Path, default=ROOT / "build/bin/episodic")
    parser.add_argument("--model", type=pathlib.Path, default=ROOT / "models/recall-2m6")
    parser.add_argument("--work", type=pathlib.Path)
    args = parser.parse_args()
    work = pathlib.Path(tempfile.mkdtemp(prefix="episodic-kill-serve-", dir=args.work))
    draw, kinds, log = random.Random(args.seed), (Chain, Conversation, Memory), []
    os.environ["OMP_NUM_THREADS"] = "1"
    server = None
    try:
        make_model(args.model, work / "model")
        server = Server(args.program, work / "model", work / "undisturbed", log)
        reference = {}
        for kind in kinds:
            session = kind(draw)
            reference[kind] = []
            for _ in range(args.turns):
                reference[kind].append(session.turn(server))
                if kind is Memory:
                    Memory.tokens.append(server.get(f"/v1/memories/{session.name}")["tokens"])
        server.stop()
        memories, seen, turns = work / "memories", set(), 0
        sessions = [(kind, kind(draw)) for kind in kinds for _ in range(args.sessions)]
        for kill in range(args.kills + 1):
            server = Server(args.program, work / "model", memories, log)
            check_folder(args, server, memories, seen)
            for _, session in sessions:
                session.found(server)
            players = [Player(server, session, kind, args, reference, random.Random(draw.getrandbits(60))) for kind, session in sessions]
            for player in players:
                player.start()
            time.sleep(draw.uniform(0.01, args.longest))
            if server.process.poll() is not None:
                raise Violation("the server ended by itself: " + "".join(log[-5:]))
            if kill < args.kills:
                server.kill()
            else:
                server.stop()
            for player in players:
                player.join(180)
                # what the end of the last server refused was refused in time
                if player.violation and not (kill == args.kills and "is going down" in str(player.violation)):
                    raise player.violation
                turns += player.turns
            sessions = [(player.kind, player.session) for player in players]
        result = {"kills": args.kills, "sessions": len(sessions), "turns": turns, "responses": len(seen)}
        if turns < args.kills // 4:
            raise Violation(f"only {turns} turns were answered: the kills show nothing; give a larger --longest")
        if args.json:
            pathlib.Path(args.json).write_text(json.dumps(result) + "\n")
        print(f"{args.kills} kills, {len(sessions)} sessions at once, {turns} turns answered, {len(seen)} responses: nothing was lost")
    except Violation as e:
        print(f"kill_serve: {e}\n(its folder stays: {work})", file=sys.stderr)
        return 1
    finally:
        if server and server.process.poll() is None:
            server.kill()
    shutil.rmtree(work, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
