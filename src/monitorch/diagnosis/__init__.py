"""Which layers are in trouble, judged from stored numbers. Never imports torch."""
