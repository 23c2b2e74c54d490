import torch
import torch.distributed as dist

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


for _n in [
    "ok",
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
