"""Everything that knows SQL: the databases as values, the tables, what is written to them and asked of them."""
