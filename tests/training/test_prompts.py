"""Prompt files, and keeping evaluation questions out."""

import gzip
import hashlib
import json

import pytest

from jaxspec.training.prompts import (
    RUN,
    TURNS_FILE,
    Conversation,
    Exclusion,
    hash_lines,
    normalize,
    read_prompts,
    turn_hash,
)
from tests._fixtures.contamination import contaminated, read_hashes
from tests._fixtures.evaluation import EVALUATION, ROOT

LONG = " ".join(f"word{number}" for number in range(RUN))


def _write(path, *lines):
    path.write_text("".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines), "utf-8")
    return path


def test_every_form_is_read(tmp_path):
    first = _write(
        tmp_path / "a.jsonl",
        {"prompt": "hi", "category": "chat", "source": "me", "license": "MIT", "question_id": 3},
        "\n",
        {"turns": ["one", "two"], "answers": ["eins", "zwei"]},
    )
    user = lambda text: {"role": "user", "content": text}
    assistant = lambda text: {"role": "assistant", "content": text}
    second = _write(
        tmp_path / "b.jsonl",
        {"messages": [{"role": "system", "content": "be brief"}, user("a"), assistant("b"), user("ü")]},
        {"messages": [user("a"), assistant("b")]},
    )
    assert read_prompts([first, second]) == [
        Conversation(("hi",), category="chat", source="me", license="MIT"),
        Conversation(("one", "two"), ("eins", "zwei")),
        Conversation(("a", "ü"), ("b",), "be brief"),
        Conversation(("a",), ("b",)),
    ]


CALL = {"role": "assistant", "tool_calls": [{"function": {"name": "clock", "arguments": {}}}]}
TOOLS = [
    {"role": "user", "content": "time?"},
    CALL,
    {"role": "tool", "content": "9"},
    {"role": "tool", "content": "10"},
]


def test_parts_shared_conversations_and_tools_are_read(tmp_path):
    human, gpt = {"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    path = _write(
        tmp_path / "a.jsonl",
        {"conversations": [{"from": "system", "value": "be brief"}, human, gpt, human]},
        {"conversations": [{"role": "user", "content": "a"}]},
        {"messages": [{"role": "user", "content": parts}]},
        {"messages": TOOLS},
        {"messages": [*TOOLS, {"role": "assistant", "content": "ten"}]},
    )
    shared, plain, joined, tools, answered = read_prompts([path])
    assert shared == Conversation(("a", "a"), ("b",), "be brief")
    assert (plain, joined) == (Conversation(("a",)), Conversation(("one\ntwo",)))
    assert (tools.turns, tools.answers) == (("time?", "9\n10"), ("",))
    assert tools.messages([]) == TOOLS[:1] and tools.answer(0) == CALL
    assert tools.messages([""]) == answered.messages([""]) == TOOLS
    assert answered.messages(["", "ten"])[-1] == answered.answer(1) == {"role": "assistant", "content": "ten"}


def test_a_system_message_may_be_next_to_the_others(tmp_path):
    human, user = {"from": "human", "value": "a"}, {"role": "user", "content": "a"}
    forms = [{"conversations": [human]}, {"messages": [user]}, {"turns": ["a"]}, {"prompt": "a"}]
    path = _write(tmp_path / "a.jsonl", *(form | {"system": "be brief"} for form in forms))
    assert read_prompts([path]) == [Conversation(("a",), (), "be brief")] * 4
    tools = {"messages": TOOLS, "system": "be brief"}
    (called,) = read_prompts([_write(tmp_path / "a.jsonl", tools)])
    assert called.messages([""])[0] == {"role": "system", "content": "be brief"} and called.turns[0] == "time?"
    assert read_prompts([_write(tmp_path / "a.jsonl", forms[0] | {"system": ""})]) == [Conversation(("a",))]


def test_calls_have_empty_texts_and_answers_other_names(tmp_path):
    empty = [TOOLS[0], CALL | {"content": ""}, {"role": "tool", "content": ""}]
    turns = [{"from": name, "value": "a"} for name in ("user", "chatgpt", "human", "bing", "user", "bard")]
    called, shared = read_prompts([_write(tmp_path / "a.jsonl", {"messages": empty}, {"conversations": turns})])
    assert called.turns == ("time?", "") and called.messages([""]) == empty
    assert shared == Conversation(("a",) * 3, ("a",) * 3)


def test_lines_of_windows_are_read(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"prompt": "a\\r\\n"}\r\n\r\n\xef\xbb\xbf{"prompt": "b"}\r\n')
    assert read_prompts([path]) == [Conversation(("a\r\n",)), Conversation(("b",))]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "Expecting"),
        ('["hi"]', "expected an object .* got list"),
        ('{"text": "hi"}', "expected one of prompt, turns, messages, conversations, got .'text'"),
        ('{"prompt": "hi", "turns": ["hi"]}', "got prompt and turns"),
        ('{"prompt": 3}', "prompt must be a string, got int"),
        ('{"prompt": " "}', "prompt is empty"),
        ('{"prompt": "hi", "category": 3}', "category must be a string"),
        ('{"prompt": "hi", "answers": ["ho"]}', "answers belong to turns"),
        ('{"turns": []}', "turns must be a list of at least one string, got an empty list"),
        ('{"turns": ["hi", 3]}', r"turns\[1\] must be a string"),
        ('{"turns": ["hi", "ho"], "answers": ["x"]}', "one answer a turn, got 1 for 2"),
        ('{"messages": [{"role": "assistant", "content": "hi"}]}', "messages must alternate user and assistant"),
        ('{"messages": [{"role": "system", "content": "hi"}]}', "messages must alternate user and assistant"),
        ('{"messages": ["hi"]}', "objects with role and content"),
        (
            '{"messages": [{"role": "user", "content": null}]}',
            "the content of a message must be a string, got NoneType",
        ),
        ('{"messages": [{"role": "user", "content": [{"type": "image"}]}]}', "models here read text only"),
        ('{"messages": [{"role": "user", "content": [{"type": "text", "text": " "}]}]}', "content is empty"),
        ('{"conversations": [{"from": "gpt", "value": "hi"}]}', "conversations must alternate user and assistant"),
        ('{"conversations": [{"from": ["human"], "value": "hi"}]}', "from must be a string, got list"),
        (
            '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "tool_calls": "f"}]}',
            "tool_calls of a message must be a list of dictionaries, got 'f'",
        ),
        ('{"conversations": [{"from": "human"}]}', "the content of a message must be a string, got NoneType"),
        ('{"prompt": "hi", "system": ["be brief"]}', "system must be a string, got list"),
        (
            '{"messages": [{"role": "system", "content": "a"}, {"role": "user", "content": "b"}], "system": "c"}',
            "system is next to a message of the system; leave one out",
        ),
        (b'{"prompt": "\xff"}', "utf-8"),
        (r'{"prompt": "ab\ud800"}', "half of a surrogate pair at 2"),
        ("[" * 100_000, "RecursionError"),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, message):
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(b'{"prompt": "fine"}\n' + (line if isinstance(line, bytes) else line.encode()) + b"\n")
    with pytest.raises(ValueError, match=rf"prompts\.jsonl: line 2: .*{message}"):
        read_prompts([path])


def test_a_file_of_nothing_is_a_mistake(tmp_path):
    with pytest.raises(ValueError, match=r"no prompt in .*empty\.jsonl"):
        read_prompts([_write(tmp_path / "empty.jsonl", "\n")])
    with pytest.raises(FileNotFoundError):
        read_prompts([tmp_path / "absent.jsonl"])


def test_normalization():
    # U+FB01 is the ligature fi, U+00A0 a space that does not break.
    assert normalize("  \ufb01nd\u00a0 IT\n\tnow ") == "find it now"
    assert turn_hash("Find  it NOW") == hashlib.sha256(b"find it now").hexdigest()


def test_what_overlaps_is_excluded():
    exclusion = Exclusion([Conversation(("Short Question?", f"Well, {LONG.upper()}; no?"), answers=("a b", "c"))])
    reason = lambda *turns, **more: exclusion.reason(Conversation(turns, **more))
    assert reason("fine", "short   question?") == "shares a turn with an excluded one"
    run = "shares 13 words with an excluded one"
    # Punctuation and case make no difference.
    assert reason(f"Is it so that {LONG.replace(' ', ', ')}?") == run
    assert reason("fine", answers=(LONG,)) == run
    assert reason("fine", system=LONG) == run
    shorter = " ".join(LONG.split()[1:])
    assert reason(f"other {shorter} other") is None
    assert reason("short question") is None
    assert Exclusion.read([]).reason(Conversation((LONG,))) is None


def test_contamination_is_found(tmp_path):
    conversations = [Conversation(("One?", "Two!")), Conversation(("Three.",))]
    (tmp_path / TURNS_FILE).write_bytes(hash_lines(conversations))
    (tmp_path / "prompts.sha256").write_text("\n".join(read_hashes(tmp_path)))
    asked = [turn_hash(text) for text in ("zero", "THREE.", "one?")]
    for path in (tmp_path, tmp_path / TURNS_FILE, tmp_path / "prompts.sha256"):
        assert contaminated(path, asked) == asked[1:]
        assert contaminated(path, [digits[:16] for digits in asked]) == [digits[:16] for digits in asked[1:]]
    with pytest.raises(ValueError, match="at least 8"):
        contaminated(tmp_path, ["abc"])
    with pytest.raises(FileNotFoundError):
        contaminated(tmp_path / "absent", asked)


def test_the_list_of_hashes_is_reproducible():
    conversations = [Conversation(("One?", "Two!"))]
    assert hash_lines(conversations) == hash_lines(conversations)
    lines = gzip.decompress(hash_lines(conversations)).decode().splitlines()
    assert lines == [turn_hash("One?"), turn_hash("Two!")]


def test_no_drafter_was_trained_on_evaluation_questions(tmp_path):
    assert len(EVALUATION) == len(set(EVALUATION)) == 280
    assert all(len(digits) == 16 for digits in EVALUATION)
    for path in (ROOT / "models").glob("*/**/prompts.sha256*"):
        assert read_hashes(path), path
        assert not contaminated(path, EVALUATION), path
    # It would be found if there were one.
    planted = tmp_path / TURNS_FILE
    planted.write_bytes(gzip.compress(f"{turn_hash('hi')}\n{EVALUATION[7]}{'0' * 48}\n".encode()))
    assert contaminated(planted, EVALUATION) == [EVALUATION[7]]
