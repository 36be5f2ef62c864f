"""Which machine DGL takes this one for, by the addresses of an ip_config.txt. Usage: who_am_i.py ADDRESS..."""

import sys

from dgl.distributed.rpc_client import get_local_machine_id

book = {k: [k, address, 30050, 1] for k, address in enumerate(sys.argv[1:])}
print(*sys.argv[1:], "-> machine", get_local_machine_id(book))
