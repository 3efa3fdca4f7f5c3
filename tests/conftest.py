"""One process for all tests: eight CPU devices, strict dtypes and ranks, checked annotations."""

import gc
import importlib.util
import os
import pathlib
import time

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import jax
import jaxtyping
import pytest

from tests._fixtures import fast_compiles, typecheck

jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
# What modules make when they are imported too; `pytest_runtest_setup` says for which tests it is not so.
jax.config.update("jax_disable_most_optimizations", True)
assert typecheck.functions
jaxtyping.install_import_hook("jaxspec", "tests._fixtures.typecheck.functions")
fast_compiles.install()
# Tracing makes millions of small objects, few of them garbage: by default a fifteenth of the time goes into looking.
gc.set_threshold(50_000, 20, 50)

MAPS, MOST_MAPS = pathlib.Path("/proc/self/maps"), 20_000  # of the 65,530 that Linux allows
END, LOOKED = pytest.StashKey[float](), pytest.StashKey[float]()
DEFAULT_MODEL = "smollm2-135m-instruct"


OVER_BUDGET = "the budget is spent"


def pytest_addoption(parser):
    parser.addoption("--budget", type=float, help="seconds after which tests are skipped, and listed at the end")


def pytest_configure(config):
    budget = config.getoption("--budget")
    config.stash[END] = float("inf") if budget is None else time.monotonic() + budget
    config.addinivalue_line("markers", "optimized: compiles with all of XLA's optimizations, as users do")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Programs of tiny models run for milliseconds: compile them fast, and only real models well."""
    if time.monotonic() > item.config.stash[END]:
        pytest.skip(OVER_BUDGET)
    well = any(item.get_closest_marker(name) for name in ("smollm2", "reference", "optimized"))
    jax.config.update("jax_disable_most_optimizations", not well)


@pytest.fixture(scope="module", autouse=True)
def _forget_programs():
    yield
    jax.clear_caches()


def pytest_runtest_teardown(item):
    """A process may map only so many pieces of memory, and every compiled program takes some: beyond, it crashes."""
    stash, now = item.config.stash, time.monotonic()
    if now < stash.get(LOOKED, 0.0) + 2:  # looking takes 20 ms, and a second of compiling a few hundred pieces
        return
    stash[LOOKED] = now
    if MAPS.exists() and len(MAPS.read_bytes().splitlines()) > MOST_MAPS:
        jax.clear_caches()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Marks what runs elsewhere; before `-m` selects.

    A class that inherits a contract beside another of its kind names in `quick_tests` those that are always run, and
    the rest of them is slow; a contract names in `slow_tests` those that one class of its kind shows for all.
    """
    for item in items:
        cls = getattr(item, "cls", None)
        quick, slow = getattr(cls, "quick_tests", None), getattr(cls, "slow_tests", ())
        if (quick is not None and item.originalname not in quick) or (cls and item.originalname in slow):
            item.add_marker(pytest.mark.slow)
    missing = [name for name in ("torch", "transformers") if importlib.util.find_spec(name) is None]
    if not missing:
        return
    skip = pytest.mark.skip(reason=f"needs {' and '.join(missing)}; `pip install torch transformers` runs it")
    for item in items:
        if item.get_closest_marker("reference"):
            item.add_marker(skip)


def pytest_collection_finish():
    """What is there before the first test stays to the end, so that no collection goes over it."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def smollm2():
    """The default model in float32: from the cache, or downloaded once. Never skipped."""
    from jaxspec.checkpoints.load import load

    try:
        return load(DEFAULT_MODEL, weights="dequantized")
    except Exception as error:
        pytest.fail(
            f"tests marked smollm2 need the model {DEFAULT_MODEL}: {error}\n"
            "Run with -m 'not smollm2' to leave them out.",
            pytrace=True,
        )


def pytest_terminal_summary(terminalreporter):
    """Shows what was not run within a budget, and what tests recorded, passed or not: how many near-ties there were."""
    late = [report.nodeid for report in terminalreporter.getreports("skipped") if OVER_BUDGET in str(report.longrepr)]
    if late:
        terminalreporter.write_line("\n".join([f"{len(late)} tests were not run: {OVER_BUDGET}", *late]))
    for outcome in ("passed", "failed"):
        for report in terminalreporter.getreports(outcome):
            for name, value in report.user_properties:
                terminalreporter.write_line(f"{name}: {value}")
