"""Reads the page on which a browser talks to the server."""

import base64
import hashlib
import importlib.resources
import re


def read_page() -> tuple[str, dict[str, str]]:
    """Returns the page, and headers by which a browser runs its own script alone and asks no other server.

    Example:
        >>> from jaxspec.serving.page import read_page
        >>> text, headers = read_page()
        >>> text.splitlines()[0], "connect-src 'self'" in headers["content-security-policy"]
        ('<!doctype html>', True)
    """
    text = importlib.resources.files("jaxspec.serving").joinpath("page.html").read_text(encoding="utf-8")
    sources = {
        kind: " ".join(_digest(part) for part in re.findall(rf"<{kind}>(.*?)</{kind}>", text, re.DOTALL))
        for kind in ("script", "style")
    }
    policy = [
        "default-src 'none'",
        *(f"{kind}-src {hashes}" for kind, hashes in sources.items()),
        "connect-src 'self'",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    ]
    return text, {
        "content-security-policy": "; ".join(policy),
        "referrer-policy": "no-referrer",
        "x-content-type-options": "nosniff",
    }


def _digest(part: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(part.encode()).digest()).decode()}'"
