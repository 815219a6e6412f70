"""Fixtures that the integration tests share with these."""

from __future__ import annotations

from tests.integration.conftest import bounded_callbacks, development_certificates

__all__ = ["bounded_callbacks", "development_certificates"]
