"""What changes this host, where Linux and its owner let us: policy routes, WiFi power, MPTCP endpoints and subflows."""
