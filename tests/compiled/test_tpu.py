"""The loop compiled by the TPU compiler: it fits, reads little more than it must, and copies nothing large."""

import dataclasses
import importlib.util
import json
import re

import jax
import pytest
from typer.testing import CliRunner

from jaxspec.cli.app import app
from jaxspec.compiled import ahead_of_time, devices, round as rounds
from jaxspec.compiled.ahead_of_time import Case, compile_case, placed
from jaxspec.compiled.devices import CHIPS
from jaxspec.compiled.hlo import Instruction, Program
from jaxspec.compiled.round import least_bytes, round_of
from jaxspec.compiled.tpu import as_json, costs, lines, report
from jaxspec.core.memory import size_of
from jaxspec.families.table import SHAPES, shape
from jaxspec.nn.network import packed_weights
from jaxspec.ops.formats import FORMATS
from jaxspec.ops.matmul import contract
from jaxspec.text.names import DRAFTERS
from tests._fixtures.widened import widened
from tests.benchmarks import machine_code
from tests.benchmarks.same_pass import compare, cut_otherwise, shortened
from tests.benchmarks.tpu import CASES, markdown

machine_code.ask_for_it()  # before any test loads libtpu
needs_compiler = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="needs the TPU compiler; `pip install 'jax[tpu]'` brings it"
)


@needs_compiler
@pytest.mark.optimized
@pytest.mark.parametrize(
    ("case", "bandwidth", "most"),
    [
        (Case("llama-3.2-1b", "ngram", "v5e:2x2"), CHIPS["TPU v5 lite"].bandwidth, 4),
        (Case("llama-3.2-1b", "none", "tpu7x:2x2x1", k=0), CHIPS["TPU7x"].part(2).bandwidth, 15),
    ],
    ids=["drafts, v5e", "plain, tpu7x"],
)
def test_the_compiled_loop_wastes_nothing(case, bandwidth, most):
    machine_code.collect()
    codes = []
    found = report(case, read_code=lambda program: codes.append(machine_code.read_code(program)) or codes[-1])
    assert found.fits and found.memory < found.available
    assert all(len(code) > 100 and sum(each.waits for each in code.values()) > 0 for code in codes)
    for one in (found.round, found.plain):
        assert 0.5 < one.bytes / one.least_bytes <= 1.1  # less than 1: some weights stay on the chip
        assert one.layer_collectives == {"all-reduce": 2.0}
        assert one.gathered_bytes == 0 and one.copied_bytes == 0
        # Many times what reading takes: attention and norms are small steps that are charged a fixed cost each.
        assert one.bytes / bandwidth <= one.low < one.high < most * one.least_bytes / bandwidth
    assert json.loads(as_json(found))["fits"] is True
    heading, rule, row = markdown([found])
    assert heading.count("|") == rule.count("|") == row.count("|") and "2 all-reduce" in row
    assert dict(lines(found))["target, drafter"].startswith("llama-3.2-1b")


@needs_compiler
@pytest.mark.optimized
@pytest.mark.parametrize(("kernels", "least"), [("pallas", 9), pytest.param("xla", 11, marks=pytest.mark.slow)])
def test_a_round_has_the_pass_of_a_plain_step(kernels, least, tmp_path):
    """With fixed passes each product and reduction of four layers is compiled alike; without, it is not."""
    case = Case(shortened("llama-3.1-8b", 4, tmp_path), "ngram", "v5e:2x2", pass_tokens=16, kernels=kernels)
    mine, theirs = compare(case)
    assert mine.keys() == theirs.keys()
    assert {f"layer_{layer}" for layer in range(4)} < {one.scope.partition("/")[0] for one in mine}
    assert sum(one.scope.startswith("layer_0") for one in mine) >= least  # a kernel's own are not seen
    assert len(cut_otherwise(mine, theirs)) < (1 if kernels == "pallas" else len(mine) / 10)
    as_it_is, plain = compare(dataclasses.replace(case, pass_tokens=None))
    assert len(as_it_is.keys() ^ plain.keys()) > len(plain)


# Of layers that do not fit a chip's own memory, and of a size that no other array of a round has.
WIDE = {"model_type": "llama", "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 2}
WIDE |= {"num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 32000, "max_position_embeddings": 2048}
WIDE |= {"rms_norm_eps": 1e-5, "rope_theta": 1e4, "tie_word_embeddings": False}


@pytest.fixture
def wide(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(WIDE))
    return str(tmp_path)


@needs_compiler
@pytest.mark.slow
@pytest.mark.optimized
@pytest.mark.parametrize(
    ("weights", "topology"),
    [("int8", "v5e:2x2"), ("int4", "v5e:2x2"), ("int4", "v6e:2x2"), ("int4", "tpu7x:2x2x1")],
)
def test_no_weight_is_wider_than_it_is_stored(weights, topology, wide):
    case = Case(wide, "ngram", topology, weights=weights)
    compiled = compile_case(case)
    program = Program(compiled.text)
    assert not widened(program, round_of(program), compiled.target)
    found = costs(case, compiled)
    assert found.copied_bytes == found.gathered_bytes == 0


def _reads_more(*case, times):
    reason = f"it reads {times} of its least"
    return pytest.param(*case, marks=pytest.mark.xfail(strict=True, raises=AssertionError, reason=reason))


@needs_compiler
@pytest.mark.slow
@pytest.mark.optimized
@pytest.mark.parametrize(
    ("weights", "topology", "kernels"),
    [
        ("int8", "v5e:2x2", "auto"),
        ("int4", "v5e:2x2", "auto"),
        ("int4", "v6e:2x2", "auto"),
        ("int4", "tpu7x:2x2x1", "xla"),
        _reads_more("int4", "v5e:2x2", "xla", times=1.10),
        _reads_more("int4", "tpu7x:2x2x1", "auto", times=1.046),  # a weight that was read ahead is read again
    ],
)
def test_quantized_weights_are_read_once(weights, topology, kernels, wide):
    case = Case(wide, "ngram", topology, weights=weights, kernels=kernels)
    found = costs(case, compile_case(case))
    assert 0.3 < found.bytes / found.least_bytes <= 1.03  # less than 1: some weights stay on the chip


@needs_compiler
@pytest.mark.slow
@pytest.mark.optimized
def test_a_weight_that_is_widened_first_is_found(monkeypatch, wide):
    """Written in the usual way, the widened weight is in memory, and more bytes move than were saved."""
    product = lambda packed, x: contract(x, packed[:].astype(x.dtype))
    monkeypatch.setattr(FORMATS["grouped"], "product", product)
    case = Case(wide, "ngram", weights="int4")
    compiled = compile_case(case)
    program = Program(compiled.text)
    assert widened(program, round_of(program), compiled.target)
    assert costs(case, compiled).bytes > 2 * least_bytes(case, compiled)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind"), [(name.partition(":")[0], name) for name in (*DRAFTERS, "early-exit:5")])
def test_any_drafter_without_weights_can_be_compiled(name, kind):
    mesh = jax.make_mesh((2,), ("model_0",))
    target = placed("llama-3.2-1b", mesh, "bfloat16")
    drafter = ahead_of_time._drafter(Case("llama-3.2-1b", kind, k=3), target, mesh)
    assert type(drafter) is DRAFTERS[name].kind and drafter.max_drafts == 3


@pytest.fixture
def small(tmp_path):
    return shortened("llama-3.2-1b", 2, tmp_path)


@pytest.mark.parametrize(
    ("kind", "drafts"),
    [("eagle:16000", 4), ("dflash:8", 7), ("dflash-tree:8", 7), ("medusa", 4)],
)
def test_a_head_can_be_compiled_by_its_sizes_alone(kind, drafts, small):
    mesh = jax.make_mesh((2,), ("model_0",))
    target = placed(small, mesh, "int8")
    case = Case(small, kind, k=ahead_of_time.default_k(kind), weights="int8")
    drafter = ahead_of_time._drafter(case, target, mesh)
    assert drafter.max_drafts == drafts
    assert drafter.head.placement == target.placement
    assert packed_weights(drafter.head)
    assert all(x.sharding.mesh == target.placement.mesh for x in jax.tree.leaves(drafter.head))
    compiled = ahead_of_time.Compiled("", 0, CHIPS["TPU v4"], 2, target, drafter)
    alone = dataclasses.replace(compiled, drafter=None)
    own = 2 * (least_bytes(case, compiled) - least_bytes(dataclasses.replace(case, drafter="none", k=0), alone))
    params, dense = drafter.head.params, 2048 * 2 * (2 * 8 * 64)
    sizes = {name: size_of(x) for name, x in params.items()}
    if kind == "eagle:16000":
        assert own == sizes.pop("fuse") + 4 * (sum(sizes.values()) + dense)
    else:
        layers = {"dflash": 5, "dflash-tree": 5}.get(kind.partition(":")[0], 0)
        assert own == sum(sizes.values()) + layers * dense


@pytest.mark.slow
def test_what_drafts_where_nothing_is_said():
    found = {model: ahead_of_time.default_drafter(model) for model in ("llama-3.2-1b", "qwen3-4b", "llama-3.1-405b")}
    assert found == {"llama-3.2-1b": "ngram", "qwen3-4b": "dflash", "llama-3.1-405b": "dflash"}


@pytest.mark.parametrize(
    ("draft", "name", "trips"),
    [("none", "history_by_1024", 2), ("eagle", "first_draft/while/body/take_in", 1), ("eagle", "take_in", 0)],
)
def test_loops_of_a_round_are_known_by_their_scopes(draft, name, trips):
    case = Case("llama-3.2-1b", draft, k=ahead_of_time.default_k(draft))
    loop = Instruction("while.1", "while", (), (), "", f'), metadata={{op_name="jit(f)/propose/{name}/while"}}', False)
    assert rounds.trips(case, loop) == trips


@needs_compiler
@pytest.mark.optimized
def test_top_k_and_top_p_are_counted(small):
    """Bisection runs as often as a float has bits, and each pass asks all devices."""
    plain = Case(small, "ngram", k=2)
    found = [costs(case, compile_case(case)) for case in (plain, dataclasses.replace(plain, top_k=40, top_p=0.9))]
    more = sum(found[1].other_collectives.values()) - sum(found[0].other_collectives.values())
    assert more >= 2 * (32 // 4 - 1)
    assert {"history_by_2048", "with_drafts"} <= set(found[1].loops)


@needs_compiler
@pytest.mark.optimized
def test_what_does_not_fit_is_said():
    found = report(Case("llama-3.2-1b", "none", k=0, batch=64, context=8192, devices=1))
    assert not found.fits and found.memory > found.available
    assert "**no**" in list(markdown([found]))[-1]
    assert any("does not fit" in value for _, value in lines(found))
    assert json.loads(as_json(found))["fits"] is False


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("smollm2-135m", 0.1345),
        ("llama-3.2-1b", 1.236),
        ("llama-3.1-8b", 8.03),
        ("qwen3-4b", 4.022),
        ("qwen3-8b", 8.191),
        pytest.param("llama-3.3-70b", 70.55, marks=pytest.mark.slow),
        pytest.param("llama-3.1-405b", 405.85, marks=pytest.mark.slow),
    ],
)
def test_shapes_have_as_many_weights_as_the_models(name, billions):
    config, case = shape(name), Case(name, k=0, drafter="none", context=256)
    model = ahead_of_time.abstract_model(config, "bfloat16")
    compiled = ahead_of_time.Compiled("", 0, CHIPS["TPU v4"], 1, model, None)
    slots = 256 * 2 * 2 * config.num_layers * config.num_kv_heads * config.head_dim
    read = (least_bytes(case, compiled) - slots) / 2
    embedding = 0 if config.tied_head else config.vocab_size * config.width
    assert (read + embedding) / 1e9 == pytest.approx(billions, rel=1e-3)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--model", "gpt-9"], "the model must be one of smollm2-135m, .* got 'gpt-9'"),
        (["--drafter", "none", "-k", "3"], "-k 3 needs a drafter"),
        (["--model", __file__], r"test_tpu.py: JSONDecodeError: Extra data"),
        (["-k", "0"], "k must be at least 1, got 0"),
        pytest.param(
            ["--top-k", "0"],
            "--top-k must be at least 1, got 0; leave it out to keep all tokens",
            marks=pytest.mark.slow,
        ),
        pytest.param(["--top-p", "1.5"], "--top-p must be above 0 and at most 1, got 1.5", marks=pytest.mark.slow),
        (["--drafter", "eagle:many"], "eagle takes a VOCAB of at least 1, got 'eagle:many'; pass eagle:32000"),
        pytest.param(["--context", "10"], "context must be at least 256, got 10", marks=pytest.mark.slow),
        (["--model", "smollm2-135m", "--drafter", "none", "--weights", "int4"], "got 128 for the 576 of embedding"),
    ],
)
def test_mistakes_are_said(monkeypatch, options, text):
    monkeypatch.setattr(devices, "tpus", lambda topology: (jax.devices()[:1], None))
    result = CliRunner().invoke(app, ["compile-report", *options])
    assert result.exit_code == 2
    assert re.search(text, " ".join(result.output.split()))


def test_a_case_is_checked_before_the_compiler_is_asked_for():
    with pytest.raises(ValueError, match="eagle takes a VOCAB of at least 1, got 'eagle:many'; pass eagle:32000"):
        Case("llama-3.1-8b", "eagle:many")


@pytest.mark.slow
def test_without_the_compiler_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    result = CliRunner().invoke(app, ["compile-report"])
    assert result.exit_code == 2 and "pip install 'jax[tpu]'" in result.output


@needs_compiler
def test_topologies_that_do_not_exist_are_refused():
    with pytest.raises(ValueError, match="the TPU compiler does not know the topology 'v99:2x2'"):
        compile_case(Case("smollm2-135m", topology="v99:2x2", k=0))
    for name in ("v5e=2x2", "", "v5e"):
        with pytest.raises(ValueError, match=f"topology must be a generation and its extent, .* got '{name}'"):
            compile_case(Case("smollm2-135m", topology=name, k=0))
    with pytest.raises(ValueError, match="devices must be 1 to the 4 of v5e:2x2, got 5"):
        compile_case(Case("smollm2-135m", devices=5, k=0))


@needs_compiler
def test_a_chip_of_v4_is_one_device():
    found, chip = devices.tpus("v4:2x2x1")
    assert len(found) == 4 and chip == CHIPS["TPU v4"]


def test_the_cases_cover_every_shape_and_generation():
    # Mixtures of experts have no bytes to compare with yet.
    dense = {name for name, shape in SHAPES.items() if "num_experts_per_tok" not in shape}
    assert {name for case in CASES["all"] for name in (case.model, case.drafter)} == {
        *dense,
        "ngram",
        "dflash",
        "eagle",
    }
    assert {case.topology.split(":")[0] for case in CASES["all"]} == {"v4", "v5e", "v5p", "v6e", "tpu7x"}
    assert set(CASES["small"]) <= set(CASES["all"])
