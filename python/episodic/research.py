# SPDX-License-Identifier: Apache-2.0
"""Reports and plots of what the programs measured:

    python -m episodic.research --out report comparison.json ablations/ablations.csv scores/*.json

Files are told apart by what is in them: `episodic compare-events --json FILE`, the ablations.csv of scripts/ablations,
and `longbench score --json FILE` (or another suite). Writes OUT/report.md, and plots as SVG where matplotlib is
installed; without it the report says so. Numbers are those of the files: nothing is computed anew but means."""
from __future__ import annotations

import argparse
import csv
import dataclasses
import json
import os
import pathlib
import sys
from collections.abc import Iterable, Sequence
from typing import Any, Union

from ._library import FileError

Path = Union[str, "os.PathLike[str]"]


@dataclasses.dataclass(frozen=True)
class Segmentation:
    """One way to cut a story, at one number of boundaries."""
    story: str
    method: str               #: of compare-events: S, SM, F, R, ...
    count: str                #: what the number of boundaries is that of
    boundaries: list[int]
    modularity: float | None  #: above random boundaries, in their deviations; None where that is not known
    people: float | None      #: Wasserstein distance to the boundaries of people; None without them


@dataclasses.dataclass(frozen=True)
class Ablation:
    """One value of one setting."""
    setting: str
    value: float
    measures: dict[str, float]  #: perplexity, events, and percent right of each task


@dataclasses.dataclass(frozen=True)
class Score:
    """One task of a suite by one method."""
    suite: str
    task: str
    label: str
    percent: float
    examples: int


def _json(path: Path) -> Any:
    def refuse(name: str) -> None:
        raise ValueError(f"{name} is no JSON")

    try:
        return json.loads(pathlib.Path(path).read_text(), parse_constant=refuse)
    except (OSError, ValueError) as e:
        raise FileError(f"{os.fspath(path)}: {e}") from None


def _above_random(segmentation: dict[str, Any]) -> float | None:
    deviation = segmentation["random_deviation"]["modularity"]
    if not deviation:
        return None
    return float((segmentation["cohesion"]["modularity"] - segmentation["random"]["modularity"]) / deviation)


def read_comparison(path: Path) -> list[Segmentation]:
    """The segmentations in the JSON of `compare-events`."""
    try:
        return [Segmentation(story["name"], s["method"], s["count"], list(s["boundaries"]), _above_random(s),
                             None if s["people"] is None else float(s["people"]["wasserstein"]))
                for story in _json(path)["stories"] for s in story["segmentations"]]
    except (KeyError, TypeError) as e:
        raise FileError(f"{os.fspath(path)}: is not of `episodic compare-events --json` ({e!r})") from None


def read_ablations(path: Path) -> list[Ablation]:
    """The rows of an ablations.csv."""
    try:
        with open(path, newline="") as file:
            return [Ablation(row.pop("setting"), float(row.pop("value")), {k: float(v) for k, v in row.items()})
                    for row in csv.DictReader(file)]
    except OSError as e:
        raise FileError(f"{os.fspath(path)}: {e.strerror}") from None
    except (KeyError, TypeError, ValueError) as e:
        raise FileError(f"{os.fspath(path)}: is no ablations.csv of scripts/ablations ({e!r})") from None


def read_score(path: Path) -> Score:
    """A suite's `score --json`. The label is the method of its settings, or the file's name."""
    found = _json(path)
    try:
        scores = [float(e["score"]) for e in found["examples"]]
        settings = found.get("settings") or {}
        percent = found.get("score")
        if not scores:
            raise ValueError("it holds no example")
        label = " ".join(filter(None, (settings.get("method"), settings.get("preset")))) or pathlib.Path(path).stem
        return Score(str(found.get("suite") or "?"), found["task"], label,
                     float(percent) if percent is not None else 100 * sum(scores) / len(scores), len(scores))
    except (AttributeError, KeyError, TypeError, ValueError) as e:
        raise FileError(f"{os.fspath(path)}: is not of `score --json` ({e!r})") from None


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(cells) + " |\n" for cells in lines)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _unique(values: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(values))


class _Plots:
    """Pictures by matplotlib, where it is installed."""

    def __init__(self, out: pathlib.Path) -> None:
        self.out = out
        try:
            import matplotlib
        except ImportError:
            self.pyplot: Any = None
            return
        matplotlib.use("svg")
        matplotlib.rcParams["svg.hashsalt"] = "episodic"  # the same numbers give the same file
        import matplotlib.pyplot
        self.pyplot = matplotlib.pyplot

    def _saved(self, figure: Any, name: str) -> str:
        figure.tight_layout()
        figure.savefig(self.out / f"{name}.svg", metadata={"Date": None})
        self.pyplot.close(figure)
        return f"\n![{name}]({name}.svg)\n"

    def bars(self, name: str, ylabel: str, groups: Sequence[str], series: dict[str, Sequence[float | None]]) -> str:
        """Markdown that shows it; "" without matplotlib."""
        if not self.pyplot:
            return ""
        figure, axes = self.pyplot.subplots(figsize=(max(5.0, 1.2 * len(groups) + 2), 3.2))
        width = 0.8 / max(len(series), 1)
        for i, (label, values) in enumerate(series.items()):
            at = [g + (i - (len(series) - 1) / 2) * width for g in range(len(groups))]
            axes.bar(at, [0 if v is None else v for v in values], width, label=label)
        axes.set_xticks(range(len(groups)), groups)
        axes.set_ylabel(ylabel)
        axes.axhline(0, color="black", linewidth=0.6)
        axes.legend(fontsize="small")
        return self._saved(figure, name)

    def lines(self, name: str, xlabel: str, lines: dict[str, Sequence[tuple[float, float]]]) -> str:
        """A panel for each line, one above the other; "" without matplotlib."""
        if not self.pyplot:
            return ""
        figure, panels = self.pyplot.subplots(len(lines), 1, sharex=True, squeeze=False,
                                              figsize=(5, 1.6 * len(lines) + 0.6))
        for axes, (label, points) in zip(panels[:, 0], lines.items()):
            axes.plot([x for x, _ in points], [y for _, y in points], marker="o")
            axes.set_ylabel(label, fontsize="small")
        panels[-1, 0].set_xlabel(xlabel)
        return self._saved(figure, name)


def _comparison(found: list[Segmentation], plots: _Plots) -> str:
    text = "\n# Events compared\n"
    for number, count in enumerate(_unique(s.count for s in found)):
        here = [s for s in found if s.count == count]
        methods, stories = _unique(s.method for s in here), _unique(s.story for s in here)
        text += f"\n## {count}\n\n" + _table(
            ["story", "method", "boundaries", "modularity above random, in deviations", "distance to people"],
            [[s.story, s.method, str(len(s.boundaries)), _number(s.modularity), _number(s.people)] for s in here])
        value = {(s.story, s.method): s.modularity for s in here}
        text += plots.bars(f"events_{number + 1}", "modularity above random", stories,
                           {m: [value.get((story, m)) for story in stories] for m in methods})
    return text


def _ablations(found: list[Ablation], plots: _Plots) -> str:
    text = "\n# Ablations\n"
    for setting in _unique(a.setting for a in found):
        here = [a for a in found if a.setting == setting]
        measures = list(here[0].measures)
        text += f"\n## {setting}\n\n" + _table(
            ["value", *measures], [[_number(a.value), *(_number(a.measures.get(m)) for m in measures)] for a in here])
        text += plots.lines(f"ablation_{setting}", setting,
                            {m: [(a.value, a.measures[m]) for a in here if m in a.measures] for m in measures})
    return text


def _scores(found: list[Score], plots: _Plots) -> str:
    text = "\n# Suites\n"
    for suite in _unique(s.suite for s in found):
        here = [s for s in found if s.suite == suite]
        tasks, labels = _unique(s.task for s in here), _unique(s.label for s in here)
        value = {(s.task, s.label): s.percent for s in here}
        text += f"\n## {suite}\n\n" + _table(
            ["task", *labels], [[t, *(_number(value.get((t, label))) for label in labels)] for t in tasks])
        text += plots.bars(f"suite_{suite}", "percent", tasks,
                           {label: [value.get((t, label)) for t in tasks] for label in labels})
    return text


def report(files: Iterable[Path], out: Path) -> pathlib.Path:
    """Writes `out`/report.md over the files, with plots where matplotlib is installed. Returns its path. Raises
    FileError for a file that is of none of the three kinds; nothing is written then."""
    compared: list[Segmentation] = []
    ablations: list[Ablation] = []
    scores: list[Score] = []
    for path in files:
        if os.fspath(path).endswith(".csv"):
            ablations += read_ablations(path)
        elif isinstance(found := _json(path), dict) and "stories" in found:
            compared += read_comparison(path)
        else:
            scores.append(read_score(path))
    for i, score in enumerate(scores):  # of one label and task: told apart by their places
        named = score.suite, score.task, score.label
        twins = [j for j, s in enumerate(scores) if (s.suite, s.task, s.label) == named]
        if len(twins) > 1:
            for n, j in enumerate(twins, 1):
                scores[j] = dataclasses.replace(scores[j], label=f"{score.label} ({n})")
    folder = pathlib.Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    plots = _Plots(folder)
    text = "# What was measured\n"
    if not plots.pyplot:
        text += "\nWithout plots: matplotlib is not installed.\n"
    if compared:
        text += _comparison(compared, plots)
    if ablations:
        text += _ablations(ablations, plots)
    if scores:
        text += _scores(scores, plots)
    path = folder / "report.md"
    path.write_text(text)
    return path


def main(words: Sequence[str] | None = None) -> int:
    """The program: 0, or 1 behind one line on stderr."""
    parser = argparse.ArgumentParser(prog="python -m episodic.research", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, help="folder of the report")
    parser.add_argument("files", nargs="+", help="JSON of compare-events or of suites, CSV of ablations")
    given = parser.parse_args(words)
    try:
        print(report(given.files, given.out))
    except FileError as e:
        print(f"episodic.research: {e}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
