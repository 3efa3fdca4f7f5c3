"""Runs the verifier of another project through `jaxspec.testing.check_verifier`, and records the results.

    python tests/conformance/run.py NAME [--python ENV/bin/python] [--source FOLDER] [--case TEXT]

`NAME` is a file of `tests/conformance/peers`, whose first lines say what to install. With `--python` it runs in that
environment, which needs NumPy, JAX, `etils`, `jaxtyping` and `tqdm` besides.
"""

import argparse
import datetime
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import platform
import subprocess
import sys
import types
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
REPOSITORY = HERE.parent.parent
_TOLERANCE = 1e-4  # of total variation, as the kit's


def load(name: str) -> types.ModuleType:
    """Imports an adapter from its file, so that no other package called `tests` is in the way."""
    specification = importlib.util.spec_from_file_location(f"peer_{name}", HERE / "peers" / f"{name}.py")
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def verdict(report: dict[str, Any]) -> str:
    """Returns "exact", "no bias found", "edge" or "biased"."""
    if report["lossless"]:
        return "exact" if report["exact"] else "no bias found"
    kinds = {finding["kind"] for finding in report["findings"] if finding["biased"]}
    return "edge" if report["total_variation"] <= _TOLERANCE and kinds == {"edge"} else "biased"


def run(name: str, only: str = "") -> dict[str, Any]:
    """Returns the contents of `results/NAME.json`."""
    result: dict[str, Any] = {
        "name": name,
        "date": datetime.date.today().isoformat(),
        "python": platform.python_version(),
        "error": None,
        "cases": [],
    }
    try:
        peer = load(name)
    except Exception as error:  # a peer that does not import here is listed with its error
        return result | {"error": f"{type(error).__name__}: {error}"}
    result["project"] = peer.PROJECT
    result["packages"] = {package: importlib.metadata.version(package) for package in peer.PACKAGES}
    result["source"] = getattr(peer, "SOURCE", None)
    from jaxspec.testing import check_verifier

    for title, (function, verify, arguments) in peer.CASES.items():
        if only not in title:
            continue
        report = json.loads(check_verifier(verify, **arguments).to_json())
        found = {"case": title, "function": function, "arguments": arguments, "verdict": verdict(report)}
        print(json.dumps(found | {"report": report}, indent=1), flush=True)
        result["cases"].append(found | {"report": report})
    return result


def main() -> None:
    """Runs one adapter, here or in another environment."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name")
    parser.add_argument("--python", help="the interpreter of the environment that the project is installed in")
    parser.add_argument("--source", help="a checkout, for a project that is not installed: added to the import path")
    parser.add_argument("--case", default="", help="only cases whose title contains this; nothing is written")
    options = parser.parse_args()
    if options.python is not None:
        paths = [str(REPOSITORY), *filter(None, [options.source, os.environ.get("PYTHONPATH")])]
        command = [options.python, __file__, options.name, "--case", options.case]
        sys.exit(subprocess.run(command, env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)}).returncode)
    sys.path[:0] = filter(None, [str(REPOSITORY), options.source])
    result = run(options.name, options.case)
    if not options.case:
        (HERE / "results" / f"{options.name}.json").write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
