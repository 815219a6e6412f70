"""Real QUIC engines over modelled links in virtual time: what takes minutes on a network takes seconds, and repeats."""
