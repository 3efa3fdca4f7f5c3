"""`jaxspec.testing` runs without a checkout: a user's test class, and the parts that need no pytest."""

import os
import subprocess
import sys

import pytest

DRAFTER = """
import jaxspec
from jaxspec.testing import VerifierContract


class TestMine(VerifierContract):
    verifier = jaxspec.TokenVerifier()
"""
# Where pytest is not installed: what imports it fails, with what to type.
WITHOUT_PYTEST = """
import sys

sys.modules["pytest"] = None
import jaxspec

table = jaxspec.testing.make_table(2, 2, lambda: [0.25, 0.75])
jaxspec.testing.enumerate_drafts(table, jaxspec.testing.drawn((-1,), table))
jaxspec.testing.chi_square([1, 3], [0.25, 0.75]), jaxspec.testing.history_model()
try:
    jaxspec.testing.VerifierContract
except ImportError as error:
    assert 'pip install "jaxspec-decode[test]"' in str(error), error
else:
    raise AssertionError("a contract was imported without pytest")
"""


def run(arguments, folder):
    """Runs Python in a folder, with the package that these tests import."""
    import jaxspec

    above = os.path.dirname(os.path.dirname(jaxspec.__file__))
    environment = os.environ | {"PYTHONPATH": above, "JAX_PLATFORMS": "cpu"}
    return subprocess.run([sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True)


@pytest.mark.slow
def test_a_user_s_class_is_run_by_pytest_alone(tmp_path):
    """With strict markers, no configuration and no plug-in; a failure shows both sides."""
    (tmp_path / "test_mine.py").write_text(DRAFTER)
    options = [
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-W",
        "error::pytest.PytestWarning",
        "--strict-markers",
        "test_mine.py",
    ]
    done = run(options, tmp_path)
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.slow
def test_only_contracts_need_pytest(tmp_path):
    done = run(["-c", WITHOUT_PYTEST], tmp_path)
    assert done.returncode == 0, done.stderr
