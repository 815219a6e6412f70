"""Sessions with several servers behind one address: `make bench ARGS=balancer`."""
