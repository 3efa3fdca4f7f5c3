"""Chat templates: what transformers renders, within limits, by one process that ends with this one."""

import concurrent.futures
import os
import select
import signal
import subprocess
import sys

import pytest
import tokenizers

from jaxspec.checkpoints import chat_template, chat_worker
from jaxspec.checkpoints.tokenizer import import_transformers
from tests._fixtures.text_models import TEMPLATE, byte_level

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
ENVIRONMENT = os.environ | {"JAX_PLATFORMS": "cpu"}
HI = [{"role": "user", "content": "hi"}]
CHAT = [
    {"role": "system", "content": 'brief, <b>"quoted"</b> & straße'},
    {"role": "user", "content": " two\nlines "},
    {"role": "assistant", "content": "ok", "reasoning": "because", "name": None},
    {"role": "user", "content": [{"type": "text", "text": "中文 🙂"}, {"type": "n", "value": [1, 2.5, True]}]},
]
FORMS = {
    "plain": TEMPLATE,
    "blocks": "{{ bos_token }}\n  {% for m in messages %}\n    {{ m.role }}: {{ m.content }}\n  {% endfor %}\n{{ 1 }}",
    "loop controls": "{% for m in messages %}{% if loop.index == 2 %}{% continue %}{% endif %}"
    "{{ m.role }}{% if loop.index0 == 2 %}{% break %}{% endif %}{% endfor %}",
    "json": "{{ messages | tojson }}|{{ messages | tojson(indent=2, sort_keys=True) }}|{{ messages[0] | tojson }}",
    "generation": "{% set x = 1 %}{% for m in messages %}{% generation %}{% set x = 2 %}{{ m.role }}{{ x }}"
    "{% endgeneration %}{{ x }}{% endfor %}",
    "date": "{{ strftime_now('%Y-%m') }}",
    "reasoning": "{% for m in messages %}{{ m.reasoning_content }}{{ m.thinking }}{{ 'name' in m }}{% endfor %}",
    "names": "{{ tools }}{{ documents }}{{ add_generation_prompt }}{{ eos_token }}{{ unk_token }}{{ x is defined }}",
    "namespace": "{% set n = namespace(a=1) %}{% for m in messages %}{% set n.a = n.a + 1 %}{% endfor %}{{ n.a }}",
    "macro": "{% macro say(x) -%} <{{ x | trim }}> {%- endmacro %}{{ say(messages[1].content) }}{{ dict(a=1) }}",
}


@pytest.fixture
def worker():
    chat_template.render("", HI, {}, add_generation_prompt=True)
    process = chat_template._shared.worker.process
    yield process
    assert chat_template.render("{{ 1 }}", HI, {}, add_generation_prompt=True) == "1"


def _render(template, messages=HI):
    return chat_template.render(template, messages, SPECIAL, add_generation_prompt=True)


@pytest.mark.parametrize("template", FORMS.values(), ids=FORMS.keys())
def test_equals_transformers(template):
    empty = tokenizers.Tokenizer(tokenizers.models.BPE())
    renderer = import_transformers().PreTrainedTokenizerFast(tokenizer_object=empty, chat_template=template, **SPECIAL)
    expected = renderer.apply_chat_template(CHAT, add_generation_prompt=True, tokenize=False)
    assert _render(template, CHAT) == expected


@pytest.mark.slow
def test_a_template_that_does_not_end(worker, monkeypatch):
    monkeypatch.setattr(chat_worker, "CPU_SECONDS", 0)  # to the end of the second that it is in
    loop = "{% for i in range(99999) %}" * 2 + "{% endfor %}" * 2
    with pytest.raises(ValueError, match="takes more than 0 seconds"):
        _render(loop)
    assert worker.returncode == -signal.SIGXCPU


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ 'x' * 10 ** 10 }}", "more than 1,073,741,824 bytes of memory"),
        ("{% for i in range(99999) %}{{ 'x' * 10 ** 6 }}{% endfor %}", "writes more than 16,777,216 characters"),
        ("{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}", "recursion"),
        ("{{" + "(" * 10**5 + "}}", "recursion"),
        ("{% for", "unexpected 'end of template'"),
        ("{{ ''.__class__.x }}", "unsafe"),
        ("{{ namespace(__class__=1) }}", "must not begin with '_'"),
        ("{{ raise_exception('roles must alternate') }}", "^roles must alternate$"),
    ],
    ids=range(8),
)
def test_what_a_template_may_not(worker, template, message):
    with pytest.raises(ValueError, match=message) as caught:
        _render(template)
    assert len(str(caught.value)) <= 1000 and worker.poll() is None


def test_a_reason_is_short():
    with pytest.raises(ValueError, match="^x{1000}$"):
        _render("{{ raise_exception('x' * 10 ** 7) }}")


def test_a_message_that_json_has_not():
    with pytest.raises(ValueError, match="refuses these messages: Object of type object"):
        byte_level().apply_chat_template([{"role": "user", "content": "hi", "name": object()}])


def test_a_worker_that_was_killed_is_started_again(worker):
    worker.kill()
    worker.wait()
    assert _render(TEMPLATE).startswith("<|user|>hi")


def test_threads_share_one_worker(worker):
    texts = [str(i) * 50_000 for i in range(16)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        said = list(pool.map(lambda text: _render("{{ messages[0].content }}", [HI[0] | {"content": text}]), texts))
    assert said == texts and chat_template._shared.worker.process is worker


def test_a_fork_has_its_own_worker():
    """It neither reads the answers of its parent's worker nor ends it."""
    script = """if True:
        import os
        from jaxspec.checkpoints import chat_template as c
        say = lambda word: c.render(word, [], {}, add_generation_prompt=True)
        pid = say("a") and c._shared.worker.process.pid
        if not os.fork():
            print(say("b"), c._shared.worker.process.pid == pid, flush=True)
            c._shared.stop()
            os._exit(0)
        os.wait()
        print(say("c"), c._shared.worker.process.pid == pid)
    """
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=ENVIRONMENT, check=True)
    assert said.stdout.splitlines() == ["b False", "c True"]


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="the system has no handles of processes")
@pytest.mark.parametrize("end", ["pass", "os._exit(0)", "os.kill(os.getpid(), 9)"])
def test_the_worker_ends_with_its_process(end):
    script = (
        "import os, sys\nfrom jaxspec.checkpoints import chat_template as c\n"
        "c.render('', [], {}, add_generation_prompt=True)\nprint(c._shared.worker.process.pid, flush=True)\n"
        f"sys.stdin.readline()\n{end}"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "env": ENVIRONMENT}
    with subprocess.Popen([sys.executable, "-c", script], **pipes) as process:
        handle = os.pidfd_open(int(process.stdout.readline()))
        process.communicate(b"\n")
    assert select.select([handle], [], [], 60)[0] == [handle]
    os.close(handle)


def test_functions_and_variables_reach_the_template():
    template = "{{ tools[0].name }} {{ messages|length }} {{ mode }} {{ documents }}"
    given = {"mode": "quiet", "messages": [], "tools": None}
    text = chat_template.render(template, HI, {}, add_generation_prompt=True, tools=[{"name": "add"}], more=given)
    assert text == "add 1 quiet None"
    tokenizer = byte_level()
    with pytest.raises(ValueError, match="no place for tools"):
        tokenizer.apply_chat_template(HI, tools=[{"name": "add"}])
    with pytest.raises(TypeError, match="variables"):
        tokenizer.apply_chat_template(HI, variables="quiet")
