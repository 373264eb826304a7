"""Ways to weights that no input can saturate, one file each: a module with a `REMEDY`."""
