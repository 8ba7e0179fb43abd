/* A CUDA driver with one device, whose memory is this process's and whose streams have done
   everything at once. What the test has put into the file `query` is the answer to whether a stream
   has: 600 is "not yet". Built with -DFOLDER="...". */

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, INVALID_VALUE = 1, DEVICE_BYTES = 1 << 30 };

typedef unsigned long long address;

static size_t in_use;
static int context;
static __thread void *current;

int cuInit(unsigned flags) { return flags ? INVALID_VALUE : SUCCESS; }
int cuGetErrorName(int code, const char **text) { *text = "NAME"; return code < 0; }
int cuGetErrorString(int code, const char **text) { *text = "text"; return code < 0; }

int cuDeviceGetCount(int *count) { *count = 1; return SUCCESS; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return ordinal ? INVALID_VALUE : SUCCESS; }
int cuDeviceGetAttribute(int *value, int attribute, int device) { *value = 0; return attribute < device; }
int cuDevicePrimaryCtxRetain(void **retained, int device) { *retained = &context; return device; }
int cuDevicePrimaryCtxRelease_v2(int device) { return device; }
int cuCtxGetCurrent(void **got) { *got = current; return SUCCESS; }
int cuCtxSetCurrent(void *set) { current = set; return SUCCESS; }
int cuCtxSynchronize(void) { return SUCCESS; }

static int make(void **made) { *made = malloc(1); return SUCCESS; }
static int end(void *made) { free(made); return SUCCESS; }

int cuStreamCreate(void **stream, unsigned flags) { (void)flags; return make(stream); }
int cuStreamDestroy_v2(void *stream) { return end(stream); }
int cuStreamSynchronize(void *stream) { (void)stream; return SUCCESS; }
int cuStreamWaitEvent(void *stream, void *event, unsigned flags) { (void)stream, (void)event, (void)flags; return SUCCESS; }
int cuEventCreate(void **event, unsigned flags) { (void)flags; return make(event); }
int cuEventDestroy_v2(void *event) { return end(event); }
int cuEventRecord(void *event, void *stream) { (void)event, (void)stream; return SUCCESS; }
int cuEventQuery(void *event) {
  int code = SUCCESS;
  (void)event;
  FILE *file = fopen(FOLDER "/query", "r");
  if (file) {
    if (fscanf(file, "%d", &code) != 1) abort();
    fclose(file);
  }
  return code;
}

/* Its size stands before what is handed out. */
int cuMemAlloc_v2(address *got, size_t bytes) {
  size_t *memory = bytes ? malloc(sizeof *memory * 2 + bytes) : NULL;
  if (!memory) return INVALID_VALUE;
  *memory = bytes;
  __atomic_fetch_add(&in_use, bytes, __ATOMIC_SEQ_CST);
  *got = (address)(size_t)(memory + 2);
  return SUCCESS;
}
int cuMemFree_v2(address given) {
  size_t *memory = (size_t *)(size_t)given - 2;
  __atomic_fetch_sub(&in_use, *memory, __ATOMIC_SEQ_CST);
  free(memory);
  return SUCCESS;
}
int cuMemAllocAsync(address *got, size_t bytes, void *stream) { (void)stream; return cuMemAlloc_v2(got, bytes); }
int cuMemFreeAsync(address given, void *stream) { (void)stream; return cuMemFree_v2(given); }
int cuMemGetInfo_v2(size_t *unused, size_t *total) {
  *total = DEVICE_BYTES;
  *unused = DEVICE_BYTES - __atomic_load_n(&in_use, __ATOMIC_SEQ_CST);
  return SUCCESS;
}
int cuMemcpyHtoDAsync_v2(address to, const void *from, size_t bytes, void *stream) {
  (void)stream;
  memcpy((void *)(size_t)to, from, bytes);
  return SUCCESS;
}
int cuMemcpyDtoHAsync_v2(void *to, address from, size_t bytes, void *stream) {
  (void)stream;
  memcpy(to, (const void *)(size_t)from, bytes);
  return SUCCESS;
}
