/* cuBLAS, cuDNN and the other libraries: handles, and what torch reads back of them. Nothing is computed. */

enum { LIBRARY_VERSION = CUDA_MAJOR * 10000 + 10000 };

static status new_handle(void **out) {
    *out = malloc(8);
    return SUCCESS;
}

struct cublas_handle {
    void *stream;
    int math_mode;
};

API status cublasCreate_v2(void **out) {
    NEEDS_CONTEXT();
    *out = calloc(1, sizeof(struct cublas_handle));
    return SUCCESS;
}

API status cublasDestroy_v2(void *handle) {
    free(handle);
    return SUCCESS;
}

API status cublasSetStream_v2(struct cublas_handle *handle, void *stream) {
    handle->stream = stream;
    return SUCCESS;
}

API status cublasGetStream_v2(struct cublas_handle *handle, void **stream) {
    *stream = handle->stream;
    return SUCCESS;
}

API status cublasGetMathMode(struct cublas_handle *handle, int *mode) {
    *mode = handle->math_mode;
    return SUCCESS;
}

API status cublasSetMathMode(struct cublas_handle *handle, int mode) {
    handle->math_mode = mode;
    return SUCCESS;
}

API status cublasGetPointerMode_v2(struct cublas_handle *handle, int *mode) {
    *mode = 0;
    return SUCCESS;
}

API status cublasGetVersion_v2(void *handle, int *version) {
    *version = LIBRARY_VERSION;
    return SUCCESS;
}

API size_t cublasLtGetVersion(void) {
    return LIBRARY_VERSION;
}

API status cublasLtCreate(void **out) {
    return new_handle(out);
}

API status cublasLtDestroy(void *handle) {
    free(handle);
    return SUCCESS;
}

API status cublasLtMatmulDescCreate(void **out, int compute_type, int scale_type) {
    return new_handle(out);
}

API status cublasLtMatmulDescDestroy(void *handle) {
    free(handle);
    return SUCCESS;
}

API status cublasLtMatmulPreferenceCreate(void **out) {
    return new_handle(out);
}

API status cublasLtMatmulPreferenceDestroy(void *handle) {
    free(handle);
    return SUCCESS;
}

API status cublasLtMatrixLayoutCreate(void **out, int type, uint64_t rows, uint64_t columns, int64_t leading) {
    return new_handle(out);
}

API status cublasLtMatrixLayoutDestroy(void *handle) {
    free(handle);
    return SUCCESS;
}

struct cublaslt_heuristic {
    uint64_t algorithm[8];
    size_t workspace;
    int state;
    float waves;
    int reserved[4];
};

/* One algorithm, without a workspace: torch takes the absence of one as an error. */
API status cublasLtMatmulAlgoGetHeuristic(void *handle, void *operation, void *a, void *b, void *c, void *d,
                                          void *preference, int asked, struct cublaslt_heuristic *out, int *found) {
    memset(out, 0, sizeof *out);
    *found = 1;
    return SUCCESS;
}

API status cusparseCreate(void **out) {
    return new_handle(out);
}

API status cusolverDnCreate(void **out) {
    return new_handle(out);
}

/* --- cuDNN: one engine for every graph of operations, and all that is asked of it is 0 --------------------------- */

enum cudnn_type {
    CUDNN_HANDLE = 0,
    CUDNN_BOOLEAN = 2,
    CUDNN_INT64 = 3,
    CUDNN_DOUBLE = 5,
    CUDNN_VOID_POINTER = 6,
    CUDNN_DESCRIPTOR = 15,
};

static size_t cudnn_width(int type) {
    switch (type) {
    case CUDNN_HANDLE:
    case CUDNN_INT64:
    case CUDNN_DOUBLE:
    case CUDNN_VOID_POINTER: return 8;
    case CUDNN_BOOLEAN: return 1;
    default: return 4;
    }
}

API status cudnnCreate(void **out) {
    return new_handle(out);
}

API status cudnnBackendCreateDescriptor(int type, void **out) {
    *out = calloc(1, 64);
    return SUCCESS;
}

API status cudnnBackendDestroyDescriptor(void *descriptor) {
    free(descriptor);
    return SUCCESS;
}

API status cudnnBackendGetAttribute(void *descriptor, int name, int type, int64_t asked, int64_t *count, void *out) {
    if (count) *count = asked > 0 ? asked : 1;
    if (count && type == CUDNN_DESCRIPTOR) *count = 1;
    /* Descriptors are the caller's own, and are left as they are. */
    if (out && asked > 0 && type != CUDNN_DESCRIPTOR) memset(out, 0, asked * cudnn_width(type));
    return SUCCESS;
}

/* Batch norm asks for these outside of graphs, and takes as much as it is told. */

API status cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(void *handle, int mode, int operations, void *x,
                                                                    void *z, void *y, void *parameters,
                                                                    void *activation, size_t *size) {
    *size = 0;
    return SUCCESS;
}

API status cudnnGetBatchNormalizationBackwardExWorkspaceSize(void *handle, int mode, int operations, void *x, void *y,
                                                             void *dy, void *dz, void *dx, void *parameters,
                                                             void *activation, size_t *size) {
    *size = 0;
    return SUCCESS;
}

API status cudnnGetBatchNormalizationTrainingExReserveSpaceSize(void *handle, int mode, int operations,
                                                                void *activation, void *x, size_t *size) {
    *size = 0;
    return SUCCESS;
}

API size_t cudnnGetVersion(void) {
    return CUDNN_VERSION;
}

API size_t cudnnGetCudartVersion(void) {
    return CUDA_VERSION;
}

/* --- the compiler at run time ------------------------------------------------------------------------------------ */

API status nvrtcVersion(int *major, int *minor) {
    *major = CUDA_MAJOR;
    *minor = 0;
    return SUCCESS;
}

API status nvrtcCreateProgram(void **out, const char *source, const char *name, int count, void *headers,
                              void *names) {
    return new_handle(out);
}

API status nvrtcGetCUBINSize(void *program, size_t *size) {
    *size = 1;
    return SUCCESS;
}

API status nvrtcGetPTXSize(void *program, size_t *size) {
    *size = 1;
    return SUCCESS;
}

API status nvrtcGetProgramLogSize(void *program, size_t *size) {
    *size = 1;
    return SUCCESS;
}

API status nvrtcGetLoweredName(void *program, const char *name, const char **out) {
    *out = "kernel";
    return SUCCESS;
}
