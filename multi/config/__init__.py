"""The configuration of sessions and servers: models, loading, JSON Schema (`docs/configuration.md`)."""

from multi.config.loading import Config, ConfigLike, config_of, json_schema, load_config, load_entry, load_steering
from multi.config.model import Entry

__all__ = ["Config", "ConfigLike", "Entry", "config_of", "json_schema", "load_config", "load_entry", "load_steering"]
