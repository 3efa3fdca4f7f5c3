"""Tags a wheel for this machine instead of for all, as cibuildwheel refuses wheels for all machines.

It runs where `HATCH_BUILD_HOOK_ENABLE_CUSTOM=true` is set: see `[tool.cibuildwheel]` of pyproject.toml. `wheel.py` then
adds the prebuilt kernels, and tags the wheel for the systems that they need.
"""

import platform
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class PlatformTag(BuildHookInterface):
    """Sets the tag."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-linux_{platform.machine()}"
