"""The programs that the thesis prints; what is not as printed stands in the README beside this file."""

import numpy as np

from shardproof import dace

M, K, N = 4096, 4096, 4096
B, S, E, H = 8, 512, 1024, 16
ROWS, COLUMNS, NONZEROS = 4096, 4096, 65536
GRID = 512
E_H, SQRT_H = E // H, np.float32(np.sqrt(E // H))
ScheduleType, StorageType = dace.ScheduleType, dace.StorageType

# fmt: off


# Figure 4.1
@dace
def add(
    x: dace.int64[4, 8, 16],
    y: dace.int64[8, 16]):

    return x + y


# Figure 4.3
@dace
def reduce(x: dace.int64[16, 8]):
    return np.add.reduce(x, axis=1)


# Section 5.1.1; the accesses are those that the section names
@dace
def grid():
    A = np.random.rand(GRID, GRID)
    B = np.random.rand(GRID)
    C = np.empty([GRID, GRID])
    for i, j in dace.map[GRID, GRID]:
        C[i, j] = A[i, j] + A[j, i] + B[i] * B[j] + np.add.reduce(A[i, :])
    return C


# Section 6.1
@dace
def runs_on_gpu(a: dace.float64[20] @ StorageType.GPU_Global,
                b: dace.float64[20] @ StorageType.GPU_Global):
    # This map will become a GPU kernel
    for i in dace.map[0:20] @ ScheduleType.GPU_Device:
        b[i] = a[i] + 1.0


# Figure 7.1
@dace
def unstable_softmax(input: dace.float32[8, 32]):
    exponent = np.exp(input)
    rowsum = np.add.reduce(exponent, axis=1, keepdims=True)
    output = exponent / rowsum
    return output


# Figure 7.2
@dace.program
def step(x: dace.float32[10, 5], dy: dace.float32[10]):
    x.requires_grad_()
    xTy = x.T @ dy
    loss = np.add.reduce(xTy)
    loss.backward()
    return x.grad


# Section 8.1.1
@dace
def matmul(a: dace.float32[M, K], b: dace.float32[K, N]):
    return a @ b


# Section 8.1.2
@dace
def spmv(A_row: dace.uint32[ROWS + 1], A_col: dace.uint32[NONZEROS],
         A_val: dace.float64[NONZEROS], x: dace.float64[COLUMNS]):
    b = np.empty([ROWS], dtype=np.float32)
    for i in dace.map[0:ROWS]:
        b[i] = 0
        for j in dace.map[A_row[i]:A_row[i + 1]]:
            b[i] += A_val[j] * x[A_col[j]]
    return b


# Section 8.1.3
@dace.program
def softmax(inp: dace.float32[8, 16, 512, 512]):
    rowmax = np.maximum.reduce(inp, axis=-1, keepdims=True)
    exp_arr = np.exp(inp - rowmax)
    rowsum = np.add.reduce(exp_arr, axis=-1, keepdims=True)
    return exp_arr / rowsum


# Section 8.1.4
@dace
def projection(x: dace.float32[B, S, E],
               W_Q: dace.float32[E, H, E_H],
               W_K: dace.float32[E, H, E_H],
               W_V: dace.float32[E, H, E_H]):
    # projection bias ommitted for brevity
    Q = np.einsum('bik,khj->bhij', x, W_Q)
    K = np.einsum('bik,khj->bhij', x, W_K)
    V = np.einsum('bik,khj->bhij', x, W_V)
    return Q, K, V


# we fully fuse softmax as before
def scaled_softmax(x: dace.float32[B, H, S, S]):
    scaled_x = x / SQRT_H
    rowmax = np.maximum.reduce(scaled_x, axis=-1, keepdims=True)
    exponent = np.exp(scaled_x - rowmax)
    rowsum = np.add.reduce(exponent, axis=-1, keepdims=True)
    return exponent / rowsum


def self_attn(Q, K, V):
    scores = np.einsum('bhik,bhjk->bhij', Q, K)
    norm_scores = scaled_softmax(scores)
    return np.einsum("bhik,bhkj->bhij", norm_scores, V)


def mhsa(x: dace.float32[B, S, E],
         W_Q: dace.float32[E, H, E_H],
         W_K: dace.float32[E, H, E_H],
         W_V: dace.float32[E, H, E_H],
         W_O: dace.float32[E, E]):

    Q, K, V = projection(x, W_Q, W_K, W_V)
    values = self_attn(Q, K, V)
    # unpermute
    values_permute = np.einsum('bhse->bshe', values)
    values_reshaped = values_permute.reshape([B, S, E])
    return np.einsum('bik,kj->bij', values_reshaped, W_O)
