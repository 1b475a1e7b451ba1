"""Part `torch`: one update of a DQN with the paper's network in PyTorch, eager and as a graph."""

import time
from collections.abc import Callable
from statistics import median
from typing import Any

from benchmarks.options import Options
from benchmarks.tables import Table

LAYERS = ((32, 8, 4), (64, 4, 2), (64, 3, 1), (1024, 3, 1))
"""filters, kernel and stride of the paper's convolutions"""
NUM_ACTIONS, BATCH_SIZE, GAMMA = 18, 32, 0.99
PROTOCOL = (
    f"One update of a DQN with the paper's network: {NUM_ACTIONS} actions, a batch of {BATCH_SIZE} "
    "stacks of 84 x 84 frames on the device, Huber loss, gradients clipped at norm 10, Adam; "
    "waited for after every 100. `graph`: recorded once as a CUDA graph and replayed. Times are "
    "medians over the rounds."
)


def make_network(torch: Any) -> Any:
    """Convolutions, a layer of 512 units, and one value per action."""
    layers, channels, side = [], 4, 84
    for filters, kernel, stride in LAYERS:
        layers += [torch.nn.Conv2d(channels, filters, kernel, stride), torch.nn.ReLU()]
        channels, side = filters, (side - kernel) // stride + 1
    return torch.nn.Sequential(
        *layers,
        torch.nn.Flatten(),
        torch.nn.Linear(channels * side**2, 512),
        torch.nn.ReLU(),
        torch.nn.Linear(512, NUM_ACTIONS),
    )


class Update:
    """A network, its target, its optimizer and a constant batch; every call is an update."""

    def __init__(self, torch: Any, device: str):
        self.torch = torch
        self.q, self.q_target = make_network(torch).to(device), make_network(torch).to(device)
        self.adam = torch.optim.Adam(self.q.parameters(), 1e-4, capturable=device == "cuda")
        shape = (BATCH_SIZE, 4, 84, 84)
        self.obs = torch.randint(0, 256, shape, dtype=torch.uint8, device=device)
        self.next_obs = torch.randint(0, 256, shape, dtype=torch.uint8, device=device)
        self.action = torch.randint(0, NUM_ACTIONS, (BATCH_SIZE, 1), device=device)
        self.reward = torch.rand(BATCH_SIZE, device=device)
        self.terminal = (torch.rand(BATCH_SIZE, device=device) < 0.01).float()

    def __call__(self) -> None:
        torch = self.torch
        with torch.no_grad():
            next_q = self.q_target(self.next_obs.float() / 255).max(1).values
            target = self.reward + GAMMA * (1 - self.terminal) * next_q
        q = self.q(self.obs.float() / 255).gather(1, self.action)[:, 0]
        self.adam.zero_grad(set_to_none=False)
        torch.nn.functional.smooth_l1_loss(q, target).backward()
        torch.nn.utils.clip_grad_norm_(self.q.parameters(), 10.0)
        self.adam.step()

    def as_graph(self) -> Callable[[], None]:
        """The same update as a CUDA graph."""
        torch, stream = self.torch, self.torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # PyTorch wants a few updates on another stream first
            for _ in range(3):
                self()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self()
        return graph.replay


def measure(options: Options) -> dict:
    try:
        import torch
    except ImportError:
        failed = {"way": "PyTorch", "failed": "it is not installed here"}
        return {"protocol": PROTOCOL, "measured": [failed]}
    has_gpu = torch.cuda.is_available()
    device = "cuda" if has_gpu else "cpu"
    rounds, calls = (2, 2) if options.quick else (7, 100)
    measured = []
    for tf32 in (False, True) if has_gpu else (False,):
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
        for way in ("eager", "graph") if has_gpu else ("eager",):
            options.log(f"PyTorch, {way}{', TF32' * tf32}")
            update = Update(torch, device)
            call = update.as_graph() if way == "graph" else update
            # The first round is the warm-up.
            walls = [_wall_seconds(torch, device, call, calls) for _ in range(rounds + 1)][1:]
            settings = {"way": way, "tf32": tf32, "version": torch.__version__, "device": device}
            measured.append(settings | {"calls": calls, "wall": walls})
    return {"protocol": PROTOCOL, "measured": measured}


def _wall_seconds(torch: Any, device: str, call: Callable[[], None], calls: int) -> float:
    began = time.perf_counter()
    for _ in range(calls):
        call()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began


def tables(result: dict) -> list[Table]:
    rows = [_row(m) for m in result["measured"]]
    columns = ["", "ms per update"]
    return [Table("The update alone, in PyTorch", columns, rows, result["protocol"])]


def _row(m: dict) -> list[str]:
    if "failed" in m:
        return [m["way"], f"not measured: {m['failed']}"]
    name = f"PyTorch {m['version']}, {m['way']}{', TF32' * m['tf32']}"
    return [name, f"{1e3 * median(m['wall']) / m['calls']:.2f}"]
