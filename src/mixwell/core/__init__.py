"""The mixing core: a mixer, the life of one training step, the points of a model, draws and losses."""
