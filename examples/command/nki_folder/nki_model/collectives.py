"""Model of nki.collectives between the ranks of a launch, with any physical ring order."""
import numpy as np

from .core import current, instruction
from .faults import refuse
from .operands import require_operator, require_tensor
from .operators import ADD, MAXIMUM, MINIMUM
from .storage import Memory
from .tensor import Register

MAX_CHANNELS = 4


class ReplicaGroup:
    """Disjoint groups of rank ids; a rank communicates inside the group that contains it."""

    def __init__(self, groups):
        if not isinstance(groups, tuple) or not all(isinstance(group, tuple) and group for group in groups):
            refuse("ReplicaGroup", f"{groups!r} must be a tuple of tuples of rank ids")
        ids = [rank for group in groups for rank in group]
        if len(set(ids)) != len(ids) or any(type(rank) is not int for rank in ids):
            refuse("ReplicaGroup", f"{groups!r}: ids are ints and no two groups share one")
        self.groups = groups

    def of(self, rank):
        for group in self.groups:
            if rank in group:
                return group
        refuse("replica_group", f"rank {rank} is in none of {self.groups}")


class GroupSettings:
    """Choices of the runtime: the physical ring order of a group and the meaning of a processing-rank id."""

    def __init__(self, ring_order, group_ids):
        if group_ids not in ("position", "global"):
            raise ValueError(f"group_ids {group_ids!r}: position or global")
        self.ring_order = ring_order
        self.group_ids = group_ids

    def ring(self, group, channel):
        order = self.ring_order
        if order is None:
            ring = group
        elif callable(order):
            ring = tuple(order(group, channel))
        else:
            ring = tuple(group[position] for position in order)
        if sorted(ring) != sorted(group):
            raise ValueError(f"ring order {ring} is no permutation of the group {group}")
        return ring

    def name_of(self, rank, group):
        return rank if self.group_ids == "global" else group.index(rank)


def _require_group(replica_group):
    if not isinstance(replica_group, ReplicaGroup):
        refuse("replica_group", f"must be a ReplicaGroup, not {replica_group!r}")


def _per_channel(lists, operand, channels):
    if not isinstance(lists, (list, tuple)) or len(lists) != channels:
        refuse(operand, f"one list per channel for {channels} channels")
    tensors = []
    for inner in lists:
        if not isinstance(inner, (list, tuple)) or len(inner) != 1:
            refuse(operand, "each inner list holds exactly one tensor")
        tensor = inner[0]
        require_tensor(tensor, operand)
        if tensor.buffer is not Memory.shared_hbm or tensor.run_time is not None:
            refuse(operand, f"{tensor.name} is in {tensor.buffer.name}; a static view of shared_hbm is accepted")
        tensors.append(tensor)
    return tensors


def _require_channels(channel_ids, lists):
    ids = tuple(channel_ids)
    if ids != tuple(range(len(ids))) or not 1 <= len(ids) <= MAX_CHANNELS:
        refuse("channel_ids", f"{ids}; consecutive from 0, at most {MAX_CHANNELS}")
    return len(ids)


def _require_alike(tensors):
    first = tensors[0]
    for tensor in tensors[1:]:
        if tensor.shape != first.shape or tensor.dtype is not first.dtype:
            refuse("srcs and dsts", f"{first!r} and {tensor!r}: shapes and dtypes must be equal")


def _same_place(a, b):
    return a.storage is b.storage and a.offset == b.offset and a.shape == b.shape and a.strides == b.strides


def _permute(kind, sources, destinations, replica_group, combine):
    """sources: per channel the tuple of tensors that combine() reduces to one; destinations: per channel one tensor."""
    core = current()
    group = replica_group.of(core.rank)
    for operands, destination in zip(sources, destinations):
        _require_alike((destination,) + operands)
        if any(destination.storage is source.storage for source in operands):
            refuse("dsts_by_channel", f"{destination.name} is a source too")
    members = [(rank, index) for rank in group for index in range(core.lnc)]

    def exchange(deposits):
        for rank in group:
            _require_same_on_pair(deposits, rank, core.lnc)
        for channel in range(len(destinations)):
            ring = core.groups.ring(group, channel)
            sent = {}
            for rank in group:
                operands, destination = (deposits[(rank, 0)][side][channel] for side in (0, 1))
                for other_rank in group:
                    _require_alike((destination, deposits[(other_rank, 0)][1][channel]))
                sent[rank] = combine(operands)
            for position, rank in enumerate(ring):
                _deliver(deposits[(rank, 0)][1][channel], *sent[ring[position - 1]])

    label = f"{kind}({', '.join(d.name for d in destinations)})"
    core.world.meet((core.rank, core.index), members, ("collective", group), label, (sources, destinations), exchange)


def _require_same_on_pair(deposits, rank, lnc):
    first_sources, first_destinations = deposits[(rank, 0)]
    for index in range(1, lnc):
        sources, destinations = deposits[(rank, index)]
        mine = [t for operands in first_sources for t in operands] + first_destinations
        theirs = [t for operands in sources for t in operands] + destinations
        if len(mine) != len(theirs) or not all(_same_place(a, b) for a, b in zip(mine, theirs)):
            refuse("srcs and dsts", f"the cores of rank {rank} pass different tensors")


def _collect(tensor):
    storage = tensor.storage
    if storage.guard is not None:
        storage.guard.collective_read(tensor.window, tensor.name)
    return np.array(tensor.window(storage.values)), np.array(tensor.window(storage.defined))


def _deliver(tensor, values, defined):
    """Writes received values; elements never written at the sender are undefined at the receiver."""
    storage = tensor.storage
    if storage.read_only:
        refuse("dsts_by_channel", f"{tensor.name} is a kernel argument and read-only")
    if storage.guard is not None:
        storage.guard.collective_write(tensor.window, tensor.name)
    tensor.window(storage.values)[...] = values
    tensor.window(storage.defined)[...] = defined


@instruction
def collective_permute_implicit(srcs_by_channel, dsts_by_channel, replica_group, channel_ids=(0,), priority=None,
                                name=None):
    """Per channel: src goes to the ring successor, dst receives the predecessor's src."""
    _require_group(replica_group)
    channels = _require_channels(channel_ids, srcs_by_channel)
    sources = [(tensor,) for tensor in _per_channel(srcs_by_channel, "srcs_by_channel", channels)]
    destinations = _per_channel(dsts_by_channel, "dsts_by_channel", channels)
    _permute("collective_permute_implicit", sources, destinations, replica_group,
             lambda operands: _collect(operands[0]))


@instruction
def collective_permute_implicit_reduce(srcs0_by_channel, srcs1_by_channel, dsts_by_channel, replica_group, op,
                                       channel_ids=(0,), priority=None, name=None):
    """Per channel: op(src0, src1) goes to the ring successor, dst receives the predecessor's."""
    _require_group(replica_group)
    require_operator(op, "op", "binary", (ADD, MINIMUM, MAXIMUM))
    channels = _require_channels(channel_ids, srcs0_by_channel)
    firsts = _per_channel(srcs0_by_channel, "srcs0_by_channel", channels)
    seconds = _per_channel(srcs1_by_channel, "srcs1_by_channel", channels)
    destinations = _per_channel(dsts_by_channel, "dsts_by_channel", channels)

    def combine(operands):
        (a, a_defined), (b, b_defined) = (_collect(tensor) for tensor in operands)
        both = a_defined & b_defined
        with np.errstate(over="ignore", invalid="ignore"):
            result = op.binary(a.astype(np.float32, copy=False), b.astype(np.float32, copy=False))
        return operands[0].dtype.round(np.where(both, result, np.float32(0))), both

    _permute(f"collective_permute_implicit_reduce.{op.name}", list(zip(firsts, seconds)), destinations, replica_group,
             combine)


@instruction
def collective_permute_implicit_current_processing_rank_id(iteration_id, replica_group, channel_id=0, name=None):
    """Register with the id of the rank whose data was received after iteration_id hops; 0 gives this rank's id."""
    _require_group(replica_group)
    if type(iteration_id) is not int or iteration_id < 0:
        refuse("iteration_id", f"{iteration_id!r}; an int from 0")
    if type(channel_id) is not int or not 0 <= channel_id < MAX_CHANNELS:
        refuse("channel_id", f"{channel_id!r}; 0..{MAX_CHANNELS - 1}")
    core = current()
    group = replica_group.of(core.rank)
    ring = core.groups.ring(group, channel_id)
    owner = ring[(ring.index(core.rank) - iteration_id) % len(ring)]
    return Register(core.groups.name_of(owner, group))


@instruction
def rank_id(name=None):
    """Register with this rank's id."""
    return Register(current().rank)
