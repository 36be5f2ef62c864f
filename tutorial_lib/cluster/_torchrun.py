"""torchrun, with its store on one address of this machine instead of on all of them.

Runs as ``python _torchrun.py -m torch.distributed.run OPTIONS...``: the command still says what it is.

The torchrun of machine 0 holds the store in which the trainers find each other. torch lets it listen on every network
card, so whoever reaches any of them could write into it. Here the listening socket is made first, bound to the
address of ``--master-addr``, and handed over. The store of torch 2.4 to 2.7 takes a socket only with
``use_libuv=False``, that of others as it is. Checked on torch 2.2.1 and 2.13.0. Where neither works, or the rendezvous
is another one, torch is left alone: the store listens on all, and the log says so.
"""

import os
import sys

ON_ALL = "this torch cannot bind its store to one address; it listens on all: "


def store_on(address, port, world_size, timeout, **more):
    """A ``TCPStore`` that listens on this address only, and does not wait for others; None where torch cannot."""
    import socket

    from torch.distributed import TCPStore

    with socket.create_server((address, port), backlog=2048) as listener:
        for how in ({}, {"use_libuv": False}):
            try:
                fd = os.dup(listener.fileno())
                return TCPStore(address, port, world_size, True, timeout, master_listen_fd=fd, **how, **more)
            except (TypeError, NotImplementedError, RuntimeError) as error:
                reason = error
    print(f"{ON_ALL}{reason}", flush=True)
    return None


def listen_on_own_address() -> None:
    """From now on, the store of a static rendezvous listens on the address of machine 0 only."""
    import inspect

    try:
        from torch.distributed.elastic.rendezvous import static_tcp_rendezvous as static

        known = "if not self._store:" in inspect.getsource(static.StaticTCPRendezvous.next_rendezvous)
    except (ImportError, AttributeError, OSError):
        known = False
    if not known:
        print(ON_ALL + "its rendezvous is another one", flush=True)
        return

    class OnOneAddress(static.StaticTCPRendezvous):
        def next_rendezvous(self):
            if self.rank == 0 and self._store is None:
                self._store = store_on(self.master_addr, self.master_port, self.world_size, self.timeout)
            return super().next_rendezvous()

    static.StaticTCPRendezvous = OnOneAddress


if __name__ == "__main__":
    # Neither our neighbours here nor the user's files (a `random.py`) are modules for torch to import.
    sys.path[:] = [path for path in sys.path if path not in (os.path.dirname(os.path.abspath(__file__)), os.getcwd())]
    import runpy

    listen_on_own_address()
    module, sys.argv = sys.argv[2], sys.argv[2:]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
