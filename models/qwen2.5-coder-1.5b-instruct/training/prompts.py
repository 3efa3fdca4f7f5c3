"""Writes prompts to train drafters of a code model on, made of functions in packages; never what is measured on.

    python models/qwen2.5-coder-1.5b-instruct/training/prompts.py --out prompts.jsonl --exclude evaluation.jsonl

Needs pip and npm. The same command gives the same file.
"""

import argparse
import itertools
import json
import random
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "smollm2-135m-instruct" / "training"))

import everyday
import functions
import sources
import tasks
from packages import SOURCES
from selection import Exclusion, distinct, write_lines

_SEED = 25
# Functions that one package lends at most, and prompts that one function is asked about at most.
_OF_PACKAGE, _OF_PIECE = 1_500, 3
_SHARE_EVERYDAY, _SHARE_GENERAL = 0.05, 0.10


def pieces(archive: sources.Archive) -> list[functions.Piece]:
    """The functions and classes of a package."""
    read, ending = (functions.javascript, r"\.m?js$") if archive.source.npm else (functions.python, r"\.py$")
    names = [name for name in archive.matching(ending) if "/dist/" not in name and ".min." not in name]
    found = itertools.chain.from_iterable(read(archive.text(name), name) for name in names)
    return list({piece.code: piece for piece in found}.values())


def of_functions(archives: dict[str, sources.Archive], rng: random.Random, wanted: int) -> Iterator[dict]:
    """Prompts about functions, each task in its share."""
    pool = []
    for archive in archives.values():
        found = pieces(archive)
        rng.shuffle(found)
        pool += [(archive, piece) for piece in found[:_OF_PACKAGE]]
    pool *= _OF_PIECE
    rng.shuffle(pool)
    names, made = list(tasks.TASKS), 0
    for archive, piece in pool:
        if made == wanted:
            return
        task = rng.choices(names, tasks.shares())[0]
        if not tasks.fits(piece, task):
            continue
        made += 1
        yield {
            "turns": [tasks.TASKS[task][0](piece, rng)],
            "category": task,
            "source": f"{archive.source.requirement}: {piece.member}",
            "license": archive.source.license,
        }


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="file for the prompts")
    parser.add_argument("--general", type=Path, help="JSON lines of other prompts, to mix in one in ten of")
    parser.add_argument("--exclude", type=Path, action="append", default=[], help="JSON lines whose turns to leave out")
    parser.add_argument("--cache", type=Path, default=Path("packages"), help="folder for the downloaded packages")
    parser.add_argument("--count", type=int, default=30_000, help="about how many prompts")
    return parser.parse_args()


def main() -> None:
    """Runs the command line."""
    arguments = _arguments()
    lines = itertools.chain.from_iterable(path.open(encoding="utf-8") for path in arguments.exclude)
    exclusion = Exclusion(itertools.chain.from_iterable(json.loads(line)["turns"] for line in lines))
    rng = random.Random(_SEED)
    of_rules = {"category": "everyday", "source": "rules in this folder", "license": "this repository's"}
    records = [{"turns": [text]} | of_rules for text in everyday.requests(rng)][
        : round(_SHARE_EVERYDAY * arguments.count)
    ]
    if arguments.general is not None:
        general = [json.loads(line) for line in arguments.general.open(encoding="utf-8")]
        records += general[: round(_SHARE_GENERAL * arguments.count)]
    archives = sources.open_all(arguments.cache, SOURCES)
    records += of_functions(archives, rng, arguments.count - len(records))
    records = list(distinct(records, lambda record: not exclusion.covers(record["turns"])))
    rng.shuffle(records)
    write_lines(arguments.out, records)
    print(f"{len(records)} prompts: {dict(Counter(record['category'] for record in records))}")


if __name__ == "__main__":
    main()
