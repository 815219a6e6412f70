"""Virtual time: two sessions of the product, links between them that can be broken, and what must hold throughout."""
