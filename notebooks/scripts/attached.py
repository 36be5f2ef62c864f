"""Run a command on a machine, and end it there when ssh ends here: python3 attached.py ssh MACHINE COMMAND.

By default, a command survives the end of its ssh connection. Here, a second process on the machine reads an input that
ends with the connection. It then kills the process group, which sshd has created for the command.
"""

import os
import sys

if __name__ == "__main__":
    *words, command = sys.argv[1:]
    pipe = os.open(f"/dev/fd/{os.pipe()[0]}", os.O_RDWR)  # both ends, so the input of ssh ends when ssh ends
    os.dup2(pipe, 0)
    watch = "(cat <&3; kill -9 0) > /dev/null 2>&1 &"
    os.execvp(words[0], [*words, f"exec 3<&0; {watch} ({command}) 3<&- < /dev/null"])
