"""Models that are only compiled are placed as real ones would be, and their programs record few callers."""

import contextlib

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec
from typer.testing import CliRunner

from jaxspec.cli.app import app
from jaxspec.compiled import ahead_of_time
from jaxspec.compiled.ahead_of_time import Case, placed
from tests.benchmarks.same_pass import shortened


@pytest.fixture
def small(tmp_path):
    return shortened("llama-3.2-1b", 2, tmp_path)


@pytest.mark.parametrize(("devices", "axes"), [(None, ("a", "b", "c")), (4, ("b", "c")), (2, ("c",)), (1, None)])
def test_a_draft_model_is_split_over_the_last_axes(small, devices, axes):
    mesh = jax.make_mesh((2, 2, 2), ("a", "b", "c"))
    head = placed(small, mesh, "bfloat16", devices).params["embedding"]
    assert head.sharding.spec == PartitionSpec(axes, None)


def test_devices_that_no_axes_have_are_refused(small):
    with pytest.raises(ValueError, match="draft_devices must be one of 1, 2, 6, got 3"):
        placed(small, jax.make_mesh((3, 2), ("a", "b")), "bfloat16", 3)


@pytest.mark.parametrize("draft", ["ngram", "early-exit:5", "eagle:16000", "none"])
def test_what_is_no_draft_model_has_no_devices_of_its_own(draft):
    with pytest.raises(
        ValueError,
        match=f"draft_devices applies to draft models, got the drafter '{draft}'; pass a model or leave it out",
    ):
        Case("llama-3.1-8b", draft, k=0 if draft == "none" else 4, draft_devices=2)
    found = CliRunner().invoke(app, ["compile-report", "--drafter", draft, "--draft-devices", "2"])
    assert found.exit_code == 2 and "--draft-devices applies to draft models" in " ".join(found.output.split())


def _callers(calls: int) -> int:
    """Counts what is written of the callers of one operation that lies this deep."""
    if calls:
        return _callers(calls - 1)
    return jax.jit(lambda x: x + 1).trace(jnp.zeros(3)).lower().as_text(debug_info=True).count("callsite(")


@pytest.fixture
def all_callers():
    """As programs of users have them; those of tests have none (`conftest`)."""
    own = jax.config.jax_traceback_in_locations_limit
    jax.config.update("jax_traceback_in_locations_limit", -1)
    yield
    jax.config.update("jax_traceback_in_locations_limit", own)


@pytest.mark.usefixtures("all_callers")
def test_few_callers_are_remembered():
    """The TPU compiler takes hours over those of a deep stack."""
    before = jax.config.jax_traceback_in_locations_limit
    assert _callers(40) > _callers(20) > ahead_of_time._FRAMES
    with ahead_of_time._few_frames():
        assert 0 < _callers(20) == _callers(40) <= ahead_of_time._FRAMES + 1
    assert jax.config.jax_traceback_in_locations_limit == before
    with contextlib.suppress(ZeroDivisionError), ahead_of_time._few_frames():
        _ = 1 / 0
    assert jax.config.jax_traceback_in_locations_limit == before
