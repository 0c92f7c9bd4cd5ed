#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""usage: python_overhead.py MODEL [--program build/bin/episodic] [--tokens 512] [--rounds 5] [--threads 1]

What the Python path costs: `episodic.Engine` over ctypes beside the program's own decoder. Each reads a prompt in one
step of its length and writes 64 tokens behind it, in turn. Prints the ratios of the medians; the aim is at most 1.10."""
import argparse
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
NEW = 64


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[1])
    parser.add_argument("model", help="a Hugging Face directory or a GGUF file")
    parser.add_argument("--program", default=os.fspath(HERE.parent / "build/bin/episodic"))
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(args.threads)  # before the library is loaded
    sys.path.insert(0, os.fspath(HERE.parent / "python"))
    import episodic

    settings = {"chunk": args.tokens, "n_local": max(1024, args.tokens), "n_mem": 1024, "n_init": 128}
    question = " And then"
    engine = episodic.load(args.model)
    draw = random.Random(5)
    words = engine.model.encode("The old man walked slowly to the river in the evening, and nobody saw him. ")
    ids = [draw.choice(words) for _ in range(args.tokens)]
    times = {who: {"reading": [], "writing": []} for who in ("program", "Python")}
    with tempfile.TemporaryDirectory() as folder:
        prompt = os.path.join(folder, "ids.json")
        pathlib.Path(prompt).write_text(json.dumps(ids))
        command = [args.program, "generate", "--model", args.model, "--ids", prompt, "--question", question,
                   "--max-new", str(NEW), "--ignore-eos", "--memory", json.dumps(settings), "--threads",
                   str(args.threads), "--quiet", "--json", "-"]
        for turn in range(args.rounds + 1):
            told = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            engine.attach(**settings)
            tokens = []
            start = time.perf_counter()
            engine.read(ids)
            answer = engine.ask(question, max_new=NEW, ignore_eos=True, chat=False, reread=0, recall=False,
                                on_token=lambda *_: tokens.append(time.perf_counter()))
            if list(answer.ids) != told["ids"]:
                sys.exit("python_overhead.py: the two wrote other tokens; what they take cannot be compared")
            if turn == 0:  # warms up
                continue
            times["program"]["reading"].append(told["seconds"]["prefill"])
            times["program"]["writing"].append(told["seconds"]["decode"] / (NEW - 1))
            times["Python"]["reading"].append(tokens[0] - start)
            times["Python"]["writing"].append((tokens[-1] - tokens[0]) / (NEW - 1))
    load = os.getloadavg()[0]
    print("| | program | Python | ratio of medians | of the fastest |\n|---|---|---|---|---|")
    for what, unit in (("reading", f"{args.tokens} tokens and the question"), ("writing", "a token")):
        own, ours = times["program"][what], times["Python"][what]
        middle, fastest = ([f(own), f(ours)] for f in (statistics.median, min))
        print(f"| {what}, {unit} | {1e3 * middle[0]:.2f} ms | {1e3 * middle[1]:.2f} ms | {middle[1] / middle[0]:.3f} | "
              f"{fastest[1] / fastest[0]:.3f} |")
    print(f"\n{args.rounds} rounds in turn, {args.threads} thread(s), load {load:.1f}")


if __name__ == "__main__":
    main()
