"""A server that one source wants for itself, or that somebody floods: what honest clients notice of it."""
