#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/server/soak_serve.py: many clients use one `episodic serve` for an hour; nothing is lost, and nothing grows.

Usage: tests/server/soak_serve.py [--seconds 3600] [--clients 8] [--think 1] [--seed 1] [--json FILE]
       [--program build/bin/episodic] [--model models/recall-2m6] [--work DIR]

A server that nobody disturbs answers the turns of one session of each kind: its answers are the reference. Then each
client of another server does one thing after another, with a pause between: turns of a chain of responses, of a
conversation and of a memory that keeps its turns; a book that is read into a memory, asked, forked, edited and deleted;
plain chats, tool calls, requests that are wrong, and connections that the client leaves. Sessions end after some turns,
are looked at and deleted. Three of each client stay idle from the beginning to the end.

  - Every answer is the reference's, so each has the whole of its session before it.
  - Every refusal has the status that it should, in OpenAI's form.
  - At the end each session has all that was said in it, and goes on, on this server and on the next.
  - Once all sessions are deleted, no file of them is left.
  - Resident memory, descriptors, threads and the folder's files are sampled. From the second quarter of the time to the
    last one, their means grow by no more than the bounds below. A run of less than 15 minutes is not held to them: its
    second quarter is still warming up.
Exit 1 at the first violation.
"""
import argparse
import http.client
import json
import os
import pathlib
import random
import shutil
import socket
import sys
import tempfile
import threading
import time

import kill_serve
from kill_serve import ROOT, Chain, Conversation, Memory, Violation, message, text_of

# Growth from the second quarter's mean to the last one's: a share of the former, and so much beside it.
BOUNDS = {
    "resident_kib": (0.05, 8 << 10),
    "descriptors": (0.15, 5),
    "threads": (0, 3),
    "disk_kib": (0.25, 1 << 10),
    "disk_files": (0.25, 50),
}
JUDGED_FROM = 900  # seconds of a run
BOOK = "It was a long road home. The pass key of the old house is 4712. Nobody came in, said the king. "
QUESTION = "Who came in?"
TOOL = {"type": "function", "function": {
    "name": "look", "description": "looks", "parameters": {
        "type": "object", "properties": {"where": {"enum": ["here", "there"]}}, "required": ["where"]}}}


def chat(content, **more):
    return {"messages": [{"role": "user", "content": content}], **more}


def answer_of(text):
    return json.loads(text)["choices"][0]["message"]["content"]


def streamed(text):
    """The answer in a chat's stream."""
    events = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
    if not events or events[-1] != "[DONE]":
        raise Violation(f"a stream without its end: {text[-200:]!r}")
    parts = [json.loads(event) for event in events[:-1]]
    if any("error" in part for part in parts):
        raise Violation(f"a stream with an error: {text[-300:]!r}")
    return "".join(part["choices"][0]["delta"].get("content") or "" for part in parts if part["choices"])


def check(found, wanted, what):
    if found != wanted:
        raise Violation(f"{what}: {found!r}, the reference says {wanted!r}")


# -- sessions: turns whose answers are known -----------------------------------------------------------------------------

class LongChain(Chain):
    """A chain whose responses are all looked at."""

    def __init__(self, draw):
        super().__init__(draw)
        self.ids, self.said = [], []

    def turn(self, server):
        text = super().turn(server)
        self.ids.append(self.last)
        self.said.append(text)
        return text

    def branch(self, server, reference):
        """Answers behind an earlier turn are what they were."""
        if len(self.ids) < 2:
            return
        at = self.draw.randrange(len(self.ids) - 1)
        body = {"input": message(at + 1), "previous_response_id": self.ids[at], "store": False}
        check(text_of(json.loads(server.post("/v1/responses", body))), reference[at + 1], f"a branch at turn {at + 1}")

    def found(self, server):
        for turn, name in enumerate(self.ids):
            check(text_of(server.get(f"/v1/responses/{name}")), self.said[turn], f"{name}, turn {turn}")
            items = server.get(f"/v1/responses/{name}/input_items")["data"]
            check([item["content"][0]["text"] for item in items], [message(turn)], f"{name}, input of turn {turn}")

    def delete(self, server):
        for name in self.ids:
            server.expect(200, "DELETE", f"/v1/responses/{name}")


class LongConversation(Conversation):
    def branch(self, server, reference):
        if self.id:
            server.post(f"/v1/conversations/{self.id}", {"metadata": {"turns": str(self.answered)}})

    def found(self, server):
        answered = self.answered
        super().found(server)
        check(self.answered, answered, f"{self.id}: turns")

    def delete(self, server):
        for name in self.responses:
            server.expect(200, "DELETE", f"/v1/responses/{name}")
        if self.id:
            server.expect(200, "DELETE", f"/v1/conversations/{self.id}")


class LongMemory(Memory):
    def branch(self, server, reference):
        """A question that is not kept changes nothing."""
        if self.made:
            text = server.post("/v1/chat/completions", chat(message(self.answered), memory=self.name))
            check(answer_of(text), reference[self.answered], f"{self.name}: a question at turn {self.answered}")

    def found(self, server):
        answered = self.answered
        super().found(server)
        check(self.answered, answered, f"{self.name}: turns")
        if self.made and not json.loads(server.post(f"/v1/memories/{self.name}/verify", {}))["ok"]:
            raise Violation(f"{self.name}: damaged")

    def delete(self, server):
        if self.made:
            server.expect(200, "DELETE", f"/v1/memories/{self.name}")


KINDS = (LongChain, LongConversation, LongMemory)


class Book:
    """A memory that a text is read into; one step of its life at a time."""
    answers = {}  # to QUESTION: "read", "forgotten"
    tokens = 0

    def __init__(self, draw):
        self.draw, self.name, self.step, self.there = draw, f"b{draw.getrandbits(60):x}", 0, []

    def ask(self, server, name, wanted):
        body = chat(QUESTION, memory=name, include=["recall"])
        if self.draw.random() < 0.5:
            check(streamed(server.post("/v1/chat/completions", {**body, "stream": True})), wanted, f"{name}: a stream")
        else:
            check(answer_of(server.post("/v1/chat/completions", body)), wanted, name)

    def go_on(self, server):
        """\\return False: its life is over."""
        at, fork = f"/v1/memories/{self.name}", self.name + "-fork"
        self.step += 1
        if self.step == 1:
            server.expect(201, "POST", "/v1/memories", {"name": self.name})
            self.there.append(self.name)
        elif self.step == 2:
            text = BOOK * 12
            if self.draw.random() < 0.5:
                read = json.loads(server.post(at + "/read", {"text": text}))
            else:
                said = server.post(at + "/read?stream=true", {"text": text})
                read = json.loads([line for line in said.splitlines() if line.startswith("data: {")][-1][6:])
            if Book.tokens:
                check(read["tokens"], Book.tokens, f"{self.name}: tokens")
            Book.tokens = read["tokens"]
        elif self.step == 3:
            self.ask(server, self.name, Book.answers["read"])
        elif self.step == 4:
            server.expect(201, "POST", at + "/fork", {"name": fork})
            self.there.append(fork)
        elif self.step == 5:
            server.post(at + "/forget", {"tokens": [40, 90]})
            self.ask(server, self.name, Book.answers["forgotten"])
        elif self.step == 6:
            server.expect(200, "DELETE", at)
            self.there.remove(self.name)
            server.expect(404, "GET", at)
        elif self.step == 7:
            self.ask(server, fork, Book.answers["read"])
            server.get(f"/v1/memories/{fork}/events?limit=5")
        else:
            if not json.loads(server.post(f"/v1/memories/{fork}/verify", {}))["ok"]:
                raise Violation(f"{fork}: damaged")
            self.delete(server)
            return False
        return True

    def delete(self, server):
        for name in self.there:
            server.expect(200, "DELETE", f"/v1/memories/{name}")
        self.there = []


# -- requests that are wrong, and clients that leave ---------------------------------------------------------------------

WRONG = [  # method, path, body, status
    ("POST", "/v1/chat/completions", b"", 400),
    ("POST", "/v1/chat/completions", b"{", 400),
    ("POST", "/v1/chat/completions", b"[" * 5000, 400),
    ("POST", "/v1/chat/completions", b'{"messages": "none"}', 400),
    ("POST", "/v1/chat/completions", b'{"messages": []}', 400),
    ("POST", "/v1/chat/completions", b'{"messages": [{"role": "user", "content": "\xff"}]}', 400),
    ("POST", "/v1/chat/completions", json.dumps(chat("a", temperature=-1)).encode(), 400),
    ("POST", "/v1/chat/completions", json.dumps(chat("a", memory="nobody")).encode(), 404),
    ("POST", "/v1/chat/completions", json.dumps(chat("a", memory="../x")).encode(), 400),
    ("POST", "/v1/chat/completions", json.dumps(chat("a", grammar="root ::= (")).encode(), 400),
    ("POST", "/v1/chat/completions", json.dumps(chat("word " * 200000)).encode(), 400),
    ("POST", "/v1/completions", b'{"prompt": [1, 99999999]}', 400),
    ("POST", "/v1/responses", b'{"input": "a", "previous_response_id": "resp_0"}', 404),
    ("POST", "/v1/responses", b'{"input": 7}', 400),
    ("GET", "/v1/conversations/conv_0", None, 404),
    ("POST", "/v1/memories", b'{"name": ".."}', 400),
    ("GET", "/v1/memories/nobody", None, 404),
    ("DELETE", "/v1/memories/nobody", None, 404),
    ("GET", "/v1/nothing", None, 404),
    ("PUT", "/v1/models", b"{}", 405),
]


class SoakServer(kill_serve.Server):
    refused = 0  # with an error in its form; a race may lose one

    def ask(self, method, path, body=None):
        """As the one above, but every error must have OpenAI's form."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            raw = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
            connection.request(method, path, raw, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            status, text = answer.status, answer.read().decode()
        finally:
            connection.close()
        if status >= 400:
            SoakServer.refused += 1
            try:
                error = json.loads(text)["error"]
                fits = isinstance(error["message"], str) and error["message"] and isinstance(error["type"], str)
                fits = fits and {"param", "code"} <= error.keys()
            except (ValueError, KeyError, TypeError):
                fits = False
            if not fits:
                raise Violation(f"{method} {path}: {status} without an error of OpenAI's form: {text[:300]!r}")
        return status, text

    def expect(self, wanted, method, path, body=None):
        status, text = self.ask(method, path, body)
        if status != wanted:
            raise Violation(f"{method} {path}: {status} and not {wanted}: {text[:300]}")
        return text

    def leave(self, draw):
        """A connection that its client gives up: in the head, in the body, while it waits, in the answer."""
        body = json.dumps(chat(message(draw.randrange(9)), stream=draw.random() < 0.5, max_tokens=3000, ignore_eos=True))
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        with socket.create_connection(("127.0.0.1", self.port), timeout=60) as left:
            where = draw.randrange(4)
            left.sendall((head[:40], head + body[:50], head + body, head + body)[where].encode())
            if where == 3:
                left.settimeout(1)  # a whole answer would take longer
                try:
                    left.recv(draw.randint(1, 2000))
                except TimeoutError:
                    pass

    def usage(self, folder):
        """What the process and its folder hold now. Files with several names count once."""
        process = pathlib.Path(f"/proc/{self.process.pid}")
        status = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
        times = (process / "stat").read_text().rsplit(")", 1)[1].split()
        files = {}
        for where, _, names in os.walk(folder):
            for name in names:
                try:
                    found = os.stat(os.path.join(where, name))
                except OSError:  # deleted meanwhile
                    continue
                files[found.st_ino] = found.st_blocks // 2
        return {
            "resident_kib": int(status["VmRSS"].split()[0]),
            "descriptors": len(os.listdir(process / "fd")),
            "threads": int(status["Threads"]),
            "disk_kib": sum(files.values()),
            "disk_files": len(files),
            "cpu_seconds": (int(times[11]) + int(times[12])) / os.sysconf("SC_CLK_TCK"),
        }


# -- clients -------------------------------------------------------------------------------------------------------------

class Client(threading.Thread):
    def __init__(self, server, args, reference, draw, end):
        super().__init__(daemon=True)
        self.server, self.args, self.reference, self.draw, self.end = server, args, reference, draw, end
        self.sessions = {kind: self.begin(kind) for kind in KINDS}
        self.idle = {kind: self.begin(kind) for kind in KINDS}
        self.book = Book(draw)
        self.done, self.violation = {}, None

    def begin(self, kind):
        session = kind(self.draw)
        session.most = self.draw.randint(1, self.args.turns)
        return session

    def turn(self, kind, sessions):
        """One turn; a session that has all its turns is looked at and deleted."""
        session = sessions[kind]
        if sessions is self.sessions and session.answered >= session.most:
            session.found(self.server)
            session.delete(self.server)
            self.count(f"{kind.__name__} ended")
            session = sessions[kind] = self.begin(kind)
        at = session.answered
        check(session.turn(self.server), self.reference[kind][at], f"{kind.__name__}, turn {at}")

    def count(self, what):
        self.done[what] = self.done.get(what, 0) + 1

    def act(self):
        server, draw = self.server, self.draw
        what = draw.choices(("turn", "branch", "book", "chat", "stream", "tools", "wrong", "leave"),
                            (6, 1, 4, 1, 1, 1, 2, 2))[0]
        if what == "turn":
            kind = draw.choice(KINDS)
            self.turn(kind, self.sessions)
            what = f"{kind.__name__} turn"
        elif what == "branch":
            kind = draw.choice(KINDS)
            if self.sessions[kind].answered < self.args.turns:
                self.sessions[kind].branch(server, self.reference[kind])
        elif what == "book":
            if not self.book.go_on(server):
                self.book = Book(draw)
        elif what == "chat":
            answers = json.loads(server.post("/v1/chat/completions", chat(QUESTION, n=2, logprobs=True, memory="shared")))
            for choice in answers["choices"]:
                check(choice["message"]["content"], Book.answers["read"], "behind the memory of all")
        elif what == "stream":
            text = server.post("/v1/chat/completions", chat(QUESTION, stream=True, return_progress=True, memory="shared"))
            check(streamed(text), Book.answers["read"], "a stream behind the memory of all")
        elif what == "tools":
            body = chat("Look there.", tools=[TOOL], tool_choice="required", max_tokens=60)
            call = json.loads(server.post("/v1/chat/completions", body))["choices"][0]["message"]["tool_calls"][0]["function"]
            if call["name"] != "look" or json.loads(call["arguments"])["where"] not in ("here", "there"):
                raise Violation(f"a call of the tool: {call}")
        elif what == "wrong":
            method, path, body, status = draw.choice(WRONG)
            server.expect(status, method, path, body)
        else:
            server.leave(draw)
        self.count(what)

    def run(self):
        try:
            for _ in range(2):
                for kind in KINDS:
                    self.turn(kind, self.idle)
            while time.monotonic() < self.end:
                self.act()
                time.sleep(min(self.draw.expovariate(1 / self.args.think), max(0.0, self.end - time.monotonic())))
        except Exception as e:  # noqa: BLE001
            self.violation = e if isinstance(e, Violation) else Violation(f"{type(e).__name__}: {e}")

    def all_sessions(self):
        return [(kind, session) for sessions in (self.sessions, self.idle) for kind, session in sessions.items()]


def go_on(server, clients, reference):
    """Every session has all that was said in it, and its next answer is the reference's."""
    for client in clients:
        for kind, session in client.all_sessions():
            session.found(server)
            at = session.answered
            if at < len(reference[kind]):
                check(session.turn(server), reference[kind][at], f"{kind.__name__}, turn {at} of a session that goes on")


def references(server, args):
    draw, reference = random.Random(0), {}
    for kind in KINDS:
        session = kind(draw)
        reference[kind] = []
        for _ in range(args.turns + 4):
            reference[kind].append(session.turn(server))
            if kind is LongMemory:
                Memory.tokens.append(server.get(f"/v1/memories/{session.name}")["tokens"])
    book = Book(draw)
    for _ in range(2):
        book.go_on(server)
    Book.answers["read"] = answer_of(server.post("/v1/chat/completions", chat(QUESTION, memory=book.name)))
    server.post(f"/v1/memories/{book.name}/forget", {"tokens": [40, 90]})
    Book.answers["forgotten"] = answer_of(server.post("/v1/chat/completions", chat(QUESTION, memory=book.name)))
    return reference


def growth(samples):
    """Means of the second and the last quarter, by what is measured. \\throws Violation for one beyond its bound"""
    quarter, grown = len(samples) // 4, {}
    if quarter < 1:
        raise Violation("too short: there are fewer than four samples; give more --seconds")
    for what, (share, beside) in BOUNDS.items():
        second, last = (sum(s[what] for s in part) / len(part) for part in (samples[quarter:2 * quarter], samples[-quarter:]))
        grown[what] = {"second_quarter": round(second, 1), "last_quarter": round(last, 1),
                       "bound": round(second * (1 + share) + beside, 1)}
    return grown


def left_over(memories):
    """What lies in the folder once everything is deleted."""
    return sorted(str(path.relative_to(memories)) for path in memories.rglob("*")
                  if path.name not in (".responses", ".conversations", "lock"))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--turns", type=int, default=8, help="most turns of a session")
    parser.add_argument("--think", type=float, default=1, help="seconds between two requests of a client, in the mean")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json")
    parser.add_argument("--program", type=pathlib.Path, default=ROOT / "build/bin/episodic")
    parser.add_argument("--model", type=pathlib.Path, default=ROOT / "models/recall-2m6")
    parser.add_argument("--work", type=pathlib.Path)
    args = parser.parse_args()
    work = pathlib.Path(tempfile.mkdtemp(prefix="episodic-soak-serve-", dir=args.work))
    os.environ["OMP_NUM_THREADS"], os.environ["OMP_WAIT_POLICY"] = "1", "passive"
    log, server, result, samples = [], None, {}, []
    try:
        kill_serve.make_model(args.model, work / "model")
        server = SoakServer(args.program, work / "model", work / "undisturbed", log)
        reference = references(server, args)
        server.stop()
        memories = work / "memories"
        server = SoakServer(args.program, work / "model", memories, log)
        shared = Book(random.Random(0))
        shared.name = "shared"
        for _ in range(2):
            shared.go_on(server)
        draw, began = random.Random(args.seed), time.monotonic()
        clients = [Client(server, args, reference, random.Random(draw.getrandbits(60)), began + args.seconds)
                   for _ in range(args.clients)]
        for client in clients:
            client.start()
        each = min(10.0, args.seconds / 24)
        while time.monotonic() < began + args.seconds and not any(c.violation for c in clients):
            if server.process.poll() is not None:
                raise Violation("the server ended by itself: " + "".join(log[-5:]))
            samples.append({"seconds": round(time.monotonic() - began, 1), **server.usage(memories)})
            time.sleep(each)
        for client in clients:
            client.join(180)
            if client.violation:
                raise client.violation
            if client.is_alive():
                raise Violation("a client hangs")
        done = {}
        for client in clients:
            for what, times in client.done.items():
                done[what] = done.get(what, 0) + times
        result = {"seconds": args.seconds, "clients": args.clients, "think": args.think, "turns": args.turns,
                  "cores": round((samples[-1]["cpu_seconds"] - samples[0]["cpu_seconds"])
                                 / (samples[-1]["seconds"] - samples[0]["seconds"]), 3),
                  "done": dict(sorted(done.items())), "refused": SoakServer.refused}
        go_on(server, clients, reference)
        end = time.monotonic() + 10  # a client that left is noticed within a step
        while "episodic_requests_in_flight 0\n" not in server.ask("GET", "/metrics")[1]:
            if time.monotonic() > end:
                raise Violation("requests are on their way that nobody waits for")
            time.sleep(0.1)
        server.stop()
        server = SoakServer(args.program, work / "model", memories, log)
        go_on(server, clients, reference)
        sessions = [session for client in clients for _, session in client.all_sessions()]
        for session in (*sessions, shared, *(client.book for client in clients)):
            session.delete(server)
        server.stop()
        if left := left_over(memories):
            raise Violation(f"files of sessions that were deleted: {left[:5]}")
        result["sessions_at_the_end"], result["growth"] = len(sessions), growth(samples)
        judged = args.seconds >= JUDGED_FROM
        for what, found in result["growth"].items():
            if judged and found["last_quarter"] > found["bound"]:
                raise Violation(f"{what} grew: {found}")
        result["violation"] = None
        print(f"{args.seconds:.0f} s, {args.clients} clients, {sum(done.values())} things done, "
              f"{SoakServer.refused} refusals in their form, {result['cores']} cores: nothing was lost" + (", nothing grew" if judged else ""))
    except Violation as e:
        result["violation"] = str(e)
        print(f"soak_serve: {e}\n(its folder stays: {work})", file=sys.stderr)
        return 1
    finally:
        if args.json:
            pathlib.Path(args.json).write_text(json.dumps({**result, "samples": samples}, indent=1) + "\n")
        if server and server.process.poll() is None:
            server.kill()
    shutil.rmtree(work, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
