"""One check that many arguments need."""


def check_whole(name: str, value, least: int = 1) -> None:
    """Raise ValueError, with the argument's name, unless `value` is an int of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, not {value!r}")
