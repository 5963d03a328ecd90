"""Train a sparse autoencoder on activations that `workload extract` stored, in PyTorch.

A TopK autoencoder (Gao et al. 2024, https://arxiv.org/abs/2406.04093, sections 2.3 and A.1): the encoder
keeps the k largest features of a token, a feature's direction has length 1, and the encoder begins as the
decoder's transpose.

python examples/sae/train.py gs://my-project-checkpoints/extractions/first resid_post.12 --features 16384
"""

import argparse
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader

from workload.activations.torch_batches import Batches


class SparseAutoencoder(nn.Module):
    """Tokens of width D as sums of k of F directions."""

    def __init__(self, width: int, features: int, k: int, mean_D: torch.Tensor):
        super().__init__()
        self.k = k
        self.bias_D = nn.Parameter(mean_D)
        self.decoder_FxD = nn.Parameter(nn.functional.normalize(torch.randn(features, width), dim=1))
        self.encoder_DxF = nn.Parameter(self.decoder_FxD.detach().T.clone())

    def forward(self, x_BxD: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the reconstruction (B, D) and the features (B, F), of which k are above zero at most."""
        scores_BxF = torch.relu((x_BxD - self.bias_D) @ self.encoder_DxF)
        top = scores_BxF.topk(self.k, dim=1)
        features_BxF = torch.zeros_like(scores_BxF).scatter(1, top.indices, top.values)
        return features_BxF @ self.decoder_FxD + self.bias_D, features_BxF

    @torch.no_grad()
    def normalize(self) -> None:
        """Give each feature's direction length 1 again, as each step changes it."""
        self.decoder_FxD.div_(self.decoder_FxD.norm(dim=1, keepdim=True))


def loader(url: str, point: str, batch: int, seed: int, workers: int) -> DataLoader:
    """Return an epoch's batches (B, D) in bfloat16, in the order of its seed."""
    return DataLoader(Batches(url, point, batch, seed=seed), batch_size=None, num_workers=workers)


def main() -> None:
    """Train, print each epoch's error, and write the model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url", help="an extraction: a folder or gs://…")
    parser.add_argument("point", help="such as resid_post.12")
    parser.add_argument("--features", type=int, default=16384)
    parser.add_argument("--k", type=int, default=32, help="features a token")
    parser.add_argument("--batch", type=int, default=4096, help="tokens")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--rate", type=float, default=1e-3, help="learning rate")
    parser.add_argument("--workers", type=int, default=4, help="processes that read")
    parser.add_argument("--out", type=Path, default=Path("sae.pt"))
    args = parser.parse_args()
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"

    first_BxD = next(iter(loader(args.url, args.point, args.batch, 0, 0))).float()
    model = SparseAutoencoder(first_BxD.shape[1], args.features, args.k, first_BxD.mean(0)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), args.rate)
    fired_F = torch.zeros(args.features, dtype=torch.bool, device=device)
    for epoch in range(args.epochs):
        error = variance = 0.0
        for x_BxD in loader(args.url, args.point, args.batch, epoch, args.workers):
            x_BxD = x_BxD.to(device).float()
            rebuilt_BxD, features_BxF = model(x_BxD)
            loss = (rebuilt_BxD - x_BxD).square().sum(1).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            model.normalize()
            fired_F |= (features_BxF > 0).any(0)
            error += loss.item() * len(x_BxD)
            variance += (x_BxD - x_BxD.mean(0)).square().sum().item()
        dead = 1 - fired_F.float().mean().item()
        unexplained = error / variance
        print(f"epoch {epoch}: unexplained variance {unexplained:.3f}, features that never fired {dead:.1%}")
    torch.save({"model": model.state_dict(), "k": args.k, "point": args.point, "url": args.url}, args.out)
    print(f"wrote {args.out}")


if __name__ == "__main__":
    main()
