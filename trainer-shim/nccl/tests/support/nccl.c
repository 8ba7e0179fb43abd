/* A library with NCCL's interface of 2.28 that forms nothing: ranks are alone, and reduce as if all
   had the same values. It writes down what is called, and answers what the test has put into a file
   of the function's name. Built with
   -DFOLDER="..." for both, and -DVERSION=... for what it says that it is. */

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

enum { SUCCESS = 0, INVALID_USAGE = 5, IN_PROGRESS = 7 };
enum { INT64 = 4, FLOAT32 = 7, FLOAT64 = 8, SUM = 0 };

typedef struct { char internal[128]; } ncclUniqueId;

/* As in the header of 2.28. */
typedef struct {
  size_t size;
  unsigned int magic;
  unsigned int version;
  int blocking;
  int cgaClusterSize;
  int minCTAs;
  int maxCTAs;
  const char *netName;
  int splitShare;
  int trafficClass;
  const char *commName;
  int collnetEnable;
  int CTAPolicy;
  int shrinkShare;
  int nvlsCTAs;
  int nChannelsPerNetPeer;
  int nvlinkCentricSched;
} ncclConfig_t;

static FILE *calls(void) {
  FILE *file = fopen(FOLDER "/calls", "a");
  if (!file) abort();
  return file;
}

static int answer(const char *call, int otherwise) {
  char path[512];
  int code = otherwise;
  snprintf(path, sizeof path, "%s/%s", FOLDER, call);
  FILE *file = fopen(path, "r");
  if (file) {
    if (fscanf(file, "%d", &code) != 1) abort();
    fclose(file);
  }
  return code;
}

static int on(const char *call, int *comm) {
  FILE *file = calls();
  fprintf(file, comm ? "%s %d\n" : "%s\n", call, comm ? *comm : 0);
  fclose(file);
  return answer(call, SUCCESS);
}

int ncclGetVersion(int *version) { *version = VERSION; return SUCCESS; }
const char *ncclGetErrorString(int code) { return code > IN_PROGRESS ? "unknown result code" : "text"; }
const char *ncclGetLastError(void *comm) { return comm ? NULL : "the last error"; }

int ncclGetUniqueId(ncclUniqueId *id) {
  for (int at = 0; at < 128; at++) id->internal[at] = (char)at;
  return SUCCESS;
}

int ncclCommInitRankConfig(int **comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t *config) {
  FILE *file = calls();
  fprintf(file, "init %d/%d id %d..%d %s size %zu magic %x version %u blocking %d", rank, ranks,
          id.internal[0], id.internal[127], config->commName, config->size, config->magic,
          config->version, config->blocking);
  int undefined = config->cgaClusterSize == config->minCTAs && config->maxCTAs == config->splitShare &&
                  config->trafficClass == config->collnetEnable && config->CTAPolicy == config->shrinkShare &&
                  config->nvlsCTAs == config->nChannelsPerNetPeer && !config->netName;
  fprintf(file, " others %d %d\n", undefined ? config->cgaClusterSize : 0, config->nvlinkCentricSched);
  fclose(file);
  int code = answer("init", IN_PROGRESS);
  /* Another number means: fails, and leaves no communicator. */
  if (code < 0) return -code;
  *comm = malloc(2 * sizeof **comm);
  (*comm)[0] = rank;
  (*comm)[1] = ranks;
  return code;
}

int ncclCommGetAsyncError(int *comm, int *state) {
  *state = answer("state", IN_PROGRESS);
  return *comm < 0 ? INVALID_USAGE : SUCCESS;
}

int ncclCommAbort(int *comm) { return on("abort", comm); }
int ncclCommFinalize(int *comm) { return on("finalize", comm); }
int ncclCommDestroy(int *comm) { return on("destroy", comm); }
int ncclGroupStart(void) { return on("start", NULL); }
int ncclGroupEnd(void) { return on("end", NULL); }
static int collective(const char *call, size_t n, int type, const char *what, int argument, int *comm) {
  FILE *file = calls();
  fprintf(file, "%s %d count %zu type %d %s %d\n", call, *comm, n, type, what, argument);
  fclose(file);
  return answer(call, SUCCESS);
}
int ncclAllReduce(const void *from, void *to, size_t n, int type, int op, int *comm, void *stream) {
  int code = collective("all_reduce", n, type, "op", op, comm);
  if (code != SUCCESS || from != to || !stream) return code ? code : INVALID_USAGE;
  for (size_t at = 0; at < n && op == SUM; at++) {
    if (type == INT64) ((long long *)to)[at] *= comm[1];
    if (type == FLOAT32) ((float *)to)[at] *= (float)comm[1];
    if (type == FLOAT64) ((double *)to)[at] *= comm[1];
  }
  return code;
}
int ncclBroadcast(const void *from, void *to, size_t n, int type, int root, int *comm, void *stream) {
  int code = collective("broadcast", n, type, "root", root, comm);
  return code == SUCCESS && (from != to || !stream) ? INVALID_USAGE : code;
}
#if VERSION >= 22807
int ncclCommRevoke(int *comm, int flags) { return flags ? INVALID_USAGE : on("revoke", comm); }
#endif
