"""A model becomes a network of modules: two front ends, and one vocabulary for what they find."""
