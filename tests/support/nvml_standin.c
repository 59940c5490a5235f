/* A stand-in for the NVIDIA driver's library, so that the real binding is exercised where there is no device.
 *
 * Its state is the file that the environment variable NVML_STANDIN names, read at each call. A line each:
 *
 *     driver 550.54
 *     error <function> <code>                       the function returns this code from now on
 *     device <uuid> <bus> <total> <used> <mig> <model>     mig: 0 off, 1 on, -1 not supported
 *     part <uuid of the device> <slot> <uuid> <total> <used>
 *     process <uuid> compute|graphics <pid> <bytes> [<gpu instance> <compute instance>]
 *
 * Bytes are unsigned; 18446744073709551615 is NVML_VALUE_NOT_AVAILABLE. Layouts and codes are those of nvml.h.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7, LOST = 15 };
enum { MOST_DEVICES = 16, MOST_PROCESSES = 64, MOST_ERRORS = 16, SLOTS = 4 };

typedef unsigned long long bytes_t;
typedef struct { char uuid[96], bus[32], model[96], parent[96]; bytes_t total, used; int mig, slot; } device_t;
typedef struct { unsigned pid; bytes_t used; unsigned gpu, compute; } row_t;
typedef struct { char uuid[96], list[16]; row_t row; } process_t;
typedef struct { char function[64]; int code; } error_t;
typedef struct { bytes_t total, free, used; } memory_t;
typedef struct { unsigned version; bytes_t total, reserved, free, used; } memory_v2_t;
typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } pci_t;

static device_t devices[MOST_DEVICES];
static process_t processes[MOST_PROCESSES];
static error_t errors[MOST_ERRORS];
static int device_count, process_count, error_count, opened;
static char driver[80];

/* Read the state; the code that the function is to return. */
static int load(const char *function) {
    char line[512], word[32];
    const char *path = getenv("NVML_STANDIN");
    FILE *file = path ? fopen(path, "r") : NULL;
    device_count = process_count = error_count = 0;
    strcpy(driver, "0");
    if (!file) return 999;
    while (fgets(line, sizeof line, file)) {
        device_t *device = &devices[device_count];
        process_t *process = &processes[process_count];
        error_t *error = &errors[error_count];
        if (sscanf(line, "%31s", word) != 1) continue;
        if (!strcmp(word, "driver")) {
            sscanf(line, "%*s %79s", driver);
        } else if (!strcmp(word, "error") && error_count < MOST_ERRORS) {
            error_count += sscanf(line, "%*s %63s %d", error->function, &error->code) == 2;
        } else if (!strcmp(word, "device") && device_count < MOST_DEVICES) {
            memset(device, 0, sizeof *device);
            device_count += sscanf(line, "%*s %95s %31s %llu %llu %d %95[^\n]", device->uuid, device->bus,
                                   &device->total, &device->used, &device->mig, device->model) == 6;
        } else if (!strcmp(word, "part") && device_count < MOST_DEVICES) {
            memset(device, 0, sizeof *device);
            device->mig = -1;
            device_count += sscanf(line, "%*s %95s %d %95s %llu %llu", device->parent, &device->slot, device->uuid,
                                   &device->total, &device->used) == 5;
        } else if (!strcmp(word, "process") && process_count < MOST_PROCESSES) {
            process->row.gpu = process->row.compute = 0xFFFFFFFFu;
            process_count += sscanf(line, "%*s %95s %15s %u %llu %u %u", process->uuid, process->list,
                                    &process->row.pid, &process->row.used, &process->row.gpu,
                                    &process->row.compute) >= 4;
        }
    }
    fclose(file);
    for (int i = 0; i < error_count; i++)
        if (!strcmp(errors[i].function, function)) return errors[i].code;
    return SUCCESS;
}

/* As `load`, for what needs the library to be open. */
static int enter(const char *function) {
    int code = load(function);
    return code ? code : opened > 0 ? SUCCESS : UNINITIALIZED;
}

/* A handle is the device's place in the file, from 1. */
static device_t *device_of(void *handle) {
    size_t place = (size_t)handle;
    return place >= 1 && place <= (size_t)device_count ? &devices[place - 1] : NULL;
}

#define ENTER(function) do { int code = enter(function); if (code) return code; } while (0)
#define DEVICE(name, handle) device_t *name = device_of(handle); if (!name) return LOST

int standin_opened(void) { return opened; }

int nvmlInitWithFlags(unsigned flags) {
    int code = load("nvmlInit");
    (void)flags;
    opened += code == SUCCESS;
    return code;
}

int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

int nvmlShutdown(void) {
    ENTER("nvmlShutdown");
    opened--;
    return SUCCESS;
}

const char *nvmlErrorString(int code) {
    return code == NOT_SUPPORTED ? "Not Supported" : code == LOST ? "GPU is lost" : "Stand-in Error";
}

int nvmlSystemGetDriverVersion(char *text, unsigned length) {
    ENTER("nvmlSystemGetDriverVersion");
    snprintf(text, length, "%s", driver);
    return SUCCESS;
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    ENTER("nvmlDeviceGetCount");
    *count = 0;
    for (int i = 0; i < device_count; i++) *count += !devices[i].parent[0];
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
    ENTER("nvmlDeviceGetHandleByIndex");
    for (int i = 0; i < device_count; i++)
        if (!devices[i].parent[0] && index-- == 0) {
            *handle = (void *)(size_t)(i + 1);
            return SUCCESS;
        }
    return INVALID;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) {
    ENTER("nvmlDeviceGetHandleByUUID");
    for (int i = 0; i < device_count; i++)
        if (!strcmp(devices[i].uuid, uuid)) {
            *handle = (void *)(size_t)(i + 1);
            return SUCCESS;
        }
    return NOT_FOUND;
}

int nvmlDeviceGetUUID(void *handle, char *text, unsigned length) {
    ENTER("nvmlDeviceGetUUID");
    DEVICE(device, handle);
    snprintf(text, length, "%s", device->uuid);
    return SUCCESS;
}

int nvmlDeviceGetName(void *handle, char *text, unsigned length) {
    ENTER("nvmlDeviceGetName");
    DEVICE(device, handle);
    snprintf(text, length, "%s", device->model);
    return SUCCESS;
}

int nvmlDeviceGetPciInfo_v3(void *handle, pci_t *pci) {
    ENTER("nvmlDeviceGetPciInfo");
    DEVICE(device, handle);
    memset(pci, 0, sizeof *pci);
    snprintf(pci->bus_id, sizeof pci->bus_id, "%s", device->bus);
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo(void *handle, memory_t *memory) {
    ENTER("nvmlDeviceGetMemoryInfo");
    DEVICE(device, handle);
    memory->total = device->total;
    memory->used = device->used;
    memory->free = device->total - device->used;
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo_v2(void *handle, memory_v2_t *memory) {
    ENTER("nvmlDeviceGetMemoryInfo");
    DEVICE(device, handle);
    memory->total = device->total;
    memory->reserved = 0;
    memory->used = device->used;
    memory->free = device->total - device->used;
    return SUCCESS;
}

int nvmlDeviceGetMigMode(void *handle, unsigned *current, unsigned *pending) {
    ENTER("nvmlDeviceGetMigMode");
    DEVICE(device, handle);
    if (device->mig < 0) return NOT_SUPPORTED;
    *current = *pending = (unsigned)device->mig;
    return SUCCESS;
}

int nvmlDeviceGetMaxMigDeviceCount(void *handle, unsigned *count) {
    ENTER("nvmlDeviceGetMaxMigDeviceCount");
    DEVICE(device, handle);
    *count = device->mig == 1 ? SLOTS : 0;
    return SUCCESS;
}

int nvmlDeviceGetMigDeviceHandleByIndex(void *handle, unsigned slot, void **part) {
    ENTER("nvmlDeviceGetMigDeviceHandleByIndex");
    DEVICE(device, handle);
    for (int i = 0; i < device_count; i++)
        if (!strcmp(devices[i].parent, device->uuid) && (unsigned)devices[i].slot == slot) {
            *part = (void *)(size_t)(i + 1);
            return SUCCESS;
        }
    return NOT_FOUND;
}

static int list(const char *which, void *handle, unsigned *room, row_t *rows) {
    unsigned count = 0;
    DEVICE(device, handle);
    for (int i = 0; i < process_count; i++)
        if (!strcmp(processes[i].uuid, device->uuid) && !strcmp(processes[i].list, which)) {
            if (rows && count < *room) rows[count] = processes[i].row;
            count++;
        }
    if (count > *room || (count && !rows)) {
        *room = count;
        return TOO_SMALL;
    }
    *room = count;
    return SUCCESS;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned *room, row_t *rows) {
    ENTER("nvmlDeviceGetComputeRunningProcesses");
    return list("compute", handle, room, rows);
}

int nvmlDeviceGetComputeRunningProcesses_v2(void *handle, unsigned *room, row_t *rows) {
    return nvmlDeviceGetComputeRunningProcesses_v3(handle, room, rows);
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(void *handle, unsigned *room, row_t *rows) {
    ENTER("nvmlDeviceGetGraphicsRunningProcesses");
    return list("graphics", handle, room, rows);
}

int nvmlDeviceGetGraphicsRunningProcesses_v2(void *handle, unsigned *room, row_t *rows) {
    return nvmlDeviceGetGraphicsRunningProcesses_v3(handle, room, rows);
}
