# SPDX-License-Identifier: Apache-2.0
"""What can be chosen, for those who only name it: this imports nothing."""

LOCKSTEP = "lockstep"
SCHEDULES = (LOCKSTEP, "depth-first", "random")
DEFAULT_ARCH = "sm_80"
PATIENCE_S = 8.0  # with a loop that goes on and on
ARGUMENT_FORMS = (
    "f32:x:1024@random (or zeros, ones, range, FILE.npy; without @ nothing is written), i32=7,"
    " f16:x:64x64:box=64x32:swizzle=64@random for a tensor map"
)
GITHUB = "github"
ANNOTATIONS = (GITHUB,)
