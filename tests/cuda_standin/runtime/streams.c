/* Streams, events and graphs. All work is done when it is submitted; with lazy events it seems to be done only once
 * its device is synchronized, which is what late frees of torch's allocator wait for. */

struct event {
    uint64_t recorded_at; /* in the numbering of `sequence` */
    int device;
    struct timespec time;
};

/* Torch passes 0, 1 and 2 for the default streams, which have nothing behind them. */
static struct stream *own_stream(struct stream *stream) {
    return (uintptr_t)stream < HOST_PAGE ? NULL : stream;
}

static int device_of(struct stream *stream) {
    return own_stream(stream) ? stream->device : current_device;
}

API status cudaStreamCreateWithPriority(struct stream **out, unsigned flags, int priority) {
    NEEDS_CONTEXT();
    struct stream *stream = calloc(1, sizeof *stream);
    stream->device = current_device;
    stream->priority = priority;
    *out = stream;
    return SUCCESS;
}

API status cudaStreamCreateWithFlags(struct stream **out, unsigned flags) {
    return cudaStreamCreateWithPriority(out, flags, 0);
}

API status cudaStreamCreate(struct stream **out) {
    return cudaStreamCreateWithPriority(out, 0, 0);
}

API status cudaStreamDestroy(struct stream *stream) {
    free(stream);
    return SUCCESS;
}

API status cudaStreamGetPriority(struct stream *stream, int *priority) {
    *priority = own_stream(stream) ? stream->priority : 0;
    return SUCCESS;
}

API status cudaStreamQuery(struct stream *stream) {
    NEEDS_CONTEXT();
    return lazy_events && devices[current_device].synchronized_at < sequence ? NOT_READY : SUCCESS;
}

API status cudaStreamSynchronize(struct stream *stream) {
    NEEDS_CONTEXT();
    if (own_stream(stream) && stream->capturing) return failed(CAPTURE_UNSUPPORTED);
    devices[device_of(stream)].synchronized_at = sequence;
    return SUCCESS;
}

API status cudaStreamWaitEvent(struct stream *stream, struct event *event, unsigned flags) {
    return SUCCESS;
}

API status cudaLaunchHostFunc(struct stream *stream, void (*function)(void *), void *argument) {
    function(argument);
    return SUCCESS;
}

API status cudaStreamAddCallback(struct stream *stream, void (*callback)(void *, status, void *), void *argument,
                                 unsigned flags) {
    callback(stream, SUCCESS, argument);
    return SUCCESS;
}

/* --- events ------------------------------------------------------------------------------------------------------ */

API status cudaEventCreateWithFlags(struct event **out, unsigned flags) {
    NEEDS_CONTEXT();
    struct event *event = calloc(1, sizeof *event);
    event->device = current_device;
    *out = event;
    return SUCCESS;
}

API status cudaEventCreate(struct event **out) {
    return cudaEventCreateWithFlags(out, 0);
}

API status cudaEventDestroy(struct event *event) {
    free(event);
    return SUCCESS;
}

API status cudaEventRecord(struct event *event, struct stream *stream) {
    NEEDS_CONTEXT();
    event->recorded_at = __atomic_add_fetch(&sequence, 1, __ATOMIC_SEQ_CST);
    event->device = device_of(stream);
    clock_gettime(CLOCK_MONOTONIC, &event->time);
    return SUCCESS;
}

API status cudaEventRecordWithFlags(struct event *event, struct stream *stream, unsigned flags) {
    return cudaEventRecord(event, stream);
}

API status cudaEventQuery(struct event *event) {
    NEEDS_CONTEXT();
    REFUSED_WHILE_CAPTURING();
    return lazy_events && event->recorded_at > devices[event->device].synchronized_at ? NOT_READY : SUCCESS;
}

API status cudaEventSynchronize(struct event *event) {
    NEEDS_CONTEXT();
    struct device *device = &devices[event->device];
    if (device->synchronized_at < event->recorded_at) device->synchronized_at = event->recorded_at;
    return SUCCESS;
}

API status cudaEventElapsedTime(float *milliseconds, struct event *from, struct event *to) {
    float seconds = to->time.tv_sec - from->time.tv_sec;
    float nanoseconds = to->time.tv_nsec - from->time.tv_nsec;
    *milliseconds = seconds * 1e3f + nanoseconds / 1e6f;
    return SUCCESS;
}

/* --- graphs: the number of nodes is kept, since torch warns of an empty graph; a replay does nothing ------------- */

API status cudaThreadExchangeStreamCaptureMode(int *mode) {
    int before = capture_mode;
    capture_mode = *mode;
    *mode = before;
    return SUCCESS;
}

API status cudaStreamBeginCapture(struct stream *stream, int mode) {
    static uint64_t captures;
    if (!own_stream(stream) || stream->capturing) return failed(CAPTURE_UNSUPPORTED);
    stream->capturing = 1;
    stream->capture_id = ++captures;
    stream->graph = calloc(1, sizeof *stream->graph);
    __atomic_add_fetch(&streams_capturing, 1, __ATOMIC_SEQ_CST);
    return SUCCESS;
}

API status cudaStreamEndCapture(struct stream *stream, struct graph **out) {
    if (!own_stream(stream) || !stream->capturing) return failed(INVALID_VALUE);
    stream->capturing = 0;
    *out = stream->graph;
    stream->graph = NULL;
    __atomic_sub_fetch(&streams_capturing, 1, __ATOMIC_SEQ_CST);
    return SUCCESS;
}

API status cudaStreamIsCapturing(struct stream *stream, int *out) {
    *out = own_stream(stream) ? stream->capturing : 0;
    return SUCCESS;
}

static status capture_info(struct stream *stream, int *capturing, unsigned long long *id, void **graph,
                           void **dependencies, size_t *count) {
    *capturing = own_stream(stream) ? stream->capturing : 0;
    if (id) *id = *capturing ? stream->capture_id : 0;
    if (graph) *graph = *capturing ? stream->graph : NULL;
    if (dependencies) *dependencies = NULL;
    if (count) *count = 0;
    return SUCCESS;
}

#if CUDA_MAJOR < 13
API status cudaStreamGetCaptureInfo_v2(struct stream *stream, int *capturing, unsigned long long *id, void **graph,
                                       void **dependencies, size_t *count) {
    return capture_info(stream, capturing, id, graph, dependencies, count);
}
#else
API status cudaStreamGetCaptureInfo(struct stream *stream, int *capturing, unsigned long long *id, void **graph,
                                    void **dependencies, void **edges, size_t *count) {
    if (edges) *edges = NULL;
    return capture_info(stream, capturing, id, graph, dependencies, count);
}
#endif

API status cudaGraphGetNodes(struct graph *graph, void **nodes, size_t *count) {
    *count = graph->nodes;
    return SUCCESS;
}

API status cudaGraphInstantiateWithFlags(void **executable, struct graph *graph, unsigned long long flags) {
    *executable = malloc(1);
    return SUCCESS;
}

API status cudaGraphInstantiate(void **executable, struct graph *graph, unsigned long long flags) {
    return cudaGraphInstantiateWithFlags(executable, graph, flags);
}

API status cudaGraphExecDestroy(void *executable) {
    free(executable);
    return SUCCESS;
}

API status cudaGraphDestroy(struct graph *graph) {
    free(graph);
    return SUCCESS;
}
