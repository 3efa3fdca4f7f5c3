"""Makes requests that no package holds: queries, commands, patterns, small programs; by rule."""

import itertools
import random
from collections.abc import Iterator

_TABLES = (
    ("books", ("title", "author", "price", "published")), ("employees", ("name", "salary", "department", "hired")),
    ("flights", ("origin", "destination", "departure", "seats")), ("songs", ("title", "artist", "seconds", "album")),
    ("invoices", ("number", "client", "amount", "due")), ("players", ("nickname", "team", "score", "joined")),
    ("sensors", ("serial", "room", "value", "read_at")), ("articles", ("headline", "section", "words", "posted")),
)  # fmt: skip
_QUERIES = (
    "selects the ten {table} with the highest {b}", "counts the {table} of each {c}",
    "finds {table} whose {a} occurs twice", "gives the average {b} by {c}, highest first",
    "lists every {a} that has no {c}", "deletes {table} from before 2020 by {d}",
    "updates the {b} of all {table} of one {c} by ten percent", "ranks the {table} by {b} within each {c}",
)  # fmt: skip
_THINGS = (
    "email addresses", "IPv4 addresses", "hexadecimal colors", "phone numbers", "URLs", "times such as 23:59",
    "ISBN-13 numbers", "floating-point numbers", "quoted strings", "hashtags", "version numbers such as 1.2.3",
    "file names with an extension", "US zip codes", "license plates", "MAC addresses", "lines that are comments",
)  # fmt: skip
_PATTERN = (
    "Write a regular expression that matches {thing}, and explain it.",
    "Write a Python function that finds all {thing} in a text with a regular expression.",
    "How do I validate {thing} in JavaScript?",
    "Give me a grep command that prints the lines of a file with {thing}.",
)
_PROGRAMS = (
    "renames all files of a folder to lower case", "finds duplicate files by their hash", "downloads a list of URLs",
    "converts CSV to JSON", "prints a calendar of a month", "backs up a folder into a dated archive",
    "counts words in a text", "watches a folder for new files", "resizes all images of a folder",
    "splits a large file into parts", "merges PDF files", "shows how large each folder is",
    "keeps a to-do list in a file", "converts temperatures", "sends a message by e-mail",
    "draws a bar chart of a column of a CSV file", "reads a log and counts errors by hour", "generates passwords",
    "plays tic-tac-toe", "solves a sudoku", "simulates the game of life", "finds primes up to a limit", "sorts lines",
)  # fmt: skip
_FORMS = (
    "Write a Python script that {program}.", "Write a command in Python with argparse that {program}.",
    "Write a bash script that {program}.", "Write a small program in Go that {program}.",
    "Write a Node.js script that {program}.", "How would I write a Rust program that {program}?",
    "Write a class in Python that {program}, with tests.",
)  # fmt: skip
_TOPICS = (
    "a binary search tree", "a linked list", "a queue of two stacks", "a least-recently-used cache", "a hash map",
    "a trie", "a priority queue", "a graph with breadth-first search", "a matrix class", "a bank account class",
    "an event emitter", "a retry decorator", "a context manager that times a block", "a thread pool",
    "a rate-limited API client", "a REST API", "a web scraper", "a login form", "a shopping cart", "a state machine",
    "an iterator over pages", "a tokenizer", "a JSON parser", "merge sort", "quicksort", "binary search",
    "Dijkstra's algorithm", "the knapsack problem", "edit distance", "permutations",
)  # fmt: skip
_ASKS = (
    "Implement {topic} in {language}.", "Write {topic} in {language} and explain its complexity.",
    "Show me {topic} in {language} with an example of its use.", "What is {topic}? Give an example in {language}.",
)  # fmt: skip
_LANGUAGES = ("Python", "JavaScript", "TypeScript", "Java", "C++", "Go", "Rust", "C#")


def requests(rng: random.Random) -> Iterator[str]:
    """Yields all of them in a shuffled order."""
    every = [
        f"Write a SQL query that {query.format(table=table, a=a, b=b, c=c, d=d)}. "
        f"The table is `{table}({a}, {b}, {c}, {d})`."
        for (table, (a, c, b, d)), query in itertools.product(_TABLES, _QUERIES)
    ]
    every += [form.format(thing=thing) for form, thing in itertools.product(_PATTERN, _THINGS)]
    every += [form.format(program=program) for form, program in itertools.product(_FORMS, _PROGRAMS)]
    asked = itertools.product(_ASKS, _TOPICS, _LANGUAGES)
    every += [form.format(topic=topic, language=language) for form, topic, language in asked]
    rng.shuffle(every)
    yield from every
