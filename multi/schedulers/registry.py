"""Names of schedulers: registering, finding and making them.

Decides which name means which factory and whether its parameters are acceptable. Where a name comes from is
the caller's to say: a name sent by the peer must never import code, so importing is off unless asked for.
"""

from __future__ import annotations

import importlib
import inspect
import math
import pkgutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import TypeVar

from multi.errors import ConfigError, closest
from multi.schedulers.base import MAX_NAME, Scheduler, SchedulerFactory

PACKAGE = "multi.schedulers"
MAX_NUMBER = math.nextafter(math.inf, 0.0)  # finite number

F = TypeVar("F", bound=SchedulerFactory)

_factories: dict[str, SchedulerFactory] = {}
_aliases: set[str] = set()
_unlisted: set[str] = set()


def register_scheduler(name: str, *, aliases: Sequence[str] = (), listed: bool = True) -> Callable[[F], F]:
    """Decorator: make a class or factory available as `scheduler: name` in the configuration.

    It is called with the parameters of the configuration as float keyword arguments. Registering a name again
    replaces the earlier factory, except that the names of this package are taken: ConfigError. One that is not
    `listed` is made by its name, and no name for people.
    """
    for key in (name, *aliases):
        if not isinstance(key, str) or not 0 < len(key.encode()) <= MAX_NAME:
            raise ConfigError(f"found {key!r} as a scheduler's name; allowed: text of at most {MAX_NAME} bytes")

    def register(factory: F) -> F:
        if not _is_shipped(factory):
            _load_shipped()
            for key in (name, *aliases):
                if key in _factories and _is_shipped(_factories[key]):
                    raise ConfigError(f"scheduler name {key!r} is taken by {PACKAGE}; choose another")
        _factories.update(dict.fromkeys((name, *aliases), factory))
        _aliases.update(aliases)
        if not listed:
            _unlisted.add(name)
        return factory

    return register


def create_scheduler(name: str, parameters: Mapping[str, float], *, allow_import: bool = False) -> Scheduler:
    """Make the scheduler `name`, matched exactly, with its `parameters`.

    `allow_import` also accepts `package.module:Class`; only for names from the local configuration. Raises
    ConfigError: unknown name (with a suggestion), unknown or unacceptable parameter (its name is the key
    path).
    """
    factory = _factory(name, allow_import)
    allowed = _parameter_names(factory) if parameters else None
    for key, value in parameters.items():
        if allowed is not None and key not in allowed:
            hint, names = _did_you_mean(str(key), allowed), ", ".join(allowed) or "none"
            raise ConfigError(f"scheduler {name!r} has no such parameter{hint}; allowed: {names}", str(key))
        # Not math.isfinite: it cannot take an integer beyond any float.
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= MAX_NUMBER:
            raise ConfigError(f"found {value!r} for scheduler {name!r}; allowed: a finite number", str(key))
    try:
        scheduler = factory(**{key: float(value) for key, value in parameters.items()})
    except ConfigError as error:
        raise ConfigError(f"scheduler {name!r}: {error.message}", error.key_path) from None
    except Exception as error:  # whatever an application's factory does
        raise ConfigError(f"scheduler {name!r} cannot be made with {dict(parameters)!r}: {error!r}") from error
    if not callable(getattr(scheduler, "select", None)):
        raise ConfigError(f"scheduler {name!r} makes {scheduler!r}, which has no method `select`")
    return scheduler


def scheduler_names(*, aliases: bool = False) -> list[str]:
    """All registered names, sorted, without their aliases unless asked for."""
    _load_shipped()
    return sorted(_factories.keys() - _unlisted - (set() if aliases else _aliases), key=str.lower)


def whole(name: str, value: float, low: int, high: int) -> int:
    """A parameter as an int; ConfigError unless it is a whole number from `low` to `high`."""
    if value != int(value) or not low <= value <= high:
        raise ConfigError(f"found {value:g}; allowed: a whole number from {low} to {high}", name)
    return int(value)


def _factory(name: str, allow_import: bool) -> SchedulerFactory:
    _load_shipped()
    if name in _factories:
        return _factories[name]
    if ":" in name and allow_import:
        module, _, attribute = name.partition(":")
        try:
            factory: SchedulerFactory = getattr(importlib.import_module(module), attribute)
        except Exception as error:  # whatever an application's module does when it is imported
            raise ConfigError(f"cannot import scheduler {name!r}: {error}") from error
        return factory
    more = " or package.module:Class" if allow_import else ""
    known = f"{', '.join(scheduler_names())}{more}"
    raise ConfigError(
        f"unknown scheduler {name!r}{_did_you_mean(name, _factories.keys() - _unlisted)}; allowed: {known}"
    )


@cache
def _load_shipped() -> None:
    """Import every module of this package; importing registers."""
    for module in pkgutil.iter_modules(importlib.import_module(PACKAGE).__path__):
        importlib.import_module(f"{PACKAGE}.{module.name}")


def _is_shipped(factory: SchedulerFactory) -> bool:
    return getattr(factory, "__module__", "").startswith(f"{PACKAGE}.")


def _parameter_names(factory: SchedulerFactory) -> list[str] | None:
    """Names a factory takes by keyword, or None when it takes any."""
    if inspect.isclass(factory) and factory.__init__ is object.__init__:
        return []  # its signature would read (*args, **kwargs)
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return None
    return [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]


def _did_you_mean(word: str, known: Iterable[str]) -> str:
    guess = closest(word, known)
    return f" (did you mean {guess!r}?)" if guess else ""
