"""Puts a trained drafter beside the model: its files, its loss curve, and a card made of what was measured.

    python card.py eagle --run runs/eagle --results drafters.json --hardware "2 cores of ..."
    python card.py eagle --results drafters.json

`--run` is what `jaxspec train` wrote, `--results` what `python -m tests.benchmarks.drafters --questions` wrote. Without
`--run` the drafter that is there keeps its files, and its card has the new results in the place of the old ones.
"""

import argparse
import json
import pathlib
import shutil

from tests.benchmarks.drafter_tables import markdown

MODEL = pathlib.Path(__file__).resolve().parent.parent
FILES = ("training.json", "loss.svg")
TITLES = {
    "eagle": "EAGLE-3 head",
    "dflash": "DFlash head (DSpark)",
    "medusa": "Medusa heads",
    "distilled": "Small draft model, distilled,",
}
LICENSES = (
    "permissive, but for passages of BoolQ (CC-BY-SA-3.0) and questions of ARC (CC-BY-SA-4.0), see the recipe; "
    "what is learned is what the target wrote after them"
)
CARD = """# smollm2-135m-instruct/{kind}

{title} for `smollm2-135m-instruct`: `jaxspec generate --drafter {kind} "..."`.

| | |
|---|---|
| license | Apache-2.0 |
| parameters | {parameters:,} in bfloat16, {megabytes:.1f} MB |
| trained on | the target's own answers to prompts of [the recipe](../training/README.md): {sets} |
| data's licenses | {licenses} |
| tokens seen | {tokens:,}, of them {answers:,} in answers, in {steps:,} updates |
| time, hardware | {minutes:.0f} minutes, {hardware} |
| evaluation questions | none: `prompts.sha256.gz` in [training](../training) lists every prompt, and a test compares |

![Loss and estimated acceptance](loss.svg)

{measured}

Made by these commands, `prompts.jsonl` by the recipe without the prompts that it says to leave out; `--states` only
saves time:

```sh
{commands}
```

The target was jaxspec's file of it (Q4_1). `training.json` has the versions, the options and the whole curve.
"""

MEASURED = """Tokens a round, and the share of drafts that was accepted, on {questions} questions of Spec-Bench's
development half ({tokens_each} new tokens, {dtype}), by
`python -m tests.benchmarks.drafters --questions questions.jsonl --count {questions} --dtype {dtype}`:

{table}"""
# What stands around it in a card.
BEFORE, AFTER = "(loss.svg)\n\n", "\n\nMade by these commands"


def measured(kind: str, results: dict) -> str:
    """The part of a card that results make."""
    setting = results["setting"]
    return MEASURED.format(
        questions=setting["questions"],
        tokens_each=setting["max_new_tokens"],
        dtype=setting["dtype"],
        table=table(kind, results["found"]),
    )


def table(kind: str, found: dict) -> str:
    """Its rows of what was measured, named by how it drafts."""
    own = {}
    for label, counts in found.items():
        name, temperature = label.rsplit(", temperature ", 1)
        if name == kind or name.startswith(f"{kind}, "):
            how = name.removeprefix(kind).removeprefix(", ") or "chain"
            own[f"{how}, temperature {temperature}"] = counts
    return markdown(own)


def card(folder: pathlib.Path, kind: str, results: str, hardware: str, commands: list[str]) -> str:
    """The card of what was trained into a folder."""
    report = json.loads((folder / "training.json").read_text())
    size = (folder / "model.safetensors").stat().st_size
    sets = [
        f"{data['sequences']:,} conversations at temperature {data['options']['temperature']:g}"
        for data in {d["manifest_sha256"]: d for d in report["data_folders"]}.values()
    ]
    return CARD.format(
        kind=kind,
        title=TITLES[kind],
        parameters=size // 2,
        megabytes=size / 1e6,
        licenses=LICENSES,
        sets=", ".join(sets),
        tokens=report["tokens"],
        answers=report["answer_tokens"],
        steps=report["options"]["steps"],
        minutes=report["seconds"] / 60,
        hardware=hardware,
        measured=results,
        commands="\n".join([*commands, report["command"]]),
    )


def main() -> None:
    """Writes the folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=TITLES)
    parser.add_argument("--run", type=pathlib.Path)
    parser.add_argument("--results", type=pathlib.Path, required=True)
    parser.add_argument("--hardware", help="that it was trained on, with --run")
    parser.add_argument("--command", action="append", default=[], help="that made the data, with --run; repeatable")
    arguments = parser.parse_args()
    if (arguments.run is None) != (arguments.hardware is None) or (arguments.run is None and arguments.command):
        parser.error("--run wants --hardware, and --hardware and --command want --run")
    results = measured(arguments.kind, json.loads(arguments.results.read_text()))
    folder = MODEL / arguments.kind
    path = folder / "README.md"
    if arguments.run is None:
        before, _, rest = path.read_text().partition(BEFORE)
        path.write_text(before + BEFORE + results + AFTER + rest.partition(AFTER)[2])
    else:
        folder.mkdir(exist_ok=True)
        for file in [*(arguments.run / "head").iterdir(), *(arguments.run / name for name in FILES)]:
            shutil.copy(file, folder / file.name)
            (folder / file.name).chmod(0o644)
        path.write_text(card(folder, arguments.kind, results, arguments.hardware, arguments.command))
    print(folder)


if __name__ == "__main__":
    main()
