"""Collects the contracts of custom components, as classes whose tests a test class inherits.

`pytest` runs them: `pip install "jaxspec-decode[test]"`.
"""

import pkgutil as _pkgutil

try:
    import pytest as _pytest
except ImportError as error:
    raise ImportError(
        "jaxspec's contracts are classes that pytest runs, and pytest is not installed: "
        'pip install "jaxspec-decode[test]"'
    ) from error

# Before the modules are imported, so that a failed comparison shows both sides.
_pytest.register_assert_rewrite(*(f"{__name__}.{each.name}" for each in _pkgutil.iter_modules(__path__)))
