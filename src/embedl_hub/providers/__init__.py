"""Who carries out the built-in steps: one folder per provider type, loaded by name on first use."""
