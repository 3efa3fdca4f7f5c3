"""Serves a tiny model while schemathesis sends what `/openapi.json` allows and what it does not.

    python -m tests.soak_openapi --schemathesis PATH --examples 50

Needs `schemathesis`, from a separate environment. Exits with 1 if an answer is of class 500 or contradicts the
document, or if a slot is not free afterwards.
"""

import argparse
import subprocess
import sys
import tempfile

import jaxspec
from jaxspec.serving import build_app
from tests._fixtures import text_models
from tests._fixtures.listening import listening

CAPACITY, KEY = 64, "key"
# Requests that keep to the document may still not fit a slot, or ask for what excludes each other.
CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,"
    "response_schema_conformance,negative_data_rejection,unsupported_method,allow_header_conformance,ignored_auth"
)


def run(schemathesis, examples, seed, more=()):
    """Runs schemathesis against the server, and returns its exit status."""
    target = text_models.history_models()[0]
    with jaxspec.Engine(target, "ngram", k=2, slots=4, capacity=CAPACITY, most_waiting=64) as engine:
        app = build_app(engine, model="small", api_key=KEY, most_bytes=65536)
        with listening(app) as url:
            command = [schemathesis, "run", url.removesuffix("/v1") + "/openapi.json", "--checks", CHECKS]
            command += ["--max-examples", str(examples), "--seed", str(seed), "--continue-on-failure"]
            command += ["-H", f"Authorization: Bearer {KEY}", *more]
            with tempfile.TemporaryDirectory() as folder:  # for what it keeps between runs
                status = subprocess.run(command, cwd=folder, check=False).returncode
        engine.submit("the sea", temperature=0, max_new_tokens=4).result(120.0)
        return status or int(not engine.open or engine.running + engine.waiting > 0)


def main() -> int:
    """Runs by the command line, and returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak_openapi", description=__doc__.splitlines()[0])
    parser.add_argument("--schemathesis", default="schemathesis", help="its command")
    parser.add_argument("--examples", type=int, default=50, help="requests of each operation and phase, at most")
    parser.add_argument("--seed", type=int, default=0)
    arguments, more = parser.parse_known_args()
    return run(arguments.schemathesis, arguments.examples, arguments.seed, more)


if __name__ == "__main__":
    sys.exit(main())
