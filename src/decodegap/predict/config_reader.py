"""Typed access to a foreign config.json: every refusal names the model, the key and the value."""

import math
from typing import Any

from decodegap.errors import BadConfig

# No published decoder comes near it; a larger figure is a typo or another unit.
MAX_DIMENSION = 1 << 24
MAX_EXPERTS = 1 << 12


class ConfigReader:
    """Typed access to a foreign config; every refusal names the model, the key and the value."""

    def __init__(self, config: dict[str, Any], name: str) -> None:
        self.config = config
        self.name = name

    def get(self, key: str) -> Any:
        return self.config.get(key)

    def size(self, key: str, limit: int = MAX_DIMENSION) -> int:
        value = self.config.get(key)
        if value is None:
            raise BadConfig(f"{self.name}: config lacks `{key}`; take the model's own config.json")
        return self._checked_size(key, value, limit)

    def optional_size(self, key: str, absent: int | None = None) -> int | None:
        """`absent` stands for a key that is not there; a null is None, which can differ."""
        value = self.config.get(key, absent)
        return None if value is None else self._checked_size(key, value, MAX_DIMENSION)

    def _checked_size(self, key: str, value: Any, limit: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise BadConfig(f"{self.name}: `{key}` must be a whole number, not {value!r}")
        if not 0 < value <= limit:
            raise BadConfig(f"{self.name}: `{key}` = {value} is outside 1 … {limit}")
        return value

    def count(self, key: str, absent: int) -> int:
        """A whole number that may be zero."""
        value = self.config.get(key)
        if value is None:
            return absent
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise BadConfig(f"{self.name}: `{key}` must be a whole number, not {value!r}")
        return value

    def number(self, key: str, default: float) -> float:
        value = self.optional_number(key)
        return default if value is None else value

    def optional_number(self, key: str, absent: float | None = None) -> float | None:
        value = self.config.get(key, absent)
        if value is None:
            return None
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not 0 < value < math.inf:
            raise BadConfig(f"{self.name}: `{key}` must be a positive number, not {value!r}")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self.config.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise BadConfig(f"{self.name}: `{key}` must be true or false, not {value!r}")
        return value
