/* The driver's functions (libcuda), which torch looks up by name. */

API status cuInit(unsigned flags) {
    return device_count ? SUCCESS : NO_DEVICE;
}

API status cuDriverGetVersion(int *version) {
    return cudaDriverGetVersion(version);
}

API status cuDeviceGetCount(int *count) {
    *count = device_count;
    return SUCCESS;
}

API status cuDeviceGet(int *device, int index) {
    *device = index;
    return index < device_count ? SUCCESS : INVALID_DEVICE;
}

API status cuDeviceGetAttribute(int *out, int attribute, int device) {
    return cudaDeviceGetAttribute(out, attribute, device);
}

API status cuGetErrorString(status error, const char **out) {
    *out = cudaGetErrorString(error);
    return SUCCESS;
}

/* A device's primary context is its only one, and its handle is the device. */
API status cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
    *flags = 0;
    *active = devices[device].has_context;
    return SUCCESS;
}

API status cuDevicePrimaryCtxRetain(void **context, int device) {
    *context = &devices[device];
    return enter_context(device);
}

API status cuCtxGetCurrent(void **context) {
    *context = device_count && devices[current_device].has_context ? &devices[current_device] : NULL;
    return SUCCESS;
}

API status cuCtxSetCurrent(void *context) {
    if (context) current_device = (struct device *)context - devices;
    return SUCCESS;
}

enum { POINTER_DEVICE_ORDINAL = 9 };

API status cuPointerGetAttribute(void *out, int attribute, const void *pointer) {
    pthread_mutex_lock(&lock);
    struct block *block = find_block(pointer);
    if (block && attribute == POINTER_DEVICE_ORDINAL) *(int *)out = block->device;
    pthread_mutex_unlock(&lock);
    return block ? SUCCESS : INVALID_VALUE;
}

API status cuMemAlloc_v2(void **out, size_t size) {
    NEEDS_CONTEXT();
    return allocate(out, size, DEVICE);
}

API status cuMemFree_v2(void *pointer) {
    return release(pointer, 0);
}

/* Kernels that torch compiles as it runs: any handle but NULL will do. */
API status cuModuleLoadData(void **module, const void *image) {
    *module = &devices;
    return SUCCESS;
}

API status cuModuleLoadDataEx(void **module, const void *image, unsigned count, void *options, void **values) {
    *module = &devices;
    return SUCCESS;
}

API status cuModuleGetFunction(void **function, void *module, const char *name) {
    *function = &devices;
    return SUCCESS;
}

API status cuFuncGetAttribute(int *out, int attribute, void *function) {
    *out = 0;
    return SUCCESS;
}

API status cuOccupancyMaxActiveBlocksPerMultiprocessor(int *out, void *function, int block, size_t shared) {
    *out = RESIDENT_BLOCKS;
    return SUCCESS;
}

/* --- functions by their names ------------------------------------------------------------------------------------ */

static status unknown_function(void) {
    if (trace_level) fprintf(stderr, "cuda-standin: stub of the driver\n");
    return SUCCESS;
}

static void *driver_function(const char *name) {
    static void *this_library;
    if (!this_library) {
        Dl_info found;
        dladdr((void *)driver_function, &found);
        this_library = dlopen(found.dli_fname, RTLD_NOLOAD | RTLD_NOW);
    }
    void *function = this_library ? dlsym(this_library, name) : NULL;
    if (!function && trace_level) fprintf(stderr, "cuda-standin: the driver has no %s\n", name);
    return function ? function : (void *)unknown_function;
}

API status cudaGetDriverEntryPointByVersion(const char *name, void **out, unsigned version, unsigned long long flags,
                                            int *found) {
    *out = driver_function(name);
    if (found) *found = 0; /* cudaDriverEntryPointSuccess */
    return SUCCESS;
}

API status cudaGetDriverEntryPoint(const char *name, void **out, unsigned long long flags, int *found) {
    return cudaGetDriverEntryPointByVersion(name, out, 0, flags, found);
}

API status cuGetProcAddress_v2(const char *name, void **out, int version, uint64_t flags, int *found) {
    return cudaGetDriverEntryPointByVersion(name, out, version, flags, found);
}
