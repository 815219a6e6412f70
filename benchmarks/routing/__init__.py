"""Where further connections of sessions go, on paper: ids, tokens and tables of many servers, without engines."""
