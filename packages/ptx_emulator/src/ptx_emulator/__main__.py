# SPDX-License-Identifier: Apache-2.0
"""`python -m ptx_emulator` is `ptx-emulator`."""

from ptx_emulator.command.main import main

if __name__ == "__main__":
    main()
