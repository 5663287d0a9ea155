"""Rules that are being weighed against the ones that serve. They are strategies, pure like those."""
