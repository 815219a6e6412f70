"""Forwarding: TCP connections of programs that know nothing of `multi`, each as a stream of one session."""
