"""The same update of the same network in PyTorch, eagerly and as a CUDA graph: what others' code would take for it on this machine."""

import time
from collections.abc import Callable
from typing import Any

from benchmarks.tables import Table

LAYERS = ((32, 8, 4), (64, 4, 2), (64, 3, 1), (1024, 3, 1))
"""filters, kernel and stride of the paper's convolutions"""
ACTIONS, BATCH, GAMMA = 18, 32, 0.99
PROTOCOL = (
    f"One update of a DQN with the paper's network ({ACTIONS} actions, a batch of {BATCH} stacks of 84x84 frames that lie on the device, "
    "Huber's loss, gradients cut at norm 10, Adam), waited for after every 100. `graph`: recorded once as a CUDA graph and replayed. "
    "TF32 where it says so. Medians over the rounds."
)


def network(torch: Any) -> Any:
    """EncoderName, 512 units, a value an action."""
    layers, channels, side = [], 4, 84
    for filters, kernel, stride in LAYERS:
        layers += [torch.nn.Conv2d(channels, filters, kernel, stride), torch.nn.ReLU()]
        channels, side = filters, (side - kernel) // stride + 1
    layers += [torch.nn.Flatten(), torch.nn.Linear(channels * side**2, 512), torch.nn.ReLU(), torch.nn.Linear(512, ACTIONS)]
    return torch.nn.Sequential(*layers)


class Update:
    """A network, its target, its optimiser, and a batch that stays the same."""

    def __init__(self, torch: Any, device: str):
        self.torch = torch
        self.q, self.target = network(torch).to(device), network(torch).to(device)
        self.adam = torch.optim.Adam(self.q.parameters(), 1e-4, capturable=device == "cuda")
        shape = (BATCH, 4, 84, 84)
        self.state, self.after = (torch.randint(0, 256, shape, dtype=torch.uint8, device=device) for _ in range(2))
        self.action = torch.randint(0, ACTIONS, (BATCH, 1), device=device)
        self.reward, self.end = torch.rand(BATCH, device=device), (torch.rand(BATCH, device=device) < 0.01).float()

    def __call__(self) -> None:
        torch = self.torch
        with torch.no_grad():
            target = self.reward + GAMMA * (1 - self.end) * self.target(self.after.float() / 255).max(1).values
        value = self.q(self.state.float() / 255).gather(1, self.action)[:, 0]
        self.adam.zero_grad(set_to_none=False)
        torch.nn.functional.smooth_l1_loss(value, target).backward()
        torch.nn.utils.clip_grad_norm_(self.q.parameters(), 10.0)
        self.adam.step()

    def recorded(self) -> Callable[[], None]:
        """The same as a CUDA graph."""
        torch, aside = self.torch, self.torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):  # as PyTorch wants it: first a few on a stream of their own
            for _ in range(3):
                self()
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self()
        return graph.replay


def measure(quick: bool, say) -> dict:
    try:
        import torch
    except ImportError:
        return {"protocol": PROTOCOL, "measured": [{"way": "PyTorch", "failed": "it is not installed here"}]}
    device = "cuda" if torch.cuda.is_available() else "cpu"
    rounds, calls, measured = (2, 2, []) if quick else (7, 100, [])
    for tf32 in (False, True) if device == "cuda" else (False,):
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
        for way in ("eager", "graph") if device == "cuda" else ("eager",):
            say(f"PyTorch, {way}{', TF32' * tf32}")
            update = Update(torch, device)
            run = update.recorded() if way == "graph" else update
            walls = [timed(torch, device, run, calls) for _ in range(rounds + 1)][1:]
            measured.append({"way": way, "tf32": tf32, "version": torch.__version__, "device": device, "calls": calls, "wall": walls})
    return {"protocol": PROTOCOL, "measured": measured}


def timed(torch: Any, device: str, run: Callable[[], None], calls: int) -> float:
    began = time.perf_counter()
    for _ in range(calls):
        run()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began


def tables(result: dict) -> list[Table]:
    rows = []
    for m in result["measured"]:
        if "failed" in m:
            rows.append([m["way"], f"not measured: {m['failed']}"])
        else:
            middle = sorted(m["wall"])[len(m["wall"]) // 2]
            rows.append([f"PyTorch {m['version']}, {m['way']}{', TF32' * m['tf32']}", f"{1e3 * middle / m['calls']:.2f}"])
    return [Table("The update alone, in PyTorch", ["", "ms an update"], rows, result["protocol"])]
