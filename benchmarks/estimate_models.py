"""Models whose training or inference is estimated on the CPU, and measured on CUDA: each a function of the device's name.

The first 23 gave the rules of the estimate; the rest was written afterwards.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import nn, optim
from torch.nn import functional as F  # noqa: N812 - as torch's users write it
from torch.utils.checkpoint import checkpoint

Batch = Callable[[], tuple[torch.Tensor, torch.Tensor]]
Run = Callable[[str], None]


def train(
    model: nn.Module,
    optimizer: optim.Optimizer,
    batch: Batch,
    device: str,
    amp: torch.dtype | None = None,
    *,
    set_to_none: bool = True,
) -> None:
    """Make two steps of a classification."""
    for _ in range(2):
        optimizer.zero_grad(set_to_none=set_to_none)
        inputs, target = batch()
        with torch.autocast(device, dtype=amp) if amp else contextlib.nullcontext():
            made = model(inputs)
            loss = F.cross_entropy(made.flatten(0, -2), target.flatten())
        loss.backward()
        optimizer.step()


def run(
    make: Callable[[], nn.Module], opt: Callable[[Any], optim.Optimizer], batch: Callable[[str], Batch], **more: Any
) -> Run:
    """Return a function that trains a model on a device."""

    def start(device: str) -> None:
        model = make().to(device)
        train(model, opt(model.parameters()), batch(device), device, **more)

    return start


def images(count: int, size: int, classes: int = 100) -> Callable[[str], Batch]:
    """Return batches of images."""
    return lambda device: (
        lambda: (
            torch.randn(count, 3, size, size, device=device),
            torch.randint(0, classes, (count,), device=device),
        )
    )


def tokens(count: int, length: int, vocabulary: int) -> Callable[[str], Batch]:
    """Return batches of sequences."""
    return lambda device: (
        lambda: (
            torch.randint(0, vocabulary, (count, length), device=device),
            torch.randint(0, vocabulary, (count, length), device=device),
        )
    )


def vectors(count: int, size: int, classes: int) -> Callable[[str], Batch]:
    """Return batches of vectors."""
    return lambda device: (
        lambda: (
            torch.randn(count, size, device=device),
            torch.randint(0, classes, (count,), device=device),
        )
    )


class Block(nn.Module):
    """Two convolutions with a shortcut."""

    def __init__(self, channels: int, made: int, stride: int = 1) -> None:
        super().__init__()
        self.c1, self.b1 = nn.Conv2d(channels, made, 3, stride, 1, bias=False), nn.BatchNorm2d(made)
        self.c2, self.b2 = nn.Conv2d(made, made, 3, 1, 1, bias=False), nn.BatchNorm2d(made)
        same = stride == 1 and channels == made
        self.down = (
            None if same else nn.Sequential(nn.Conv2d(channels, made, 1, stride, bias=False), nn.BatchNorm2d(made))
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add the shortcut."""
        shortcut = x if self.down is None else self.down(x)
        out = F.relu(self.b1(self.c1(x)), inplace=True)
        out = self.b2(self.c2(out))
        out += shortcut
        return F.relu(out, inplace=True)


class ResNet(nn.Module):
    """Like ResNet-18, narrower."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 7, 2, 3, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, 1),
        )
        layers, channels = [], width
        for number, made in enumerate([width, 2 * width, 4 * width, 8 * width]):
            layers += [Block(channels, made, 1 if number == 0 else 2), Block(made, made)]
            channels = made
        self.layers, self.fc = nn.Sequential(*layers), nn.Linear(channels, 100)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the scores of classes."""
        return self.fc(self.layers(self.stem(x)).mean((2, 3)))


class GptBlock(nn.Module):
    """Attention and two linear layers, each with a shortcut."""

    def __init__(self, width: int, heads: int, p: float = 0.0, *, manual: bool = False) -> None:
        super().__init__()
        self.heads, self.manual = heads, manual
        self.l1, self.qkv, self.o = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.l2, self.f1, self.f2 = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop = nn.Dropout(p)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attend by hand, or by torch's function."""
        count, length, width = x.shape
        size = width // self.heads
        q, k, v = [t.view(count, length, self.heads, size).transpose(1, 2) for t in self.qkv(self.l1(x)).chunk(3, -1)]
        if self.manual:
            scores = (q @ k.transpose(-1, -2)) * size**-0.5
            later = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
            y = self.drop(scores.masked_fill(later, float("-inf")).softmax(-1)) @ v
        else:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.drop(self.o(y.transpose(1, 2).reshape(count, length, width)))
        return x + self.drop(self.f2(F.gelu(self.f1(self.l2(x)))))


class Gpt(nn.Module):
    """A small GPT."""

    def __init__(
        self, vocabulary: int = 4000, layers: int = 4, p: float = 0.0, *, recompute: bool = False, manual: bool = False
    ) -> None:
        super().__init__()
        width = 128
        self.e, self.pos = nn.Embedding(vocabulary, width), nn.Parameter(torch.zeros(128, width))
        self.blocks = nn.ModuleList(GptBlock(width, 4, p, manual=manual) for _ in range(layers))
        self.ln, self.head, self.recompute = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False), recompute

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the scores of the next tokens."""
        x = self.e(x) + self.pos[: x.shape[1]]
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recompute else block(x)
        return self.head(self.ln(x))


class UNet(nn.Module):
    """Two steps down and up, with shortcuts."""

    def __init__(self, w: int = 16) -> None:
        super().__init__()

        def pair(i: int, o: int) -> nn.Module:
            first = nn.Conv2d(i, o, 3, padding=1), nn.GroupNorm(4, o), nn.SiLU()
            return nn.Sequential(*first, nn.Conv2d(o, o, 3, padding=1), nn.GroupNorm(4, o), nn.SiLU())

        self.d1, self.d2, self.d3 = pair(3, w), pair(w, 2 * w), pair(2 * w, 4 * w)
        self.u2, self.c2 = nn.ConvTranspose2d(4 * w, 2 * w, 2, 2), pair(4 * w, 2 * w)
        self.u1, self.c1, self.o = nn.ConvTranspose2d(2 * w, w, 2, 2), pair(2 * w, w), nn.Conv2d(w, 3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return an image."""
        a = self.d1(x)
        b = self.d2(F.max_pool2d(a, 2))
        z = self.d3(F.max_pool2d(b, 2))
        y = self.c2(torch.cat([self.u2(z), b], 1))
        return self.o(self.c1(torch.cat([self.u1(y), a], 1)))


class Recurrent(nn.Module):
    """A recurrent layer between an embedding and the scores."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.e, self.r, self.o = (
            nn.Embedding(2000, 128),
            getattr(nn, kind)(128, 256, 2, batch_first=True),
            nn.Linear(256, 2000),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the scores of the next tokens."""
        return self.o(self.r(self.e(x))[0])


class Encoder(nn.Module):
    """torch's encoder."""

    def __init__(self, p: float = 0.1) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(128, 4, 512, p, batch_first=True)
        self.e, self.o = nn.Embedding(4000, 128), nn.Linear(128, 4000)
        self.t = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the scores of the next tokens."""
        return self.o(self.t(self.e(x)))


def mlp() -> nn.Module:
    """Return three linear layers."""
    return nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 100))


def unet(device: str) -> None:
    """Train a UNet to return its input."""
    model = UNet().to(device)
    optimizer = optim.Adam(model.parameters(), 1e-3)
    for _ in range(2):
        x = torch.randn(4, 3, 64, 64, device=device)
        optimizer.zero_grad()
        F.mse_loss(model(x), x).backward()
        optimizer.step()


def inference(device: str) -> None:
    """Run a ResNet without gradients."""
    model = ResNet().to(device).eval()
    with torch.no_grad():
        for _ in range(2):
            model(torch.randn(8, 3, 96, 96, device=device))


def evaluation_with_graphs(device: str) -> None:
    """Keep results of a ResNet with their graphs."""
    model, kept = ResNet().to(device).eval(), []
    for _ in range(3):
        kept.append(model(torch.randn(4, 3, 96, 96, device=device)))


def contrastive(device: str) -> None:
    """Train two views to be alike."""
    model = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 128)).to(device)
    optimizer = optim.AdamW(model.parameters())
    for _ in range(2):
        a = F.normalize(model(torch.randn(1024, 256, device=device)), dim=-1)
        b = F.normalize(model(torch.randn(1024, 256, device=device)), dim=-1)
        scores, same = a @ b.t() / 0.07, torch.arange(1024, device=device)
        loss = F.cross_entropy(scores, same) + F.cross_entropy(scores.t(), same)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def scaled(device: str) -> None:
    """Train a GPT in float16, with scaled and clipped gradients."""
    model = Gpt().to(device)
    optimizer, scaler = optim.AdamW(model.parameters()), torch.amp.GradScaler(device)
    batch = tokens(4, 128, 4000)(device)
    for _ in range(2):
        optimizer.zero_grad()
        x, y = batch()
        with torch.autocast(device, dtype=torch.float16):
            loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()


def sgd(**more: Any) -> Callable[[Any], optim.Optimizer]:
    """Return SGD for parameters."""
    return lambda parameters: optim.SGD(parameters, 0.1, **more)


def adam(kind: type[optim.Optimizer] = optim.Adam, **more: Any) -> Callable[[Any], optim.Optimizer]:
    """Return Adam for parameters."""
    return lambda parameters: kind(parameters, **more)


TEXT = tokens(8, 128, 4000)
FIRST: dict[str, Run] = {
    "mlp, SGD": run(mlp, sgd(), vectors(1024, 512, 100)),
    "mlp, SGD with momentum": run(mlp, sgd(momentum=0.9), vectors(1024, 512, 100)),
    "mlp, Adam": run(mlp, adam(), vectors(512, 512, 100)),
    "mlp, Adam, foreach=False": run(mlp, adam(foreach=False), vectors(512, 512, 100)),
    "mlp, AdamW, amsgrad": run(mlp, adam(optim.AdamW, amsgrad=True), vectors(512, 512, 100)),
    "ResNet, SGD": run(ResNet, sgd(momentum=0.9), images(8, 96)),
    "ResNet, Adam": run(ResNet, adam(), images(4, 64)),
    "ResNet, bfloat16": run(ResNet, sgd(momentum=0.9), images(8, 96), amp=torch.bfloat16),
    "ResNet, inference": inference,
    "ResNet, evaluated with graphs": evaluation_with_graphs,
    "LSTM, Adam": run(lambda: Recurrent("LSTM"), adam(), tokens(16, 32, 2000)),
    "GRU, Adam": run(lambda: Recurrent("GRU"), adam(), tokens(16, 32, 2000)),
    "encoder, dropout 0.1": run(Encoder, adam(), TEXT),
    "encoder": run(lambda: Encoder(0.0), adam(), TEXT),
    "GPT": run(Gpt, adam(optim.AdamW), TEXT),
    "GPT, attention by hand, dropout 0.1": run(lambda: Gpt(p=0.1, manual=True), adam(optim.AdamW), TEXT),
    "GPT, dropout 0.1": run(lambda: Gpt(p=0.1), adam(optim.AdamW), TEXT),
    "GPT, checkpoints": run(lambda: Gpt(1000, 8, recompute=True), adam(optim.AdamW), tokens(8, 128, 1000)),
    "GPT, bfloat16": run(Gpt, adam(optim.AdamW), TEXT, amp=torch.bfloat16),
    "GPT, float16, scaled and clipped": scaled,
    "GPT, gradients kept": run(Gpt, adam(optim.AdamW), TEXT, set_to_none=False),
    "UNet, Adam": unet,
    "contrastive": contrastive,
}
"""The models that gave the rules."""


class Mixer(nn.Module):
    """Linear layers over places and over channels in turn."""

    def __init__(self, width: int = 128, places: int = 64, layers: int = 4) -> None:
        super().__init__()
        self.cut = nn.Conv2d(3, width, 8, 8)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * layers))
        self.over_places = nn.ModuleList(
            nn.Sequential(nn.Linear(places, 256), nn.GELU(), nn.Linear(256, places)) for _ in range(layers)
        )
        self.over_channels = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 512), nn.GELU(), nn.Linear(512, width)) for _ in range(layers)
        )
        self.head = nn.Linear(width, 100)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the scores of classes."""
        x = self.cut(x).flatten(2).transpose(1, 2)
        for number, (first, second) in enumerate(zip(self.over_places, self.over_channels, strict=True)):
            x = x + first(self.norms[2 * number](x).transpose(1, 2)).transpose(1, 2)
            x = x + second(self.norms[2 * number + 1](x))
        return self.head(x.mean(1))


class VisionTransformer(nn.Module):
    """torch's encoder over pieces of an image, normalised first."""

    def __init__(self, p: float = 0.1) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(192, 3, 768, p, activation="gelu", batch_first=True, norm_first=True)
        self.cut, self.head = nn.Conv2d(3, 192, 8, 8), nn.Linear(192, 100)
        self.first, self.place = nn.Parameter(torch.zeros(1, 1, 192)), nn.Parameter(torch.zeros(1, 145, 192))
        self.body = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the scores of classes."""
        x = self.cut(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(len(x), -1, -1), x], 1) + self.place
        return self.head(self.body(x)[:, 0])


class DenseNet(nn.Module):
    """Convolutions that read all earlier results."""

    def __init__(self, growth: int = 16, layers: int = 8) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 32, 3, padding=1)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.BatchNorm2d(32 + n * growth), nn.ReLU(), nn.Conv2d(32 + n * growth, growth, 3, padding=1))
            for n in range(layers)
        )
        self.head = nn.Linear(32 + layers * growth, 100)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the scores of classes."""
        x = self.first(x)
        for layer in self.layers:
            x = torch.cat([x, layer(x)], 1)
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


class Vgg(nn.Module):
    """Convolutions, pooling, and large linear layers with dropout."""

    def __init__(self) -> None:
        super().__init__()
        sizes = [3, 32, 64, 128]
        steps = [
            part
            for i, o in pairwise(sizes)
            for part in (nn.Conv2d(i, o, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2))
        ]
        self.features = nn.Sequential(*steps)
        self.classes = nn.Sequential(
            nn.Flatten(), nn.Linear(128 * 64, 1024), nn.ReLU(), nn.Dropout(0.5), nn.Linear(1024, 100)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the scores of classes."""
        return self.classes(self.features(x))


class Llama(nn.Module):
    """Root-mean-square norms, rotated places, gated layers."""

    def __init__(self, width: int = 256, layers: int = 3, vocabulary: int = 8000) -> None:
        super().__init__()
        self.e, self.head = nn.Embedding(vocabulary, width), nn.Linear(width, vocabulary, bias=False)
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(2 * layers + 1))
        self.qkv = nn.ModuleList(nn.Linear(width, 3 * width, bias=False) for _ in range(layers))
        self.out = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(layers))
        self.gate = nn.ModuleList(nn.Linear(width, 2 * 688, bias=False) for _ in range(layers))
        self.down = nn.ModuleList(nn.Linear(688, width, bias=False) for _ in range(layers))

    @staticmethod
    def rotate(x: torch.Tensor) -> torch.Tensor:
        """Rotate pairs of values by their place."""
        length, size = x.shape[-2], x.shape[-1]
        speed = 10000 ** (-torch.arange(0, size, 2, device=x.device) / size)
        angle = torch.arange(length, device=x.device)[:, None] * speed
        first, second = x.chunk(2, -1)
        return torch.cat([first * angle.cos() - second * angle.sin(), second * angle.cos() + first * angle.sin()], -1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the scores of the next tokens."""
        x = self.e(x)
        for number in range(len(self.qkv)):
            count, length, width = x.shape
            q, k, v = [
                t.view(count, length, 4, width // 4).transpose(1, 2)
                for t in self.qkv[number](self.norms[2 * number](x)).chunk(3, -1)
            ]
            made = F.scaled_dot_product_attention(self.rotate(q), self.rotate(k), v, is_causal=True)
            x = x + self.out[number](made.transpose(1, 2).reshape(count, length, width))
            gate, up = self.gate[number](self.norms[2 * number + 1](x)).chunk(2, -1)
            x = x + self.down[number](F.silu(gate) * up)
        return self.head(self.norms[-1](x))


class Bert(nn.Module):
    """torch's own attention with a mask of what is padded."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(256, 4, 1024, 0.1, activation="gelu", batch_first=True)
        self.e, self.head = nn.Embedding(6000, 256, padding_idx=0), nn.Linear(256, 6000)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the scores of the tokens."""
        return self.head(self.body(self.e(x), src_key_padding_mask=x == 0))


class Words(nn.Module):
    """Many embedded words, averaged."""

    def __init__(self) -> None:
        super().__init__()
        self.e, self.hidden, self.head = nn.Embedding(20000, 128), nn.Linear(128, 512), nn.Linear(512, 50)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the scores of classes."""
        return self.head(F.relu(self.hidden(self.e(x).mean(1))))


def words(device: str) -> Batch:
    """Return batches of long texts with a class each."""
    return lambda: (torch.randint(0, 20000, (64, 128), device=device), torch.randint(0, 50, (64,), device=device))


def variational(device: str) -> None:
    """Train an autoencoder with a random code."""
    encode = nn.Sequential(nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 128)).to(device)
    decode = nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 784)).to(device)
    optimizer = optim.Adam([*encode.parameters(), *decode.parameters()])
    for _ in range(2):
        x = torch.rand(1024, 784, device=device)
        mean, variance = encode(x).chunk(2, -1)
        made = decode(mean + torch.randn_like(mean) * (variance / 2).exp())
        spread = -0.5 * (1 + variance - mean**2 - variance.exp()).sum()
        loss = F.binary_cross_entropy_with_logits(made, x, reduction="sum") + spread
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def adversarial(device: str) -> None:
    """Train a generator and a critic of images."""
    make = nn.Sequential(
        nn.ConvTranspose2d(64, 128, 4), nn.BatchNorm2d(128), nn.ReLU(), nn.ConvTranspose2d(128, 64, 4, 2, 1), nn.BatchNorm2d(64),
        nn.ReLU(), nn.ConvTranspose2d(64, 32, 4, 2, 1), nn.BatchNorm2d(32), nn.ReLU(), nn.ConvTranspose2d(32, 3, 4, 2, 1), nn.Tanh(),
    ).to(device)  # fmt: skip
    judge = nn.Sequential(
        nn.Conv2d(3, 64, 4, 2, 1),
        nn.LeakyReLU(0.2),
        nn.Conv2d(64, 128, 4, 2, 1),
        nn.LeakyReLU(0.2),
        nn.Flatten(),
        nn.Linear(8192, 1),
    ).to(device)
    makers, judges = optim.Adam(make.parameters(), 2e-4), optim.Adam(judge.parameters(), 2e-4)
    for _ in range(2):
        real, made = torch.randn(64, 3, 32, 32, device=device), make(torch.randn(64, 64, 1, 1, device=device))
        judges.zero_grad()
        (F.softplus(-judge(real)).mean() + F.softplus(judge(made.detach())).mean()).backward()
        judges.step()
        makers.zero_grad()
        F.softplus(-judge(made)).mean().backward()
        makers.step()


def mobile() -> nn.Module:
    """Return convolutions by channel."""
    steps: list[nn.Module] = [nn.Conv2d(3, 32, 3, 2, 1)]
    for i, o in ((32, 64), (64, 128), (128, 128)):
        steps += [
            nn.Conv2d(i, i, 3, 1, 1, groups=i),
            nn.BatchNorm2d(i),
            nn.Hardswish(),
            nn.Conv2d(i, o, 1),
            nn.BatchNorm2d(o),
            nn.Hardswish(),
        ]
    return nn.Sequential(*steps, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 100))


def policy(device: str) -> None:
    """Train a policy and a value by rewards."""
    body, choose, value = nn.Linear(64, 1024).to(device), nn.Linear(1024, 18).to(device), nn.Linear(1024, 1).to(device)
    optimizer = optim.RMSprop([*body.parameters(), *choose.parameters(), *value.parameters()], foreach=True)
    for _ in range(2):
        hidden = torch.tanh(body(torch.randn(4096, 64, device=device)))
        odds, worth = F.log_softmax(choose(hidden), -1), value(hidden)[:, 0]
        taken = torch.randint(0, 18, (4096,), device=device)
        gain = torch.randn(4096, device=device) - worth
        loss = (
            gain.square().mean()
            - (odds.gather(1, taken[:, None])[:, 0] * gain.detach()).mean()
            + (odds.exp() * odds).sum(-1).mean()
        )
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(body.parameters(), 0.5)
        optimizer.step()


def accumulated(device: str) -> None:
    """Add up the gradients of four batches."""
    model = mlp().to(device)
    optimizer = optim.AdamW(model.parameters())
    for _ in range(2):
        for _ in range(4):
            loss = F.cross_entropy(
                model(torch.randn(256, 512, device=device)), torch.randint(0, 100, (256,), device=device)
            )
            (loss / 4).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


def distilled(device: str) -> None:
    """Train a small model to be like a large one."""
    large = nn.Sequential(nn.Linear(512, 4096), nn.ReLU(), nn.Linear(4096, 1000)).to(device).eval()
    small = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 1000)).to(device)
    optimizer = optim.SGD(small.parameters(), 0.1)
    for _ in range(2):
        x = torch.randn(1024, 512, device=device)
        with torch.no_grad():
            goal = F.softmax(large(x) / 2, -1)
        loss = F.kl_div(F.log_softmax(small(x) / 2, -1), goal, reduction="batchmean")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def averaged(device: str) -> None:
    """Keep a moving average of the parameters."""
    model = mlp().to(device)
    average = optim.swa_utils.AveragedModel(model)
    optimizer = optim.SGD(model.parameters(), 0.1, momentum=0.9)
    for _ in range(2):
        F.mse_loss(model(torch.randn(256, 512, device=device)), torch.zeros(256, 100, device=device)).backward()
        optimizer.step()
        optimizer.zero_grad()
        average.update_parameters(model)


def generated(device: str) -> None:
    """Make tokens one by one, with what was computed kept."""
    torch.manual_seed(0)
    qkv, out, head = (nn.Linear(512, size).to(device) for size in (1536, 512, 8000))
    keys = values = torch.zeros(8, 8, 0, 64, device=device)
    x = torch.randn(8, 1, 512, device=device)
    with torch.inference_mode():
        for _ in range(64):
            q, k, v = [t.view(8, 1, 8, 64).transpose(1, 2) for t in qkv(x).chunk(3, -1)]
            keys, values = torch.cat([keys, k], 2), torch.cat([values, v], 2)
            made = F.scaled_dot_product_attention(q, keys, values).transpose(1, 2).reshape(8, 1, 512)
            x = out(made)
            head(x).argmax(-1)


def graph(device: str) -> None:
    """Train a network over a graph's edges."""
    first, second = nn.Linear(128, 256).to(device), nn.Linear(256, 40).to(device)
    optimizer = optim.Adam([*first.parameters(), *second.parameters()])
    nodes, edges = torch.randn(2000, 128, device=device), torch.randint(0, 2000, (2, 20000), device=device)
    for _ in range(2):
        x = nodes
        for layer in (first, second):
            sent = layer(x)[edges[0]]
            x = torch.zeros(2000, sent.shape[1], device=device).index_add(0, edges[1], sent).relu()
        loss = F.cross_entropy(x, torch.randint(0, 40, (2000,), device=device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def half_inference(device: str) -> None:
    """Run a large linear model in bfloat16."""
    model = mlp().to(device, torch.bfloat16).eval()
    with torch.no_grad():
        for _ in range(2):
            model(torch.randn(4096, 512, device=device, dtype=torch.bfloat16)).float().softmax(-1)


def penalized(device: str) -> None:
    """Differentiate a gradient's norm."""
    model = nn.Sequential(nn.Linear(256, 1024), nn.Tanh(), nn.Linear(1024, 1)).to(device)
    optimizer = optim.Adam(model.parameters())
    for _ in range(2):
        x = torch.randn(1024, 256, device=device, requires_grad=True)
        (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        optimizer.zero_grad()
        ((slope.norm(dim=1) - 1) ** 2).mean().backward()
        optimizer.step()


LATER: dict[str, Run] = {
    "mixer, AdamW": run(Mixer, adam(optim.AdamW), images(16, 64)),
    "vision transformer, dropout 0.1": run(VisionTransformer, adam(optim.AdamW), images(8, 96)),
    "DenseNet, SGD": run(DenseNet, sgd(momentum=0.9), images(8, 32)),
    "VGG, dropout 0.5": run(Vgg, adam(), images(16, 64)),
    "Llama, AdamW": run(Llama, adam(optim.AdamW), tokens(4, 256, 8000)),
    "Llama, bfloat16": run(Llama, adam(optim.AdamW), tokens(4, 256, 8000), amp=torch.bfloat16),
    "BERT, masked, dropout 0.1": run(Bert, adam(optim.AdamW), tokens(8, 128, 6000)),
    "words, Adam": run(Words, adam(), words),
    "variational autoencoder": variational,
    "generator and critic": adversarial,
    "convolutions by channel": run(mobile, sgd(momentum=0.9, nesterov=True), images(8, 64)),
    "policy and value, RMSprop": policy,
    "gradients added up and clipped": accumulated,
    "distilled": distilled,
    "averaged": averaged,
    "tokens generated one by one": generated,
    "graph network": graph,
    "inference in bfloat16": half_inference,
    "gradient of a gradient": penalized,
    "mlp, float64": run(
        lambda: mlp().double(),
        adam(),
        lambda device: (
            lambda: (
                torch.randn(512, 512, device=device, dtype=torch.float64),
                torch.randint(0, 100, (512,), device=device),
            )
        ),
    ),
}
"""Models that were written when the rules were fixed."""
