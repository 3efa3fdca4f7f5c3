"""Renders chat templates in a separate process: `python -I -S chat_worker.py PATH...` answers lines of JSON.

A template is code by the model's author. jinja2's sandbox keeps it from the machine, but not from looping forever or
from filling the memory in one step, as `"x" * 10 ** 10` does; only limits on the process prevent that. The process is
small: it imports jinja2 alone, and no array library.

The environment is that of transformers (`_compile_jinja_template` in its `chat_template_utils.py`), without the
tracking of generated tokens, which nothing here needs.
"""

import contextlib
import datetime
import functools
import json
import math
import sys
from typing import Any, ClassVar

try:
    import resource
except ImportError:  # not a POSIX system: `chat_template.py` limits the time, but nothing limits the memory
    resource = None

MEMORY, CPU_SECONDS, CHARACTERS = 2**30, 3, 2**24
_MOST_REASON = 1000


def main(paths: list[str]) -> None:
    """Answers requests until standard input ends.

    Args:
      paths: the folders of jinja2 and of its dependencies.
    """
    sys.path.extend(paths)
    if resource is not None:
        _limit(resource.RLIMIT_AS, MEMORY)
        _limit(resource.RLIMIT_FSIZE, 0)
        _limit(resource.RLIMIT_CORE, 0)
    for line in sys.stdin.buffer:
        sys.stdout.write(json.dumps(_answer(line)) + "\n")
        sys.stdout.flush()


def _answer(line: bytes) -> dict[str, str]:
    try:
        request = json.loads(line)
        if resource is not None:  # counted from now
            spent = resource.getrusage(resource.RUSAGE_SELF)
            _limit(resource.RLIMIT_CPU, math.ceil(spent.ru_utime + spent.ru_stime) + request["seconds"])
        return {"text": _render(request["template"], request["variables"])}
    except MemoryError:
        return {"error": f"the template needs more than {MEMORY:,} bytes of memory"}
    except Exception as error:  # the template may raise anything
        return {"error": (str(error) or type(error).__name__)[:_MOST_REASON]}


def _limit(kind: int, most: int) -> None:
    """Sets a soft limit, no higher than the hard limit."""
    assert resource is not None
    _, hard = resource.getrlimit(kind)
    if hard != resource.RLIM_INFINITY:
        most = min(most, hard)
    with contextlib.suppress(ValueError, OSError):  # macOS refuses some
        resource.setrlimit(kind, (most, hard))


def _render(template: str, variables: dict[str, Any]) -> str:
    parts, count = [], 0
    for part in _compile(template).generate(**variables):
        count += len(part)
        if count > CHARACTERS:
            raise ValueError(f"the template writes more than {CHARACTERS:,} characters")
        parts.append(part)
    return "".join(parts)


@functools.lru_cache(8)
def _compile(template: str) -> Any:
    import jinja2.ext
    import jinja2.nodes
    import jinja2.sandbox

    class Generation(jinja2.ext.Extension):
        """Renders the body of `{% generation %}`, which marks the text that a model generates."""

        tags: ClassVar[set[str]] = {"generation"}  # pyright: ignore[reportIncompatibleVariableOverride] jinja2 declares it so

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

        def _body(self, caller: Any) -> Any:
            return caller()

    def raise_exception(message: Any) -> None:
        raise jinja2.TemplateError(message)

    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals |= {"raise_exception": raise_exception, "strftime_now": _strftime_now, "dict": _Dict()}
    environment.globals["namespace"] = _namespace()
    return environment.from_string(template)


class _Dict:
    """Replaces `dict`, without its other attributes."""

    def __call__(self, *args: Any, **values: Any) -> dict[Any, Any]:
        return dict(*args, **values)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


def _namespace() -> type:
    import jinja2
    import jinja2.utils

    class Namespace(jinja2.utils.Namespace):
        """Rejects names that begin with `_`, which may be Python's own."""

        def __init__(*args: Any, **values: Any):
            self, *rest = args
            values = dict(*rest, **values)
            for name in values:
                _check_name(name)
            jinja2.utils.Namespace.__init__(self, values)

        def __setitem__(self, name: str, value: Any) -> None:
            _check_name(name)
            jinja2.utils.Namespace.__setitem__(self, name, value)

    def _check_name(name: Any) -> None:
        if isinstance(name, str) and name.startswith("_"):
            raise jinja2.exceptions.SecurityError(f"a namespace may not hold {name!r}: names must not begin with '_'")

    return Namespace


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _strftime_now(form: str) -> str:
    return datetime.datetime.now().strftime(form)


if __name__ == "__main__":
    main(sys.argv[1:])
