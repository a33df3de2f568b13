/* A CUDA runtime without a GPU, preloaded before libcudart: device memory is main memory, streams are in order, kernels
   are counted and do nothing, and an event is complete only after the host has waited for work queued behind it.
   PRETENDED_GPUS: how many devices there are (1); PRETENDED_CAPABILITY: of each, as 90 for 9.0; PRETENDED_REFUSAL: the
   error with which the driver refuses all of them, as 35 where it is too old. */
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct event { double at_ms; long work; int device; };

static __thread int current;
static long queued, waited_for; /* numbers of the newest work, and of the newest that the host has waited for */
/* Waits of the host; launches; copies from main memory to a device, and those from pageable memory; allocations of
   memory on devices, and of pinned memory. */
long pretended_records[16]; /* of events, by the device that was current */
long pretended_touches[16]; /* of what needs a context on the device: memory, streams, events, launches */
long pretended_waits, pretended_launches, pretended_uploads, pretended_unpinned, pretended_allocations, pretended_pins;

int pretended_current(void) { return current; }
void pretended_queue(void) { queued++; }
/* Once it is set, what reaches the device returns this error, as after a fault that ends the context. */
int pretended_error;

static int setting(const char *name, int usual) { const char *text = getenv(name); return text ? atoi(text) : usual; }
static int capability(void) { return setting("PRETENDED_CAPABILITY", 90); }
cudaError_t pretended_wait(void) { pretended_waits++; waited_for = queued; return pretended_error; }
static cudaError_t launch(void) { pretended_touches[current]++; pretended_launches++; queued++; return pretended_error; }
static double now_ms(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1e3 + t.tv_nsec * 1e-6; }
static cudaError_t allocate(void **place, size_t bytes, size_t alignment) {
  return posix_memalign(place, alignment, bytes ? bytes : 1) ? cudaErrorMemoryAllocation : cudaSuccess;
}

/* Devices. */
cudaError_t cudaGetDeviceCount(int *count) { int gpus = setting("PRETENDED_GPUS", 1), refusal = setting("PRETENDED_REFUSAL", 0); *count = refusal ? 0 : gpus; return refusal ? refusal : gpus ? cudaSuccess : cudaErrorNoDevice; }
cudaError_t cudaGetDevice(int *device) { *device = current; return cudaSuccess; }
cudaError_t cudaSetDevice(int device) { current = device; return pretended_error; }
cudaError_t cudaDriverGetVersion(int *version) { *version = CUDART_VERSION; return cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int *version) { *version = CUDART_VERSION; return cudaSuccess; }
cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer) { *can = 0; return cudaSuccess; }
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) { *least = 0; *greatest = -5; return cudaSuccess; }
cudaError_t cudaDeviceSynchronize(void) { return pretended_wait(); }
cudaError_t cudaDeviceSetLimit(enum cudaLimit limit, size_t value) { return cudaSuccess; }
cudaError_t cudaDeviceGetLimit(size_t *value, enum cudaLimit limit) { *value = 1024; return cudaSuccess; }
cudaError_t cudaDeviceGetPCIBusId(char *text, int size, int device) { snprintf(text, size, "0000:%02x:00.0", device + 1); return cudaSuccess; }
cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
  switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor: *value = capability() / 10; break;
    case cudaDevAttrComputeCapabilityMinor: *value = capability() % 10; break;
    case cudaDevAttrMultiProcessorCount: *value = 132; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = 2048; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = 232448; break;
    default: *value = 0;
  }
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *of, int device) {
  memset(of, 0, sizeof *of);
  strcpy(of->name, "Pretended GPU");
  of->major = capability() / 10; of->minor = capability() % 10;
  of->totalGlobalMem = 80ull << 30; of->l2CacheSize = 50 << 20;
  of->multiProcessorCount = 132; of->maxThreadsPerMultiProcessor = 2048; of->warpSize = 32;
  of->maxThreadsPerBlock = of->maxThreadsDim[0] = of->maxThreadsDim[1] = 1024; of->maxThreadsDim[2] = 64;
  of->maxGridSize[0] = 2147483647; of->maxGridSize[1] = of->maxGridSize[2] = 65535;
  of->sharedMemPerBlock = 49152; of->sharedMemPerBlockOptin = 232448; of->sharedMemPerMultiprocessor = 233472;
  of->regsPerBlock = of->regsPerMultiprocessor = 65536;
  of->unifiedAddressing = of->concurrentKernels = 1; of->asyncEngineCount = 3;
  memset(of->uuid.bytes, 1 + device, 16);
  return cudaSuccess;
}

/* Memory. */
static struct { char *begin; size_t bytes; } pinned[4096];
static int pins;
static int is_pinned(const void *place) {
  for (int n = 0; n < pins; n++) if ((char *)place >= pinned[n].begin && (char *)place < pinned[n].begin + pinned[n].bytes) return 1;
  return 0;
}
static void uploaded(enum cudaMemcpyKind kind, const void *from) {
  if (kind == cudaMemcpyHostToDevice) { pretended_uploads++; pretended_unpinned += !is_pinned(from); }
}
cudaError_t cudaMalloc(void **place, size_t bytes) { pretended_touches[current]++; pretended_allocations++; return pretended_error ? pretended_error : allocate(place, bytes, 512); }
cudaError_t cudaFree(void *place) { free(place); return cudaSuccess; }
cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes) { *free_bytes = *total_bytes = 80ull << 30; return cudaSuccess; }
cudaError_t cudaHostAlloc(void **place, size_t bytes, unsigned flags) {
  cudaError_t error = allocate(place, bytes, 4096);
  pretended_pins++;
  if (error == cudaSuccess && pins < 4096) { pinned[pins].begin = *place; pinned[pins++].bytes = bytes; }
  return error;
}
cudaError_t cudaFreeHost(void *place) {
  for (int n = 0; n < pins; n++) if (pinned[n].begin == place) { pinned[n] = pinned[--pins]; break; }
  free(place);
  return cudaSuccess;
}
cudaError_t cudaHostGetDevicePointer(void **device, void *host, unsigned flags) { *device = host; return cudaSuccess; }
cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *of, const void *place) {
  memset(of, 0, sizeof *of);
  of->type = is_pinned(place) ? cudaMemoryTypeHost : cudaMemoryTypeUnregistered;
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream) { uploaded(kind, from); memmove(to, from, bytes); queued++; return pretended_error; }
cudaError_t cudaMemcpyPeerAsync(void *to, int there, const void *from, int here, size_t bytes, cudaStream_t stream) { memmove(to, from, bytes); queued++; return pretended_error; }
cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind) { uploaded(kind, from); memmove(to, from, bytes); return pretended_wait(); }
cudaError_t cudaMemsetAsync(void *place, int value, size_t bytes, cudaStream_t stream) { memset(place, value, bytes); queued++; return pretended_error; }
cudaError_t cudaMemset(void *place, int value, size_t bytes) { memset(place, value, bytes); return cudaSuccess; }
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int device) { *pool = (cudaMemPool_t)16; return cudaSuccess; }
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute, void *value) { return cudaSuccess; }
cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute, void *value) { *(unsigned long long *)value = 0; return cudaSuccess; }

/* Streams and events. */
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority) { static long last = 16; pretended_touches[current]++; *stream = (cudaStream_t)(last += 16); return cudaSuccess; }
cudaError_t cudaStreamDestroy(cudaStream_t stream) { return cudaSuccess; }
cudaError_t cudaStreamQuery(cudaStream_t stream) { return waited_for >= queued ? cudaSuccess : cudaErrorNotReady; }
cudaError_t cudaStreamSynchronize(cudaStream_t stream) { return pretended_wait(); }
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) { return cudaSuccess; }
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status) { *status = cudaStreamCaptureStatusNone; return cudaSuccess; }
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus *status, unsigned long long *id, cudaGraph_t *graph, const cudaGraphNode_t **nodes, const cudaGraphEdgeData **edges, size_t *count) { *status = cudaStreamCaptureStatusNone; return cudaSuccess; }
cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode) { return cudaSuccess; }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) { pretended_touches[current]++; *event = calloc(1, sizeof(struct event)); return cudaSuccess; }
cudaError_t cudaEventDestroy(cudaEvent_t event) { free(event); return cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) { struct event *own = (void *)event; own->at_ms = now_ms(); own->work = ++queued; own->device = current; pretended_records[current]++; return pretended_error; }
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) { return cudaEventRecord(event, stream); }
cudaError_t cudaEventQuery(cudaEvent_t event) { return pretended_error ? pretended_error : ((struct event *)event)->work <= waited_for ? cudaSuccess : cudaErrorNotReady; }
cudaError_t cudaEventSynchronize(cudaEvent_t event) { return pretended_wait(); }
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t begin, cudaEvent_t end) {
  struct event *first = (void *)begin, *last = (void *)end;
  if (pretended_error) return pretended_error;
  if (first->device != last->device) return cudaErrorInvalidResourceHandle;
  if (first->work > waited_for || last->work > waited_for) return cudaErrorNotReady;
  *ms = (float)(last->at_ms - first->at_ms);
  return cudaSuccess;
}

/* Kernels. */
cudaError_t cudaLaunchKernel(const void *kernel, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream) { return launch(); }
/* How code that nvcc 13 has compiled launches a kernel. */
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream) { return launch(); }
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *kernel, void **arguments) { return launch(); }
cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *of, const void *kernel) { memset(of, 0, sizeof *of); of->maxThreadsPerBlock = 1024; return cudaSuccess; }
cudaError_t cudaFuncSetAttribute(const void *kernel, enum cudaFuncAttribute attribute, int value) { return cudaSuccess; }
cudaError_t cudaFuncGetName(const char **name, const void *kernel) { *name = "kernel"; return cudaSuccess; }
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *count, const void *kernel, int threads, size_t shared) { *count = 2; return cudaSuccess; }
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *count, const void *kernel, int threads, size_t shared, unsigned flags) { *count = 2; return cudaSuccess; }

/* Errors, and functions of the driver that torch asks for by name: each answers that all is well. */
static int well(void) { return 0; }
cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version, unsigned long long flags, enum cudaDriverEntryPointQueryResult *result) { *function = (void *)well; if (result) *result = cudaDriverEntryPointSuccess; return cudaSuccess; }
cudaError_t cudaGetLastError(void) { return pretended_error; }
cudaError_t cudaPeekAtLastError(void) { return pretended_error; }
const char *cudaGetErrorName(cudaError_t error) { return error == cudaErrorNotReady ? "cudaErrorNotReady" : "cudaError"; }
const char *cudaGetErrorString(cudaError_t error) { return error == cudaErrorNotReady ? "device not ready" : error == cudaErrorLaunchFailure ? "unspecified launch failure" : "an error of the pretended runtime"; }
