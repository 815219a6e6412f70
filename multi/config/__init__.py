"""The configuration of sessions and servers: models, loading, JSON Schema (`docs/configuration.md`)."""

from multi.config.entry import Entry
from multi.config.loading import load_config, load_entry
from multi.config.models import Config
from multi.config.schema import json_schema

__all__ = ["Config", "Entry", "json_schema", "load_config", "load_entry"]
