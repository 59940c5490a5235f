"""Each engine has its state and logger closed at exit, and so keeps model, optimizer and data until then.

https://github.com/mosaicml/composer/pull/1769
"""

import torch
import torch.amp.grad_scaler
import torch.cuda.amp.grad_scaler

# torchvision, built for CUDA, does not define its operators without it, but composer imports it for one metric.
torchvision_operators = torch.library.Library("torchvision", "DEF")
for operator in ("nms", "qnms"):
    torchvision_operators.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
# The release asks for a name that torch has moved since.
moved = "_refresh_per_optimizer_state"
setattr(torch.cuda.amp.grad_scaler, moved, getattr(torch.amp.grad_scaler, moved))

from composer import Trainer  # noqa: E402
from composer.models import ComposerModel  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402


class Regressor(ComposerModel):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(64, 1)

    def forward(self, batch):
        return self.layer(batch[0])

    def loss(self, outputs, batch):
        return torch.nn.functional.mse_loss(outputs, batch[1])

    def eval_forward(self, batch, outputs=None):
        return self(batch) if outputs is None else outputs

    def update_metric(self, batch, outputs, metric):
        metric.update(outputs, batch[1])

    def get_metrics(self, is_train=False):  # noqa: ARG002
        return {}


def test_an_epoch_visits_every_batch():
    data = TensorDataset(torch.ones(8, 64), torch.zeros(8, 1))
    model = Regressor()
    trainer = Trainer(
        model=model,
        optimizers=torch.optim.SGD(model.parameters(), lr=0.1),
        train_dataloader=DataLoader(data, batch_size=4),
        max_duration="1ep",
        device="cpu",
        progress_bar=False,
    )
    trainer.fit()
    assert trainer.state.timestamp.batch == 2
