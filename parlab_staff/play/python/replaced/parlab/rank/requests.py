"""Requests in a page need no replacement: a deadlock ends every wait."""
