"""Measures speculative decoding."""

from etils import epy as _epy

with _epy.lazy_api_imports(globals()):
    from jaxspec.bench.acceptance import (
        AcceptanceOptions as AcceptanceOptions,
        Text as Text,
        expected_acceptance as expected_acceptance,
    )
    from jaxspec.bench.acceptance_report import Acceptance as Acceptance
    from jaxspec.bench.synthetic import SyntheticVerifier as SyntheticVerifier
