"""Four papers' experiments with multipath QUIC, done again with real engines in virtual time and on the testbed."""
