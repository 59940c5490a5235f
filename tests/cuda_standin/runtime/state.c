/* Settings, devices, contexts, and the memory that each process holds of each device. */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct device devices[MOST_DEVICES];
static int physical_index[MOST_DEVICES]; /* of each visible device: CUDA_VISIBLE_DEVICES picks and orders them */
static int device_count;

static int lazy_events;
static int trace_level;
static int compute_capability;
static size_t context_bytes;

static int has_used_a_device;
static int devices_are_lost;
static int is_forked_child; /* of a process that had used a device */
static uint64_t sequence = 1; /* numbers launches and events; an event is done when its device is synchronized beyond it */
static int streams_capturing;
static __thread int current_device;
static __thread int capture_mode;
static __thread status last_error;

/* Memory by process, in the file CUDA_STANDIN_STATE where it is set: NVML tells of other processes too. */
enum { MOST_PROCESSES = 256 };
struct process {
    int pid;
    size_t used[MOST_DEVICES]; /* by physical index */
};
static struct process unshared_processes[MOST_PROCESSES];
static struct process *processes = unshared_processes;
static struct process *this_process;

static long setting(const char *name, long otherwise) {
    const char *text = getenv(name);
    return text && *text ? atol(text) : otherwise;
}

static int devices_of_the_machine(void) {
    int count = setting("CUDA_STANDIN_DEVICES", 1);
    return count < MOST_DEVICES ? count : MOST_DEVICES;
}

static void choose_visible_devices(void) {
    int machine = devices_of_the_machine();
    const char *text = getenv("CUDA_VISIBLE_DEVICES");
    if (!text) {
        for (device_count = 0; device_count < machine; device_count++) physical_index[device_count] = device_count;
        return;
    }
    while (*text) {
        char *end;
        long index = strtol(text, &end, 10);
        /* As CUDA: the list ends at the first entry that names no device. */
        if (end == text || index < 0 || index >= machine || device_count == MOST_DEVICES) break;
        physical_index[device_count++] = index;
        if (*end != ',') break;
        text = end + 1;
    }
}

static void share_processes(void) {
    const char *path = getenv("CUDA_STANDIN_STATE");
    if (!path) return;
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0) return;
    if (ftruncate(file, sizeof unshared_processes) == 0) {
        void *shared = mmap(NULL, sizeof unshared_processes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        if (shared != MAP_FAILED) processes = shared;
    }
    close(file);
}

static void after_fork(void) {
    is_forked_child = has_used_a_device;
}

__attribute__((constructor)) static void start(void) {
    trace_level = setting("CUDA_STANDIN_TRACE", 0);
    lazy_events = setting("CUDA_STANDIN_LAZY", 0);
    compute_capability = setting("CUDA_STANDIN_CC", 80);
    context_bytes = setting("CUDA_STANDIN_CONTEXT_MIB", 0) * MIB;
    for (int i = 0; i < MOST_DEVICES; i++) devices[i].capacity = setting("CUDA_STANDIN_MIB", 16384) * MIB;
    choose_visible_devices();
    share_processes();
    pthread_atfork(NULL, NULL, after_fork);
}

__attribute__((destructor)) static void stop(void) {
    if (this_process && this_process->pid == getpid()) this_process->pid = 0;
}

static int is_alive(const struct process *process) {
    return process->pid && (kill(process->pid, 0) == 0 || errno == EPERM);
}

/* Bytes that all processes hold of a device, given by its physical index. */
static size_t used_of(int physical) {
    size_t sum = 0;
    for (int i = 0; i < MOST_PROCESSES; i++)
        if (is_alive(&processes[i])) sum += processes[i].used[physical];
    return sum;
}

/* Change by `bytes` what this process holds of a device. Call it with the lock held. */
static void charge(int device, long bytes) {
    for (int i = 0; !this_process && i < MOST_PROCESSES; i++) {
        if (is_alive(&processes[i])) continue;
        memset(&processes[i], 0, sizeof processes[i]);
        this_process = &processes[i];
        this_process->pid = getpid();
    }
    this_process->used[physical_index[device]] += bytes;
}

static status failed(status error) {
    if (error != SUCCESS) last_error = error;
    return error;
}

static int is_device(int device) {
    return device >= 0 && device < device_count;
}

static status enter_context(int device) {
    if (is_forked_child) return failed(INITIALIZATION_ERROR);
    if (devices_are_lost) return failed(ILLEGAL_ADDRESS);
    if (!device_count) return failed(NO_DEVICE);
    if (!is_device(device)) return failed(INVALID_DEVICE);
    has_used_a_device = 1;
    if (devices[device].has_context) return SUCCESS;
    pthread_mutex_lock(&lock);
    if (!devices[device].has_context) {
        devices[device].has_context = 1;
        charge(device, context_bytes);
    }
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

/* For tests: from now on this process gets an error for all that needs a device, as after a kernel that used a wrong address. */
API void standin_lose_devices(void) {
    devices_are_lost = 1;
}

/* Called by each stub that build.py makes; `seen` is the stub's own. */
long standin_stub(const char *name, int *seen) {
    if (trace_level && !(*seen)++) fprintf(stderr, "cuda-standin: stub %s\n", name);
    return SUCCESS;
}
