"""Programs that requests wait for compile first; those for later wait until nothing is decoded."""

import threading

import pytest

from jaxspec.serving.compiler import Compiler


@pytest.fixture
def made():
    """A compiler that is busy with a first task, its gate, what may be decoded, and the tasks in their order."""
    gate, idle, order = threading.Event(), threading.Event(), []
    compiler = Compiler(lambda: None, idle.is_set)
    begun = threading.Event()

    def first():
        begun.set()
        gate.wait(30.0)
        yield order.append("first")

    compiler.ask("first", first)
    begun.wait(30.0)
    yield compiler, gate, idle, order
    gate.set()
    compiler.close()


def task(order, name):
    return lambda: iter([order.append(name)])


def wait_for(compiler, key):
    for _ in range(3000):
        if compiler.done(key):
            return
        threading.Event().wait(0.01)
    raise AssertionError(f"{key} was not compiled")


def test_what_a_request_waits_for_comes_before_what_is_for_later(made):
    compiler, gate, idle, order = made
    for name in ("a", "b", "c"):
        compiler.ask(name, task(order, name), later=True)
    assert not compiler.asked("b") and not compiler.has("b", task(order, "b")) and compiler.asked("b")
    compiler.ask("b", task(order, "b"), later=True)  # it does not move back
    compiler.ask("d", task(order, "d"))
    idle.set()
    gate.set()
    wait_for(compiler, "c")
    assert order == ["first", "b", "d", "a", "c"] and not compiler.busy


def test_what_is_for_later_waits_while_rows_are_decoded(made):
    compiler, gate, idle, order = made
    compiler.ask("a", task(order, "a"), later=True)
    compiler.ask("b", task(order, "b"))
    gate.set()
    wait_for(compiler, "b")
    assert order == ["first", "b"] and compiler.busy and not compiler.done("a")
    idle.set()
    wait_for(compiler, "a")


def test_a_task_for_later_goes_on_after_what_a_request_needs(made):
    """At the next program; those before it are compiled by then."""
    compiler, gate, idle, order = made
    within, goes_on = threading.Event(), threading.Event()

    def parts():
        order.append("begins")
        within.set()
        goes_on.wait(30.0)
        yield None
        yield order.append("ends")

    compiler.ask("a", parts, later=True)
    idle.set()
    gate.set()
    within.wait(30.0)
    compiler.ask("b", task(order, "b"))
    goes_on.set()
    wait_for(compiler, "a")
    assert order == ["first", "begins", "b", "begins", "ends"]
