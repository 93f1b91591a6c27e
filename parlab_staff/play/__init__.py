"""The playground: pages of the book on which readers run ranks in their browser."""
