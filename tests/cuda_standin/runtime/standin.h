/* What the topics of the runtime share: result codes, settings, devices, and how a function fails.
 *
 * Layouts and numbers are those of NVIDIA's headers, which are not needed to build this.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

/* Functions that torch calls. Everything else is static: the runtime is one translation unit. */
#define API __attribute__((visibility("default")))

/* The runtime's and the driver's codes, which agree in all of these. */
typedef int status;
enum {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    INITIALIZATION_ERROR = 3,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    NOT_READY = 600,
    ILLEGAL_ADDRESS = 700,
    CAPTURE_UNSUPPORTED = 900,
};

typedef struct {
    unsigned x, y, z;
} dim3;

enum { MOST_DEVICES = 16 };
#define MIB ((size_t)1 << 20)
#define HOST_PAGE ((size_t)4096)
#define DEVICE_PAGE (2 * MIB)  /* what cudaMalloc and cuMemCreate take at the least */
#define POOL_STEP (32 * MIB)   /* by which a pool of cudaMallocAsync takes memory of the device */

struct device {
    size_t capacity;
    int has_context;
    uint64_t synchronized_at; /* all events up to this number are done; of use only with lazy events */
    size_t pool_used;
    size_t pool_used_high;
    size_t pool_reserved;
    size_t pool_reserved_high;
    uint64_t pool_release_threshold;
};

struct graph {
    size_t nodes;
};

struct stream {
    int device;
    int priority;
    int capturing;
    uint64_t capture_id;
    struct graph *graph; /* the graph that is being captured */
};

/* Note an error for cudaGetLastError, and return it. */
static status failed(status error);

/* Give a device its context. Fails without devices, in a child of a process that has used one, and once the devices are
 * lost, as CUDA does. */
static status enter_context(int device);

/* Begin a function that needs the current device's context. */
#define NEEDS_CONTEXT()                                     \
    do {                                                    \
        status context_status = enter_context(current_device); \
        if (context_status != SUCCESS) return context_status;  \
    } while (0)

/* Begin a function that a capture in the default mode refuses on every stream. */
enum { CAPTURE_MODE_RELAXED = 2 };
#define REFUSED_WHILE_CAPTURING()                                          \
    do {                                                                   \
        if (streams_capturing > 0 && capture_mode != CAPTURE_MODE_RELAXED) \
            return failed(CAPTURE_UNSUPPORTED);                            \
    } while (0)
