"""Instructions made by rule: writing, role play, explanations, reasoning, extraction, code, and follow-ups."""

import json
import random
from pathlib import Path

_WORDS = json.loads((Path(__file__).parent / "words" / "instructions.json").read_text("utf-8"))
FOLLOW_UPS = _WORDS["follow_ups"]
ABOUT_TEXTS = _WORDS["about_texts"]
_SUBJECTS = _WORDS["subjects"]
_KINDS = ["writing"] * 2 + ["roleplay"] + ["explanation"] * 2 + ["title", "reasoning", "extraction", "coding"]
_CITIES = ("Paris", "Lagos", "Lima", "Oslo", "Delhi", "Boston", "Cairo")
_TABLE_TASKS = (
    "Sort these people by score, highest first, and print them as a Markdown table.",
    "Return the names of everyone older than 40 as a JSON array.",
    "What is the average score? Who is closest to it?",
    "Convert the following data to CSV with the columns score, name, city.",
    "Group the people below by city.",
    "Write one sentence about each person in the list.",
)


def _writing(rng: random.Random, s: str) -> str:
    form, reader, limit = (rng.choice(_WORDS[key]) for key in ("forms", "readers", "limits"))
    return f"Write a {form} about {s}, {reader}. {limit}".strip()


def _reasoning(rng: random.Random, s: str, t: str) -> str:
    values = dict(zip("abcd", rng.sample(_WORDS["names"], 4), strict=True))
    values |= dict(zip("xyz", rng.sample(_WORDS["things"], 3), strict=True))
    values |= {"place": rng.choice(_WORDS["places"]), "day": rng.choice(_WORDS["days"]), "n": rng.randint(2, 7)}
    return rng.choice(_WORDS["reasoning"]).format(**values, s=s, t=t)


def _coding(rng: random.Random) -> str:
    task, language = rng.choice(_WORDS["code_tasks"]), rng.choice(_WORDS["languages"])
    return rng.choice(_WORDS["code"]).format(task=task, language=language)


def _table(rng: random.Random) -> str:
    rows = [
        {"name": name, "city": rng.choice(_CITIES), "age": rng.randint(18, 80), "score": rng.randint(10, 99)}
        for name in rng.sample(_WORDS["names"], rng.randint(3, 6))
    ]
    layouts = (
        "\n".join(f"{row['name']} ({row['age']}) from {row['city']} reached {row['score']} points." for row in rows),
        json.dumps(rows),
        "\n".join(["name,city,age,score", *(",".join(map(str, row.values())) for row in rows)]),
    )
    return f"{rng.choice(_TABLE_TASKS)}\n{rng.choice(layouts)}"


def instruction(rng: random.Random, titles: list[str]) -> tuple[str, str]:
    """An instruction of a random kind.

    Args:
      rng: where the choices come from.
      titles: names of things, people, places and works to ask about.

    Returns:
      The category and the instruction.
    """
    kind = rng.choice(_KINDS)
    field = rng.choice(sorted(_SUBJECTS))
    s, t = rng.sample(_SUBJECTS[field], 2)
    if kind == "writing":
        return kind, _writing(rng, s)
    if kind == "roleplay":
        return kind, rng.choice(_WORDS["role_plays"]).format(role=rng.choice(_WORDS["roles"]), s=s, t=t)
    if kind == "explanation":
        category = "stem" if field in ("science", "technology") else "humanities"
        return category, rng.choice(_WORDS["explanations"][field]).format(s=s, t=t)
    if kind == "title":
        return "humanities", rng.choice(_WORDS["about_titles"]).format(title=rng.choice(titles))
    if kind == "reasoning":
        return kind, _reasoning(rng, s, t)
    return (kind, _table(rng)) if kind == "extraction" else (kind, _coding(rng))
