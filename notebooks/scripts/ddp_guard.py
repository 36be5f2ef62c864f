"""In a spawned process, __name__ is not "__main__"."""

import multiprocessing as mp


def work(end):
    end.send(42)


if __name__ == "__main__":
    context = mp.get_context("spawn")
    receiver, sender = context.Pipe()
    context.Process(target=work, args=(sender,)).start()
    print("received", receiver.recv())
