"""Tables of embeddings in INT8, where a user allows patterns that change results."""

from torch import nn

from embedl_deploy.nn.embedding import Int8Embedding
from embedl_deploy.pattern import Call, Match, Op, Pattern, Phase, Refusal, Replacement


class Int8EmbeddingPattern(Pattern):
    """Keep the table of an embedding in INT8, with a scale per row: a quarter of its size."""

    phase = Phase.CONVERSION
    lossy = True
    tree = Op(nn.Embedding, name="embedding")

    def check(self, match: Match) -> Refusal | None:
        """Refuse a table that changes while it is read."""
        module = match.module("embedding", nn.Embedding)
        if module.max_norm is not None:
            return Refusal("it renormalizes its rows when they are read (max_norm)")
        if module.training:
            return Refusal("the model is in training mode, and integers are not trained; call eval() first")
        return None

    def replace(self, match: Match) -> Replacement:
        """Round the table."""
        return Call(Int8Embedding(match.module("embedding", nn.Embedding)), (0,))
