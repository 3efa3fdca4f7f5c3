"""Models that are only compiled lie on devices as they would: a draft model on fewer of them than its target."""

import jax
import pytest
from jax.sharding import PartitionSpec
from typer.testing import CliRunner

from jaxspec.bench.ahead_of_time import Case
from jaxspec.bench.compiled.placed import placed
from jaxspec.cli.app import app
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
        ValueError, match=f"draft_devices is about draft models, got the draft '{draft}'; pass a model, or leave it out"
    ):
        Case("llama-3.1-8b", draft, k=0 if draft == "none" else 4, draft_devices=2)
    found = CliRunner().invoke(app, ["compile-report", "--draft", draft, "--draft-devices", "2"])
    assert found.exit_code == 2 and "draft_devices is about draft models" in " ".join(found.output.split())
