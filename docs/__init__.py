"""The documents, and what makes a site of them (`make docs`)."""
