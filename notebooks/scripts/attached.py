"""Run a command on a machine, and end it there when ssh ends here: python3 attached.py ssh MACHINE COMMAND.

By default, a command survives the end of its ssh connection. This program starts a second process on the machine, which
reads an input that ends with the connection, and then kills the process group that sshd created for the command.
"""

import os
import sys

if __name__ == "__main__":
    *words, command = sys.argv[1:]
    pipe = os.open(f"/dev/fd/{os.pipe()[0]}", os.O_RDWR)  # both ends, so this input stays open until ssh ends
    os.dup2(pipe, 0)
    watch = "(cat <&3; kill -9 0) > /dev/null 2>&1 &"
    os.execvp(words[0], [*words, f"exec 3<&0; {watch} ({command}) 3<&- < /dev/null"])
