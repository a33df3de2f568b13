"""Networks as numbers: parameters and activation bytes of transformers, by formula."""

from __future__ import annotations

from dataclasses import dataclass

from precgui.planner.storage import PrecisionBytes


@dataclass(frozen=True, slots=True)
class Transformer:
    """A decoder-only transformer. `kv_heads` 0: as many as heads; `gated`: three matrices in the perceptron (LLaMA)
    instead of two (GPT-2), no biases and RMS norms; `tied`: one matrix for input and output; `positions` learned ones.
    """

    layers: int = 32
    width: int = 4096
    heads: int = 32
    feed_forward: int = 11008
    vocabulary: int = 32000
    sequence: int = 2048
    kv_heads: int = 0
    gated: bool = True
    tied: bool = False
    positions: int = 0
    flash: bool = True

    @property
    def kv_width(self) -> int:
        return self.width // self.heads * (self.kv_heads or self.heads)

    @property
    def _block(self) -> tuple[int, int]:
        """Parameters of one block: in matrices, and in biases and norms."""
        matrices = 2 * self.width**2 + 2 * self.width * self.kv_width
        matrices += (3 if self.gated else 2) * self.width * self.feed_forward
        if self.gated:
            return matrices, 2 * self.width
        biases = self.width + 2 * self.kv_width + self.width + self.feed_forward + self.width
        return matrices, biases + 4 * self.width

    @property
    def largest_block(self) -> int:
        """Parameters of its largest block, which ZeRO-3 gathers at once."""
        return sum(self._block)

    @property
    def block_matrices(self) -> int:
        """Parameters in the matrices of its blocks, which adapters and base formats apply to."""
        return self.layers * self._block[0]

    @property
    def parameters(self) -> int:
        ends = (1 if self.tied else 2) * self.vocabulary * self.width + self.positions * self.width
        return self.layers * self.largest_block + ends + (1 if self.gated else 2) * self.width

    def adapter_parameters(self, rank: int) -> int:
        """LoRA (Hu et al. 2021, section 4.1): rank x (inputs + outputs) for each matrix of the blocks."""
        attention = 2 * (2 * self.width) + 2 * (self.width + self.kv_width)
        perceptron = (3 if self.gated else 2) * (self.width + self.feed_forward)
        return self.layers * rank * (attention + perceptron)

    def layer_bytes(self, batch: int, storage: PrecisionBytes) -> int:
        """Activations of one block. Per token: its two norms' inputs (the residual stream), and, in the format of
        products, what each matrix multiplies and what attention and the activation function keep. With four times the
        width in the perceptron, 16 bits and no fused attention these are the terms of Korthikanti et al. 2022, eq. 1,
        without dropout masks: 34 sbh + 5 a s^2 b there, 32 sbh + 4 a s^2 b here."""
        tokens = batch * self.sequence
        multiplied = 2 * self.width + 2 * self.width + 2 * self.kv_width  # norms' results, queries, heads joined, k, v
        multiplied += (4 if self.gated else 2) * self.feed_forward
        stream = 2 * self.width * storage.stream
        scores = 0 if self.flash else 2 * self.heads * self.sequence * storage.products
        return tokens * (multiplied * storage.products + stream + scores)

    def activation_bytes(self, batch: int, storage: PrecisionBytes, *, checkpointing: bool) -> int:
        """All blocks, or one block and the inputs of all (Chen et al. 2016); and the logits, their FP32 copy and
        their log-softmax."""
        tokens, layer = batch * self.sequence, self.layer_bytes(batch, storage)
        inputs = tokens * self.width * storage.stream
        blocks = self.layers * inputs + layer if checkpointing else self.layers * layer
        logits = tokens * self.vocabulary * (storage.products + 4 + (4 if storage.products < 4 else 0))
        return blocks + logits + tokens * self.width * (storage.stream + storage.products)

    def temporary_bytes(self, batch: int, storage: PrecisionBytes) -> int:
        """The gradient of the logits in FP32, or those inside of one block, whichever is more."""
        inside = self.feed_forward * storage.products + self.width * storage.stream
        return batch * self.sequence * max(4 * self.vocabulary, inside)

    def recomputed_bytes(self, batch: int, storage: PrecisionBytes) -> int:
        """Activations that the backward pass computes again at once, where checkpoints are used."""
        return self.layer_bytes(batch, storage)


# Published shapes; parameters by formula agree with the published counts (tests/planner).
NETWORKS: dict[str, Transformer] = {
    "gpt2": Transformer(12, 768, 12, 3072, 50257, 1024, gated=False, tied=True, positions=1024),
    "gpt2-xl": Transformer(48, 1600, 25, 6400, 50257, 1024, gated=False, tied=True, positions=1024),
    "gpt3-175b": Transformer(96, 12288, 96, 49152, 50257, 2048, gated=False, tied=True, positions=2048),
    "llama-7b": Transformer(32, 4096, 32, 11008, 32000, 2048),
    "llama-13b": Transformer(40, 5120, 40, 13824, 32000, 2048),
    "llama-65b": Transformer(80, 8192, 64, 22016, 32000, 2048),
    "llama2-70b": Transformer(80, 8192, 64, 28672, 32000, 4096, kv_heads=8),
    "llama3-8b": Transformer(32, 4096, 32, 14336, 128256, 8192, kv_heads=8),
}
