"""The memory of a model in LiteRT: predicted from its file, and as the runtime told it."""
