"""German sentences to be translated: in the manner of the news, made by rule, or found in texts."""

import json
import random
import re
from collections.abc import Iterable
from pathlib import Path

_WORDS = json.loads((Path(__file__).parent / "words" / "german.json").read_text("utf-8"))
_SLOTS, _SENTENCES = _WORDS["slots"], _WORDS["sentences"]


def news_sentence(rng: random.Random) -> str:
    """One sentence with places, people and numbers drawn at random."""
    values = {slot: rng.choice(choices) for slot, choices in _SLOTS.items()}
    values["ort"], values["ort2"] = rng.sample(_SLOTS["ort"], 2)
    values["land"], values["land2"] = rng.sample(_SLOTS["land"], 2)
    values["verein"], values["verein2"] = rng.sample(_SLOTS["verein"], 2)
    amt = rng.choice(_SLOTS["amt"])
    values |= {
        "amt2": amt[0].upper() + amt[1:],
        "n": rng.randint(2, 900),
        "k": rng.randint(3, 12),
        "j": rng.randint(2, 6),
        "m": rng.randint(13, 60),
        "hundert": rng.randint(2, 90) * 100,
        "alt": rng.randint(61, 98),
        "geburt": rng.randint(1930, 1990),
        "jahr": rng.randint(1890, 2019),
        "stunde": rng.randint(8, 22),
    }
    return rng.choice(_SENTENCES).format_map(values)


def sentences(texts: Iterable[str]) -> list[str]:
    """The distinct whole sentences of 8 to 45 words in some texts, sorted; none with code or links.

    Args:
      texts: German texts, such as the messages of a program.
    """
    found = set()
    for text in texts:
        plain = " ".join(re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text).split())
        for sentence in re.split(r"(?<=[.!?]) (?=[A-ZÄÖÜ„])", plain):
            whole = sentence[-1:] in tuple(".!?") and (sentence[:1].isupper() or sentence.startswith("„"))
            if whole and 8 <= len(sentence.split()) <= 45 and not re.search(r"[{}<>|\\`*_=#$/]|::", sentence):
                found.add(sentence)
    return sorted(found)
