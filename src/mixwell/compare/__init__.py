"""Train methods side by side and say which is better, and how sure that is."""
