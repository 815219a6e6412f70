"""Whether a figure is what was promised, in words. It is judged as it is, not as it is printed."""


def verdict(value: float, least: float, digits: int = 2, unit: str = "") -> str:
    """Whether at least so much is there."""
    return "held" if value >= least else f"short by {least - value:.{digits}f}{unit}"


def verdict_at_most(value: float, most: float, digits: int = 2, unit: str = "") -> str:
    """Whether no more is there."""
    return "held" if value <= most else f"short by {value - most:.{digits}f}{unit}"
