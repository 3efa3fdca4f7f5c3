"""Heads that a command names without weights have the parts and sizes of public ones."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec

from jaxspec.checkpoints.params import abstract_model
from jaxspec.compiled import round as rounds
from jaxspec.compiled.ahead_of_time import HEAD_WEIGHTS, Case, Compiled, default_k, placed
from jaxspec.compiled.devices import CHIPS
from jaxspec.compiled.heads import HEAD_DRAFTERS, head_drafter, parse
from jaxspec.core.memory import size_of
from tests.benchmarks.same_pass import shortened

# Millions of parameters that a round of Qwen3-8B reads of each, from the published sizes of layers and vocabularies: a
# layer has 193 of them, and the target's output head 622.
LAYER, HEAD, STATE = 192.94, 151936 * 4096 / 1e6, 4096 * 4096 / 1e6
CONVOLUTIONS = 2 * 2 * 2 * 4096 * (256 + 1) / 1e6
SIZES = {
    "dspark": 5 * LAYER + 5 * STATE + HEAD + 256 * 151936 / 1e6,
    "dflash2": 5 * (LAYER + CONVOLUTIONS) + 5 * STATE + HEAD + 256 * 4096 / 1e6,
    "p-eagle": 4 * LAYER + 3 * STATE + (4096 * (4096 + 2048)) / 1e6 + 32000 * 4096 / 1e6,
    "mtp": LAYER + 2 * STATE + HEAD,
}


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    mesh = jax.make_mesh((2, 2), ("a", "b"))
    return placed(shortened("qwen3-8b", 8, tmp_path_factory.mktemp("short")), mesh, "bfloat16")


def _drafter(name, target):
    plain = abstract_model(target.module.config, jnp.bfloat16)
    return head_drafter(name, target, plain, default_k(name), HEAD_WEIGHTS["bfloat16"])


@pytest.mark.parametrize(("name", "drafts"), [("dspark", 7), ("dflash2", 7), ("p-eagle", 8), ("mtp", 4)])
def test_a_round_reads_what_public_heads_have(name, drafts, target):
    drafter = _drafter(name, target)
    assert drafter.max_drafts == drafts
    case = Case("qwen3-8b", name, k=drafts, context=256)
    alone = Case("qwen3-8b", "none", k=0, context=256)
    chip = CHIPS["TPU v5 lite"]
    with_head, without = (
        rounds.least_bytes(each, Compiled("", 0, chip, 1, target, own))
        for each, own in ((case, drafter), (alone, None))
    )
    passes = HEAD_DRAFTERS[name].passes(drafts)
    cached = rounds._cached(drafter.head, case)
    assert (with_head - without) / passes - cached == pytest.approx(2e6 * SIZES[name], rel=1e-3)


def test_weights_of_heads_are_split_like_the_targets(target):
    drafter = _drafter("dspark", target)
    assert drafter.head.params["head"].sharding.spec == PartitionSpec(("a", "b"), None)
    assert drafter.head.params["markov_after"].sharding.spec[0] == ("a", "b")
    assert drafter.head.params["layer_0"]["mlp"]["down"]["kernel"].sharding.spec[1] == ("a", "b")


def test_a_smaller_vocabulary_makes_a_smaller_head(target):
    few, all_ = (size_of(_drafter(name, target).head.params["head"]) for name in ("p-eagle:1000", "p-eagle:151936"))
    assert (few, all_) == (2 * 1000 * 4096, 2 * 151936 * 4096)


def test_a_module_takes_no_number():
    with pytest.raises(ValueError, match="mtp takes no number, got 'mtp:3'; pass mtp"):
        parse("mtp:3")
    assert HEAD_DRAFTERS["mtp"].usage("mtp") == "mtp" and HEAD_DRAFTERS["dspark"].usage("dspark") == "dspark[:BLOCK]"
