"""NIXL's class Config: how a batch is cut. Importing it needs no torch."""

from __future__ import annotations

__all__ = ["Config"]

_REST_BYTES = 1152  # of a token beside its elements: 64 routes and 96 scales


class Config:
    """How many multiprocessors an exchange of a batch uses, and how much memory it is made for.

    Its kernels use at most `num_sms` multiprocessors. The other numbers are those of NIXL's chunks: here they only go into the hints of
    sizes, since ranks read one another's memory and have no queues of chunks.
    """

    def __init__(
        self,
        num_sms: int = 20,
        num_max_nvl_chunked_send_tokens: int = 6,
        num_max_nvl_chunked_recv_tokens: int = 256,
        num_max_rdma_chunked_send_tokens: int = 6,
        num_max_rdma_chunked_recv_tokens: int = 256,
    ) -> None:
        def require(holds: bool, text: str) -> None:
            if not holds:
                raise ValueError(f"nixl_ep: {text}")

        require(num_sms >= 0, f"num_sms is {num_sms}: give at least 0")
        for name, send, receive in (
            ("nvl", num_max_nvl_chunked_send_tokens, num_max_nvl_chunked_recv_tokens),
            ("rdma", num_max_rdma_chunked_send_tokens, num_max_rdma_chunked_recv_tokens),
        ):
            require(
                0 < send < receive,
                f"num_max_{name}_chunked_send_tokens is {send}, and num_max_{name}_chunked_recv_tokens {receive}: give more than 0 to "
                "send, and more to receive",
            )
        # As NIXL: a multiple of what is sent, and at least twice that.
        rounded = -(-num_max_rdma_chunked_recv_tokens // num_max_rdma_chunked_send_tokens) * num_max_rdma_chunked_send_tokens
        require(
            2 * num_max_rdma_chunked_send_tokens <= rounded,
            f"num_max_rdma_chunked_recv_tokens is {num_max_rdma_chunked_recv_tokens}: give at least twice what is sent, "
            f"{num_max_rdma_chunked_send_tokens}",
        )
        self.num_sms = num_sms
        self.num_max_nvl_chunked_send_tokens = num_max_nvl_chunked_send_tokens
        self.num_max_nvl_chunked_recv_tokens = num_max_nvl_chunked_recv_tokens
        self.num_max_rdma_chunked_send_tokens = num_max_rdma_chunked_send_tokens
        self.num_max_rdma_chunked_recv_tokens = rounded

    def get_nvl_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        """For update_memory_buffers. A rank with more tokens than num_sms / 2 * num_max_nvl_chunked_recv_tokens is exchanged in rounds; more
        bytes than this make them fewer."""
        tokens = max(1, self.num_sms // 2) * self.num_max_nvl_chunked_recv_tokens
        return 2 * num_ranks * tokens * (hidden_bytes + _REST_BYTES)

    def get_rdma_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        """The same, of what more than 8 ranks need besides: they are of several hosts, and each has a copy of what it gets from ranks of other
        hosts. 0 for fewer ranks; where these are of several hosts, too, batches go in more rounds."""
        return 2 * self.get_nvl_buffer_size_hint(hidden_bytes, num_ranks) if num_ranks > 8 else 0
