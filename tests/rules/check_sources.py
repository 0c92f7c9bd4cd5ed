# SPDX-License-Identifier: Apache-2.0
"""Rules that the sources keep, read off the files themselves.

usage: check_sources.py RULE ROOT      RULE: a name of RULES, or self_test
Prints each place that breaks the rule; exit code 1 if there is one.
"""
import pathlib
import re
import sys
import tempfile

import prose as prose_rules

FOLDERS = ["include", "src", "kernels", "python", "tests", "benchmarks", "examples", "cmake", "scripts"]
CODE = {".hpp", ".cpp", ".cuh", ".cu", ".inc"}
SPDX = "SPDX-License-Identifier: Apache-2.0"

# Room -> what it may include of the others. The order of dependence in docs/architecture.md.
ROOMS = {
    "base": [],
    "group": ["base"],
    "mpi": ["base", "group"],
    "c10d": ["base", "group"],
    "cpu": ["base"],
    "timeline": ["base", "cpu", "group"],
    "attention": ["base", "cpu"],
    "recall": ["base", "cpu", "timeline", "group"],
    "store": ["base", "cpu", "timeline", "attention", "recall"],
    "retention": ["base"],
    "redis": ["base", "cpu", "timeline", "attention", "recall", "store"],
    "memory": ["base", "cpu", "group", "timeline", "attention", "recall", "store", "retention"],
    "text": ["base"],
    "grammar": ["base", "text"],
    "device": ["base", "timeline", "attention", "recall", "store", "memory", "text", "model",
               "session"],
    "model": ["base", "cpu", "group", "timeline", "attention", "recall", "store", "memory", "text"],
    "torch_slots": ["base", "model"],
    "device_torch": ["base", "model", "device", "torch_slots"],
    "torch_ops": ["base", "attention", "device_torch", "torch_slots"],
    "session": ["base", "group", "timeline", "attention", "recall", "store", "memory", "text", "grammar", "model"],
    "training": ["base", "timeline", "attention", "recall", "memory", "text", "model", "session"],
    "server": ["base", "memory", "text", "grammar", "timeline", "model", "session", "store"],
    "c": ["base", "attention", "timeline", "memory", "text", "model", "session", "device", "redis"],
}
# Headers of the programs (src/tools) that benchmarks share with them: flags, files, progress, plots.
SHARED_WITH_BENCHMARKS = {"common.hpp", "csv.hpp", "engines.hpp", "flags.hpp", "hidden_facts.hpp", "kept.hpp",
                          "reader_flags.hpp", "reading.hpp", "svg.hpp", "analysis/survival.hpp"}
# Programs that look behind a room's public headers, into src/<room> or kernels/, and why.
BEHIND_HEADERS = {
    "src/tools/trace_on_device.cpp": {"device", "kernels"},  # runs the kernels of golden cases, no engine
    "benchmarks/bench_kernels.cpp": {"kernels"},             # times them one by one
    "benchmarks/bench_device_model.cpp": {"kernels"},        # bytes of codes; turns early launches off
    "benchmarks/bench_store.cpp": {"store"},                 # reads the raw medium by the store's engines
    "benchmarks/memoria_sorting.cpp": {"training"},          # its optimizer
}
TORCH_ROOMS = {"c10d", "torch_slots", "training", "device_torch", "torch_ops"}


def sources(root, folders=FOLDERS, suffixes=CODE):
    for folder in folders:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in suffixes and path.is_file() and "corpus" not in path.parts:
                yield path


def lines_matching(path, pattern):
    for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
        if re.search(pattern, line):
            yield number, line.strip()


def room_of(root, path):
    parts = path.relative_to(root).parts
    if parts[0] == "kernels":
        return "kernels"
    room = parts[2] if parts[:2] == ("include", "episodic") else parts[1] if parts[0] == "src" else None
    return room if room in ROOMS else None


def without_comments(text):
    return re.sub(r"//[^\n]*|/\*.*?\*/", lambda m: "\n" * m.group().count("\n"), text, flags=re.S)


def ascii_only(root):
    for path in sources(root, suffixes=CODE | {".cmake", ".txt", ".py", ".sh", ""}):
        for number, line in enumerate(path.read_bytes().split(b"\n"), 1):
            if any(byte > 126 or (byte < 32 and byte != 9) for byte in line):
                yield f"{path}:{number}: a byte that is neither printable ASCII nor a tab"


def spdx(root):
    for path in sources(root, suffixes=CODE | {".py", ".sh", ""}):
        if SPDX not in "".join(path.read_text(errors="replace").splitlines(keepends=True)[:2]):
            yield f"{path}: no '{SPDX}' in its first two lines"


def width(root):
    """The Python package and its tests have lines of at most 120 characters, docstrings too."""
    for path in sources(root, ["python", "tests/python"], {".py"}):
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            if len(line) > prose_rules.LINE:
                yield f"{path}:{number}: {len(line)} characters, at most {prose_rules.LINE}"


def torch_free(root):
    """Kernels and the torch-free rooms include no torch: not themselves, and by `layers` not through others."""
    for path in sources(root, ["include", "src", "kernels"]):
        room = room_of(root, path)
        if room and room not in TORCH_ROOMS:
            for number, line in lines_matching(path, r'#\s*include\s*[<"](torch|ATen|c10)/'):
                yield f"{path}:{number}: {line}"


def layers(root):
    """No room includes one above it."""
    for path in sources(root, ["include", "src", "kernels"]):
        room = room_of(root, path)
        if room is None:
            continue
        allowed = {room, *(["base"] if room == "kernels" else ROOMS[room])}
        rooms = "|".join(ROOMS)  # by a room's public headers, or by its own
        for number, line in lines_matching(path, rf'#\s*include\s*"(episodic/|({rooms})/)'):
            other = re.search(r'"(?:episodic/)?(\w+)/', line)
            if not other or other.group(1) not in allowed:
                yield f"{path}:{number}: {room} includes {line.split()[-1]}"


def programs(root):
    """Benchmarks take from the programs what is shared, programs nothing of benchmarks; who looks behind a room's
    public headers stands in the table."""
    for path in sources(root, ["include", "src", "kernels", "benchmarks"]):
        name = str(path.relative_to(root))
        of_benchmarks = name.startswith("benchmarks/")
        if not of_benchmarks and not name.startswith("src/tools/"):
            for number, line in lines_matching(path, r'#\s*include\s*"(tools|support|suites|benchmarks)/'):
                yield f"{path}:{number}: {line}"
            continue
        for number, line in lines_matching(path, r'#\s*include\s*"'):
            header = line.split('"')[1]
            own = ("benchmarks", "benchmarks/suites") if of_benchmarks else ("src/tools",)
            if header.startswith("episodic/") or header == "base/strict_json.hpp":
                continue
            if any((place / header).is_file() for place in (path.parent, *(root / top for top in own))):
                continue
            if of_benchmarks and (root / "src/tools" / header).is_file():
                if header not in SHARED_WITH_BENCHMARKS:
                    yield f"{path}:{number}: {header} is the programs' own"
                continue
            room = "store" if (root / "src/store" / header).is_file() else header.split("/")[0]
            if room not in BEHIND_HEADERS.get(name, set()):
                yield f"{path}:{number}: {header} is not for it to include"


def silent(root):
    """The library neither prints, aborts nor exits."""
    call = r"(std::(cout|cerr|clog)|\b(f|v|vf)?printf *\(|\bf?puts *\(|(?<![\w.>])(abort|exit|_Exit|terminate) *\(|\bassert *\()"
    for path in sources(root, ["include", "src", "kernels"]):
        if room_of(root, path) is None and (root / "src") in path.parents:
            continue  # the programs of src/tools speak
        for number, line in enumerate(without_comments(path.read_text(errors="replace")).splitlines(), 1):
            if re.search(call, line.replace("static_assert", "")):
                yield f"{path}:{number}: {line.strip()}"


def leftovers(root):
    for path in sources(root, suffixes=CODE | {".cmake", ".txt", ".py", ""}):
        if path.name == "check_sources.py":
            continue
        for number, line in lines_matching(path, r"\b(TODO|FIXME|XXX|HACK)\b"):
            yield f"{path}:{number}: {line}"


def json(root):
    """One place parses JSON: it bounds depth and length, and what its messages repeat."""
    for path in sources(root, ["include", "src", "benchmarks", "examples"]):
        if path.name == "strict_json.cpp":
            continue
        for number, line in enumerate(without_comments(path.read_text(errors="replace")).splitlines(), 1):
            if re.search(r"\b[Jj]son::(parse|accept|sax_parse|from_\w+) *\(", line):
                yield f"{path}:{number}: {line.strip()}"


def standard(root):
    """Headers that users get include the standard library, the system and each other; torch's, the torch rooms."""
    system = r"\w+|fcntl\.h|sys/mman\.h|unistd\.h|cpuid\.h|immintrin\.h|omp\.h"
    torch = r"|(ATen|c10|torch)/.*"
    for path in sources(root, ["include"]):
        allowed = system + (torch if room_of(root, path) in TORCH_ROOMS else "")
        for number, line in lines_matching(path, r"#\s*include\s*<"):
            if not re.search(rf"<({allowed})>", line):
                yield f"{path}:{number}: {line}"


def flags(root):
    """The library's messages name parameters; the flags of a program are the programs' to name."""
    for path in sources(root, ["include", "src"]):
        if room_of(root, path) is None:
            continue
        for number, line in enumerate(without_comments(path.read_text(errors="replace")).splitlines(), 1):
            said = [text for text in re.findall(r'"((?:[^"\\]|\\.)*)"', line) if "hf download" not in text]
            if any(re.search(r"(^|[ (`])--[a-z]", text) for text in said):
                yield f"{path}:{number}: {line.strip()}"


def batches(root):
    """Every launcher beside its batch; but rows of several sequences are rows of one matrix to products and norms, and weights are all sequences'."""
    for path in sources(root, ["kernels"], {".hpp"}):
        if path.name in ("product.hpp", "decoder.hpp", "mixture.hpp", "blocks.hpp"):
            continue
        text = path.read_text(errors="replace")
        for name in re.findall(r"^cudaError_t (\w+)\(const \w+Params&", text, flags=re.M):
            if f"cudaError_t {name}_batch(" not in text:
                yield f"{path}: {name} has no {name}_batch"


def bodies(root):
    """core_bodies.hpp has every body of the header-only core."""
    listed = root / "include/episodic/core_bodies.hpp"
    text = listed.read_text() if listed.exists() else ""
    for path in sorted((root / "include").rglob("impl/*.hpp")):
        if f'#include "{path.relative_to(root / "include").as_posix()}"' not in text:
            yield f"{listed}: does not include {path.relative_to(root)}"


# Rooms of the header-only core, whose code must not meet the compiled library's (base/inline.hpp).
CORE_ROOMS = ("attention", "base", "cpu", "group", "memory", "recall", "retention", "store", "timeline")
# The same code in both: C++17, for kernels too.
SHARED_HEADERS = ("base/dtype.hpp", "base/rules/")


def namespaces(root):
    """Headers of the core open EPISODIC_NAMESPACE, which differs between headers alone and the library."""
    include = root / "include/episodic"
    for room in CORE_ROOMS:
        for path in sorted((include / room).rglob("*.hpp")):
            if path.relative_to(include).as_posix().startswith(SHARED_HEADERS):
                continue
            if re.search(r"^namespace episodic\b", path.read_text(), re.M):
                yield f"{path}: opens namespace episodic; open EPISODIC_NAMESPACE (base/inline.hpp)"


# Documents of the past, whose sentences stay as they were written.
HISTORY = {"CHANGELOG.md"}


def documents(root):
    """Documents that people read; not the reports of results."""
    yield from sorted([*root.glob("*.md"), *(root / "docs").glob("*.md"), *(root / "benchmarks").glob("*.md")])
    for folder in ("models", "examples", "tests"):
        yield from sorted((root / folder).rglob("*.md"))


def prose(root):
    """Lines of at most 120 characters, sentences of at most 25 words, none of the words in prose.BANNED."""
    for path in documents(root):
        past = path.relative_to(root).as_posix() in HISTORY
        yield from prose_rules.faults(path, (prose_rules.long_lines,)) if past else prose_rules.faults(path)


def citations(root):
    """Comments cite the papers' sections or docs/: a specification that is not in the repository helps nobody."""
    for path in sources(root, suffixes=CODE | {".py", ".sh", ".cmake", ".txt", ""}):
        if path.name == "check_sources.py":
            continue
        for match in re.finditer(r"\bspec\s+(?:/+\s*|#\s*)?\d", path.read_text(errors="replace"), flags=re.I):
            number = path.read_text(errors="replace").count("\n", 0, match.start()) + 1
            yield f"{path}:{number}: cites a specification: name the paper's section, or a page of docs/"


def anchors(text):
    """What the headings of a document are linked by: lower case, no marks, hyphens for spaces."""
    for heading in re.findall(r"^#+ +(.*)$", re.sub(r"^```.*?^```", "", text, flags=re.S | re.M), flags=re.M):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        yield re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")


def links(root):
    """What documents and results link to in this repository is there, and has that heading."""
    for path in [*documents(root), *sorted((root / "benchmarks/results").rglob("*.md"))]:
        for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)]*))?\)", path.read_text()):
            if "://" in target:
                continue
            page = path.parent / target if target else path
            if not page.exists():
                yield f"{path}: there is no {target}"
            elif anchor and page.suffix == ".md" and anchor not in anchors(page.read_text()):
                yield f"{path}: {page.name} has no heading #{anchor}"


# Host sources above the limit: tables alone.
LONG_FILES = set()
LONGEST_FILE = 600


def size(root):
    """No source of the host side has more than 600 lines: then it is about one subject. Tables (.inc) may be longer."""
    for path in sources(root, ("include", "src")):
        name = path.relative_to(root).as_posix()
        if name in LONG_FILES or path.suffix == ".inc":
            continue
        lines = len(path.read_text().splitlines())
        if lines > LONGEST_FILE:
            yield f"{path}: {lines} lines, at most {LONGEST_FILE}; take it apart by subject"


MOST_MEMBERS = 30


def split_outside(text, mark):
    """Of the text: the parts between marks that no bracket is around."""
    depth, parts = 0, [""]
    for sign in text:
        depth += (sign in "([{<") - (sign in ")]}>")
        if sign == mark and depth == 0:
            parts.append("")
        else:
            parts[-1] += sign
    return parts


def members_of(body):
    """How many data members a class has, of the text between its braces."""
    body = re.sub(r"->|<<|>>=?|[<>]=|\b(public|private|protected)\s*:", " ", body)
    body = re.sub(r"\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*\}(?!\s*[;,])", " { } ; ", body)  # bodies of functions end there
    count = 0
    for statement in split_outside(body, ";"):
        statement = statement.strip()
        if not statement or re.match(r"(static|using|friend|typedef|template|enum)\b", statement):
            continue
        if of_its_own := re.match(r"(?:struct|class|union)\s[^{]*\{.*\}(.*)$", statement, flags=re.S):
            count += len([name for name in of_its_own.group(1).split(",") if name.strip()])
            continue
        if re.match(r"(struct|class|union)\s+\w+$", statement):
            continue
        declarators = split_outside(statement, ",")
        first = re.sub(r"<[^<>()]*>", "", re.sub(r"<[^<>()]*>", "", declarators[0]))
        if not re.search(r"\(|\boperator\b", re.split(r"[={]", first)[0]):
            count += len(declarators)
    return count


def members(root):
    """No class of the device's room has more than 30 members: then it is about one subject."""
    for path in sources(root, ["src"]):
        if not path.relative_to(root).as_posix().startswith("src/device/"):
            continue
        text = without_comments(path.read_text(errors="replace"))
        for opened in re.finditer(r"\b(?:struct|class)\s+([\w:]+)(?:\s+final)?(?:\s*:[^;{(]*)?\s*\{", text):
            depth, end = 1, opened.end()
            while depth > 0 and end < len(text):
                depth += (text[end] == "{") - (text[end] == "}")
                end += 1
            count = members_of(text[opened.end():end - 1])
            if count > MOST_MEMBERS:
                yield f"{path}: {opened.group(1)} has {count} members, at most {MOST_MEMBERS}; take it apart by subject"


# Public headers whose classes programs neither make nor hold: what files and tables of the library are made of.
OWN_CLASSES = {"base/io.hpp", "base/shared_list.hpp", "model/token_history.hpp"}


def code_of(page):
    """The C++ of a document."""
    return "".join(re.findall(r"^```cpp\n(.*?)^```", page, flags=re.S | re.M))


def classes(root):
    """Each class of the public headers is named by a heading of docs/, above a snippet that uses it, or a link to one."""
    shown = {}
    for page in sorted((root / "docs").glob("*.md")):
        text = page.read_text()
        headings = list(re.finditer(r"^#+ .*$", re.sub(r"^```.*?^```", lambda m: re.sub(r"[^\n]", " ", m.group()), text,
                                                       flags=re.S | re.M), flags=re.M))
        for heading, end in zip(headings, [h.start() for h in headings[1:]] + [len(text)]):
            section = text[heading.end():end]
            code = code_of(section)
            for target in re.findall(r"\]\(([^)#\s]+)", section):
                linked = page.parent / target
                if linked.is_file():
                    code += linked.read_text() if linked.suffix == ".cpp" else code_of(linked.read_text())
            for name in re.findall(r"`(\w+)`", heading.group()):
                shown[name] = shown.get(name, "") + code
    include = root / "include/episodic"
    for path in sources(root, ["include"], {".hpp"}):
        if {"impl", "detail"} & set(path.parts) or path.relative_to(include).as_posix() in OWN_CLASSES:
            continue
        for name in re.findall(r"^class (\w+)(?: final)?(?: :[^;{]*)?\s*\{", path.read_text(), flags=re.M):
            if name not in shown:
                yield f"{path}: no heading of docs/ names `{name}`; add it to docs/classes.md, with a snippet"
            elif not re.search(rf"\b{name}\b", shown[name]):
                yield f"{path}: no snippet below the heading of `{name}` uses it"


RULES = {"ascii": ascii_only, "spdx": spdx, "width": width, "torch_free": torch_free, "layers": layers, "programs": programs,
         "silent": silent, "leftovers": leftovers, "json": json, "standard": standard, "flags": flags,
         "batches": batches, "bodies": bodies, "namespaces": namespaces,
         "prose": prose, "links": links, "size": size, "members": members,
         "citations": citations, "classes": classes}


def self_test(_root):
    """Every rule finds what is planted for it, and nothing in a file that keeps them all."""
    head = f"// {SPDX}\n"
    planted = [
        ("ascii", "src/base/a.cpp", head + "// caf\u00e9\n"),
        ("spdx", "src/base/b.cpp", "int b;\n"),
        ("spdx", "python/episodic/w.py", "w = 1\n"),
        ("width", "python/episodic/x.py", f'# {SPDX}\n"""{"word " * 24}."""\n'),
        ("torch_free", "src/recall/c.cpp", head + "#include <ATen/ATen.h>\n"),
        ("layers", "src/timeline/d.cpp", head + '#include "episodic/store/event_store.hpp"\n'),
        ("programs", "benchmarks/l.cpp", head + '#include "device/cuda.hpp"\n'),
        ("silent", "src/store/e.cpp", head + 'void f() { std::printf("x"); }\n'),
        ("leftovers", "tests/f.cpp", head + "// TO" + "DO\n"),
        ("standard", "include/episodic/base/i.hpp", head + "#include <fmt/format.h>\n"),
        ("flags", "src/session/j.cpp", head + 'const char* remedy = "read on with --resume";\n'),
        ("batches", "kernels/k.hpp", head + "cudaError_t run(const RunParams& params, cudaStream_t stream);\n"),
        ("prose", "docs/m.md", "a line of words " * 8),
        ("prose", "README.md", "A sentence of words\n" * 8 + "ends here.\n"),
        ("prose", "models/o/README.md", "- The layers lend their keys.\n"),
        ("prose", "docs/p.md", "Of these the last is chosen.\n"),
        ("citations", "kernels/q.cuh", head + "// Closes events (spec\n// 4).\n"),
        ("citations", "tests/t.cpp", head + "// Spec 4, restated.\n"),
        ("links", "docs/n.md", "[no such page](nothing.md)"),
        ("links", "docs/s.md", "# One\n\n[no such heading](#two)\n"),
        ("size", "src/memory/o.cpp", head + "int o;\n" * 600),
        ("size", "src/device/o.cpp", head + "int o;\n" * 600),
        ("members", "src/device/y.hpp", head + "struct Y {\n" + "  int a = 0, b = f(1, 2);\n" * 15 + "  struct {} c;\n};\n"),
        ("bodies", "include/episodic/recall/impl/l.hpp", head),
        ("namespaces", "include/episodic/store/t.hpp", head + "namespace episodic::detail {}\n"),
        ("classes", "include/episodic/text/u.hpp", head + "class Lost final : public Base {\n};\n"),
        ("classes", "include/episodic/text/v.hpp", head + "class heading {\n};\n"),  # of clean_page, without a snippet
        ("json", "benchmarks/h.cpp", head + "auto j = nlohmann::json::parse(text);\n"),
    ]
    clean_page = ("docs/r.md", "What is said of `lend`? It has 25 words at most.\n\n| Of a table | settle |\n\n    brings\n\n"
                  "## A `heading`, here\n\n[up](#a-heading-here)\n")
    clean = ("src/memory/g.cpp", head + '// printf(1)\n#include "episodic/store/event_store.hpp"\n'
             "static_assert(sizeof(int) == 4);\nint snprintf_size = 0;\n")
    few = ("src/device/z.hpp", head + "struct Z {\n  int a = 0, b = 0;\n  std::pair<int, int> f(int, int) const { int c; return {c, c}; }\n"
           + "  static int d;\n" * 40 + "};\n")
    for rule, name, text in planted:
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for file, content in ((name, text), clean, few, clean_page):
                (root / file).parent.mkdir(parents=True, exist_ok=True)
                (root / file).write_text(content)
            for other, check in RULES.items():
                found = list(check(root))
                if (len(found) > 0) != (other == rule):
                    yield f"self_test: {other} on what is planted for {rule}: {found}"


def main(rule, root):
    broken = list((self_test if rule == "self_test" else RULES[rule])(pathlib.Path(root)))
    print("\n".join(broken) if broken else f"{rule}: kept")
    return 1 if broken else 0


sys.exit(main(*sys.argv[1:]))
