"""A context: one running sequence, its tokens and their keys and values."""

from __future__ import annotations

from flashllm.kv_cache.context_tokens import ContextTokens
from flashllm.kv_cache.protocol import KeysValues
from flashllm.units import format_token_count


class Context:
    """The state of one sequence; several may live at once, each of its own length."""

    def __init__(
        self,
        keys_values: KeysValues,
        chunk_tokens: int,
        *,
        decoded_alike: bool = False,
    ) -> None:
        """A prompt is computed in chunks of `chunk_tokens`; `keys_values` has no tokens yet.

        `decoded_alike`: the bits of a token do not depend on whether it is one of a prompt or of an
        answer.
        """
        self.chunk_tokens = chunk_tokens
        self.keys_values = keys_values
        self.tokens = ContextTokens(decoded_alike, keys_values.may_stay)
        self.is_closed = False

    @property
    def length(self) -> int:
        """Tokens in the context."""
        return self.keys_values.length

    @property
    def capacity(self) -> int:
        """The most tokens that the context can hold."""
        return self.keys_values.context

    def __repr__(self) -> str:
        return f"<Context: {self.length} of {format_token_count(self.capacity)}>"

    def truncate(self, length: int) -> None:
        """Forget all tokens but the first `length`, a result of `tokens.cached_prefix`."""
        self.keys_values.truncate(length)
        self.tokens.truncate(length)

    @property
    def shares_prefixes(self) -> bool:
        """Whether rows are all that there is of its tokens, so that others may copy them."""
        return self.keys_values.sees_everything

    def copy_prefix(self, other: Context, length: int) -> None:
        """Forget all tokens, and take over the first `length` of another context of the model."""
        self.truncate(0)
        self.keys_values.copy(other.keys_values, length)
        self.tokens.restore(other.tokens.ids[:length], other.tokens.decoded(0, length))

    def close(self) -> None:
        """Drop the keys and values, and leave the place to another one; the tokens stay known.

        It cannot be used afterwards. May be called again.
        """
        if not self.is_closed:
            self.is_closed = True
            self.keys_values.close()

    def append_prefilled(self, ids: list[int]) -> None:
        """A chunk of a prompt has gone through all layers."""
        self.keys_values.length += len(ids)
        self.tokens.append_prefilled(ids)

    def append_decoded(self, token: int) -> None:
        """A token of an answer has gone through all layers."""
        self.keys_values.length += 1
        self.tokens.append_decoded(token)
