"""Word problems of a few steps, made by rule with random people, things and numbers.

The GSM-Symbolic generators that packages carry are not used: their templates are questions of
GSM8K's test split.
"""

import itertools
import json
import random
from pathlib import Path

_WORDS = json.loads((Path(__file__).parent / "words" / "problems.json").read_text("utf-8"))
_PEOPLE = [(name, pronoun) for pronoun in ("she", "he") for name in _WORDS[pronoun]]
_PLACES, _DAYS = _WORDS["places"], _WORDS["days"]


def _goods(rng: random.Random, count: int) -> list[str]:
    return rng.sample(_WORDS["goods"], count)


def _relation(rng: random.Random) -> str:
    return rng.choice(_WORDS["relations"]).format(n=rng.randint(2, 9), percent=rng.choice((10, 20, 25, 50)))


def _sales(rng: random.Random) -> str:
    (name, pronoun), (good,) = rng.choice(_PEOPLE), _goods(rng, 1)
    start = rng.randrange(len(_DAYS) - 3)
    days = _DAYS[start : start + rng.randint(2, 4)]
    parts = [f"{name} sells {good} at the {rng.choice(_PLACES)} for ${rng.randint(2, 15)} each."]
    parts.append(f"On {days[0]} {pronoun} sold {rng.randint(2, 30) * 4} of them.")
    parts += [f"On {day} {pronoun} sold {_relation(rng)} on {before}." for before, day in itertools.pairwise(days)]
    cost = f"If each one costs {name} ${rng.choice((0.5, 1, 1.5)):g} to make, how much profit did {pronoun} make?"
    question = f"How much money did {name} take in over these {len(days)} days?"
    return " ".join([*parts, rng.choice((cost, question, f"How many {good} did {name} sell altogether?"))])


def _stock(rng: random.Random) -> str:
    (name, pronoun), (friend, _) = rng.sample(_PEOPLE, 2)
    (good,) = _goods(rng, 1)
    events = [
        f"{pronoun} gives {rng.randint(3, 12)} of them to {friend}",
        f"{pronoun} buys {rng.randint(2, 6)} boxes with {rng.randint(4, 12)} {good} in each",
        f"{pronoun} loses a {rng.choice(('third', 'quarter', 'fifth', 'half'))} of what is left",
        f"{friend} brings {'her' if pronoun == 'she' else 'him'} {rng.randint(5, 25)} more",
        f"{pronoun} sells {rng.randint(4, 20)} of them for ${rng.randint(2, 5)} each",
        f"{pronoun} doubles the number by trading at the {rng.choice(_PLACES)}",
    ]
    chosen = rng.sample(events, rng.randint(2, 4))
    linked = [f"Then {event}." if place else f"First {event}." for place, event in enumerate(chosen)]
    return " ".join(
        [f"{name} starts with {rng.randint(10, 40) * 6} {good}.", *linked, f"How many {good} are there now?"]
    )


def _comparison(rng: random.Random) -> str:
    people = [name for name, _ in rng.sample(_PEOPLE, rng.randint(3, 5))]
    (good,) = _goods(rng, 1)
    verb = rng.choice(("has", "collected", "baked", "counted", "packed"))
    parts = [f"{people[0]} {verb} {rng.randint(3, 25) * 4} {good}."]
    parts += [f"{after} {verb} {_relation(rng)} {before}." for before, after in itertools.pairwise(people)]
    ends = (
        "How many do they have in all?",
        f"How many more {good} than {people[-1]} does {people[0]} have?",
        "What is the average number per person?",
        f"If they share all the {good} equally, how many does each get?",
    )
    return " ".join([*parts, rng.choice(ends)])


def _trip(rng: random.Random) -> str:
    name, pronoun = rng.choice(_PEOPLE)
    hours = [rng.randint(2, 6) for _ in range(rng.randint(2, 3))]
    way = rng.choice(_WORDS["ways"])
    parts = [f"{name} {way} for {hours[0]} hours at {rng.randint(4, 13) * 5} miles per hour."]
    parts += [
        f"After a break of {rng.randint(2, 9) * 5} minutes {pronoun} goes on for {time} hours at "
        f"{rng.randint(3, 12) * 5} miles per hour."
        for time in hours[1:]
    ]
    ends = (
        "How many miles is that in total?",
        f"What is {name}'s average speed, without the breaks?",
        f"If the whole way is {rng.randint(60, 90) * 10} miles, how far does {name} still have to go?",
        f"If {pronoun} started at {rng.randint(5, 9)} a.m., when does the trip end?",
    )
    return " ".join([*parts, rng.choice(ends)])


def _wages(rng: random.Random) -> str:
    name, pronoun = rng.choice(_PEOPLE)
    rate, week = rng.randint(9, 32), rng.randint(20, 40)
    parts = [f"{name} {rng.choice(_WORDS['work'])} {week} hours a week and earns ${rate} an hour."]
    extras = [
        f"For every hour beyond {week - rng.randint(2, 10)} {pronoun} gets one and a half times as much.",
        f"Each month {pronoun} pays ${rng.randint(30, 90) * 10} in rent and ${rng.randint(5, 30) * 10} for food.",
        f"{rng.randint(2, 6) * 5}% of the pay goes to taxes.",
        f"On top of that {pronoun} gets ${rng.randint(10, 60)} a week in tips.",
        f"{pronoun.capitalize()} puts a {rng.choice(('tenth', 'fifth', 'quarter'))} of the pay into a savings account.",
    ]
    ends = (
        f"How much money does {name} have left after {rng.randint(2, 8)} weeks?",
        f"How much does {name} earn in a year of 52 weeks?",
        f"How many weeks does {name} need to buy a bicycle for ${rng.randint(30, 120) * 10}?",
    )
    return " ".join([*parts, *rng.sample(extras, rng.randint(1, 2)), rng.choice(ends)])


def _packing(rng: random.Random) -> str:
    name, _ = rng.choice(_PEOPLE)
    first, second = _goods(rng, 2)
    parts = [
        f"A {rng.choice(_PLACES)} receives {rng.randint(3, 20)} crates with {rng.randint(4, 12)} boxes in each.",
        f"Every box holds {rng.randint(6, 24)} {first} and {rng.randint(2, 9)} {second}.",
    ]
    if rng.random() < 0.6:
        parts.append(f"{name} notices that {rng.randint(1, 6) * 5}% of the {first} are broken and throws them away.")
    ends = (
        f"How many good {first} and {second} are there in total?",
        f"If {name} sorts the {second} into bags of {rng.randint(3, 8)}, how many bags are full?",
        f"Each of the {first} sells for ${rng.randint(2, 9)}. How much are they worth together?",
    )
    return " ".join([*parts, rng.choice(ends)])


def _receipt(rng: random.Random) -> str:
    name, pronoun = rng.choice(_PEOPLE)
    items = [
        f"{rng.randint(2, 9)} {good} at ${rng.choice((0.5, 1.25, 2, 3, 4.5, 6, 12)):.2f} each"
        for good in _goods(rng, rng.randint(2, 4))
    ]
    parts = [f"{name} buys {', '.join(items[:-1])} and {items[-1]}."]
    extras = [
        f"There is a discount of {rng.randint(1, 6) * 5}% on everything.",
        f"Sales tax of {rng.randint(4, 10)}% is added.",
        f"{pronoun.capitalize()} has a coupon for ${rng.randint(2, 9)} off.",
        f"Delivery costs another ${rng.randint(3, 12)}.",
    ]
    ends = (f"How much does {name} pay?", f"How much change does {name} get from ${rng.choice((100, 150, 200))}?")
    return " ".join([*parts, *rng.sample(extras, rng.randint(0, 2)), rng.choice(ends)])


def _group(rng: random.Random) -> str:
    whole = rng.randint(4, 30) * 20
    place = rng.choice(_PLACES)
    who = rng.choice(("visitors", "workers", "students", "members", "guests"))
    parts = [f"There are {whole} {who} at a {place}.", f"{rng.randint(4, 12) * 5}% of them are adults."]
    parts.append(f"Of the adults, {rng.choice(('half', 'a quarter', 'two fifths', 'three quarters'))} wear glasses.")
    if rng.random() < 0.5:
        parts.append(f"Later {rng.randint(5, 40)} more adults without glasses arrive.")
    ends = (
        "How many adults do not wear glasses?",
        f"How many of the {who} are children?",
        f"A ticket is ${rng.randint(6, 20)} for adults and ${rng.randint(2, 5)} for children. What do they all pay?",
    )
    return " ".join([*parts, rng.choice(ends)])


def _saving(rng: random.Random) -> str:
    (name, pronoun), (friend, _) = rng.sample(_PEOPLE, 2)
    parts = [
        f"{name} wants to buy a {rng.choice(_WORDS['wishes'])} that costs ${rng.randint(12, 80) * 10}.",
        f"{pronoun.capitalize()} already has ${rng.randint(2, 10) * 10}.",
        f"{pronoun.capitalize()} {rng.choice(_WORDS['work'])} {rng.randint(2, 5)} times a week "
        f"for ${rng.randint(5, 25)} each time.",
    ]
    if rng.random() < 0.5:
        parts.append(f"{friend} lends another ${rng.randint(1, 5) * 10}.")
    if rng.random() < 0.5:
        parts.append(f"But {pronoun} also spends ${rng.randint(3, 9)} a week on snacks.")
    return " ".join([*parts, f"How many weeks will it take until {name} can afford it?"])


def _short(rng: random.Random) -> str:
    (a, _), (b, _) = rng.sample(_PEOPLE, 2)
    n, m, k, heads = rng.randint(11, 40), rng.randint(3, 30), rng.randint(2, 9), rng.randint(12, 40)
    legs = 2 * heads + 2 * rng.randint(2, heads - 2)
    return rng.choice(
        (
            f"{a} is {k} times as old as {b}. In {m} years the sum of their ages will be {(k + 1) * n + 2 * m}. "
            f"How old is {a} now?",
            f"A rectangular garden is {n} meters long and {m} meters wide. What does a fence around it cost at ${k} a "
            "meter?",
            f"{a} can finish a job in {n} hours and {b} in {m} hours. How long does it take them together?",
            f"A farmer has chickens and cows with {heads} heads and {legs} legs altogether. How many cows are there?",
            f"A tank holds {n * 10} liters. A pipe fills {m + k} liters a minute while a leak loses {k}. "
            "How long does it take to fill the empty tank?",
            f"Solve for x: {k}x + {n} = {k * m + n}. Show your steps.",
            f"A bag has {n} red, {m} blue and {k} green marbles. {a} draws two without putting the first back. What is "
            "the probability that both are red?",
            f"One bus leaves every {n} minutes and another every {m} minutes. Both leave at 8:00. When do they next "
            "leave together?",
            f"The sum of {k} consecutive whole numbers is {k * n + k * (k - 1) // 2}. What is the largest of them?",
            f"A triangle has sides of {n}, {n + 1} and {n + k} centimeters. What are its perimeter and its area?",
            f"A shirt costs ${n * 2}. Its price rises by {k * 5}% and then falls by {k * 5}%. What does it cost now?",
            f"What is the remainder when {n * m + k} is divided by {m}?",
        )
    )


_FAMILIES = (_sales, _stock, _comparison, _trip, _wages, _packing, _receipt, _group, _saving, _short)


def word_problem(rng: random.Random) -> str:
    """A word problem of one to five steps."""
    return rng.choice(_FAMILIES)(rng)
