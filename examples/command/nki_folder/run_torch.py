"""Runs the kernels of this folder with PyTorch, one process per rank, and checks their results:

    torchrun --nproc_per_node RANKS run_torch.py     RANKS: ranks of all rings (README.md)

Uses PyTorch/XLA where it is installed, else the Neuron device of torch-neuronx (SDK 2.33 and later).
"""
import importlib
import sys

import torch
import torch.distributed as distributed

import check
import problem


def open_device():
    """Joins the process group; returns this process's device."""
    try:
        import torch_xla.core.xla_model as xla_model
        import torch_xla.distributed.xla_backend  # noqa: F401  registers the backend "xla"
    except ImportError:
        import torch_neuronx  # noqa: F401  registers the device and the backend "neuron"
        distributed.init_process_group("neuron")
        return torch.device("neuron")
    distributed.init_process_group("xla")
    return xla_model.xla_device()


def on_any_rank(flag, device):
    """Whether the flag is set on any rank; the same answer on all."""
    flags = torch.tensor([float(flag)]).to(device)
    distributed.all_reduce(flags, op=distributed.ReduceOp.MAX)
    return bool(flags.cpu().numpy().any())


def main():
    device = open_device()
    rank, ranks = distributed.get_rank(), distributed.get_world_size()
    if ranks != check.WORLD:
        sys.exit(f"{ranks} processes; these kernels run on {check.WORLD}: torchrun --nproc_per_node {check.WORLD}")
    forward = None
    for name in problem.KERNELS:
        if forward and name == "ring_attention_fwd":
            continue
        kernel = check.launched(getattr(importlib.import_module(name), name))
        given = {tensor: torch.from_numpy(values).to(getattr(torch, dtype)).to(device)
                 for tensor, (values, dtype) in check.arguments(name, rank, forward).items()}
        results = check.call(kernel, name, given)
        forward = check.save(name, rank, [result.cpu().float().numpy() for result in results])
        if "beyond_range" in forward and on_any_rank(forward["beyond_range"].any(), device):
            forward = None  # ring_attention_fwd is needed
    distributed.barrier()
    good = rank != 0 or check.check()
    distributed.destroy_process_group()
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
