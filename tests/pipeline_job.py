"""A job that torch runs alone: a pipeline's actions from a file against one process.  It imports nothing of ours.

python pipeline_job.py ACTIONS.csv STAGES MICRO_BATCHES STORE     prints one JSON object
"""

import csv
import json
import re
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

WIDTH, SAMPLES = 8, 2


def layer():
    return torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh(), torch.nn.Linear(WIDTH, WIDTH))


def rank(number, ranks, actions, chunks, micro_batches, store, answers):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=number, world_size=ranks, init_method=f"file://{store}")
    torch.manual_seed(0)
    whole = torch.nn.Sequential(*(layer() for _ in range(chunks))).double()
    x, target = torch.randn(2, micro_batches * SAMPLES, WIDTH, dtype=torch.float64).unbind(0)
    with open(actions, newline="") as file:
        row = list(csv.reader(file))[number]
    mine = sorted({int(re.match(r"[0-9]+", a)[0]) for a in row})
    loss_of = torch.nn.MSELoss()
    copies = {v: layer().double() for v in mine}
    stages = []
    for v in mine:
        copies[v].load_state_dict(whole[v].state_dict())
        came, goes = (torch.empty(SAMPLES, WIDTH, dtype=torch.float64, requires_grad=known) for known in (v > 0, True))
        stages.append(PipelineStage(copies[v], v, chunks, torch.device("cpu"), input_args=came, output_args=goes))
    runtime = _PipelineScheduleRuntime(stages, micro_batches, loss_fn=loss_of)
    sends = any("SEND" in a for a in row) or ranks == 1
    runtime._load_csv(actions, format="compute_comms" if sends else "compute_only")  # or torch puts the sends itself
    losses = []
    first, last = 0 in mine, chunks - 1 in mine
    runtime.step(*([x] if first else []), target=target if last else None, losses=losses if last else None)
    expected = loss_of(whole(x), target)
    expected.backward()
    found = {"rank": number, "stages": mine, "actions": len(row), "loss": None}
    if last:
        found["loss"] = abs(float(torch.stack([a.detach() for a in losses]).mean() - expected.detach()))
    found["gradient"] = max(
        float((a.grad - b.grad).abs().max())
        for v in mine
        for a, b in zip(copies[v].parameters(), whole[v].parameters(), strict=True)
    )
    answers.put(found)
    dist.barrier()
    dist.destroy_process_group()


def main():
    actions, ranks, micro_batches, store = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    with open(actions, newline="") as file:
        chunks = 1 + max(int(re.match(r"[0-9]+", a)[0]) for row in csv.reader(file) for a in row)
    context = mp.get_context("spawn")
    answers = context.Queue()
    jobs = [
        context.Process(target=rank, args=(k, ranks, actions, chunks, micro_batches, store, answers))
        for k in range(ranks)
    ]
    for job in jobs:
        job.start()
    found = [answers.get(timeout=200) for _ in jobs]
    for job in jobs:
        job.join(60)
    print(json.dumps(sorted(found, key=lambda f: f["rank"])))


if __name__ == "__main__":
    main()
