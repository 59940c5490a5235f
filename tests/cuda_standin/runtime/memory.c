/* Memory of devices, of pools, and pinned memory of the host; copies. */

enum kind { PINNED = 1, DEVICE = 2, POOL = 4, REGISTERED = 5 };

struct block {
    char *at;
    size_t size;  /* as asked for */
    size_t taken; /* as rounded up */
    int device;
    enum kind kind;
};
static struct block *blocks;
static size_t block_count;
static size_t block_room;

static size_t rounded_up(size_t size, size_t step) {
    return (size + step - 1) / step * step;
}

/* The list of blocks. Use it with the lock held. */
static void add_block(void *at, size_t size, size_t taken, int device, enum kind kind) {
    if (block_count == block_room) {
        block_room = block_room * 2 + 64;
        blocks = realloc(blocks, block_room * sizeof *blocks);
    }
    blocks[block_count++] = (struct block){at, size, taken, device, kind};
}

static void drop_block(struct block *block) {
    *block = blocks[--block_count];
}

static struct block *find_block(const void *pointer) {
    const char *at = pointer;
    for (size_t i = 0; i < block_count; i++)
        if (at >= blocks[i].at && at < blocks[i].at + blocks[i].size) return &blocks[i];
    return NULL;
}

/* Address space that takes memory only as it is written to. */
static void *new_pages(size_t size, int access) {
    void *at = mmap(NULL, size, access, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return at == MAP_FAILED ? NULL : at;
}

/* What a device must give for `need` bytes more: a pool takes memory in large steps. */
static size_t taken_from_device(const struct device *device, size_t need, enum kind kind) {
    if (kind != POOL) return need;
    if (device->pool_used + need <= device->pool_reserved) return 0;
    return rounded_up(device->pool_used + need, POOL_STEP) - device->pool_reserved;
}

static void count_in_pool(struct device *device, size_t used, size_t reserved) {
    device->pool_used += used;
    device->pool_reserved += reserved;
    if (device->pool_used > device->pool_used_high) device->pool_used_high = device->pool_used;
    if (device->pool_reserved > device->pool_reserved_high) device->pool_reserved_high = device->pool_reserved;
}

static status allocate_locked(void **out, size_t size, size_t need, enum kind kind) {
    struct device *device = &devices[current_device];
    size_t taken = taken_from_device(device, need, kind);
    if (used_of(physical_index[current_device]) + taken > device->capacity) return OUT_OF_MEMORY;
    *out = new_pages(rounded_up(need, HOST_PAGE), PROT_READ | PROT_WRITE);
    if (!*out) return OUT_OF_MEMORY;
    charge(current_device, taken);
    if (kind == POOL) count_in_pool(device, need, taken);
    add_block(*out, size, need, current_device, kind);
    return SUCCESS;
}

static status allocate(void **out, size_t size, enum kind kind) {
    const size_t beyond_any_device = (size_t)1 << 46;
    size_t need = rounded_up(size, kind == POOL ? 512 : DEVICE_PAGE);
    if (!size) {
        *out = NULL;
        return SUCCESS;
    }
    if (need < size || need > beyond_any_device) return failed(OUT_OF_MEMORY);
    pthread_mutex_lock(&lock);
    status ended = allocate_locked(out, size, need, kind);
    pthread_mutex_unlock(&lock);
    return failed(ended);
}

static status release(void *pointer, int of_host) {
    if (!pointer) return SUCCESS;
    pthread_mutex_lock(&lock);
    struct block *block = find_block(pointer);
    if (!block || block->at != pointer || (block->kind == PINNED) != of_host) {
        pthread_mutex_unlock(&lock);
        return failed(INVALID_VALUE);
    }
    if (block->kind == DEVICE) charge(block->device, -(long)block->taken);
    if (block->kind == POOL) devices[block->device].pool_used -= block->taken;
    munmap(block->at, rounded_up(block->taken, HOST_PAGE));
    drop_block(block);
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

API status cudaMalloc(void **out, size_t size) {
    NEEDS_CONTEXT();
    REFUSED_WHILE_CAPTURING();
    return allocate(out, size, DEVICE);
}

API status cudaFree(void *pointer) {
    NEEDS_CONTEXT();
    return release(pointer, 0);
}

API status cudaMemGetInfo(size_t *free_bytes, size_t *total) {
    NEEDS_CONTEXT();
    *total = devices[current_device].capacity;
    *free_bytes = *total - used_of(physical_index[current_device]);
    return SUCCESS;
}

/* --- pools of cudaMallocAsync -------------------------------------------------------------------------------- */

enum pool_attribute {
    RELEASE_THRESHOLD = 4,
    RESERVED_CURRENT = 5,
    RESERVED_HIGH = 6,
    USED_CURRENT = 7,
    USED_HIGH = 8,
};

API status cudaMallocAsync(void **out, size_t size, void *stream) {
    NEEDS_CONTEXT();
    return allocate(out, size, POOL);
}

API status cudaFreeAsync(void *pointer, void *stream) {
    NEEDS_CONTEXT();
    return release(pointer, 0);
}

/* Each device has one pool, and its handle is the device. */
API status cudaDeviceGetDefaultMemPool(void **pool, int device) {
    *pool = &devices[device];
    return SUCCESS;
}

API status cudaMemPoolGetAttribute(struct device *pool, int attribute, uint64_t *out) {
    switch (attribute) {
    case RELEASE_THRESHOLD: *out = pool->pool_release_threshold; break;
    case RESERVED_CURRENT: *out = pool->pool_reserved; break;
    case RESERVED_HIGH: *out = pool->pool_reserved_high; break;
    case USED_CURRENT: *out = pool->pool_used; break;
    case USED_HIGH: *out = pool->pool_used_high; break;
    default: *out = 0;
    }
    return SUCCESS;
}

API status cudaMemPoolSetAttribute(struct device *pool, int attribute, uint64_t *value) {
    if (attribute == RELEASE_THRESHOLD) pool->pool_release_threshold = *value;
    if (attribute == RESERVED_HIGH) pool->pool_reserved_high = pool->pool_reserved;
    if (attribute == USED_HIGH) pool->pool_used_high = pool->pool_used;
    return SUCCESS;
}

API status cudaMemPoolTrimTo(struct device *pool, size_t keep) {
    pthread_mutex_lock(&lock);
    size_t least = rounded_up(pool->pool_used, POOL_STEP);
    if (least < keep) least = keep;
    if (least < pool->pool_reserved) {
        charge(pool - devices, (long)least - (long)pool->pool_reserved);
        pool->pool_reserved = least;
    }
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

/* --- pinned memory of the host ------------------------------------------------------------------------------- */

API status cudaHostAlloc(void **out, size_t size, unsigned flags) {
    NEEDS_CONTEXT();
    size_t taken = rounded_up(size ? size : 1, HOST_PAGE);
    *out = new_pages(taken, PROT_READ | PROT_WRITE);
    if (!*out) return failed(OUT_OF_MEMORY);
    pthread_mutex_lock(&lock);
    add_block(*out, size, taken, current_device, PINNED);
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

API status cudaMallocHost(void **out, size_t size) {
    return cudaHostAlloc(out, size, 0);
}

API status cudaFreeHost(void *pointer) {
    NEEDS_CONTEXT();
    return release(pointer, 1);
}

API status cudaHostRegister(void *pointer, size_t size, unsigned flags) {
    NEEDS_CONTEXT();
    pthread_mutex_lock(&lock);
    add_block(pointer, size, 0, current_device, REGISTERED);
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

API status cudaHostUnregister(void *pointer) {
    pthread_mutex_lock(&lock);
    struct block *block = find_block(pointer);
    int is_registered = block && block->kind == REGISTERED;
    if (is_registered) drop_block(block);
    pthread_mutex_unlock(&lock);
    return is_registered ? SUCCESS : failed(INVALID_VALUE);
}

API status cudaHostGetDevicePointer(void **out, void *pointer, unsigned flags) {
    *out = pointer;
    return SUCCESS;
}

/* --- what a pointer is ---------------------------------------------------------------------------------------- */

enum { MEMORY_UNREGISTERED = 0, MEMORY_OF_HOST = 1, MEMORY_OF_DEVICE = 2, INVALID_DEVICE_ID = -2 };

struct pointer_attributes {
    int type;
    int device;
    void *device_pointer;
    void *host_pointer;
};

API status cudaPointerGetAttributes(struct pointer_attributes *out, const void *pointer) {
    void *at = (void *)pointer;
    pthread_mutex_lock(&lock);
    struct block *block = find_block(pointer);
    if (!block)
        *out = (struct pointer_attributes){MEMORY_UNREGISTERED, INVALID_DEVICE_ID, NULL, at};
    else if (block->kind == PINNED || block->kind == REGISTERED)
        *out = (struct pointer_attributes){MEMORY_OF_HOST, block->device, at, at};
    else
        *out = (struct pointer_attributes){MEMORY_OF_DEVICE, block->device, at, NULL};
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

/* --- copies, which are done at once ---------------------------------------------------------------------------- */

API status cudaMemcpy(void *to, const void *from, size_t size, int direction) {
    NEEDS_CONTEXT();
    if (size) memmove(to, from, size);
    return SUCCESS;
}

API status cudaMemcpyAsync(void *to, const void *from, size_t size, int direction, void *stream) {
    return cudaMemcpy(to, from, size, direction);
}

API status cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device, size_t size, void *stream) {
    return cudaMemcpy(to, from, size, 0);
}

API status cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                             size_t height, int direction, void *stream) {
    for (size_t row = 0; row < height; row++)
        memmove((char *)to + row * to_pitch, (const char *)from + row * from_pitch, width);
    return SUCCESS;
}

API status cudaMemset(void *pointer, int value, size_t size) {
    NEEDS_CONTEXT();
    if (size) memset(pointer, value, size);
    return SUCCESS;
}

API status cudaMemsetAsync(void *pointer, int value, size_t size, void *stream) {
    return cudaMemset(pointer, value, size);
}

/* No kernel reads a symbol, so that all of them may lie in the same place. */
API status cudaMemcpyToSymbol(const void *symbol, const void *from, size_t size, size_t offset, int direction) {
    return SUCCESS;
}

API status cudaGetSymbolAddress(void **out, const void *symbol) {
    static char all_symbols[4096];
    *out = all_symbols;
    return SUCCESS;
}
