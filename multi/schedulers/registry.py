"""Names of schedulers: registering, finding and making them.

Decides which name means which factory and whether its parameters are acceptable. Where a name comes from is
the caller's to say: a name sent by the peer must never import code, so importing is off unless asked for.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import math
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from multi.errors import ConfigError
from multi.schedulers.base import MAX_NAME, Scheduler, SchedulerFactory

PACKAGE = "multi.schedulers"
MAX_NUMBER = math.nextafter(math.inf, 0.0)  # finite number

F = TypeVar("F", bound=SchedulerFactory)

_factories: dict[str, SchedulerFactory] = {}
_aliases: dict[str, str] = {}
_loaded: list[bool] = []
_parameters: dict[str, tuple[SchedulerFactory, list[str] | None]] = {}
"""What was found out about a name's factory: asking costs as much as all else a new scheduler needs."""


def register_scheduler(name: str, *, aliases: Sequence[str] = ()) -> Callable[[F], F]:
    """Decorator: make a class or factory available as `scheduler: name` in the configuration.

    It is called with the parameters of the configuration as float keyword arguments. Registering a name again
    replaces the earlier factory, except that the names of this package are taken: ConfigError.
    """

    for key in (name, *aliases):
        if not isinstance(key, str) or not 0 < len(key.encode()) <= MAX_NAME:
            raise ConfigError(f"found {key!r} as a scheduler's name; allowed: text of at most {MAX_NAME} bytes")

    def register(factory: F) -> F:
        if not _is_shipped(factory):
            _load_shipped()
        for key in (name, *aliases):
            earlier = _factories.get(_aliases.get(key, key))
            if earlier is not None and _is_shipped(earlier) and not _is_shipped(factory):
                raise ConfigError(f"scheduler name {key!r} is taken by {PACKAGE}; choose another")
        _factories[name] = factory
        _aliases.update(dict.fromkeys(aliases, name))
        return factory

    return register


def create_scheduler(name: str, parameters: Mapping[str, float], *, allow_import: bool = False) -> Scheduler:
    """Make the scheduler `name`, matched exactly, with its `parameters`.

    `allow_import` also accepts `package.module:Class`; only for names from the local configuration. Raises
    ConfigError: unknown name (with a suggestion), unknown or unacceptable parameter (its name is the key
    path).
    """
    factory = _factory(name, allow_import)
    allowed = _allowed(name, factory)
    for key, value in parameters.items():
        if not isinstance(key, str):
            raise ConfigError(f"found {key!r} as a parameter of scheduler {name!r}; allowed: text")
        if allowed is not None and key not in allowed:
            names = ", ".join(allowed) if allowed else "none"
            raise ConfigError(
                f"scheduler {name!r} has no such parameter{_suggest(key, allowed)}; allowed: {names}", key
            )
        # Not math.isfinite: it cannot take an integer beyond any float.
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= MAX_NUMBER:
            raise ConfigError(f"found {value!r} for scheduler {name!r}; allowed: a finite number", key)
    try:
        scheduler = factory(**{key: float(value) for key, value in parameters.items()})
        if not callable(getattr(scheduler, "select", None)):
            raise TypeError(f"it makes {scheduler!r}, which has no method `select`")
        return scheduler
    except ConfigError as error:
        raise ConfigError(f"scheduler {name!r}: {_without_key_path(error)}", error.key_path) from None
    except (TypeError, ValueError, OverflowError) as error:
        raise ConfigError(f"scheduler {name!r} does not accept {dict(parameters)!r}: {error}") from error
    except Exception as error:  # whatever an application's factory does
        raise ConfigError(f"scheduler {name!r} cannot be made with {dict(parameters)!r}: {error!r}") from error


def scheduler_names(*, aliases: bool = False) -> list[str]:
    """All registered names, sorted, without their aliases unless asked for."""
    _load_shipped()
    return sorted((*_factories, *_aliases) if aliases else _factories, key=str.lower)


def _factory(name: str, allow_import: bool) -> SchedulerFactory:
    _load_shipped()
    factory = _factories.get(_aliases.get(name, name))
    if factory is not None:
        return factory
    if ":" in name and allow_import:
        return _imported(name)
    known = scheduler_names()
    hint = _suggest(name, [*known, *_aliases])
    more = " or package.module:Class" if allow_import else ""
    raise ConfigError(f"unknown scheduler {name!r}{hint}; allowed: {', '.join(known)}{more}")


def _imported(name: str) -> SchedulerFactory:
    module_name, _, attribute = name.partition(":")
    try:
        factory = getattr(importlib.import_module(module_name), attribute)
    except Exception as error:  # whatever an application's module does when it is imported
        raise ConfigError(f"cannot import scheduler {name!r}: {error}") from error
    if not callable(factory):
        raise ConfigError(f"scheduler {name!r} is not a class or factory")
    checked: SchedulerFactory = factory
    return checked


def _load_shipped() -> None:
    """Import every module of this package once; importing registers."""
    if _loaded:
        return
    _loaded.append(True)
    package = importlib.import_module(PACKAGE)
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{PACKAGE}.{module.name}")


def _is_shipped(factory: SchedulerFactory) -> bool:
    return getattr(factory, "__module__", "").startswith(f"{PACKAGE}.")


def _allowed(name: str, factory: SchedulerFactory) -> list[str] | None:
    known = _parameters.get(name)
    if known is None or known[0] is not factory:
        known = (factory, _parameter_names(factory))
        if name in _factories or name in _aliases:  # others are imported, and there may be any number of them
            _parameters[name] = known
    return known[1]


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


def _suggest(word: str, known: Sequence[str] | None) -> str:
    by_lower = {candidate.lower(): candidate for candidate in known or ()}
    close = difflib.get_close_matches(word.lower(), by_lower, n=1)
    return f" (did you mean {by_lower[close[0]]!r}?)" if close else ""


def _without_key_path(error: ConfigError) -> str:
    return str(error).removeprefix(f"{error.key_path}: ") if error.key_path else str(error)
