"""Test which calls prevent a forked child from using the GPU. Each call runs in a new fork of this process."""

import contextlib
import multiprocessing

import torch

CALLS = {
    "import torch": lambda: None,
    "torch.cuda.is_initialized()": torch.cuda.is_initialized,
    "torch.cuda.manual_seed_all(0)": lambda: torch.cuda.manual_seed_all(0),
    "torch.cuda.device_count()": torch.cuda.device_count,
    "torch.cuda.is_available()": torch.cuda.is_available,
    'torch.zeros(1, device="cuda")': lambda: torch.zeros(1, device="cuda"),
}


def use_the_gpu(answers):
    try:
        torch.zeros(1, device="cuda")
        answers.put("the child uses the GPU")
    except (RuntimeError, AssertionError) as error:
        answers.put(f"{type(error).__name__}: {str(error).split('. ')[0]}")


def call_then_fork(call, answers):
    with contextlib.suppress(RuntimeError, AssertionError):
        call()
    answers.put(torch.cuda.is_initialized())
    in_a_fork(use_the_gpu, answers)


def in_a_fork(function, *args):
    process = multiprocessing.get_context("fork").Process(target=function, args=args)
    process.start()
    process.join()


if __name__ == "__main__":
    for name, call in CALLS.items():
        answers = multiprocessing.get_context("fork").SimpleQueue()
        in_a_fork(call_then_fork, call, answers)
        print(f"{name:30} initialized: {answers.get()!s:5}  {answers.get()}")
