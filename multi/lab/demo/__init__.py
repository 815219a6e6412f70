"""The demos: a client that walks through WiFi and 5G, and the same idea over loopback."""
