"""Transports: how bytes travel. Every package in this folder registers one; its code is imported when it is used."""

import importlib
import pkgutil

from multi.transports.base import TransportSettings, register_transport, transport, transport_names
from multi.transports.settings import TransportSection

__all__ = ["TransportSection", "TransportSettings", "register_transport", "transport", "transport_names"]

for _module in pkgutil.iter_modules(__path__):
    if _module.ispkg:
        importlib.import_module(f"{__name__}.{_module.name}")
