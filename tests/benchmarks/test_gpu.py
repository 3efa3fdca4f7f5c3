"""What the GPU benchmark writes and draws, run where the tests run; a profile, as one looks of a GPU."""

import json
from types import SimpleNamespace

import jax
import numpy as np
import pytest

import jaxspec
from jaxspec.bench.synthetic import SyntheticVerifier
from jaxspec.bench.timing import Samples
from tests._fixtures import tiny
from tests.benchmarks import gpu, gpu_cases, gpu_kernels, gpu_plot

MODEL = tiny.transformer(3, layers=2)
PROMPTS = np.random.default_rng(1).integers(0, MODEL.vocab_size, size=(8, gpu_cases.PROMPT)).astype(np.int32)


def made(drafters):
    verifier = SyntheticVerifier((1.0,))
    return gpu_cases.Setup("tiny", MODEL, drafters, verifier, PROMPTS, np.full(8, gpu_cases.PROMPT, np.int32))


class Rounds:
    """Statistics of two rows that took the same rounds."""

    def __init__(self, rounds, emitted):
        self.rounds, self.emitted = np.full(2, rounds), emitted

    @property
    def mean_acceptance_length(self):
        return self.emitted / self.rounds[0]


def event(number, nanoseconds):
    return f"events {{ metadata_id: {number} duration_ps: {nanoseconds * 1000} }}"


def profile(*planes):
    """A profile of planes, each with a name and lines, each of those with a name and events (kernel, nanoseconds)."""
    text = ""
    for name, lines in planes:
        names = "".join(f'event_metadata {{ key: {i} value {{ id: {i} name: "kernel_{i}" }} }}\n' for i in (1, 2))
        body = "".join(
            f'lines {{ name: "{line}" {" ".join(event(*one) for one in events)} }}\n' for line, events in lines
        )
        text += f'planes {{ name: "{name}"\n{body}{names}}}\n'
    return jax.profiler.ProfileData.from_text_proto(text)


def test_kernels_are_those_of_a_gpus_streams():
    found = gpu_kernels.read(
        profile(
            ("/host:CPU", [("Stream #1", [(1, 9)])]),
            ("/device:GPU:0", [("Stream #1(Compute)", [(1, 5), (2, 7), (1, 5)]), ("XLA Ops", [(1, 9)])]),
        )
    )
    assert found == {"kernel_1": (2, 10.0), "kernel_2": (1, 7.0)}


def test_a_rounds_kernels_are_what_more_rounds_add():
    prompt = {"prompt": (9, 900.0), "step": (8, 800.0)}
    longer = {"prompt": (9, 900.0), "step": (32, 4800.0), "draw": (24, 240.0)}
    found = gpu_kernels.by_round(prompt, longer, 24, most=2)
    assert (found["kernels"], found["milliseconds"]) == (2.0, pytest.approx((4000 + 240) / 24 * 1e-6, abs=1e-4))
    assert [(one["name"], one["count"]) for one in found["longest"]] == [("step", 1.0), ("draw", 1.0)]


def test_a_bar_says_the_share_of_bandwidth_or_a_rounds_time_in_plain_steps():
    case = lambda drafter, batch, time, share: {  # noqa: E731
        "drafter": drafter,
        "temperature": 0.0,
        "batch": batch,
        "milliseconds_a_round": time,
        "tokens_a_second": 600.0,
        "share_of_bandwidth": share,
    }
    found = {"cases": [case("plain", 1, 2.0, 0.5), case("ngram", 1, 3.0, None), case("ngram", 8, 3.0, None)]}
    assert gpu_plot.labels(found) == ["600, 50% of the bandwidth", "600, a round is 1.50 plain steps", "75"]


def test_a_cases_figures_are_all_of_the_same_tokens(monkeypatch):
    """A draft that fails at first and is right later: 31 rounds for 32 tokens, 65 for 128, of 2 ms each."""
    rounds = {"short": 31, "long": 65}
    timed = Samples(
        {name: [0.004 + 0.002 * count] for name, count in rounds.items()},
        {name: SimpleNamespace(stats=Rounds(count, gpu.LONG)) for name, count in rounds.items()},
    )
    monkeypatch.setattr(gpu, "interleave", lambda *_, **__: timed)
    found = gpu.measure(lambda _: None, made({}), gpu_cases.Case("ngram", 0.0, 2), 1e9, 1)
    assert found["milliseconds_a_round"] == pytest.approx(2)
    assert found["tokens_a_round"] == pytest.approx(2 * 128 / 65)
    assert found["mean_acceptance_length"] == pytest.approx(128 / 65)
    rounds = 2 * 128 / found["tokens_a_round"]
    prompt = 1e3 * 2 * 128 / found["tokens_a_second"] - rounds * found["milliseconds_a_round"]
    assert prompt == pytest.approx(4)


@pytest.mark.slow
def test_random_models_keep_the_same_part_of_their_layers(monkeypatch):
    small = dict(gpu_cases.SHAPES["smollm2-135m"], hidden_size=36, intermediate_size=64, vocab_size=97)
    monkeypatch.setitem(gpu_cases.SHAPES, "smollm2-135m", small)
    found = gpu_cases.setup("smollm2-135m", "float32", layers=3)
    assert found.about() | {"weight_bytes": 0} == {
        "model": "smollm2-135m",
        "dtype": "float32",
        "layers": 3,
        "weights": "random",
        "weight_bytes": 0,
        "drafts": 4,
        "acceptance": 0.6,
    }
    (draft,) = (one.model for one in found.drafters.values() if one is not None)
    assert draft.module.config.num_layers == 3
    assert not np.array_equal(draft.params["embedding"], found.target.params["embedding"])
    assert [case.drafter for case in found.cases()[:2]] == list(found.drafters)


@pytest.mark.slow
def test_all_cases_are_timed_written_and_drawn(tmp_path):
    setup = made({gpu_cases.PLAIN: None, "ngram": jaxspec.NGramDrafter(k=4)})
    options = gpu.parser().parse_args(["--out", str(tmp_path), "--repeats", "1", "--copy-bytes", "4096", "--profile"])
    gpu.run_model(setup, options)
    found = json.loads((tmp_path / "gpu-tiny.json").read_text())
    assert [(case["drafter"], case["temperature"], case["batch"]) for case in found["cases"]] == [
        (drafter, temperature, batch) for temperature in (0, 1) for batch in (1, 8) for drafter in ("plain", "ngram")
    ]
    assert found["not_run"] == [] and found["platform"] == "cpu"
    for case in found["cases"]:
        plain = case["drafter"] == "plain"
        assert case["rounds"]["short"] <= gpu.SHORT and (case["rounds"]["long"] == gpu.LONG or not plain)
        assert (case["share_of_bandwidth"] is not None) == plain
        assert case["tokens_a_round"] == pytest.approx(case["batch"] * gpu.LONG / case["rounds"]["long"])
        assert len(case["seconds"]["long"]) == 1
    # No GPU, no kernels of one; and that is said.
    assert "the profiler saw no kernel" in found["cases"][0]["kernels"]["error"]
    assert "ngram" in gpu_plot.plot(tmp_path).read_text()


@pytest.mark.slow
def test_without_time_one_case_is_timed_and_the_others_are_named(tmp_path):
    setup = made({gpu_cases.PLAIN: None})
    options = ["--out", str(tmp_path), "--repeats", "1", "--copy-bytes", "4096", "--budget", "0"]
    found = gpu.run_model(setup, gpu.parser().parse_args(options))
    assert len(found["cases"]) == 1 and len(found["not_run"]) == 3
