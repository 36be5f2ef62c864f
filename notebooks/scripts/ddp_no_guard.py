"""A spawned process runs this file again, from the top."""

import multiprocessing as mp


def work(end):
    end.send(42)


context = mp.get_context("spawn")
receiver, sender = context.Pipe()
context.Process(target=work, args=(sender,)).start()
print("received", receiver.recv())
