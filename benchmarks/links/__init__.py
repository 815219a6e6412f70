"""Emulated WiFi and 5G, alone and together."""
