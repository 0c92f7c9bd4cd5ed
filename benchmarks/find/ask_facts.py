#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Asks `episodic ask --chat` for facts that a kept memory holds: right answers, and what they were read from.

Usage: ask_facts.py PROGRAM MODEL MEMORY_DIR [--facts FILE] [--first N] [--count N] [--threads N] [--out FILE]
       [-- FLAG ...]          further flags of ask
The memory is one of `bench_find --memory-dir` over the same facts. --out has a line of JSON for each question.
Example: ask_facts.py build/bin/episodic M.gguf book.mem --first 120 --count 40 --out rows.jsonl
"""
import argparse
import json
import math
import pathlib
import subprocess
import sys
import tempfile


def wilson(right, n, z=1.96):
    """Wilson's interval of a share, 95 %."""
    p = right / n
    middle, half = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return (middle - half) / (1 + z * z / n), (middle + half) / (1 + z * z / n)


def has_all(text, answers):
    """Each of `answers` is a list of ways to say it."""
    return all(any(way.lower() in text.lower() for way in ways) for ways in answers)


def ask(given, question):
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "answer.json"
        subprocess.run([given.program, "ask", "--model", given.model, "--memory-dir", given.memory_dir, "--chat", "--quiet",
                        "--threads", str(given.threads), "--max-new", "48", "--prompt", question, "--json", out,
                        *given.flags], check=True, stdout=subprocess.DEVNULL)
        return json.loads(out.read_text())


def main():
    here = pathlib.Path(__file__).parent
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("program", "model", "memory_dir"):
        parser.add_argument(name)
    parser.add_argument("--facts", type=pathlib.Path, default=here / "facts.json")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--out", type=pathlib.Path)
    own, flags = sys.argv[1:], []
    if "--" in own:
        own, flags = own[:own.index("--")], own[own.index("--") + 1:]
    given = parser.parse_args(own)
    given.flags = flags
    facts = json.loads(given.facts.read_text())[given.first:given.first + given.count]
    if not facts:
        raise SystemExit(f"ask_facts: {given.facts} has no facts from number {given.first} on")
    rows = []
    for fact in facts:
        for words, question in (("same", fact["asked"]), ("other", fact["other"])):
            answer = ask(given, question)
            passages = " ".join(p["text"] for p in answer.get("passages", []))
            rows.append({"words": words, "question": question, "text": answer["text"],
                         "right": has_all(answer["text"], fact["answers"]),
                         "holds": has_all(passages, fact["answers"]), "alone": answer.get("passages_only", False),
                         "lead": max((p["lead"] for p in answer.get("passages", [])), default=0),
                         "seconds": answer["seconds"]})
            if given.out:
                with given.out.open("a") as file:
                    file.write(json.dumps(rows[-1]) + "\n")
    print("words   right              alone  hold the fact  right of those  not alone  right of those")
    for words in ("same", "other"):
        of = [r for r in rows if r["words"] == words]
        alone, others = [r for r in of if r["alone"]], [r for r in of if not r["alone"]]
        right = sum(r["right"] for r in of)
        low, high = wilson(right, len(of))
        print(f"{words:6} {right:3} of {len(of):3} {low:.2f} to {high:.2f} {len(alone):5} {sum(r['holds'] for r in alone):14}"
              f" {sum(r['right'] for r in alone):15} {len(others):10} {sum(r['right'] for r in others):15}")


if __name__ == "__main__":
    main()
