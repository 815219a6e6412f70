"""A server of several processes: where its sessions go, how much it does, and what the death of one costs."""
