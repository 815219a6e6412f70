"""One machine, no emulation: speed, opening, attacks, memory and many sessions over loopback."""
