"""Prompts made by rule: word problems, German news sentences, instructions about a subject, follow-ups."""

import random
from collections.abc import Sequence

NAMES = (
    "Amira Ben Carla Dmitri Elena Farid Grace Hiro Ingrid Jonas Kavya Leo Mei Nadia Oscar Priya Quentin Rosa Samir "
    "Tanya Umar Vera Wendell Ximena Yusuf Zoe Aaron Bianca Colin Daphne Emil Fiona Gustav Hazel Imani Joel Keiko Lars"
).split()
_GOODS = (
    "notebooks pencils apples candles tickets postcards mugs plants scarves cookies lemons marbles stickers bottles "
    "cupcakes puzzles bracelets lamps ribbons pears"
).split()
_WORKS = ("paints fences", "washes cars", "walks dogs", "mows lawns", "bakes loaves of bread", "repairs bicycles")
_PLACES = ("library", "bakery", "school", "farm", "museum", "factory", "theatre", "stadium", "hospital", "market")

_WORD_PROBLEMS = (
    "{a} buys {n} {goods} for ${m} each and pays with a ${big} note. How much change does {a} get?",
    "{a} has {big} {goods}. {A} gives {n} to {b} and then shares the rest equally among {k} friends. "
    "How many {goods} does each friend get, and how many are left over?",
    "{a} {works} for ${big} a week and spends ${m} a day on food. How much money is left after {k} weeks?",
    "A {place} sold {big} tickets on Friday, {percent}% more on Saturday, and half of Saturday's number on Sunday. "
    "How many tickets did it sell in total over the three days?",
    "{a} reads {n} pages every morning and {m} pages every evening. How many days does it take {a} to finish a book of "
    "{huge} pages?",
    "A train travels at {speed} miles per hour for {k} hours, then slows down to {slow} miles per hour for the next "
    "{j} hours. How far does it travel altogether?",
    "{a} is {k} times as old as {b}. In {j} years the sum of their ages will be {big}. How old is {a} now?",
    "A recipe for {k} people needs {n} cups of flour and {m} eggs. {a} wants to cook for {big} people. How many cups of "
    "flour and how many eggs are needed?",
    "{a} saves ${n} every week. {b} saves ${m} more than {a} every week. After {k} weeks they spend ${j} together on a "
    "gift. How much do they have left?",
    "A {place} has {n} rows of {m} seats. {percent}% of the seats are taken. How many seats are still free?",
    "{a} walks {k} miles to the {place} and back every weekday, and twice as far on Saturdays. How many miles does {a} "
    "walk in {j} weeks?",
    "A jacket costs ${big}. It is discounted by {percent}%, and {a} also has a coupon for ${k} off. What does {a} pay?",
    "There are {huge} {goods} in a crate. {percent}% of them are broken, and {a} packs the others into boxes of {k}. "
    "How many full boxes does {a} get?",
    "{a}, {b} and {c} picked {goods} at a farm. {a} picked {n}, {b} picked twice as many as {a}, and {c} picked {k} fewer "
    "than {b}. How many {goods} did they pick in all?",
    "A tank holds {huge} liters of water. A pipe fills {n} liters a minute while a leak loses {k} liters a minute. How "
    "long does it take to fill the empty tank?",
    "{a} earns ${m} an hour and one and a half times that for every hour beyond {big} in a week. {A} worked {over} hours "
    "this week. How much did {a} earn?",
    "In a class of {big} students, {percent}% play football and {k} play chess only. The rest play nothing. How many "
    "students play nothing?",
    "{a} bought a phone for ${huge} and pays {percent}% at once. The rest is paid in {n} equal monthly payments. How "
    "much is each payment?",
    "A rectangular garden is {n} meters long and {m} meters wide. {a} puts a fence around it that costs ${k} a meter. "
    "How much does the fence cost?",
    "{a} can finish a job in {n} hours and {b} can finish it in {m} hours. How long does it take them together?",
    "Each of the {n} shelves in a {place} holds {m} boxes, and each box contains {k} {goods}. {a} sells {big} of the "
    "{goods}. How many remain?",
    "The ratio of {goods} to bags is {k}:{j}. If there are {n} times as many {goods} as {b} has cousins, and {b} has {m} "
    "cousins, how many bags are there?",
    "{a} drove {huge} miles in {n} days. On each of the first {k} days {a} drove {m} miles. How many miles a day did "
    "{a} average on the remaining days?",
    "{a} had some {goods}. After giving {n} to {b} and buying {m} more, {a} had {big}. How many {goods} did {a} have at "
    "first?",
    "A farmer has chickens and cows. Together they have {n} heads and {legs} legs. How many cows are there?",
    "{a}'s test scores are {n}, {m} and {big}. What score does {a} need on the next test for an average of {over}?",
    "Solve for x: {k}x + {n} = {big}. Show your steps.",
    "What is {percent}% of {huge}, plus {n}?",
    "A bag has {n} red, {m} blue and {k} green marbles. {a} draws two without putting the first back. What is the "
    "probability that both are red?",
    "A bus leaves the {place} every {n} minutes and another every {m} minutes. Both leave at 8:00. When do they next "
    "leave together?",
)


def word_problem(rng: random.Random) -> str:
    """A grade-school word problem with random people and numbers."""
    a, b, c = rng.sample(NAMES, 3)
    heads = rng.randint(12, 40)
    return rng.choice(_WORD_PROBLEMS).format(
        a=a,
        A=a,
        b=b,
        c=c,
        n=heads,
        m=rng.randint(3, 30),
        k=rng.randint(2, 9),
        j=rng.randint(2, 6),
        big=rng.randint(41, 99),
        huge=rng.randint(12, 90) * 10,
        over=rng.randint(60, 95),
        legs=2 * heads + 2 * rng.randint(2, heads - 2),
        percent=rng.randint(1, 15) * 5,
        speed=rng.randint(9, 16) * 5,
        slow=rng.randint(4, 8) * 5,
        goods=rng.choice(_GOODS),
        works=rng.choice(_WORKS),
        place=rng.choice(_PLACES),
    )


FOLLOW_UPS = (
    "Rewrite your answer in two sentences.",
    "Now explain it again as if I were ten years old.",
    "Give me three examples of what you described.",
    "Turn your answer into a bulleted list.",
    "What are the most common objections to that?",
    "Make it shorter and more formal.",
    "Rewrite it as a short poem.",
    "Which of these points matters most, and why?",
    "Can you go into more detail on the first point?",
    "Translate the main idea of your answer into simple everyday language.",
    "What would you change if the audience were experts?",
    "Write the same thing as a friendly email.",
    "Put your reply into a table with two columns.",
    "How certain are you of this? What might be wrong?",
    "Summarize what you just said and suggest a next step.",
    "Now take the opposite side.",
    "Please give a concrete example with numbers.",
    "Start again, but use a humorous tone.",
)

_ABOUT = {
    "writing": (
        "Write a short story in which {s} plays an important role.",
        "Write a blog post introducing {s} to people who have never heard of it.",
        "Draft an email to a friend recommending that they learn about {s}.",
        "Write a product description inspired by {s}.",
        "Write an opening paragraph for an essay on {s}.",
        "Compose a poem of four stanzas about {s}.",
        "Write a speech of about two minutes on why {s} matters.",
        "Create an outline for a presentation about {s}, with key points for each slide.",
        "Write five catchy headlines for an article about {s}.",
        "Write a dialogue between two friends who disagree about {s}.",
    ),
    "roleplay": (
        "You are a museum guide. Introduce {s} to a group of school children.",
        "Pretend you are a journalist in the year 2100. Report on {s}.",
        "Act as a tour guide and tell me about {s}.",
        "Imagine you are a skeptical professor. How would you question a student about {s}?",
        "You are a stand-up comedian. Tell some jokes about {s}.",
        "Play the part of a patient teacher. I know nothing about {s}: where should I begin?",
    ),
    "humanities": (
        "Explain the history and significance of {s}.",
        "Discuss how {s} has influenced culture and society.",
        "What are the main arguments for and against {s}?",
        "How would you explain {s} to a beginner?",
        "Compare {s} with {t}. What do they have in common, and how do they differ?",
        "What questions should I ask to understand {s} better?",
    ),
    "stem": (
        "Describe {s} step by step, and say why each step is needed.",
        "What are the key facts everyone should know about {s}?",
        "What common misconceptions do people have about {s}?",
        "Explain the science or technology behind {s} in simple terms.",
        "List the advantages and disadvantages of {s}.",
    ),
    "reasoning": (
        "If {s} had never existed, what would be different today?",
        "Give reasons why someone might prefer {s} to {t}.",
        "Suppose you had to make a decision about {s} with little information. How would you proceed?",
        "Rank these by how well known they are and justify the order: {s}, {t}, {u}.",
    ),
    "extraction": (
        "Suggest ten keywords for an article about {s}, as a comma-separated list.",
        "Make a JSON object describing {s} with the fields name, kind, place and summary.",
        "Sort these names alphabetically and give a one-line description of each: {s}, {t}, {u}.",
        "Make a quiz of five multiple choice questions about {s}, with the answers.",
    ),
    "coding": (
        "Write a Python function that {task}. Include a short example of how to call it.",
        "Write a program in {language} that {task}.",
        "How would you test a {language} function that {task}?",
        "Explain how to write code in {language} that {task}, and what its running time is.",
    ),
}
_LANGUAGES = ("Python", "JavaScript", "C++", "Java", "Go", "Rust", "SQL", "Ruby", "TypeScript", "C")
_TASKS = tuple(
    f"{verb} {thing}"
    for verb in ("counts", "sorts", "finds the duplicates in", "removes the smallest of", "reverses", "merges", "caches")
    for thing in (
        "the words of a text",
        "the lines of a file",
        "a list of numbers",
        "the records of a CSV file",
        "the nodes of a binary tree",
        "the keys of a dictionary",
        "a stack of dates",
        "the edges of a graph",
    )
)


def about(rng: random.Random, subjects: Sequence[str]) -> tuple[str, str]:
    """An instruction about random subjects.

    Args:
      rng: where the choices come from.
      subjects: at least three titles.

    Returns:
      The kind of conversation and the instruction.
    """
    kind = rng.choice(sorted(_ABOUT))
    s, t, u = rng.sample(subjects, 3)
    instruction = rng.choice(_ABOUT[kind]).format(
        s=s, t=t, u=u, task=rng.choice(_TASKS), language=rng.choice(_LANGUAGES)
    )
    return kind, instruction


EXTRACTIONS = (
    "List every person and organisation named in the text below.\n\n{text}",
    "Extract all numbers and dates from this text, with what they stand for, as JSON.\n\n{text}",
    "Give this article a title and three tags.\n\n{text}",
    "Is the tone of the following text positive, negative or neutral? Quote the words that show it.\n\n{text}",
    "Write three questions that this text answers, and answer them.\n\n{text}",
    "Make a timeline of the events mentioned here.\n\n{text}",
    "Rewrite the following text for children.\n\n{text}",
)

QUESTIONS = (
    "what is {s}",
    "what is {s} known for",
    "where does {s} come from",
    "when did {s} begin",
    "who is involved in {s}",
    "how does {s} work",
    "why is {s} important",
    "what is the meaning of {s}",
    "what happened with {s}",
    "tell me the main facts about {s}",
)
