"""Fixtures that the integration tests share with these."""

from __future__ import annotations

from tests.integration.conftest import development_certificates

__all__ = ["development_certificates"]
