/* A test double of the driver's library, so that the real binding (ctypes) is exercised: one H200 whose energy counter
   grows by 250 J whenever it is asked.
   Struct layouts follow nvml.h. Built by test_nvml_library.py. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef int Return;
typedef void *Handle;
static int device, samples;

Return nvmlInitWithFlags(unsigned flags) { return 0; }
Return nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(Return r) { return "an error of the test double"; }
Return nvmlDeviceGetCount_v2(unsigned *count) { *count = 1; return 0; }
Return nvmlDeviceGetHandleByIndex_v2(unsigned index, Handle *handle) { *handle = &device; return 0; }
Return nvmlDeviceGetName(Handle h, char *name, unsigned length) { strncpy(name, "NVIDIA H200", length); return 0; }
Return nvmlDeviceGetUUID(Handle h, char *name, unsigned length) { strncpy(name, "GPU-0001", length); return 0; }
Return nvmlSystemGetDriverVersion(char *text, unsigned length) { strncpy(text, "580.95.05", length); return 0; }
Return nvmlSystemGetCudaDriverVersion(int *version) { *version = 13000; return 0; }
Return nvmlDeviceGetCudaComputeCapability(Handle h, int *major, int *minor) { *major = 9; *minor = 0; return 0; }
Return nvmlDeviceGetNumGpuCores(Handle h, unsigned *cores) { *cores = 16896; return 0; }
Return nvmlDeviceGetMaxClockInfo(Handle h, unsigned kind, unsigned *mhz) { *mhz = kind == 2 ? 3201 : 1980; return 0; }
Return nvmlDeviceGetClockInfo(Handle h, unsigned kind, unsigned *mhz) { *mhz = kind == 2 ? 3201 : 1755; return 0; }
Return nvmlDeviceGetMemoryBusWidth(Handle h, unsigned *bits) { *bits = 6144; return 0; }
Return nvmlDeviceGetEnforcedPowerLimit(Handle h, unsigned *mw) { *mw = 700000; return 0; }
Return nvmlDeviceGetEccMode(Handle h, unsigned *current, unsigned *pending) { *current = *pending = 1; return 0; }
Return nvmlDeviceGetMigMode(Handle h, unsigned *current, unsigned *pending) { *current = *pending = 0; return 0; }
Return nvmlDeviceGetCurrentClocksEventReasons(Handle h, unsigned long long *bits) { *bits = 0x4; return 0; }

Return nvmlDeviceGetTotalEnergyConsumption(Handle h, unsigned long long *mj) {
    static unsigned long long asked;
    *mj = (1ULL << 40) + 250000 * ++asked; /* more than 32 bits hold */
    return 0;
}

typedef struct { unsigned long long total, free, used; } Memory;
Return nvmlDeviceGetMemoryInfo(Handle h, Memory *m) {
    m->total = 143771ULL << 20;
    m->used = 5ULL << 30;
    m->free = m->total - m->used;
    return 0;
}

typedef struct { unsigned version; unsigned long long total, reserved, free, used; } Memory2;
Return nvmlDeviceGetMemoryInfo_v2(Handle h, Memory2 *m) {
    if (m->version != (sizeof *m | 2u << 24)) return 25;
    m->total = 143771ULL << 20;
    m->used = 4ULL << 30;
    m->reserved = 1ULL << 30;
    m->free = m->total - m->used - m->reserved;
    return 0;
}

typedef struct { unsigned gpu, memory; } Utilisation;
Return nvmlDeviceGetUtilizationRates(Handle h, Utilisation *u) { u->gpu = 97; u->memory = 40; return 0; }

typedef struct { unsigned version, sensor; int degrees; } Temperature;
Return nvmlDeviceGetTemperatureV(Handle h, Temperature *t) { t->degrees = 61; return 0; }

typedef struct {
    unsigned id, scope;
    int64_t timestamp, latency;
    int type;
    Return result;
    union { double d; unsigned u; unsigned long long ull; } value;
} Field;
Return nvmlDeviceGetFieldValues(Handle h, int count, Field *fields) {
    for (int i = 0; i < count; i++) {
        fields[i].type = 1;
        fields[i].result = fields[i].id == 185 || fields[i].id == 186 ? 0 : 3;
        fields[i].value.u = fields[i].id == 186 ? 251500 : 249000;
    }
    return 0;
}

typedef struct { unsigned pid; unsigned long long memory; unsigned gpu_instance, compute_instance; } Process;
Return nvmlDeviceGetComputeRunningProcesses_v3(Handle h, unsigned *count, Process *list) {
    if (!list || *count < 1) { *count = 1; return 7; }
    list[0] = (Process){4194304, 3ULL << 30, 0xFFFFFFFF, 0xFFFFFFFF};
    *count = 1;
    return 0;
}

typedef struct { unsigned version, supported; } Support;
Return nvmlGpmQueryDeviceSupport(Handle h, Support *s) { s->supported = 1; return s->version == 1 ? 0 : 25; }
Return nvmlGpmSampleAlloc(Handle *sample) { *sample = calloc(1, 8); samples++; return 0; }
Return nvmlGpmSampleFree(Handle sample) { free(sample); samples--; return 0; }
Return nvmlGpmSampleGet(Handle h, Handle sample) { *(int *)sample = 42; return 0; }

typedef struct { unsigned id; Return result; double value; char *names[3]; } Metric;
typedef struct { unsigned version, count; Handle before, after; Metric metrics[]; } Metrics;
Return nvmlGpmMetricsGet(Metrics *request) {
    if (request->version != 1 || *(int *)request->before != 42 || *(int *)request->after != 42) return 25;
    for (unsigned i = 0; i < request->count; i++) {
        request->metrics[i].result = 0;
        request->metrics[i].value = request->metrics[i].id * 1.5;
    }
    return 0;
}

int samples_alive(void) { return samples; }
