/* Virtual memory of the driver, of which torch makes expandable segments: addresses are reserved, and memory that is
 * created apart from them is mapped there. The memory is a file in memory, so that it can be mapped again elsewhere. */

struct physical_memory {
    int file;
    int device;
    size_t size;
    long users; /* its creator, and each mapping */
};

struct allocation_property {
    int type;
    int handle_types;
    int location_type;
    int device;
};

enum { MOST_MAPPINGS = 65536 };
struct mapping {
    char *at;
    struct physical_memory *memory; /* NULL: this entry is free */
};
static struct mapping mappings[MOST_MAPPINGS];

API status cuMemGetAllocationGranularity(size_t *out, const void *property, int option) {
    *out = DEVICE_PAGE;
    return SUCCESS;
}

API status cuMemAddressReserve(void **out, size_t size, size_t alignment, void *at, unsigned long long flags) {
    *out = new_pages(size, PROT_NONE);
    return *out ? SUCCESS : OUT_OF_MEMORY;
}

API status cuMemAddressFree(void *at, size_t size) {
    munmap(at, size);
    return SUCCESS;
}

API status cuMemCreate(struct physical_memory **out, size_t size, const struct allocation_property *property,
                       unsigned long long flags) {
    int device = property->device;
    pthread_mutex_lock(&lock);
    int is_full = used_of(physical_index[device]) + size > devices[device].capacity;
    if (!is_full) charge(device, size);
    pthread_mutex_unlock(&lock);
    if (is_full) return OUT_OF_MEMORY;
    struct physical_memory *memory = calloc(1, sizeof *memory);
    *memory = (struct physical_memory){memfd_create("cuda-standin", MFD_CLOEXEC), device, size, 1};
    if (memory->file < 0 || ftruncate(memory->file, size) != 0) return OUT_OF_MEMORY;
    *out = memory;
    return SUCCESS;
}

static void drop_user(struct physical_memory *memory) {
    if (--memory->users > 0) return;
    pthread_mutex_lock(&lock);
    charge(memory->device, -(long)memory->size);
    pthread_mutex_unlock(&lock);
    close(memory->file);
    free(memory);
}

API status cuMemRelease(struct physical_memory *memory) {
    drop_user(memory);
    return SUCCESS;
}

API status cuMemMap(char *at, size_t size, size_t offset, struct physical_memory *memory, unsigned long long flags) {
    if (mmap(at, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, memory->file, offset) == MAP_FAILED)
        return INVALID_VALUE;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < MOST_MAPPINGS; i++) {
        if (mappings[i].memory) continue;
        mappings[i] = (struct mapping){at, memory};
        memory->users++;
        break;
    }
    add_block(at, size, size, memory->device, DEVICE);
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

API status cuMemUnmap(char *at, size_t size) {
    struct physical_memory *unmapped[MOST_MAPPINGS];
    int count = 0;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < MOST_MAPPINGS; i++) {
        if (!mappings[i].memory || mappings[i].at < at || mappings[i].at >= at + size) continue;
        unmapped[count++] = mappings[i].memory;
        mappings[i].memory = NULL;
    }
    for (size_t i = 0; i < block_count;) {
        if (blocks[i].at >= at && blocks[i].at < at + size)
            drop_block(&blocks[i]); /* which moves the last block here */
        else
            i++;
    }
    pthread_mutex_unlock(&lock);
    mmap(at, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    while (count > 0) drop_user(unmapped[--count]);
    return SUCCESS;
}

API status cuMemSetAccess(void *at, size_t size, const void *description, size_t count) {
    return SUCCESS;
}
