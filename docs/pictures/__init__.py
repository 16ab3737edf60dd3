"""Makes the pictures in the documents, and what the pages of symptoms take from the code."""
