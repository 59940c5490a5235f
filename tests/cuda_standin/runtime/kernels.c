/* Kernels: a launch is counted, and does nothing. Only `fill_` is carried out, which zeros, ones and full consist of. */

struct kernel {
    const void *host_function;
    const char *name;
};
static struct kernel *kernels;
static size_t kernel_count;
static size_t kernel_room;
static int kernels_are_sorted;

API void **__cudaRegisterFatBinary(void *binary) {
    static void *handle;
    return &handle;
}

API void __cudaRegisterFatBinaryEnd(void **handle) {}

API void __cudaRegisterFunction(void **handle, const char *host_function, char *device_function, const char *name,
                                int thread_limit, void *thread, void *block, void *block_size, void *grid_size,
                                int *warp_size) {
    if (kernel_count == kernel_room) {
        kernel_room = kernel_room * 2 + 1024;
        kernels = realloc(kernels, kernel_room * sizeof *kernels);
    }
    kernels[kernel_count++] = (struct kernel){host_function, name};
    kernels_are_sorted = 0;
}

static int by_host_function(const void *left, const void *right) {
    const void *one = ((const struct kernel *)left)->host_function;
    const void *other = ((const struct kernel *)right)->host_function;
    return (one > other) - (one < other);
}

static const char *kernel_name(const void *host_function) {
    struct kernel key = {host_function, NULL};
    pthread_mutex_lock(&lock);
    if (!kernels_are_sorted) {
        qsort(kernels, kernel_count, sizeof *kernels, by_host_function);
        kernels_are_sorted = 1;
    }
    struct kernel *found = bsearch(&key, kernels, kernel_count, sizeof *kernels, by_host_function);
    const char *name = found ? found->name : "";
    pthread_mutex_unlock(&lock);
    return name;
}

/* Bytes of an element, by the type's mangled name; 0 where it is not known. */
static size_t width_of(const char *mangled) {
    if (!strncmp(mangled, "N3c104Half", 10) || !strncmp(mangled, "N3c108BFloat16", 14)) return 2;
    if (strchr("ahb", *mangled)) return 1;
    if (*mangled == 's') return 2;
    if (strchr("fi", *mangled)) return 4;
    if (strchr("dl", *mangled)) return 8;
    return 0;
}

/* The kernel of `fill_`: its arguments are the number of elements, the functor (the value), and the addresses. */
static void carry_out_fill(const char *name, void **arguments) {
    static const char functor[] = "11FillFunctorI";
    const char *found = strstr(name, functor);
    if (!found || !strstr(name, "29vectorized_elementwise_kernel") || !arguments) return;
    size_t width = width_of(found + sizeof functor - 1);
    int count = *(int *)arguments[0];
    const void *value = arguments[1];
    char *to = *(char **)arguments[2];
    if (!width) return;
    for (int i = 0; i < count; i++) memcpy(to + i * width, value, width);
}

static status launch(const void *function, void **arguments, struct stream *stream) {
    NEEDS_CONTEXT();
    if (own_stream(stream) && stream->capturing) stream->graph->nodes++;
    __atomic_add_fetch(&sequence, 1, __ATOMIC_SEQ_CST);
    const char *name = kernel_name(function);
    if (trace_level > 1) fprintf(stderr, "cuda-standin: kernel %s\n", name);
    carry_out_fill(name, arguments);
    return SUCCESS;
}

API status cudaLaunchKernel(const void *function, dim3 grid, dim3 block, void **arguments, size_t shared,
                            void *stream) {
    return launch(function, arguments, stream);
}

API status cudaLaunchCooperativeKernel(const void *function, dim3 grid, dim3 block, void **arguments, size_t shared,
                                       void *stream) {
    return launch(function, arguments, stream);
}

/* cudaLaunchConfig_t, and what the launch operator <<<...>>> hands to the function that the compiler makes of a kernel. */
struct launch_configuration {
    dim3 grid;
    dim3 block;
    size_t shared;
    void *stream;
};
static __thread struct launch_configuration pushed;

API unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void *stream) {
    pushed = (struct launch_configuration){grid, block, shared, stream};
    return SUCCESS;
}

API status __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void **stream) {
    *grid = pushed.grid;
    *block = pushed.block;
    *shared = pushed.shared;
    *stream = pushed.stream;
    return SUCCESS;
}

API status cudaLaunchKernelExC(const struct launch_configuration *configuration, const void *function,
                               void **arguments) {
    return launch(function, arguments, configuration->stream);
}

API status __cudaGetKernel(const void **kernel, const void *function) {
    *kernel = function;
    return SUCCESS;
}

API status __cudaLaunchKernel(const void *kernel, dim3 grid, dim3 block, void **arguments, size_t shared,
                              void *stream) {
    return launch(kernel, arguments, stream);
}

struct function_attributes {
    size_t shared_bytes;
    size_t constant_bytes;
    size_t local_bytes;
    int threads_per_block;
    int registers;
    int ptx_version;
    int binary_version;
    int cache_mode;
    int dynamic_shared_bytes;
    int carveout;
};

API status cudaFuncGetAttributes(struct function_attributes *out, const void *function) {
    *out = (struct function_attributes){
        .threads_per_block = THREADS_PER_BLOCK,
        .registers = 32,
        .ptx_version = compute_capability,
        .binary_version = compute_capability,
        .dynamic_shared_bytes = SHARED_BYTES_PER_BLOCK,
    };
    return SUCCESS;
}

enum { RESIDENT_BLOCKS = 2 }; /* any number but 0, by which torch divides */

API status cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *out, const void *function, int block, size_t shared) {
    *out = RESIDENT_BLOCKS;
    return SUCCESS;
}

API status cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *out, const void *function, int block,
                                                                  size_t shared, unsigned flags) {
    *out = RESIDENT_BLOCKS;
    return SUCCESS;
}
