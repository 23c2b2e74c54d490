import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as fc

X = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))


def single_sum():
    return lambda x: x.reshape(2, -1, 4).sum(0) * 2, (X,)


def mk(body):
    return lambda r, n: ((lambda x: body(x, r, n)), (X.chunk(n)[r].clone(),))


def ok(x, r, n):
    y = x.clone()
    w = dist.all_reduce(y, async_op=True)
    x * 2
    w.wait()
    return y * 2


def early(x, r, n):
    y = x.clone()
    w = dist.all_reduce(y, async_op=True)
    z = y * 2
    w.wait()
    return z


def nowait(x, r, n):
    y = x.clone()
    dist.all_reduce(y, async_op=True)
    return y * 2


def overwritten(x, r, n):
    o = torch.empty(n, *x.shape)
    y = x.clone()
    w = dist.all_gather_into_tensor(o, y, async_op=True)
    y.zero_()
    w.wait()
    return o.sum(0) * 2


def halves(x, r, n):
    y = x.clone()
    w = dist.all_reduce(y[:2], async_op=True)
    y[2:] * 1
    v = dist.all_reduce(y[2:], async_op=True)
    w.wait()
    v.wait()
    return y * 2


def future(x, r, n):
    y = x.clone()
    dist.all_reduce(y, async_op=True).get_future().wait()
    return y * 2


def order(x, r, n):
    y, z = x.clone(), x.clone()
    if r == 0:
        dist.all_reduce(y)
        dist.all_reduce(z, op=dist.ReduceOp.MAX)
    else:
        dist.all_reduce(z, op=dist.ReduceOp.MAX)
        dist.all_reduce(y)
    return y * 2


def deadlock(x, r, n):
    o = torch.empty_like(x)
    dist.send(x, 1 - r)
    dist.recv(o, 1 - r)
    return (x + o) * 2


def odd_even(x, r, n):
    o = torch.empty_like(x)
    if r == 0:
        dist.send(x, 1)
        dist.recv(o, 1)
    else:
        dist.recv(o, 0)
        dist.send(x, 0)
    return (x + o) * 2


def isend_ok(x, r, n):
    o = torch.empty_like(x)
    w = dist.isend(x, 1 - r)
    dist.recv(o, 1 - r)
    w.wait()
    return (x + o) * 2


def isend_write(x, r, n):
    o, b = torch.empty_like(x), x.clone()
    w = dist.isend(b, 1 - r)
    b.mul_(2)
    dist.recv(o, 1 - r)
    w.wait()
    return (x + o) * 2


def irecv_early(x, r, n):
    o = torch.empty_like(x)
    w = dist.irecv(o, 1 - r)
    v = dist.isend(x, 1 - r)
    z = (x + o) * 2
    w.wait()
    v.wait()
    return z


def unpaired(x, r, n):
    o = torch.zeros_like(x)
    if r == 0:
        dist.send(x, 1)
    else:
        dist.recv(o, 0)
        dist.recv(o, 0)
    return (x + o) * 2


def two(r, n):
    return dist.new_group(list(range(n))), dist.new_group(list(range(n)))


def other_group(x, r, n):
    """What one group makes is sent by another of the same ranks, which waits for nothing."""
    g, h = two(r, n)
    y, o = x.clone(), torch.empty(n, *x.shape)
    w = dist.all_reduce(y, group=g, async_op=True)
    v = dist.all_gather_into_tensor(o, y, group=h, async_op=True)
    w.wait()
    v.wait()
    return o[0] * 2


def groups_ok(x, r, n):
    """As `other_group`, with halves of a tensor; one group may follow itself."""
    g, h = two(r, n)
    y, o = x.clone(), torch.empty(n, 2, 4)
    w = dist.all_reduce(y[:2], group=g, async_op=True)
    v = dist.all_reduce(y[2:], group=h, async_op=True)
    u = dist.all_gather_into_tensor(o, y[2:], group=h, async_op=True)
    u.wait()
    v.wait()
    w.wait()
    return torch.cat([y[:2], o[0]]) * 2


def crossed(x, r, n):
    """Halves go to two groups of the same ranks, on every rank in another order."""
    g, y = two(r, n), x.clone()
    dist.all_reduce(y[:2], group=g[r])
    dist.all_reduce(y[2:], group=g[1 - r])
    return y * 2


def crossed_message(x, r, n):
    g, o = two(r, n), x.clone()
    if r == 0:
        dist.send(x, 1, group=g[0])
        dist.recv(o, 1, group=g[0])
    else:
        dist.recv(o, 0, group=g[0])
        dist.send(x, 0, group=g[1])
    return (x + o) * 2


def received_reduced(x, r, n):
    """A collective of a tensor that is still received in the same group."""
    o = torch.empty_like(x)
    w, v = dist.isend(x, 1 - r), dist.irecv(o, 1 - r)
    dist.all_reduce(o)
    w.wait()
    v.wait()
    return o * 2


def future_late(x, r, n):
    y = x.clone()
    f = dist.all_reduce(y, async_op=True).get_future()
    z = y * 2
    f.wait()
    return z


def futures(x, r, n):
    y = x.clone()
    torch.futures.wait_all([dist.all_reduce(t, async_op=True).get_future() for t in (y[:2], y[2:])])
    return y * 2


def futures_late(x, r, n):
    y = x.clone()
    torch.futures.collect_all([dist.all_reduce(t, async_op=True).get_future() for t in (y[:2], y[2:])])
    return y * 2


def then(x, r, n):
    y = x.clone()
    f = dist.all_reduce(y, async_op=True).get_future()
    return f.then(lambda done: done.value()[0] * 4).then(lambda done: done.value() / 2).wait()


def then_late(x, r, n):
    """The callback may multiply after the wait for the work."""
    y = x.clone()
    w = dist.all_reduce(y, async_op=True)
    w.get_future().then(lambda done: done.value()[0].mul_(2))
    w.wait()
    return y.clone()


def then_first_waited(x, r, n):
    y = x.clone()
    f = dist.all_reduce(y, async_op=True).get_future()
    f.then(lambda done: done.value()[0].mul_(2))
    f.wait()
    return y.clone()


def then_reads(x, r, n):
    """What the callback reads is written beside it."""
    y, two = x.clone(), torch.full((4, 4), 2.0)
    f = dist.all_reduce(y, async_op=True).get_future().then(lambda done: done.value()[0] * two)
    two.zero_()
    return f.wait()


def then_calls(x, r, n):
    y = x.clone()
    f = dist.all_reduce(y, async_op=True).get_future().then(lambda done: dist.all_reduce(done.value()[0]))
    f.wait()
    return y


def functional(x, r, n):
    """What PyTorch's functional collectives return waits when it is used."""
    y = fc.all_reduce(x, "sum", dist.group.WORLD).view(-1)
    z = torch.ops._c10d_functional.all_reduce(x, "sum", dist.group.WORLD.group_name)
    return y.view(4, 4) + torch.ops._c10d_functional.wait_tensor(z)


def functional_late(x, r, n):
    return torch.ops._c10d_functional.all_reduce(x, "sum", dist.group.WORLD.group_name) * 2


def functional_in_place(x, r, n):
    y = x.clone()
    torch.ops._c10d_functional.all_reduce_(y, "sum", dist.group.WORLD.group_name)
    return y * 2


def functional_write(x, r, n):
    y = x.clone()
    z = torch.ops._c10d_functional.all_gather_into_tensor(y, n, dist.group.WORLD.group_name)
    y.zero_()
    return torch.ops._c10d_functional.wait_tensor(z).view(n, 4, 4).sum(0) * 2


def asked(x, r, n):
    y = x.clone()
    w = dist.all_reduce(y, async_op=True)
    w.is_completed()
    return y * 2


def asked_later(x, r, n):
    y = x.clone()
    w = dist.all_reduce(y, async_op=True)
    w.wait()
    return y * 2 if w.is_completed() else y


for _n in [
    "ok",
    "other_group",
    "groups_ok",
    "crossed",
    "crossed_message",
    "received_reduced",
    "future_late",
    "futures",
    "futures_late",
    "then",
    "then_late",
    "then_first_waited",
    "then_reads",
    "then_calls",
    "functional",
    "functional_late",
    "functional_in_place",
    "functional_write",
    "asked",
    "asked_later",
    "early",
    "nowait",
    "overwritten",
    "halves",
    "future",
    "order",
    "deadlock",
    "odd_even",
    "isend_ok",
    "isend_write",
    "irecv_early",
    "unpaired",
]:
    globals()["p_" + _n] = mk(globals()[_n])


def p_before(r, n):
    """The scale of all ranks, found before anything is called."""
    scale = torch.ones(1) * 2 / n
    dist.all_reduce(scale)

    def f(x):
        y = x.clone()
        dist.all_reduce(y)
        return y * scale

    return f, (X.chunk(n)[r].clone(),)
