/* A CUDA runtime without a device: device memory is host memory, kernels do nothing, streams are done at once.
 *
 * `build.py` builds it against the names that an installed torch asks of NVIDIA's libraries, and LD_LIBRARY_PATH puts
 * it in front of torch. Here is what torch's allocators, streams, events and graphs rely on; each other name becomes
 * a function that returns 0 (success).
 *
 * Environment:
 *   CUDA_STANDIN_DEVICES      how many devices there are (1)
 *   CUDA_STANDIN_MIB          memory of each device, in MiB (16384)
 *   CUDA_STANDIN_CONTEXT_MIB  what a context takes of its device, in MiB (0)
 *   CUDA_STANDIN_STATE        a file by which processes share the devices (none: each has its own)
 *   CUDA_STANDIN_CC           compute capability, two digits (80)
 *   CUDA_STANDIN_LAZY         1: an event is pending until its device is synchronized
 *   CUDA_STANDIN_TRACE        1: print the name of each stub when it is first called; 2: of each kernel launched too
 *
 * One translation unit, in the order of what needs what.
 */
#include "standin.h"

#include "state.c"

#include "memory.c"

#include "virtual_memory.c"

#include "devices.c"

#include "streams.c"

#include "kernels.c"

#include "driver.c"

#include "libraries.c"

#include "nvml.c"
