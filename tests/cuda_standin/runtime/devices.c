/* Devices: how many there are, which is current, and what they say of themselves. */

API status cudaGetDeviceCount(int *count) {
    *count = is_forked_child ? 0 : device_count;
    if (is_forked_child) return failed(INITIALIZATION_ERROR);
    return device_count ? SUCCESS : failed(NO_DEVICE);
}

API status cudaGetDevice(int *device) {
    if (!device_count) return failed(NO_DEVICE);
    *device = current_device;
    return SUCCESS;
}

API status cudaSetDevice(int device) {
    if (!is_device(device)) return failed(INVALID_DEVICE);
    status entered = enter_context(device);
    if (entered == SUCCESS) current_device = device;
    return entered;
}

API status cudaDeviceSynchronize(void) {
    NEEDS_CONTEXT();
    REFUSED_WHILE_CAPTURING();
    devices[current_device].synchronized_at = sequence;
    return SUCCESS;
}

API status cudaDriverGetVersion(int *version) {
    *version = CUDA_MAJOR * 1000 + 40;
    return SUCCESS;
}

API status cudaRuntimeGetVersion(int *version) {
    *version = CUDA_VERSION;
    return SUCCESS;
}

API status cudaDeviceCanAccessPeer(int *can, int device, int peer) {
    *can = 1;
    return SUCCESS;
}

API status cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    *least = 0;
    *greatest = -5;
    return SUCCESS;
}

API status cudaDeviceGetPCIBusId(char *out, int size, int device) {
    snprintf(out, size, "0000:%02x:00.0", physical_index[device] + 1);
    return SUCCESS;
}

/* --- the figures of an A100, which torch sizes its launches by ------------------------------------------------- */

enum {
    THREADS_PER_BLOCK = 1024,
    THREADS_PER_MULTIPROCESSOR = 2048,
    BLOCK_DEPTH = 64,
    GRID_WIDTH = 0x7fffffff,
    GRID_HEIGHT = 65535,
    SHARED_BYTES_PER_BLOCK = 49152,
    SHARED_BYTES_PER_BLOCK_ON_REQUEST = 166912,
    SHARED_BYTES_PER_MULTIPROCESSOR = 167936,
    REGISTERS = 65536,
    WARP_SIZE = 32,
    MULTIPROCESSORS = 108,
    BLOCKS_PER_MULTIPROCESSOR = 32,
};

enum device_attribute {
    ATTRIBUTE_THREADS_PER_BLOCK = 1,
    ATTRIBUTE_BLOCK_X = 2,
    ATTRIBUTE_BLOCK_Y = 3,
    ATTRIBUTE_BLOCK_Z = 4,
    ATTRIBUTE_GRID_X = 5,
    ATTRIBUTE_GRID_Y = 6,
    ATTRIBUTE_GRID_Z = 7,
    ATTRIBUTE_SHARED_PER_BLOCK = 8,
    ATTRIBUTE_WARP_SIZE = 10,
    ATTRIBUTE_REGISTERS_PER_BLOCK = 12,
    ATTRIBUTE_MULTIPROCESSORS = 16,
    ATTRIBUTE_THREADS_PER_MULTIPROCESSOR = 39,
    ATTRIBUTE_UNIFIED_ADDRESSING = 41,
    ATTRIBUTE_CAPABILITY_MAJOR = 75,
    ATTRIBUTE_CAPABILITY_MINOR = 76,
    ATTRIBUTE_STREAM_PRIORITIES = 78,
    ATTRIBUTE_SHARED_PER_MULTIPROCESSOR = 81,
    ATTRIBUTE_REGISTERS_PER_MULTIPROCESSOR = 82,
    ATTRIBUTE_COOPERATIVE_LAUNCH = 95,
    ATTRIBUTE_SHARED_PER_BLOCK_ON_REQUEST = 97,
    ATTRIBUTE_HOST_REGISTER = 99,
    ATTRIBUTE_VIRTUAL_MEMORY = 102,
    ATTRIBUTE_FILE_HANDLES = 103,
    ATTRIBUTE_BLOCKS_PER_MULTIPROCESSOR = 106,
    ATTRIBUTE_MEMORY_POOLS = 115,
};

API status cudaDeviceGetAttribute(int *out, int attribute, int device) {
    if (!is_device(device)) return failed(INVALID_DEVICE);
    switch (attribute) {
    case ATTRIBUTE_THREADS_PER_BLOCK:
    case ATTRIBUTE_BLOCK_X:
    case ATTRIBUTE_BLOCK_Y: *out = THREADS_PER_BLOCK; break;
    case ATTRIBUTE_BLOCK_Z: *out = BLOCK_DEPTH; break;
    case ATTRIBUTE_GRID_X: *out = GRID_WIDTH; break;
    case ATTRIBUTE_GRID_Y:
    case ATTRIBUTE_GRID_Z: *out = GRID_HEIGHT; break;
    case ATTRIBUTE_SHARED_PER_BLOCK: *out = SHARED_BYTES_PER_BLOCK; break;
    case ATTRIBUTE_WARP_SIZE: *out = WARP_SIZE; break;
    case ATTRIBUTE_REGISTERS_PER_BLOCK:
    case ATTRIBUTE_REGISTERS_PER_MULTIPROCESSOR: *out = REGISTERS; break;
    case ATTRIBUTE_MULTIPROCESSORS: *out = MULTIPROCESSORS; break;
    case ATTRIBUTE_THREADS_PER_MULTIPROCESSOR: *out = THREADS_PER_MULTIPROCESSOR; break;
    case ATTRIBUTE_CAPABILITY_MAJOR: *out = compute_capability / 10; break;
    case ATTRIBUTE_CAPABILITY_MINOR: *out = compute_capability % 10; break;
    case ATTRIBUTE_SHARED_PER_MULTIPROCESSOR: *out = SHARED_BYTES_PER_MULTIPROCESSOR; break;
    case ATTRIBUTE_SHARED_PER_BLOCK_ON_REQUEST: *out = SHARED_BYTES_PER_BLOCK_ON_REQUEST; break;
    case ATTRIBUTE_BLOCKS_PER_MULTIPROCESSOR: *out = BLOCKS_PER_MULTIPROCESSOR; break;
    case ATTRIBUTE_UNIFIED_ADDRESSING:
    case ATTRIBUTE_STREAM_PRIORITIES:
    case ATTRIBUTE_COOPERATIVE_LAUNCH:
    case ATTRIBUTE_HOST_REGISTER:
    case ATTRIBUTE_VIRTUAL_MEMORY:
    case ATTRIBUTE_FILE_HANDLES:
    case ATTRIBUTE_MEMORY_POOLS: *out = 1; break;
    default: *out = 0;
    }
    return SUCCESS;
}

/* cudaDeviceProp. CUDA 13 took eight fields out of it. */
#if CUDA_MAJOR < 13
enum { TEXTURE_AND_SURFACE_LIMITS = 40, PROPERTIES_SIZE = 1032 };
#define GONE_IN_13(field) field;
#define get_device_properties cudaGetDeviceProperties_v2
#else
enum { TEXTURE_AND_SURFACE_LIMITS = 39, PROPERTIES_SIZE = 1008 };
#define GONE_IN_13(field)
#define get_device_properties cudaGetDeviceProperties
#endif

struct properties {
    char name[256];
    unsigned char uuid[16];
    char luid[8];
    unsigned luid_device_node_mask;
    size_t total_memory;
    size_t shared_per_block;
    int registers_per_block;
    int warp_size;
    size_t memory_pitch;
    int threads_per_block;
    int block_size[3];
    int grid_size[3];
    GONE_IN_13(int clock_rate)
    size_t constant_memory;
    int major;
    int minor;
    size_t texture_alignment;
    size_t texture_pitch_alignment;
    GONE_IN_13(int device_overlap)
    int multiprocessors;
    GONE_IN_13(int kernel_timeout)
    int integrated;
    int can_map_host_memory;
    GONE_IN_13(int compute_mode)
    int texture_and_surface_limits[TEXTURE_AND_SURFACE_LIMITS];
    size_t surface_alignment;
    int concurrent_kernels;
    int ecc_enabled;
    int pci_bus;
    int pci_device;
    int pci_domain;
    int tcc_driver;
    int async_engines;
    int unified_addressing;
    GONE_IN_13(int memory_clock_rate)
    int memory_bus_width;
    int l2_bytes;
    int persisting_l2_bytes;
    int threads_per_multiprocessor;
    int stream_priorities;
    int global_l1_cache;
    int local_l1_cache;
    size_t shared_per_multiprocessor;
    int registers_per_multiprocessor;
    int managed_memory;
    int is_multi_gpu_board;
    int multi_gpu_board_group;
    int host_native_atomics;
    GONE_IN_13(int single_to_double_ratio)
    int pageable_memory_access;
    int concurrent_managed_access;
    int compute_preemption;
    int registered_host_pointers;
    int cooperative_launch;
    GONE_IN_13(int cooperative_multi_device_launch)
    size_t shared_per_block_on_request;
    int host_page_tables;
    int direct_managed_access;
    int blocks_per_multiprocessor;
    char rest[1024];
};

API status get_device_properties(void *out, int device) {
    if (!is_device(device)) return failed(INVALID_DEVICE);
    int index = physical_index[device];
    struct properties found = {
        .uuid = "cuda-standin-000",
        .total_memory = devices[device].capacity,
        .shared_per_block = SHARED_BYTES_PER_BLOCK,
        .registers_per_block = REGISTERS,
        .warp_size = WARP_SIZE,
        .threads_per_block = THREADS_PER_BLOCK,
        .block_size = {THREADS_PER_BLOCK, THREADS_PER_BLOCK, BLOCK_DEPTH},
        .grid_size = {GRID_WIDTH, GRID_HEIGHT, GRID_HEIGHT},
        .major = compute_capability / 10,
        .minor = compute_capability % 10,
        .texture_alignment = 512,
        .multiprocessors = MULTIPROCESSORS,
        .can_map_host_memory = 1,
        .concurrent_kernels = 1,
        .pci_bus = index + 1,
        .unified_addressing = 1,
        .l2_bytes = 40 * MIB,
        .threads_per_multiprocessor = THREADS_PER_MULTIPROCESSOR,
        .stream_priorities = 1,
        .shared_per_multiprocessor = SHARED_BYTES_PER_MULTIPROCESSOR,
        .registers_per_multiprocessor = REGISTERS,
        .managed_memory = 1,
        .cooperative_launch = 1,
        .shared_per_block_on_request = SHARED_BYTES_PER_BLOCK_ON_REQUEST,
        .blocks_per_multiprocessor = BLOCKS_PER_MULTIPROCESSOR,
    };
    snprintf(found.name, sizeof found.name, "CUDA stand-in %d", index);
    found.uuid[15] = '0' + index; /* as NVML says it (nvml.c) */
    memcpy(out, &found, PROPERTIES_SIZE);
    return SUCCESS;
}

/* --- errors ----------------------------------------------------------------------------------------------------- */

API const char *cudaGetErrorString(status error) {
    switch (error) {
    case SUCCESS: return "no error";
    case OUT_OF_MEMORY: return "out of memory";
    case INITIALIZATION_ERROR: return "initialization error";
    case NO_DEVICE: return "no CUDA-capable device is detected";
    case INVALID_DEVICE: return "invalid device ordinal";
    case ILLEGAL_ADDRESS: return "an illegal memory access was encountered";
    case CAPTURE_UNSUPPORTED: return "operation not permitted when stream is capturing";
    default: return "invalid argument";
    }
}

API const char *cudaGetErrorName(status error) {
    switch (error) {
    case SUCCESS: return "cudaSuccess";
    case OUT_OF_MEMORY: return "cudaErrorMemoryAllocation";
    case ILLEGAL_ADDRESS: return "cudaErrorIllegalAddress";
    default: return "cudaErrorInvalidValue";
    }
}

API status cudaGetLastError(void) {
    status error = last_error;
    last_error = devices_are_lost ? ILLEGAL_ADDRESS : SUCCESS;
    return error;
}

API status cudaPeekAtLastError(void) {
    return last_error;
}
