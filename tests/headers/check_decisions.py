# SPDX-License-Identifier: Apache-2.0
"""Runs cases through `decisions` built from headers alone and through the one that links the library.

usage: check_decisions.py golden HEADERS LIBRARY SHARED     what SHARED/golden says of models, signals, keys and readers
       check_decisions.py small HEADERS LIBRARY CASE        one that is kept beside this file, and made-up sequences
       check_decisions.py write GOLDEN_CASE                 prints such a case, made of a golden one

What the two print must be equal, numbers named "~" but for rounding; and equal to what the case expects."""
import json
import os
import pathlib
import struct
import subprocess
import sys

SETTINGS = 7  # of made-up sequences: setting() in memory_cases.hpp
RETENTION = 4  # the one with retention
TOLERANCE = 1e-4  # of the golden cases, against the largest number


def tensors(path):
    """A safetensors file's arrays, flat, and their shapes."""
    data = path.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    code = {"F32": "f", "U8": "B", "I32": "i", "BF16": "H"}
    out = {}
    for name, about in json.loads(data[8 : 8 + length]).items():
        if name == "__metadata__":
            continue
        begin, end = (8 + length + at for at in about["data_offsets"])
        kind = code[about["dtype"]]
        values = struct.unpack(f"<{(end - begin) // struct.calcsize(kind)}{kind}", data[begin:end])
        if kind == "H":  # the upper half of a float
            values = struct.unpack(f"<{len(values)}f", b"".join(struct.pack("<I", x << 16) for x in values))
        out[name] = (values, about["shape"])
    return out


def flat(lists):
    return [x for inner in lists for x in inner]


def timeline_cases(test, folder):
    """Flags from surprise; and the events that the final flags close, which need no keys."""
    expected = tensors(folder / "expected.safetensors")
    told = json.loads((folder / "expected.json").read_text())
    memory = test["memory"]
    inputs = {"kind": [0], "chunked": [int(memory.get("window") == "chunked")],
              "surprise": expected["surprise"][0],
              "steps": [c["end"] - c["start"] for c in told["chunks"]]}
    for name, default in (("n_init", None), ("n_local", None), ("min_block", None), ("max_block", None),
                          ("gamma", 1.0), ("tau", 0)):
        inputs[name] = [memory.get(name, default)]
    raw, final = expected["raw_boundaries"][0], expected["final_boundaries"][0]
    if memory["segmenter"] == "surprise":
        yield {**inputs, "boundaries": []}, {"raw_boundaries": raw}
    yield ({**inputs, "boundaries": [t for t, flag in enumerate(final) if flag]},
           {"raw_boundaries": final, "events": flat(told["events"]),
            "events_before": [c["events"] for c in told["chunks"]],
            "pending_events": [told["pending_start"]]})


def model_cases(test, folder):
    """The whole run: a small Llama attends by the memory."""
    shared = folder.parent.parent
    model = shared / test["model"] if test["model"].startswith("data/") else folder / test["model"]
    config = json.loads((model / "config.json").read_text())
    memory, heads = test["memory"], config["num_attention_heads"]
    inputs = {"kind": [4], "tokens": test["tokens"], "decode": [test["decode"]], "boundaries": test.get("boundaries", []),
              "logit_rows": [] if test["logit_rows"] == "all" else test["logit_rows"],
              "shape": [config["num_hidden_layers"], config["hidden_size"], heads, config.get("num_key_value_heads", heads),
                        config.get("head_dim", config["hidden_size"] // heads), config["intermediate_size"],
                        config["vocab_size"]],
              "eps": [config["rms_norm_eps"]], "rope_theta": [config.get("rope_theta", 10000.0)]}
    for path in sorted(model.glob("*.safetensors")):
        inputs |= {name: values for name, (values, _) in tensors(path).items()}
    for name in ("n_init", "n_local", "n_mem", "chunk", "n_repr", "min_block", "max_block", "gamma", "tau",
                 "refine_layers", "contiguity", "neighbours"):
        inputs[name] = [memory[name]]
    inputs |= {"min_count": [memory.get("min_count", 1)], "var_floor": [memory.get("var_floor", 0.01)],
               "window": [["moving", "chunked"].index(memory["window"])],
               "refine": [[None, "modularity", "conductance", "intra_inter"].index(memory["refine"])],
               "segmenter": [["surprise", "fixed", "random", "given", "k_similarity"].index(memory["segmenter"])]}
    told, arrays = json.loads((folder / "expected.json").read_text()), tensors(folder / "expected.safetensors")
    expected = {"events": flat(told["events"]), "pending_events": [told["pending_start"]],
                "events_before": [c["events"] for c in told["chunks"]]}
    for step, chunk in enumerate(told["chunks"]):
        for lists in ("similarity", "contiguity"):
            expected |= {f"{lists}{step}.{layer}": events for layer, events in enumerate(chunk[lists])}
    expected |= {name: arrays[name][0] for name in ("raw_boundaries", "final_boundaries")}
    yield inputs, expected | {f"~{name}": arrays[name][0] for name in ("surprise", "representatives", "relevance", "logits")}


def em_cases(test, folder):
    yield from timeline_cases(test, folder)
    yield from model_cases(test, folder)


def key_cases(test, folder):
    keys, shape = tensors(folder / "inputs.safetensors")["keys"]
    told = json.loads((folder / "expected.json").read_text())
    inputs = {name: [test[name]] for name in ("n_init", "min_block", "max_block", "gamma", "min_count", "var_floor")}
    inputs |= {"kind": [1], "gaussian": [int(test["method"] == "gaussian")], "by_head": [int(test["level"] == "head")],
               "shape": shape, "keys": keys}
    flags, (units, tokens) = tensors(folder / "expected.safetensors")["boundaries"]
    expected = {}
    for unit in range(units):
        expected[f"boundaries{unit}"] = flags[unit * tokens : (unit + 1) * tokens]
        expected[f"events{unit}"] = flat(told["events"][unit])
        expected[f"pending_events{unit}"] = [told["pending_start"][unit]]
    yield inputs, expected


def reweighted_cases(test, folder):
    arrays = tensors(folder / "inputs.safetensors")
    expected = tensors(folder / "expected.safetensors")
    n, heads, d = arrays["q"][1]
    inputs = {name: values for name, (values, _) in arrays.items()}
    inputs |= {name: [test[name]] for name in ("start", "n_init", "n_local", "rope_theta")}
    inputs |= {"kind": [2], "shape": [n, heads, arrays["k"][1][1], d], "events": flat(test["events"]),
               "mode": [["exact", "narrow", "broad"].index(test["mode"])], "top_k": [test["K"]]}
    yield inputs, {"present": json.loads((folder / "expected.json").read_text())["present"],
                   "~score": expected["score"][0], "~out": expected["out"][0], "~mass": expected["mass"][0]}


KINDS = {"em": em_cases, "hem": key_cases, "epman": reweighted_cases}


def cases_of(folder):
    test = json.loads((folder / "case.json").read_text())
    return list(KINDS[test["kind"]](test, folder)) if test["kind"] in KINDS else []


def number(text):
    """As it is printed; integers stay integers."""
    return float(text) if any(c in text for c in ".ean") else int(text)


def lines_of(text):
    return [(name, [number(x) for x in values]) for name, *values in (line.split() for line in text.splitlines())]


def decide(program, inputs):
    given = "\n".join(f"{name} {len(values)} " + " ".join(map(repr, values)) for name, values in inputs.items())
    ran = subprocess.run([program], input=given + "\n", capture_output=True, text=True)
    if ran.returncode != 0:
        sys.exit(f"{program}: exit code {ran.returncode}\n{ran.stderr}")
    return lines_of(ran.stdout)


def same(name, a, b):
    if not name.startswith("~"):
        return list(a) == list(b)
    largest = max((abs(x) for x in b), default=0.0)
    return len(a) == len(b) and all(abs(x - y) <= TOLERANCE * largest for x, y in zip(a, b))


def compare(what, got, expected):
    """Lines of one name come in order; every line must have its like."""
    if [name for name, _ in got] != [name for name, _ in expected]:
        sys.exit(f"{what}: {[n for n, _ in got]} instead of {[n for n, _ in expected]}")
    for (name, a), (_, b) in zip(got, expected):
        if not same(name, a, b):
            sys.exit(f"{what}: {name} is {a[:40]}, must be {list(b)[:40]}")


def check(what, programs, inputs, expected):
    headers, library = (decide(program, inputs) for program in programs)
    compare(f"{what}, headers alone against the library", headers, library)
    got = dict(headers)
    compare(f"{what}, headers alone against the case", [(name, got[name]) for name in expected], list(expected.items()))
    return headers


def check_golden(programs, shared):
    golden = pathlib.Path(os.environ.get("EPISODIC_SHARED", shared)) / "golden"
    if not golden.is_dir():
        print(f"EPISODIC_SKIP: {golden} is not there")
        return
    cases = [(folder.name, *case) for folder in sorted(f for f in golden.iterdir() if (f / "case.json").is_file())
             for case in cases_of(folder)]
    if len(cases) < 45:
        sys.exit(f"only {len(cases)} cases in {golden}")
    if os.environ.get("EPISODIC_ALL_CASES") != "1":
        cases = cases[::4]  # several folders of every kind are among them
    for name, inputs, expected in cases:
        check(name, programs, inputs, expected)
    print(f"{len(cases)} golden cases pass, and both decide alike")


def check_small(programs, case):
    for inputs, expected in json.loads(pathlib.Path(case).read_text()):
        check(case, programs, inputs, expected)
    for setting in range(SETTINGS):
        what = f"made-up sequence, setting {setting}"
        lines = check(what, programs, {"kind": [3], "setting": [setting], "seed": [setting + 1]}, {})
        recalled = sum(len(values) for name, values in lines if name.startswith("similarity"))
        closed = [len(values) // 2 for name, values in lines if name.startswith("events")]
        hit = dict(lines)["hit"]
        if max(closed) < 15 or recalled < 100 or not hit:
            sys.exit(f"{what} decides too little: {closed} events, {recalled} recalled, {hit} forgotten")
        again = [values for name, values in lines if name.startswith("engrams")]
        if setting == RETENTION and not any(left < total for left, total in again):
            sys.exit(f"{what}: retention forgets nothing: {again}")
    print("the kept case and the made-up sequences pass, and both decide alike")


def main(command, *arguments):
    if command == "write":
        # nine digits tell a float32 from its neighbours
        shortened = json.loads(json.dumps(cases_of(pathlib.Path(arguments[0]))), parse_float=lambda x: float(f"{float(x):.9g}"))
        print(json.dumps(shortened))
    else:
        {"golden": check_golden, "small": check_small}[command](arguments[:2], arguments[2])


if __name__ == "__main__":
    main(*sys.argv[1:])
