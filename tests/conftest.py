"""One process for all tests: eight CPU devices, strict dtypes and ranks, annotations checked on demand."""

import gc
import importlib.util
import logging
import os
import pathlib
import sys
import time

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ["JAXSPEC_PROGRAM_CACHE"] = "0"  # what tests replace in this process is in no key

import jax
import pytest

from tests._fixtures import fast_compiles, typecheck

jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_traceback_in_locations_limit", 0)  # a seventeenth of the time goes into places of operations
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
# Set here so that it holds for programs compiled on import too; `pytest_runtest_setup` sets it for each test.
jax.config.update("jax_disable_most_optimizations", True)
if os.environ.get("JAXSPEC_CHECK_TYPES"):
    typecheck.install()
fast_compiles.install()
fast_compiles.share_contexts()
fast_compiles.make_arrays_on_the_host()
fast_compiles.keep(pathlib.Path(__file__).parents[1] / ".jax_cache")
# Tracing makes millions of small objects, few of them garbage: by default a fifteenth of the time goes into looking.
gc.set_threshold(50_000, 20, 50)

MAPS, MOST_MAPS = pathlib.Path("/proc/self/maps"), 20_000  # of the 65,530 that Linux allows
END, LOOKED = pytest.StashKey[float](), pytest.StashKey[float]()
DEFAULT_MODEL = "smollm2-135m-instruct"


OVER_BUDGET = "the budget is spent"


def pytest_addoption(parser):
    parser.addoption("--budget", type=float, help="seconds after which tests are skipped, and listed at the end")
    parser.addoption("--all-or-fail", action="store_true", help="a budget that leaves out a test fails the run")


def pytest_configure(config):
    budget = config.getoption("--budget")
    config.stash[END] = float("inf") if budget is None else time.monotonic() + budget
    config.addinivalue_line("markers", "optimized: compiles with all of XLA's optimizations, as users do")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Compiles programs of tiny models fast, since they run for milliseconds, and only real models well."""
    if time.monotonic() > item.config.stash[END]:
        pytest.skip(OVER_BUDGET)
    well = any(item.get_closest_marker(name) for name in ("smollm2", "reference", "optimized"))
    jax.config.update("jax_disable_most_optimizations", not well)


def pytest_runtest_teardown(item):
    """Clears compiled programs before the process reaches its limit of memory maps, beyond which it crashes.

    Until then programs stay, because files that test the same tiny models share them. jaxspec drops its own later, with
    a message; here all go between tests, so that no test sees it.
    """
    if (held := sys.modules.get("jaxspec.core.programs")) is not None:
        held.PROGRAMS.files = None  # an example or a page may have set it
    stash, now = item.config.stash, time.monotonic()
    if now < stash.get(LOOKED, 0.0) + 2:  # looking takes 20 ms, and a second of compiling a few hundred pieces
        return
    stash[LOOKED] = now
    if MAPS.exists() and len(MAPS.read_bytes().splitlines()) > MOST_MAPS:
        jax.clear_caches()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Marks tests that run elsewhere, before `-m` selects.

    A class whose contract a similar class tests too names in `quick_tests` the tests that are always run; the rest
    are slow. A contract names in `slow_tests` those that one class of its kind shows for all, and in
    `long_cases` those that take long.
    """
    for item in items:
        cls = getattr(item, "cls", None)
        quick, slow = getattr(cls, "quick_tests", None), getattr(cls, "slow_tests", ())
        long = getattr(cls, "long_cases", ())
        rest = quick is not None and item.originalname not in quick
        if rest or (cls and (item.originalname in slow or {item.name, item.originalname} & {*long})):
            item.add_marker(pytest.mark.slow)
    missing = [name for name in ("torch", "transformers") if importlib.util.find_spec(name) is None]
    if not missing:
        return
    skip = pytest.mark.skip(reason=f"needs {' and '.join(missing)}; `pip install torch transformers` runs it")
    for item in items:
        if item.get_closest_marker("reference"):
            item.add_marker(skip)


def pytest_collection_finish():
    """Excludes objects that exist before the first test from garbage collection, since they live to the end."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def messages(caplog):
    """Returns a function that returns the messages jaxspec has logged since its last call."""
    caplog.set_level(logging.INFO, "jaxspec")

    def since():
        found = [record.getMessage() for record in caplog.records if record.name.startswith("jaxspec.")]
        caplog.clear()
        return found

    return since


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


def _late(terminalreporter):
    """Returns the tests that a budget left out."""
    return [report.nodeid for report in terminalreporter.getreports("skipped") if OVER_BUDGET in str(report.longrepr)]


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session):
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if session.config.getoption("--all-or-fail") and reporter is not None and _late(reporter):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter):
    """Shows what was not run within a budget, and what tests recorded, passed or not: how many near-ties there were."""
    if late := _late(terminalreporter):
        terminalreporter.write_line("\n".join([f"{len(late)} tests were not run: {OVER_BUDGET}", *late]))
    for outcome in ("passed", "failed"):
        for report in terminalreporter.getreports(outcome):
            for name, value in report.user_properties:
                terminalreporter.write_line(f"{name}: {value}")
