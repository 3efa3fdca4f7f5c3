"""The recipe of prompts for a code model: functions are found whole, and each task shows or asks what it says."""

import importlib
import pathlib
import random

import pytest

import jaxspec

FOLDER = pathlib.Path(jaxspec.__file__).parent.parent / "models" / "qwen2.5-coder-1.5b-instruct" / "training"
pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="wheels leave the recipe out")
MODULE = '''
class Queue:
    def put(self, item, front=False):
        """Puts an item after the others, or in front of them.

        More of it.
        """
        if front:
            self.items = [item] + self.items
        else:
            self.items.append(item)
        return self.items[0] == item

    def size(self):
        return len(self.items)
'''
SCRIPT = """
/**
 * Adds all numbers of an array and returns the sum.
 *
 * @param {number[]} numbers
 */
function total(numbers) {
  let sum = 0;
  for (const one of numbers) {
    sum += one;
  }
  return sum;
}
"""


@pytest.fixture
def recipe(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module


def test_functions_are_found_without_their_docstrings(recipe):
    functions = recipe("functions")
    put = next(piece for piece in functions.python(MODULE, "queues.py") if piece.name == "put")
    assert (put.kind, put.language, put.signature) == ("function", "python", "put(item, front)")
    assert put.summary == "Puts an item after the others, or in front of them."
    assert put.code.startswith("def put(self, item, front=False):\n    if front:") and '"""' not in put.code
    assert {piece.name for piece in functions.python(MODULE, "queues.py")} == {"Queue", "put"}  # `size` is too short
    assert not list(functions.python(MODULE, "tests/queues.py")) and not list(functions.python("def (", "broken.py"))
    (total,) = functions.javascript(SCRIPT, "total.js")
    assert total.signature == "total(numbers)" and total.summary == "Adds all numbers of an array and returns the sum."
    assert total.code.endswith("return sum;\n}")


@pytest.mark.parametrize("task", ["write", "complete", "change", "explain", "tests", "mend", "translate"])
def test_tasks_show_the_code_or_say_what_it_does(recipe, task):
    functions, tasks = recipe("functions"), recipe("tasks")
    piece = next(piece for piece in functions.python(MODULE, "queues.py") if piece.name == "put")
    assert tasks.fits(piece, task)
    asked = {tasks.TASKS[task][0](piece, random.Random(seed)) for seed in range(30)}
    assert len(asked) > 1
    shown = ("Puts an item", "puts an item", "def put(self, item, front")
    assert all(any(part in text for part in shown) for text in asked)
    if task == "mend":
        assert all(piece.code not in text for text in asked)
    if task in ("change", "explain", "tests"):
        assert all(piece.code in text for text in asked)


def test_requests_by_rule_are_whole_and_different(recipe):
    every = list(recipe("everyday").requests(random.Random(0)))
    assert len(every) == len(set(every)) > 1000
    assert not any("{" in text or "}" in text for text in every)
