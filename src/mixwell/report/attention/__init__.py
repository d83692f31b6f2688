"""What a model attends to while texts are mixed: `capture` runs it, `page` and `pictures` draw it."""
