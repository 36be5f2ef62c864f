"""Receive a sum from a spawned process. Options: --without-guard, --send-stdin."""

import multiprocessing
import sys


def work(sender, numbers):
    sender.send(sum(map(int, numbers)))


def main():
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe()
    numbers = sys.stdin if "--send-stdin" in sys.argv else ["20", "22"]
    context.Process(target=work, args=(sender, numbers)).start()
    print("received", receiver.recv() if receiver.poll(8) else None)  # recv() alone has no timeout


if __name__ == "__main__" or "--without-guard" in sys.argv:
    main()
