/* NVML: the devices of the machine by their physical index, and which process holds how much of them. */

enum {
    NVML_SUCCESS = 0,
    NVML_INVALID_ARGUMENT = 2,
    NVML_NOT_SUPPORTED = 3,
    NVML_NOT_FOUND = 6,
    NVML_INSUFFICIENT_SIZE = 7,
};
#define NO_INSTANCE 0xffffffffu /* of a device that is not divided (MIG) */
typedef unsigned long long bytes;

struct nvml_process {
    unsigned pid;
    bytes used;
    unsigned gpu_instance;
    unsigned compute_instance;
};

struct nvml_pci {
    char legacy_id[16];
    unsigned domain, bus, device, pci_device, subsystem;
    char id[32];
};

struct nvml_memory {
    bytes total, free, used;
};

struct nvml_memory_v2 {
    bytes version, total, reserved, free, used;
};

/* Handles are the index plus 1, since NULL is none. */
static void *handle_of(int index) {
    return (void *)(uintptr_t)(index + 1);
}

static int index_of(void *handle) {
    return (int)(uintptr_t)handle - 1;
}

/* The UUID that devices.c states, as text: "cuda-standin-00" and the index as a digit. */
static void write_uuid(int index, char *out, unsigned size) {
    snprintf(out, size, "GPU-63756461-2d73-7461-6e64-696e2d3030%02x", '0' + index);
}

API int nvmlInit_v2(void) {
    return NVML_SUCCESS;
}

API int nvmlInit(void) {
    return NVML_SUCCESS;
}

API int nvmlInitWithFlags(unsigned flags) {
    return NVML_SUCCESS;
}

API int nvmlShutdown(void) {
    return NVML_SUCCESS;
}

API const char *nvmlErrorString(int error) {
    return error == NVML_NOT_SUPPORTED ? "Not Supported" : "stand-in";
}

API int nvmlSystemGetDriverVersion(char *out, unsigned size) {
    snprintf(out, size, "600.00");
    return NVML_SUCCESS;
}

API int nvmlSystemGetCudaDriverVersion_v2(int *version) {
    return cudaDriverGetVersion(version);
}

/* --- devices ------------------------------------------------------------------------------------------------------ */

API int nvmlDeviceGetCount_v2(unsigned *count) {
    *count = devices_of_the_machine();
    return NVML_SUCCESS;
}

API int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **out) {
    *out = handle_of(index);
    return (int)index < devices_of_the_machine() ? NVML_SUCCESS : NVML_INVALID_ARGUMENT;
}

API int nvmlDeviceGetHandleByUUID(const char *uuid, void **out) {
    char each[96];
    for (int i = 0; i < devices_of_the_machine(); i++) {
        write_uuid(i, each, sizeof each);
        if (!strcmp(each, uuid)) return nvmlDeviceGetHandleByIndex_v2(i, out);
    }
    return NVML_NOT_FOUND;
}

API int nvmlDeviceGetHandleByPciBusId_v2(const char *id, void **out) {
    unsigned domain, bus;
    if (sscanf(id, "%x:%x", &domain, &bus) != 2 || !bus) return NVML_NOT_FOUND;
    return nvmlDeviceGetHandleByIndex_v2(bus - 1, out);
}

API int nvmlDeviceGetUUID(void *handle, char *out, unsigned size) {
    write_uuid(index_of(handle), out, size);
    return NVML_SUCCESS;
}

API int nvmlDeviceGetName(void *handle, char *out, unsigned size) {
    snprintf(out, size, "CUDA stand-in %d", index_of(handle));
    return NVML_SUCCESS;
}

API int nvmlDeviceGetPciInfo_v3(void *handle, struct nvml_pci *out) {
    memset(out, 0, sizeof *out);
    out->bus = index_of(handle) + 1;
    snprintf(out->id, sizeof out->id, "00000000:%02X:00.0", out->bus);
    return NVML_SUCCESS;
}

API int nvmlDeviceGetMigMode(void *handle, unsigned *mode, unsigned *pending) {
    return NVML_NOT_SUPPORTED;
}

API int nvmlDeviceGetMaxMigDeviceCount(void *handle, unsigned *count) {
    *count = 0;
    return NVML_SUCCESS;
}

struct nvml_fabric {
    unsigned version;
    char rest[28];
};

API int nvmlDeviceGetGpuFabricInfoV(void *handle, struct nvml_fabric *out) {
    memset(out->rest, 0, sizeof out->rest);
    return NVML_SUCCESS;
}

API int nvmlDeviceGetNvLinkRemoteDeviceType(void *handle, unsigned link, void *type) {
    return NVML_NOT_SUPPORTED;
}

API int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *handle, unsigned link, void *out) {
    return NVML_NOT_SUPPORTED;
}

/* --- memory ------------------------------------------------------------------------------------------------------- */

API int nvmlDeviceGetMemoryInfo(void *handle, struct nvml_memory *out) {
    out->total = devices[index_of(handle)].capacity;
    out->used = used_of(index_of(handle));
    out->free = out->total - out->used;
    return NVML_SUCCESS;
}

API int nvmlDeviceGetMemoryInfo_v2(void *handle, struct nvml_memory_v2 *out) {
    out->total = devices[index_of(handle)].capacity;
    out->reserved = 0;
    out->used = used_of(index_of(handle));
    out->free = out->total - out->used;
    return NVML_SUCCESS;
}

API int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned *room, struct nvml_process *out) {
    int device = index_of(handle);
    unsigned count = 0;
    for (int i = 0; i < MOST_PROCESSES; i++) {
        size_t used = processes[i].used[device];
        if (!is_alive(&processes[i]) || !used) continue;
        if (out && count < *room) out[count] = (struct nvml_process){processes[i].pid, used, NO_INSTANCE, NO_INSTANCE};
        count++;
    }
    int too_small = count > *room || (count && !out);
    *room = count;
    return too_small ? NVML_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

API int nvmlDeviceGetComputeRunningProcesses_v2(void *handle, unsigned *room, void *out) {
    return nvmlDeviceGetComputeRunningProcesses_v3(handle, room, out);
}

API int nvmlDeviceGetComputeRunningProcesses(void *handle, unsigned *room, void *out) {
    return nvmlDeviceGetComputeRunningProcesses_v3(handle, room, out);
}

API int nvmlDeviceGetGraphicsRunningProcesses_v3(void *handle, unsigned *room, void *out) {
    *room = 0;
    return NVML_SUCCESS;
}

API int nvmlDeviceGetGraphicsRunningProcesses_v2(void *handle, unsigned *room, void *out) {
    *room = 0;
    return NVML_SUCCESS;
}
