# SPDX-License-Identifier: Apache-2.0
"""Our tokenizers beside Hugging Face's (the Rust package `tokenizers`): MB/s on one thread, in turn, and the same ids.

Usage: python benchmarks/tokenizers_beside.py TEXT DIR... [--out DIR] [--bench build/bin/bench_tokenizer] [--rounds 5]
Example: python benchmarks/tokenizers_beside.py war_and_peace.txt models/recall-2m6 .cache/gemma3-270m --out results

DIR holds a tokenizer.json. Needs the Python package tokenizers. Writes DIR/results.json and results.md with --out.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import time

os.environ["TOKENIZERS_PARALLELISM"], os.environ["RAYON_NUM_THREADS"] = "false", "1"
import tokenizers  # noqa: E402  (reads both when it is loaded)

ROOT = pathlib.Path(__file__).resolve().parent.parent


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=pathlib.Path)
    parser.add_argument("folders", type=pathlib.Path, nargs="+")
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--bench", type=pathlib.Path, default=ROOT / "build/bin/bench_tokenizer")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    text = args.text.read_bytes().decode()
    size = len(text.encode())
    rows = []
    for folder in args.folders:
        theirs = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        tokens = len(theirs.encode(text).ids)  # the first does not count, as ours
        row = {"tokenizer": folder.name, "bytes": size, "tokens": tokens, "ours": [], "theirs": []}
        for _ in range(args.rounds):
            said = json.loads(subprocess.run([args.bench, "--model", folder, "--text", args.text, "--rounds", "1",
                                              "--json", "-"], check=True,
                                             capture_output=True).stdout)
            row["ours"] += said["seconds"]
            start = time.perf_counter()
            theirs.encode(text)
            row["theirs"].append(time.perf_counter() - start)
        if said["tokens"] != tokens:
            raise SystemExit(f"{folder}: ours gives {said['tokens']} tokens, Hugging Face's {tokens}")
        rows.append(row)
    lines = ["| tokenizer | tokens | ours, MB/s | Hugging Face's, MB/s | ratio |", "|---|---|---|---|---|"]
    for row in rows:
        mine, other = (size / 1e6 / statistics.median(row[who]) for who in ("ours", "theirs"))
        lines.append(f"| {row['tokenizer']} | {row['tokens']} | {mine:.2f} | {other:.2f} | {mine / other:.2f} |")
    head = (f"# Tokenizers on one thread, {time.strftime('%Y-%m-%d')}\n\n{args.text.name} ({size / 1e6:.2f} MB), median of {args.rounds}, "
            f"in turn; tokenizers {tokenizers.__version__}.\n\n")
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / "results.json").write_text(json.dumps(rows, indent=1) + "\n")
        (args.out / "results.md").write_text(head + "\n".join(lines) + "\n")
    print(head + "\n".join(lines))


main()
